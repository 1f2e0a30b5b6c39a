//! How to test what your code does when it loses a lock, without waiting for a clock.
//!
//! The memory store can live on a clock that moves only when it is told to, and a test can make
//! a lease expire, a renewal fail, or a holder seem paused.

use std::time::Duration;

use leasehold::memory::Memory;
use leasehold::{Error, LeaseState, LockOptions, LostCause, Name, Result};

const TTL: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    time_runs_out().await?;
    the_store_forgets_the_lease().await?;
    one_renewal_fails().await?;
    a_paused_holder_loses_its_work().await
}

/// Nobody renews, and half a minute passes in no time.
async fn time_runs_out() -> Result<()> {
    let (memory, clock) = Memory::virtual_time();
    let lease = memory
        .client()?
        .mutex("report")
        .ttl(TTL)
        .options(LockOptions::new().renew(false))
        .lock()
        .await?;
    clock.advance(Duration::from_secs(29));
    assert!(lease.is_held());
    clock.advance(Duration::from_secs(1));
    assert!(!lease.is_held());
    println!("after 30 s without renewal: {}", lease.lost().await);
    Ok(())
}

/// The lease is gone in the store, and its holder learns of it at the next renewal.
async fn the_store_forgets_the_lease() -> Result<()> {
    let (memory, clock) = Memory::virtual_time();
    let lease = memory.client()?.mutex("report").ttl(TTL).lock().await?;
    memory.expire_now(&Name::new("report")?);
    assert!(lease.is_held(), "it cannot know yet: this is what fences are for");
    clock.advance(TTL * 6 / 10);
    let cause = lease.lost().await;
    assert_eq!(cause, LostCause::Removed);
    println!("after expire_now and a renewal: {cause}");
    Ok(())
}

/// One failed renewal is no loss: the next one saves the lease.
async fn one_renewal_fails() -> Result<()> {
    let (memory, clock) = Memory::virtual_time();
    let lease = memory.client()?.mutex("report").ttl(TTL).lock().await?;
    memory.fail_next_renewal(&Name::new("report")?);
    clock.advance(TTL * 6 / 10);
    until(|| lease.state() == LeaseState::Uncertain).await;
    println!("after a failed renewal: {:?}, {:?} left", lease.state(), lease.time_left());
    clock.advance(Duration::from_secs(3));
    until(|| lease.state() == LeaseState::Held).await;
    println!("after the next one: {:?}", lease.state());
    Ok(())
}

/// Work under a lease that cannot be kept is dropped at its next await.
async fn a_paused_holder_loses_its_work() -> Result<()> {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client()?;
    memory.pause(client.holder());
    let work = client.with("report", async |_lease| std::future::pending::<()>().await);
    let time = async {
        until(|| client.stats().active == 1).await;
        clock.advance(TTL);
    };
    let (outcome, ()) = tokio::join!(work, time);
    let error = outcome.expect_err("the work never ends by itself");
    assert!(matches!(error, Error::Lost { .. }));
    println!("after a pause of 30 s: {error}");
    Ok(())
}

/// Renewals happen on the client's own thread, so their effect has to be awaited.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
