//! The semaphore: N permits that come back by themselves when their holder dies.

use std::time::Duration;

use crate::error::{Result, TryLockError};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::rule::claim::Mode;
use crate::runtime::acquire::Request;

/// A number of permits for all machines together; made by
/// [`Client::semaphore`](crate::Client::semaphore).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::UnlessHeld;
///
/// let client = leasehold::connect("memory:").await?;
/// let uploads = client.semaphore("uploads", 4);
/// let one = uploads.acquire().await?;
/// let three = uploads.acquire_many(3).await?;
/// let fifth = uploads.try_acquire().await.unless_held()?;
/// assert!(fifth.is_none(), "all four are out");
/// three.release().await?;
/// one.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// Permits are leases: a holder that dies loses them after their ttl. The store grants them in
/// order of arrival, so claims for one permit do not overtake a claim for many. All claims on a
/// name must have the same limit. While the line is in use, another limit gets
/// [`Error::Mismatch`](crate::Error::Mismatch). An administrator changes the limit with
/// [`Admin::resize`](crate::Admin::resize).
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Semaphore {
    request: Request,
    of: u32,
}

impl Semaphore {
    pub(crate) fn new(request: Request, of: u32) -> Self {
        Self { request, of }
    }

    /// How many permits there are.
    pub fn limit(&self) -> u32 {
        self.of
    }

    /// How long a lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl), ..self }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note), ..self }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { request: self.request.options(options), ..self }
    }

    fn take(&self, take: u32) -> Request {
        self.request.clone().mode(Mode::Permits { take, of: self.of })
    }

    /// Waits for one permit for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    pub async fn acquire(&self) -> Result<Lease> {
        self.acquire_many(1).await
    }

    /// Waits for `take` permits at once, for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, take: u32) -> Result<Lease> {
        self.take(take).acquire().await
    }

    /// Takes one permit if one is free now and no claim waits; else says who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Lease, TryLockError> {
        self.try_acquire_many(1).await
    }

    /// Takes `take` permits at once if they are free now and no claim waits; else says who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, take: u32) -> Result<Lease, TryLockError> {
        self.take(take).try_acquire().await
    }

    /// Waits for one permit for at most `span`. If it was not granted by then, says who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Lease, TryLockError> {
        self.acquire_many_within(1, span).await
    }

    /// Waits for `take` permits at once for at most `span`. If they were not granted by then, says
    /// who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many_within(
        &self,
        take: u32,
        span: Duration,
    ) -> Result<Lease, TryLockError> {
        self.take(take).acquire_within(span).await
    }
}
