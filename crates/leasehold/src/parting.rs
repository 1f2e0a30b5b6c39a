//! Giving a claim back once its owner is done with it: what is left to be told to the store.
//!
//! Who tells it, and when it is tried again, is left to the keeper and to the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::claim::{ClaimKey, Released, Renewal, Standing};
use crate::clock::{Clock, Moment};
use crate::engine::Engine;
use crate::error::Result;
use crate::tenure::{Ended, Tenure};

/// A claim whose owner is done with it.
#[derive(Debug, Clone)]
pub(crate) struct Parting {
    pub(crate) key: ClaimKey,
    /// It stays in the store until then, although nobody works under it any more.
    keep_until: Option<Moment>,
    /// How long the store keeps it at most without another word.
    ttl: Duration,
    /// After this the store has dropped it by itself; set when the keeper takes it over.
    pub(crate) give_up: Option<Moment>,
    /// A renewal that must land first: it would make a claim that stays end earlier again.
    landing: Option<Arc<AtomicBool>>,
}

impl Parting {
    pub(crate) fn of(tenure: &Tenure, ended: &Ended) -> Self {
        let keep_until = ended.keep_until.filter(|_| ended.is_kept());
        let landing = keep_until.and_then(|_| tenure.landing());
        Self { key: tenure.key.clone(), keep_until, ttl: ended.ttl, give_up: None, landing }
    }

    pub(crate) fn may_go(&self) -> bool {
        self.landing.as_ref().is_none_or(|landed| landed.load(Ordering::Acquire))
    }

    pub(crate) fn given_up_from(mut self, now: Moment) -> Self {
        self.give_up.get_or_insert(now + self.ttl);
        self
    }

    /// How much longer it must stay in the store.
    fn keep_for(&self, clock: &dyn Clock) -> Option<Duration> {
        let left = self.keep_until?.since(clock.now());
        (!left.is_zero()).then_some(left)
    }
}

/// How a lease that was given back on the spot ended: as it should, or what became of it.
pub(crate) type Parted = std::result::Result<(), Box<Released>>;

/// Tells the store that a claim's owner is done with it.
pub(crate) async fn part(
    engine: &dyn Engine,
    clock: &dyn Clock,
    parting: &Parting,
) -> Result<Released> {
    match parting.keep_for(clock) {
        Some(ttl) => {
            let key = parting.key.clone();
            let answers = engine.renew(&[Renewal { key, ttl, patience: ttl }]).await?;
            Ok(match answers.into_iter().next().transpose()? {
                Some(Standing::Out { by: Some(holder), .. }) => Released::TakenBy(holder),
                Some(Standing::Out { .. }) => Released::AlreadyExpired,
                _ => Released::Released,
            })
        }
        None => {
            let answers = engine.release(std::slice::from_ref(&parting.key)).await?;
            Ok(answers.into_iter().next().unwrap_or(Released::AlreadyExpired))
        }
    }
}

/// Tells it of several, with as few exchanges as it takes.
pub(crate) async fn part_all(
    engine: &dyn Engine,
    clock: &dyn Clock,
    partings: &[Parting],
) -> Result<()> {
    let (kept, gone): (Vec<_>, Vec<_>) =
        partings.iter().partition(|parting| parting.keep_for(clock).is_some());
    for parting in kept {
        part(engine, clock, parting).await?;
    }
    if !gone.is_empty() {
        let keys: Vec<ClaimKey> = gone.iter().map(|parting| parting.key.clone()).collect();
        engine.release(&keys).await?;
    }
    Ok(())
}
