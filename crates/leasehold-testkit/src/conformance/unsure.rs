//! Answers that are lost, late or refused: each claim is adopted or cleaned, never forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, line, soon, until, until_free, until_waiting};

super::cases! {
    lost_claim_answer_is_adopted,
    lost_try_answer_is_adopted,
    lost_claim_answer_is_cleaned_without_retry,
    lost_answer_of_a_waiting_claim_keeps_one_place: fifo,
    answer_slower_than_the_ttl_is_refused_and_cleaned: ttl_per_claim,
    waiter_asks_again_after_an_answer_slower_than_the_ttl: ttl_per_claim,
    lost_release_answer_is_harmless,
    lost_release_answer_is_no_lost_lease,
    refused_release_goes_on_in_the_background,
    dropped_lease_is_released_when_the_store_is_back,
    wait_ends_in_time_although_the_store_is_silent,
    claim_answered_after_close_leaves_nothing,
}

fn without_retry() -> leasehold::ClientBuilder {
    Client::builder().retry(RetryPolicy::OFF)
}

async fn lost_claim_answer_is_adopted(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:adopted";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let lease = soon("a grant", one.mutex(name).ttl(LONG).lock()).await??;
    assert_eq!(chaos.calls(Verb::Claim), 2);
    let seen = line(&two, name).await?;
    assert_eq!((seen.held.len(), seen.waiting.len()), (1, 0));
    assert_eq!(seen.held[0].fence, lease.fence());
    assert_eq!(lease.release().await?, Released::Released);
    assert!(two.line(name).await?.is_none());
    Ok(())
}

async fn lost_try_answer_is_adopted(lab: Arc<dyn Harness>) -> Outcome {
    let (client, chaos) = lab.troubled().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 2);
    let mutex = client.mutex("unsure:try").ttl(LONG);
    let lease = soon("the answer", mutex.try_lock()).await?.unless_held()?;
    let lease = lease.expect("its own claim is in nobody's way");
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn lost_claim_answer_is_cleaned_without_retry(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:cleaned";
    let (one, chaos) = lab.troubled_with(without_retry()).await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let asked = soon("the answer", one.mutex(name).ttl(LONG).lock()).await?;
    assert!(matches!(&asked, Err(error) if error.is_transient()), "{asked:?}");
    until_free(&two, name).await
}

async fn lost_answer_of_a_waiting_claim_keeps_one_place(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:waiting";
    let one = lab.client().await?;
    let (two, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let mut waiter = Waiter::start(two.request(name).ttl(LONG));
    until("the claim to be repeated", async || Ok(chaos.calls(Verb::Claim) >= 2)).await?;
    until_waiting(&one, name, 1).await?;
    lease.release().await?;
    assert_eq!(waiter.granted().await?.release().await?, Released::Released);
    assert!(one.line(name).await?.is_none());
    Ok(())
}

async fn answer_slower_than_the_ttl_is_refused_and_cleaned(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:slow";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::HangAfter, 1);
    let request = one.request(name).ttl(lab.brief());
    let asked = tokio::spawn(async move { request.try_acquire().await.unless_held() });
    soon("the claim to hang", chaos.hanging(1)).await?;
    until_free(&two, name).await?;
    let next =
        two.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("the ttl has passed");
    chaos.heal();
    let answer = soon("the answer", asked).await??;
    assert!(matches!(answer, Err(Error::TooSlow { .. })), "{answer:?}");
    assert_eq!(one.stats().active, 0);
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn waiter_asks_again_after_an_answer_slower_than_the_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:slow-wait";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::HangAfter, 1);
    let mut waiter = Waiter::start(one.request(name).ttl(lab.brief()));
    soon("the claim to hang", chaos.hanging(1)).await?;
    until_free(&two, name).await?;
    let next =
        two.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("the ttl has passed");
    chaos.heal();
    until_waiting(&two, name, 1).await?;
    assert!(waiter.is_waiting() && next.is_held());
    let fence = next.fence();
    assert_eq!(next.release().await?, Released::Released);
    let last = waiter.granted().await?;
    assert!(last.fence() > fence);
    assert_eq!(last.release().await?, Released::Released);
    Ok(())
}

async fn lost_release_answer_is_harmless(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:release";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&two, name, two.request(name).ttl(LONG), 0).await?;
    chaos.next(Verb::Release, Trouble::LoseAnswer, 1);
    let released = soon("the answer", lease.release()).await??;
    // The first release took effect. The second one finds the next holder and takes nothing away.
    assert_eq!(released, Released::Released);
    assert_eq!(chaos.calls(Verb::Release), 2);
    let next = waiter.granted().await?;
    assert!(next.is_held());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}

async fn lost_release_answer_is_no_lost_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:release-alone";
    let (one, chaos) = lab.troubled().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Release, Trouble::LoseAnswer, 2);
    assert_eq!(soon("the answer", lease.release()).await??, Released::Released);
    assert_eq!(chaos.calls(Verb::Release), 3);
    let stats = one.stats();
    assert_eq!((stats.released, stats.lost), (1, 0));
    assert!(one.line(name).await?.is_none());
    Ok(())
}

async fn refused_release_goes_on_in_the_background(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:refused";
    let (one, chaos) = lab.troubled_with(without_retry()).await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Release, Trouble::Refuse, 3);
    let released = lease.release().await;
    assert!(matches!(&released, Err(error) if error.is_transient()), "{released:?}");
    until_free(&two, name).await?;
    assert_eq!(chaos.calls(Verb::Release), 4);
    Ok(())
}

async fn dropped_lease_is_released_when_the_store_is_back(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:back";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    chaos.next(Verb::Release, Trouble::Refuse, u32::MAX);
    drop((lease, one));
    until("failed releases", async || Ok(chaos.calls(Verb::Release) >= 2)).await?;
    assert!(two.line(name).await?.is_some());
    chaos.heal();
    until_free(&two, name).await
}

async fn wait_ends_in_time_although_the_store_is_silent(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:silent";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::HangAfter, 1);
    let begun = Instant::now();
    let mutex = one.mutex(name).ttl(LONG);
    let waited = mutex.lock_within(Duration::from_millis(300));
    // The wait must end; whether as refused or as unreachable does not matter.
    let ended = soon("the end of the wait", waited).await?;
    assert!(ended.is_err(), "{ended:?} after {:?}", begun.elapsed());
    until_free(&two, name).await?;
    chaos.heal();
    Ok(())
}

async fn claim_answered_after_close_leaves_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "unsure:closed";
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    chaos.next(Verb::Claim, Trouble::HangAfter, 1);
    let asked = Waiter::start(one.request(name).ttl(LONG));
    soon("the claim to hang", chaos.hanging(1)).await?;
    soon("the close", one.close()).await??;
    assert!(two.line(name).await?.is_none(), "what was asked for is released by the close");
    chaos.heal();
    let answer = asked.ended().await?;
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    Ok(())
}
