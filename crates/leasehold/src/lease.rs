//! A claim that holds, in its owner's hands: what it may know about itself, and giving it back.
//!
//! The keeper renews it; this only reads what the keeper found and asks it for things.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use crate::claim::{Amended, Amendment, Note, Released, Ttl};
use crate::client::{Anchor, Client, Inner};
use crate::clock::Moment;
use crate::error::{Error, LostCause, Result};
use crate::handle::Handle;
use crate::keeper;
use crate::name::Name;
use crate::parting::{Parted, Parting, part};
use crate::tenure::{Ended, LeaseState, Phase, Tenure};

/// A lock that is held.
///
/// It is renewed in the background until it is given back. Hand [`fence`](Self::fence) to whatever
/// the lock protects and let it refuse smaller numbers: only that keeps data right when a process
/// is paused for longer than the ttl.
///
/// Dropping a lease gives it back: on the spot where the engine can, else by the client's keeper
/// thread, with or without a runtime. [`release`](Self::release) also tells what became of it.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back at once"]
pub struct Lease {
    anchor: Anchor,
    tenure: Arc<Tenure>,
    fence: u64,
    /// Whether this value still counts as an entry of its tenure.
    entered: bool,
}

impl Lease {
    pub(crate) fn new(client: &Client, tenure: Arc<Tenure>, fence: u64) -> Self {
        Self { anchor: Arc::clone(client.anchor()), tenure, fence, entered: true }
    }

    /// Another entry into a tenure that is still held; `None` if it is not.
    pub(crate) fn enter_again(client: &Client, tenure: Arc<Tenure>) -> Option<Self> {
        if tenure.state(client.inner.keeper.clock.now()) == LeaseState::Lost {
            return None;
        }
        let mut life = tenure.life();
        if life.entries == 0 {
            return None;
        }
        life.entries += 1;
        let fence = life.fence;
        drop(life);
        tenure.usage.touch();
        Some(Self::new(client, tenure, fence))
    }

    fn inner(&self) -> &Inner {
        &self.anchor.0.inner
    }

    pub(crate) fn downgrade(&self) -> Weak<Tenure> {
        Arc::downgrade(&self.tenure)
    }

    /// The name of the lock.
    pub fn name(&self) -> &Name {
        &self.tenure.key.name
    }

    /// The fencing token: greater than that of every lease granted on this name before.
    pub fn fence(&self) -> u64 {
        self.tenure.usage.touch();
        self.fence
    }

    /// How the lease stands at this instant, as far as its holder can know.
    pub fn state(&self) -> LeaseState {
        self.tenure.usage.touch();
        self.tenure.state(self.inner().keeper.clock.now())
    }

    /// Whether the lease is held at this instant; never after
    /// [`safe_until`](Self::safe_until).
    pub fn is_held(&self) -> bool {
        self.state() != LeaseState::Lost
    }

    /// Until when the lease is held even if nobody is heard of again: no other lease on this name
    /// is valid before.
    pub fn safe_until(&self) -> Moment {
        self.tenure.life().deadline
    }

    /// How long until [`safe_until`](Self::safe_until); zero if the lease is lost.
    pub fn time_left(&self) -> Duration {
        let now = self.inner().keeper.clock.now();
        match self.tenure.state(now) {
            LeaseState::Lost => Duration::ZERO,
            _ => self.tenure.life().deadline.since(now),
        }
    }

    /// Ends when the lease is lost, and says why. Never ends while it is held.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn lost(&self) -> LostCause {
        loop {
            let changed = self.tenure.changed.notified();
            if let Some(cause) = self.tenure.lost(self.inner().keeper.clock.now()) {
                return cause;
            }
            changed.await;
        }
    }

    /// Runs `work` until it ends or the lease is lost. No step of it begins after the lease's end
    /// on this machine's clock, also when nobody has found that yet.
    pub(crate) async fn while_held<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> std::result::Result<T, LostCause> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        let clock = &self.inner().keeper.clock;
        poll_fn(|context| {
            if let Some(cause) = self.tenure.lost(clock.now()) {
                return Poll::Ready(Err(cause));
            }
            if let Poll::Ready(cause) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(cause));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Keeps the name closed until this long after it was granted, also if it is given back.
    pub(crate) fn hold_at_least(&self, span: Duration) {
        let mut life = self.tenure.life();
        life.terms.bounds.get_or_insert_default().hold_at_least = Some(span);
    }

    /// Ends at this instant of the client's clock.
    pub(crate) fn sleep_until(&self, at: Moment) -> impl Future<Output = ()> + Send {
        self.inner().keeper.clock.sleep_until(at)
    }

    /// The present instant on the client's clock.
    pub(crate) fn clock_now(&self) -> Moment {
        self.inner().keeper.clock.now()
    }

    /// Sets another time to live and renews at once.
    ///
    /// # Cancel safety
    ///
    /// The new time to live stays set; the renewal goes on in the background.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        let keeper = &self.inner().keeper;
        let now = keeper.clock.now();
        let awaited = self.tenure.renew_now(ttl, now);
        keeper.expect_at(now);
        loop {
            let changed = self.tenure.changed.notified();
            if let Some(cause) = self.tenure.lost(keeper.clock.now()) {
                return Err(Error::Lost { name: self.name().clone(), cause });
            }
            if self.tenure.life().answers >= awaited {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Replaces the text that others may read, up to 4 KiB, in one exchange.
    ///
    /// # Cancel safety
    ///
    /// Whether the note was replaced is then unknown; the lease is not touched.
    pub async fn set_note(&self, note: impl AsRef<str>) -> Result<()> {
        self.amend(&Amendment::note(Note::new(note)?)).await.map(|_done| ())
    }

    /// Changes the claim in the store. A lease that the store does not have is an error.
    pub(crate) async fn amend(&self, amendment: &Amendment) -> Result<Amended> {
        let keeper = &self.inner().keeper;
        let lost = |cause| Error::Lost { name: self.name().clone(), cause };
        if let Some(cause) = self.tenure.lost(keeper.clock.now()) {
            return Err(lost(cause));
        }
        match keeper.engine.amend(&self.tenure.key, amendment).await? {
            // The keeper comes to the same with its next renewal.
            Amended::Out { by: Some(holder) } => Err(lost(LostCause::TakenBy(holder))),
            Amended::Out { by: None } => Err(lost(LostCause::Removed)),
            amended => Ok(amended),
        }
    }

    /// The lease as text, with which another process can renew, check or release it. Whoever has
    /// it owns the lease.
    pub fn handle(&self) -> Handle {
        Handle {
            store_id: self.inner().keeper.engine.info().store_id,
            key: self.tenure.key.clone(),
            fence: self.fence,
            ttl: self.tenure.life().terms.ttl,
            holder: self.inner().holder.clone(),
        }
    }

    /// Lets go of the lease without giving it back: it lives in the store until its ttl ends or
    /// somebody takes up the handle.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it ends gives the lease back.
    pub async fn detach(mut self) -> Result<Handle> {
        if self.tenure.is_provisional() {
            let ttl = self.tenure.life().terms.ttl;
            self.extend(ttl.get()).await?;
        }
        let handle = self.handle();
        self.entered = false;
        if self.tenure.leave().is_some() {
            self.inner().keeper.forget(&self.tenure);
            self.inner().keeper.counters.detached();
        }
        Ok(handle)
    }

    /// Gives the lease back and says what became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes the release in the background.
    pub async fn release(mut self) -> Result<Released> {
        self.entered = false;
        // What is rare is in boxes, so that the way is short where the store answers at once.
        match self.part_now() {
            Ok(Ok(())) => Ok(Released::Released),
            Ok(Err(released)) => Ok(*released),
            Err(ended) => Box::pin(self.part(*ended)).await,
        }
    }

    /// Gives the lease back where the store answers without waiting; otherwise says how it ended.
    fn part_now(&self) -> std::result::Result<Parted, Box<Ended>> {
        let Some(ended) = self.tenure.leave() else {
            return Ok(Err(Box::new(Released::StillEntered)));
        };
        let keeper = &self.inner().keeper;
        if ended.may_be_left()
            && let Some(parted) = keeper.release_now(&self.tenure, &ended)
        {
            return Ok(parted);
        }
        keeper.strike(&self.tenure);
        Err(Box::new(ended))
    }

    async fn part(&self, ended: Ended) -> Result<Released> {
        if !ended.may_be_left() {
            return Ok(self.what_became(ended.phase).await);
        }
        let keeper = &self.inner().keeper;
        let (parting, kept) = (Parting::of(&self.tenure, &ended), ended.is_kept());
        let mut unfinished = Unfinished { keeper, tenure: &self.tenure, ended: Some(ended) };
        if kept {
            // A renewal that is on its way would make it end earlier again.
            self.tenure.landed().await;
        }
        let released = part(&*keeper.engine, &*keeper.clock, &parting).await?;
        if let Some(ended) = unfinished.ended.take() {
            keeper.count_end(&self.tenure, &ended, &released);
        }
        Ok(released)
    }

    /// What to say about a lease that was lost. The store is asked once at most: no time is spent
    /// on giving back what is gone.
    async fn what_became(&self, phase: Phase) -> Released {
        let Phase::Lost(cause) = phase else { return Released::AlreadyExpired };
        match *cause {
            LostCause::TakenBy(holder) => Released::TakenBy(holder),
            LostCause::Expired | LostCause::Removed => {
                let key = std::slice::from_ref(&self.tenure.key);
                let answer = self.inner().keeper.direct.release(key).await;
                let answer = answer.ok().and_then(|answers| answers.into_iter().next());
                match answer {
                    Some(Released::TakenBy(holder)) => Released::TakenBy(holder),
                    _ => Released::AlreadyExpired,
                }
            }
            _ => Released::AlreadyExpired,
        }
    }

    /// Whether the last holder of this name in this process panicked while it held it.
    ///
    /// What the lock protects may then be half-done. The mark is the client's own: other
    /// processes do not see it. [`Client::clear_poison`](crate::Client::clear_poison) removes it.
    pub fn is_poisoned(&self) -> bool {
        self.inner().poison.is_set(self.name())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.entered {
            return;
        }
        if std::thread::panicking() {
            self.inner().poison.set(self.name());
        }
        self.inner().keeper.abandon(&self.tenure);
    }
}

/// Hands a release that was not finished to the keeper.
struct Unfinished<'a> {
    keeper: &'a Arc<keeper::Keeper>,
    tenure: &'a Tenure,
    ended: Option<Ended>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.keeper.part_later(self.tenure, &ended);
        }
    }
}
