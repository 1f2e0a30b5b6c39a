//! Injects faults: an engine that fails, loses answers or hangs at a test's order.
//!
//! For tests of the library and of the code that uses it. The wrapped engine is unchanged. Only its
//! caller sees other answers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::engine::{
    Amend, ClaimMany, Convert, Engine, Eviction, Info, Notice, Page, Parts, Query, Resize, Resized,
    Steal, Unattended, Wait, WaitNotices, Wake,
};
use crate::error::{Error, Result, UnreachableReason};
use crate::rule::claim::{
    Amended, Claim, ClaimKey, HolderId, Mode, Note, Released, Renewal, Standing,
};

/// The verbs that can get faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// `claim`, `claim_all` and `steal`
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
    /// `set_note` and `set_mode`
    Amend,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The request does not reach the store; the caller gets an error.
    Refuse,
    /// The request takes effect, but its answer is lost; the caller gets an error.
    LoseAnswer,
    /// The request does not reach the store, and the caller gets no answer until
    /// [`Chaos::heal`].
    Hang,
    /// The request takes effect, and the caller gets no answer until [`Chaos::heal`].
    HangAfter,
}

/// Controls the faults of a [`Troubled`] engine. Clones control the same engine.
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
    /// How many calls then get the fault.
    times: u32,
}

impl Chaos {
    /// Wraps an engine.
    pub fn trouble(&self, engine: impl Engine) -> Troubled {
        let mut info = engine.info().clone();
        info.can_fail = true;
        Troubled { engine: Arc::new(engine), info, chaos: self.clone() }
    }

    /// Injects a fault into the next `times` calls of `verb`.
    pub fn next(&self, verb: Verb, trouble: Trouble, times: u32) {
        self.after(0, verb, trouble, times);
    }

    /// Lets `skip` calls of `verb` through, then injects a fault into `times` calls.
    pub fn after(&self, skip: u32, verb: Verb, trouble: Trouble, times: u32) {
        self.orders().push(Order { verb, trouble, skip, times });
    }

    /// Ends all faults, and answers the calls that hang.
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

/// An engine with injected faults; made by [`Chaos::trouble`].
#[derive(Debug)]
pub struct Troubled {
    engine: Arc<dyn Engine>,
    info: Info,
    chaos: Chaos,
}

impl Troubled {
    fn trouble<P: ?Sized>(self: &Arc<Self>, part: Arc<P>) -> Arc<TroubledPart<P>> {
        Arc::new(TroubledPart { part, engine: Arc::clone(self) })
    }

    fn cut(&self) -> Error {
        let cause = "the test cut the connection";
        Error::unreachable(&self.info.store, UnreachableReason::Broken, cause)
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
#[deny(clippy::missing_trait_methods)]
impl Engine for Troubled {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.through(Verb::Claim, self.engine.claim(claim)).await
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

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.engine.inspect(query).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        let Parts {
            // Claims and dropped leases use the async verbs, as on a remote engine.
            claim_now: _,
            release_now: _,
            claim_many,
            amend,
            convert,
            unattended,
            wait_notices,
            messages,
            alerts,
            watch,
            admin,
            steal,
            counting,
            raise_fences,
            setup,
        } = Arc::clone(&self.engine).parts();
        Parts {
            claim_now: None,
            release_now: None,
            claim_many: claim_many.map(|part| self.trouble(part) as _),
            amend: amend.map(|part| self.trouble(part) as _),
            convert: convert.map(|part| self.trouble(part) as _),
            unattended: unattended.map(|part| self.trouble(part) as _),
            wait_notices: wait_notices.map(|part| self.trouble(part) as _),
            messages,
            alerts,
            watch,
            admin,
            steal: steal.map(|part| self.trouble(part) as _),
            counting,
            raise_fences,
            setup,
        }
    }
}

/// A part of an engine with injected faults.
#[derive(Debug)]
struct TroubledPart<P: ?Sized> {
    part: Arc<P>,
    engine: Arc<Troubled>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ClaimMany for TroubledPart<dyn ClaimMany> {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.engine.through(Verb::Claim, self.part.claim_all(claims)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Amend for TroubledPart<dyn Amend> {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        self.engine.through(Verb::Amend, self.part.set_note(key, note)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Convert for TroubledPart<dyn Convert> {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        self.engine.through(Verb::Amend, self.part.set_mode(key, mode)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.part.resize(order).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Unattended for TroubledPart<dyn Unattended> {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.engine.through(Verb::Release, self.part.keep_closed(key, stay)).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        self.part.longest_without_renewal().await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WaitNotices for TroubledPart<dyn WaitNotices> {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.engine.through(Verb::Announce, self.part.announce(notice)).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.engine.through(Verb::WaitsOf, self.part.waits_of(holder)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Steal for TroubledPart<dyn Steal> {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        self.engine.through(Verb::Claim, self.part.steal(claim, order)).await
    }
}
