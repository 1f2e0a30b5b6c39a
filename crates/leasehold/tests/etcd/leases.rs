//! etcd's leases and its space: leases that others end, leases that are too short, and no space
//! left.

use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::claim::{Claim, ClaimKey, Holder, Note, Renewal, Standing, Token};
use leasehold::engine::{Engine as _, EventKind, Query};
use leasehold::etcd::Etcd as EtcdEngine;
use leasehold::{Error, LeaseState, LockOptions, LostCause, Mode, Name, Released};
use leasehold_testkit::scheduling::SchedulerDelay;
use leasehold_testkit::{Direction, Etcd, Proxy, Server};

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
    // The next claim has a lease that lives.
    let next = soon("a grant", client.mutex("revoked").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[client]).await;
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
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_lease_was_revoked_takes_a_new_place_and_is_granted() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let lease = one.mutex("place").ttl(LONG).lock().await.expect("free");
    let held = lease_ids(&server);
    let mut waiter = Waiter::start(two.request("place").ttl(LONG));
    until_waiting(&one, "place", 1).await;
    let first = one.line("place").await.expect("a line").expect("held").waiting[0].fence;
    for id in lease_ids(&server).iter().filter(|id| !held.contains(id)) {
        ctl(&endpoint(&server), &["lease", "revoke", id]);
    }
    until("a new place", async || {
        let line = one.line("place").await.expect("a line").expect("held");
        line.waiting.first().is_some_and(|claim| claim.fence > first)
    })
    .await;
    assert!(waiter.is_waiting());
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > first);
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f97_full_store_grants_nothing_and_lets_everybody_go() {
    let server = Etcd::new().argument("--quota-backend-bytes=300000").start().await;
    let server = server.expect("a server");
    let client = client(server.url()).await;
    let lease = client.mutex("full").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(client.request("full").ttl(LONG));
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
    // The client keeps it, although the store can write nothing about it.
    let before = next.deadline();
    until("a renewal", async || {
        assert!(next.is_held());
        next.deadline() > before
    })
    .await;
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    let bad = client.admin().examine().await.expect("an answer");
    assert!(bad.iter().any(|finding| finding.subject == "alarm"), "{bad:?}");
    ctl(&endpoint(&server), &["del", "filler"]);
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f98_ttl_below_the_shortest_lease_is_kept_by_the_clients_clock() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let ttl = Duration::from_millis(400);
    let lease = one
        .mutex("short")
        .ttl(ttl)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("free");
    assert!(lease.time_left() <= ttl);
    assert_eq!(lease_ids(&server).len(), 1);
    let (delay, begun) = (SchedulerDelay::watch(), std::time::Instant::now());
    let next = soon("a grant", two.mutex("short").ttl(LONG).lock()).await.expect("a lease");
    assert_eq!(lease.state(), LeaseState::Lost);
    // The server keeps its lease for at least two seconds.
    let (took, bound) = (begun.elapsed(), delay.bound(Duration::from_secs(5), 8));
    assert!(took < bound, "{took:?}, more than {bound:?}");
    assert!(next.fence() > lease.fence());
    nothing_is_left(&server, &[one, two]).await;
}

/// The granted seconds of each lease, as the server reports them.
fn granted_seconds(server: &Server) -> Vec<u64> {
    let told = lease_ids(server).into_iter().map(|id| {
        let text = ctl(&endpoint(server), &["lease", "timetolive", &id]);
        let rest = text.split("granted with TTL(").nth(1).expect(&text).to_owned();
        rest.split('s').next().and_then(|seconds| seconds.parse().ok()).expect(&text)
    });
    told.collect()
}

/// A cluster with slow elections grants no lease below eight seconds. The client counts on the
/// shorter ttl that it asked for, and also reports and shows that one. Only a holder that died
/// keeps others out for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f98_half_a_second_is_half_a_second_for_its_holder_although_the_lease_is_longer() {
    let slow = Etcd::new().argument("--election-timeout=5000").argument("--heartbeat-interval=500");
    let server = slow.start().await.expect("a server");
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let ttl = Duration::from_millis(500);
    let lease = one
        .mutex("short")
        .ttl(ttl)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("free");
    assert!(lease.time_left() <= ttl);
    assert_eq!(lease.handle().ttl(), ttl);
    assert_eq!(granted_seconds(&server), [8]);
    let next = soon("a grant", two.mutex("short").ttl(LONG).lock()).await.expect("a lease");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    // An engine that claims, keeps nothing alive, and is then gone.
    let engine = EtcdEngine::open(server.url()).await.expect("a connection");
    let key = ClaimKey { name: Name::new("short").expect("good"), token: Token::random() };
    let (holder, note) = (Holder::fresh(), Note::default());
    let mode = Mode::Exclusive;
    let claim = Claim { key: key.clone(), mode, holder, note, ttl, patience: ttl, join: true };
    let within = |standing: &Standing| match standing {
        Standing::Held { remaining, .. } => *remaining > Duration::ZERO && *remaining <= ttl,
        _ => false,
    };
    let standing = engine.claim(&claim).await.expect("an answer");
    assert!(within(&standing), "{standing:?}");
    let renewed = engine.renew(&[Renewal { key, ttl, patience: ttl }]).await.expect("an answer");
    let renewed = renewed.into_iter().next().expect("one").expect("an answer");
    // The claim may have ended meanwhile, by the clock of its own client.
    assert!(within(&renewed) || matches!(renewed, Standing::Out { .. }), "{renewed:?}");
    drop(engine);
    if let Some(line) = two.line("short").await.expect("an answer") {
        assert!(line.held[0].remaining <= ttl, "{line:?}");
    }
    let next = soon("a grant", two.mutex("short").lock()).await.expect("a lease");
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[one, two]).await;
}

/// A client reads the line first, and then watches from that revision. Here the server compacts
/// that revision each time before the watch arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_between_reading_and_watching_is_made_up_for_by_reading_again() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = client(&format!("etcd://{}", proxy.address())).await;
    let near = client(server.url()).await;
    let lease = near.mutex("held").ttl(LONG).lock().await.expect("free");
    let compacting = Compacting::start(&server);
    // Less than the time limit of an answer, and more than several changes and compactions take.
    proxy.delay(Direction::ToServer, Duration::from_secs(2));
    let mut events = soon("a watch", far.admin().watch(&Query::all())).await.expect("a watch");
    for _ in 0..2 {
        let event = soon("a new reading", events.next()).await.expect("it goes on");
        let kind = event.expect("an event").kind;
        assert!(matches!(kind, EventKind::Missed(_)), "{kind:?}");
    }
    compacting.stop();
    proxy.pass().await.expect("it passes");
    // The next reading has every change in between. From there on the watch misses nothing.
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let told = async {
        for round in 0.. {
            let lease = near.mutex(format!("told:{round}")).lock().await.expect("free");
            lease.release().await.expect("an answer");
            let wait = tokio::time::timeout(Duration::from_millis(200), events.next());
            if let Ok(event) = wait.await {
                let event = event.expect("it goes on").expect("an event");
                if event.name.as_str() == format!("told:{round}") {
                    break;
                }
            }
        }
    };
    soon("an event", told).await;
    let lease = near.mutex("last").ttl(LONG).lock().await.expect("free");
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    let mut last = Vec::new();
    while last.len() < 2 {
        let event = soon("an event", events.next()).await.expect("it goes on").expect("an event");
        assert!(!matches!(event.kind, EventKind::Missed(_)), "{event:?}");
        if event.name.as_str() == "last" {
            last.push((event.kind, event.fence));
        }
    }
    assert_eq!(last, [(EventKind::Granted, fence), (EventKind::Released, fence)]);
    drop(events);
    until_unwatched(&server).await;
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_disturbs_neither_waiters_nor_watchers() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut events = two.admin().watch(&Query::all()).await.expect("a watch");
    let lease = one.mutex("compact").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(two.request("compact").ttl(LONG));
    until_waiting(&one, "compact", 1).await;
    ctl(&endpoint(&server), &["compact", &revision(&server).to_string()]);
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    for _ in 0..4 {
        soon("an event", events.next()).await.expect("the watch goes on").expect("an event");
    }
    drop(events);
    until_unwatched(&server).await;
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test]
async fn a_change_of_mode_or_limit_is_refused_by_name_and_loses_nothing_else() {
    let server = server().await;
    let client = client(server.url()).await;
    let unsupported =
        |error: &leasehold::Error| matches!(error, leasehold::Error::Unsupported { .. });
    let writer = client.rwlock("report").ttl(LONG).write().await.expect("granted");
    let downgraded = writer.downgrade().await;
    assert!(downgraded.as_ref().is_err_and(unsupported), "{downgraded:?}");
    until("the lease is given back", async || {
        client.line("report").await.expect("an answer").is_none()
    })
    .await;
    let permit = client.semaphore("uploads", 2).ttl(LONG).acquire().await.expect("granted");
    let resized = client.admin().resize("uploads", 3).await;
    assert!(resized.as_ref().is_err_and(unsupported), "{resized:?}");
    assert!(permit.is_held());
    permit.release().await.expect("an answer");
    nothing_is_left(&server, &[client]).await;
}
