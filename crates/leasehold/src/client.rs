//! A connection to a store, and everything that is asked of it.
//!
//! The client owns the identity of its holder and the keeper of its claims. How a claim waits is
//! in `acquire.rs`, how a store is found by its URL in `scheme.rs`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use tokio::sync::Mutex as AsyncMutex;

use crate::acquire::Request;
use crate::claim::{Holder, Mode, Released, Renewal, Standing, Ttl};
use crate::clock::{Clock, SystemClock};
use crate::election::Election;
use crate::engine::{
    Bump, Bumped, Engine, Event, Eviction, Finding, Info, LineView, Page, Query, Resize, Resized,
    Totals,
};
use crate::error::{Config, Error, Invalid, Result, TooMany};
use crate::handle::Handle;
use crate::keeper::Keeper;
use crate::lane::{LANES, Lane, lane};
use crate::layer::retry::RetryPolicy;
use crate::lease::Lease;
use crate::memory::Memory;
use crate::mutex::Mutex;
use crate::name::Name;
use crate::observe::{Observer, Stats};
use crate::once::Once;
use crate::rate_limiter::RateLimiter;
use crate::rwlock::RwLock;
use crate::scheme;
use crate::scope::Scope;
use crate::search;
use crate::semaphore::Semaphore;
use crate::tenure::{Tenure, Terms};

/// How many poisoned names a client remembers; the oldest are forgotten first.
const POISONED_MAX: usize = 1_024;

/// Connects to the store at `url` with the default settings.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let lease = client.mutex("job:settle:42").lock().await?;
/// println!("one at a time, fence {}", lease.fence());
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    Client::builder().connect(url).await
}

/// A connected client. Clones are the same client.
///
/// One identity, one keeper: all that a client holds is renewed together and released together by
/// [`close`](Self::close). When the last clone and the last lease are dropped, what is left is
/// released in the background.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    anchors: Arc<[Anchor; LANES]>,
}

/// What a lease keeps its client alive by, and whose name it is made in: one for each lane, so
/// that the leases of different threads do not count on one cache line.
pub(crate) type Anchor = Arc<Lane<Mooring>>;

#[derive(Debug)]
pub(crate) struct Mooring {
    pub(crate) inner: Arc<Inner>,
    pub(crate) holder: Holder,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) holder: Holder,
    pub(crate) renew_at_percent: u32,
    pub(crate) reentry: Reentry,
    pub(crate) poison: Poison,
    /// How long a claim waits before a deadlock is looked for; never, if `None`.
    pub(crate) deadlock_period: Option<Duration>,
    /// Whether this is a holder that does one thing at a time: see [`Client::apart`].
    pub(crate) alone: bool,
    employment: Arc<Employment>,
}

/// Ends the keeper's work when nobody needs it any more: a client, or one that is apart from it.
#[derive(Debug)]
struct Employment(Arc<Keeper>);

impl Drop for Employment {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// Settings of a client before it connects.
#[derive(Debug, Default)]
pub struct ClientBuilder {
    holder: Option<Holder>,
    label: Option<String>,
    retry: RetryPolicy,
    observer: Option<Arc<dyn Observer>>,
    clock: Option<Arc<dyn Clock>>,
    renew_at_percent: Option<u32>,
    deadlock_period: Option<Option<Duration>>,
}

impl ClientBuilder {
    /// The label people see; `HOST:PID:RANDOM` unless said otherwise. The identity stays random.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Takes up an identity that exists already, so that several clients are one holder.
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = Some(holder);
        self
    }

    /// How transient errors are tried again.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Where measurements go.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The clock deadlines count on; the machine's boot clock unless said otherwise.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Which part of the ttl passes before the first renewal: 10 to 90 percent, 60 unless said
    /// otherwise.
    pub fn renew_at_percent(mut self, percent: u32) -> Self {
        self.renew_at_percent = Some(percent);
        self
    }

    /// How long a claim waits before a deadlock is looked for, and between looks: 10 ms to 1 h, 1 s
    /// unless said otherwise. `None` turns it off for this client.
    ///
    /// A wait costs nothing before that, and nothing at all if its task holds no other lease. What
    /// counts as a deadlock, and what cannot be seen, is in the safety page of the documentation.
    pub fn deadlock_detection(mut self, period: impl Into<Option<Duration>>) -> Self {
        self.deadlock_period = Some(period.into());
        self
    }

    /// Connects to the store at `url`.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Client> {
        let engine = scheme::open(url.as_ref()).await?;
        self.build(engine)
    }

    /// Makes a client of an engine that is already there.
    pub fn engine(self, engine: impl Engine) -> Result<Client> {
        self.build(Arc::new(engine))
    }

    fn build(self, engine: Arc<dyn Engine>) -> Result<Client> {
        let renew_at_percent = self.renew_at_percent.unwrap_or(60);
        if !(10..=90).contains(&renew_at_percent) {
            let (what, rule) = ("renew_at_percent", "between 10 and 90");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let deadlock_period = self.deadlock_period.unwrap_or(Some(search::PERIOD));
        let in_bounds = |period| (search::PERIOD_MIN..=search::PERIOD_MAX).contains(period);
        if !deadlock_period.as_ref().is_none_or(in_bounds) {
            let (what, rule) = ("deadlock_detection", "between 10 ms and 1 h");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let holder = match (self.holder, self.label) {
            (Some(holder), Some(label)) => Holder::known(holder.id(), label)?,
            (Some(holder), None) => holder,
            (None, Some(label)) => Holder::labelled(label)?,
            (None, None) => Holder::fresh(),
        };
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let keeper = Keeper::new(engine, self.retry, clock, self.observer);
        Ok(Client::of(Inner {
            employment: Arc::new(Employment(Arc::clone(&keeper))),
            keeper,
            holder,
            renew_at_percent,
            reentry: Reentry::default(),
            poison: Poison::default(),
            deadlock_period,
            alone: false,
        }))
    }
}

impl Memory {
    /// A client of this store, on the store's clock.
    pub fn client(&self) -> Result<Client> {
        Client::builder().clock(self.clock()).engine(self.clone())
    }
}

impl Client {
    /// Settings for a client other than the default ones.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A tenure of this client: one that does one thing at a time says so.
    pub(crate) fn put_in_scope(&self, tenure: &Tenure) {
        if self.inner.alone {
            tenure.usage.belongs_to(Scope::alone(self.inner.holder.id()));
        }
    }

    fn of(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let anchors = std::array::from_fn(|_| {
            let holder = inner.holder.apart();
            Arc::new(Lane(Mooring { inner: Arc::clone(&inner), holder }))
        });
        Self { inner, anchors: Arc::new(anchors) }
    }

    /// A holder of its own that shares this client's connections and keeper: for a worker inside
    /// the program that does one thing at a time.
    ///
    /// To others it is another holder, with this label. Deadlock detection takes it by its word:
    /// whatever it holds, it keeps while it waits, in whatever tasks that happens.
    /// [`close`](Self::close) of either closes both.
    pub fn apart(&self, label: impl AsRef<str>) -> Result<Client> {
        let inner = &self.inner;
        Ok(Self::of(Inner {
            keeper: Arc::clone(&inner.keeper),
            holder: Holder::labelled(label)?,
            renew_at_percent: inner.renew_at_percent,
            reentry: Reentry::default(),
            poison: Poison::default(),
            deadlock_period: inner.deadlock_period,
            alone: true,
            employment: Arc::clone(&inner.employment),
        }))
    }

    pub(crate) fn anchor(&self) -> &Anchor {
        &self.anchors[lane()]
    }

    /// A lock that one holder at a time has.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.claim(name))
    }

    /// A lock that many readers or one writer have.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.claim(name))
    }

    /// `limit` permits for all machines together.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.claim(name), limit)
    }

    /// An office that one candidate at a time holds.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.claim(name))
    }

    /// `units` in any window of `period`, for all machines together.
    pub fn rate_limiter(&self, name: impl AsRef<str>, units: u32, period: Duration) -> RateLimiter {
        RateLimiter::new(self.claim(name), units, period)
    }

    /// Work that is done at most once in each period of `every`, for all machines together.
    pub fn once(&self, name: impl AsRef<str>, every: Duration) -> Once {
        Once::new(self.claim(name), every)
    }

    /// A claim of any mode, with all options: what the primitives are made of.
    pub fn claim(&self, name: impl AsRef<str>) -> Request {
        Request::new(self.clone(), name)
    }

    /// Runs `work` while holding `name`, and stops it when the lease is lost.
    ///
    /// The work is dropped at its next await point when the lease is lost, and the error says
    /// why. If it panics, the lease is given back, the name is marked as poisoned, and the panic
    /// goes on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::connect("memory:").await?;
    /// let sum = client.with("report", async |lease| lease.fence() + 1).await?;
    /// assert!(sum > 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and gives the lease back.
    pub async fn with<T>(
        &self,
        name: impl AsRef<str>,
        work: impl AsyncFnOnce(&Lease) -> T,
    ) -> Result<T> {
        self.mutex(name).with(work).await
    }

    /// Who this client is in the store.
    pub fn holder(&self) -> &Holder {
        &self.inner.holder
    }

    /// What the store is and can promise.
    pub fn info(&self) -> &Info {
        self.inner.keeper.engine.info()
    }

    /// What this client did and has.
    pub fn stats(&self) -> Stats {
        self.inner.keeper.stats()
    }

    /// What all clients of the store did, as far as they told it, and what is in its lines.
    pub async fn store_stats(&self) -> Result<Totals> {
        self.inner.keeper.engine.totals().await
    }

    /// Reads lines, a page at a time.
    pub async fn inspect(&self, query: &Query) -> Result<Page> {
        self.inner.keeper.engine.inspect(query).await
    }

    /// Reads one line; `None` if nobody is in it.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<Option<LineView>> {
        let page = self.inspect(&Query::name(Name::new(name)?)).await?;
        Ok(page.lines.into_iter().next())
    }

    /// Events from now on; those of one name in the order in which they happened.
    pub async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        self.inner.keeper.engine.watch(query).await
    }

    /// Takes a name from whoever holds it; returns them. The next fence is greater.
    pub async fn force_release(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let order = Eviction {
            name: Name::new(name)?,
            by: self.inner.holder.clone(),
            reason: reason.into(),
        };
        self.inner.keeper.engine.evict(&order).await
    }

    /// Gives a semaphore that is in use another limit, for everybody in its line; returns the one
    /// before, or `None` if nobody is in line and whoever comes next sets it.
    ///
    /// Who then still asks with the old limit is refused with [`Error::Mismatch`]. The limit cannot
    /// be lowered below what is held or what somebody waits for: [`Error::InUse`].
    pub async fn resize(&self, name: impl AsRef<str>, limit: u32) -> Result<Option<u32>> {
        Mode::Permits { take: 1, of: limit }.checked()?;
        let name = Name::new(name)?;
        let order = Resize { name, of: limit, by: self.inner.holder.clone() };
        let why = match self.inner.keeper.engine.resize(&order).await? {
            Resized::Done { before } => {
                let (name, by) = (&order.name, order.by.label());
                tracing::warn!(%name, by, limit, before, "resized");
                return Ok(Some(before));
            }
            Resized::Unused => return Ok(None),
            Resized::Held { units } => TooMany::Held(units),
            Resized::Wanted { units } => TooMany::Wanted(units),
        };
        Err(Error::InUse { name: order.name, of: limit, why })
    }

    /// Lets fences go on above everything that was ever given out: once after the store was
    /// restored from a backup, before anybody works with it again. `above` is a fence that was seen
    /// somewhere and must be exceeded, if the clock should not be trusted with that.
    ///
    /// Leases and places in line stay as they are. It does no harm when it is repeated, or where
    /// nothing was restored.
    pub async fn bump_epoch(&self, above: Option<u64>) -> Result<Bumped> {
        let above = above.unwrap_or(0);
        if above > Bump::ABOVE_MAX {
            let (what, rule) = ("a fence to be exceeded", "at most 2^62");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX).min(Bump::ABOVE_MAX);
        let order = Bump { above, now_us, by: self.inner.holder.clone() };
        self.inner.keeper.engine.bump_epoch(&order).await
    }

    /// Looks at the store's settings with the eyes of somebody who needs the promises kept.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.keeper.engine.examine().await
    }

    /// Installs what the store needs; harmless when it is there.
    pub async fn install(&self) -> Result<()> {
        self.inner.keeper.engine.install().await
    }

    /// The statements [`install`](Self::install) runs; empty where there are none.
    pub fn schema(&self) -> &'static str {
        self.inner.keeper.engine.schema()
    }

    /// Takes up a lease by its handle: renews it at once and from then on.
    pub async fn adopt(&self, handle: &Handle) -> Result<Lease> {
        self.adopt_with(handle, handle.ttl()).await
    }

    /// Takes up a lease by its handle with another time to live.
    pub async fn adopt_with(&self, handle: &Handle, ttl: Duration) -> Result<Lease> {
        let keeper = &self.inner.keeper;
        self.refuse_other_store(handle)?;
        let terms = Terms {
            ttl: Ttl::new(ttl)?,
            renew: true,
            renew_at_percent: self.inner.renew_at_percent,
            bounds: None,
        };
        let sent = keeper.clock.now();
        let tenure = Arc::new(Tenure::new(handle.key.clone(), terms, sent));
        let key = handle.key.clone();
        let renewal = Renewal { key, ttl, patience: ttl };
        let answers = keeper.engine.renew(std::slice::from_ref(&renewal)).await?;
        let name = handle.name().clone();
        match answers.into_iter().next().transpose()? {
            Some(Standing::Held { fence, remaining }) => {
                keeper.enter(&tenure)?;
                let now = keeper.clock.now();
                let Some(due) = tenure.hold(fence, sent, remaining, now) else {
                    keeper.forget(&tenure);
                    return Err(Error::TooSlow { name, took: now.since(sent) });
                };
                keeper.counters.adopted();
                keeper.expect_at(due);
                Ok(Lease::new(self, tenure, fence))
            }
            Some(Standing::Out { by, .. }) => Err(Error::Stale { name, by }),
            _ => Err(Error::Stale { name, by: None }),
        }
    }

    /// Gives back the lease of a handle without taking it up first, and says what became of it.
    pub async fn release(&self, handle: &Handle) -> Result<Released> {
        self.refuse_other_store(handle)?;
        let keeper = &self.inner.keeper;
        let answers = keeper.engine.release(std::slice::from_ref(&handle.key)).await?;
        let released = answers.into_iter().next().unwrap_or(Released::AlreadyExpired);
        if released == Released::Released {
            keeper.counters.adopted();
            keeper.counters.released();
        }
        Ok(released)
    }

    /// How long the lease of a handle is still held, without touching it; `None` if it is not.
    ///
    /// The lease is known by its fence; only changing it needs the secret in the handle.
    pub async fn check(&self, handle: &Handle) -> Result<Option<Duration>> {
        self.refuse_other_store(handle)?;
        let line = self.show(handle.name().as_str()).await?;
        let held = line.into_iter().flat_map(|line| line.held);
        Ok(held.into_iter().find(|held| held.fence == handle.fence()).map(|held| held.remaining))
    }

    fn refuse_other_store(&self, handle: &Handle) -> Result<()> {
        if handle.store_id != self.info().store_id {
            return Err(Error::Config(Config::OtherStore));
        }
        Ok(())
    }

    /// Forgets that a holder of `name` in this process panicked.
    pub fn clear_poison(&self, name: &Name) {
        self.inner.poison.clear(name);
    }

    /// Releases everything this client holds or waits for, and waits until the store knows.
    ///
    /// Leases that are still around are lost, and claims that wait end with
    /// [`Error::Closed`].
    pub async fn close(&self) -> Result<()> {
        self.inner.keeper.close().await;
        self.inner.keeper.engine.close().await
    }

    /// Runs `work` until it ends or the lease is lost.
    pub(crate) async fn while_held<T>(
        lease: Lease,
        work: impl AsyncFnOnce(&Lease) -> T,
    ) -> Result<T> {
        match lease.while_held(work(&lease)).await {
            Ok(value) => {
                // The work is done; that giving back failed must not hide its outcome. The
                // keeper goes on trying.
                if let Err(error) = lease.release().await {
                    tracing::warn!(%error, "release failed; it goes on in the background");
                }
                Ok(value)
            }
            Err(cause) => Err(Error::Lost { name: lease.name().clone(), cause }),
        }
    }
}

/// The way into names that may be entered again.
#[derive(Debug, Default)]
pub(crate) struct Reentry {
    entrances: StdMutex<HashMap<Name, Entrance>>,
}

type Entrance = Arc<AsyncMutex<Weak<Tenure>>>;

impl Reentry {
    pub(crate) fn entrance(&self, name: &Name) -> Entrance {
        let mut entrances = self.entrances.lock().unwrap_or_else(PoisonError::into_inner);
        if entrances.len() >= entrances.capacity() {
            // About to grow: first drop the entrances that lead nowhere and nobody stands in.
            entrances.retain(|_, entrance| {
                let used = Arc::strong_count(entrance) > 1;
                used || entrance.try_lock().is_ok_and(|inside| inside.strong_count() > 0)
            });
        }
        Arc::clone(entrances.entry(name.clone()).or_default())
    }
}

/// Names whose last holder in this process panicked.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    names: StdMutex<VecDeque<Name>>,
}

impl Poison {
    fn names(&self) -> MutexGuard<'_, VecDeque<Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_set(&self, name: &Name) -> bool {
        self.names().contains(name)
    }

    pub(crate) fn set(&self, name: &Name) {
        let mut names = self.names();
        if !names.contains(name) {
            if names.len() == POISONED_MAX {
                names.pop_front();
            }
            names.push_back(name.clone());
        }
    }

    fn clear(&self, name: &Name) {
        self.names().retain(|other| other != name);
    }
}
