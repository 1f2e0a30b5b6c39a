//! Claims that leave a node that does not hear it, for longer than a client waits for an answer.

use std::time::Duration;

use leasehold::{Client, Error, Released};
use leasehold_testkit::{Direction, Proxy, Server};

use crate::redlock::until_released;
use crate::redlock_network::{Fronts, NODE_TIMEOUT, claims};
use crate::support::*;

/// The url of the nodes for these clients, with a time limit that tests can wait for.
fn limited(fronts: &Fronts) -> String {
    fronts.url(&format!("node_timeout_ms={}", NODE_TIMEOUT.as_millis()))
}

/// Longer than claims and releases wait for an answer.
async fn outlast_every_answer() {
    tokio::time::sleep(3 * NODE_TIMEOUT).await;
}

/// Takes a lock and gives it back while a node is silent: the requests to that node stay in flight.
async fn lock_and_release_unheard(client: &Client, silent: &Proxy) {
    silent.block(Direction::Both);
    let lease = soon("a grant", client.mutex("report").ttl(LONG).lock()).await.expect("free");
    outlast_every_answer().await;
    let released = soon("an answer", lease.release()).await.expect("known");
    assert_eq!(released, Released::Released);
    outlast_every_answer().await;
}

/// The number of waiting claims at a node.
fn waiting_at(node: &Server) -> String {
    told(node, &["ZCARD", "leasehold:quorum:order:lock:report"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_release_reaches_a_node_that_was_silent_for_longer_than_a_release_waits() {
    let fronts = Fronts::start().await;
    let client = client(limited(&fronts)).await;
    warm_up(&client).await;
    until_released(fronts.group.servers()).await;
    let (silent, node) = (&fronts.proxies[1], &fronts.group.servers()[1]);
    lock_and_release_unheard(&client, silent).await;
    let claimed = claims(node);
    silent.pass().await.expect("the proxy passes");
    until("the claim", async || claims(node) > claimed).await;
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_release_reaches_a_node_that_was_dead_and_kept_the_claim() {
    let options = leasehold_testkit::servers::Redis::new().append_only();
    let group = options.start_many(3).await.expect("servers start");
    let client = client(crate::redlock::long_url(&group)).await;
    let lease = crate::redlock::counted_everywhere(&group, &client).await;
    let node = &group.servers()[2];
    node.kill().expect("it is killed");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    node.launch().expect("it starts");
    node.wait_ready().await.expect("it is ready");
    until("the release", async || told(node, &["EXISTS", "lock:report"]) == "0").await;
    // The ttl did not remove it: it is longer than all this may take.
    assert_eq!(calls(node, "del"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_claim_without_a_majority_leaves_nodes_that_were_silent_for_long() {
    let fronts = Fronts::start().await;
    let client = plain_client(limited(&fronts)).await;
    warm_up(&client).await;
    until_released(fronts.group.servers()).await;
    let silent = &fronts.group.servers()[..2];
    for proxy in &fronts.proxies[..2] {
        proxy.block(Direction::Both);
    }
    let asked = soon("an answer", client.mutex("report").ttl(LONG).lock()).await;
    assert!(matches!(&asked, Err(Error::NoMajority { .. })), "{asked:?}");
    outlast_every_answer().await;
    // The keeper also repeats a release that a majority did not answer.
    let claimed: Vec<u64> = silent.iter().map(claims).collect();
    fronts.pass().await;
    for (node, claimed) in silent.iter().zip(claimed) {
        until("the claim", async || claims(node) > claimed).await;
    }
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_wait_that_was_cancelled_leaves_a_node_that_was_silent_for_long() {
    let fronts = Fronts::start().await;
    let (client, other) = (client(limited(&fronts)).await, fronts.bystander().await);
    warm_up(&client).await;
    until_released(fronts.group.servers()).await;
    let lease = other.mutex("report").ttl(LONG).lock().await.expect("free");
    let (silent, node) = (&fronts.proxies[1], &fronts.group.servers()[1]);
    until("the last node", async || told(node, &["EXISTS", "lock:report"]) == "1").await;
    silent.block(Direction::Both);
    drop(Waiter::queue(&other, &client, "report", 0).await);
    outlast_every_answer().await;
    let claimed = claims(node);
    silent.pass().await.expect("the proxy passes");
    until("the claim", async || claims(node) > claimed).await;
    until("the farewell", async || waiting_at(node) == "0").await;
    assert!(lease.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_late_release_leaves_the_later_claims_alone() {
    let fronts = Fronts::start().await;
    let (client, other) = (client(limited(&fronts)).await, fronts.bystander().await);
    warm_up(&client).await;
    until_released(fronts.group.servers()).await;
    let (silent, node) = (&fronts.proxies[1], &fronts.group.servers()[1]);
    lock_and_release_unheard(&client, silent).await;
    let lease = other.mutex("report").ttl(LONG).lock().await.expect("free");
    let token = || told(node, &["GET", "lock:report"]);
    until("the last node", async || !token().is_empty()).await;
    let (holding, claimed) = (token(), claims(node));
    silent.pass().await.expect("the proxy passes");
    // The earlier claim comes into line behind it, and leaves.
    until("the claim", async || claims(node) > claimed).await;
    until("the farewell", async || waiting_at(node) == "0").await;
    assert_eq!(token(), holding);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_released(fronts.group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_nothing_is_said_to_a_silent_node_once_its_client_is_gone() {
    let fronts = Fronts::start().await;
    let silent = &fronts.proxies[1];
    let opened = || silent.traffic().accepted;
    for closes in [true, false] {
        fronts.pass().await;
        let client = client(limited(&fronts)).await;
        warm_up(&client).await;
        lock_and_release_unheard(&client, silent).await;
        // The client repeats unanswered requests on another connection.
        let before = opened();
        until("another try", async || opened() > before).await;
        if closes {
            client.close().await.expect("closed");
        }
        drop(client);
        // A try that was in flight at that moment ends.
        outlast_every_answer().await;
        let before = opened();
        // Longer than the longest pause between two tries.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(opened(), before, "closed: {closes}");
    }
}
