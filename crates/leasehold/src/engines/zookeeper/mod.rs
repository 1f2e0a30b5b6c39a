//! The ZooKeeper engine: an ensemble that agrees on everything before it says yes.
//!
//! A claim is an ephemeral, numbered node below its name's, as those of kazoo and Curator are; the
//! fence is the transaction that created it. The claim is created and the line read in one go; who
//! has to wait watches whom it has to outlive, and when that goes it holds without asking.
//!
//! Requests: claim 1 in a line where it is alone as before, else 2, and 1 more if it waits; renew 1
//! for up to 200 claims; release 1. The first claim on a connection takes 1 more.

mod amend;
mod ask;
mod book;
mod close;
mod closing;
mod connection;
mod create;
mod detail;
mod doctor;
mod driver;
mod epoch;
mod failure;
mod feed;
mod keep;
mod leave;
mod link;
mod mark;
mod messages;
mod nodes;
mod notices;
mod pool;
mod read;
mod session;
mod settings;
#[cfg(test)]
mod stay_tests;
mod sums;
mod survey;
mod taken_up;
mod tls;
mod together;
mod visit;
mod waits;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::task::JoinHandle;

use crate::engine::bell::BellRegistry;
use crate::engine::kit::hearers::Hearers;
use crate::engine::{
    Administer, Amend, Bump, Bumped, Capabilities, Counting, Counts, Engine, Event, Eviction,
    Finding, HolderMessage, HolderMessages, Info, Notice, Page, Parts, Query, RaiseFences, Totals,
    Unattended, Wait, WaitNotices, Wake, Watch,
};
use crate::error::Result;
use crate::rule::claim::{
    Amended, Claim, ClaimKey, Holder, HolderId, Note, Released, Renewal, Standing,
};
use crate::seeded::{Seeded, seeded};

use book::Book;
use nodes::{Dialect, Layout};
use notices::Notices;
use pool::Pool;
use read::Known;
use session::{Listener, home};
use settings::Settings;
use waits::Waits;
use wire::Change;

/// A request that failed faster than this was cut off, and did not wait in vain.
const MOVE_MAX: Duration = Duration::from_millis(100);

/// A store in a ZooKeeper ensemble. Clones share their sessions.
#[derive(Debug, Clone)]
pub struct ZooKeeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: Info,
    layout: Layout,
    dialect: Dialect,
    pool: Pool,
    book: Arc<Book>,
    waits: Waits,
    bell_registry: BellRegistry,
    hearers: Hearers,
    /// What this client said of its waits.
    notices: Notices,
    /// Lines whose nodes were there a moment ago.
    known: Known,
    /// What is added to the numbers of transactions.
    epochs: epoch::Known,
    /// Ends claims that nobody renewed, and takes back notices that nobody repeated.
    janitor: Mutex<Option<JoinHandle<()>>>,
    /// For tasks that outlive a call.
    me: Weak<Inner>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(janitor) = lock(&self.janitor).take() {
            janitor.abort();
        }
        // What others may take up by its handle stays until its session's time is over.
        self.pool.close_unused(|session| self.book.uses(session));
    }
}

impl Listener for Inner {
    fn heard(&self, change: Change, path: &str) {
        if !messages::heard(self, change, path) {
            waits::heard(self, change, path);
        }
    }

    fn back(&self, session: i64) {
        self.epochs.forget();
        waits::back(self, session);
        self.hearers.missed();
    }
}

/// The contents of a mutex, also if somebody panicked with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ZooKeeper {
    /// Opens the store at a URL: `zk:` or `zks:`.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let Settings { servers, root, dialect } = Settings::from_url(url.as_ref())?;
        let layout = Layout::new(root);
        let store = servers.store.clone();
        let pool = Pool::new(servers);
        let store_id = doctor::greet(&pool, &layout).await?;
        let can = Capabilities::ALL;
        let info = Info { engine: "zookeeper", store, store_id, can, can_fail: true };
        let inner = Arc::new_cyclic(|me: &Weak<Inner>| Inner {
            info,
            layout,
            dialect,
            pool,
            book: Arc::default(),
            waits: Waits::default(),
            bell_registry: BellRegistry::default(),
            hearers: Hearers::default(),
            notices: Notices::default(),
            known: Known::default(),
            epochs: epoch::Known::default(),
            janitor: Mutex::default(),
            me: me.clone(),
        });
        let listener: Weak<Inner> = Arc::downgrade(&inner);
        inner.pool.listen(listener);
        Ok(Self { inner })
    }

    /// Sees to it that somebody ends what nobody renews.
    fn employ_janitor(&self) -> Result<()> {
        let mut janitor = lock(&self.inner.janitor);
        if janitor.is_none() {
            let inner = Arc::downgrade(&self.inner);
            *janitor = Some(home()?.spawn(leave::keep_sweeping(inner)));
        }
        Ok(())
    }
}

/// A session moves when its server goes, or when somebody with a handle takes it up for a moment;
/// what was on its way then is asked once more. Only for what may be repeated.
async fn surely<T, F: Future<Output = Result<T>>>(ask: impl Fn() -> F) -> Result<T> {
    let begun = Instant::now();
    match ask().await {
        Err(error) if error.is_transient() && begun.elapsed() < MOVE_MAX => ask().await,
        answer => answer,
    }
}

#[async_trait]
impl Engine for ZooKeeper {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let inner = &self.inner;
        self.employ_janitor()?;
        if claim.join {
            inner.bell_registry.register(claim.key.token);
        }
        let standing = surely(|| ask::claim(inner, claim)).await?;
        if !matches!(standing, Standing::Queued { .. }) {
            inner.bell_registry.forget(&claim.key.token);
            inner.waits.forget(&claim.key);
        }
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bell_registry.bell(&key.token) {
            Some(bell) => Ok(bell.heard().await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.employ_janitor()?;
        let standings = surely(|| keep::renew(&self.inner, renewals)).await?;
        Ok(standings.into_iter().map(Ok).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        for key in keys {
            self.inner.bell_registry.forget(&key.token);
            self.inner.waits.forget(key);
        }
        surely(|| leave::release(&self.inner, keys)).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        surely(|| survey::inspect(&self.inner, query)).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(janitor) = lock(&self.inner.janitor).take() {
            janitor.abort();
        }
        notices::take_all_back(&self.inner).await;
        close::leave_sessions(&self.inner).await;
        // What others may take up by its handle stays until its session's time is over.
        self.inner.pool.closed_unused(|session| self.inner.book.uses(session)).await;
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        Parts {
            amend: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
            watch: Some(self.clone()),
            admin: Some(self.clone()),
            counting: Some(self.clone()),
            raise_fences: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl Amend for ZooKeeper {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        surely(|| amend::set_note(&self.inner, key, note)).await
    }
}

#[async_trait]
impl Unattended for ZooKeeper {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.employ_janitor()?;
        self.inner.bell_registry.forget(&key.token);
        self.inner.waits.forget(key);
        surely(|| closing::keep_closed(&self.inner, key, stay)).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        let longest = self.inner.pool.longest_kept().await?;
        Ok((!seeded(Seeded::SpanBeyondTheSession)).then_some(longest))
    }
}

#[async_trait]
impl WaitNotices for ZooKeeper {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.employ_janitor()?;
        surely(|| notices::announce(&self.inner, notice)).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        surely(|| notices::waits_of(&self.inner, holder)).await
    }
}

#[async_trait]
impl HolderMessages for ZooKeeper {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        surely(|| messages::send(&self.inner, message)).await
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        surely(|| messages::listen(&self.inner)).await
    }
}

#[async_trait]
impl Watch for ZooKeeper {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        feed::watch(Arc::clone(&self.inner), query.clone()).await
    }
}

#[async_trait]
impl Administer for ZooKeeper {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        leave::evict(&self.inner, order).await
    }

    async fn totals(&self) -> Result<Totals> {
        surely(|| survey::totals(&self.inner)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await
    }
}

#[async_trait]
impl Counting for ZooKeeper {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        sums::add(&self.inner, counts).await
    }
}

#[async_trait]
impl RaiseFences for ZooKeeper {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        surely(|| self.inner.bump_epoch(order)).await
    }
}
