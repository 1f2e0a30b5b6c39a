//! Elections, rate limits and work that is done once, for threads.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};

use super::shared_runtime::SharedRuntime;
use crate::error::Result;
use crate::options::LockOptions;
use crate::rule::claim::Released;
use crate::{LastRun, Leader, Outcome, Unit};

/// An election with one leader at a time; see [`crate::Election`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Election {
    pub(super) election: crate::Election,
    pub(super) runtime: SharedRuntime,
}

impl Election {
    /// How long leadership lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { election: self.election.ttl(ttl), ..self }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { election: self.election.options(options), ..self }
    }

    /// Blocks until this thread leads.
    pub fn campaign(&self, payload: impl Into<String>) -> Result<Leadership> {
        let leadership = self.runtime.block_on(self.election.campaign(payload))?;
        Ok(Leadership { leadership, runtime: self.runtime.clone() })
    }

    /// The present leader.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.runtime.block_on(self.election.leader())
    }

    /// The leader, and from then on every change of it; see [`crate::Election::observe`].
    pub fn observe(&self) -> Result<Leaders> {
        let leaders = self.runtime.block_on(self.election.observe())?;
        Ok(Leaders { leaders, runtime: self.runtime.clone() })
    }
}

/// Leadership in the hands of a thread; see [`crate::Leadership`]. Dropping it resigns.
#[derive(Debug)]
#[must_use = "leadership that is dropped is resigned at once"]
pub struct Leadership {
    leadership: crate::Leadership,
    runtime: SharedRuntime,
}

impl Leadership {
    /// Changes the payload that observers see, in the same term.
    pub fn proclaim(&self, payload: impl AsRef<str>) -> Result<()> {
        self.runtime.block_on(self.leadership.proclaim(payload))
    }

    /// Gives leadership up, and returns the outcome.
    pub fn resign(self) -> Result<Released> {
        self.runtime.block_on(self.leadership.resign())
    }
}

impl Deref for Leadership {
    type Target = crate::Leadership;

    fn deref(&self) -> &crate::Leadership {
        &self.leadership
    }
}

/// Leaders as they change; made by [`Election::observe`]. Blocks until there is another.
pub struct Leaders {
    leaders: BoxStream<'static, Result<Option<Leader>>>,
    runtime: SharedRuntime,
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

impl Iterator for Leaders {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.leaders.next())
    }
}

/// At most N units in any window of a period; see [`crate::RateLimiter`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing until a unit is asked for"]
pub struct RateLimiter {
    pub(super) limiter: crate::RateLimiter,
    pub(super) runtime: SharedRuntime,
}

impl RateLimiter {
    /// Blocks until there is a unit.
    pub fn acquire(&self) -> Result<()> {
        self.runtime.block_on(self.limiter.acquire())
    }

    /// Takes a unit if one is left, or returns when the next one is due.
    pub fn try_acquire(&self) -> Result<Unit> {
        self.runtime.block_on(self.limiter.try_acquire())
    }

    /// Blocks for at most `span`. If no unit was left by then, returns when the next is due.
    pub fn acquire_within(&self, span: Duration) -> Result<Unit> {
        self.runtime.block_on(self.limiter.acquire_within(span))
    }
}

/// Work that is done at most once in each period; see [`crate::Once`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is run"]
pub struct Once {
    pub(super) once: crate::Once,
    pub(super) runtime: SharedRuntime,
}

impl Once {
    /// How long after the death of a run the next caller can take it over.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { once: self.once.ttl(ttl), ..self }
    }

    /// Does not count a run that failed: the next caller runs again.
    pub fn retry_failed(self) -> Self {
        Self { once: self.once.retry_failed(), ..self }
    }

    /// Runs `work` if no other caller runs or has run in this period. A lost lease cannot stop a
    /// thread: the work should check [`is_held`](crate::Lease::is_held) from time to time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::Outcome;
    ///
    /// let client = leasehold::blocking::connect("memory:")?;
    /// let report = client.once("nightly-report", Duration::from_secs(3600));
    /// let outcome = report.run(|lease| Ok::<_, std::io::Error>(lease.fence()))?;
    /// assert!(matches!(outcome, Outcome::Ran(Ok(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T, E: fmt::Display>(
        &self,
        work: impl FnOnce(&crate::Lease) -> std::result::Result<T, E>,
    ) -> Result<Outcome<T, E>> {
        let run = match self.runtime.block_on(self.once.start())? {
            Ok(run) => run,
            Err(last) => return Ok(Outcome::Skipped { last }),
        };
        let value = work(run.lease());
        let why = value.as_ref().err().map(ToString::to_string);
        if let Err(error) = self.runtime.block_on(run.end(why)) {
            tracing::warn!(%error, "the outcome of a run is not remembered");
        }
        Ok(Outcome::Ran(value))
    }

    /// The run of this period, which may still go on; `None` if there is none.
    pub fn last(&self) -> Result<Option<LastRun>> {
        self.runtime.block_on(self.once.last())
    }
}
