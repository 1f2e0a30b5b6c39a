//! The release of a claim after its owner is done with it: the requests to the store.
//!
//! The lease and the keeper decide which of them sends it, and when to try again.

use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Released, Renewal};
use crate::runtime::background_release::BackgroundRelease;
use crate::runtime::claim_state::{ClaimState, EndedClaim};
use crate::runtime::keeper::Keeper;
use crate::seeded::{Seeded, seeded};

/// A claim whose owner is done with it.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) key: ClaimKey,
    /// It stays in the store until then, although no work runs under it any more.
    keep_until: Option<Moment>,
    /// How long the store keeps it at most without a renewal.
    ttl: Duration,
    /// The lease is surely valid until then.
    safe_until: Moment,
    /// After this the store has dropped it by itself; set when the keeper takes it over.
    pub(crate) give_up: Option<Moment>,
    /// Makes other claims of the client on this name wait; set when the keeper takes it over.
    leave: Option<BackgroundRelease>,
}

impl PendingRelease {
    pub(crate) fn of(claim_state: &ClaimState, ended: &EndedClaim) -> Self {
        let keep_until = ended.keep_until.filter(|_| ended.is_kept());
        let (ttl, safe_until) = (ended.ttl, ended.safe_until);
        Self {
            key: claim_state.key.clone(),
            keep_until,
            ttl,
            safe_until,
            give_up: None,
            leave: None,
        }
    }

    /// Passes it to the keeper, which gives it up when the store has dropped it.
    pub(crate) fn taken_over(mut self, now: Moment, leave: BackgroundRelease) -> Self {
        self.give_up.get_or_insert(now + self.ttl);
        self.leave.get_or_insert(leave);
        self
    }

    /// How much longer it must stay in the store.
    fn keep_for(&self, clock: &dyn Clock) -> Option<Duration> {
        let left = self.keep_until?.since(clock.now());
        (!left.is_zero()).then_some(left)
    }
}

/// The outcome of a lease that was given back at once: well, or the store's answer.
pub(crate) type ReleasedNow = std::result::Result<(), Box<Released>>;

/// Releases a lease, again after each transient failure, and returns the outcome.
///
/// A request whose answer is lost may have given the lease back. The next request then finds the
/// lease gone, or another holder. The lease was not lost if its safe end was ahead when the first
/// request was sent. Until then only an administrator can take it, and a renewal reports that.
pub(crate) async fn release_with_retries(
    keeper: &Keeper,
    release: &PendingRelease,
) -> Result<Released> {
    let was_safe = keeper.clock.now() < release.safe_until && !seeded(Seeded::LostReleaseAnswer);
    let mut requests = 0;
    let once = || {
        requests += 1;
        send_release(keeper, release)
    };
    let released = keeper.retry.again(once).await?;
    Ok(if was_safe && requests > 1 { Released::Released } else { released })
}

/// Sends the release of a claim once.
async fn send_release(keeper: &Keeper, release: &PendingRelease) -> Result<Released> {
    match release.keep_for(&*keeper.clock) {
        Some(stay) => keep_closed(keeper, &release.key, stay).await,
        None => {
            let answers = keeper.direct.release(std::slice::from_ref(&release.key)).await?;
            Ok(answers.into_iter().next().unwrap_or(Released::AlreadyExpired))
        }
    }
}

/// Gives a lease back, and keeps its name closed for so long.
pub(crate) async fn keep_closed(
    keeper: &Keeper,
    key: &ClaimKey,
    stay: Duration,
) -> Result<Released> {
    if seeded(Seeded::ClosedNameIsOwned) {
        let renewal = Renewal { key: key.clone(), ttl: stay, patience: stay };
        keeper.direct.renew(&[renewal]).await?;
        return Ok(Released::Released);
    }
    keeper.need(&keeper.parts.unattended)?.keep_closed(key, stay).await
}

/// Releases several claims, with as few exchanges as possible.
pub(crate) async fn send_releases(keeper: &Keeper, releases: &[PendingRelease]) -> Result<()> {
    let (kept, gone): (Vec<_>, Vec<_>) =
        releases.iter().partition(|release| release.keep_for(&*keeper.clock).is_some());
    for release in kept {
        send_release(keeper, release).await?;
    }
    if !gone.is_empty() {
        let keys: Vec<ClaimKey> = gone.iter().map(|release| release.key.clone()).collect();
        keeper.direct.release(&keys).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::SystemClock;
    use crate::engine::Engine;
    use crate::engine::layer::chaos::{Chaos, Trouble, Verb};
    use crate::engine::layer::retry::RetryPolicy;
    use crate::engines::memory::Memory;
    use crate::rule::claim::{Claim, Holder, Mode, Note, Token};
    use crate::rule::name::Name;

    const TTL: Duration = Duration::from_secs(30);

    /// The result of a release whose first answer is lost, for a lease with this safe end.
    async fn released_with(safe_until: Moment) -> Released {
        let chaos = Chaos::default();
        let engine: Arc<dyn Engine> = Arc::new(chaos.trouble(Memory::new()));
        let key = ClaimKey { name: Name::new("n").expect("a name"), token: Token::random() };
        let claim = Claim {
            key: key.clone(),
            mode: Mode::Exclusive,
            holder: Holder::fresh(),
            note: Note::default(),
            ttl: TTL,
            patience: TTL,
            join: true,
        };
        engine.claim(&claim).await.expect("it holds");
        chaos.next(Verb::Release, Trouble::LoseAnswer, 1);
        let release = PendingRelease {
            key,
            keep_until: None,
            ttl: TTL,
            safe_until,
            give_up: None,
            leave: None,
        };
        let retry = RetryPolicy::default();
        let keeper = Keeper::new(engine, retry, Arc::new(SystemClock), None);
        release_with_retries(&keeper, &release).await.expect("told")
    }

    #[tokio::test]
    async fn repeated_release_reports_a_loss_only_if_the_safe_end_was_over() {
        let now = SystemClock.now();
        assert_eq!(released_with(now + TTL).await, Released::Released);
        assert_eq!(released_with(now).await, Released::AlreadyExpired);
    }
}
