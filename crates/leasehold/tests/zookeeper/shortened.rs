//! Effects of a client with one lease's handle on a session that other leases count on.

use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Client, Handle, Lease, LeaseState, LockOptions, Released};
use leasehold_testkit::{Direction, Proxy, Server, Zookeeper};

use super::support::*;

const BRIEF: Duration = Duration::from_secs(2);
/// Many times as long as a brief ttl, and short enough for a test to wait.
const LONGER: Duration = Duration::from_secs(12);

/// A server that allows sessions as brief as those here.
async fn server() -> Server {
    let server = Zookeeper::new().setting("tickTime", "500").setting("minSessionTimeout", "1000");
    server.setting("maxSessionTimeout", "600000").start().await.expect("a server")
}

/// A client that can be cut off, one that has a handle of its lease, and one that waits.
struct Scene {
    server: Server,
    proxy: Proxy,
    far: Client,
    visitor: Client,
    next: Client,
}

impl Scene {
    async fn start() -> Self {
        let server = server().await;
        let proxy = Proxy::start(server.address()).await.expect("a proxy");
        let far = client(&format!("zk://{}", proxy.address())).await;
        let [visitor, next] = [client(server.url()).await, client(server.url()).await];
        Self { server, proxy, far, visitor, next }
    }

    /// Cuts the holder off at the moment at which the visitor adopts `visited` for a shorter time.
    /// Checks that no claim is granted while the holder believes in its lease.
    async fn loses_before_the_next(self, lease: Lease, visited: Handle) {
        let Self { server, proxy, far, visitor, next } = self;
        let mut waiter = Waiter::start(next.request("believed").ttl(LONG));
        until_waiting(&next, "believed", 1).await;
        proxy.block(Direction::Both);
        let kept = visitor.adopt_at_most(&visited, BRIEF).await.expect("it is held");
        drop(kept.detach().await.expect("a handle"));
        let granted = waiter.granted().await;
        assert_eq!(lease.state(), LeaseState::Lost, "two believe that they hold it");
        assert!(granted.fence() > lease.fence());
        assert_eq!(granted.release().await.expect("an answer"), Released::Released);
        proxy.pass().await.expect("it passes");
        leaves_nothing(&server, [far, visitor, next]).await;
    }
}

fn has_claim(server: &Server, name: &str) -> bool {
    claims(server).iter().any(|node| node.contains(&format!("/{name}/")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_was_left_outlives_another_of_its_client_that_is_kept_briefly() {
    let server = server().await;
    let first = client(server.url()).await;
    let left = async |name| {
        let lease = first.mutex(name).ttl(LONG).lock().await.expect("free");
        lease.detach().await.expect("a handle")
    };
    let (brief, stays) = (left("brief").await, left("stays").await);
    soon("the close", first.close()).await.expect("an answer");
    let other = client(server.url()).await;
    let kept = other.adopt_at_most(&brief, BRIEF).await.expect("it is held");
    drop(kept.detach().await.expect("a handle"));
    // A new claim is on a session of that length, and its end shows that the time is over.
    let clock = client(server.url()).await;
    let ticks = clock.mutex("clock").ttl(BRIEF * 2).lock().await.expect("free");
    drop(ticks.detach().await.expect("a handle"));
    soon("the close", clock.close()).await.expect("an answer");
    until("the end of what is as brief", async || !has_claim(&server, "clock")).await;
    assert!(has_claim(&server, "stays"), "it ended with the other");
    assert!(other.check(&stays).await.expect("an answer").is_some());
    for handle in [brief, stays] {
        other.release(&handle).await.expect("an answer");
    }
    leaves_nothing(&server, [other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_was_left_alone_does_not_end_sooner_by_a_renewal_with_a_shorter_ttl() {
    let server = server().await;
    let first = client(server.url()).await;
    let lease = first.mutex("alone").ttl(LONGER).lock().await.expect("free");
    let handle = lease.detach().await.expect("a handle");
    soon("the close", first.close()).await.expect("an answer");
    let other = client(server.url()).await;
    let kept = other.adopt_at_most(&handle, BRIEF).await.expect("it is held");
    let safe_until = kept.deadline();
    drop(kept.detach().await.expect("a handle"));
    // A new claim is on a session that is long enough for twice the shorter ttl.
    let clock = client(server.url()).await;
    let ticks = clock.mutex("clock").ttl(BRIEF * 2).lock().await.expect("free");
    drop(ticks.detach().await.expect("a handle"));
    soon("the close", clock.close()).await.expect("an answer");
    until("the end of what is as brief", async || !has_claim(&server, "clock")).await;
    assert!(has_claim(&server, "alone"), "it ended sooner");
    assert!(safe_until > SystemClock.now(), "its owner was told so");
    other.release(&handle).await.expect("an answer");
    leaves_nothing(&server, [other]).await;
}

/// The client that holds both is cut off at the moment at which the visitor adopts one of them for
/// a shorter time. It still believes in the other for as long as it knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_that_is_cut_off_is_lost_before_the_next_although_its_session_was_taken_up_briefly()
{
    let scene = Scene::start().await;
    let visited = scene.far.mutex("visited").ttl(LONGER).lock().await.expect("free");
    let lease = scene.far.mutex("believed").ttl(LONGER).lock().await.expect("free");
    scene.loses_before_the_next(lease, visited.handle()).await;
}

/// The same, where the session grew after the adopted claim was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_counts_on_what_its_session_was_stretched_to() {
    let scene = Scene::start().await;
    let visited = scene.far.mutex("visited").ttl(BRIEF).lock().await.expect("free");
    let lease = scene.far.mutex("believed").ttl(BRIEF).lock().await.expect("free");
    lease.extend(LONGER).await.expect("it is held");
    scene.loses_before_the_next(lease, visited.handle()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_of_a_session_goes_with_the_last_lease_that_was_left_on_it() {
    let server = server().await;
    let other = client(server.url()).await;
    for evicts in [false, true] {
        let first = client(server.url()).await;
        let mut handles = Vec::new();
        for name in ["one", "two", "three"] {
            let lease = first.mutex(name).ttl(LONG).lock().await.expect("free");
            lease.extend(LONG).await.expect("an answer");
            handles.push(lease.detach().await.expect("a handle"));
        }
        soon("the close", first.close()).await.expect("an answer");
        for handle in handles {
            match evicts {
                true => drop(
                    other.admin().force_release(handle.name(), "a test").await.expect("an answer"),
                ),
                false => drop(other.release(&handle).await.expect("an answer")),
            }
        }
        leaves_nothing(&server, []).await;
    }
    leaves_nothing(&server, [other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_whose_last_lease_others_gave_back_ends_with_its_client() {
    let server = server().await;
    let [first, other] = [client(server.url()).await, client(server.url()).await];
    let before = counted(&server, "zk_global_sessions");
    let lease = first.mutex("given back").ttl(LONG).lock().await.expect("free");
    let handle = lease.detach().await.expect("a handle");
    assert_eq!(other.release(&handle).await.expect("an answer"), Released::Released);
    soon("the close", first.close()).await.expect("an answer");
    until("its end", async || counted(&server, "zk_global_sessions") < before).await;
    leaves_nothing(&server, [other]).await;
}

/// Servers that heard of the session before, or a new leader, may know only its first timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_of_a_left_lease_counts_on_no_more_than_its_first_session() {
    let server = server().await;
    let first = client(server.url()).await;
    let lease = first.mutex("left").ttl(BRIEF * 2).lock().await.expect("free");
    let handle = lease.detach().await.expect("a handle");
    soon("the close", first.close()).await.expect("an answer");
    let other = client(server.url()).await;
    let kept = other.adopt_with(&handle, LONG).await.expect("it is held");
    assert!(kept.time_left() <= BRIEF * 4, "{:?}", kept.time_left());
    let begun = kept.deadline();
    until("renewals", async || {
        assert_ne!(kept.state(), LeaseState::Lost);
        kept.deadline().since(begun) > BRIEF * 4
    })
    .await;
    assert_eq!(kept.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [other]).await;
}

/// The release of one lease does not remove the record that its session grew. The client has not
/// counted that lease yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_grew_is_known_to_have_grown_after_a_lease_on_it_was_given_back_by_others() {
    let scene = Scene::start().await;
    let Scene { far, visitor, .. } = &scene;
    let lease = far.mutex("believed").ttl(BRIEF).lock().await.expect("free");
    lease.extend(LONGER).await.expect("it is held");
    let beside = far
        .mutex("beside")
        .ttl(BRIEF)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("free");
    assert_eq!(visitor.release(&beside.handle()).await.expect("an answer"), Released::Released);
    let handle = lease.handle();
    scene.loses_before_the_next(lease, handle).await;
}
