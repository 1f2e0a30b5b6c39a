//! Real processes that are killed, stopped and continued while they hold or wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Handle, LeaseState, Mode, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{
    EVENT_MAX, Outcome, Waiter, ended, held, line, state, until, until_free, until_waiting,
};
use crate::scheduling::SchedulerDelay;

/// Long enough for another process to adopt a lease that a killed process left. Everything else
/// that the killed process had in the store stays as long.
const DETACHED: Duration = Duration::from_secs(20);

super::cases! {
    processes_exclude_each_other: across_processes,
    processes_wake_each_other_without_polling: across_processes,
    f01_killed_holder_is_followed_by_the_next_waiter: across_processes & ttl_per_claim,
    f02_paused_holder_finds_its_lease_lost: across_processes & ttl_per_claim,
    f03_short_pause_keeps_the_lease: across_processes,
    f112_killed_head_waiter_does_not_block_the_line: across_processes & fifo & ttl_per_claim,
    f115_waiter_killed_at_the_hand_off_is_passed_over: across_processes & fifo & ttl_per_claim,
    killed_reader_frees_only_its_share: across_processes & shared & ttl_per_claim,
    permits_of_a_killed_holder_come_back: across_processes & permits & ttl_per_claim,
    lease_outlives_the_process_that_detached_it: across_processes & detach,
}

async fn processes_exclude_each_other(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:exclude";
    let client = lab.client().await?;
    let mut worker = lab.process(name, Mode::Exclusive, LONG)?;
    let fence = held(&mut worker).await?;
    assert!(client.mutex(name).try_lock().await.unless_held()?.is_none());
    assert_eq!(line(&client, name).await?.held[0].fence, fence);
    worker.send_line("release")?;
    assert_eq!(worker.wait_for_line("released ", EVENT_MAX).await?, "Released");
    assert!(
        client.mutex(name).try_lock().await.unless_held()?.expect("it is free").fence() > fence
    );
    ended(&mut worker).await
}

async fn processes_wake_each_other_without_polling(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:bell";
    let (client, chaos) = lab.troubled().await?;
    let mut worker = lab.process(name, Mode::Exclusive, LONG)?;
    held(&mut worker).await?;
    // Without heartbeats nothing but the other process's bell can wake this one in time.
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let mut waiter = Waiter::queue(&client, name, client.request(name).ttl(LONG), 0).await?;
    worker.send_line("release")?;
    waiter.served().await?;
    assert!(chaos.calls(Verb::Claim) <= 2, "one claim to join, at most one to confirm");
    ended(&mut worker).await
}

async fn f01_killed_holder_is_followed_by_the_next_waiter(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:killed";
    let client = lab.client().await?;
    let ttl = lab.steady();
    let mut worker = lab.process(name, Mode::Exclusive, ttl)?;
    let fence = held(&mut worker).await?;
    let mut waiter = Waiter::queue(&client, name, client.request(name).ttl(LONG), 0).await?;
    let delay = SchedulerDelay::watch();
    worker.kill()?;
    let killed = Instant::now();
    let lease = waiter.granted().await?;
    assert!(lease.fence() > fence);
    // The store, the waiter's client and its task run one after the other, some of them twice.
    let bound = delay.bound(ttl + Duration::from_secs(5), 8);
    assert!(killed.elapsed() <= bound, "granted {:?} after the death", killed.elapsed());
    Ok(())
}

async fn f02_paused_holder_finds_its_lease_lost(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:paused";
    let client = lab.client().await?;
    let mut worker = lab.process(name, Mode::Exclusive, lab.steady())?;
    let fence = held(&mut worker).await?;
    worker.stop_process()?;
    // The test asks before the process goes on, so that the process sees the question first.
    worker.send_line("state")?;
    let lease = super::support::soon("a grant", client.mutex(name).ttl(LONG).lock()).await??;
    worker.continue_process()?;
    assert_eq!(worker.wait_for_line("state ", EVENT_MAX).await?, "Lost");
    worker.send_line("release")?;
    let released = worker.wait_for_line("released ", EVENT_MAX).await?;
    assert_ne!(released, "Released");
    assert!(lease.fence() > fence && lease.is_held());
    assert_eq!(line(&client, name).await?.held[0].fence, lease.fence());
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn f03_short_pause_keeps_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:short-pause";
    let client = lab.client().await?;
    let ttl = lab.steady() * 2;
    let mut worker = lab.process(name, Mode::Exclusive, ttl)?;
    let fence = held(&mut worker).await?;
    for _ in 0..3 {
        worker.stop_process()?;
        tokio::time::sleep(ttl / 5).await;
        worker.continue_process()?;
        assert_ne!(state(&mut worker).await?, "Lost");
        assert!(client.mutex(name).try_lock().await.unless_held()?.is_none());
    }
    let asked = Instant::now();
    until("renewals after the pauses", async || Ok(asked.elapsed() > ttl)).await?;
    assert_eq!(state(&mut worker).await?, "Held");
    assert_eq!(line(&client, name).await?.held[0].fence, fence);
    worker.kill()?;
    until_free(&client, name).await
}

async fn f112_killed_head_waiter_does_not_block_the_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:head";
    let client = lab.client().await?;
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let mut head = lab.process(name, Mode::Exclusive, lab.steady())?;
    until_waiting(&client, name, 1).await?;
    let mut second = lab.process(name, Mode::Exclusive, LONG)?;
    until_waiting(&client, name, 2).await?;
    let mut third = Waiter::queue(&client, name, client.request(name).ttl(LONG), 2).await?;
    head.kill()?;
    let fence = lease.fence();
    lease.release().await?;
    let next = held(&mut second).await?;
    assert!(next > fence.as_u64());
    second.send_line("release")?;
    assert!(third.granted().await?.fence() > next);
    ended(&mut second).await
}

async fn f115_waiter_killed_at_the_hand_off_is_passed_over(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:hand-off";
    let client = lab.client().await?;
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let mut head = lab.process(name, Mode::Exclusive, lab.steady())?;
    until_waiting(&client, name, 1).await?;
    let mut second = Waiter::queue(&client, name, client.request(name).ttl(LONG), 1).await?;
    // A stopped process cannot take the hand-off; then it dies with the hand-off in flight.
    head.stop_process()?;
    lease.release().await?;
    head.kill()?;
    assert_eq!(second.granted().await?.state(), LeaseState::Held);
    Ok(())
}

async fn killed_reader_frees_only_its_share(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:reader";
    let client = lab.client().await?;
    let read = client.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?;
    let mut worker = lab.process(name, Mode::Shared, lab.steady())?;
    held(&mut worker).await?;
    let mut writer = Waiter::queue(&client, name, client.request(name).ttl(LONG), 0).await?;
    worker.kill()?;
    until("the end of one reader", async || {
        Ok(client.line(name).await?.is_some_and(|line| line.held.len() == 1))
    })
    .await?;
    assert!(writer.is_waiting() && read.is_held());
    read.release().await?;
    writer.served().await?;
    Ok(())
}

async fn permits_of_a_killed_holder_come_back(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:permits";
    let client = lab.client().await?;
    let mut worker = lab.process(name, Mode::Permits { take: 2, of: 3 }, lab.steady())?;
    held(&mut worker).await?;
    let permits = |take| client.request(name).mode(Mode::Permits { take, of: 3 }).ttl(LONG);
    let one = permits(1).acquire().await?;
    let mut waiter = Waiter::queue(&client, name, permits(2), 0).await?;
    worker.kill()?;
    let two = waiter.granted().await?;
    assert!(one.is_held() && two.is_held());
    assert!(permits(1).try_acquire().await.unless_held()?.is_none());
    Ok(())
}

async fn lease_outlives_the_process_that_detached_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "crash:detached";
    let client = lab.client().await?;
    let mut worker = lab.process(name, Mode::Exclusive, DETACHED)?;
    let fence = held(&mut worker).await?;
    worker.send_line("detach")?;
    let handle: Handle = worker.wait_for_line("handle ", EVENT_MAX).await?.parse()?;
    worker.kill()?;
    assert!(client.mutex(name).try_lock().await.unless_held()?.is_none());
    let lease = client.adopt(&handle).await?;
    assert_eq!(lease.fence(), fence);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}
