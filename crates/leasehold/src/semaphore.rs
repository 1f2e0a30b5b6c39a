//! The semaphore: N permits that come back by themselves when their holder dies.

use std::time::Duration;

use crate::acquire::Request;
use crate::claim::Mode;
use crate::error::Result;
use crate::lease::Lease;

/// So many permits for all machines together; made by
/// [`Client::semaphore`](crate::Client::semaphore).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let uploads = client.semaphore("uploads", 4);
/// let one = uploads.acquire().await?;
/// let three = uploads.acquire_many(3).await?;
/// assert!(uploads.try_acquire().await?.is_none(), "all four are out");
/// three.release().await?;
/// one.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// Permits are leases: who dies without giving them back loses them after their ttl. They are
/// granted in order of arrival, so who wants many is not overtaken by those who want one.
/// Everybody on the name must say the same limit;
/// another is [`Error::Mismatch`](crate::Error::Mismatch) while anybody is in line, and an
/// administrator changes it with [`Client::resize`](crate::Client::resize).
#[derive(Debug, Clone)]
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

    /// How long a lease lasts without renewal: 100 ms to 24 h, 30 s unless said otherwise.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl), ..self }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note), ..self }
    }

    /// Gives permits back after this long, whatever their holder does.
    pub fn max_hold(self, span: Duration) -> Self {
        Self { request: self.request.max_hold(span), ..self }
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

    /// Takes one permit if one is free now and nobody waits; `None` otherwise.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        self.try_acquire_many(1).await
    }

    /// Takes `take` permits at once if they are free now and nobody waits; `None` otherwise.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, take: u32) -> Result<Option<Lease>> {
        self.take(take).try_acquire().await
    }

    /// Waits for one permit for at most `span`; `None` if it was not granted by then.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Option<Lease>> {
        self.acquire_many_within(1, span).await
    }

    /// Waits for `take` permits at once for at most `span`; `None` if they were not granted by
    /// then.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many_within(&self, take: u32, span: Duration) -> Result<Option<Lease>> {
        self.take(take).acquire_within(span).await
    }
}
