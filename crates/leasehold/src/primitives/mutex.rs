//! The mutex: a line whose claims are all exclusive, with the usual names.

use std::time::Duration;

use crate::client::Client;
use crate::error::{Result, TryLockError};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::runtime::acquire::Request;

/// A lock that one holder at a time has; made by [`Client::mutex`].
///
/// The value holds nothing itself: keep it, clone it and use it from many tasks. Each `lock` is a
/// claim of its own, so a second one waits for the first unless the option
/// [`reentrant`](LockOptions::reentrant) is set.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Mutex {
    request: Request,
}

impl Mutex {
    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// How long the lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl) }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note) }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { request: self.request.options(options) }
    }

    /// Waits for the lock for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    pub fn lock(&self) -> impl Future<Output = Result<Lease>> + Send + '_ {
        self.request.acquire()
    }

    /// Takes the lock if it is free now; else says who holds it.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Lease, TryLockError>> + Send + '_ {
        self.request.try_acquire()
    }

    /// Waits for the lock for at most `span`. If it was not granted by then, says who holds it.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub fn lock_within(
        &self,
        span: Duration,
    ) -> impl Future<Output = Result<Lease, TryLockError>> + Send + '_ {
        self.request.acquire_within(span)
    }

    /// Runs `work` while holding the lock, and stops it when the lease is lost; see
    /// [`Client::with`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and gives the lease back.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T> {
        let lease = self.lock().await?;
        Client::while_held(lease, work).await
    }
}
