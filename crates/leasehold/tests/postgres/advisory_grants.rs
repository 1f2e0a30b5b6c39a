//! The time from which a waited-for lease counts on advisory locks. It counts from the server's
//! grant, which may be long before the client reads of it.

use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Client, LockOptions, connect};
use leasehold_testkit::{Clock, Direction, Postgres};

use crate::advisory_network::Lab;
use crate::support::{
    EVENT_MAX, LONG, advisory_on, granted, number, plain, server, truth, until, until_waiting,
    waiter,
};

/// No longer than a waiter's patience, so that all of it counts at once.
const TTL: Duration = Duration::from_secs(10);

/// How much shorter than its ttl a lease may be: its margin, and a busy machine.
const SHORTER: Duration = Duration::from_secs(1);

const HEARTBEAT: &str = "SELECT pg_backend_pid()";

/// The server process that waits for a lock.
async fn process_that_waits(raw: &tokio_postgres::Client) -> i64 {
    let waits = "SELECT pid::bigint FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND
                 database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    number(raw, waits).await
}

async fn until_it_has_it(raw: &tokio_postgres::Client, pid: i64) {
    let idle = format!("SELECT state = 'idle' FROM pg_stat_activity WHERE pid = {pid}");
    until("the grant on the server", async || truth(raw, &idle).await).await;
}

async fn last_said(raw: &tokio_postgres::Client, pid: i64) -> String {
    let last = format!("SELECT query FROM pg_stat_activity WHERE pid = {pid}");
    raw.query_one(&last, &[]).await.expect("the session lives").get(0)
}

#[tokio::test]
async fn f21_a_grant_that_was_long_under_way_counts_from_when_it_was_given() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let raw = plain(&lab.direct).await;
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(client.request("n").ttl(TTL));
    until_waiting(&other, "n", 1).await;
    let pid = process_that_waits(&raw).await;
    // Longer than from one heartbeat of the waiter to the next.
    let late = Duration::from_secs(2);
    lab.proxy.delay(Direction::ToClient, late);
    let before = SystemClock.now();
    lease.release().await.expect("an answer");
    until_it_has_it(&raw, pid).await;
    let given = SystemClock.now();
    let next = granted(next).await;
    assert!(SystemClock.now().since(before) >= late, "it was not held back");
    let until = next.deadline();
    assert!(until <= given + TTL, "longer by {:?} than it is kept", until.since(given + TTL));
    assert!(until + SHORTER >= before + TTL, "it has only {:?}", until.since(before));
}

#[tokio::test]
async fn f21_a_grant_that_is_read_when_its_session_is_over_is_not_believed() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let raw = plain(&lab.direct).await;
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let mut late = waiter(client.request("n").ttl(Duration::from_secs(1)));
    until_waiting(&other, "n", 1).await;
    let pid = process_that_waits(&raw).await;
    // The client reads of the grant after the server has ended the session. It reads of that end as
    // much later.
    lab.proxy.delay(Direction::ToClient, Duration::from_secs(2));
    lease.release().await.expect("an answer");
    until_it_has_it(&raw, pid).await;
    let before = lab.proxy.traffic().to_server.forwarded;
    let next = granted(waiter(other.request("n").ttl(LONG))).await;
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND
                 database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let again = async {
        // It asks its session, or claims again; over this network neither succeeds.
        let asks = lab.proxy.wait_for("a word", EVENT_MAX, |t| t.to_server.forwarded > before);
        asks.await.expect("it asks");
        lab.proxy.pass().await.expect("passing");
        until("another wait", async || number(&raw, waits).await == 1).await;
    };
    tokio::select! {
        ended = &mut late => {
            let fence = ended.expect("the task ends").map(|lease| lease.fence());
            panic!("it should wait, and has {fence:?}");
        }
        () = again => {}
    }
    let fence = next.fence();
    next.release().await.expect("an answer");
    assert!(granted(late).await.fence() > fence);
}

/// Lets a claim wait while `meanwhile` happens, grants it, and checks that its lease lasts the
/// whole ttl from the grant. Returns the last statement of its session.
async fn waited(
    url: &str,
    meanwhile: impl AsyncFnOnce(&tokio_postgres::Client, i64),
) -> (Client, String) {
    let (client, other) = (connect(url).await, connect(url).await.expect("connected"));
    let (client, raw) = (client.expect("connected"), plain(url).await);
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    // Without renewal its time is the one that the engine says, and nothing else asks the session.
    let next = waiter(client.request("n").ttl(TTL).options(LockOptions::new().renew(false)));
    until_waiting(&other, "n", 1).await;
    let pid = process_that_waits(&raw).await;
    meanwhile(&raw, pid).await;
    let before = SystemClock.now();
    lease.release().await.expect("an answer");
    let next = granted(next).await;
    let until = next.deadline();
    assert!(until + SHORTER >= before + TTL, "it has only {:?}", until.since(before));
    assert!(until <= SystemClock.now() + TTL);
    (client, last_said(&raw, pid).await)
}

#[tokio::test]
async fn a_wait_of_several_seconds_leaves_the_whole_ttl_and_costs_no_heartbeat() {
    let (_client, said) = waited(&advisory_on(server()), async |raw, pid| {
        let waits = format!(
            "SELECT clock_timestamp() - query_start > interval '3 s' FROM pg_stat_activity \
             WHERE pid = {pid}"
        );
        until("a long wait", async || truth(raw, &waits).await).await;
    })
    .await;
    assert!(said.contains("pg_advisory_lock"), "{said}");
}

/// The server's wall clock measures the wait. A clock that was set back makes a grant look old.
#[tokio::test]
async fn f40_a_server_clock_that_is_set_back_during_a_wait_costs_a_heartbeat_and_no_time() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Postgres::new().clock(&clock).start().await.expect("a server");
    let (_client, said) = waited(&advisory_on(&server), async |_, _| {
        clock.set_behind(Duration::from_secs(3_600)).expect("the clock moves");
        // Whatever the clock shows, a grant is no older than the question.
        let begun = SystemClock.now();
        until("half the ttl", async || SystemClock.now().since(begun) > TTL / 2).await;
    })
    .await;
    assert_eq!(said, HEARTBEAT);
}

#[tokio::test]
async fn f40_a_server_clock_that_jumps_ahead_during_a_wait_makes_no_lease_longer() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Postgres::new().clock(&clock).start().await.expect("a server");
    let (_client, said) = waited(&advisory_on(&server), async |_, _| {
        clock.set_ahead(Duration::from_secs(3_600)).expect("the clock moves");
    })
    .await;
    assert!(said.contains("pg_advisory_lock"), "{said}");
}
