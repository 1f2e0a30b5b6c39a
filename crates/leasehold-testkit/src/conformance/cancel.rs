//! Cancelling: a future that is dropped leaves no claim behind, wherever it was.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Released;
use leasehold::layer::chaos::{Trouble, Verb};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, soon, until_free, until_waiting};

super::cases! {
    f114_cancelled_waiter_leaves_the_line,
    cancelled_waiter_does_not_hold_up_the_others: fifo,
    waiter_cancelled_at_the_hand_off_passes_it_on: fifo,
    claim_cancelled_after_it_was_granted_is_released,
    claims_cancelled_at_any_time_leave_nothing,
    claim_given_up_before_it_was_sent_leaves_nothing,
    cancelled_release_is_finished,
    cancelled_work_gives_its_lease_back,
}

async fn f114_cancelled_waiter_leaves_the_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:waiter";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    drop(waiter);
    until_waiting(&one, name, 0).await?;
    assert_eq!(two.stats().waiting, 0);
    assert!(lease.is_held());
    assert_eq!(lease.release().await?, Released::Released);
    assert!(one.line(name).await?.is_none());
    Ok(())
}

async fn cancelled_waiter_does_not_hold_up_the_others(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:middle";
    let [one, two, three, four] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let mut third = Waiter::queue(&one, name, four.request(name).ttl(LONG), 2).await?;
    drop(second);
    until_waiting(&one, name, 2).await?;
    lease.release().await?;
    let lease = first.granted().await?;
    assert!(third.is_waiting());
    lease.release().await?;
    third.served().await?;
    Ok(())
}

async fn waiter_cancelled_at_the_hand_off_passes_it_on(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:hand-off";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let three = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    // The bell will ring and the store has granted the claim, but its owner does not hear of it.
    chaos.next(Verb::Wait, Trouble::HangAfter, 1);
    let first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    lease.release().await?;
    soon("the bell to hang", chaos.hanging(1)).await?;
    drop(first);
    second.served().await?;
    chaos.heal();
    Ok(())
}

async fn claim_cancelled_after_it_was_granted_is_released(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:granted";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::HangAfter, 1);
    let asked = Waiter::start(one.request(name).ttl(LONG));
    soon("the claim to hang", chaos.hanging(1)).await?;
    assert_eq!(super::support::line(&two, name).await?.held.len(), 1);
    drop(asked);
    until_free(&two, name).await?;
    assert_eq!(one.stats().active, 0);
    Ok(())
}

async fn claims_cancelled_at_any_time_leave_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:any-time";
    let [one, two] = lab.clients().await?;
    let held = one.mutex(name).ttl(LONG).lock().await?;
    for step in 0..60 {
        let request = two.request(name).ttl(LONG);
        let limit = Duration::from_micros(step * step * 2);
        let waited = tokio::time::timeout(limit, request.acquire()).await;
        assert!(waited.is_err(), "the name is held, and nobody waits for ever");
    }
    until_waiting(&one, name, 0).await?;
    assert_eq!(held.release().await?, Released::Released);
    for step in 0..60 {
        let request = two.request(name).ttl(LONG);
        let limit = Duration::from_micros(step * step * 2);
        // Granted or not, the lease is dropped at once.
        drop(tokio::time::timeout(limit, request.acquire()).await);
    }
    until_free(&one, name).await?;
    assert_eq!((two.stats().active, two.stats().waiting), (0, 0));
    Ok(())
}

async fn claim_given_up_before_it_was_sent_leaves_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:unsent";
    let two = lab.client().await?;
    // On a thread of its own, on which the client sends nothing while the test watches it.
    let gave_up = tokio::task::spawn_blocking(move || -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let one = lab.client().await?;
            let mutex = one.mutex(name).ttl(LONG);
            mutex.lock().await?.release().await?;
            {
                let mut claim = pin!(mutex.lock());
                drop(futures_util::poll!(&mut claim));
            }
            // A release that does not wait for the claim overtakes it now.
            std::thread::sleep(Duration::from_millis(100));
            one.line(name).await?;
            until_free(&one, name).await
        })
    });
    gave_up.await.expect("no panic")?;
    until_free(&two, name).await
}

async fn cancelled_release_is_finished(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:release";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Release, Trouble::Hang, 1);
    let release = tokio::spawn(lease.release());
    soon("the release to hang", chaos.hanging(1)).await?;
    release.abort();
    until_free(&two, name).await
}

async fn cancelled_work_gives_its_lease_back(lab: Arc<dyn Harness>) -> Outcome {
    let name = "cancel:work";
    let [one, two] = lab.clients().await?;
    let work = tokio::spawn({
        let mutex = one.mutex(name).ttl(LONG);
        async move { mutex.with(async |_| std::future::pending::<()>().await).await }
    });
    super::support::until("the work to begin", async || Ok(two.line(name).await?.is_some()))
        .await?;
    work.abort();
    until_free(&two, name).await
}
