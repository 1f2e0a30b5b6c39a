//! The rate limiter: so many units in any window of a period, over all machines.
//!
//! A unit is a claim of one permit whose lease is the window: it is never renewed and never given
//! back, so it stands in the store until a whole period has passed since it was granted, on the
//! store's clock. While it stands, at most N - 1 others do. A unit that was waited for is
//! confirmed by the store before it is handed out, and its period counts from then on.

use std::time::Duration;

use crate::acquire::Request;
use crate::claim::{Mode, Ttl};
use crate::error::{Error, Invalid, Result};

/// The most units in a period: each is a claim in one line, and a line has its limit.
const UNITS_MAX: u32 = 5_000;

/// So many units in any window of a period; made by
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
/// In *any* stretch of the period at most so many units are handed out, not only in those that
/// begin on the minute. Everybody on the name must say the same number; the period is each
/// caller's own, so let all say the same. A unit cannot be given back; dropping the client, or
/// closing it, gives none back either. Up to 5,000 units in a period of 100 ms to 24 h.
#[derive(Debug, Clone)]
pub struct RateLimiter {
    request: Request,
    units: u32,
    period: Duration,
}

/// What became of asking for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Here it is.
    Taken,
    /// None is left; the next one is due in this long, if nobody comes first.
    DueIn(Duration),
}

impl RateLimiter {
    pub(crate) fn new(request: Request, units: u32, period: Duration) -> Self {
        let mode = Mode::Permits { take: 1, of: units };
        Self { request: request.mode(mode).ttl(period).renew(false), units, period }
    }

    /// Text for others to read while the unit counts: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note), ..self }
    }

    /// Waits for a unit for as long as it takes, in order of arrival.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the claim out of the line: no unit is used up.
    pub async fn acquire(&self) -> Result<()> {
        self.check()?;
        // What is let go of without being given back stays until its time has passed.
        self.request.acquire().await?.detach().await.map(|_handle| ())
    }

    /// Takes a unit if one is left, or says when the next one is due.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Unit> {
        self.check()?;
        match self.request.try_acquire().await? {
            Some(lease) => lease.detach().await.map(|_handle| Unit::Taken),
            None => self.due().await,
        }
    }

    /// Waits for a unit for at most `span`; says when the next one is due if none was left by then.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Unit> {
        self.check()?;
        match self.request.acquire_within(span).await? {
            Some(lease) => lease.detach().await.map(|_handle| Unit::Taken),
            None => self.due().await,
        }
    }

    /// When somebody who came now would get a unit: as many must have gone by then as wait before.
    async fn due(&self) -> Result<Unit> {
        let name = self.request.name()?;
        let line = self.request.client().show(name.as_str()).await?;
        let Some(line) = line else { return Ok(Unit::DueIn(Duration::ZERO)) };
        let mut ends: Vec<Duration> = line.held.iter().map(|unit| unit.remaining).collect();
        ends.sort_unstable();
        let left = (self.units as usize).saturating_sub(ends.len());
        let Some(behind) = line.waiting.len().checked_sub(left) else {
            return Ok(Unit::DueIn(Duration::ZERO));
        };
        // Units that are taken by those who wait come back a period later.
        let rounds = u32::try_from(behind / ends.len().max(1)).unwrap_or(u32::MAX);
        let end = ends.get(behind % ends.len().max(1)).copied().unwrap_or_default();
        Ok(Unit::DueIn(end + self.period.saturating_mul(rounds)))
    }

    fn check(&self) -> Result<()> {
        if self.units == 0 || self.units > UNITS_MAX {
            return Err(Error::Invalid(Invalid::Rate { units: self.units, most: UNITS_MAX }));
        }
        check_period(self.period)
    }
}

/// Refuses a period that cannot be told or kept.
pub(crate) fn check_period(period: Duration) -> Result<()> {
    match period {
        _ if period < Ttl::MIN => Err(Error::Invalid(Invalid::PeriodTooShort { period })),
        _ if period > Ttl::MAX => Err(Error::Invalid(Invalid::PeriodTooLong { period })),
        _ => Ok(()),
    }
}
