//! The network before the cluster: cut, slow, silent, and losing answers.

use std::time::Duration;

use leasehold::engine::Query;
use leasehold::{Client, Error, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::{AfterLoss, Direction, Proxy, Renewals, Server};

use super::support::*;

/// A client behind a proxy, and one without.
async fn apart(server: &Server) -> (Proxy, Client, Client) {
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let near = client(server.url()).await;
    let far = client(&format!("etcd://{}", proxy.address())).await;
    (proxy, far, near)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_partition_shorter_than_the_ttl_makes_uncertain_and_then_held() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = far.mutex("cut").ttl(Duration::from_secs(8)).lock().await.expect("free");
    proxy.block(Direction::Both);
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    proxy.pass().await.expect("it passes");
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(near.mutex("cut").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_partition_longer_than_the_ttl_loses_before_the_next_is_granted() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = far.mutex("cut").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let mut waiter = Waiter::start(near.request("cut").ttl(LONG));
    until_waiting(&near, "cut", 1).await;
    proxy.block(Direction::Both);
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    proxy.pass().await.expect("it passes");
    assert_ne!(soon("an answer", lease.release()).await.ok(), Some(Released::Released));
    assert!(next.is_held());
    next.release().await.expect("an answer");
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_waiter_behind_a_black_hole_leaves_the_line_by_itself() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = near.mutex("hole").ttl(LONG).lock().await.expect("free");
    let lost = Waiter::start(far.request("hole").ttl(Duration::from_secs(2)));
    until_waiting(&near, "hole", 1).await;
    let mut next = Waiter::start(near.request("hole").ttl(LONG));
    until_waiting(&near, "hole", 2).await;
    proxy.block(Direction::Both);
    lease.release().await.expect("an answer");
    assert!(next.granted().await.is_held());
    assert!(lost.is_waiting());
    proxy.pass().await.expect("it passes");
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_lost_answer_to_a_claim_is_adopted() {
    let server = server().await;
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let (proxy, far, near) = apart(&server).await;
        far.mutex("warm").lock().await.expect("free").release().await.expect("an answer");
        proxy.lose_reply_to("lost-claim", after);
        let lease = soon("a grant", far.mutex("lost-claim").ttl(LONG).lock()).await.expect("one");
        assert_eq!(proxy.traffic().replies_lost, 1, "the answer got through");
        let line = near.line("lost-claim").await.expect("an answer").expect("it is held");
        assert_eq!((line.held.len(), line.waiting.len()), (1, 0));
        assert_eq!(line.held[0].fence, lease.fence());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        assert!(claims(&server).is_empty());
        nothing_is_left(&server, &[far, near]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_lost_answer_to_a_release_does_not_release_the_next() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = far.mutex("lost-release").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(near.request("lost-release").ttl(LONG));
    until_waiting(&near, "lost-release", 1).await;
    // The server answers a request with several pieces, the first before it has done anything. So
    // the proxy holds all of them until the release has taken effect, and then loses them together.
    proxy.block(Direction::ToClient);
    let release = tokio::spawn(async move { lease.release().await });
    let next = waiter.granted().await;
    proxy.reset_all();
    proxy.pass().await.expect("it passes");
    let released = soon("an answer", release).await.expect("it ends").expect("an answer");
    assert_eq!(released, Released::Released);
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_answer_slower_than_the_ttl_is_refused_and_cleaned() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let mutex = far.mutex("slow").ttl(Duration::from_millis(600));
    mutex.lock().await.expect("free").release().await.expect("an answer");
    proxy.delay(Direction::ToClient, Duration::from_millis(1_000));
    let refused = soon("an answer", mutex.try_lock()).await.unless_held();
    assert!(
        matches!(refused, Err(Error::TooSlow { .. } | Error::Unreachable { .. })),
        "{refused:?}"
    );
    proxy.pass().await.expect("it passes");
    until("an empty line", async || claims(&server).is_empty()).await;
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_idle_connections_that_are_cut_lose_nothing() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    proxy.cut_idle(Duration::from_millis(300));
    let lease = far.mutex("idle").ttl(Duration::from_secs(3)).lock().await.expect("free");
    let before = lease.deadline();
    until("several renewals", async || {
        assert!(lease.is_held());
        lease.deadline().since(before) > Duration::from_secs(6)
    })
    .await;
    assert!(proxy.traffic().accepted > 3, "{:?}", proxy.traffic());
    let mut waiter = Waiter::start(far.request("idle").ttl(LONG));
    until_waiting(&near, "idle", 1).await;
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_another_member_behind_the_same_address_is_as_good() {
    let group = cluster().await;
    let proxy = Proxy::start(group.servers()[0].address()).await.expect("a proxy");
    let far = client(&format!("etcd://{}", proxy.address())).await;
    let lease = far.mutex("moved").ttl(Duration::from_secs(6)).lock().await.expect("free");
    let before = lease.deadline();
    proxy.set_target(group.servers()[1].address());
    proxy.reset_all();
    until("a renewal", async || lease.deadline() > before).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&group.servers()[0], &[far]).await;
}

/// Here an exchange takes longer than the spare time of a waiting claim's lease. The server
/// compacts the revision of a claim's answer before the claim watches from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_on_a_slow_network_joins_the_line_and_is_granted() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = near.mutex("slow").ttl(LONG).lock().await.expect("free");
    let compacting = Compacting::start(&server);
    proxy.delay(Direction::ToServer, Duration::from_millis(1_300));
    let mut waiter = Waiter::start(far.request("slow").ttl(LONG));
    until_waiting(&near, "slow", 1).await;
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    proxy.pass().await.expect("it passes");
    compacting.stop();
    nothing_is_left(&server, &[far, near]).await;
}

/// Silences the connection that carries a client's bells, and no other.
async fn deafen(proxy: &Proxy, far: &Client, name: &str) {
    proxy.lose_reply_to(format!("{name}/"), AfterLoss::Silence);
    let asked = tokio::time::timeout(Duration::from_millis(200), far.line(name)).await;
    assert!(asked.is_err(), "the connection still speaks: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f89_f110_next_heartbeat_finds_a_departure_that_was_not_reported() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let (far, seen) =
        Renewals::of(&format!("etcd://{}", proxy.address())).await.expect("a connection");
    let near = client(server.url()).await;
    let lease = near.mutex("deaf").ttl(LONG).lock().await.expect("free");
    // The keeper's heartbeat mentions the name too, and goes over a connection of its own.
    let mut waiter = Waiter::start(far.request("deaf").ttl(LONG));
    until_waiting(&near, "deaf", 1).await;
    far.mutex("other").lock().await.expect("free").release().await.expect("an answer");
    deafen(&proxy, &far, "other").await;
    lease.release().await.expect("an answer");
    let before = seen.answered();
    assert!(waiter.granted().await.is_held());
    // The first heartbeat after the release finds it; one may have been in flight.
    let beats = seen.answered() - before;
    assert!(beats <= 2, "granted after {beats} heartbeats");
    proxy.reset_all();
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_connections_reset_at_the_release_hold_up_the_next_for_one_heartbeat_at_most() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let (far, seen) =
        Renewals::of(&format!("etcd://{}", proxy.address())).await.expect("a connection");
    let near = client(server.url()).await;
    for round in 0..10 {
        let name = format!("reset:{round}");
        let lease = near.mutex(&name).ttl(LONG).lock().await.expect("free");
        let mut waiter = Waiter::start(far.request(&name).ttl(LONG));
        until_waiting(&near, &name, 1).await;
        let release = tokio::spawn(lease.release());
        proxy.reset_all();
        soon("an answer", release).await.expect("no panic").expect("an answer");
        let before = seen.answered();
        assert!(waiter.granted().await.is_held());
        // One heartbeat may have been in flight at the release.
        let beats = seen.answered() - before;
        assert!(beats <= 2, "granted after {beats} heartbeats");
    }
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f117_order_is_kept_over_reset_connections() {
    let server = server().await;
    let (proxy, far, near) = apart(&server).await;
    let lease = near.mutex("order").ttl(LONG).lock().await.expect("free");
    let mut waiters = Vec::new();
    for index in 0..6 {
        waiters.push(Waiter::start(far.request("order").ttl(LONG)));
        until_waiting(&near, "order", index + 1).await;
        proxy.reset_all();
    }
    let mut last = lease.fence();
    lease.release().await.expect("an answer");
    for index in 0..waiters.len() {
        let lease = waiters[index].granted().await;
        assert!(lease.fence() > last, "place {index}");
        assert!(waiters[index + 1..].iter().all(Waiter::is_waiting));
        last = lease.fence();
        proxy.reset_all();
        soon("an answer", lease.release()).await.expect("one");
    }
    nothing_is_left(&server, &[far, near]).await;
}

/// A watcher says in the store that it watches, by a key on a lease of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_begins_although_the_answer_about_its_own_lease_is_lost() {
    let server = server().await;
    // Two ways to the member, so that the request goes the other way when its answer is lost.
    let first = Proxy::start(server.address()).await.expect("a proxy");
    let second = Proxy::start(server.address()).await.expect("a proxy");
    let url = format!("etcd://{},{}", first.address(), second.address());
    let client = client(&url).await;
    first.block(Direction::ToClient);
    second.block(Direction::ToClient);
    let watcher = client.clone();
    let watch = tokio::spawn(async move { watcher.admin().watch(&Query::all()).await.map(drop) });
    until("a lease", async || !lease_ids(&server).is_empty()).await;
    for proxy in [&first, &second] {
        proxy.reset_all();
        proxy.pass().await.expect("it passes");
    }
    soon("an answer", watch).await.expect("it ends").expect("a watch");
    until_unwatched(&server).await;
    nothing_is_left(&server, &[client]).await;
}
