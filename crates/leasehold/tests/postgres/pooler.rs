//! F73: a proxy that lends server connections for the length of a transaction.

use std::time::{Duration, Instant};

use leasehold::engine::Level;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::postgres::LeaseTable;
use leasehold::{Client, Released, UnlessHeld, connect};
use leasehold_testkit::scheduling::SchedulerDelay;
use leasehold_testkit::{Pgbouncer, Proxy};

use crate::support::{
    EVENT_MAX, LONG, fresh_schema, granted, number, plain, server, soon, until, until_waiting,
    waiter,
};
use crate::warnings::{self, said_here};

#[tokio::test]
async fn f73_everything_works_behind_a_pooler_and_bells_fall_back_to_polling() {
    let pooler = Pgbouncer::before(server()).start().await.expect("a pooler");
    let schema = fresh_schema();
    let pooled = format!("{}?schema={schema}", pooler.url());
    let (one, two) = (connect(&pooled).await.expect("a"), connect(&pooled).await.expect("b"));
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    assert!(two.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    let next = waiter(two.request("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    soon("a renewal", lease.extend(LONG)).await.expect("renewed");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let lease = granted(next).await;
    let findings = soon("the examination", two.admin().examine()).await.expect("an answer");
    let bells = findings.iter().find(|finding| finding.subject == "bells").expect("looked at");
    assert_eq!(bells.level, Level::Warning, "{bells:?}");
    assert!(bells.found.contains("pooling proxy"), "{bells:?}");
    // Clients with and without a pooler are in one line.
    let direct = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let next = waiter(direct.request("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
    let findings = direct.admin().examine().await.expect("an answer");
    let bells = findings.iter().find(|finding| finding.subject == "bells").expect("looked at");
    assert_eq!(bells.level, Level::Good, "{bells:?}");
}

#[tokio::test]
async fn f73_many_clients_share_a_pool_of_one() {
    let pooler = Pgbouncer::before(server()).pool_size(1).start().await.expect("a pooler");
    let pooled = format!("{}?schema={}", pooler.url(), fresh_schema());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let client = connect(&pooled).await.expect("connected");
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
                lease.release().await.expect("an answer");
            }
        }));
    }
    for task in tasks {
        soon("all turns", task).await.expect("the task ends");
    }
}

#[tokio::test]
async fn f73_nothing_is_prepared_in_a_session_that_is_lent() {
    let pooler = Pgbouncer::before(server()).pool_size(1).start().await.expect("a pooler");
    let client = connect(format!("{}?schema={}", pooler.url(), fresh_schema())).await.expect("a");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    lease.release().await.expect("an answer");
    // The pool has one session, so the pooler lent this one for all requests.
    let plain = plain(pooler.url()).await;
    let prepared = "SELECT count(*) FROM pg_prepared_statements";
    let answer = plain.simple_query(prepared).await.expect("an answer");
    let count = answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    assert_eq!(count.as_deref(), Some("0"));
}

/// The end of a claim's parse message: the types of its last arguments, `boolean` and `bigint`.
const CLAIM_PARSED: [u8; 8] = [0, 0, 0, 16, 0, 0, 0, 20];

/// A pooler lends the session of an answered request to the next client. It may not see that the
/// first client has already begun another request. Then it sends the rest of that request to
/// another session.
#[tokio::test]
async fn f73_claim_that_reaches_a_pooler_in_pieces_is_made_in_its_own_store() {
    let pooler = Pgbouncer::before(server()).pool_size(2).start().await.expect("a pooler");
    let proxy = Proxy::start(pooler.address()).await.expect("a proxy");
    let (ours, theirs) = (fresh_schema(), fresh_schema());
    let of = |url: &str, schema: &str| format!("{url}?schema={schema}&connections=1");
    let direct = connect(of(server().url(), &ours)).await.expect("connected");
    let proxied = format!("postgres://postgres@{}/postgres", proxy.address());
    let client = connect(of(&proxied, &ours)).await.expect("connected");
    let other = connect(of(pooler.url(), &theirs)).await.expect("connected");
    // One session of the pooler waits for the line of a name that another session keeps locked.
    let _held = direct.mutex("a").ttl(LONG).lock().await.expect("a lease");
    let keeper = plain(server().url()).await;
    let lock = format!("BEGIN; SELECT FROM {ours}.lines WHERE name = 'a' FOR UPDATE");
    keeper.batch_execute(&lock).await.expect("locked");
    let asked = client.mutex("a").ttl(LONG);
    let first = tokio::spawn(async move { asked.try_lock().await.unless_held() });
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND query LIKE '%{ours}%claim%'"
    );
    let watcher = plain(server().url()).await;
    until("a claim that waits", async || number(&watcher, &waiting).await == 1).await;
    // The last statement of the other session is a claim in another store.
    let _theirs = other
        .mutex("x")
        .ttl(LONG)
        .try_lock()
        .await
        .unless_held()
        .expect("an answer")
        .expect("free");
    proxy.hold_behind(CLAIM_PARSED);
    let asked = client.mutex("b").ttl(LONG);
    let second = tokio::spawn(async move { asked.try_lock().await.unless_held() });
    // A client that does not wait for the previous answer sends the next claim now.
    let begun = |traffic: &leasehold_testkit::Traffic| traffic.to_server.held > 0;
    let _early = proxy.wait_for("an early claim", Duration::from_millis(300), begun).await;
    keeper.batch_execute("ROLLBACK").await.expect("unlocked");
    assert!(soon("an answer", first).await.expect("it ends").expect("an answer").is_none());
    proxy.wait_for("the rest of a claim", EVENT_MAX, begun).await.expect("held");
    // Another client gets the session that was lent last, and keeps it.
    let taker = plain(pooler.url()).await;
    taker.query_typed("BEGIN", &[]).await.expect("begun");
    proxy.pass().await.expect("passed");
    let lease = soon("an answer", second).await.expect("it ends").expect("an answer");
    let lease = lease.expect("free");
    assert!(lease.is_held());
    for (schema, lines) in [(&ours, 1), (&theirs, 0)] {
        let count = format!("SELECT count(*) FROM {schema}.lines WHERE name = 'b'");
        assert_eq!(number(&watcher, &count).await, lines, "the claim is in one store: {schema}");
    }
    // The lease is given back when it is dropped, and its line goes with it.
    drop(lease);
    taker.batch_execute("ROLLBACK").await.expect("over");
}

#[tokio::test]
async fn f73_claim_given_up_behind_a_pooler_leaves_no_trace() {
    let pooler = Pgbouncer::before(server()).pool_size(2).start().await.expect("a pooler");
    let schema = fresh_schema();
    let direct = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let pooled = format!("{}?schema={schema}&connections=1", pooler.url());
    let client = connect(&pooled).await.expect("connected");
    let held = direct.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let keeper = plain(server().url()).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.lines WHERE name = 'n' FOR UPDATE");
    keeper.batch_execute(&lock).await.expect("locked");
    let given_up = waiter(client.request("n").ttl(LONG));
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND query LIKE '%{schema}%claim%'"
    );
    let watcher = plain(server().url()).await;
    until("a claim that waits", async || number(&watcher, &waiting).await == 1).await;
    given_up.abort();
    // The next exchange of the same connection follows it.
    let asked = client.mutex("m").ttl(LONG);
    let next = tokio::spawn(async move { asked.try_lock().await.unless_held() });
    keeper.batch_execute("ROLLBACK").await.expect("unlocked");
    let lease = soon("an answer", next).await.expect("it ends").expect("an answer");
    assert!(lease.expect("free").is_held());
    until_waiting(&direct, "n", 0).await;
    held.release().await.expect("an answer");
    let after = granted(waiter(direct.request("n").ttl(LONG))).await;
    assert!(after.is_held());
}

/// On one thread, because the test reads the warnings of this thread.
#[tokio::test(flavor = "current_thread")]
async fn f73_waiter_behind_a_pooler_is_warned_and_asks_about_twice_a_second() {
    let pooler = Pgbouncer::before(server()).start().await.expect("a pooler");
    let pooled = format!("{}?schema={}", pooler.url(), fresh_schema());
    warnings::write_down();
    let one = connect(&pooled).await.expect("connected");
    let chaos = Chaos::default();
    let engine = chaos.trouble(LeaseTable::open(&pooled).await.expect("connected"));
    let two = Client::builder().engine(engine).expect("a client");
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    assert_eq!(said_here(), Vec::<String>::new(), "nobody waits yet");
    let next = waiter(two.request("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    // On a busy machine the waiter may try again before it knows.
    until("the warning", async || !said_here().is_empty()).await;
    let (begun, before) = (Instant::now(), chaos.calls(Verb::Claim));
    until("a few questions", async || chaos.calls(Verb::Claim) >= before + 5).await;
    // No pause is shorter than three tenths of a second.
    let most = begun.elapsed().as_millis() / 300 + 1;
    let asked = chaos.calls(Verb::Claim) - before;
    assert!(u128::from(asked) <= most, "{asked} questions, at most {most} in that time");
    let said = said_here();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("transaction-pooling proxy") && said[0].contains("500ms"), "{said:?}");
    lease.release().await.expect("an answer");
    let (delay, begun) = (SchedulerDelay::watch(), Instant::now());
    assert!(granted(next).await.is_held());
    let (took, bound) = (begun.elapsed(), delay.bound(Duration::from_secs(5), 8));
    assert!(took < bound, "{took:?}, more than {bound:?}");
}
