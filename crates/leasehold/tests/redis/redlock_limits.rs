//! Nodes of a quorum, and servers of a Cluster, without free memory; and the keys that one-off
//! names leave there.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::claim::{Claim, ClaimKey, Token};
use leasehold::engine::Engine;
use leasehold::redlock::Redlock;
use leasehold::{Error, LeaseState, LockOptions, Mode, Name, Released, UnlessHeld};
use leasehold_testkit::{Server, servers};

use crate::redlock::{long_url, memory_only, until_released, url};
use crate::support::*;

const TTL: Duration = Duration::from_secs(3);

fn limit(nodes: &[Server], bytes: &str) {
    for server in nodes {
        told(server, &["CONFIG", "SET", "maxmemory", bytes]);
    }
}

/// A lease and a waiter outlive a time in which no server can store new data, and servers refuse
/// new claims meanwhile.
async fn starve(nodes: &[Server], url: &str) {
    let (one, two) = (early_client(url).await, client(url).await);
    let plain = plain_client(url).await;
    warm_up(&plain).await;
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    limit(nodes, "1");
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(waiter.is_waiting());
    let refused =
        plain.mutex("other").ttl(TTL).try_lock().await.unless_held().expect_err("no memory");
    assert!(matches!(refused, Error::Store { .. } | Error::NoMajority { .. }), "{refused:?}");
    assert!(refused.is_transient(), "{refused:?}");
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("it needs no memory"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.fence() > fence);
    until_renewed(&next).await;
    assert_eq!(next.release().await.expect("it needs no memory"), Released::Released);
    until("the release everywhere", async || {
        nodes.iter().all(|server| told(server, &["KEYS", "*report*"]).is_empty())
    })
    .await;
    limit(nodes, "0");
    assert!(
        plain.mutex("other").ttl(TTL).try_lock().await.unless_held().expect("an answer").is_some()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_and_waiter_live_on_nodes_without_memory() {
    let group = memory_only(3).await;
    starve(group.servers(), &long_url(&group)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_and_waiter_live_in_a_cluster_without_memory() {
    let group = servers::Redis::new().start_cluster().await.expect("a cluster starts");
    starve(group.servers(), group.url()).await;
}

/// Takes names that are used only once, and gives them back.
async fn use_once(engine: &impl Engine, names: usize) {
    const AT_ONCE: usize = 200;
    let model = Claim { join: false, ..claim("one-off", Mode::Exclusive) };
    for first in (0..names).step_by(AT_ONCE) {
        let claim = |number: usize| {
            let name = Name::new(format!("one-off {number}")).expect("a name");
            Claim { key: ClaimKey { name, token: Token::random() }, ..model.clone() }
        };
        let claims: Vec<Claim> = (first..names.min(first + AT_ONCE)).map(claim).collect();
        join_all(claims.iter().map(|claim| held(engine, claim))).await;
        let keys: Vec<ClaimKey> = claims.into_iter().map(|claim| claim.key).collect();
        engine.release(&keys).await.expect("an answer");
    }
}

/// The keys of a server that are not counters, sorted.
fn others(server: &Server) -> Vec<String> {
    let keys = told(server, &["KEYS", "*"]);
    let other = |key: &&str| !key.contains(":fence");
    let mut others: Vec<String> = keys.lines().filter(other).map(str::to_owned).collect();
    others.sort();
    others
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_off_names_leave_a_bounded_number_of_counters_at_each_node() {
    let group = memory_only(3).await;
    let url = url(&group, "ttl_max_ms=600000&node_timeout_ms=60000");
    let engine = soon("a store", Redlock::open(&url)).await.expect("the store opens");
    let before: Vec<Vec<String>> = group.servers().iter().map(others).collect();
    use_once(&engine, 10_000).await;
    until_released(group.servers()).await;
    for (server, before) in group.servers().iter().zip(before) {
        assert_eq!(others(server), before, "only counters came");
        let counters = key_count(server) - before.len() as u64;
        assert!((3_000..=4_096).contains(&counters), "{counters} counters of 10,000 names");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_off_names_leave_at_most_a_counter_for_each_slot_of_a_cluster() {
    let group = servers::Redis::new().start_cluster().await.expect("a cluster starts");
    let engine = engine(format!("{}?timeout_ms=60000", group.url())).await;
    let all = || group.servers().iter().flat_map(others).collect::<Vec<_>>();
    let before = all();
    use_once(&engine, 20_000).await;
    assert_eq!(all(), before, "only counters came");
    let keys: u64 = group.servers().iter().map(key_count).sum();
    let counters = keys - before.len() as u64;
    assert!((10_000..=16_384).contains(&counters), "{counters} counters of 20,000 names");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_above_the_longest_ttl_is_refused_with_the_name_of_its_setting() {
    let group = memory_only(3).await;
    let client = client(url(&group, "ttl_max_ms=5000")).await;
    let held = client
        .mutex("report")
        .options(LockOptions::new().hold_at_least(Duration::from_secs(3_600)))
        .try_lock()
        .await
        .unless_held();
    let refused = held.expect_err("the nodes keep nothing for that long").to_string();
    assert!(refused.contains("raise `ttl_max_ms` in the store's url"), "{refused}");
}
