//! The memory engine: lines in this process, under sharded locks.
//!
//! For threads and tasks of one process, and for users' tests: on a virtual clock, with ways to
//! expire a lease, fail a renewal or pause a holder on demand. Nothing outlives the process.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::{Notify, broadcast};

use crate::clock::{Clock, ClockReading, Moment, SystemClock, VirtualClock};
use crate::engine::bell::Bell;
use crate::engine::kit::hearers::Hearers;
use crate::engine::kit::thread_shard::CachePadded;
use crate::engine::{
    Administer, Amend, Capabilities, ClaimMany, ClaimNow, Convert, Counting, Counts, Engine, Event,
    EventKind, Eviction, Finding, HolderMessage, HolderMessages, Info, Level, LineView, Notice,
    Page, Parts, Query, ReleaseNow, Resize, Resized, Select, Steal, Totals, Unattended, Wait,
    WaitNotices, Wake, Watch,
};
use crate::error::{Error, Result, UnreachableReason};
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimKey, ClaimRef, Holder, HolderId, Mode, Note, Released, Renewal,
    Standing, Token,
};
use crate::rule::line::{Entry, Line, Refusal};
use crate::rule::name::Name;

/// Enough that the threads of one machine rarely meet on different names; 32 KiB a store.
const SHARDS: usize = 256;

/// Events a slow watcher may fall behind by before it misses some.
const EVENTS_MAX: usize = 1_024;

/// The long waits that the clients of one holder report, and until when each report counts.
type Said = HashMap<u128, (Vec<Wait>, Moment)>;

/// A claim that held at once is never rung, and needs no bell.
type Ringer = Option<Arc<Bell>>;

/// A store in this process. Clones are the same store.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::LockOptions;
/// use leasehold::memory::Memory;
///
/// let (memory, clock) = Memory::virtual_time();
/// let client = memory.client()?;
/// let brief = LockOptions::new().ttl(Duration::from_secs(30)).renew(false);
/// let lease = client.mutex("report").options(brief).lock().await?;
/// clock.advance(Duration::from_secs(30));
/// assert!(!lease.is_held(), "nobody had to wait for that");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Memory {
    store: Arc<Store>,
}

#[derive(Debug)]
struct Store {
    info: Info,
    clock: Arc<dyn Clock>,
    hasher: DefaultHashBuilder,
    shards: Vec<CachePadded<Mutex<Shard>>>,
    totals: Mutex<Counts>,
    events: broadcast::Sender<Event>,
    hearers: Hearers,
    /// How many watch; the channel could tell, but only under its lock.
    watchers: AtomicUsize,
    faults: FaultInjection,
    notices: Mutex<HashMap<HolderId, Said>>,
}

#[derive(Debug, Default)]
struct Shard {
    lines: Lines,
    /// The last fence given out here. A name is always in the same shard, so its fences rise.
    fence: u64,
}

/// The lines of a shard, by name. Empty ones stay for the next claim until they are swept.
#[derive(Debug, Default)]
struct Lines {
    table: HashTable<(Name, Line<Ringer>)>,
    /// When the table is this long, lines that nobody is in are swept.
    sweep_at: usize,
}

/// What a test did to the store.
#[derive(Debug, Default)]
struct FaultInjection {
    any: AtomicBool,
    state: Mutex<FaultState>,
    resumed: Notify,
}

#[derive(Debug, Default)]
struct FaultState {
    failing: HashSet<Name>,
    paused: HashSet<HolderId>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// A store of its own, on the machine's clock.
    pub fn new() -> Self {
        Self::on_clock(Arc::new(SystemClock), "memory:".into())
    }

    /// A store on a clock that moves only when a test moves it.
    pub fn virtual_time() -> (Self, VirtualClock) {
        let clock = VirtualClock::new();
        (Self::on_clock(Arc::new(clock.clone()), "memory:".into()), clock)
    }

    /// The store of this name in this process, made on first use. Everybody who connects to
    /// `memory:` or `memory:NAME` meets there, so that two parts of a program exclude each other.
    pub fn shared(name: &str) -> Self {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Store>>>> = OnceLock::new();
        let mut stores = lock(STORES.get_or_init(Mutex::default));
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return Self { store };
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let memory = Self::on_clock(Arc::new(SystemClock), format!("memory:{name}"));
        stores.insert(name.to_owned(), Arc::downgrade(&memory.store));
        memory
    }

    fn on_clock(clock: Arc<dyn Clock>, address: String) -> Self {
        let info = Info {
            engine: "memory",
            store: address,
            store_id: Holder::fresh().id().0,
            can: Capabilities { across_processes: false, ..Capabilities::ALL },
            can_fail: false,
        };
        let store = Store {
            info,
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            totals: Mutex::default(),
            events: broadcast::channel(EVENTS_MAX).0,
            hearers: Hearers::default(),
            watchers: AtomicUsize::new(0),
            faults: FaultInjection::default(),
            notices: Mutex::default(),
        };
        Self { store: Arc::new(store) }
    }

    /// The clock of this store.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.store.clock)
    }

    /// Lets the holders of `name` expire now, as if their time had run out unseen.
    pub fn expire_now(&self, name: &Name) {
        let now = self.store.clock.now();
        let hash = self.store.hash(name);
        let mut shard = self.store.shard(hash);
        if let Some(line) = shard.lines.get_mut(hash, name) {
            for entry in line.evict(|_| true) {
                lock(&self.store.totals).expired += 1;
                self.store.tell(EventKind::Expired, name, &entry);
            }
            self.store.settle(name, line, now);
        }
    }

    /// Fails the next exchange that renews `name`, as if the store could not be reached.
    pub fn fail_next_renewal(&self, name: &Name) {
        self.store.faults.change(|state| {
            state.failing.insert(name.clone());
        });
    }

    /// Lets no renewal of `holder` through until [`resume`](Self::resume): a holder that is
    /// paused, or cut off from the store.
    pub fn pause(&self, holder: &Holder) {
        self.store.faults.change(|state| {
            state.paused.insert(holder.id());
        });
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self, holder: &Holder) {
        self.store.faults.change(|state| {
            state.paused.remove(&holder.id());
        });
        self.store.faults.resumed.notify_waiters();
    }
}

impl FaultInjection {
    fn change(&self, change: impl FnOnce(&mut FaultState)) {
        change(&mut lock(&self.state));
        self.any.store(true, Ordering::Release);
    }

    fn is_paused(&self, holder: HolderId) -> bool {
        lock(&self.state).paused.contains(&holder)
    }
}

impl Store {
    fn hash(&self, name: &Name) -> u64 {
        self.hasher.hash_one(name.as_str())
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(hash)].0)
    }

    /// Removes what has expired, tells of it, and rings those who hold now.
    #[inline]
    fn refresh(&self, name: &Name, line: &mut Line<Ringer>, now: Moment) {
        if !line.has_expired(now) {
            return;
        }
        for entry in &line.expire(now) {
            if entry.granted.is_some() {
                lock(&self.totals).expired += 1;
            }
            self.tell(EventKind::Expired, name, entry);
        }
        self.settle(name, line, now);
    }

    fn settle(&self, name: &Name, line: &mut Line<Ringer>, now: Moment) {
        for entry in line.settle(now) {
            if let Some(bell) = &entry.bell {
                bell.ring(Wake::holds_at(entry.fence));
            }
            self.tell(EventKind::Granted, name, entry);
        }
    }

    fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Acquire) > 0
    }

    fn tell(&self, kind: EventKind, name: &Name, entry: &Entry<Ringer>) {
        if self.is_watched() {
            let (name, holder, fence) = (name.clone(), entry.holder.clone(), entry.fence.into());
            // A watcher that left between the two lines misses nothing.
            let _watched = self.events.send(Event { kind, name, holder, fence });
        }
    }

    fn claim(&self, claim: ClaimRef<'_>, now: Moment) -> std::result::Result<Standing, Refusal> {
        let hash = self.hash(claim.name);
        self.claim_in(&mut self.shard(hash), (hash, now), claim)
    }

    /// Holds the shards of all names together, in one order for everybody.
    fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        let now = self.clock.now();
        let hashes: Vec<u64> = claims.iter().map(|claim| self.hash(&claim.key.name)).collect();
        let mut shards: BTreeMap<usize, MutexGuard<'_, Shard>> = BTreeMap::new();
        for index in hashes.iter().map(|hash| shard_of(*hash)).collect::<BTreeSet<_>>() {
            shards.insert(index, lock(&self.shards[index].0));
        }
        for (claim, hash) in claims.iter().zip(&hashes) {
            let shard = shards.get_mut(&shard_of(*hash));
            let line = shard.and_then(|shard| shard.lines.get_mut(*hash, &claim.key.name));
            let Some(line) = line else { continue };
            self.refresh(&claim.key.name, line, now);
            if !line.would_hold(claim) {
                return Ok(None);
            }
        }
        let mut standings = Vec::with_capacity(claims.len());
        for (claim, hash) in claims.iter().zip(&hashes) {
            if let Some(shard) = shards.get_mut(&shard_of(*hash)) {
                let standing = self.claim_in(shard, (*hash, now), claim.into());
                standings.push(standing.map_err(|refusal| refusal.into_error(claim))?);
            }
        }
        Ok(Some(standings))
    }

    fn claim_in(
        &self,
        shard: &mut Shard,
        (hash, now): (u64, Moment),
        claim: ClaimRef<'_>,
    ) -> std::result::Result<Standing, Refusal> {
        let name = claim.name;
        let line = shard.lines.get_or_insert(&self.hasher, hash, name, now);
        self.refresh(name, line, now);
        let fence = || {
            shard.fence += 1;
            shard.fence
        };
        let bell = |holds: bool| (!holds).then(Arc::default);
        if !self.is_watched() {
            return line.claim(now, claim, bell, fence);
        }
        let known = line.get(&claim.token).is_some();
        let standing = line.claim(now, claim, bell, fence);
        if !known && let Some(entry) = line.get(&claim.token) {
            let held = entry.granted.is_some();
            let kind = if held { EventKind::Granted } else { EventKind::Queued };
            self.tell(kind, name, entry);
        }
        standing
    }

    fn renew(&self, renewal: &Renewal) -> Standing {
        let now = self.clock.now();
        let name = &renewal.key.name;
        let hash = self.hash(name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, name) else {
            return Line::<Ringer>::default().renew(now, renewal);
        };
        self.refresh(name, line, now);
        line.renew(now, renewal)
    }

    fn release(&self, key: &ClaimKey) -> Released {
        let now = self.clock.now();
        let hash = self.hash(&key.name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, &key.name) else {
            return Released::AlreadyExpired;
        };
        self.refresh(&key.name, line, now);
        if self.is_watched()
            && let Some(entry) = line.get(&key.token)
        {
            let held = entry.granted.is_some();
            let kind = if held { EventKind::Released } else { EventKind::Left };
            self.tell(kind, &key.name, entry);
        }
        let released = line.release(&key.token);
        if !line.is_empty() {
            self.settle(&key.name, line, now);
        }
        released
    }

    fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Released {
        let now = self.clock.now();
        let hash = self.hash(&key.name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, &key.name) else {
            return Released::AlreadyExpired;
        };
        self.refresh(&key.name, line, now);
        line.keep_closed(now, &key.token, (stay, Token::retired()))
    }

    fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Amended {
        let now = self.clock.now();
        let hash = self.hash(&key.name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, &key.name) else {
            return Amended::Out { by: None };
        };
        self.refresh(&key.name, line, now);
        let amended = line.amend(&key.token, amendment);
        if amended == Amended::Done {
            if let Some(entry) = line.get(&key.token) {
                self.tell(EventKind::Amended, &key.name, entry);
            }
            self.settle(&key.name, line, now);
        }
        amended
    }

    fn resize(&self, order: &Resize) -> Result<Resized> {
        let now = self.clock.now();
        let hash = self.hash(&order.name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, &order.name) else {
            return Ok(Resized::Unused);
        };
        self.refresh(&order.name, line, now);
        let resized = line.resize(order.of).map_err(|refusal| refusal.into_resize_error(order))?;
        self.settle(&order.name, line, now);
        Ok(resized)
    }

    fn evict(&self, order: &Eviction) -> Vec<Holder> {
        let now = self.clock.now();
        let hash = self.hash(&order.name);
        let mut shard = self.shard(hash);
        let Some(line) = shard.lines.get_mut(hash, &order.name) else { return Vec::new() };
        self.refresh(&order.name, line, now);
        let evicted = line.evict(|fence| order.names(fence));
        self.tell_evicted(order, &evicted);
        self.settle(&order.name, line, now);
        tracing::warn!(name = %order.name, by = order.by.label(), reason = order.reason, "evicted");
        evicted.into_iter().map(|entry| entry.holder).collect()
    }

    fn tell_evicted(&self, order: &Eviction, evicted: &[Entry<Ringer>]) {
        for entry in evicted {
            let reason = order.reason.clone();
            self.tell(EventKind::Evicted { reason }, &order.name, entry);
        }
    }

    fn steal(&self, claim: &Claim, order: &Eviction) -> std::result::Result<Standing, Refusal> {
        let (name, now) = (&claim.key.name, self.clock.now());
        let hash = self.hash(name);
        let shard = &mut *self.shard(hash);
        let line = shard.lines.get_or_insert(&self.hasher, hash, name, now);
        self.refresh(name, line, now);
        let is_known = line.get(&claim.key.token).is_some();
        let fence = || {
            shard.fence += 1;
            shard.fence
        };
        let stolen = line.steal(now, claim, |fence| order.names(fence), None, fence)?;
        if !is_known && matches!(stolen.standing, Standing::Held { .. }) {
            self.tell_evicted(order, &stolen.evicted);
            for entry in line.entries() {
                let is_held = entry.granted.is_some();
                let kind = if is_held { EventKind::Granted } else { EventKind::Queued };
                self.tell(kind, name, entry);
            }
        }
        Ok(stolen.standing)
    }

    fn bell(&self, key: &ClaimKey) -> Option<Arc<Bell>> {
        let hash = self.hash(&key.name);
        let mut shard = self.shard(hash);
        shard.lines.get_mut(hash, &key.name)?.get(&key.token)?.bell.clone()
    }

    fn holder_of(&self, name: &Name, token: &Token) -> Option<HolderId> {
        let hash = self.hash(name);
        let mut shard = self.shard(hash);
        Some(shard.lines.get_mut(hash, name)?.get(token)?.holder.id())
    }

    fn names(&self) -> BTreeSet<Name> {
        self.shards.iter().flat_map(|shard| lock(&shard.0).lines.names()).collect()
    }

    fn view(&self, name: &Name, holder: Option<HolderId>) -> Option<LineView> {
        let now = self.clock.now();
        let hash = self.hash(name);
        let mut shard = self.shard(hash);
        let line = shard.lines.get_mut(hash, name)?;
        self.refresh(name, line, now);
        if holder.is_some_and(|holder| !line.has_claim_of(holder)) {
            return None;
        }
        line.view(name, now)
    }

    /// Waits until nothing a test did stands in the way of these renewals.
    async fn inject(&self, renewals: &[Renewal]) -> Result<()> {
        loop {
            let resumed = self.faults.resumed.notified();
            let paused = renewals.iter().any(|renewal| {
                let key = &renewal.key;
                self.holder_of(&key.name, &key.token)
                    .is_some_and(|holder| self.faults.is_paused(holder))
            });
            if !paused {
                break;
            }
            resumed.await;
        }
        let mut state = lock(&self.faults.state);
        let failing = renewals.iter().any(|renewal| state.failing.remove(&renewal.key.name));
        if failing {
            let cause = "the test said that this renewal fails";
            return Err(Error::unreachable(&self.info.store, UnreachableReason::Other, cause));
        }
        Ok(())
    }
}

/// Counts as a watcher while it lives.
struct Watching(Arc<Store>);

impl Watching {
    fn begin(store: &Arc<Store>) -> Self {
        store.watchers.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(store))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lines {
    fn get_mut(&mut self, hash: u64, name: &Name) -> Option<&mut Line<Ringer>> {
        self.table.find_mut(hash, |(other, _)| other.is(name)).map(|(_, line)| line)
    }

    fn get_or_insert(
        &mut self,
        hasher: &DefaultHashBuilder,
        hash: u64,
        name: &Name,
        now: Moment,
    ) -> &mut Line<Ringer> {
        self.sweep(now);
        let same = |(other, _): &(Name, Line<Ringer>)| other.is(name);
        let rehash = |(other, _): &(Name, Line<Ringer>)| hasher.hash_one(other.as_str());
        let entry = self.table.entry(hash, same, rehash);
        let (_, line) = entry.or_insert_with(|| (name.clone(), Line::default())).into_mut();
        line
    }

    fn names(&self) -> Vec<Name> {
        let used = self.table.iter().filter(|(_, line)| !line.is_empty());
        used.map(|(name, _)| name.clone()).collect()
    }

    /// Drops lines that nobody is in, once the table has doubled since the last time. A claim
    /// that its owner never gives back has expired by then, too.
    fn sweep(&mut self, now: Moment) {
        const SWEEP_MIN: usize = 256;
        if self.table.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.table.retain(|(_, line)| line.entries().any(|entry| entry.expires > now));
            self.sweep_at = self.table.len() * 2;
        }
    }
}

/// The shard of a name. The table inside uses the lowest and the highest bits.
fn shard_of(hash: u64) -> usize {
    (hash >> 24) as usize % SHARDS
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Engine for Memory {
    fn info(&self) -> &Info {
        &self.store.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let standing = self.store.claim(claim.into(), self.store.clock.now());
        standing.map_err(|refusal| refusal.into_error(claim))
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.store.bell(key) {
            Some(bell) => Ok(bell.heard().await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        if self.store.faults.any.load(Ordering::Acquire) {
            self.store.inject(renewals).await?;
        }
        Ok(renewals.iter().map(|renewal| Ok(self.store.renew(renewal))).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        Ok(keys.iter().map(|key| self.store.release(key)).collect())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let holder = match &query.select {
            Select::Holder(holder) => Some(*holder),
            _ => None,
        };
        let mut lines = Vec::new();
        let mut more = false;
        for name in self.store.names().into_iter().filter(|name| query.admits(name)) {
            if let Some(view) = self.store.view(&name, holder) {
                if lines.len() == query.page_lines() {
                    more = true;
                    break;
                }
                lines.push(view);
            }
        }
        let next = lines.last().filter(|_| more).map(|line: &LineView| line.name.clone());
        Ok(Page { lines, next, ..Page::default() })
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        Parts {
            claim_now: Some(self.clone()),
            release_now: Some(self.clone()),
            claim_many: Some(self.clone()),
            amend: Some(self.clone()),
            convert: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
            watch: Some(self.clone()),
            admin: Some(self.clone()),
            steal: Some(self.clone()),
            counting: Some(self),
            ..Parts::default()
        }
    }
}

impl ClaimNow for Memory {
    fn claim_now(&self, claim: ClaimRef<'_>, reading: ClockReading<'_>) -> Option<(u64, Duration)> {
        match self.store.claim(claim, reading.on(&self.store.clock)) {
            Ok(Standing::Held { fence, remaining }) => Some((fence, remaining)),
            _ => None,
        }
    }
}

impl ReleaseNow for Memory {
    fn release_now(&self, key: &ClaimKey) -> Option<Released> {
        Some(self.store.release(key))
    }
}

#[async_trait]
impl ClaimMany for Memory {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.store.claim_all(claims)
    }
}

#[async_trait]
impl Amend for Memory {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        let amendment = Amendment::note(note.clone());
        Ok(self.store.amend(key, &amendment))
    }
}

#[async_trait]
impl Convert for Memory {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        let amendment = Amendment::mode(mode);
        Ok(self.store.amend(key, &amendment))
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.store.resize(order)
    }
}

#[async_trait]
impl Unattended for Memory {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        Ok(self.store.keep_closed(key, stay))
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

#[async_trait]
impl WaitNotices for Memory {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        let now = self.store.clock.now();
        let mut notices = lock(&self.store.notices);
        let said = notices.entry(notice.holder).or_default();
        said.remove(&notice.client);
        if !notice.waits.is_empty() {
            said.insert(notice.client, (notice.waits.clone(), now + notice.keep));
        }
        notices.retain(|_, said| {
            said.retain(|_, (_, until)| *until > now);
            !said.is_empty()
        });
        Ok(())
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        let now = self.store.clock.now();
        let notices = lock(&self.store.notices);
        let said = notices.get(&holder).into_iter().flat_map(HashMap::values);
        let live = said.filter(|(_, until)| *until > now);
        Ok(live.flat_map(|(waits, _)| waits.clone()).collect())
    }
}

#[async_trait]
impl HolderMessages for Memory {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        self.store.hearers.tell(message.clone());
        Ok(())
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        Ok(self.store.hearers.listen())
    }
}

#[async_trait]
impl Watch for Memory {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        let query = query.clone();
        let events = (self.store.events.subscribe(), Watching::begin(&self.store));
        let stream = futures_util::stream::unfold(events, |(mut events, watching)| async move {
            let mut missed = 0;
            loop {
                match events.recv().await {
                    Ok(event) => return Some(((missed, event), (events, watching))),
                    Err(broadcast::error::RecvError::Lagged(count)) => missed += count,
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        });
        let wanted = stream.flat_map(move |(missed, event)| {
            let gap = (missed > 0).then(|| Event::missed(missed, &event.name));
            let event = Some(event).filter(|event| query.admits_event(event));
            futures_util::stream::iter(gap.into_iter().chain(event).map(Ok))
        });
        Ok(wanted.boxed())
    }
}

#[async_trait]
impl Administer for Memory {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        Ok(self.store.evict(order))
    }

    async fn totals(&self) -> Result<Totals> {
        let counts = *lock(&self.store.totals);
        let mut sums = Totals { counts, ..Totals::default() };
        let names = self.store.names();
        for view in names.iter().filter_map(|name| self.store.view(name, None)) {
            sums.active += view.held.len() as u64;
            sums.waiting += view.waiting.len() as u64;
        }
        Ok(sums)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding {
            level: Level::Warning,
            subject: "reach",
            found: "this store is seen by one process only, and ends with it".into(),
            advice: "use `sqlite:PATH` for all processes of one machine".into(),
        }])
    }
}

#[async_trait]
impl Steal for Memory {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        self.store.steal(claim, order).map_err(|refusal| refusal.into_error(claim))
    }
}

#[async_trait]
impl Counting for Memory {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        *lock(&self.store.totals) += *counts;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_is_told_how_many_events_it_missed() {
        let memory = Memory::new();
        let client = memory.client().expect("a client");
        let mut events = memory.watch(&Query::all()).await.expect("a watch");
        for _ in 0..600 {
            drop(client.mutex("n").lock().await.expect("granted"));
        }
        let kinds: Vec<EventKind> =
            events.by_ref().take(3).map(|event| event.expect("an event").kind).collect().await;
        assert_eq!(kinds, [EventKind::Missed(176), EventKind::Granted, EventKind::Released]);
    }
}
