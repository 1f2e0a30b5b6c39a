//! The same locks for threads: every call blocks until its answer is there.
//!
//! A thin layer over the asynchronous client, with a small runtime of its own. Do not use it
//! inside an asynchronous task; use [`Client`](crate::Client) there.

mod locks;
mod shared_runtime;
mod tasks;

use std::time::{Duration, SystemTime};

use crate::error::{Error, LostCause, Result, TryLockError};
use crate::handle::Handle;
use crate::options::LockOptions;
use crate::rule::claim::Released;
use crate::rule::fence::Fence;
use crate::rule::name::Name;
use crate::runtime::claim_state::LeaseState;

use shared_runtime::SharedRuntime;

pub use locks::{ReadLease, RwLock, Semaphore, WriteLease};
pub use tasks::{Election, Leaders, Leadership, Once, RateLimiter};

/// Connects to the store at `url` with the default settings.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::connect("memory:")?;
/// let lease = client.mutex("job:settle:42").lock()?;
/// println!("one at a time, fence {}", lease.fence());
/// lease.release()?;
/// # Ok(())
/// # }
/// ```
pub fn connect(url: impl AsRef<str>) -> Result<Client> {
    let runtime = runtime()?;
    let client = runtime.block_on(crate::connect(url))?;
    Ok(Client { client, runtime })
}

fn runtime() -> Result<SharedRuntime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map(SharedRuntime::new).map_err(|error| Error::Store {
        store: "this process".into(),
        cause: format!("cannot start a runtime: {error}"),
        transient: false,
    })
}

/// A client for threads; see [`crate::Client`].
#[derive(Debug, Clone)]
pub struct Client {
    client: crate::Client,
    runtime: SharedRuntime,
}

impl Client {
    /// Connects with the settings of `builder`.
    pub fn connect(builder: crate::ClientBuilder, url: impl AsRef<str>) -> Result<Self> {
        let runtime = runtime()?;
        let client = runtime.block_on(builder.connect(url))?;
        Ok(Self { client, runtime })
    }

    /// A lock that one holder at a time has.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex { mutex: self.client.mutex(name), runtime: self.runtime.clone() }
    }

    /// A lock that many readers or one writer have.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { lock: self.client.rwlock(name), runtime: self.runtime.clone() }
    }

    /// `limit` permits for all machines together.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        let semaphore = self.client.semaphore(name, limit);
        Semaphore { semaphore, runtime: self.runtime.clone() }
    }

    /// An election with one leader at a time.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election { election: self.client.election(name), runtime: self.runtime.clone() }
    }

    /// `units` in any window of `period`, for all machines together.
    pub fn rate_limiter(&self, name: impl AsRef<str>, units: u32, period: Duration) -> RateLimiter {
        let limiter = self.client.rate_limiter(name, units, period);
        RateLimiter { limiter, runtime: self.runtime.clone() }
    }

    /// Work that is done at most once in each period of `every`, for all machines together.
    pub fn once(&self, name: impl AsRef<str>, every: Duration) -> Once {
        Once { once: self.client.once(name, every), runtime: self.runtime.clone() }
    }

    /// The asynchronous client, for everything that has no blocking form.
    pub fn client(&self) -> &crate::Client {
        &self.client
    }

    /// Takes a name from its holders and holds it, before those who wait. See
    /// [`Admin::steal`](crate::Admin::steal).
    pub fn steal(&self, name: impl AsRef<str>, reason: impl Into<String>) -> Result<Lease> {
        self.steal_with(name, reason, LockOptions::new())
    }

    /// The same with options of the lease, such as its ttl and note.
    pub fn steal_with(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
        options: LockOptions,
    ) -> Result<Lease> {
        let stolen = self.client.admin().steal_with(name, reason, options);
        let lease = self.runtime.block_on(stolen)?;
        Ok(Lease { lease, runtime: self.runtime.clone() })
    }

    /// Adopts a lease by its handle: renews it at once and from then on.
    pub fn adopt(&self, handle: &Handle) -> Result<Lease> {
        let lease = self.runtime.block_on(self.client.adopt(handle))?;
        Ok(Lease { lease, runtime: self.runtime.clone() })
    }

    /// Renews the lease of a handle once; returns how long it lasts from now on. See
    /// [`crate::Client::renew`].
    pub fn renew(&self, handle: &Handle) -> Result<Duration> {
        self.runtime.block_on(self.client.renew(handle))
    }

    /// Gives back every lease that this client holds; returns how many they were. See
    /// [`crate::Client::release_all`].
    pub fn release_all(&self) -> Result<usize> {
        self.runtime.block_on(self.client.release_all())
    }

    /// Releases all leases and waits of this client, and blocks until the store has answered.
    pub fn close(&self) -> Result<()> {
        self.runtime.block_on(self.client.close())
    }
}

/// A lock for threads; see [`crate::Mutex`].
///
#[cfg_attr(doctest, doc = "```compile_fail")]
#[cfg_attr(doctest, doc = "#![deny(unused_must_use)]")]
#[cfg_attr(doctest, doc = "fn report(client: leasehold::blocking::Client) {")]
#[cfg_attr(doctest, doc = "    client.mutex(\"report\");")]
#[cfg_attr(doctest, doc = "}")]
#[cfg_attr(doctest, doc = "```")]
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Mutex {
    mutex: crate::Mutex,
    runtime: SharedRuntime,
}

impl Mutex {
    /// How long the lease lasts without renewal: 100 ms to 24 h, by default 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { mutex: self.mutex.ttl(ttl), ..self }
    }

    /// Text for others to read: up to 4 KiB.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { mutex: self.mutex.note(note), ..self }
    }

    /// Sets options. Other options stay as they are.
    pub fn options(self, options: LockOptions) -> Self {
        Self { mutex: self.mutex.options(options), ..self }
    }

    /// Blocks until the caller holds the lock.
    pub fn lock(&self) -> Result<Lease> {
        Ok(self.lease(self.runtime.block_on(self.mutex.lock())?))
    }

    /// Takes the lock if it is free now; else says who holds it.
    pub fn try_lock(&self) -> Result<Lease, TryLockError> {
        self.runtime.block_on(self.mutex.try_lock()).map(|lease| self.lease(lease))
    }

    /// Blocks for at most `span`. If the lock was not granted by then, says who holds it.
    pub fn lock_within(&self, span: Duration) -> Result<Lease, TryLockError> {
        self.runtime.block_on(self.mutex.lock_within(span)).map(|lease| self.lease(lease))
    }

    fn lease(&self, lease: crate::Lease) -> Lease {
        Lease { lease, runtime: self.runtime.clone() }
    }
}

/// A lock that a thread holds; see [`crate::Lease`]. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct Lease {
    lease: crate::Lease,
    runtime: SharedRuntime,
}

impl Lease {
    /// The name of the lock.
    pub fn name(&self) -> &Name {
        self.lease.name()
    }

    /// The fencing token.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// How the lease stands at this instant.
    pub fn state(&self) -> LeaseState {
        self.lease.state()
    }

    /// Whether the lease is held at this instant.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// When the lease was granted, or adopted by its handle, on this machine's wall clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.lease.acquired_at()
    }

    /// Calls `callback` once when the lease is lost; see [`crate::Lease::on_lost`].
    pub fn on_lost(&self, callback: impl FnOnce(&LostCause) + Send + 'static) {
        self.lease.on_lost(callback);
    }

    /// Calls `callback` after each renewal; see [`crate::Lease::on_renewed`].
    pub fn on_renewed(&self, callback: impl Fn(Duration) + Send + Sync + 'static) {
        self.lease.on_renewed(callback);
    }

    /// How long the lease lasts even if the store never answers again.
    pub fn time_left(&self) -> Duration {
        self.lease.time_left()
    }

    /// Blocks until the lease is lost, and returns the cause.
    pub fn lost(&self) -> LostCause {
        self.runtime.block_on(self.lease.lost())
    }

    /// Sets another time to live and renews at once.
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.runtime.block_on(self.lease.extend(ttl))
    }

    /// Replaces the text that others may read, up to 4 KiB.
    pub fn set_note(&self, note: impl AsRef<str>) -> Result<()> {
        self.runtime.block_on(self.lease.set_note(note))
    }

    /// Replaces the note by JSON.
    #[cfg(feature = "json")]
    pub fn set_note_json(&self, note: &impl serde::Serialize) -> Result<()> {
        self.runtime.block_on(self.lease.set_note_json(note))
    }

    /// The lease as text, which another process can adopt.
    pub fn handle(&self) -> Handle {
        self.lease.handle()
    }

    /// Gives the lease back and returns the outcome.
    pub fn release(self) -> Result<Released> {
        self.runtime.block_on(self.lease.release())
    }
}
