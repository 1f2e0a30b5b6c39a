//! A server whose wall clock is stepped or stands still. Redis ends keys by it.
//!
//! Steps of a client's wall clock (F42) are tested with the command, which can be put on a clock
//! of its own.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{LeaseState, LostCause};
use leasehold_testkit::{Clock, Server, servers};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

async fn clocked() -> (Clock, Server) {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = servers::Redis::new().clock(&clock).start().await.expect("a server starts");
    (clock, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_server_clock_that_jumps_ahead_frees_locks_early_and_keeps_fences_in_order() {
    let (clock, server) = clocked().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(4)).lock().await.expect("free");
    clock.set_ahead(HOUR).expect("the clock moves");
    // Both believe to hold now. That is what fences are for, and what the page says.
    let next = two.mutex("report").ttl(LONG).try_lock().await.expect("an answer").expect("free");
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await;
    assert_eq!(cause, LostCause::TakenBy(two.holder().clone()), "found by its next renewal");
    let findings = two.examine().await.expect("an answer");
    let finding = about(&findings, "clock");
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.found.contains("ahead of"), "{finding:?}");
    // Back again: fences rise although the clock fell by an hour.
    clock.set_ahead(Duration::ZERO).expect("the clock moves");
    two.force_release("report", "it would last an hour").await.expect("an answer");
    let last = two.mutex("report").lock().await.expect("free");
    assert!(last.fence() > next.fence(), "{} after {}", last.fence(), next.fence());
    let findings = two.examine().await.expect("an answer");
    assert_eq!(about(&findings, "clock").level, Level::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_server_clock_that_falls_back_frees_nothing_early() {
    let (clock, server) = clocked().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    clock.set_behind(HOUR).expect("the clock moves");
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert!(lease.is_held() && waiter.is_waiting());
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f47_server_clock_that_stands_still_expires_nothing_and_doctor_tells() {
    let (clock, server) = clocked().await;
    let (one, two) = (client(server.url()).await, client(server.url()).await);
    let mutex = one.mutex("report").ttl(Duration::from_millis(500)).renew(false);
    let lease = mutex.lock().await.expect("free");
    clock.freeze();
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Expired);
    assert_eq!(lease.state(), LeaseState::Lost, "the holder counts on its own clock");
    until("a word of the clock", async || {
        let findings = two.examine().await.expect("an answer");
        about(&findings, "clock").level == Level::Warning
    })
    .await;
    assert!(two.mutex("report").try_lock().await.expect("an answer").is_none(), "still there");
    clock.thaw();
    let next = soon("a grant", two.mutex("report").lock()).await.expect("free");
    assert!(next.fence() > lease.fence());
}
