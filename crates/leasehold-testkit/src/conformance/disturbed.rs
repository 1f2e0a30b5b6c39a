//! Waits that a store disturbs: a claim that is in line outlives every failure that can pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::layer::retry::RetryPolicy;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, Error, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, soon, until, until_free, until_waiting};

super::cases! {
    wait_survives_a_store_that_is_away_for_longer_than_its_patience: ttl_per_claim,
    wait_with_a_limit_ends_at_its_limit_with_what_was_wrong_last: ttl_per_claim,
    wait_that_a_store_disturbs_ends_with_its_client,
}

/// Counts the failures that waiting claims report.
#[derive(Debug, Clone, Default)]
struct Failures(Arc<AtomicUsize>);

impl Observer for Failures {
    fn observe(&self, measure: &Measure<'_>) {
        if let Measure::WaitDisturbed { error, .. } = measure {
            assert!(error.is_transient(), "{error:?}");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Failures {
    /// Waits for `count` reports of a wait that goes on.
    async fn at_least(&self, count: usize, goes_on: impl Fn() -> bool) -> Outcome {
        until("the reports of a disturbed wait", async || {
            assert!(goes_on(), "the wait ended");
            Ok(self.0.load(Ordering::SeqCst) >= count)
        })
        .await
    }
}

/// A client without retries, so that each failure reaches the wait.
async fn troubled(lab: &dyn Harness) -> leasehold::Result<(Client, Chaos, Failures)> {
    let failures = Failures::default();
    let builder = Client::builder().retry(RetryPolicy::OFF).observer(failures.clone());
    let (client, chaos) = lab.troubled_with(builder).await?;
    Ok((client, chaos, failures))
}

fn cut_off(chaos: &Chaos) {
    for verb in [Verb::Claim, Verb::Wait, Verb::Renew] {
        chaos.next(verb, Trouble::Refuse, u32::MAX);
    }
}

async fn wait_survives_a_store_that_is_away_for_longer_than_its_patience(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "disturbed:away";
    let near = lab.client().await?;
    let (far, chaos, failures) = troubled(&*lab).await?;
    let first = near.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&near, name, far.request(name).ttl(lab.brief()), 0).await?;
    cut_off(&chaos);
    failures.at_least(2, || waiter.is_waiting()).await?;
    // Its heartbeats fail for longer than its patience and its ttl.
    tokio::time::sleep(lab.brief() * 2).await;
    first.release().await?;
    let second = near.mutex(name).ttl(LONG).lock().await?;
    assert!(waiter.is_waiting());
    chaos.heal();
    until_waiting(&near, name, 1).await?;
    let fence = second.fence();
    second.release().await?;
    let lease = waiter.granted().await?;
    assert!(lease.fence() > fence);
    lease.release().await?;
    Ok(())
}

async fn wait_with_a_limit_ends_at_its_limit_with_what_was_wrong_last(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "disturbed:limit";
    let near = lab.client().await?;
    let (far, chaos, failures) = troubled(&*lab).await?;
    let held = near.mutex(name).ttl(LONG).lock().await?;
    let limit = Duration::from_secs(3);
    let begun = Instant::now();
    let mutex = far.mutex(name).ttl(lab.brief());
    let waiting = tokio::spawn(async move { mutex.lock_within(limit).await.unless_held() });
    until_waiting(&near, name, 1).await?;
    cut_off(&chaos);
    failures.at_least(1, || !waiting.is_finished()).await?;
    let ended = soon("the end of the wait", waiting).await??;
    let Err(Error::Timeout { waited, last, .. }) = &ended else { panic!("{ended:?}") };
    assert!(matches!(**last, Error::Unreachable { .. }), "{ended:?}");
    assert!(*waited >= limit, "{ended:?}");
    assert!(begun.elapsed() >= limit, "it ended before its limit");
    chaos.heal();
    held.release().await?;
    until_free(&near, name).await
}

async fn wait_that_a_store_disturbs_ends_with_its_client(lab: Arc<dyn Harness>) -> Outcome {
    let name = "disturbed:closed";
    let near = lab.client().await?;
    let (far, chaos, failures) = troubled(&*lab).await?;
    let held = near.mutex(name).ttl(LONG).lock().await?;
    let waiter = Waiter::queue(&near, name, far.request(name).ttl(lab.brief()), 0).await?;
    cut_off(&chaos);
    failures.at_least(1, || waiter.is_waiting()).await?;
    soon("the close", far.close()).await??;
    let ended = waiter.ended().await?;
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    chaos.heal();
    held.release().await?;
    until_free(&near, name).await
}
