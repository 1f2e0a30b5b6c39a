//! A server whose wall clock is stepped. Another clock counts sessions, so a step has no effect.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{LeaseState, LostCause, Released};
use leasehold_testkit::doctor::found;
use leasehold_testkit::{Clock, Direction, Proxy, Zookeeper};

use super::support::*;

const HOUR: Duration = Duration::from_secs(3_600);
const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_step_of_a_servers_clock_by_an_hour_neither_loses_nor_grants() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Zookeeper::new().clock(&clock).start().await.expect("a server");
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut lease = one.mutex("stepped").ttl(TTL).lock().await.expect("free");
    for ahead in [true, false] {
        let mut waiter = Waiter::start(two.request("stepped").ttl(TTL));
        until_waiting(&one, "stepped", 1).await;
        let moved = if ahead { clock.set_ahead(HOUR) } else { clock.set_behind(HOUR) };
        moved.expect("the clock moves");
        let told = found(server.url(), "clock").await;
        assert!(matches!(told.as_slice(), [(Level::Warning, _)]), "it shows: {told:?}");
        let begun = lease.deadline();
        until("renewals for longer than its session lasts", async || {
            assert_ne!(lease.state(), LeaseState::Lost, "lost by a clock, ahead: {ahead}");
            assert!(waiter.is_waiting(), "two hold at once, ahead: {ahead}");
            lease.deadline().since(begun) > TTL * 3
        })
        .await;
        let fence = lease.fence();
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        lease = waiter.granted().await;
        assert!(lease.fence() > fence, "ahead: {ahead}");
    }
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&server, [one, two]).await;
}

/// A clock that goes back an hour does not lengthen a session by an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_step_of_a_servers_clock_does_not_keep_a_holder_that_is_gone() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Zookeeper::new().clock(&clock).start().await.expect("a server");
    for ahead in [true, false] {
        let proxy = Proxy::start(server.address()).await.expect("a proxy");
        let far = client(&format!("zk://{}", proxy.address())).await;
        let near = client(server.url()).await;
        let lease = far.mutex("gone").ttl(TTL).lock().await.expect("free");
        let mut waiter = Waiter::start(near.request("gone").ttl(TTL));
        until_waiting(&near, "gone", 1).await;
        proxy.block(Direction::Both);
        let moved = if ahead { clock.set_ahead(HOUR) } else { clock.set_behind(HOUR) };
        moved.expect("the clock moves");
        assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
        assert!(waiter.is_waiting(), "two held at once, ahead: {ahead}");
        let next = waiter.granted().await;
        assert!(next.fence() > lease.fence());
        assert_eq!(next.release().await.expect("an answer"), Released::Released);
        proxy.pass().await.expect("it passes");
        leaves_nothing(&server, [far, near]).await;
    }
}
