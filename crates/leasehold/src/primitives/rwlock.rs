//! The read/write lock: many readers or one writer, in order of arrival.
//!
//! Readers and writers wait in one line. So a waiting writer stops the readers behind it, and no
//! claim starves. A reader or writer holds a [`Lease`] that can also become the other kind.

use std::ops::Deref;
use std::time::Duration;

use crate::error::{Error, Invalid, LostCause, Result, TryLockError};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::rule::claim::{Amended, Mode, Released};
use crate::runtime::acquire::Request;

/// A lock that many readers or one writer have; made by [`Client::rwlock`](crate::Client::rwlock).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::UnlessHeld;
///
/// let client = leasehold::connect("memory:").await?;
/// let lock = client.rwlock("catalogue");
/// let writer = lock.write().await?;
/// // Written; now let others read beside us, and no writer in between.
/// let reader = writer.downgrade().await?;
/// assert!(lock.try_read().await.is_ok());
/// assert!(lock.try_write().await.unless_held()?.is_none());
/// reader.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// The value holds nothing itself: keep it, clone it and use it from many tasks. A task that holds
/// a [`ReadLease`] and waits for another one may wait for ever. A writer may stand in between, and
/// it waits for the first.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct RwLock {
    request: Request,
}

impl RwLock {
    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// How long a lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl) }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note) }
    }

    /// Sets options. Other options stay as they are. A read/write lock cannot be
    /// [`reentrant`](LockOptions::reentrant).
    pub fn options(self, options: LockOptions) -> Self {
        Self { request: self.request.options(options) }
    }

    /// The request for a mode. Two entries of one writer could downgrade it under each other.
    fn as_mode(&self, mode: Mode) -> Result<Request> {
        if self.request.is_reentrant() {
            let (what, rule) = ("reentrant", "only for exclusive locks");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        Ok(self.request.clone().mode(mode))
    }

    /// Waits to read for as long as it takes: until no writer holds or waits before it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    pub async fn read(&self) -> Result<ReadLease> {
        self.as_mode(Mode::Shared)?.acquire().await.map(ReadLease::new)
    }

    /// Reads if that is possible now; not while a writer holds or waits.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_read(&self) -> Result<ReadLease, TryLockError> {
        self.as_mode(Mode::Shared)?.try_acquire().await.map(ReadLease::new)
    }

    /// Waits to read for at most `span`. If it was not granted by then, says who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn read_within(&self, span: Duration) -> Result<ReadLease, TryLockError> {
        self.as_mode(Mode::Shared)?.acquire_within(span).await.map(ReadLease::new)
    }

    /// Waits to write for as long as it takes: until all claims before it have ended.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read). The readers that waited behind it go on.
    pub async fn write(&self) -> Result<WriteLease> {
        self.as_mode(Mode::Exclusive)?.acquire().await.map(WriteLease)
    }

    /// Writes if that is possible now; not while another claim holds or waits.
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
    pub async fn try_write(&self) -> Result<WriteLease, TryLockError> {
        self.as_mode(Mode::Exclusive)?.try_acquire().await.map(WriteLease)
    }

    /// Waits to write for at most `span`. If it was not granted by then, says who holds.
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
    pub async fn write_within(&self, span: Duration) -> Result<WriteLease, TryLockError> {
        self.as_mode(Mode::Exclusive)?.acquire_within(span).await.map(WriteLease)
    }
}

/// One reader's share of a [`RwLock`]. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct ReadLease {
    lease: Lease,
    /// Whether no request that makes the claim shared can still reach the store.
    upgrades: bool,
}

/// A [`RwLock`] that is held for writing. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct WriteLease(Lease);

impl WriteLease {
    /// Goes on as a reader, and lets in the readers that wait next. No writer gets in between, and
    /// the fence stays.
    ///
    /// An error means that the lease is lost, that the store is unreachable, or that it cannot
    /// downgrade (etcd and Redlock). The client then gives the lease back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lease back.
    pub async fn downgrade(self) -> Result<ReadLease> {
        match self.0.set_mode(Mode::Shared).await? {
            (Amended::Done, requests) => Ok(ReadLease { lease: self.0, upgrades: requests == 1 }),
            // The rule allows this to every writer, so this lease is no writer: it came by handle.
            _ => Err(Error::Lost { name: self.name().clone(), cause: LostCause::Removed }),
        }
    }

    /// Gives the lease back and returns the outcome.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes the release in the background.
    pub async fn release(self) -> Result<Released> {
        self.0.release().await
    }

    /// The plain lease, which has everything but [`downgrade`](Self::downgrade).
    pub fn into_lease(self) -> Lease {
        self.0
    }
}

impl ReadLease {
    fn new(lease: Lease) -> Self {
        Self { lease, upgrades: true }
    }

    /// Goes on as the writer if no other reader holds. Otherwise it returns the unchanged lease.
    /// It also does so if the client had to send its [`downgrade`](WriteLease::downgrade) again.
    /// Then the first request may reach the store late, and would let readers in beside the writer.
    ///
    /// Waiting claims go on waiting. The fence stays. So a resource that has seen the fence of a
    /// later reader refuses this writer, even after that reader has left. For such a resource, use
    /// [`write`](RwLock::write). This never waits for the other readers: two readers that did so
    /// would be a deadlock. To wait, give the lease back and use [`write`](RwLock::write).
    ///
    /// An error means that the lease is lost, that the store is unreachable, or that it cannot
    /// upgrade (etcd and Redlock). The client then gives the lease back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lease back.
    pub async fn try_upgrade(self) -> Result<std::result::Result<WriteLease, ReadLease>> {
        if !self.upgrades {
            return Ok(Err(self));
        }
        Ok(match self.lease.set_mode(Mode::Exclusive).await? {
            (Amended::Done, _requests) => Ok(WriteLease(self.lease)),
            _ => Err(self),
        })
    }

    /// Gives the lease back and returns the outcome.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes the release in the background.
    pub async fn release(self) -> Result<Released> {
        self.lease.release().await
    }

    /// The plain lease, which has everything but [`try_upgrade`](Self::try_upgrade).
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for ReadLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Deref for WriteLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
