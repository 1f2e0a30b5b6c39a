//! Long lines, many waiters, one-off names, and failures in the middle of many names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold::clock::VirtualClock;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::layer::retry::RetryPolicy;
use leasehold::postgres::LeaseTable;
use leasehold::{Client, Lease, UnlessHeld, connect};
use leasehold_testkit::{Clock, Postgres, Server};
use tokio_postgres::types::{ToSql, Type};

use crate::support::{
    Crowd, LONG, carried_out, fresh_schema, granted, number, plain, server, soon, truth, until,
    until_waiting, waiter,
};

/// The pages that a statement touches, counted by the server itself.
fn pages(server: &Server, schema: &str, call: &str) -> u64 {
    // The first call in a session reads the catalogue and makes plans; the last one counts.
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) SELECT * FROM {schema}.{call}");
    let warm = format!("BEGIN; {explain}; {explain}; {explain}; ROLLBACK;");
    let said = server.sql(&warm).expect("explained");
    let counted = |line: &str| {
        let numbers = line.trim().strip_prefix("Buffers: shared hit=")?;
        let hit: u64 = numbers.split(' ').next()?.parse().ok()?;
        Some(hit)
    };
    let lines: Vec<u64> = said.lines().filter_map(counted).collect();
    // Each EXPLAIN reports its execution, and the first ones report planning as well.
    *lines.iter().rev().min().expect("an explanation")
}

#[tokio::test]
async fn the_work_of_a_verb_does_not_grow_with_the_line() {
    // A row of the line has 9,990 old versions, which a snapshot of another test would keep.
    let server = Postgres::new().start().await.expect("a server");
    let mut touched = Vec::new();
    for length in [10, 9_990] {
        let schema = fresh_schema();
        let url = format!("{}?schema={schema}", server.url());
        connect(&url).await.expect("connected").admin().install().await.expect("installed");
        let token = |at: &str| format!("decode(lpad(to_hex({at}), 32, '0'), 'hex')");
        let all = format!(
            "SELECT count(*) FROM generate_series(1, {length}) i, LATERAL {schema}.claim('n', {}, \
             4294967295, 4294967295, {}, 'l', '', 3600000000, 3600000000, true, 7)",
            token("i"),
            token("0"),
        );
        server.sql(&all).expect("a line");
        let (middle, new) = (token(&(length / 2).to_string()), token("1000000"));
        let first = format!("SELECT min(fence) FROM {schema}.claims");
        let first = server.sql(&first).expect("a fence");
        let claim = |token: &str, join: bool| {
            format!(
                "claim('n', {token}, 4294967295, 4294967295, {}, 'l', '', 1000000, 1000000, \
                 {join}, 7)",
                self::token_of_nobody()
            )
        };
        let calls = [
            claim(&new, true),
            claim(&new, false),
            claim(&middle, true),
            format!("renew(ARRAY['n'], ARRAY[{middle}], ARRAY[1000000], ARRAY[1000000])"),
            format!("renew(ARRAY['n'], ARRAY[{new}], ARRAY[1000000], ARRAY[1000000])"),
            format!("release(ARRAY['n'], ARRAY[{middle}])"),
            format!("release(ARRAY['n'], ARRAY[{}])", token("1")),
            "acquire_lock('n', 'me')".to_owned(),
            format!("evict('n', 'a test', ARRAY[{first}])"),
        ];
        touched.push(calls.map(|call| (pages(&server, &schema, &call), call)));
    }
    for (short, long) in touched[0].iter().zip(&touched[1]) {
        // A tree with two more levels, and a window of neighbours on a few more pages.
        assert!(long.0 <= short.0 + 60, "{} pages, then {} for {}", short.0, long.0, long.1);
    }
}

/// The pages that a statement of the library touches at the head of a line of `length`. The session
/// planned it while the line was empty.
async fn pages_of_an_early_plan(
    length: u32,
    (statement, types, arguments): (&str, &str, &str),
) -> u64 {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    connect(&url).await.expect("connected").admin().install().await.expect("installed");
    analyze(&schema);
    let statement = statement.replace("leasehold.", &format!("{schema}."));
    let session = format!(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
         SET plan_cache_mode = force_generic_plan; \
         PREPARE short ({types}) AS {statement}; EXECUTE short ({arguments}); \
         INSERT INTO {schema}.lines VALUES ('n', 4294967295, {length}, 1, 4294967295, 1, {length}, \
         now() + interval '1 h'); \
         INSERT INTO {schema}.claims SELECT 'n', {schema}.next_fence(), \
         decode(lpad(to_hex(i), 32, '0'), 'hex'), \
         4294967295, i, {}, 'l', '', NULL, now(), CASE WHEN i = 1 THEN now() END, \
         now() + interval '1 h', 7 FROM generate_series(1, {length}) i; \
         EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE short ({arguments})",
        token_of_nobody(),
    );
    let said = server().sql(&session).expect("explained");
    assert!(said.contains("on claims") && said.contains("(actual rows=1 "), "nothing done: {said}");
    hits(&said)
}

#[tokio::test]
async fn plans_made_for_an_empty_line_touch_few_pages_of_a_long_one() {
    let first = "decode(lpad('1', 32, '0'), 'hex')";
    let new = "decode(repeat('ab', 16), 'hex')";
    let joins = format!("'n', {new}, 4294967295, {}, 'l', '', 1000000, 7", token_of_nobody());
    let shorts = [
        (
            include_str!("../../src/engines/postgres/table/hand.sql"),
            "text, bytea",
            format!("'n', {first}"),
        ),
        (
            include_str!("../../src/engines/postgres/table/join.sql"),
            "text, bytea, bigint, bytea, text, text, bigint, bigint",
            joins,
        ),
        (
            include_str!("../../src/engines/postgres/table/confirm.sql"),
            "text, bytea, bigint",
            format!("'n', {first}, 1000000"),
        ),
    ];
    for (statement, types, arguments) in &shorts {
        // Other tests change the catalogue, and a session then reads it again; so take the least of
        // three.
        let least = async |length| {
            let mut least = u64::MAX;
            for _ in 0..3 {
                let pages = pages_of_an_early_plan(length, (statement, types, arguments)).await;
                least = least.min(pages);
            }
            least
        };
        let (short, long) = (least(10).await, least(5_000).await);
        assert!(long <= short + 60, "{short} pages, then {long} for {statement}");
    }
}

/// Updates the server's statistics, as the server does itself about once a minute. A plan for
/// little data is the worst case.
fn analyze(schema: &str) {
    server().sql(&format!("VACUUM ANALYZE {schema}.lines, {schema}.claims")).expect("analyzed");
}

/// The pages that statements touch for one of `names` names, each with a lone lease. The session
/// planned them while no name was in use.
async fn pages_of_many_names(names: u32, statements: &[String]) -> Vec<u64> {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    connect(&url).await.expect("connected").admin().install().await.expect("installed");
    let session = plain(server().url()).await;
    let run = async |statement: &str| {
        session.batch_execute(&statement.replace("STORE", &schema)).await.expect("done");
    };
    let lease = "SELECT 'n:' || i, 4294967295, 1, 1, 4294967295, 0, 1, now() + interval '1 h', \
        decode(lpad(to_hex(i), 32, '0'), 'hex'), i, decode(repeat('00', 16), 'hex'), 'l', '', \
        NULL, now(), now() + interval '1 h', 0";
    analyze(&schema);
    run("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; \
         SET plan_cache_mode = force_generic_plan")
    .await;
    let part =
        include_str!("../../src/engines/postgres/table/part.sql").replace("leasehold.", "STORE.");
    run(&format!("PREPARE part (text, bytea) AS {part}")).await;
    for statement in statements.iter().cycle().take(12 * statements.len()) {
        run(&format!("BEGIN; {statement}; ROLLBACK")).await;
    }
    run(&format!("INSERT INTO STORE.lines {lease} FROM generate_series(1, {names}) i")).await;
    let mut pages = Vec::new();
    for statement in statements {
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement}");
        let mut least = u64::MAX;
        for _ in 0..3 {
            run("BEGIN").await;
            let said = session.query(&explain.replace("STORE", &schema), &[]).await;
            run("ROLLBACK").await;
            let said = said.expect("explained");
            let said: Vec<&str> = said.iter().map(|row| row.get(0)).collect();
            least = least.min(hits(&said.join("\n")));
        }
        pages.push(least);
    }
    pages
}

#[tokio::test]
async fn plans_made_for_no_name_touch_few_pages_of_many_names() {
    let first = "decode(lpad('1', 32, '0'), 'hex')";
    let statements = [
        format!("EXECUTE part ('n:1', {first})"),
        format!("SELECT * FROM STORE.release(ARRAY['n:1'], ARRAY[{first}])"),
        format!(
            "SELECT * FROM STORE.renew(ARRAY['n:1'], ARRAY[{first}], ARRAY[60000000], ARRAY[0])"
        ),
    ];
    let few = pages_of_many_names(10, &statements).await;
    let many = pages_of_many_names(5_000, &statements).await;
    let mut grown = Vec::new();
    for (statement, (few, many)) in statements.iter().zip(few.into_iter().zip(many)) {
        if many > few + 60 {
            grown.push(format!("{few} pages, then {many} for {statement}"));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

/// The pages that calls of functions touch at the end of a session. The session made the same calls
/// often while their line was short, so it uses the plans it made then. `FENCE` in a call is that
/// of the first claim.
async fn pages_of_a_long_session(length: u32, calls: &[String]) -> Vec<u64> {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    connect(&url).await.expect("connected").admin().install().await.expect("installed");
    let session = plain(server().url()).await;
    let run = async |statement: &str| session.batch_execute(statement).await.expect("done");
    let (token, nobody) = ("decode(lpad(to_hex(i), 32, '0'), 'hex')", token_of_nobody());
    run(&format!("SELECT {schema}.acquire_lock('n', 'head', 3600)")).await;
    run(&format!(
        "SELECT count(*) FROM generate_series(1, 3) i, LATERAL {schema}.claim('n', {token}, \
         4294967295, 4294967295, {nobody}, 'l', '', 3600000000, 3600000000, true, 7)"
    ))
    .await;
    let first = format!("SELECT min(fence) FROM {schema}.claims");
    let first: i64 = session.query_one(&first, &[]).await.expect("a fence").get(0);
    let calls: Vec<String> =
        calls.iter().map(|call| call.replace("FENCE", &first.to_string())).collect();
    for call in calls.iter().cycle().take(12 * calls.len()) {
        run(&format!("BEGIN; SELECT * FROM {schema}.{call}; ROLLBACK")).await;
    }
    run(&format!(
        "INSERT INTO {schema}.claims SELECT 'n', {schema}.next_fence(), {token}, 4294967295, i, \
         {nobody}, 'l', '', NULL, now(), NULL, now() + interval '1 h', 7 \
         FROM generate_series(4, {length}) i; \
         UPDATE {schema}.lines SET claims = {length} + 1, arrived = {length} + 1"
    ))
    .await;
    let mut pages = Vec::new();
    for call in &calls {
        // Other tests change the catalogue, and a session then reads it again; so take the least of
        // three.
        let mut least = u64::MAX;
        for _ in 0..3 {
            run("BEGIN").await;
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) SELECT * FROM {schema}.");
            let said = session.query(&(explain + call), &[]).await.expect("explained");
            run("ROLLBACK").await;
            let said: Vec<&str> = said.iter().map(|row| row.get(0)).collect();
            least = least.min(hits(&said.join("\n")));
        }
        pages.push(least);
    }
    pages
}

/// The pages of a whole statement, from its explanation.
fn hits(said: &str) -> u64 {
    let mut hits = said.lines().filter_map(|line| line.trim().strip_prefix("Buffers: shared hit="));
    let all = hits.next().and_then(|hits| hits.split(' ').next()?.parse().ok());
    all.expect("an explanation")
}

#[tokio::test]
async fn plans_made_for_a_short_line_touch_few_pages_of_a_long_one() {
    let waits = "decode(lpad('2', 32, '0'), 'hex')";
    let new = "decode(repeat('ab', 16), 'hex')";
    let claim = |token: &str, join: bool| {
        format!(
            "claim('n', {token}, 4294967295, 4294967295, {}, 'l', '', 1000000, 1000000, {join}, 7)",
            token_of_nobody()
        )
    };
    let calls = [
        "acquire_lock('n', 'somebody')".to_owned(),
        "acquire_lock('n', 'head')".to_owned(),
        "extend_lock('n', 'head')".to_owned(),
        "extend_lock('n', 'somebody')".to_owned(),
        "release_lock('n', 'head')".to_owned(),
        "release_lock('n', 'somebody')".to_owned(),
        claim(new, true),
        claim(new, false),
        claim(waits, true),
        format!("renew(ARRAY['n'], ARRAY[{waits}], ARRAY[1000000], ARRAY[1000000])"),
        format!("renew(ARRAY['n'], ARRAY[{new}], ARRAY[1000000], ARRAY[1000000])"),
        format!("release(ARRAY['n'], ARRAY[{waits}])"),
        format!("release(ARRAY['n'], ARRAY[{new}])"),
        "evict('n', 'a test', ARRAY[FENCE])".to_owned(),
    ];
    let short = pages_of_a_long_session(10, &calls).await;
    let long = pages_of_a_long_session(5_000, &calls).await;
    let mut grown = Vec::new();
    for (call, (short, long)) in calls.iter().zip(short.into_iter().zip(long)) {
        if long > short + 60 {
            grown.push(format!("{short} pages, then {long} for {call}"));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

fn token_of_nobody() -> &'static str {
    "decode(repeat('00', 16), 'hex')"
}

/// A server that flushes its log when a client waits for that, and hardly ever else.
async fn flushing_server() -> Server {
    let postgres = Postgres::new().fsync(true).setting("wal_writer_delay", "10s");
    postgres.setting("wal_writer_flush_after", "2GB").start().await.expect("a server")
}

fn flushes(server: &Server) -> i64 {
    let flushes = server.sql("SELECT wal_sync FROM pg_stat_wal").expect("an answer");
    flushes.parse().expect("a number")
}

/// Runs `act`, ends the client so that its server processes report their counts, and counts
/// flushes.
async fn counted(server: &Server, act: impl AsyncFn(&Client)) -> i64 {
    let client = connect(server.url()).await.expect("connected");
    client.mutex("warm").lock().await.expect("a lease").release().await.expect("an answer");
    server.sql("CHECKPOINT").expect("an answer");
    let before = flushes(server);
    act(&client).await;
    drop(client);
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    until("the end", async || server.sql(gone).expect("an answer") == "0").await;
    flushes(server) - before
}

#[tokio::test]
async fn verbs_are_as_few_exchanges_as_promised() {
    const TIMES: usize = 20;
    let server = Postgres::new().setting("log_statement", "all").start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    // The prepared statements, and the functions for all unusual cases.
    let texts = ["execute s", "leasehold.claim(", "leasehold.release(", "leasehold.renew("];
    let counts = || texts.map(|text| carried_out(&server, text));
    let since = |before: [usize; 4]| {
        let now = counts();
        std::array::from_fn::<usize, 4, _>(|at| now[at] - before[at])
    };
    client.mutex("n").lock().await.expect("a lease").release().await.expect("an answer");
    let before = counts();
    for _ in 0..TIMES {
        let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
        lease.release().await.expect("an answer");
    }
    assert_eq!(since(before), [2 * TIMES, 0, 0, 0], "take, part");
    let mut held = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    // The first waiter meets a holder, and listens before it joins.
    let mut before = counts();
    for round in 0..=TIMES {
        let next = waiter(client.request("n").ttl(LONG));
        until_waiting(&client, "n", 1).await;
        held.release().await.expect("an answer");
        held = granted(next).await;
        if round == 0 {
            before = counts();
        }
    }
    // Join; hand and ring, which go out together. Each connection also rehearses each of them once.
    let [prepared, functions @ ..] = since(before);
    assert!((3 * TIMES..=3 * TIMES + 2 * 3).contains(&prepared), "{prepared} statements");
    assert_eq!(functions, [0, 0, 0]);
    held.release().await.expect("an answer");
    let ttl = Duration::from_secs(6);
    let mutexes: Vec<_> = (0..500).map(|n| client.mutex(format!("many:{n}")).ttl(ttl)).collect();
    let leases = try_join_all(mutexes.iter().map(|mutex| mutex.lock())).await.expect("leases");
    let before = counts();
    let safe: Vec<_> = leases.iter().map(Lease::deadline).collect();
    until("renewals of all", async || {
        leases.iter().zip(&safe).all(|(lease, before)| lease.deadline() > *before)
    })
    .await;
    let [_, _, _, renewals] = since(before);
    assert!((1..=5).contains(&renewals), "{renewals} exchanges for 500 leases");
}

#[tokio::test]
async fn a_renewal_is_flushed_and_a_waiters_heartbeat_is_not() {
    const TIMES: i64 = 40;
    let server = flushing_server().await;
    let renewals = counted(&server, async |client| {
        let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
        for _ in 0..TIMES {
            lease.extend(LONG).await.expect("it is held");
        }
        client.close().await.expect("closed");
    });
    let renewals = renewals.await;
    // The server also flushes for itself, now and then.
    assert!((TIMES..2 * TIMES).contains(&renewals), "{renewals} flushes");
    let client = connect(server.url()).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(client.request("n").ttl(LONG));
    until_waiting(&client, "n", 1).await;
    let session = plain(server.url()).await;
    let heartbeat = "SELECT count(*) FROM leasehold.claims c, leasehold.renew( \
                     ARRAY['n'], ARRAY[c.token], ARRAY[300000000], ARRAY[300000000]) r \
                     WHERE c.granted IS NULL";
    let before = flushes(&server);
    for _ in 0..TIMES {
        assert_eq!(number(&session, heartbeat).await, 1);
    }
    next.abort();
    drop((session, lease, next, client));
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    until("the end", async || server.sql(gone).expect("an answer") == "0").await;
    let heartbeats = flushes(&server) - before;
    assert!(heartbeats < TIMES / 2, "{heartbeats} flushes");
}

#[tokio::test]
async fn a_grant_is_flushed_once_and_joining_and_releasing_are_not() {
    const CYCLES: i64 = 40;
    let server = flushing_server().await;
    let uncontended = counted(&server, async |client| {
        for cycle in 0..CYCLES {
            let mutex = client.mutex(format!("n:{cycle}")).ttl(LONG);
            let lease = mutex.lock().await.expect("a lease");
            lease.release().await.expect("an answer");
        }
        client.close().await.expect("closed");
    });
    let uncontended = uncontended.await;
    // New connections, and the server by itself, flush a few times.
    assert!((CYCLES..=CYCLES + 10).contains(&uncontended), "{uncontended} flushes");
    let contended = counted(&server, async |client| {
        let mut held = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
        for _ in 0..CYCLES {
            let next = waiter(client.request("n").ttl(LONG));
            until_waiting(client, "n", 1).await;
            held.release().await.expect("an answer");
            held = granted(next).await;
        }
        held.release().await.expect("an answer");
        client.close().await.expect("closed");
    });
    let contended = contended.await;
    assert!((CYCLES..=CYCLES + 12).contains(&contended), "{contended} flushes");
}

#[tokio::test]
async fn claim_joins_a_line_that_was_locked_for_longer_than_a_statement_waits() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let one = connect(&url).await.expect("connected");
    // The client tries nothing again, so that a failure ends the wait.
    let engine = LeaseTable::open(&url).await.expect("connected");
    let builder = Client::builder().retry(RetryPolicy::OFF);
    let two = builder.engine(engine).expect("a client");
    let held = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let keeper = plain(server().url()).await;
    let lock = format!("BEGIN; SELECT FROM {schema}.lines WHERE name = 'n' FOR UPDATE");
    keeper.batch_execute(&lock).await.expect("locked");
    let next = waiter(two.request("n").ttl(LONG));
    let watcher = plain(server().url()).await;
    // A statement is limited to 1.5 s, so one that began 2 s after the lock is another try.
    let again = format!(
        "SELECT count(*) FROM pg_stat_activity c, pg_stat_activity k \
         WHERE c.wait_event_type = 'Lock' AND c.query LIKE '%{schema}%claim%' \
         AND k.query LIKE '%FROM {schema}.lines WHERE name%FOR UPDATE' \
         AND c.query_start > k.query_start + interval '2 s'"
    );
    until("another try", async || {
        assert!(!next.is_finished(), "the wait ended");
        number(&watcher, &again).await > 0
    })
    .await;
    keeper.batch_execute("ROLLBACK").await.expect("unlocked");
    until_waiting(&one, "n", 1).await;
    held.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
}

#[tokio::test]
async fn heartbeats_of_a_long_line_look_at_few_rows_for_each_claim() {
    const WAITERS: u64 = 999;
    let server = Postgres::new().start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    client.admin().install().await.expect("installed");
    let join = format!(
        "SELECT count(*) FROM generate_series(0, {WAITERS}) i, LATERAL leasehold.claim( \
         'n', decode(lpad(to_hex(i), 32, '0'), 'hex'), 4294967295, 4294967295, {}, 'l', '', \
         600000000, 600000000, true, 0)",
        token_of_nobody()
    );
    server.sql(&join).expect("joined");
    let renew = format!(
        "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) SELECT * FROM leasehold.renew( \
         array_fill('n'::text, ARRAY[{WAITERS}]), \
         (SELECT array_agg(decode(lpad(to_hex(i), 32, '0'), 'hex')) \
         FROM generate_series(1, {WAITERS}) i), \
         array_fill(600000000::bigint, ARRAY[{WAITERS}]), \
         array_fill(600000000::bigint, ARRAY[{WAITERS}]))"
    );
    let said = server.sql(&renew).expect("explained");
    let counts = said.lines().filter_map(|line| {
        let (_, count) = line.split_once("shared hit=")?;
        count.split(' ').next()?.parse::<u64>().ok()
    });
    let touched = counts.max().expect("counted");
    assert!(touched < 130 * WAITERS, "{touched} pages for {WAITERS} heartbeats");
}

#[tokio::test]
async fn f116_a_thousand_waiters_need_few_connections_and_a_release_wakes_one() {
    const WAITERS: usize = 1_000;
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let one = connect(&url).await.expect("connected");
    let chaos = Chaos::default();
    let engine = chaos.trouble(LeaseTable::open(&url).await.expect("connected"));
    let crowd = Client::builder().engine(engine).expect("a client");
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let mut waiters = Crowd::of(WAITERS, &crowd.request("n").ttl(LONG));
    waiters.until_waiting(&one, "n", WAITERS).await;
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' \
         AND query LIKE '%\"{schema}\"%'"
    );
    let connections: u32 = server().sql(&sql).expect("an answer").parse().expect("a number");
    // Each client has at most three for callers, three for the keeper, and one for bells.
    assert!(connections <= 2 * (3 + 3 + 1), "{connections} for two clients");
    let mut held = lease;
    for release in 0..10 {
        let before = chaos.calls(Verb::Claim);
        held.release().await.expect("an answer");
        held = waiters.next().await;
        let woken = chaos.calls(Verb::Claim) - before;
        assert!(woken <= 2, "release {release} woke {woken}");
    }
    soon("the close", crowd.close()).await.expect("closed");
}

#[tokio::test]
async fn tables_are_small_again_after_a_hundred_thousand_one_off_names() {
    const NAMES: u32 = 100_000;
    let clock = Clock::new().expect("a clock");
    let server = Postgres::new().clock(&clock).start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    client.admin().install().await.expect("installed");
    let claim = |names: &str, count: u32| {
        format!(
            "SELECT count(*) FROM generate_series(1, {count}) i, LATERAL leasehold.claim( \
             '{names}:' || i, decode(lpad(to_hex(i), 32, '0'), 'hex'), 4294967295, 4294967295, {}, \
             'l', '', 600000000, 1000000, false, 0);",
            token_of_nobody()
        )
    };
    // Half of them are given back. The other half expires, like the units of a rate limiter.
    server.sql(&claim("one-off", NAMES)).expect("claimed");
    let give_back = format!(
        "SELECT count(*) FROM generate_series(1, {NAMES}, 2) i, LATERAL leasehold.release( \
         ARRAY['one-off:' || i], ARRAY[decode(lpad(to_hex(i), 32, '0'), 'hex')])"
    );
    server.sql(&give_back).expect("given back");
    let lines = || -> u32 {
        let count = server.sql("SELECT count(*) FROM leasehold.lines");
        count.expect("an answer").parse().expect("a number")
    };
    assert_eq!(lines(), NAMES / 2, "what is given back is gone");
    clock.advance(Duration::from_secs(700));
    // New claims alone clear them away: about two for each new name.
    server.sql(&claim("other", NAMES / 10)).expect("claimed");
    let left = lines();
    assert!(left < NAMES / 2 - NAMES / 20, "{left} lines are left");
    // A client's keeper clears the rest, a thousand lines each time it sends its counts.
    clock.advance(Duration::from_secs(700));
    until("empty tables", async || {
        let ten = "SELECT leasehold.tally(1, 0, 0, 0, 0);".repeat(10);
        server.sql(&ten).expect("an answer");
        lines() == 0
    })
    .await;
    let rows = "SELECT (SELECT count(*) FROM leasehold.claims), \
                (SELECT count(*) FROM leasehold.counts)";
    assert_eq!(server.sql(rows).expect("an answer"), "0|1");
    let stats = client.admin().store_stats().await.expect("an answer");
    assert_eq!(stats.counts.expired, u64::from(NAMES / 2 + NAMES / 10));
}

/// The size of all tables of the store with their indexes, in bytes.
fn bytes(server: &Server) -> u64 {
    let sum = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c \
               WHERE c.relnamespace = 'leasehold'::regnamespace AND c.relkind = 'r'";
    server.sql(sum).expect("an answer").parse().expect("a number")
}

/// Takes one-off names with the library's own statements, and gives every second one back.
async fn one_offs(session: &tokio_postgres::Client, names: std::ops::Range<u32>) {
    let take = [
        Type::TEXT,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
        Type::BYTEA,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
    ];
    let text = include_str!("../../src/engines/postgres/table/take.sql");
    let take = session.prepare_typed(text, &take).await.expect("prepared");
    let text = include_str!("../../src/engines/postgres/table/part.sql");
    let part = session.prepare_typed(text, &[Type::TEXT, Type::BYTEA]).await.expect("prepared");
    let (everything, ttl_us, bell, empty) = (4_294_967_295_i64, 600_000_000_i64, 0_i64, "");
    for name in names.clone().step_by(500) {
        let turns = (name..names.end.min(name + 500)).map(async |name| {
            let (text, token) = (format!("one-off:{name}"), u128::from(name).to_be_bytes());
            let token = token.as_slice();
            let claim: [&(dyn ToSql + Sync); 9] =
                [&text, &token, &everything, &everything, &token, &"label", &empty, &ttl_us, &bell];
            assert!(session.query_opt(&take, &claim).await?.is_some(), "{text} was free");
            if name % 2 == 0 {
                assert!(session.query_opt(&part, &[&text, &token]).await?.is_some());
            }
            Ok::<(), tokio_postgres::Error>(())
        });
        try_join_all(turns).await.expect("answers");
    }
}

#[tokio::test]
async fn one_off_names_never_pile_up_and_a_client_that_is_used_clears_the_last_away() {
    const NAMES: u32 = 100_000;
    const BATCH: u32 = 10_000;
    /// Indexes keep their pages for later use: as many as the most names in use at once need. All
    /// names together would take ten times as much.
    const SMALL: u64 = 8 << 20;
    let clock = Clock::new().expect("a clock");
    // Autovacuum is on, as it is by default. It looks every second instead of every minute, because
    // the clock is moved by hand.
    let postgres = Postgres::new().clock(&clock).setting("autovacuum_naptime", "1s");
    let server = postgres.start().await.expect("a server");
    let time = VirtualClock::new();
    let builder = Client::builder().clock(Arc::new(time.clone()));
    let client = builder.connect(server.url()).await.expect("connected");
    client.admin().install().await.expect("installed");
    let session = plain(server.url()).await;
    let lines = async || number(&session, "SELECT count(*) FROM leasehold.lines").await;
    // An active client: its claims clear others away, and so may its keeper's counts.
    let used = async || {
        client.mutex("n").lock().await.expect("free").release().await.expect("an answer");
        time.advance(Duration::from_secs(10));
    };
    let mut most = 0;
    for batch in 0..NAMES / BATCH {
        one_offs(&session, batch * BATCH..(batch + 1) * BATCH).await;
        most = most.max(lines().await);
        // The claims that were not given back expire, like the units of a rate limiter.
        clock.advance(Duration::from_secs(700));
        used().await;
    }
    // New names alone have cleared away all but the names of the last batch or two.
    assert!(most <= i64::from(BATCH), "{most} lines at once");
    // The client clears the rest. One claim clears away at most forty lines. If more lines go after
    // it, the keeper has cleared them when it sent its counts.
    let before = lines().await;
    client.mutex("n").lock().await.expect("free").release().await.expect("an answer");
    until("a thousand lines fewer", async || {
        time.advance(Duration::from_secs(10));
        lines().await <= before - 1_000
    })
    .await;
    until("empty tables", async || {
        used().await;
        lines().await == 0
    })
    .await;
    assert_eq!(number(&session, "SELECT count(*) FROM leasehold.claims").await, 0);
    until("small tables", async || bytes(&server) < SMALL).await;
    let counts = "SELECT count(*) <= 2 FROM leasehold.counts";
    assert!(truth(&session, counts).await, "counts are added up");
}

#[tokio::test]
async fn batches_over_the_same_names_in_any_order_never_deadlock() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let names: Vec<String> = (0..20).map(|name| format!("batch:{name}")).collect();
    let mut tasks = Vec::new();
    for task in 0..6 {
        let client = connect(&url).await.expect("connected");
        let mut names = names.clone();
        names.rotate_left(task * 3);
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let mut leases = Vec::new();
                for name in &names {
                    leases.extend(
                        client
                            .mutex(name)
                            .ttl(LONG)
                            .try_lock()
                            .await
                            .unless_held()
                            .expect("answered"),
                    );
                }
                // The keeper gives them back in one exchange, in this order.
                drop(leases);
            }
            client.close().await.expect("closed");
        }));
    }
    for task in tasks {
        soon("all rounds", task).await.expect("the task ends");
    }
    // Other tests make deadlocks on purpose; the log names the statements of each.
    let log = server().log();
    let mut deadlocks = log.split("deadlock detected").skip(1);
    let ours = deadlocks.find(|after| {
        let detail = after.lines().take_while(|line| !line.contains("LOG:")).take(20);
        detail.into_iter().any(|line| line.contains(&schema))
    });
    assert_eq!(ours, None);
}

#[tokio::test]
async fn fences_rise_in_grant_order_although_many_take_numbers_at_once() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let url = format!("{}?schema={}", server().url(), fresh_schema());
    let seen: Arc<[AtomicU64; 2]> = Arc::default();
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (client, seen) = (connect(&url).await.expect("connected"), Arc::clone(&seen));
        tasks.push(tokio::spawn(async move {
            let mut granted = 0;
            for round in 0..400 {
                let which = (task + round) % 2;
                let mutex = client.mutex(format!("name:{which}")).ttl(LONG);
                // No claim stands in line: each grant is the first in a new line.
                if let Some(lease) = mutex.try_lock().await.unless_held().expect("an answer") {
                    let before = seen[which].swap(lease.fence().as_u64(), Ordering::SeqCst);
                    assert!(lease.fence() > before, "{} after {before}", lease.fence());
                    granted += 1;
                    lease.release().await.expect("an answer");
                }
            }
            granted
        }));
    }
    let mut all = 0;
    for task in tasks {
        all += soon("all rounds", task).await.expect("the task ends");
    }
    assert!(all > 100, "only {all} grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sums_of_a_line_agree_with_its_claims_while_many_want_it() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static HELD: AtomicBool = AtomicBool::new(false);
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let client = connect(&url).await.expect("connected");
        tasks.push(tokio::spawn(async move {
            for round in 0..40 {
                let request = client.request("n").ttl(LONG);
                // Some leave the line again, in the middle of everything.
                let span =
                    if (task + round) % 4 == 0 { Duration::from_millis(round) } else { LONG };
                let lease = match request.acquire_within(span).await.unless_held() {
                    Ok(Some(lease)) => lease,
                    Ok(None) => continue,
                    // A busy server is slower than a client waits for its first answer.
                    Err(error) if error.is_transient() && span < LONG => continue,
                    Err(error) => panic!("{error}"),
                };
                assert!(!HELD.swap(true, Ordering::SeqCst), "two hold");
                tokio::task::yield_now().await;
                HELD.store(false, Ordering::SeqCst);
                lease.release().await.expect("an answer");
            }
            client.close().await.expect("closed");
        }));
    }
    // For each line: its own sums, and the sums over its claims.
    let sums = format!(
        "SELECT count(*) FROM (SELECT l.claims, l.held, l.held_units, count(c.*) AS all_claims, \
         count(c.granted) AS granted, sum(c.units) FILTER (WHERE c.granted IS NOT NULL) AS units, \
         max(c.fence) FILTER (WHERE c.granted IS NOT NULL) AS last, \
         min(c.fence) FILTER (WHERE c.granted IS NULL) AS first \
         FROM {schema}.lines l JOIN {schema}.claims c ON c.name = l.name GROUP BY l.name) s \
         WHERE claims <> all_claims OR held <> granted OR held_units <> units OR first < last"
    );
    let mut looks = 0;
    while !tasks.iter().all(|task| task.is_finished()) {
        let odd = tokio::task::block_in_place(|| server().sql(&sums)).expect("an answer");
        assert_eq!(odd, "0", "lines whose sums are wrong, at look {looks}");
        looks += 1;
    }
    for task in tasks {
        soon("all rounds", task).await.expect("the task ends");
    }
    let left =
        format!("SELECT (SELECT count(*) FROM {schema}.lines), count(*) FROM {schema}.claims");
    assert_eq!(server().sql(&left).expect("an answer"), "0|0", "after {looks} looks");
}

#[tokio::test]
async fn the_bell_of_a_usual_hand_off_is_heard_by_its_client_alone() {
    use tokio_postgres::{AsyncMessage, NoTls};
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let (one, two) = (connect(&url).await.expect("a"), connect(&url).await.expect("b"));
    // Another client, which hears everything that all clients hear.
    let connected = tokio_postgres::connect(server().url(), NoTls).await;
    let (client, mut connection) = connected.expect("connected");
    let (sender, mut heard) = tokio::sync::mpsc::channel(100);
    tokio::spawn(async move {
        while let Some(message) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let Ok(AsyncMessage::Notification(rung)) = message {
                sender.send(rung.payload().to_owned()).await.expect("the test hears");
            }
        }
    });
    let listen = format!("LISTEN \"\"\"{schema}\"\".bells\"");
    client.batch_execute(&listen).await.expect("it listens");
    let mut held = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    for next in [&two, &one, &two] {
        let next = waiter(next.request("n").ttl(LONG));
        until_waiting(&one, "n", 1).await;
        held.release().await.expect("an answer");
        held = granted(next).await;
    }
    let end = format!("NOTIFY \"\"\"{schema}\"\".bells\", 'the end'");
    client.batch_execute(&end).await.expect("rung");
    let mut rung = 0;
    while soon("a bell", heard.recv()).await.expect("it listens") != "the end" {
        rung += 1;
    }
    assert_eq!(rung, 2, "each client tries out once whether it hears");
}
