//! The rate limiter: at most N units in any window of a period, over all machines.
//!
//! A unit is a claim of one permit, with the period as its ttl. The client neither renews it nor
//! gives it back. So it stays in the store for one period after its grant, on the store's clock,
//! and at most N - 1 others stay beside it. If the caller waited for a unit, the store confirms it
//! before the caller gets it, and its period counts from then on.

use std::time::Duration;

use crate::error::{Error, Invalid, Result, UnlessHeld};
use crate::options::LockOptions;
use crate::rule::claim::{Mode, Ttl};
use crate::runtime::acquire::{NO_WAIT, Request};
use crate::runtime::facts::note_of_unit;

/// The most units in a period: each is a claim in one line, and a line has its limit.
const UNITS_MAX: u32 = 5_000;

/// At most N units in any window of a period; made by
/// [`Client::rate_limiter`](crate::Client::rate_limiter).
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Unit;
///
/// let client = leasehold::connect("memory:").await?;
/// let mails = client.rate_limiter("mails", 2, Duration::from_secs(60));
/// mails.acquire().await?;
/// mails.acquire().await?;
/// match mails.try_acquire().await? {
///     Unit::Taken => unreachable!("two a minute"),
///     Unit::DueIn(wait) => println!("the next mail may go out in {wait:?}"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// In *any* window of the period at most so many units are handed out, not only in those that
/// begin on the minute. Everybody on the name must say the same number; the period is each
/// caller's own, so let all say the same. A unit cannot be given back; dropping the client, or
/// closing it, gives none back either. Up to 5,000 units in a period of 100 ms to 24 h.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until a unit is asked for"]
pub struct RateLimiter {
    request: Request,
    units: u32,
    period: Duration,
}

/// The outcome of asking for a unit.
///
#[cfg_attr(doctest, doc = "```compile_fail")]
#[cfg_attr(doctest, doc = "#![deny(unused_must_use)]")]
#[cfg_attr(doctest, doc = "async fn limited(client: leasehold::Client) -> leasehold::Result<()> {")]
#[cfg_attr(doctest, doc = "    let minute = std::time::Duration::from_secs(60);")]
#[cfg_attr(doctest, doc = "    client.rate_limiter(\"mails\", 2, minute).try_acquire().await?;")]
#[cfg_attr(doctest, doc = "    Ok(())")]
#[cfg_attr(doctest, doc = "}")]
#[cfg_attr(doctest, doc = "```")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "without a look at it nothing is limited"]
pub enum Unit {
    /// The caller has a unit.
    Taken,
    /// None is left. The next one is due after this time, if no other caller comes first.
    DueIn(Duration),
}

impl RateLimiter {
    pub(crate) fn new(request: Request, units: u32, period: Duration) -> Self {
        let mode = Mode::Permits { take: 1, of: units };
        let unit = LockOptions::new().ttl(period).renew(false).note(note_of_unit(""));
        let request = request.mode(mode).options(unit);
        Self { request, units, period }
    }

    /// Text for others to read while the unit counts: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note_of_unit(&note.into())), ..self }
    }

    /// Waits for a unit for as long as it takes, in order of arrival.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the claim out of the line: no unit is used up.
    pub async fn acquire(&self) -> Result<()> {
        self.check()?;
        // A detached lease stays in the store until its ttl is over.
        self.request.acquire().await?.detach().await.map(|_handle| ())
    }

    /// Takes a unit if one is left, or returns when the next one is due.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Unit> {
        self.check()?;
        match self.request.ask_until(Some(NO_WAIT)).await.unless_held()? {
            Some(lease) => lease.detach().await.map(|_handle| Unit::Taken),
            None => self.due().await,
        }
    }

    /// Waits for a unit for at most `span`. If none was left by then, returns when the next is due.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Unit> {
        self.check()?;
        let deadline = self.request.client().inner.keeper.clock.now() + span;
        match self.request.ask_until(Some(deadline)).await.unless_held()? {
            Some(lease) => lease.detach().await.map(|_handle| Unit::Taken),
            None => self.due().await,
        }
    }

    /// When a caller that came now would get a unit: after one for each waiting claim has ended.
    async fn due(&self) -> Result<Unit> {
        let name = self.request.name()?;
        let line = self.request.client().line(name.as_str()).await?;
        let Some(line) = line else { return Ok(Unit::DueIn(Duration::ZERO)) };
        let mut ends: Vec<Duration> = line.held.iter().map(|unit| unit.remaining).collect();
        ends.sort_unstable();
        let left = (self.units as usize).saturating_sub(ends.len());
        let Some(behind) = line.waiting.len().checked_sub(left) else {
            return Ok(Unit::DueIn(Duration::ZERO));
        };
        // Units that waiting claims take end a period later.
        let rounds = u32::try_from(behind / ends.len().max(1)).unwrap_or(u32::MAX);
        let end = ends.get(behind % ends.len().max(1)).copied().unwrap_or_default();
        Ok(Unit::DueIn(end + self.period.saturating_mul(rounds)))
    }

    fn check(&self) -> Result<()> {
        if self.units == 0 || self.units > UNITS_MAX {
            return Err(Error::Invalid(Invalid::Rate { units: self.units, most: UNITS_MAX }));
        }
        check_period(self.period, Ttl::MAX)
    }
}

/// Refuses a period that is too short or too long.
pub(crate) fn check_period(period: Duration, most: Duration) -> Result<()> {
    match period {
        _ if period < Ttl::MIN => Err(Error::Invalid(Invalid::PeriodTooShort { period })),
        _ if period > most => Err(Error::Invalid(Invalid::PeriodTooLong { period, most })),
        _ => Ok(()),
    }
}
