//! Elections, rate limits and work that is done once, for threads.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};
use tokio::runtime::Runtime;

use crate::claim::Released;
use crate::error::Result;
use crate::{LastRun, Leader, Outcome, Unit};

/// An office that one candidate at a time holds; see [`crate::Election`].
#[derive(Debug, Clone)]
pub struct Election {
    pub(super) election: crate::Election,
    pub(super) runtime: Arc<Runtime>,
}

impl Election {
    /// How long leadership lasts without renewal: 100 ms to 24 h, 30 s unless said otherwise.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { election: self.election.ttl(ttl), ..self }
    }

    /// Blocks until this thread leads.
    pub fn campaign(&self, payload: impl Into<String>) -> Result<Leadership> {
        let leadership = self.runtime.block_on(self.election.campaign(payload))?;
        Ok(Leadership { leadership, runtime: Arc::clone(&self.runtime) })
    }

    /// Who leads now.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.runtime.block_on(self.election.leader())
    }

    /// The leader, and from then on every change of it; see [`crate::Election::observe`].
    pub fn observe(&self) -> Result<Leaders> {
        let leaders = self.runtime.block_on(self.election.observe())?;
        Ok(Leaders { leaders, runtime: Arc::clone(&self.runtime) })
    }
}

/// Leadership in the hands of a thread; see [`crate::Leadership`]. Dropping it resigns.
#[derive(Debug)]
#[must_use = "leadership that is dropped is resigned at once"]
pub struct Leadership {
    leadership: crate::Leadership,
    runtime: Arc<Runtime>,
}

impl Leadership {
    /// Tells observers something else than before, in the same term.
    pub fn proclaim(&self, payload: impl AsRef<str>) -> Result<()> {
        self.runtime.block_on(self.leadership.proclaim(payload))
    }

    /// Gives leadership up, and says what became of it.
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
    runtime: Arc<Runtime>,
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

/// So many units in any window of a period; see [`crate::RateLimiter`].
#[derive(Debug, Clone)]
pub struct RateLimiter {
    pub(super) limiter: crate::RateLimiter,
    pub(super) runtime: Arc<Runtime>,
}

impl RateLimiter {
    /// Blocks until there is a unit.
    pub fn acquire(&self) -> Result<()> {
        self.runtime.block_on(self.limiter.acquire())
    }

    /// Takes a unit if one is left, or says when the next one is due.
    pub fn try_acquire(&self) -> Result<Unit> {
        self.runtime.block_on(self.limiter.try_acquire())
    }

    /// Blocks for at most `span`; says when the next unit is due if none was left by then.
    pub fn acquire_within(&self, span: Duration) -> Result<Unit> {
        self.runtime.block_on(self.limiter.acquire_within(span))
    }
}

/// Work that is done at most once in each period; see [`crate::Once`].
#[derive(Debug, Clone)]
pub struct Once {
    pub(super) once: crate::Once,
    pub(super) runtime: Arc<Runtime>,
}

impl Once {
    /// How long after its death a run is taken over by whoever asks next.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { once: self.once.ttl(ttl), ..self }
    }

    /// Does not count a run that failed: whoever asks next runs again.
    pub fn retry_failed(self) -> Self {
        Self { once: self.once.retry_failed(), ..self }
    }

    /// Runs `work` if nobody runs or has run in this period. A thread cannot be stopped when the
    /// lease is lost: ask [`is_held`](crate::Lease::is_held) on the way.
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

    /// Who runs, or has run in this period, and how it went; `None` if nobody has.
    pub fn last(&self) -> Result<Option<LastRun>> {
        self.runtime.block_on(self.once.last())
    }
}
