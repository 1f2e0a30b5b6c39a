//! Administrators and accidents that disturb running nodes of a quorum.

use std::fs;
use std::time::Duration;

use leasehold::engine::Level;
use leasehold::error::{NodeFailure, NodeReason};
use leasehold::{Error, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::Server;

use crate::redlock::{TTL, counted_everywhere, long_url, memory_only, url};
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_node_that_may_evict_any_key_is_refused_by_default() {
    let group = memory_only(3).await;
    let early = client(long_url(&group)).await;
    let node = &group.servers()[1];
    told(node, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = leasehold::connect(long_url(&group)).await.expect_err("refused");
    assert!(matches!(error, Error::Config(_)) && !error.is_transient(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("allkeys-lru") && text.contains("allow_eviction=yes"), "{text}");
    let allowed = client(format!("{}&allow_eviction=yes", long_url(&group))).await;
    warm_up(&allowed).await;
    // `doctor` reports it to clients that connected before.
    for client in [&early, &allowed] {
        let findings = client.admin().examine().await.expect("an answer");
        let evicts = |address: String| {
            let about = |finding: &&leasehold::engine::Finding| {
                finding.found.contains(&address) && finding.level == Level::Bad
            };
            findings.iter().any(|finding| about(&finding))
        };
        assert!(evicts(node.address().to_string()), "{findings:?}");
        assert!(!evicts(group.servers()[0].address().to_string()), "{findings:?}");
    }
}

/// Makes every snapshot of a server fail, after which it takes no writes.
async fn stop_writes(server: &Server) {
    fs::create_dir(server.folder().join("dump.rdb")).expect("a folder in the file's place");
    told(server, &["CONFIG", "SET", "save", "3600 1000000"]);
    told(server, &["BGSAVE"]);
    let info = || told(server, &["INFO", "persistence"]);
    until("a failed snapshot", async || info().contains("rdb_last_bgsave_status:err")).await;
}

async fn go_on_writing(server: &Server) {
    fs::remove_dir(server.folder().join("dump.rdb")).expect("the folder is empty");
    told(server, &["BGSAVE"]);
    let info = || told(server, &["INFO", "persistence"]);
    until("a snapshot", async || info().contains("rdb_last_bgsave_status:ok")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_one_node_that_stops_writing_holds_up_nobody() {
    let group = memory_only(3).await;
    let (one, two) = (early_client(long_url(&group)).await, client(long_url(&group)).await);
    let lease = counted_everywhere(&group, &one).await;
    stop_writes(&group.servers()[2]).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let waiter = Waiter::start(two.request("report").ttl(TTL));
    until_waiting(&one, "report", 1).await;
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_majority_that_stops_writing_refuses_and_the_lease_is_lost_in_time() {
    let group = memory_only(3).await;
    let (one, two) = (early_client(long_url(&group)).await, plain_client(long_url(&group)).await);
    let ttl = Duration::from_secs(3);
    let lease = one.mutex("report").ttl(ttl).lock().await.expect("free");
    let stopped = &group.servers()[..2];
    for server in stopped {
        stop_writes(server).await;
    }
    let error =
        two.mutex("other").ttl(ttl).try_lock().await.unless_held().expect_err("no majority");
    let Error::NoMajority { nodes, .. } = &error else { panic!("{error:?}") };
    assert!(error.is_transient() && error.to_string().contains("MISCONF"), "{error}");
    let refused = |failed: &&NodeFailure| matches!(failed.reason, NodeReason::Unreachable { .. });
    assert_eq!(nodes.iter().filter(refused).count(), 2, "{error}");
    // The third may answer first, or the client may not wait for it after two refusals. The error
    // never calls it silent.
    let third = group.servers()[2].address().to_string();
    let well = |failed: &NodeFailure| {
        failed.node == third
            && matches!(failed.reason, NodeReason::Granted | NodeReason::NotAwaited)
    };
    assert!(nodes.iter().any(well), "{error}");
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::Expired | LostCause::Unreachable), "{cause:?}");
    // Reads still work, and the nodes free the lock by themselves.
    until_free(&two, "report").await;
    for server in stopped {
        go_on_writing(server).await;
    }
    let next = two.mutex("report").ttl(ttl).lock().await.expect("free");
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_one_node_that_stalls_holds_up_nobody() {
    let group = memory_only(3).await;
    let (one, two) = (early_client(long_url(&group)).await, client(long_url(&group)).await);
    let lease = counted_everywhere(&group, &one).await;
    // Longer than the test: a client that waits for this node waits too long.
    told(&group.servers()[0], &["CLIENT", "PAUSE", "120000", "ALL"]);
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let waiter = Waiter::start(two.request("report").ttl(TTL));
    until_waiting(&one, "report", 1).await;
    let fence = lease.fence();
    assert_eq!(soon("an answer", lease.release()).await.expect("known"), Released::Released);
    assert!(waiter.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_majority_that_stalls_for_longer_than_the_ttl_loses_the_lease_by_the_local_clock() {
    let group = memory_only(3).await;
    let url = url(&group, "ttl_max_ms=600000&node_timeout_ms=300");
    let (one, two) = (early_client(&url).await, client(&url).await);
    warm_up(&two).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(1)).lock().await.expect("free");
    for server in &group.servers()[..2] {
        told(server, &["CLIENT", "PAUSE", "2500", "ALL"]);
    }
    // The cause depends on whether the first renewal had failed by then.
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::Expired | LostCause::Unreachable), "{cause:?}");
    let next = soon("a grant", async {
        loop {
            match two.mutex("report").ttl(TTL).lock().await {
                Ok(lease) => return lease,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    })
    .await;
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(next.fence() > lease.fence() && next.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_majority_that_stalls_for_less_than_the_ttl_keeps_the_lease() {
    let group = memory_only(3).await;
    let one = early_client(long_url(&group)).await;
    let lease = counted_everywhere(&group, &one).await;
    // Longer than the time limit for a node's answer.
    for server in &group.servers()[1..] {
        told(server, &["CLIENT", "PAUSE", "2500", "ALL"]);
    }
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Makes a server a replica of an address that does not answer: it keeps its data, and takes no
/// writes.
fn make_replica(server: &Server) {
    told(server, &["REPLICAOF", "127.0.0.1", "1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_node_that_is_a_replica_holds_up_nobody_and_two_refuse() {
    let group = memory_only(3).await;
    let (one, two) = (early_client(long_url(&group)).await, plain_client(long_url(&group)).await);
    let lease = counted_everywhere(&group, &one).await;
    let replicas = &group.servers()[..2];
    make_replica(&replicas[0]);
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let other = two.mutex("other").ttl(TTL).lock().await.expect("two make a majority");
    assert_eq!(told(&replicas[0], &["EXISTS", "lock:other"]), "0");
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
    make_replica(&replicas[1]);
    let error =
        two.mutex("other").ttl(TTL).try_lock().await.unless_held().expect_err("no majority");
    let Error::NoMajority { nodes, .. } = &error else { panic!("{error:?}") };
    assert!(error.is_transient() && error.to_string().contains("READONLY"), "{error}");
    for server in replicas {
        let address = server.address().to_string();
        let failed = nodes.iter().find(|failed| failed.node == address);
        let reason = failed.map(|failed| &failed.reason);
        assert!(matches!(reason, Some(NodeReason::Unreachable { .. })), "{error:?}");
        told(server, &["REPLICAOF", "NO", "ONE"]);
    }
    assert!(
        two.mutex("other").ttl(TTL).try_lock().await.unless_held().expect("an answer").is_some()
    );
}
