//! A connection to a store, and everything that is asked of it.
//!
//! The client owns the identity of its holder and the keeper of its claims. How a claim waits is
//! in `acquire.rs`, how a store is found by its URL in `scheme.rs`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use crate::admin::Admin;
use crate::clock::{Clock, SystemClock};
use crate::engine::kit::thread_shard::{CachePadded, THREAD_SHARDS, thread_shard};
use crate::engine::layer::retry::RetryPolicy;
use crate::engine::layer::shared::{Shared, Thread};
use crate::engine::{Engine, Info, LineView, Parts, Query};
use crate::engines::memory::Memory;
use crate::engines::scheme;
use crate::error::{Config, Error, Invalid, Result};
use crate::handle::Handle;
use crate::lease::Lease;
use crate::observe::{Observer, Stats};
use crate::primitives::election::Election;
use crate::primitives::mutex::Mutex;
use crate::primitives::once::Once;
use crate::primitives::rate_limiter::RateLimiter;
use crate::primitives::rwlock::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::rule::claim::{Holder, Released, Renewal, Standing, Ttl};
use crate::rule::name::Name;
use crate::runtime::acquire::Request;
use crate::runtime::claim_state::{ClaimState, LeaseTerms};
use crate::runtime::keeper::Keeper;
use crate::runtime::pending_release::keep_closed;
use crate::runtime::scope::Scope;
use crate::runtime::search;

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

/// Keeps a lease's client alive. There is one for each shard, so that leases of different threads
/// do not count on one cache line.
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
    /// Whether this is a holder that does one thing at a time: see [`Client::with_own_identity`].
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
    /// The label that people see; by default `HOST:PID:RANDOM`. The identity stays random.
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

    /// Makes [`connect`](Self::connect) use as few connections to the store as it can. This is for
    /// processes of which many run at once. All calls of the client, and its renewals, share the
    /// connections of one thread. Each call costs a hop between threads, some ten microseconds.
    pub fn few_connections(mut self) -> Self {
        self.few_connections = true;
        self
    }

    /// Where measurements go.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The clock that deadlines count on; by default the machine's boot clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The part of the ttl that passes before the first renewal: 10 to 90 percent, by default 60.
    pub fn renew_at_percent(mut self, percent: u32) -> Self {
        self.renew_at_percent = Some(percent);
        self
    }

    /// How long a claim waits before the client looks for a deadlock, and between two looks: 10 ms
    /// to 1 h, by default 1 s. `None` turns it off for this client.
    ///
    /// A wait costs nothing before that, and nothing at all if its task holds no other lease. The
    /// safety page of the documentation says which deadlocks are found.
    pub fn deadlock_period(mut self, period: impl Into<Option<Duration>>) -> Self {
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
            let (what, rule) = ("deadlock_period", "between 10 ms and 1 h");
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
    pub fn with_own_identity(&self, label: impl AsRef<str>) -> Result<Client> {
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
        Mutex::new(self.request(name))
    }

    /// A lock that many readers or one writer have.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.request(name))
    }

    /// `limit` permits for all machines together.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(self.request(name), limit)
    }

    /// An office that one candidate at a time holds.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.request(name))
    }

    /// `units` in any window of `period`, for all machines together.
    pub fn rate_limiter(&self, name: impl AsRef<str>, units: u32, period: Duration) -> RateLimiter {
        RateLimiter::new(self.request(name), units, period)
    }

    /// Work that is done at most once in each period of `every`, for all machines together.
    pub fn once(&self, name: impl AsRef<str>, every: Duration) -> Once {
        Once::new(self.request(name), every)
    }

    /// A claim of any mode, with all options: what the primitives are made of.
    pub fn request(&self, name: impl AsRef<str>) -> Request {
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
    /// let fence = client.with("report", async |lease| lease.fence()).await?;
    /// assert!(fence > 0);
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

    /// The optional parts of the store's engine. If a part is absent, the store cannot do that.
    pub fn parts(&self) -> &Parts {
        &self.inner.keeper.parts
    }

    /// The keeper, unless this is a forked child's copy of the client.
    pub(crate) fn keeper(&self) -> Result<&Keeper> {
        self.inner.keeper.refuse_fork()?;
        Ok(&self.inner.keeper)
    }

    /// The store, unless this is a forked child's copy of the client.
    pub(crate) fn engine(&self) -> Result<&dyn Engine> {
        Ok(&*self.keeper()?.engine)
    }

    /// What this client did and has.
    pub fn stats(&self) -> Stats {
        self.inner.keeper.stats()
    }

    /// Reads one line; `None` if nobody is in it. An error if nothing of its record can be read.
    pub async fn line(&self, name: impl AsRef<str>) -> Result<Option<LineView>> {
        let page = self.admin().inspect(&Query::name(Name::new(name)?)).await?;
        let line = page.lines.into_iter().next();
        match page.broken.into_iter().next() {
            Some(broken) if line.is_none() => Err(broken.into_error(&self.info().store)),
            _ => Ok(line),
        }
    }

    /// The calls for operators: reading all lines, events, orders about other holders' claims, and
    /// the store's own state.
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
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
        let once = || keep_closed(keeper, &handle.key, stay.get());
        let released = keeper.retry.again(once).await?;
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
        let line = self.line(handle.name().as_str()).await?;
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
    /// rate, and [`hold_at_least`](crate::LockOptions::hold_at_least).
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
    /// them by their ttl. Returns how many they were. Leases of clients that
    /// [`with_own_identity`](Self::with_own_identity) made of it are among them. Claims that wait
    /// stay in line, and the client can be used on.
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
