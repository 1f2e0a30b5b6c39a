//! The usual hand-off: a bell reports the grant to the next in line, which then does not ask. Only
//! a client that knows the token can make that bell. Where a test is about the time between two
//! statements, it sends the library's statements by hand.

use std::time::Duration;

use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::postgres::LeaseTable;
use leasehold::{Client, LeaseState, Released, connect};
use leasehold_testkit::Postgres;
use tokio_postgres::types::ToSql;

use crate::support::{
    LONG, fresh_schema, granted, plain, server, soon, until, until_free, until_waiting, waiter,
};

const HAND: &str = include_str!("../../src/engines/postgres/table/hand.sql");
const RING: &str = include_str!("../../src/engines/postgres/table/ring.sql");

/// A store of its own, a client that holds names there, and a client that waits and whose calls are
/// counted.
struct Lab {
    schema: String,
    url: String,
    one: Client,
    two: Client,
    chaos: Chaos,
}

impl Lab {
    async fn new() -> Self {
        let schema = fresh_schema();
        let url = format!("{}?schema={schema}", server().url());
        let one = connect(&url).await.expect("connected");
        let chaos = Chaos::default();
        let engine = chaos.trouble(LeaseTable::open(&url).await.expect("connected"));
        let two = Client::builder().engine(engine).expect("a client");
        Self { schema, url, one, two, chaos }
    }

    fn asked(&self) -> u64 {
        self.chaos.calls(Verb::Claim)
    }

    /// One of the library's statements, for this store.
    fn statement(&self, text: &str) -> String {
        text.replace("leasehold.", &format!("\"{}\".", self.schema))
    }

    fn sql(&self, statement: &str) -> String {
        server().sql(&statement.replace("STORE", &self.schema)).expect("an answer")
    }

    /// The payload of a bell for the claim that waits for `n`. Its fence is `fence_more` greater
    /// than the claim's, and its proof is of a fence that is `proof_more` greater.
    fn payload(&self, fence_more: u32, proof_more: u32) -> String {
        self.sql(&format!(
            "SELECT to_hex(bell) || '.' || (fence + {fence_more}) || '.' || left(encode(sha256( \
             token || int8send(fence + {proof_more})), 'hex'), 32) \
             FROM STORE.claims WHERE name = 'n' AND granted IS NULL"
        ))
    }

    /// Rings on a channel that all clients hear.
    fn notify(&self, payload: &str) {
        self.sql(&format!("NOTIFY \"\"\"STORE\"\".bells\", '{payload}'"));
    }
}

#[tokio::test]
async fn next_in_line_hears_of_its_grant_and_does_not_ask() {
    const CYCLES: u64 = 20;
    let lab = Lab::new().await;
    let mut held = lab.one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    for _ in 0..CYCLES {
        let next = waiter(lab.two.request("n").ttl(LONG));
        until_waiting(&lab.one, "n", 1).await;
        let fence = held.fence();
        assert_eq!(held.release().await.expect("an answer"), Released::Released);
        held = granted(next).await;
        assert!(held.fence() > fence && held.is_held());
    }
    // Each claim joins, and does no more; a heartbeat at that moment may make one ask.
    let asked = lab.asked();
    assert!((CYCLES..=CYCLES + 2).contains(&asked), "{asked} claims in {CYCLES} cycles");
    assert_eq!(held.state(), LeaseState::Held);
    soon("a renewal", held.extend(LONG)).await.expect("the store knows it");
    held.release().await.expect("an answer");
    until_free(&lab.one, "n").await;
}

#[tokio::test]
async fn a_bell_that_does_not_know_the_token_or_the_place_in_line_grants_nothing() {
    let lab = Lab::new().await;
    let held = lab.one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(lab.two.request("n").ttl(LONG));
    until_waiting(&lab.one, "n", 1).await;
    let right = lab.payload(0, 0);
    let (number, rest) = right.split_once('.').expect("a number");
    let (fence, proof) = rest.split_once('.').expect("a fence");
    let wrong = "0123456789abcdef0123456789abcdef";
    let forged = [
        number.to_owned(),
        format!("{number}.{fence}"),
        format!("{number}.{fence}."),
        format!("{number}.{fence}.{wrong}"),
        format!("{number}.{fence}.{}", &proof[..30]),
        format!("{number}.{fence}.{proof}00"),
        format!("{number}.{proof}.{fence}"),
        lab.payload(1, 0),
        // From a sender that knows the token, but of another place in line than the claim has now.
        lab.payload(7, 7),
    ];
    for payload in forged {
        let asked = lab.asked();
        lab.notify(&payload);
        until("a question", async || lab.asked() > asked || next.is_finished()).await;
        assert!(!next.is_finished(), "granted by {payload}");
    }
    // A bell for no claim is not even a reason to ask.
    let asked = lab.asked();
    for payload in ["", "x", "0", ".", "ffffffffffffffffffff.1.2"] {
        lab.notify(payload);
    }
    lab.notify(number);
    until("a question", async || lab.asked() > asked).await;
    assert!(!next.is_finished());
    // A reader of the table can make the right payload. Its success shows the faults of the others.
    let asked = lab.asked();
    lab.notify(&right);
    let next = granted(next).await;
    assert_eq!((next.fence().to_string().as_str(), lab.asked()), (fence, asked));
    drop((held, next));
}

#[tokio::test]
async fn the_heir_of_one_who_ends_before_it_rings_finds_out_by_its_heartbeat() {
    let lab = Lab::new().await;
    let held = lab.one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(lab.two.request("n").ttl(LONG));
    until_waiting(&lab.one, "n", 1).await;
    let ends = plain(server().url()).await;
    let token = format!("SELECT token FROM {}.claims WHERE granted IS NOT NULL", lab.schema);
    let token: Vec<u8> = ends.query_one(&token, &[]).await.expect("an answer").get(0);
    let arguments: [&(dyn ToSql + Sync); 2] = [&"n", &token];
    let handed = ends.query(&lab.statement(HAND), &arguments).await.expect("an answer");
    assert_eq!(handed.len(), 1, "it was handed over");
    drop(ends);
    let next = granted(next).await;
    assert!(next.fence() > held.fence());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn one_ring_is_for_all_that_was_handed_over_in_a_session() {
    const NAMES: usize = 5;
    let lab = Lab::new().await;
    let (mut leases, mut waiters) = (Vec::new(), Vec::new());
    for name in 0..NAMES {
        let name = format!("n:{name}");
        leases.push(lab.one.mutex(&name).ttl(LONG).lock().await.expect("a lease"));
        waiters.push(waiter(lab.two.request(&name).ttl(LONG)));
        until_waiting(&lab.one, &name, 1).await;
    }
    let asked = lab.asked();
    let session = plain(server().url()).await;
    let tokens = format!("SELECT name, token FROM {}.claims WHERE granted IS NOT NULL", lab.schema);
    for row in session.query(&tokens, &[]).await.expect("an answer") {
        let (name, token): (String, Vec<u8>) = (row.get(0), row.get(1));
        let arguments: [&(dyn ToSql + Sync); 2] = [&name, &token];
        let handed = session.query(&lab.statement(HAND), &arguments).await.expect("an answer");
        assert_eq!(handed.len(), 1, "{name} was handed over");
    }
    // As when tasks that share a connection release at once: all names are handed over, then rung.
    let rung = session.query(&lab.statement(RING), &[]).await.expect("an answer");
    assert_eq!(rung.len(), NAMES);
    let rung = session.query(&lab.statement(RING), &[]).await.expect("an answer");
    assert_eq!(rung.len(), 0, "nobody is rung for twice");
    for next in waiters {
        assert!(granted(next).await.is_held());
    }
    let asked = lab.asked() - asked;
    assert!(asked <= 1, "{asked} had to ask");
    drop(leases);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn names_that_are_handed_over_at_once_on_one_connection_ring_everybody() {
    const NAMES: usize = 60;
    let lab = Lab::new().await;
    let busy = connect(format!("{}&connections=1", lab.url)).await.expect("connected");
    let (mut leases, mut waiters) = (Vec::new(), Vec::new());
    for name in 0..NAMES {
        let name = format!("n:{name}");
        leases.push(busy.mutex(&name).ttl(LONG).lock().await.expect("a lease"));
        waiters.push(waiter(lab.two.request(&name).ttl(LONG)));
    }
    for name in 0..NAMES {
        until_waiting(&lab.one, &format!("n:{name}"), 1).await;
    }
    let asked = lab.asked();
    let releases: Vec<_> =
        leases.into_iter().map(|lease| tokio::spawn(async { lease.release().await })).collect();
    for release in releases {
        let released = soon("an answer", release).await.expect("the task ends");
        assert_eq!(released.expect("an answer"), Released::Released);
    }
    for next in waiters {
        granted(next).await.release().await.expect("an answer");
    }
    let asked = lab.asked() - asked;
    assert!(asked <= 6, "{asked} of {NAMES} had to ask");
}

#[tokio::test]
async fn a_grant_that_was_rung_for_survives_the_crash_that_follows() {
    const ROUNDS: u32 = 4;
    // The server only flushes what a client waits for.
    let postgres = Postgres::new().fsync(true).setting("wal_writer_delay", "10s");
    let postgres = postgres.setting("wal_writer_flush_after", "2GB");
    let server = postgres.start().await.expect("a server");
    let one = connect(server.url()).await.expect("connected");
    let chaos = Chaos::default();
    let engine = chaos.trouble(LeaseTable::open(server.url()).await.expect("connected"));
    let two = Client::builder().engine(engine).expect("a client");
    let ttl = Duration::from_secs(60);
    for round in 0..ROUNDS {
        let name = format!("n:{round}");
        let lock = async || one.mutex(&name).ttl(ttl).lock().await;
        // The first question after a crash may get an error from the old connection.
        let mut held = lock().await;
        while held.as_ref().is_err_and(|error| error.is_transient()) {
            held = lock().await;
        }
        let held = held.expect("a lease");
        let next = waiter(two.request(&name).ttl(ttl));
        until_waiting(&one, &name, 1).await;
        let asked = chaos.calls(Verb::Claim);
        let (released, next) = tokio::join!(held.release(), granted(next));
        server.kill().expect("it ends");
        let was_told = chaos.calls(Verb::Claim) == asked;
        released.expect("an answer");
        server.launch().expect("it starts");
        server.wait_ready().await.expect("it answers");
        let holds = format!(
            "SELECT count(*) FROM leasehold.claims \
             WHERE name = '{name}' AND fence = {} AND granted IS NOT NULL",
            next.fence()
        );
        let found = server.sql(&holds).expect("an answer");
        assert_eq!(found, "1", "round {round}, told by its bell: {was_told}");
        drop(next);
    }
}

/// If the statement had to wait for the line's lock, it has read older claims.
#[tokio::test]
async fn nothing_is_handed_to_one_who_left_while_the_giver_waited_for_the_lines_lock() {
    let lab = Lab::new().await;
    let held = lab.one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let session = plain(server().url()).await;
    let leaves = "decode(repeat('ab', 16), 'hex')";
    let joins = format!(
        "SELECT standing FROM {}.claim('n', {leaves}, 4294967295, 4294967295, {leaves}, 'l', '', \
         300000000, 300000000, true, 0)",
        lab.schema
    );
    let standing: String = session.query_one(&joins, &[]).await.expect("an answer").get(0);
    assert_eq!(standing, "queued");
    let next = waiter(lab.two.request("n").ttl(LONG));
    until_waiting(&lab.one, "n", 2).await;
    let token = format!("SELECT token FROM {}.claims WHERE granted IS NOT NULL", lab.schema);
    let token: Vec<u8> = session.query_one(&token, &[]).await.expect("an answer").get(0);
    // Another session has the line's lock during the release.
    let lock = format!("BEGIN; SELECT FROM {}.lines WHERE name = 'n' FOR UPDATE", lab.schema);
    session.batch_execute(&lock).await.expect("locked");
    let gives = plain(server().url()).await;
    let process: i32 = gives.query_one("SELECT pg_backend_pid()", &[]).await.expect("one").get(0);
    let hand = lab.statement(HAND);
    let giving = tokio::spawn(async move {
        let arguments: [&(dyn ToSql + Sync); 2] = [&"n", &token];
        gives.query(&hand, &arguments).await.expect("an answer").len()
    });
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"
    );
    until("the giver waits", async || lab.sql(&waits) == "1").await;
    let leave =
        format!("SELECT * FROM {}.release(ARRAY['n'], ARRAY[{leaves}]); COMMIT", lab.schema);
    session.batch_execute(&leave).await.expect("it left");
    let handed = soon("the end of the statement", giving).await.expect("the task ends");
    assert_eq!(handed, 0, "the first in line was not there any more");
    let line = lab.one.line("n").await.expect("an answer").expect("a line");
    assert_eq!((line.held.len(), line.waiting.len()), (1, 1));
    assert_eq!(line.held[0].fence, held.fence());
    assert_eq!(lab.sql("SELECT claims, held FROM STORE.lines"), "2|1");
    assert_eq!(held.release().await.expect("an answer"), Released::Released);
    assert!(granted(next).await.is_held());
}
