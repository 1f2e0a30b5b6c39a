//! A claim that holds, in its owner's hands: what it may know about itself, and giving it back.
//!
//! The keeper renews it; this only reads what the keeper found and asks it for things.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use crate::client::{Client, ClientRef, Inner};
use crate::clock::Moment;
use crate::error::{Error, LostCause, Result};
use crate::handle::Handle;
use crate::rule::claim::{Amended, Mode, Note, Released, Ttl};
use crate::rule::fence::Fence;
use crate::rule::name::Name;
use crate::runtime::claim_state::{ClaimState, EndedClaim, LeaseState, Phase};
use crate::runtime::keeper;
use crate::runtime::pending_release::{PendingRelease, ReleasedNow, release_with_retries};

/// A lock that is held.
///
/// It is renewed in the background until it is given back. Hand [`fence`](Self::fence) to whatever
/// the lock protects and let it refuse smaller numbers: only that keeps data right when a process
/// is paused for longer than the ttl.
///
/// Dropping a lease gives it back: on the spot where the engine can, else by the client's keeper
/// thread, with or without a runtime. [`release`](Self::release) also tells what became of it.
///
/// In a forked child a copy of a lease is lost, and its drop gives nothing back: the parent has the
/// lease. A copy in a child of a `memory:` client is a lease on the child's own copy of the store.
#[must_use = "a lease that is dropped is given back at once"]
pub struct Lease {
    client_ref: ClientRef,
    claim_state: Arc<ClaimState>,
    fence: u64,
    /// Whether this value still counts as an entry of its claim.
    entered: bool,
}

/// Short, because leases stand in users' own types.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, fence) = (&self.claim_state.key.name, &self.fence);
        f.debug_struct("Lease").field("name", name).field("fence", fence).finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn new(client: &Client, claim_state: Arc<ClaimState>, fence: u64) -> Self {
        Self { client_ref: Arc::clone(client.client_ref()), claim_state, fence, entered: true }
    }

    /// Another entry into a claim_state that is still held; `None` if it is not.
    pub(crate) fn enter_again(client: &Client, claim_state: Arc<ClaimState>) -> Option<Self> {
        if claim_state.state(client.inner.keeper.clock.now()) == LeaseState::Lost {
            return None;
        }
        let mut progress = claim_state.progress();
        if progress.entries == 0 {
            return None;
        }
        progress.entries += 1;
        let fence = progress.fence;
        drop(progress);
        claim_state.usage.touch();
        Some(Self::new(client, claim_state, fence))
    }

    fn inner(&self) -> &Inner {
        &self.client_ref.0.inner
    }

    pub(crate) fn downgrade(&self) -> Weak<ClaimState> {
        Arc::downgrade(&self.claim_state)
    }

    /// The name of the lock.
    pub fn name(&self) -> &Name {
        &self.claim_state.key.name
    }

    /// The fencing token: greater than that of every lease granted on this name before.
    ///
    /// As each use of a lease, this says to deadlock detection that the calling task has the lease.
    pub fn fence(&self) -> Fence {
        self.claim_state.usage.touch();
        self.fence.into()
    }

    /// How the lease stands at this instant, as far as its holder can know. A use of the lease, as
    /// [`fence`](Self::fence) is.
    pub fn state(&self) -> LeaseState {
        self.claim_state.usage.touch();
        self.standing()
    }

    /// The same, without a use of the lease.
    fn standing(&self) -> LeaseState {
        let keeper = &self.inner().keeper;
        if keeper.is_forked() {
            LeaseState::Lost
        } else {
            self.claim_state.state(keeper.clock.now())
        }
    }

    /// Why the lease is lost, if it is.
    fn cause(&self) -> Option<LostCause> {
        let keeper = &self.inner().keeper;
        if keeper.is_forked() {
            return Some(LostCause::Forked);
        }
        self.claim_state.lost(keeper.clock.now())
    }

    /// Whether the lease is held at this instant; never after
    /// [`safe_until`](Self::safe_until).
    pub fn is_held(&self) -> bool {
        self.state() != LeaseState::Lost
    }

    /// When the lease was granted, or taken up by its handle, on this machine's wall clock. A step
    /// of that clock moves it too.
    pub fn acquired_at(&self) -> SystemTime {
        let held = self.inner().keeper.clock.now().since(self.claim_state.progress().since);
        SystemTime::now().checked_sub(held).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Until when the lease is held even if nobody is heard of again: no other lease on this name
    /// is valid before.
    ///
    /// An [`Instant`] may stand still while the machine sleeps, and the lease does not. So ask
    /// again after a long pause. On a virtual clock use [`time_left`](Self::time_left).
    pub fn safe_until(&self) -> Instant {
        Instant::now() + self.time_left()
    }

    /// The end of the lease on the client's clock, for tests that compare ends.
    #[doc(hidden)]
    pub fn deadline(&self) -> Moment {
        self.claim_state.progress().deadline
    }

    /// How long until [`safe_until`](Self::safe_until); zero if the lease is lost.
    pub fn time_left(&self) -> Duration {
        match self.standing() {
            LeaseState::Lost => Duration::ZERO,
            _ => self.claim_state.progress().deadline.since(self.inner().keeper.clock.now()),
        }
    }

    /// Why the last renewal failed; `None` if it was answered, or none was due yet.
    pub fn last_failure(&self) -> Option<Arc<Error>> {
        self.claim_state.progress().trouble.clone()
    }

    /// Ends when the lease is lost, and says why. Never ends while it is held.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn lost(&self) -> LostCause {
        loop {
            let changed = self.claim_state.changed.notified();
            if let Some(cause) = self.cause() {
                return cause;
            }
            changed.await;
        }
    }

    /// Ends when somebody asks for the lease with [`Admin::revoke`](crate::Admin::revoke). Never
    /// ends while nobody does, and where the store carries no messages to holders.
    ///
    /// Give the lease back in time; after that it is force-released. Everybody who can write to
    /// the store can ask.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn revoke_requested(&self) -> Revocation {
        loop {
            let changed = self.claim_state.changed.notified();
            let now = self.inner().keeper.clock.now();
            if let Some((by, reason, time_left)) = self.claim_state.request(now) {
                return Revocation { by, reason, time_left };
            }
            changed.await;
        }
    }

    /// Calls `callback` once when the lease is lost, with the cause; at once if it is lost already.
    /// A lease that is given back was not lost, and calls nobody. Another callback replaces the
    /// one before.
    ///
    /// The client's keeper thread calls it, so it must not block: no lease of the client is renewed
    /// meanwhile. It may release or drop leases. A callback that owns the lease keeps it alive.
    /// [`lost`](Self::lost) is the same as a future.
    pub fn on_lost(&self, callback: impl FnOnce(&LostCause) + Send + 'static) {
        // First, so that a loss that is found now or later calls it.
        self.claim_state.progress().callbacks.get_or_insert_default().lost =
            Some(Box::new(callback));
        if let Some(cause) = self.cause() {
            self.claim_state.report_lost_to_callbacks(&cause);
        }
    }

    /// Calls `callback` after each renewal that the store answered, with the time for which the
    /// lease is held from then on. Another callback replaces the one before.
    ///
    /// The client's keeper thread calls it; see [`on_lost`](Self::on_lost).
    pub fn on_renewed(&self, callback: impl Fn(Duration) + Send + Sync + 'static) {
        self.claim_state.progress().callbacks.get_or_insert_default().renewed =
            Some(Arc::new(callback));
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
            // No step of the work is worth a system call: `lost` looks for a fork first of all.
            if let Some(cause) = self.claim_state.lost(clock.now()) {
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
        let mut progress = self.claim_state.progress();
        progress.terms.bounds.get_or_insert_default().hold_at_least = Some(span);
    }

    /// Ends at this instant of the client's clock.
    pub(crate) fn sleep_until(&self, at: Moment) -> impl Future<Output = ()> + Send {
        self.inner().keeper.clock.sleep_until(at)
    }

    /// The present instant on the client's clock.
    pub(crate) fn clock_now(&self) -> Moment {
        self.inner().keeper.clock.now()
    }

    /// Sets another time to live and renews at once. The lease never ends sooner by that: with a
    /// shorter one the store keeps it for what is left of the longer one.
    ///
    /// # Cancel safety
    ///
    /// The new time to live stays set; the renewal goes on in the background.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        let keeper = &self.inner().keeper;
        keeper.refuse_fork()?;
        let now = keeper.clock.now();
        let awaited = self.claim_state.renew_now(ttl, now);
        keeper.wake_by(now);
        loop {
            let changed = self.claim_state.changed.notified();
            if let Some(cause) = self.claim_state.lost(keeper.clock.now()) {
                return Err(Error::Lost { name: self.name().clone(), cause });
            }
            if self.claim_state.progress().answers >= awaited {
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
        let note = Note::new(note)?;
        let keeper = &self.inner().keeper;
        let part = keeper.need(&keeper.parts.amend)?;
        self.amend(|| part.set_note(&self.claim_state.key, &note)).await.map(|_done| ())
    }

    /// Replaces the note by JSON; see [`set_note`](Self::set_note).
    ///
    /// # Cancel safety
    ///
    /// As [`set_note`](Self::set_note).
    #[cfg(feature = "json")]
    pub async fn set_note_json(&self, note: &impl serde::Serialize) -> Result<()> {
        let note = Note::json(note)?;
        self.set_note(note.as_str()).await
    }

    /// Changes the mode; also returns how many requests it took. All but the last of them may
    /// still reach the store.
    pub(crate) async fn set_mode(&self, mode: Mode) -> Result<(Amended, u32)> {
        let keeper = &self.inner().keeper;
        let part = keeper.need(&keeper.parts.convert)?;
        self.amend(|| part.set_mode(&self.claim_state.key, mode)).await
    }

    /// Changes the claim in the store, and counts the requests. A lease that the store does not
    /// have is an error.
    async fn amend<F>(&self, mut request: impl FnMut() -> F) -> Result<(Amended, u32)>
    where
        F: Future<Output = Result<Amended>>,
    {
        let keeper = &self.inner().keeper;
        keeper.refuse_fork()?;
        let lost = |cause| Error::Lost { name: self.name().clone(), cause };
        if let Some(cause) = self.claim_state.lost(keeper.clock.now()) {
            return Err(lost(cause));
        }
        let mut requests = 0;
        let once = || {
            requests += 1;
            request()
        };
        match keeper.retry.again(once).await? {
            // The keeper comes to the same with its next renewal.
            Amended::Out { by: Some(holder) } => Err(lost(LostCause::TakenBy(holder))),
            Amended::Out { by: None } => Err(lost(LostCause::Removed)),
            amended => Ok((amended, requests)),
        }
    }

    /// The lease as text, with which another process can renew, check or release it. A process that
    /// has it owns the lease.
    pub fn handle(&self) -> Handle {
        Handle {
            store_id: self.inner().keeper.engine.info().store_id,
            key: self.claim_state.key.clone(),
            fence: self.fence,
            ttl: self.claim_state.progress().terms.ttl,
            holder: self.inner().holder.clone(),
        }
    }

    /// Lets go of the lease without giving it back: it lives in the store until its ttl ends or
    /// somebody takes up the handle. An error gives the lease back: so does a ttl for which the
    /// store does not keep a lease that no client renews
    /// ([`check_unrenewed`](Client::check_unrenewed) says so before it is taken).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it ends gives the lease back.
    pub async fn detach(mut self) -> Result<Handle> {
        self.inner().keeper.refuse_fork()?;
        let span = self.claim_state.progress().terms.kept();
        self.inner().check_unrenewed(span).await?;
        if self.claim_state.is_provisional() {
            let ttl = self.claim_state.progress().terms.ttl;
            self.extend(ttl.get()).await?;
        }
        let handle = self.handle();
        self.entered = false;
        if self.claim_state.leave().is_some() {
            self.inner().keeper.forget(&self.claim_state);
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
        self.inner().keeper.refuse_fork()?;
        self.entered = false;
        // The rare cases are in boxes, so that the way is short where the store answers at once.
        match self.part_now() {
            Ok(Ok(())) => Ok(Released::Released),
            Ok(Err(released)) => Ok(*released),
            Err(ended) => Box::pin(self.part(*ended)).await,
        }
    }

    /// Gives the lease back where the store answers without waiting; otherwise says how it ended.
    fn part_now(&self) -> std::result::Result<ReleasedNow, Box<EndedClaim>> {
        let Some(ended) = self.claim_state.leave() else {
            return Ok(Err(Box::new(Released::StillEntered)));
        };
        let keeper = &self.inner().keeper;
        if ended.may_be_left()
            && let Some(parted) = keeper.release_now(&self.claim_state, &ended)
        {
            return Ok(parted);
        }
        keeper.unregister(&self.claim_state);
        Err(Box::new(ended))
    }

    async fn part(&self, ended: EndedClaim) -> Result<Released> {
        if !ended.may_be_left() {
            return Ok(self.what_became(ended.phase).await);
        }
        let keeper = &self.inner().keeper;
        let release = PendingRelease::of(&self.claim_state, &ended);
        let mut unfinished =
            Unfinished { keeper, claim_state: &self.claim_state, ended: Some(ended) };
        let released = release_with_retries(keeper, &release).await?;
        if let Some(ended) = unfinished.ended.take() {
            keeper.count_end(&self.claim_state, &ended, &released);
        }
        Ok(released)
    }

    /// The answer about a lease that was lost. This asks the store once at most, and spends no time
    /// on giving back a lease that is gone.
    async fn what_became(&self, phase: Phase) -> Released {
        let Phase::Lost(cause) = phase else { return Released::AlreadyExpired };
        match *cause {
            LostCause::TakenBy(holder) => Released::TakenBy(holder),
            LostCause::Released => Released::Released,
            LostCause::Expired | LostCause::Removed | LostCause::Evicted { .. } => {
                let key = std::slice::from_ref(&self.claim_state.key);
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

/// A request to give a lease back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The label of the client that asks.
    pub by: String,
    /// Why.
    pub reason: String,
    /// How long until the lease is force-released. The message took a moment to arrive, so it is a
    /// little less.
    pub time_left: Duration,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.entered || self.inner().keeper.is_forked() {
            return;
        }
        if std::thread::panicking() {
            self.inner().poison.set(self.name());
        }
        self.inner().keeper.release_on_drop(&self.claim_state);
    }
}

/// Hands a release that was not finished to the keeper.
struct Unfinished<'a> {
    keeper: &'a Arc<keeper::Keeper>,
    claim_state: &'a ClaimState,
    ended: Option<EndedClaim>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.keeper.release_later(self.claim_state, &ended);
        }
    }
}
