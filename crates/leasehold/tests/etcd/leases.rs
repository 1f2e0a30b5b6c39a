//! etcd's leases and its space: ended by others, too short, and none left.

use std::time::Duration;

use leasehold::{Error, LeaseState, LostCause, Released, connect};
use leasehold_testkit::Etcd;

use super::support::*;

fn revoke_all(server: &leasehold_testkit::Server) {
    for id in lease_ids(server) {
        ctl(&endpoint(server), &["lease", "revoke", &id]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f94_lease_that_was_revoked_is_lost_at_the_next_renewal_although_renewing_goes_on() {
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("revoked").ttl(Duration::from_secs(3)).lock().await.expect("free");
    revoke_all(&server);
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Removed);
    assert_eq!(lease.state(), LeaseState::Lost);
    // The next one has a lease that lives.
    let next = soon("a grant", client.mutex("revoked").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f94_key_that_was_deleted_is_lost_at_the_next_renewal() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let lease = one.mutex("deleted").ttl(Duration::from_secs(3)).lock().await.expect("free");
    ctl(&endpoint(&server), &["del", "deleted/", "--prefix"]);
    let next = two.mutex("deleted").ttl(LONG).lock().await.expect("free");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::TakenBy(two.holder().clone()));
    assert!(next.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_lease_was_revoked_takes_a_new_place_and_is_granted() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let lease = one.mutex("place").ttl(LONG).lock().await.expect("free");
    let held = lease_ids(&server);
    let mut waiter = Waiter::start(two.claim("place").ttl(LONG));
    until_waiting(&one, "place", 1).await;
    let first = one.show("place").await.expect("a line").expect("held").waiting[0].fence;
    for id in lease_ids(&server).iter().filter(|id| !held.contains(id)) {
        ctl(&endpoint(&server), &["lease", "revoke", id]);
    }
    until("a new place", async || {
        let line = one.show("place").await.expect("a line").expect("held");
        line.waiting.first().is_some_and(|claim| claim.fence > first)
    })
    .await;
    assert!(waiter.is_waiting());
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f97_full_store_grants_nothing_and_lets_everybody_go() {
    let server = Etcd::new().argument("--quota-backend-bytes=300000").start().await;
    let server = server.expect("a server");
    let client = client(server.url()).await;
    let lease = client.mutex("full").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(client.claim("full").ttl(LONG));
    until_waiting(&client, "full", 1).await;
    let value = "x".repeat(60_000);
    until("a full store", async || {
        let put = etcdctl(&endpoint(&server)).args(["put", "filler", &value]).output();
        !put.expect("etcdctl runs").status.success()
    })
    .await;
    let refused = client.mutex("another").lock().await;
    match refused {
        Err(Error::Store { cause, transient: false, .. }) => assert!(cause.contains("full")),
        other => panic!("a full store answered {other:?}"),
    }
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = waiter.granted().await;
    // It is kept, although nothing can be written about it.
    let before = next.safe_until();
    until("a renewal", async || {
        assert!(next.is_held());
        next.safe_until() > before
    })
    .await;
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    let bad = client.examine().await.expect("an answer");
    assert!(bad.iter().any(|finding| finding.subject == "alarm"), "{bad:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f98_ttl_below_the_shortest_lease_is_kept_by_the_clients_clock() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let ttl = Duration::from_millis(400);
    let lease = one.mutex("short").ttl(ttl).renew(false).lock().await.expect("free");
    assert!(lease.time_left() <= ttl);
    assert_eq!(lease_ids(&server).len(), 1);
    let begun = std::time::Instant::now();
    let next = soon("a grant", two.mutex("short").ttl(LONG).lock()).await.expect("a lease");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_disturbs_neither_waiters_nor_watchers() {
    use futures_util::StreamExt;
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut events = two.watch(&leasehold::engine::Query::all()).await.expect("a watch");
    let lease = one.mutex("compact").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(two.claim("compact").ttl(LONG));
    until_waiting(&one, "compact", 1).await;
    ctl(&endpoint(&server), &["compact", &revision(&server).to_string()]);
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    for _ in 0..4 {
        soon("an event", events.next()).await.expect("the watch goes on").expect("an event");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_no_lease_and_a_detached_one_stays_until_its_ttl() {
    let server = server().await;
    let client = connect(server.url()).await.expect("a connection");
    let kept = client.mutex("kept").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let gone = client.mutex("gone").ttl(LONG).lock().await.expect("free");
    assert!(client.mutex("gone").try_lock().await.expect("an answer").is_none());
    let handle = kept.detach().await.expect("a handle");
    drop(gone);
    soon("the close", client.close()).await.expect("an answer");
    assert_eq!(claims(&server).len(), 1);
    assert_eq!(lease_ids(&server).len(), 1);
    let other = connect(server.url()).await.expect("a connection");
    assert!(other.check(&handle).await.expect("an answer").is_some());
    until_empty(&server).await;
}

#[tokio::test]
async fn a_change_of_mode_or_limit_is_refused_by_name_and_loses_nothing_else() {
    use leasehold::error::Config;
    let server = server().await;
    let client = client(server.url()).await;
    let unsupported = |error: &leasehold::Error| {
        matches!(error, leasehold::Error::Config(Config::Unsupported { .. }))
    };
    let writer = client.rwlock("report").ttl(LONG).write().await.expect("granted");
    let downgraded = writer.downgrade().await;
    assert!(downgraded.as_ref().is_err_and(unsupported), "{downgraded:?}");
    until("the lease is given back", async || {
        client.show("report").await.expect("an answer").is_none()
    })
    .await;
    let permit = client.semaphore("uploads", 2).ttl(LONG).acquire().await.expect("granted");
    let resized = client.resize("uploads", 3).await;
    assert!(resized.as_ref().is_err_and(unsupported), "{resized:?}");
    assert!(permit.is_held());
    permit.release().await.expect("an answer");
}
