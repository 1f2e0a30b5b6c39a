//! Makes trouble on purpose: an engine that fails, loses answers or hangs when it is told to.
//!
//! For tests of the library and of the code that uses it. The wrapped engine is untouched; only
//! what its caller sees changes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::Notify;

use crate::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Released, Renewal, Standing,
};
use crate::engine::{
    Bump, Bumped, Concern, Counts, Engine, Event, Eviction, Finding, Info, Notice, Page, Query,
    Resize, Resized, Totals, Wait, Wake,
};
use crate::error::{Error, Result};

/// The verbs trouble can be made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `claim`
    Claim,
    /// `wait`
    Wait,
    /// `renew`
    Renew,
    /// `release`
    Release,
    /// `announce`
    Announce,
    /// `waits_of`
    WaitsOf,
    /// `amend`
    Amend,
}

/// The kinds of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The request never reaches the store; the caller gets an error.
    Refuse,
    /// The request takes effect, but its answer is lost; the caller gets an error.
    LoseAnswer,
    /// The request never reaches the store, and the caller hears nothing until
    /// [`Chaos::heal`].
    Hang,
    /// The request takes effect, and the caller hears nothing until [`Chaos::heal`].
    HangAfter,
}

/// The switchboard of a [`Troubled`] engine. Clones are the same board.
#[derive(Debug, Clone, Default)]
pub struct Chaos {
    board: Arc<Board>,
}

#[derive(Debug, Default)]
struct Board {
    orders: Mutex<Vec<Order>>,
    healed: Notify,
    calls: [AtomicU64; 7],
    waiting: AtomicU32,
    arrived: Notify,
}

#[derive(Debug)]
struct Order {
    verb: Verb,
    trouble: Trouble,
    /// How many more calls to let through first.
    skip: u32,
    /// How many calls are troubled then.
    times: u32,
}

impl Chaos {
    /// Wraps an engine.
    pub fn trouble(&self, engine: impl Engine) -> Troubled {
        let mut info = engine.info().clone();
        info.can_fail = true;
        Troubled { engine: Arc::new(engine), info, chaos: self.clone() }
    }

    /// Makes trouble for the next `times` calls of `verb`.
    pub fn next(&self, verb: Verb, trouble: Trouble, times: u32) {
        self.after(0, verb, trouble, times);
    }

    /// Lets `skip` calls of `verb` through, then makes trouble for `times` calls.
    pub fn after(&self, skip: u32, verb: Verb, trouble: Trouble, times: u32) {
        self.orders().push(Order { verb, trouble, skip, times });
    }

    /// Ends all trouble, and lets go whoever hangs.
    pub fn heal(&self) {
        self.orders().clear();
        self.board.healed.notify_waiters();
    }

    /// How many calls of `verb` were made.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.board.calls[verb as usize].load(Ordering::SeqCst)
    }

    /// Ends when `count` calls hang.
    pub async fn hanging(&self, count: u32) {
        loop {
            let arrived = self.board.arrived.notified();
            if self.board.waiting.load(Ordering::SeqCst) >= count {
                return;
            }
            arrived.await;
        }
    }

    fn orders(&self) -> MutexGuard<'_, Vec<Order>> {
        self.board.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, verb: Verb) -> Option<Trouble> {
        self.board.calls[verb as usize].fetch_add(1, Ordering::SeqCst);
        let mut orders = self.orders();
        let index = orders.iter().position(|order| order.verb == verb)?;
        let order = &mut orders[index];
        if order.skip > 0 {
            order.skip -= 1;
            return None;
        }
        let trouble = order.trouble;
        order.times = order.times.saturating_sub(1);
        if order.times == 0 {
            orders.remove(index);
        }
        Some(trouble)
    }

    async fn hang(&self) {
        let healed = self.board.healed.notified();
        self.board.waiting.fetch_add(1, Ordering::SeqCst);
        self.board.arrived.notify_waiters();
        healed.await;
    }
}

/// An engine in trouble; made by [`Chaos::trouble`].
#[derive(Debug)]
pub struct Troubled {
    engine: Arc<dyn Engine>,
    info: Info,
    chaos: Chaos,
}

impl Troubled {
    fn cut(&self) -> Error {
        let cause = "the test cut the connection".to_owned();
        Error::Unreachable { store: self.info.store.clone(), cause }
    }

    async fn through<T: Send>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match self.chaos.meet(verb) {
            None => call.await,
            Some(Trouble::Refuse) => Err(self.cut()),
            Some(Trouble::LoseAnswer) => call.await.and_then(|_lost| Err(self.cut())),
            Some(Trouble::Hang) => {
                self.chaos.hang().await;
                Err(self.cut())
            }
            Some(Trouble::HangAfter) => {
                let answer = call.await;
                self.chaos.hang().await;
                answer
            }
        }
    }
}

#[async_trait]
impl Engine for Troubled {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.through(Verb::Claim, self.engine.claim(claim)).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.through(Verb::Claim, self.engine.claim_all(claims)).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.through(Verb::Wait, self.engine.wait(key)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.through(Verb::Renew, self.engine.renew(renewals)).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.through(Verb::Release, self.engine.release(keys)).await
    }

    fn release_now(&self, _key: &ClaimKey) -> Option<Released> {
        // A lease dropped on a troubled engine goes the long way, like on a remote one.
        None
    }

    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
        self.through(Verb::Amend, self.engine.amend(key, amendment)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.engine.resize(order).await
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        self.engine.losses().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        self.engine.concerns().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.engine.inspect(query).await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.through(Verb::Announce, self.engine.announce(notice)).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.through(Verb::WaitsOf, self.engine.waits_of(holder)).await
    }

    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        self.engine.watch(query).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        self.engine.evict(order).await
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.engine.bump_epoch(order).await
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        self.engine.tally(counts).await
    }

    async fn totals(&self) -> Result<Totals> {
        self.engine.totals().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.engine.examine().await
    }

    async fn install(&self) -> Result<()> {
        self.engine.install().await
    }

    fn schema(&self) -> &'static str {
        self.engine.schema()
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
