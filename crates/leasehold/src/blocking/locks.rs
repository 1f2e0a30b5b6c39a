//! Read/write locks and semaphores for threads.

use std::ops::Deref;
use std::time::Duration;

use super::Lease;
use super::shared_runtime::SharedRuntime;
use crate::error::{Result, TryLockError};
use crate::options::LockOptions;
use crate::rule::claim::Released;

/// A read/write lock for threads; see [`crate::RwLock`].
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::connect("memory:")?;
/// let lock = client.rwlock("catalogue");
/// let writer = lock.write()?;
/// let reader = writer.downgrade()?;
/// assert!(lock.try_read().is_ok());
/// reader.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct RwLock {
    pub(super) lock: crate::RwLock,
    pub(super) runtime: SharedRuntime,
}

impl RwLock {
    /// How long a lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { lock: self.lock.note(note), ..self }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { lock: self.lock.options(options), ..self }
    }

    /// Blocks until no writer holds or waits before it.
    pub fn read(&self) -> Result<ReadLease> {
        Ok(self.reads(self.runtime.block_on(self.lock.read())?))
    }

    /// Reads if that is possible now; not while a writer holds or waits.
    pub fn try_read(&self) -> Result<ReadLease, TryLockError> {
        self.runtime.block_on(self.lock.try_read()).map(|lease| self.reads(lease))
    }

    /// Blocks for at most `span`. If it was not granted by then, says who holds.
    pub fn read_within(&self, span: Duration) -> Result<ReadLease, TryLockError> {
        self.runtime.block_on(self.lock.read_within(span)).map(|lease| self.reads(lease))
    }

    /// Blocks until all claims before it have ended.
    pub fn write(&self) -> Result<WriteLease> {
        Ok(self.writes(self.runtime.block_on(self.lock.write())?))
    }

    /// Writes if that is possible now; not while another claim holds or waits.
    pub fn try_write(&self) -> Result<WriteLease, TryLockError> {
        self.runtime.block_on(self.lock.try_write()).map(|lease| self.writes(lease))
    }

    /// Blocks for at most `span`. If it was not granted by then, says who holds.
    pub fn write_within(&self, span: Duration) -> Result<WriteLease, TryLockError> {
        self.runtime.block_on(self.lock.write_within(span)).map(|lease| self.writes(lease))
    }

    fn reads(&self, lease: crate::ReadLease) -> ReadLease {
        ReadLease { lease, runtime: self.runtime.clone() }
    }

    fn writes(&self, lease: crate::WriteLease) -> WriteLease {
        WriteLease { lease, runtime: self.runtime.clone() }
    }
}

/// One reader's share; see [`crate::ReadLease`]. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct ReadLease {
    lease: crate::ReadLease,
    runtime: SharedRuntime,
}

impl ReadLease {
    /// Goes on as the writer if no other reader holds. Otherwise it returns the unchanged lease.
    pub fn try_upgrade(self) -> Result<std::result::Result<WriteLease, ReadLease>> {
        let Self { lease, runtime } = self;
        Ok(match runtime.block_on(lease.try_upgrade())? {
            Ok(lease) => Ok(WriteLease { lease, runtime }),
            Err(lease) => Err(ReadLease { lease, runtime }),
        })
    }

    /// Gives the lease back and returns the outcome.
    pub fn release(self) -> Result<Released> {
        self.runtime.block_on(self.lease.release())
    }
}

impl Deref for ReadLease {
    type Target = crate::Lease;

    fn deref(&self) -> &crate::Lease {
        &self.lease
    }
}

/// A lock that is held for writing; see [`crate::WriteLease`]. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct WriteLease {
    lease: crate::WriteLease,
    runtime: SharedRuntime,
}

impl WriteLease {
    /// Goes on as a reader, and lets in the readers that wait next.
    pub fn downgrade(self) -> Result<ReadLease> {
        let Self { lease, runtime } = self;
        let lease = runtime.block_on(lease.downgrade())?;
        Ok(ReadLease { lease, runtime })
    }

    /// Gives the lease back and returns the outcome.
    pub fn release(self) -> Result<Released> {
        self.runtime.block_on(self.lease.release())
    }
}

impl Deref for WriteLease {
    type Target = crate::Lease;

    fn deref(&self) -> &crate::Lease {
        &self.lease
    }
}

/// A semaphore for threads; see [`crate::Semaphore`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Semaphore {
    pub(super) semaphore: crate::Semaphore,
    pub(super) runtime: SharedRuntime,
}

impl Semaphore {
    /// How long a lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { semaphore: self.semaphore.ttl(ttl), ..self }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { semaphore: self.semaphore.note(note), ..self }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { semaphore: self.semaphore.options(options), ..self }
    }

    /// Blocks until there is a permit.
    pub fn acquire(&self) -> Result<Lease> {
        self.acquire_many(1)
    }

    /// Blocks until there are `take` permits at once.
    pub fn acquire_many(&self, take: u32) -> Result<Lease> {
        Ok(self.lease(self.runtime.block_on(self.semaphore.acquire_many(take))?))
    }

    /// Takes one permit if one is free now and no claim waits; else says who holds.
    pub fn try_acquire(&self) -> Result<Lease, TryLockError> {
        self.try_acquire_many(1)
    }

    /// Takes `take` permits if they are free now and no claim waits; else says who holds.
    pub fn try_acquire_many(&self, take: u32) -> Result<Lease, TryLockError> {
        let asked = self.runtime.block_on(self.semaphore.try_acquire_many(take));
        asked.map(|lease| self.lease(lease))
    }

    /// Blocks for at most `span`. If there were not `take` permits by then, says who holds.
    pub fn acquire_many_within(&self, take: u32, span: Duration) -> Result<Lease, TryLockError> {
        let asked = self.runtime.block_on(self.semaphore.acquire_many_within(take, span));
        asked.map(|lease| self.lease(lease))
    }

    fn lease(&self, lease: crate::Lease) -> Lease {
        Lease { lease, runtime: self.runtime.clone() }
    }
}
