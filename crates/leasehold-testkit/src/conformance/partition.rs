//! A holder that cannot reach the store: uncertain, then lost, and never later than the next grant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, SystemClock};
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{LeaseState, LostCause, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until};
use crate::scheduling::SchedulerDelay;

super::cases! {
    transient_renewal_failures_keep_the_lease,
    failing_renewals_make_the_lease_uncertain_until_one_succeeds,
    unanswered_renewals_make_the_lease_uncertain_until_one_succeeds,
    cut_off_holder_is_lost_before_the_next_grant: ttl_per_claim,
    silent_store_loses_the_lease_in_time: ttl_per_claim,
    state_is_never_held_after_safe_until: ttl_per_claim,
    extension_during_a_renewal_keeps_the_lease: ttl_per_claim,
    lost_renewal_answer_is_harmless,
}

async fn transient_renewal_failures_keep_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "partition:transient";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(lab.steady() * 2).lock().await?;
    let fence = lease.fence();
    let begun = Instant::now();
    for _ in 0..3 {
        let before = chaos.calls(Verb::Renew);
        chaos.after(1, Verb::Renew, Trouble::Refuse, 1);
        until("a renewal, a failure and another", async || {
            assert!(lease.is_held(), "after {:?}", begun.elapsed());
            Ok(chaos.calls(Verb::Renew) >= before + 3)
        })
        .await?;
    }
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    assert_eq!(line(&two, name).await?.held[0].fence, fence);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn uncertain_until_healed(lab: &dyn Harness, name: &str, trouble: Trouble) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    let ttl = lab.steady() * 4;
    let lease = client.mutex(name).ttl(ttl).lock().await?;
    assert_eq!(lease.state(), LeaseState::Held);
    chaos.next(Verb::Renew, trouble, u32::MAX);
    until("an uncertain lease", async || Ok(lease.state() != LeaseState::Held)).await?;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    assert!(lease.is_held() && !lease.time_left().is_zero());
    let before = lease.deadline();
    chaos.heal();
    until("a certain lease", async || Ok(lease.state() != LeaseState::Uncertain)).await?;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(lease.deadline() > before);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn failing_renewals_make_the_lease_uncertain_until_one_succeeds(
    lab: Arc<dyn Harness>,
) -> Outcome {
    uncertain_until_healed(&*lab, "partition:uncertain", Trouble::Refuse).await
}

async fn unanswered_renewals_make_the_lease_uncertain_until_one_succeeds(
    lab: Arc<dyn Harness>,
) -> Outcome {
    uncertain_until_healed(&*lab, "partition:unanswered", Trouble::Hang).await
}

async fn cut_off_holder_is_lost_before_the_next_grant(lab: Arc<dyn Harness>) -> Outcome {
    let name = "partition:cut";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(lab.steady() * 2).lock().await?;
    for verb in [Verb::Claim, Verb::Wait, Verb::Renew, Verb::Release] {
        chaos.next(verb, Trouble::Refuse, u32::MAX);
    }
    let mut waiter = Waiter::queue(&two, name, two.request(name).ttl(LONG), 0).await?;
    let next = waiter.granted().await?;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert!(lease.deadline() < SystemClock.now());
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    chaos.heal();
    assert_ne!(lease.release().await?, Released::Released);
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn silent_store_loses_the_lease_in_time(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    chaos.next(Verb::Renew, Trouble::Hang, u32::MAX);
    // Long enough that giving up on one renewal takes much longer than waking a thread.
    let ttl = lab.ttl_floor().max(Duration::from_secs(4));
    let delay = SchedulerDelay::watch();
    let lease = client.mutex("partition:silent").ttl(ttl).lock().await?;
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Unreachable);
    let late = SystemClock.now().since(lease.deadline());
    // The keeper's thread wakes, then the thread that waits for the loss.
    let bound = delay.bound(Duration::from_millis(250), 2);
    assert!(late < bound, "the holder learnt {late:?} too late, more than {bound:?}");
    chaos.heal();
    Ok(())
}

async fn state_is_never_held_after_safe_until(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let lease = client.mutex("partition:honest").ttl(lab.brief()).lock().await?;
    let safe_until = lease.deadline();
    loop {
        let now = SystemClock.now();
        let (state, left) = (lease.state(), lease.time_left());
        if now >= safe_until {
            assert_eq!(state, LeaseState::Lost);
            assert!(left.is_zero() && !lease.is_held());
            break;
        }
        assert_eq!(lease.deadline(), safe_until, "no renewal came through");
        tokio::task::yield_now().await;
    }
    soon("the loss", lease.lost()).await?;
    chaos.heal();
    Ok(())
}

async fn extension_during_a_renewal_keeps_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("partition:extension", lab.long().await?);
    let (client, chaos) = lab.troubled().await?;
    chaos.next(Verb::Renew, Trouble::HangAfter, 1);
    let lease = Arc::new(client.mutex(name).ttl(lab.steady()).lock().await?);
    soon("a renewal under way", chaos.hanging(1)).await?;
    let extended = tokio::spawn({
        let lease = Arc::clone(&lease);
        async move { lease.extend(long).await }
    });
    // The extension is in flight once the lease has its new ttl.
    until("the new ttl", async || Ok(lease.handle().ttl() == long)).await?;
    chaos.heal();
    soon("the extension", extended).await???;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(lease.time_left() > long / 2);
    assert!(line(&client, name).await?.held[0].remaining > long / 2);
    Ok(())
}

async fn lost_renewal_answer_is_harmless(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    chaos.next(Verb::Renew, Trouble::LoseAnswer, 1);
    let lease = client.mutex("partition:answer").ttl(lab.steady()).lock().await?;
    let before = lease.deadline();
    until("a renewal after the lost one", async || Ok(lease.deadline() > before)).await?;
    assert!(chaos.calls(Verb::Renew) >= 2);
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}
