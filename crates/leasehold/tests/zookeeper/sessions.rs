//! Sessions: shared, ended by the ensemble, left open on purpose, and never mistaken for another.

use std::time::Duration;

use leasehold::{LeaseState, LockOptions, LostCause, Released, UnlessHeld, connect};
use leasehold_testkit::{Direction, Proxy, Server, Zookeeper};

use super::support::*;

/// A server whose sessions are shorter than the ttls of these tests. Then a lease only lasts for
/// the time that its session proves.
async fn brief_sessions() -> Server {
    let server = Zookeeper::new().setting("maxSessionTimeout", "3000").start().await;
    server.expect("a server")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_session_that_ended_is_lost_before_and_its_nodes_are_never_adopted() {
    lost_before_the_session_ends(server().await, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_lease_that_only_its_session_limits_is_lost_before_that_ends() {
    lost_before_the_session_ends(brief_sessions().await, LONG).await;
}

async fn lost_before_the_session_ends(server: Server, ttl: Duration) {
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = client(&format!("zk://{}", proxy.address())).await;
    let near = client(server.url()).await;
    let lease = far.mutex("ended").ttl(ttl).lock().await.expect("free");
    let old = claims(&server);
    // A renewal counts from another request to the server than the claim did.
    let before = lease.deadline();
    until("a renewal", async || lease.deadline() > before).await;
    proxy.block(Direction::Both);
    until("the end of the session", async || {
        if claims(&server).is_empty() {
            assert_eq!(lease.state(), LeaseState::Lost, "the ensemble was first");
            return true;
        }
        false
    })
    .await;
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    proxy.pass().await.expect("it passes");
    let again = soon("a lease", far.mutex("ended").ttl(ttl).lock()).await.expect("free");
    assert!(again.fence() > lease.fence(), "a new claim");
    assert!(claims(&server).iter().all(|node| !old.contains(node)));
    assert!(near.mutex("ended").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(again.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_session_ended_takes_a_new_place_and_is_granted() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = client(&format!("zk://{}", proxy.address())).await;
    let near = client(server.url()).await;
    let lease = near.mutex("place").ttl(LONG).lock().await.expect("free");
    let mut waiter = Waiter::start(far.request("place").ttl(Duration::from_secs(2)));
    until_waiting(&near, "place", 1).await;
    proxy.block(Direction::Both);
    until_waiting(&near, "place", 0).await;
    proxy.pass().await.expect("it passes");
    until_waiting(&near, "place", 1).await;
    assert!(waiter.is_waiting());
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.is_held());
    leaves_nothing(&server, [far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_nothing_and_a_detached_lease_stays_until_its_session_ends() {
    let server = server().await;
    let client = connect(server.url()).await.expect("a connection");
    let kept = client.mutex("kept").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let gone = client.mutex("gone").ttl(LONG).lock().await.expect("free");
    let handle = kept.detach().await.expect("a handle");
    drop(gone);
    soon("the close", client.close()).await.expect("an answer");
    drop(client);
    let left = claims(&server);
    assert!(!left.is_empty() && left.iter().all(|node| node.contains("/kept/")), "{left:?}");
    let other = connect(server.url()).await.expect("a connection");
    assert!(other.check(&handle).await.expect("an answer").is_some());
    until_empty(&server).await;
    leaves_nothing(&server, [other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_is_dropped_and_not_closed_ends_its_sessions() {
    let server = server().await;
    let client = connect(server.url()).await.expect("a connection");
    let lease = client.mutex("dropped").ttl(LONG).lock().await.expect("free");
    // A renewal writes a record of the session into the store.
    lease.extend(LONG).await.expect("an answer");
    lease.release().await.expect("an answer");
    assert_ne!(counted(&server, "zk_global_sessions"), 0);
    drop(client);
    until("the end of all sessions", async || counted(&server, "zk_global_sessions") == 0).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_describe_a_detached_lease_go_with_it() {
    let server = server_with_long_sessions().await;
    let other = client(server.url()).await;
    for evicts in [false, true] {
        let first = client(server.url()).await;
        let lease = first.mutex("left").ttl(LONG).lock().await.expect("free");
        lease.extend(LONG).await.expect("an answer");
        lease.set_note("left").await.expect("an answer");
        let handle = lease.detach().await.expect("a handle");
        soon("the close", first.close()).await.expect("an answer");
        match evicts {
            true => drop(other.admin().force_release("left", "a test").await.expect("an answer")),
            false => drop(other.release(&handle).await.expect("an answer")),
        }
        leaves_nothing(&server, []).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_made_by_handle_go_with_their_lease() {
    let server = server_with_long_sessions().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let lease = one.mutex("said").ttl(LONG).lock().await.expect("free");
    let taken_up = two.adopt(&lease.handle()).await.expect("it is held");
    taken_up.set_note("by a handle").await.expect("an answer");
    taken_up.extend(LONG * 2).await.expect("an answer");
    drop(taken_up.detach().await.expect("a handle"));
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    assert_eq!(claims(&server), [""; 0]);
    leaves_nothing(&server, [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_whose_client_is_gone_is_kept_by_its_handle_for_longer_than_its_session() {
    let server = server().await;
    let ttl = Duration::from_secs(2);
    let handle = {
        let client = connect(server.url()).await.expect("a connection");
        let lease = client.mutex("kept").ttl(ttl).lock().await.expect("free");
        let handle = lease.detach().await.expect("a handle");
        client.close().await.expect("an answer");
        handle
    };
    let other = client(server.url()).await;
    let lease = other.adopt(&handle).await.expect("it is held");
    assert_eq!(lease.fence(), handle.fence());
    let begun = lease.deadline();
    until("many renewals", async || {
        assert_ne!(lease.state(), LeaseState::Lost);
        lease.deadline().since(begun) > ttl * 3
    })
    .await;
    assert!(
        other.mutex("kept").ttl(LONG).try_lock().await.unless_held().expect("an answer").is_none()
    );
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_empty(&server).await;
    leaves_nothing(&server, [other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopted_lease_outlives_the_ttl_that_its_living_first_client_counts() {
    let server = server().await;
    let ttl = Duration::from_secs(2);
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let beside = one.mutex("beside").ttl(ttl).lock().await.expect("free");
    let handle = one.mutex("kept").ttl(ttl).lock().await.expect("free").detach().await;
    let lease = two.adopt(&handle.expect("a handle")).await.expect("it is held");
    let begun = lease.deadline();
    until("many renewals", async || {
        assert_ne!(lease.state(), LeaseState::Lost);
        assert_ne!(beside.state(), LeaseState::Lost, "the visits took its session");
        lease.deadline().since(begun) > ttl * 3
    })
    .await;
    // No client renews any more, and the first client ends it.
    drop(lease.detach().await.expect("a handle"));
    until("the end of its ttl", async || two.line("kept").await.expect("an answer").is_none())
        .await;
    assert_eq!(beside.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_has_at_most_eight_sessions_and_the_longest_serves_every_longer_ttl() {
    let server = Zookeeper::new().setting("maxSessionTimeout", "600000").start().await;
    let server = server.expect("a server");
    let client = client(server.url()).await;
    let mut leases = Vec::new();
    for seconds in [1, 2, 3, 4, 6, 8, 12, 300, 16, 200] {
        let mutex = client.mutex(format!("ttl:{seconds}")).ttl(Duration::from_secs(seconds));
        leases.push(mutex.lock().await.expect("free"));
    }
    assert_eq!(counted(&server, "zk_global_sessions"), 8);
    assert!(leases[7].time_left() > Duration::from_secs(250), "{:?}", leases[7].time_left());
    assert!(leases.iter().all(leasehold::Lease::is_held));
    for lease in leases {
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    leaves_nothing(&server, [client]).await;
}

/// Longer than a client waits before it takes its session back the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handle_is_good_far_away_although_the_client_that_made_the_lease_lives() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = client(&format!("zk://{}", proxy.address())).await;
    let near = client(server.url()).await;
    let beside = near.mutex("beside").ttl(LONG).lock().await.expect("free");
    let lease = near.mutex("far").ttl(LONG).lock().await.expect("free");
    proxy.delay(Direction::Both, Duration::from_millis(60));
    let taken_up = soon("an answer", far.adopt(&lease.handle())).await.expect("it is held");
    assert_eq!(taken_up.fence(), lease.fence());
    soon("an answer", taken_up.set_note("from afar")).await.expect("it is held");
    soon("an answer", taken_up.extend(LONG)).await.expect("it is held");
    assert_eq!(soon("an answer", taken_up.release()).await.expect("one"), Released::Released);
    assert_ne!(beside.state(), LeaseState::Lost, "the visits took its session");
    assert_eq!(beside.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_beyond_the_longest_session_lasts_as_long_as_that_proves_and_is_renewed() {
    let server = brief_sessions().await;
    let client = client(server.url()).await;
    let lease = client.mutex("long").ttl(LONG).lock().await.expect("free");
    assert!(lease.time_left() <= Duration::from_secs(3), "{:?}", lease.time_left());
    let begun = lease.deadline();
    until("renewals", async || {
        assert_ne!(lease.state(), LeaseState::Lost);
        lease.deadline().since(begun) > Duration::from_secs(5)
    })
    .await;
    let mut waiter = Waiter::start(client.request("long").ttl(LONG));
    until_waiting(&client, "long", 1).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    // Patience is longer than the time that the session proves, so the client confirms the grant.
    let next = waiter.granted().await;
    assert!(next.time_left() <= Duration::from_secs(3), "{:?}", next.time_left());
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f98_ttl_below_the_shortest_session_is_what_the_holder_goes_by() {
    let server = Zookeeper::new().setting("minSessionTimeout", "6000").start().await;
    let server = server.expect("a server");
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let ttl = Duration::from_millis(1_500);
    let mutex = one.mutex("brief").ttl(ttl).options(LockOptions::new().renew(false));
    let lease = mutex.lock().await.expect("free");
    assert!(lease.time_left() <= ttl, "{:?}", lease.time_left());
    let mut waiter = Waiter::start(two.request("brief").ttl(LONG));
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Expired);
    let next = waiter.granted().await;
    assert!(next.fence() > lease.fence());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_nobody_uses_are_removed_by_the_servers() {
    let java = "-Dznode.container.checkIntervalMs=200";
    let server = Zookeeper::new().environment("JAVA_TOOL_OPTIONS", java).start().await;
    let server = server.expect("a server");
    let client = client(server.url()).await;
    let nodes = || counted(&server, "zk_znode_count");
    client.mutex("warm").lock().await.expect("free").release().await.expect("an answer");
    for index in 0..20 {
        let mutex = client.mutex(format!("once:{index}"));
        mutex.lock().await.expect("free").release().await.expect("an answer");
    }
    // Only the store's own node, and the nodes below it, are left.
    until("no lines", async || nodes() <= 12).await;
    // The client makes a removed node again.
    let mutex = client.mutex("once:7");
    mutex.lock().await.expect("free").release().await.expect("an answer");
    leaves_nothing(&server, [client]).await;
}
