//! The options of a lock, each of them once, for all primitives and for the blocking API.

use std::time::Duration;

use crate::rule::claim::Ttl;
use crate::rule::name::Name;
use crate::runtime::claim_state::HoldLimits;

/// How a lease is taken, kept and given back.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::LockOptions;
///
/// let careful = LockOptions::new()
///     .ttl(Duration::from_secs(10))
///     .note("settle order 42")
///     .hold_at_most(Duration::from_secs(60));
/// let client = leasehold::connect("memory:").await?;
/// let lease = client.mutex("order:42").options(careful.clone()).lock().await?;
/// let other = client.semaphore("uploads", 4).options(careful).acquire().await?;
/// # drop((lease, other));
/// # Ok(())
/// # }
/// ```
///
/// A primitive takes them with `options`, more than once if need be. An option that is not set
/// leaves what the primitive has. Rate limiters and work that runs once set their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "they do nothing until a primitive gets them"]
pub struct LockOptions {
    ttl: Option<Duration>,
    note: Option<String>,
    renew: Option<bool>,
    hold_at_most: Option<Duration>,
    hold_at_least: Option<Duration>,
    lock_delay: Option<Duration>,
    reentrant: bool,
    detect_self_deadlock: bool,
    detect_deadlocks: Option<bool>,
    holding: Option<Vec<Name>>,
}

impl LockOptions {
    /// No option is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    ///
    /// A holder that dies keeps the others waiting for at most this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Text for others to read while the claim is in line: up to 4 KiB.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// A note that is JSON. `leasehold list --json` shows an object or a list as such.
    #[cfg(feature = "json")]
    pub fn note_json(self, note: &impl serde::Serialize) -> crate::error::Result<Self> {
        Ok(self.note(crate::rule::claim::Note::json(note)?.as_str()))
    }

    /// Whether the client renews the lease until the caller gives it back; by default yes. Without
    /// renewal the lease ends after its ttl.
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = Some(renew);
        self
    }

    /// Gives the lease back after this long, even if its holder still works: for work that may
    /// hang. At most 24 h.
    pub fn hold_at_most(mut self, span: Duration) -> Self {
        self.hold_at_most = Some(span);
        self
    }

    /// Keeps the name closed for at least this long, even if the lease is given back earlier: for
    /// jobs so short that a second machine would start them again. Nobody has the lease meanwhile:
    /// its handle is stale from then on. At most 24 h.
    ///
    /// PostgreSQL's advisory locks end with the process that took them, so there the claim is
    /// refused.
    pub fn hold_at_least(mut self, span: Duration) -> Self {
        self.hold_at_least = Some(span);
        self
    }

    /// Keeps the name closed for this long after a crash, a cut or a pause lost the lease. It is
    /// for resources that cannot check fences: what the old holder has in flight then arrives
    /// before the next holder begins. A lease that is given back is free at once.
    ///
    /// Together with the ttl at most 24 h. It makes waiting for the lock one exchange longer.
    pub fn lock_delay(mut self, span: Duration) -> Self {
        self.lock_delay = Some(span);
        self
    }

    /// Lets the same client enter again while it holds. Each entry has the same fence and counts.
    /// Only exclusive locks can be entered again.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// Says that this holder does one thing at a time. Waiting for a name that it holds itself is
    /// then a deadlock, and reported as one. The client keeps all that it holds while this waits,
    /// whichever task took it.
    pub fn detect_self_deadlock(mut self) -> Self {
        self.detect_self_deadlock = true;
        self
    }

    /// Whether to look for deadlocks while this waits. The default is the client's setting, which
    /// is yes by default. A wait without it is no part of a deadlock for others either.
    pub fn detect_deadlocks(mut self, on: bool) -> Self {
        self.detect_deadlocks = Some(on);
        self
    }

    /// Names that the same holder keeps through another client or process while this waits, for
    /// deadlock detection. The client itself knows the names that it took in the same task.
    pub fn holding(mut self, names: impl IntoIterator<Item = Name>) -> Self {
        self.holding = Some(names.into_iter().collect());
        self
    }

    /// These options, and where they set none, those before.
    pub(crate) fn over(self, before: Self) -> Self {
        Self {
            ttl: self.ttl.or(before.ttl),
            note: self.note.or(before.note),
            renew: self.renew.or(before.renew),
            hold_at_most: self.hold_at_most.or(before.hold_at_most),
            hold_at_least: self.hold_at_least.or(before.hold_at_least),
            lock_delay: self.lock_delay.or(before.lock_delay),
            reentrant: self.reentrant || before.reentrant,
            detect_self_deadlock: self.detect_self_deadlock || before.detect_self_deadlock,
            detect_deadlocks: self.detect_deadlocks.or(before.detect_deadlocks),
            holding: self.holding.or(before.holding),
        }
    }

    pub(crate) fn ttl_or_default(&self) -> Duration {
        self.ttl.unwrap_or(Ttl::DEFAULT.get())
    }

    pub(crate) fn note_text(&self) -> &str {
        self.note.as_deref().unwrap_or_default()
    }

    pub(crate) fn renews(&self) -> bool {
        self.renew.unwrap_or(true)
    }

    /// The limits of the hold, if any is set.
    pub(crate) fn limits(&self) -> Option<HoldLimits> {
        let Self { hold_at_most, hold_at_least, lock_delay, .. } = *self;
        let is_any = hold_at_most.or(hold_at_least).or(lock_delay).is_some();
        is_any.then(|| HoldLimits {
            hold_at_most,
            hold_at_least,
            delay: lock_delay.unwrap_or_default(),
        })
    }

    pub(crate) fn is_reentrant(&self) -> bool {
        self.reentrant
    }

    pub(crate) fn detects_self_deadlock(&self) -> bool {
        self.detect_self_deadlock
    }

    pub(crate) fn detects_deadlocks(&self) -> bool {
        self.detect_deadlocks.unwrap_or(true)
    }

    pub(crate) fn held_names(&self) -> &[Name] {
        self.holding.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_options_win_and_those_that_are_not_set_stay() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        let before = LockOptions::new().ttl(short).note("a").renew(false).lock_delay(short);
        let both = LockOptions::new().ttl(long).reentrant().over(before);
        let whole = LockOptions::new().ttl(long).note("a").renew(false).lock_delay(short);
        assert_eq!(both, whole.reentrant());
    }
}
