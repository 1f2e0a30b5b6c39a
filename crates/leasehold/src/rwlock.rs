//! The read/write lock: many readers or one writer, in order of arrival.
//!
//! Readers and writers stand in one line, so a writer that waits stops the readers behind it and
//! nobody starves. What a reader or writer holds is a [`Lease`] that also knows how to become the
//! other.

use std::ops::Deref;
use std::time::Duration;

use crate::acquire::Request;
use crate::claim::{Amended, Amendment, Mode, Released};
use crate::error::{Error, LostCause, Result};
use crate::lease::Lease;

/// A lock that many readers or one writer have; made by [`Client::rwlock`](crate::Client::rwlock).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let lock = client.rwlock("catalogue");
/// let writer = lock.write().await?;
/// // Written; now let others read beside us, and no writer in between.
/// let reader = writer.downgrade().await?;
/// assert!(lock.try_read().await?.is_some());
/// assert!(lock.try_write().await?.is_none());
/// reader.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// It holds nothing itself and can be kept, cloned and used from many tasks. A task that holds a
/// [`ReadLease`] and waits for another one may wait for ever: a writer may stand in between, and
/// it waits for the first.
#[derive(Debug, Clone)]
pub struct RwLock {
    request: Request,
}

impl RwLock {
    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// How long a lease lasts without renewal: 100 ms to 24 h, 30 s unless said otherwise.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl) }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { request: self.request.note(note) }
    }

    /// Gives a lease back after this long, whatever its holder does.
    pub fn max_hold(self, span: Duration) -> Self {
        Self { request: self.request.max_hold(span) }
    }

    fn as_mode(&self, mode: Mode) -> Request {
        self.request.clone().mode(mode)
    }

    /// Waits to read for as long as it takes: until no writer holds or came before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    pub async fn read(&self) -> Result<ReadLease> {
        self.as_mode(Mode::Shared).acquire().await.map(ReadLease)
    }

    /// Reads if that is possible now; `None` if a writer holds or waits.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<ReadLease>> {
        Ok(self.as_mode(Mode::Shared).try_acquire().await?.map(ReadLease))
    }

    /// Waits to read for at most `span`; `None` if it was not granted by then.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn read_within(&self, span: Duration) -> Result<Option<ReadLease>> {
        Ok(self.as_mode(Mode::Shared).acquire_within(span).await?.map(ReadLease))
    }

    /// Waits to write for as long as it takes: until everybody who came before is done.
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read); the readers that it stopped go on.
    pub async fn write(&self) -> Result<WriteLease> {
        self.as_mode(Mode::Exclusive).acquire().await.map(WriteLease)
    }

    /// Writes if that is possible now; `None` if anybody holds or waits.
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
    pub async fn try_write(&self) -> Result<Option<WriteLease>> {
        Ok(self.as_mode(Mode::Exclusive).try_acquire().await?.map(WriteLease))
    }

    /// Waits to write for at most `span`; `None` if it was not granted by then.
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
    pub async fn write_within(&self, span: Duration) -> Result<Option<WriteLease>> {
        Ok(self.as_mode(Mode::Exclusive).acquire_within(span).await?.map(WriteLease))
    }
}

/// One reader's share of a [`RwLock`]. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct ReadLease(Lease);

/// A [`RwLock`] that is held for writing. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct WriteLease(Lease);

impl WriteLease {
    /// Goes on as a reader, and lets the readers in that wait next. No writer gets in between, and
    /// the fence stays.
    ///
    /// An error says that the lease is lost, or that the store could not be asked or cannot do it
    /// (etcd and Redlock); the lease is then given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lease back.
    pub async fn downgrade(self) -> Result<ReadLease> {
        match self.0.amend(&Amendment::mode(Mode::Shared)).await? {
            Amended::Done => Ok(ReadLease(self.0)),
            // The rule takes that from every writer; a lease that is none came by a handle.
            _ => Err(Error::Lost { name: self.name().clone(), cause: LostCause::Removed }),
        }
    }

    /// Gives the lease back and says what became of it.
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
    /// Goes on as the writer, if no other reader holds; otherwise the lease comes back as it was.
    ///
    /// Who waits goes on waiting. The fence stays, so a resource that has seen the fence of a
    /// reader who came later, and is gone again, refuses this writer: take
    /// [`write`](RwLock::write) there. To wait until the others are done would be a deadlock as
    /// soon as two readers do; give the lease back and wait for [`write`](RwLock::write) instead.
    ///
    /// An error says that the lease is lost, or that the store could not be asked or cannot do it
    /// (etcd and Redlock); the lease is then given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the lease back.
    pub async fn try_upgrade(self) -> Result<std::result::Result<WriteLease, ReadLease>> {
        Ok(match self.0.amend(&Amendment::mode(Mode::Exclusive)).await? {
            Amended::Done => Ok(WriteLease(self.0)),
            _ => Err(self),
        })
    }

    /// Gives the lease back and says what became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes the release in the background.
    pub async fn release(self) -> Result<Released> {
        self.0.release().await
    }

    /// The plain lease, which has everything but [`try_upgrade`](Self::try_upgrade).
    pub fn into_lease(self) -> Lease {
        self.0
    }
}

impl Deref for ReadLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

impl Deref for WriteLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}
