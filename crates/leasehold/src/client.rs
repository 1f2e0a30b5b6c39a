//! A connection to a store, and everything that is asked of it.
//!
//! The client owns the identity of its holder and the keeper of its claims. How a claim waits is
//! in `acquire.rs`, how a store is found by its URL in `scheme.rs`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use tokio::sync::Mutex as AsyncMutex;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::kit::thread_shard::{CachePadded, THREAD_SHARDS, thread_shard};
use crate::engine::layer::retry::RetryPolicy;
use crate::engine::layer::shared::{Shared, Thread};
use crate::engine::{
    BrokenLine, Bump, Bumped, Engine, Event, Eviction, Finding, HolderMessage, Info, LineView,
    Page, Parts, Query, Resize, Resized, Totals, unsupported,
};
use crate::engines::memory::Memory;
use crate::engines::scheme;
use crate::error::{Config, Error, Invalid, Result, TooMany};
use crate::handle::Handle;
use crate::lease::Lease;
use crate::observe::{Observer, Stats};
use crate::primitives::election::Election;
use crate::primitives::mutex::Mutex;
use crate::primitives::once::Once;
use crate::primitives::rate_limiter::RateLimiter;
use crate::primitives::rwlock::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::rule::claim::{Holder, Mode, Released, Renewal, Standing, Ttl};
use crate::rule::name::Name;
use crate::runtime::acquire::Request;
use crate::runtime::claim_state::{ClaimState, LeaseTerms};
use crate::runtime::keeper::Keeper;
use crate::runtime::scope::Scope;
use crate::runtime::search;
use crate::runtime::trial;

/// How many poisoned names a client remembers; the oldest are forgotten first.
const POISONED_MAX: usize = 1_024;

/// How often holders that were asked for a lease are looked at, and asked again.
const REVOKE_LOOK: Duration = Duration::from_millis(250);
const REVOKE_AGAIN: Duration = Duration::from_secs(1);

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
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    client_refs: Arc<[ClientRef; THREAD_SHARDS]>,
}

/// Short, because clients stand in users' own types and in the spans of their logs.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (store, holder) = (&self.info().store, self.holder());
        f.debug_struct("Client").field("store", store).field("holder", holder).finish()
    }
}

/// What a lease keeps its client alive by, and whose name it is made in: one for each shard, so
/// that the leases of different threads do not count on one cache line.
pub(crate) type ClientRef = Arc<CachePadded<ClientShard>>;

#[derive(Debug)]
pub(crate) struct ClientShard {
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
    keeper_guard: Arc<KeeperGuard>,
}

/// Ends the keeper's work when nobody needs it any more: a client, or one that is apart from it.
#[derive(Debug)]
struct KeeperGuard(Arc<Keeper>);

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// Settings of a client before it connects.
#[derive(Debug, Default)]
#[must_use = "it does nothing until it connects"]
pub struct ClientBuilder {
    holder: Option<Holder>,
    label: Option<String>,
    retry: RetryPolicy,
    connect_within: Option<Duration>,
    few_connections: bool,
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

    /// How long [`connect`](Self::connect) tries to reach the store; as [`retry`](Self::retry) says
    /// by default.
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect_within = Some(limit);
        self
    }

    /// Makes [`connect`](Self::connect) use as few connections to the store as it can, for
    /// processes of which many run at once: all calls of the client, and its renewals, share those
    /// of one thread. Each call costs a hop between threads, some ten microseconds.
    pub fn few_connections(mut self) -> Self {
        self.few_connections = true;
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

    /// Connects to the store at `url`. A store that cannot be reached, or has no connection to
    /// spare, is tried again, as [`retry`](Self::retry) and
    /// [`connect_within`](Self::connect_within) say.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Client> {
        let retry = match self.connect_within {
            Some(within) => RetryPolicy { times: usize::MAX, within, ..self.retry },
            None => self.retry,
        };
        let url = url.as_ref();
        if !self.few_connections {
            let engine = retry.again(|| scheme::open(url)).await?;
            return self.build(engine);
        }
        let thread = Thread::start()?;
        let open = || {
            let url = url.to_owned();
            thread.run(async move { scheme::open(&url).await })
        };
        let engine = retry.again(open).await?;
        self.build(Shared::on(&thread, engine))
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
            keeper_guard: Arc::new(KeeperGuard(Arc::clone(&keeper))),
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

    /// A claim of this client: one that does one thing at a time says so.
    pub(crate) fn put_in_scope(&self, claim_state: &ClaimState) {
        if self.inner.alone {
            claim_state.usage.belongs_to(Scope::alone(self.inner.holder.id()));
        }
    }

    fn of(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let client_refs = std::array::from_fn(|_| {
            let holder = inner.holder.apart();
            Arc::new(CachePadded(ClientShard { inner: Arc::clone(&inner), holder }))
        });
        Self { inner, client_refs: Arc::new(client_refs) }
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
            keeper_guard: Arc::clone(&inner.keeper_guard),
        }))
    }

    pub(crate) fn client_ref(&self) -> &ClientRef {
        &self.client_refs[thread_shard()]
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

    /// What else the store can do; a part that is absent says that it cannot.
    pub fn parts(&self) -> &Parts {
        &self.inner.keeper.parts
    }

    /// The keeper, unless this is a forked child's copy of the client.
    fn keeper(&self) -> Result<&Keeper> {
        self.inner.keeper.refuse_fork()?;
        Ok(&self.inner.keeper)
    }

    /// The store, unless this is a forked child's copy of the client.
    fn engine(&self) -> Result<&dyn Engine> {
        Ok(&*self.keeper()?.engine)
    }

    /// What this client did and has.
    pub fn stats(&self) -> Stats {
        self.inner.keeper.stats()
    }

    /// What all clients of the store did, as far as they told it, and what is in its lines.
    pub async fn store_stats(&self) -> Result<Totals> {
        let keeper = self.keeper()?;
        let admin = keeper.need(&keeper.parts.admin)?;
        keeper.retry.again(|| admin.totals()).await
    }

    /// Reads lines, a page at a time.
    pub async fn inspect(&self, query: &Query) -> Result<Page> {
        self.engine()?.inspect(query).await
    }

    /// Reads one line; `None` if nobody is in it. An error if nothing of its record can be read.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<Option<LineView>> {
        let page = self.inspect(&Query::name(Name::new(name)?)).await?;
        let line = page.lines.into_iter().next();
        match page.broken.into_iter().next() {
            Some(broken) if line.is_none() => Err(broken.into_error(&self.info().store)),
            _ => Ok(line),
        }
    }

    /// Names whose records cannot be read, the first [`Query::LINES_MAX`] of them. Reads every
    /// line.
    pub async fn broken_lines(&self) -> Result<Vec<BrokenLine>> {
        let mut query = Query::all();
        let mut broken = Vec::new();
        loop {
            let page = self.inspect(&query).await?;
            broken.extend(page.broken);
            match page.next {
                Some(next) if broken.len() < Query::LINES_MAX => query.after = Some(next),
                _ => break,
            }
        }
        broken.truncate(Query::LINES_MAX);
        Ok(broken)
    }

    /// Events from now on; those of one name in the order in which they happened.
    pub async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        let keeper = self.keeper()?;
        let part = keeper.need(&keeper.parts.watch)?;
        keeper.retry.again(|| part.watch(query)).await
    }

    /// Takes a name from all who hold it now; returns them. The next fence is greater. A claim
    /// that is granted meanwhile keeps the name.
    pub async fn force_release(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let name = Name::new(name)?;
        let page = self.inspect(&Query::name(name.clone())).await?;
        let held = page.lines.iter().flat_map(|line| &line.held);
        let fences = held.map(|claim| claim.fence).collect();
        self.evict(name, fences, !page.broken.is_empty(), reason.into()).await
    }

    /// Takes a name from the claims that hold it with one of these fences, such as one permit of
    /// several; returns their holders. Claims with other fences keep it.
    pub async fn force_release_fences(
        &self,
        name: impl AsRef<str>,
        fences: &[u64],
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        self.evict(Name::new(name)?, fences.to_vec(), false, reason.into()).await
    }

    /// Asks those who hold a name now to give it back within this time, and force-releases what
    /// they still hold then; returns whom it took the name from. They learn of it by
    /// [`Lease::revoke_requested`]. Where the store carries no messages to holders, nobody learns
    /// of it, and the call is a late [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    ///
    /// Holders may have been asked. Nothing is taken from them.
    pub async fn revoke(
        &self,
        name: impl AsRef<str>,
        within: Duration,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let name = Name::new(name)?;
        let page = self.inspect(&Query::name(name.clone())).await?;
        let held = page.lines.iter().flat_map(|line| &line.held);
        let fences: Vec<u64> = held.map(|claim| claim.fence).collect();
        self.revoke_fences(name, &fences, within, reason).await
    }

    /// The same for the claims that hold with one of these fences, such as one permit of several.
    pub async fn revoke_fences(
        &self,
        name: impl AsRef<str>,
        fences: &[u64],
        within: Duration,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let (name, reason) = (Name::new(name)?, reason.into());
        let keeper = self.keeper()?;
        keeper.need(&keeper.parts.admin)?;
        let until = keeper.clock.now() + within;
        let by = self.inner.holder.clone();
        let (fences, unreadable) = (fences.to_vec(), false);
        let mut order = Eviction { name: name.clone(), fences, unreadable, by, reason };
        let mut asked_at = None;
        loop {
            let now = keeper.clock.now();
            let page = self.inspect(&Query::name(name.clone())).await?;
            let held: Vec<_> = page.lines.iter().flat_map(|line| &line.held).collect();
            order.fences.retain(|fence| held.iter().any(|claim| claim.fence == *fence));
            if order.fences.is_empty() {
                return Ok(Vec::new());
            }
            if now >= until {
                return self.evict(name, order.fences, false, order.reason).await;
            }
            // Again and again: a client that has just taken the name does not listen yet.
            if asked_at.is_none_or(|at: Moment| now >= at + REVOKE_AGAIN) {
                asked_at = Some(now);
                let messages = HolderMessage::of_revocation(&order, until.since(now));
                keeper.send(&messages).await;
            }
            let pause = REVOKE_LOOK.min(until.since(now));
            keeper.clock.sleep_until(keeper.clock.now() + pause).await;
        }
    }

    async fn evict(
        &self,
        name: Name,
        fences: Vec<u64>,
        unreadable: bool,
        reason: String,
    ) -> Result<Vec<Holder>> {
        let by = self.inner.holder.clone();
        let order = Eviction { name, fences, unreadable, by, reason };
        let keeper = self.keeper()?;
        let admin = keeper.need(&keeper.parts.admin)?;
        let page = self.inspect(&Query::name(order.name.clone())).await?;
        let mut tries = 0;
        let evict = || {
            tries += 1;
            admin.evict(&order)
        };
        let mut evicted = keeper.retry.again(evict).await?;
        if tries > 1 {
            // A try whose answer was lost may have taken the name, and the next one found nobody.
            let held = page.lines.into_iter().flat_map(|line| line.held);
            let gone = held.filter(|claim| order.fences.contains(&claim.fence));
            for holder in gone.map(|claim| claim.holder) {
                if !evicted.contains(&holder) {
                    evicted.push(holder);
                }
            }
        }
        // Also where nobody was found: an earlier try, whose answer was lost, may have taken it.
        keeper.send(&HolderMessage::of_eviction(&order)).await;
        Ok(evicted)
    }

    /// Gives a semaphore that is in use another limit, for everybody in its line; returns the one
    /// before, or `None` if nobody is in line and the next claim sets it.
    ///
    /// Who then still asks with the old limit is refused with [`Error::Mismatch`]. The limit cannot
    /// be lowered below what is held or what somebody waits for: [`Error::InUse`].
    pub async fn resize(&self, name: impl AsRef<str>, limit: u32) -> Result<Option<u32>> {
        Mode::Permits { take: 1, of: limit }.checked()?;
        let name = Name::new(name)?;
        let order = Resize { name, of: limit, by: self.inner.holder.clone() };
        let keeper = self.keeper()?;
        let part = keeper.need(&keeper.parts.convert)?;
        let why = match keeper.retry.again(|| part.resize(&order)).await? {
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
    /// somewhere and must be exceeded, if the clock should not be trusted with that. Without it, a
    /// clock that is behind the date of this build is refused.
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
        if now_us < Bump::NOW_US_MIN && above == 0 {
            let what = "begin at the time of day: this clock is behind the date of the build";
            let advice = "set the clock, or name a fence that must be exceeded (`--above`)";
            return Err(unsupported(self.info(), what, advice));
        }
        let order = Bump { above, now_us, by: self.inner.holder.clone() };
        let keeper = self.keeper()?;
        let Some(part) = &keeper.parts.raise_fences else {
            return order.by_the_clock(self.info());
        };
        let bumped = keeper.retry.again(|| part.bump_epoch(&order)).await?;
        if let Bumped::Raised { before, from } = bumped {
            tracing::warn!(by = order.by.label(), before, from, "fences go on above all others");
        }
        Ok(bumped)
    }

    /// Looks at the store's settings as [`examine`](Self::examine) does, and takes no lock.
    pub async fn look(&self) -> Result<Vec<Finding>> {
        let keeper = self.keeper()?;
        match &keeper.parts.admin {
            Some(admin) => keeper.retry.again(|| admin.examine()).await,
            None => Ok(Vec::new()),
        }
    }

    /// Looks for settings of the store that weaken the promises, and at every record; takes a lock
    /// and gives it back.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = self.look().await?;
        findings.push(trial::lock(self.engine()?).await);
        match self.broken_lines().await {
            Ok(broken) => findings.extend(broken.iter().map(Finding::of_broken)),
            Err(error) => findings.push(Finding::of_unread(&error)),
        }
        Ok(findings)
    }

    /// Installs what the store needs; harmless when it is there.
    pub async fn install(&self) -> Result<()> {
        let keeper = self.keeper()?;
        match &keeper.parts.setup {
            Some(setup) => keeper.retry.again(|| setup.install()).await,
            None => Ok(()),
        }
    }

    /// The statements [`install`](Self::install) runs; empty where there are none.
    pub fn schema(&self) -> &'static str {
        self.parts().setup.as_ref().map_or("", |setup| setup.schema())
    }

    /// Takes up a lease by its handle: renews it at once and from then on.
    pub async fn adopt(&self, handle: &Handle) -> Result<Lease> {
        self.adopt_with(handle, handle.ttl()).await
    }

    /// Takes up a lease by its handle with another time to live. The handle's own is the least: the
    /// client that took the lease may still hold it, and counts on that.
    pub async fn adopt_with(&self, handle: &Handle, ttl: Duration) -> Result<Lease> {
        self.adopt_at_most(handle, ttl.max(handle.ttl())).await
    }

    /// Takes up a lease by its handle with this time to live, also where the handle's is longer.
    /// The lease does not end sooner by that: what the store keeps it for by now stays.
    pub async fn adopt_at_most(&self, handle: &Handle, ttl: Duration) -> Result<Lease> {
        let keeper = &self.inner.keeper;
        let terms = self.terms(Ttl::new(ttl)?);
        let sent = keeper.clock.now();
        let claim_state = Arc::new(ClaimState::new(handle.key.clone(), terms.clone(), sent));
        let (fence, remaining) = self.renew_once(handle, &terms).await?;
        keeper.enter(&claim_state)?;
        let now = keeper.clock.now();
        let Some(due) = claim_state.hold(fence, sent, remaining, now) else {
            keeper.forget(&claim_state);
            return Err(Error::TooSlow { name: handle.name().clone(), took: now.since(sent) });
        };
        keeper.counters.adopted();
        keeper.wake_by(due);
        Ok(Lease::new(self, claim_state, fence))
    }

    /// Gives back the lease of a handle without taking it up first, and says what became of it.
    pub async fn release(&self, handle: &Handle) -> Result<Released> {
        self.refuse_other_store(handle)?;
        let answers = self.engine()?.release(std::slice::from_ref(&handle.key)).await?;
        let released = answers.into_iter().next().unwrap_or(Released::AlreadyExpired);
        self.count_by_handle(&released);
        Ok(released)
    }

    /// Gives back the lease of a handle, and keeps its name closed for `stay` from now, 100 ms to
    /// 24 h. Nobody has the lease any more: the handle is stale from then on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the lease as it was.
    pub async fn release_keeping(&self, handle: &Handle, stay: Duration) -> Result<Released> {
        self.refuse_other_store(handle)?;
        let stay = Ttl::new(stay)?;
        let keeper = self.keeper()?;
        let part = keeper.need(&keeper.parts.unattended)?;
        let keep_closed = || part.keep_closed(&handle.key, stay.get());
        let released = keeper.retry.again(keep_closed).await?;
        self.count_by_handle(&released);
        Ok(released)
    }

    fn count_by_handle(&self, released: &Released) {
        if *released == Released::Released {
            self.inner.keeper.counters.adopted();
            self.inner.keeper.counters.released();
        }
    }

    /// How long the lease of a handle is still held, without touching it; `None` if it is not. A
    /// lease that was given back and keeps its name closed is not.
    ///
    /// The lease is known by its fence; only changing it needs the secret in the handle.
    pub async fn check(&self, handle: &Handle) -> Result<Option<Duration>> {
        self.refuse_other_store(handle)?;
        let line = self.show(handle.name().as_str()).await?;
        let mut held = line.into_iter().flat_map(|line| line.held);
        let lease = held.find(|held| held.fence == handle.fence() && !held.closed);
        Ok(lease.map(|lease| lease.remaining))
    }

    fn refuse_other_store(&self, handle: &Handle) -> Result<()> {
        if handle.store_id != self.info().store_id {
            return Err(Error::Config(Config::OtherStore));
        }
        Ok(())
    }

    /// Whether the store keeps a lease for `span` although no client renews it. If not, the error
    /// names the limit and the setting to change.
    ///
    /// Whatever outlives its client asks this by itself: a detached lease, a period, a unit of a
    /// rate, and [`hold_at_least`](Request::hold_at_least).
    pub async fn check_unrenewed(&self, span: Duration) -> Result<()> {
        self.inner.check_unrenewed(span).await
    }

    /// Forgets that a holder of `name` in this process panicked.
    pub fn clear_poison(&self, name: &Name) {
        self.inner.poison.clear(name);
    }

    /// Renews the lease of a handle once, for the ttl of the handle, and returns for how long it is
    /// held from now on: longer where somebody extended it since. The client does not take the
    /// lease up: it neither renews it again nor gives it back. For servers, whose clients decide
    /// when that is due.
    ///
    /// [`Error::Stale`] if the lease is not held any more.
    ///
    /// # Cancel safety
    ///
    /// Whether the lease was renewed is then unknown; it is not given back.
    pub async fn renew(&self, handle: &Handle) -> Result<Duration> {
        let sent = self.inner.keeper.clock.now();
        let terms = self.terms(handle.ttl);
        let (_fence, remaining) = self.renew_once(handle, &terms).await?;
        let took = self.inner.keeper.clock.now().since(sent);
        match terms.safe(remaining).checked_sub(took) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(Error::TooSlow { name: handle.name().clone(), took }),
        }
    }

    fn terms(&self, ttl: Ttl) -> LeaseTerms {
        LeaseTerms { ttl, renew: true, renew_at_percent: self.inner.renew_at_percent, bounds: None }
    }

    /// Asks the store to keep the lease of a handle; its fence, and for how long it is kept.
    async fn renew_once(&self, handle: &Handle, terms: &LeaseTerms) -> Result<(u64, Duration)> {
        self.refuse_other_store(handle)?;
        let ttl = terms.ttl.get();
        let renewal = Renewal { key: handle.key.clone(), ttl, patience: ttl };
        let answers = self.engine()?.renew(std::slice::from_ref(&renewal)).await?;
        let name = handle.name().clone();
        match answers.into_iter().next().transpose()? {
            Some(Standing::Held { fence, remaining }) => Ok((fence, remaining)),
            Some(Standing::Out { by, .. }) => {
                // Its own lease may keep the name closed.
                let by = by.filter(|by| by != handle.holder());
                Err(Error::Stale { name, by })
            }
            _ => Err(Error::Stale { name, by: None }),
        }
    }

    /// Gives back every lease that this client holds, and waits until the store knows, or has ended
    /// them by their ttl. Returns how many they were. Leases of clients that are
    /// [`apart`](Self::apart) from it are among them; claims that wait stay in line, and the client
    /// can be used on.
    ///
    /// Leases that are still around are lost with [`LostCause::Released`](crate::LostCause).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes it in the background.
    pub async fn release_all(&self) -> Result<usize> {
        self.inner.keeper.refuse_fork()?;
        Ok(self.inner.keeper.release_all().await)
    }

    /// Releases everything this client holds or waits for, and waits until the store knows.
    ///
    /// Leases that are still around are lost, and claims that wait end with
    /// [`Error::Closed`].
    pub async fn close(&self) -> Result<()> {
        let engine = self.engine()?;
        self.inner.keeper.close().await;
        engine.close().await
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

impl Inner {
    /// As [`Client::check_unrenewed`].
    pub(crate) async fn check_unrenewed(&self, span: Duration) -> Result<()> {
        let keeper = &self.keeper;
        keeper.refuse_fork()?;
        let Some(part) = &keeper.parts.unattended else { return Ok(()) };
        match keeper.retry.again(|| part.longest_without_renewal()).await? {
            Some(longest) if span > longest => {
                let engine = keeper.engine.info().engine;
                Err(Error::Config(Config::not_kept(engine, span, longest)))
            }
            _ => Ok(()),
        }
    }
}

/// The way into names that may be entered again.
#[derive(Debug, Default)]
pub(crate) struct Reentry {
    entrances: StdMutex<HashMap<Name, EntryLock>>,
}

type EntryLock = Arc<AsyncMutex<Weak<ClaimState>>>;

impl Reentry {
    pub(crate) fn entry_lock(&self, name: &Name) -> EntryLock {
        let mut entrances = self.entrances.lock().unwrap_or_else(PoisonError::into_inner);
        if entrances.len() >= entrances.capacity() {
            // About to grow: first drop the entrances that lead nowhere and nobody stands in.
            entrances.retain(|_, entry_lock| {
                let used = Arc::strong_count(entry_lock) > 1;
                used || entry_lock.try_lock().is_ok_and(|inside| inside.strong_count() > 0)
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
