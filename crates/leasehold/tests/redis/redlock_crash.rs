//! Processes that are killed while they wait for nodes of a quorum, and connections that break in a
//! line. A quorum promises no order of arrival, so the conformance suite skips its cases about
//! order here.

use std::process::Command;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use leasehold::{Client, Lease};
use leasehold_testkit::{Group, Proxy, Worker};

use crate::redlock::{long_url, memory_only};
use crate::redlock_network::Fronts;
use crate::support::*;

/// Set in a process that waits for a lock until it is killed: the store.
const WAITER: &str = "LEASEHOLD_TEST_REDLOCK_WAITER";

/// How long nodes keep a dead waiter.
const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn waits_until_it_is_killed_if_it_was_started_for_that() {
    let Ok(url) = std::env::var(WAITER) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = leasehold::connect(&url).await.expect("the store opens");
        let lease = client.mutex("report").ttl(PATIENCE).lock().await.expect("a lease");
        println!("\nheld {}", lease.fence());
        std::future::pending::<()>().await;
    });
}

/// A process that waits for the lock.
fn process(url: &str) -> Worker {
    let mut command = Command::new(std::env::current_exe().expect("this program is a file"));
    command.args(["--exact", "--nocapture"]).env(WAITER, url);
    command.arg("redlock_crash::waits_until_it_is_killed_if_it_was_started_for_that");
    Worker::spawn(command).expect("it starts")
}

/// Three nodes, a lease on them, and a process that is the first to wait for it.
async fn scene() -> (Group, Client, Lease, Worker) {
    let group = memory_only(3).await;
    let url = long_url(&group);
    let client = client(&url).await;
    let lease = client.mutex("report").ttl(LONG).lock().await.expect("free");
    let first = process(&url);
    until_waiting(&client, "report", 1).await;
    (group, client, lease, first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f112_first_of_ten_waiters_that_is_killed_is_passed_over_once_and_for_all() {
    let (_group, client, lease, mut first) = scene().await;
    let mut waiters = Vec::new();
    for before in 1..10 {
        waiters.push(Waiter::queue(&client, &client, "report", before).await);
    }
    first.kill().expect("it is killed");
    let mut fence = lease.fence();
    lease.release().await.expect("an answer");
    // A quorum promises no order: each waiter is granted in the end, one after the other.
    let mut grants: FuturesUnordered<_> = waiters.into_iter().map(Waiter::granted).collect();
    while let Some(next) = grants.next().await {
        assert!(next.fence() > fence);
        fence = next.fence();
        next.release().await.expect("an answer");
    }
    until_free(&client, "report").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f115_waiter_that_is_killed_as_it_is_granted_is_followed_by_the_next() {
    let (group, client, lease, mut first) = scene().await;
    let second = Waiter::queue(&client, &client, "report", 1).await;
    // A stopped process cannot take the grant; then it dies with the grant in flight.
    first.stop_process().expect("it stops");
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    let handed = |server| calls(server, "publish") > 0;
    until("the bells", async || group.servers().iter().all(handed)).await;
    first.kill().expect("it is killed");
    assert!(second.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f117_resets_at_the_nodes_while_they_queue_pass_nobody_over() {
    let fronts = Fronts::start().await;
    let holder = fronts.bystander().await;
    let reset = || fronts.proxies.iter().for_each(Proxy::reset_all);
    let mut turns = turns(&holder, async || client(fronts.url("")).await, reset).await;
    // An attempt that a reset ends is followed by another one, which may be behind later waiters.
    turns.sort_unstable();
    assert_eq!(turns, [0, 1, 2, 3, 4, 5, 6, 7]);
}
