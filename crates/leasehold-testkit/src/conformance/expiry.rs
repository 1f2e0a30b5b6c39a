//! Time: leases that expire, leases that are kept, and how their holders learn of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::claim::{Mode, Standing};
use leasehold::layer::chaos::Verb;
use leasehold::{Error, LeaseState, LockOptions, LostCause, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, renewal, soon, until, until_free};
use crate::scheduling::SchedulerDelay;

super::cases! {
    lease_without_renewal_ends_and_says_so: ttl_per_claim,
    lease_is_renewed_past_its_ttl,
    renewal_keeps_the_fence,
    expired_claim_is_not_renewed_back_to_life: ttl_per_claim,
    expired_claim_is_not_claimed_back_to_life: ttl_per_claim,
    extension_counts_in_the_store: ttl_per_claim,
    extension_of_a_lost_lease_is_an_error: ttl_per_claim,
    lease_is_given_back_at_hold_at_most,
    hold_at_least_keeps_the_name_closed_then_frees_it: ttl_per_claim & detach,
    hold_at_least_does_not_lengthen_a_longer_hold: ttl_per_claim & detach,
    store_keeps_a_claim_for_its_whole_ttl: ttl_per_claim,
    lease_is_kept_after_a_wait_whatever_its_ttl: ttl_per_claim,
    unrenewed_lease_has_its_whole_ttl_after_a_wait: ttl_per_claim,
    lock_delay_keeps_a_lost_lock_closed: ttl_per_claim,
    lock_delay_does_not_keep_what_is_given_back,
}

async fn lease_without_renewal_ends_and_says_so(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:no-renewal";
    let [one, two] = lab.clients().await?;
    let (delay, begun) = (SchedulerDelay::watch(), Instant::now());
    let lease =
        one.mutex(name).ttl(lab.steady()).options(LockOptions::new().renew(false)).lock().await?;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(lease.time_left() > Duration::ZERO);
    let mut waiter = Waiter::start(two.request(name).ttl(LONG));
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Expired);
    let (took, bound) = (begun.elapsed(), delay.bound(lab.steady() + Duration::from_secs(5), 8));
    assert!(took <= bound, "it took {took:?}, more than {bound:?}");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.time_left(), Duration::ZERO);
    assert!(waiter.granted().await?.fence() > lease.fence());
    until("the loss to be counted", async || Ok(one.stats().lost == 1)).await?;
    assert_eq!((one.stats().expired, one.stats().active), (1, 0));
    Ok(())
}

async fn lease_is_renewed_past_its_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:renewed";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let (fence, begun) = (lease.fence(), Instant::now());
    until("two renewals, and more than the ttl", async || {
        assert!(lease.is_held(), "{:?} after {:?}", lease.state(), begun.elapsed());
        assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
        Ok(begun.elapsed() > lab.steady() * 3 / 2 && chaos.calls(Verb::Renew) >= 2)
    })
    .await?;
    assert_eq!(line(&two, name).await?.held[0].fence, fence);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn renewal_keeps_the_fence(lab: Arc<dyn Harness>) -> Outcome {
    let long = lab.long().await?;
    let engine = lab.engine().await?;
    let asked = claim("expiry:fence", Mode::Exclusive, long)?;
    let Standing::Held { fence, .. } = engine.claim(&asked).await? else { panic!("it is free") };
    for _ in 0..3 {
        let answers = engine.renew(&[renewal(&asked)]).await?;
        let [Ok(Standing::Held { fence: renewed, remaining })] = answers.as_slice() else {
            panic!("renewed to {answers:?}");
        };
        assert_eq!(*renewed, fence);
        assert!(*remaining <= long && *remaining > long / 2, "{remaining:?}");
    }
    engine.release(&[asked.key]).await?;
    Ok(())
}

async fn expired_claim_is_not_renewed_back_to_life(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:resurrection";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let mut asked = claim(name, Mode::Exclusive, lab.brief())?;
    assert!(matches!(engine.claim(&asked).await?, Standing::Held { .. }));
    until_free(&client, name).await?;
    asked.ttl = LONG;
    let answers = engine.renew(&[renewal(&asked)]).await?;
    assert!(matches!(answers.as_slice(), [Ok(Standing::Out { by: None, .. })]), "{answers:?}");
    assert!(client.line(name).await?.is_none());
    let lease = client.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it is free");
    let answers = engine.renew(&[renewal(&asked)]).await?;
    let [Ok(Standing::Out { by: Some(by), .. })] = answers.as_slice() else {
        panic!("renewed to {answers:?}");
    };
    assert_eq!(by, client.holder());
    assert_eq!(engine.release(&[asked.key]).await?, [Released::TakenBy(by.clone())]);
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn expired_claim_is_not_claimed_back_to_life(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:again";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let mut asked = claim(name, Mode::Exclusive, lab.brief())?;
    let Standing::Held { fence, .. } = engine.claim(&asked).await? else { panic!("it is free") };
    until_free(&client, name).await?;
    asked.ttl = LONG;
    let Standing::Held { fence: later, .. } = engine.claim(&asked).await? else {
        panic!("it is free");
    };
    assert!(later > fence, "a claim that left and came back is a new one");
    engine.release(&[asked.key]).await?;
    Ok(())
}

async fn extension_counts_in_the_store(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("expiry:extension", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let fence = lease.fence();
    lease.extend(long).await?;
    assert!(lease.time_left() > long / 2, "{:?}", lease.time_left());
    let seen = line(&two, name).await?;
    assert!(seen.held[0].remaining > long / 2, "{seen:?}");
    assert_eq!((seen.held[0].fence, lease.fence()), (fence, fence));
    Ok(())
}

async fn extension_of_a_lost_lease_is_an_error(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:late-extension";
    let client = lab.client().await?;
    let lease =
        client.mutex(name).ttl(lab.brief()).options(LockOptions::new().renew(false)).lock().await?;
    soon("the loss", lease.lost()).await?;
    let extended = soon("the answer", lease.extend(LONG)).await?;
    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    assert!(!lease.is_held());
    until_free(&client, name).await
}

async fn lease_is_given_back_at_hold_at_most(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:max-hold";
    let [one, two] = lab.clients().await?;
    let span = Duration::from_millis(200);
    let begun = Instant::now();
    let lease =
        one.mutex(name).ttl(LONG).options(LockOptions::new().hold_at_most(span)).lock().await?;
    let mut waiter = Waiter::start(two.request(name).ttl(LONG));
    assert_eq!(soon("the end of the hold", lease.lost()).await?, LostCause::HoldAtMost);
    assert!(begun.elapsed() >= span);
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(waiter.granted().await?.fence() > lease.fence());
    Ok(())
}

async fn hold_at_least_keeps_the_name_closed_then_frees_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:at-least";
    let [one, two] = lab.clients().await?;
    let span = lab.steady();
    let begun = Instant::now();
    let lease =
        one.mutex(name).ttl(LONG).options(LockOptions::new().hold_at_least(span)).lock().await?;
    let fence = lease.fence();
    assert_eq!(lease.release().await?, Released::Released);
    let seen = line(&two, name).await?;
    assert!(seen.held[0].fence == fence && seen.held[0].remaining <= span, "{seen:?}");
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    let next = soon("the end of the hold", two.mutex(name).ttl(LONG).lock()).await??;
    assert!(begun.elapsed() >= span, "freed after {:?}", begun.elapsed());
    assert!(next.fence() > fence);
    Ok(())
}

async fn hold_at_least_does_not_lengthen_a_longer_hold(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:longer";
    let client = lab.client().await?;
    let span = Duration::from_millis(50);
    let lease =
        client.mutex(name).ttl(LONG).options(LockOptions::new().hold_at_least(span)).lock().await?;
    let begun = Instant::now();
    until("the least hold to pass", async || Ok(begun.elapsed() > span)).await?;
    assert_eq!(lease.release().await?, Released::Released);
    assert!(client.line(name).await?.is_none());
    Ok(())
}

async fn store_keeps_a_claim_for_its_whole_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:whole";
    let (client, engine) = (lab.client().await?, lab.engine().await?);
    let asked = claim(name, Mode::Exclusive, lab.brief())?;
    let sent = Instant::now();
    let Standing::Held { remaining, .. } = engine.claim(&asked).await? else { panic!("free") };
    assert!(remaining <= lab.brief(), "{remaining:?}");
    until_free(&client, name).await?;
    assert!(
        sent.elapsed() >= remaining,
        "freed {:?} after a grant of {remaining:?}",
        sent.elapsed()
    );
    Ok(())
}

async fn lease_is_kept_after_a_wait_whatever_its_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let mut granted = Vec::new();
    // From the end of patience to far beyond it. A store keeps a waiting claim for less time than a
    // lease, so the first renewal must come before its patience is over.
    for ttl in [10, 60, 399, 600, 990, 86_400].map(Duration::from_secs) {
        let name = format!("expiry:waited:{}", ttl.as_secs());
        let lease = one.mutex(&name).ttl(LONG).lock().await?;
        let mut waiter = Waiter::queue(&one, &name, two.request(&name).ttl(ttl), 0).await?;
        lease.release().await?;
        let lease = waiter.granted().await?;
        granted.push((ttl, lease.deadline(), lease));
    }
    for (ttl, before, lease) in granted {
        until("the whole ttl, or the loss", async || {
            let whole = lease.deadline() > before || lease.time_left() > ttl / 2;
            Ok(whole || !lease.is_held())
        })
        .await?;
        assert!(lease.is_held(), "a lease of {ttl:?} was lost before its first renewal");
        assert_eq!(lease.release().await?, Released::Released);
    }
    Ok(())
}

async fn unrenewed_lease_has_its_whole_ttl_after_a_wait(lab: Arc<dyn Harness>) -> Outcome {
    let (name, long) = ("expiry:waited-unrenewed", lab.long().await?);
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(long).lock().await?;
    let request = two.request(name).ttl(long).options(LockOptions::new().renew(false));
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    lease.release().await?;
    let lease = waiter.granted().await?;
    assert!(lease.time_left() > long / 2, "{:?}", lease.time_left());
    assert!(line(&one, name).await?.held[0].remaining > long / 2);
    Ok(())
}

async fn lock_delay_keeps_a_lost_lock_closed(lab: Arc<dyn Harness>) -> Outcome {
    let name = "expiry:delay";
    let [one, two] = lab.clients().await?;
    // As long as a margin may be, at least: the delay must not be mistaken for one.
    let (ttl, delay) = (lab.brief(), lab.steady());
    let begun = Instant::now();
    let lease = one
        .mutex(name)
        .ttl(ttl)
        .options(LockOptions::new().lock_delay(delay).renew(false))
        .lock()
        .await?;
    let mut waiter = Waiter::queue(&two, name, two.request(name).ttl(LONG), 0).await?;
    assert_eq!(soon("the loss", lease.lost()).await?, LostCause::Expired);
    assert!(waiter.granted().await?.fence() > lease.fence());
    assert!(begun.elapsed() >= ttl + delay * 9 / 10, "after {:?}", begun.elapsed());
    Ok(())
}

async fn lock_delay_does_not_keep_what_is_given_back(lab: Arc<dyn Harness>) -> Outcome {
    let (name, half) = ("expiry:no-delay", lab.long().await? / 2);
    let [one, two] = lab.clients().await?;
    let mutex = one.mutex(name).ttl(half).options(LockOptions::new().lock_delay(half));
    let lease = mutex.lock().await?;
    let mut waiter = Waiter::queue(
        &two,
        name,
        two.request(name).ttl(half).options(LockOptions::new().lock_delay(half)),
        0,
    )
    .await?;
    assert_eq!(lease.release().await?, Released::Released);
    waiter.served().await?;
    let too_long = mutex.ttl(Duration::from_secs(24 * 60 * 60)).try_lock().await.unless_held();
    assert!(matches!(too_long, Err(Error::Invalid(_))), "{too_long:?}");
    Ok(())
}
