//! Keeps a client's claims alive: one task for all of them, on an OS thread of its own.
//!
//! It renews leases and waiting claims in batches, declares leases lost by the local clock, and
//! finishes what was dropped or cancelled. Because it has its own thread, work that blocks the
//! caller's runtime cannot starve it, and a lease can be dropped where no runtime is.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, oneshot};

use crate::clock::remote::ClockTrouble;
use crate::clock::{Clock, Moment};
use crate::engine::layer::retry::{Retry, RetryPolicy};
use crate::engine::{
    Alert, AlertKind, Alerts, ClaimNow, Counts, Engine, HolderMessage, Part, Parts, ServerAlert,
    Wait, need,
};
use crate::error::{Error, LostCause, Result, UnreachableReason};
use crate::observe::{Counters, Measure, Observer, Stats};
use crate::rule::claim::{ClaimKey, HolderId, Released, Renewal, Standing, Token};
use crate::rule::name::Name;
use crate::runtime::acquire::FIRST_ANSWER;
use crate::runtime::background_release::BackgroundReleases;
use crate::runtime::claim_state::{Answered, ClaimState, EndedClaim, NextStep, Phase};
use crate::runtime::fence_watermark::FenceWatermark;
use crate::runtime::listening::{Heard, LISTEN_AFTER, Listening};
use crate::runtime::pending_release::{PendingRelease, ReleasedNow, send_releases};
use crate::runtime::registry::Registry;
use crate::runtime::wait_outbox::WaitOutbox;

/// The most claims in one exchange, so that a batch never holds a store up for long.
const BATCH_MAX: usize = 1_000;

/// The most exchanges of one kind under way at once: a slow one must not hold up the others, and
/// a dead store must not collect a crowd.
const EXCHANGES_MAX: usize = 4;

/// How long an exchange that is no renewal may take before it counts as failed.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a client's counts are added to the store's.
const TALLY_EVERY: Duration = Duration::from_secs(10);

/// The pause before a failed release is tried again.
const RELEASE_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Keeper {
    /// For callers: tries transient failures again.
    pub(crate) engine: Arc<dyn Engine>,
    /// For the keeper, which has its own way of trying again and must not need a runtime where a
    /// lease is dropped.
    pub(crate) direct: Arc<dyn Engine>,
    /// The optional parts of the engine, which do not try again.
    pub(crate) parts: Parts,
    /// How `engine` tries again, for callers of parts.
    pub(crate) retry: RetryPolicy,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Grants what is free without a runtime; absent where an observer wants to know of it.
    pub(crate) claim_now: Option<Arc<dyn ClaimNow>>,
    pub(crate) fence_watermark: FenceWatermark,
    registry: Registry,
    notices: WaitOutbox,
    background_releases: Arc<BackgroundReleases>,
    /// The process that made it, where a store outside of the process can be harmed by a copy of
    /// this client in a forked child.
    process: Option<u32>,
    inbox: Mutex<Inbox>,
    wake: Notify,
    /// When the keeper looks around next, in nanoseconds; `u64::MAX` while it does.
    wake_at: AtomicU64,
    closed: AtomicBool,
}

/// What callers leave for the keeper.
#[derive(Debug, Default)]
struct Inbox {
    running: bool,
    /// Claims to take out of the store. Bounded by the registry: each was a claim.
    releases: Vec<PendingRelease>,
    next_release: Option<Moment>,
    /// Whom to tell when everything is finished.
    closers: Vec<oneshot::Sender<()>>,
    told: Counts,
    last_tally: Option<Moment>,
    thread_failed: bool,
    /// How many exchanges that take claims out are under way.
    release: usize,
    /// How many that tell counts.
    telling: usize,
    /// Whether the keeper's thread looks for losses. The holder of a lost lease may hear of it
    /// before the keeper has reported it.
    looking: bool,
}

impl Inbox {
    /// Whether the store has been told everything that the keeper had to tell it, and every loss
    /// was reported.
    fn is_clear(&self) -> bool {
        self.releases.is_empty() && self.release == 0 && self.telling == 0 && !self.looking
    }
}

/// Exchanges of one kind under way.
type Exchanges = FuturesUnordered<BoxFuture<'static, Completed>>;

/// What is renewed together, each with its ttl.
type Batch = Vec<(Arc<ClaimState>, Duration)>;

enum Completed {
    Renewed { batch: Batch, sent: Moment, result: Result<Vec<Result<Standing>>> },
    ReleasesSent { releases: Vec<PendingRelease>, result: Result<()> },
    Tallied { result: Result<()> },
    Announced { holder: HolderId, number: u64, result: Result<()> },
}

impl Keeper {
    pub(crate) fn new(
        direct: Arc<dyn Engine>,
        retry: RetryPolicy,
        clock: Arc<dyn Clock>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Arc<Self> {
        let parts = Arc::clone(&direct).parts();
        // A client that closes meanwhile must give the claim back at once.
        let claims_now = observer.is_none() && parts.release_now.is_some();
        let process = direct.info().can_fail.then(std::process::id);
        Arc::new(Self {
            claim_now: parts.claim_now.clone().filter(|_| claims_now),
            retry: if direct.info().can_fail { retry } else { RetryPolicy::OFF },
            engine: Retry::wrap(Arc::clone(&direct), retry),
            direct,
            fence_watermark: FenceWatermark::new(parts.raise_fences.is_some()),
            parts,
            clock,
            counters: Counters::default(),
            observer,
            registry: Registry::new(),
            notices: WaitOutbox::new(),
            background_releases: Arc::default(),
            process,
            inbox: Mutex::default(),
            wake: Notify::new(),
            wake_at: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A part of the engine, or the error which says that the engine cannot do it, or that this is
    /// a forked child's copy.
    pub(crate) fn need<'a, P: Part + ?Sized>(&self, part: &'a Option<Arc<P>>) -> Result<&'a P> {
        self.refuse_fork()?;
        need(part, self.direct.info()).map(|part| &**part)
    }

    /// Whether this is a forked child's copy. The leases of the client belong to the parent then,
    /// so the child neither renews nor releases them. It takes no lock that a thread of the parent
    /// may have held at the fork.
    ///
    /// This asks the kernel, which takes 0.1 to 0.3 us: twice for a lock and its release. Nothing
    /// is asked for a store in memory, because a child has a copy of it.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_some_and(|process| process != std::process::id())
    }

    /// Refuses calls of a forked child's copy.
    pub(crate) fn refuse_fork(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Waits until the claims of this client that were given up on `name` have left the store, for
    /// as long as a store has for its first answer.
    pub(crate) async fn own_releases_done(&self, name: &Name) {
        if !self.background_releases.has(name) {
            return;
        }
        tokio::select! {
            biased;
            () = self.background_releases.ended(name) => {}
            () = self.clock.sleep_until(self.clock.now() + FIRST_ANSWER) => {}
        }
    }

    /// What this client did and has.
    pub(crate) fn stats(&self) -> Stats {
        self.counters.stats(|| self.registry.local_counts())
    }

    pub(crate) fn observe(&self, measure: Measure<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(&measure);
        }
    }

    /// The store has not answered a question of `since`, and the caller's time is up.
    pub(crate) fn silent(&self, since: Moment) -> Error {
        let cause = format!("no answer within {:?}", self.clock.now().since(since));
        Error::unreachable(&self.engine.info().store, UnreachableReason::NoAnswer, cause)
    }

    /// Registers a claim before it is sent, so that nothing sent is ever forgotten.
    pub(crate) fn enter(&self, claim_state: &Arc<ClaimState>) -> Result<()> {
        self.admit(claim_state, false)
    }

    /// Takes a lease into care that the store granted on the spot, and counts it.
    pub(crate) fn enter_held(&self, claim_state: &Arc<ClaimState>) -> Result<()> {
        self.admit(claim_state, true)
    }

    fn admit(&self, claim_state: &Arc<ClaimState>, held: bool) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.registry.enter(claim_state, held)
    }

    /// Something of a claim_state is due at `at`; the keeper wakes if it would sleep past it.
    pub(crate) fn wake_by(self: &Arc<Self>, at: Moment) {
        if at.as_nanos() < self.wake_at.load(Ordering::SeqCst) {
            self.start();
            self.wake.notify_one();
        }
    }

    /// Hands every lease that does not end by itself to `visit`, with its fence.
    pub(crate) fn for_each_lasting_lease(&self, mut visit: impl FnMut(&ClaimState, u64)) {
        self.registry.for_each(|claim_state| {
            let progress = claim_state.progress();
            let (lasts, fence) =
                (progress.phase == Phase::Held && progress.terms.lasts(), progress.fence);
            drop(progress);
            if lasts {
                visit(claim_state, fence);
            }
        });
    }

    /// Tells others that a claim waits; whether the store has heard it.
    pub(crate) async fn announce(
        self: &Arc<Self>,
        holder: HolderId,
        token: Token,
        wait: Wait,
        keep: Duration,
    ) -> bool {
        if self.parts.wait_notices.is_none() {
            return false;
        }
        let Some(number) = self.notices.write(holder, token, wait, keep) else { return false };
        self.start();
        self.wake.notify_one();
        self.notices.said(holder, number).await
    }

    /// Takes back the notice that a claim waits, if there is one.
    pub(crate) fn wait_ended(self: &Arc<Self>, holder: HolderId, token: &Token) {
        if self.notices.strike(holder, token) {
            self.start();
            self.wake.notify_one();
        }
    }

    /// Lets go of a claim without touching its claim in the store.
    pub(crate) fn forget(&self, claim_state: &ClaimState) {
        claim_state.finish();
        self.registry.leave(claim_state, false);
    }

    /// Finishes a claim whose last owner went away: its claim leaves the store now where the
    /// engine answers at once, else as soon as the keeper gets through.
    pub(crate) fn release_on_drop(self: &Arc<Self>, claim_state: &ClaimState) {
        match claim_state.leave() {
            Some(ended) if ended.may_be_left() => self.remove_from_line(claim_state, &ended),
            Some(_) => self.unregister(claim_state),
            None => {}
        }
    }

    /// Takes a claim that did not become a lease out of its line. It does so also when the claim
    /// was taken out before, because the store may have carried out its request later.
    pub(crate) fn cancel(self: &Arc<Self>, claim_state: &ClaimState) {
        let ended = self.end(claim_state);
        self.remove_from_line(
            claim_state,
            &ended.unwrap_or_else(|| claim_state.ended(Phase::Done)),
        );
    }

    fn remove_from_line(self: &Arc<Self>, claim_state: &ClaimState, ended: &EndedClaim) {
        if self.release_now(claim_state, ended).is_none() {
            self.unregister(claim_state);
            self.release_later(claim_state, ended);
        }
    }

    /// Gives back what ended and takes it off the list, where the store answers without waiting.
    pub(crate) fn release_now(
        &self,
        claim_state: &ClaimState,
        ended: &EndedClaim,
    ) -> Option<ReleasedNow> {
        if ended.is_kept() {
            return None;
        }
        let released = self.parts.release_now.as_ref()?.release_now(&claim_state.key)?;
        if matches!((&ended.phase, &released), (Phase::Held, Released::Released)) {
            self.registry.leave(claim_state, true);
            self.observe_release(claim_state, ended);
            return Some(Ok(()));
        }
        self.unregister(claim_state);
        self.count_end(claim_state, ended, &released);
        Some(Err(Box::new(released)))
    }

    /// Ends a claim_state; `None` if nothing of it can be left in the store.
    pub(crate) fn end(&self, claim_state: &ClaimState) -> Option<EndedClaim> {
        let ended = claim_state.finish()?;
        self.unregister(claim_state);
        ended.may_be_left().then_some(ended)
    }

    /// Takes a claim that ended off the list.
    pub(crate) fn unregister(&self, claim_state: &ClaimState) {
        self.registry.leave(claim_state, false);
    }

    /// Leaves a claim that ended to the keeper. Nobody waits for the result, so it
    /// counts as given back.
    pub(crate) fn release_later(self: &Arc<Self>, claim_state: &ClaimState, ended: &EndedClaim) {
        self.count_end(claim_state, ended, &Released::Released);
        self.queue_release(PendingRelease::of(claim_state, ended));
    }

    /// Counts and reports how a lease ended.
    pub(crate) fn count_end(
        &self,
        claim_state: &ClaimState,
        ended: &EndedClaim,
        released: &Released,
    ) {
        if ended.phase != Phase::Held {
            return;
        }
        match released {
            Released::TakenBy(holder) => {
                self.report_loss(claim_state, &LostCause::TakenBy(holder.clone()));
            }
            Released::AlreadyExpired => self.report_loss(claim_state, &LostCause::Removed),
            _ => {
                self.counters.released();
                self.observe_release(claim_state, ended);
            }
        }
    }

    fn observe_release(&self, claim_state: &ClaimState, ended: &EndedClaim) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let (name, fence) = (&claim_state.key.name, claim_state.progress().fence);
            tracing::debug!(%name, fence, "released");
        }
        if self.observer.is_some() {
            let held = self.clock.now().since(ended.since);
            self.observe(Measure::Released { name: &claim_state.key.name, held });
        }
    }

    fn queue_release(self: &Arc<Self>, release: PendingRelease) {
        let release = self.take_over(release);
        let mut inbox = self.inbox();
        inbox.releases.push(release);
        inbox.next_release = None;
        drop(inbox);
        self.start();
        self.wake.notify_one();
    }

    fn take_over(&self, release: PendingRelease) -> PendingRelease {
        let leave = self.background_releases.begin(&release.key.name);
        release.taken_over(self.clock.now(), leave)
    }

    /// Releases everything, stops the renewals, and waits until the store has been told.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.notices.close();
        let claim_states = self.registry.all();
        for claim_state in claim_states {
            if let Some(ended) = self.end(&claim_state) {
                self.release_later(&claim_state, &ended);
                if ended.phase == Phase::Held {
                    claim_state.report_lost_to_callbacks(&LostCause::Closed);
                }
            }
            claim_state.bell.notify_one();
        }
        let (sender, receiver) = oneshot::channel();
        let untold = {
            // Looked at and taken at once: otherwise the keeper's thread could take the counts in
            // between, and tell them after this has returned.
            let mut inbox = self.inbox();
            if inbox.is_clear() && self.notices.is_clear() {
                Some(self.take_untold(&mut inbox))
            } else {
                inbox.closers.push(sender);
                None
            }
        };
        if let Some(counts) = untold {
            self.tell(counts).await;
            return self.retire();
        }
        self.start();
        self.wake.notify_one();
        // The keeper drops the sender only after its last exchange; either way it is finished.
        let _finished = receiver.await;
    }

    /// Gives back every lease, and waits until the store has been told, or has dropped them by
    /// their ttl. Returns how many they were. Claims that wait stay in line.
    pub(crate) async fn release_all(self: &Arc<Self>) -> usize {
        let mut names = Vec::new();
        for claim_state in self.registry.all() {
            if let Some(ended) = claim_state.give_back() {
                self.remove_from_line(&claim_state, &ended);
                claim_state.report_lost_to_callbacks(&LostCause::Released);
                names.push(claim_state.key.name.clone());
            }
        }
        for name in &names {
            self.background_releases.ended(name).await;
        }
        names.len()
    }

    /// Tells the store what was counted; for a close that needs nothing else of the keeper.
    async fn tell(&self, counts: Counts) {
        if let Some(counting) = self.parts.counting.as_ref().filter(|_| counts != Counts::default())
        {
            let until = self.clock.now() + EXCHANGE_TIMEOUT;
            if let Err(error) = self.in_time(until, counting.tally(&counts)).await {
                tracing::debug!(%error, "counts were not added to the store's");
            }
        }
    }

    fn take_untold(&self, inbox: &mut Inbox) -> Counts {
        if self.parts.counting.is_none() {
            return Counts::default();
        }
        let counts = Counters::untold(&self.stats(), &inbox.told);
        inbox.told += counts;
        counts
    }

    /// Nobody will ask anything more: finish what is left, then end the thread. In a forked child
    /// nothing is finished, and the connections, which are the parent's, are never closed.
    pub(crate) fn retire(self: &Arc<Self>) {
        if self.is_forked() {
            std::mem::forget(Arc::clone(self));
            return;
        }
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Starts the thread if it does not run.
    fn start(self: &Arc<Self>) {
        let mut inbox = self.inbox();
        if inbox.running {
            return;
        }
        let keeper = Arc::clone(self);
        let thread = std::thread::Builder::new().name("leasehold-keeper".into());
        match thread.spawn(move || keeper.thread()) {
            Ok(_detached) => inbox.running = true,
            Err(error) if !inbox.thread_failed => {
                inbox.thread_failed = true;
                tracing::error!(%error, "cannot start the keeper: leases will not be renewed");
            }
            Err(_) => {}
        }
    }

    fn thread(self: Arc<Self>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.run()),
            Err(error) => {
                tracing::error!(%error, "cannot start the keeper: leases will not be renewed");
                self.inbox().running = false;
            }
        }
    }

    async fn run(self: Arc<Self>) {
        let mut renewals = Exchanges::new();
        let mut releases = Exchanges::new();
        let mut tallies = Exchanges::new();
        let mut notices = Exchanges::new();
        let mut listening = Listening::default();
        loop {
            self.wake_at.store(u64::MAX, Ordering::SeqCst);
            self.inbox().looking = true;
            let mut next = self.begin_renewals(&mut renewals);
            self.inbox().looking = false;
            next = next.min(self.begin_listening(&mut listening));
            next = next.min(self.begin_releases(&mut releases));
            next = next.min(self.begin_tally(&mut tallies));
            self.begin_notices(&mut notices);
            let idle = renewals.is_empty() && releases.is_empty() && tallies.is_empty();
            if idle && notices.is_empty() && self.may_end() {
                return;
            }
            self.wake_at.store(next.as_nanos(), Ordering::SeqCst);
            tokio::select! {
                biased;
                Some(done) = renewals.next() => {
                    self.inbox().looking = true;
                    self.finish_exchange(done);
                }
                Some(done) = releases.next() => self.finish_exchange(done),
                Some(done) = tallies.next() => self.finish_exchange(done),
                Some(done) = notices.next() => self.finish_exchange(done),
                () = self.wake.notified() => {}
                heard = listening.next() => self.heed_message(&mut listening, heard),
                alerts = noticed(self.parts.alerts.as_deref()) => self.on_alerts(alerts),
                () = self.clock.alarm(next), if next != Moment::NEVER => {}
            }
        }
    }

    /// Begins to listen once a lease is held for a while; returns when that is.
    fn begin_listening(self: &Arc<Self>, listening: &mut Listening) -> Moment {
        let Some(part) = self.parts.messages.as_ref().filter(|_| listening.is_idle()) else {
            return Moment::NEVER;
        };
        let mut oldest = None;
        self.registry.for_each(|claim_state| {
            oldest = claim_state.held_since().into_iter().chain(oldest).min();
        });
        let Some(oldest) = oldest.filter(|_| !self.is_closed()) else { return Moment::NEVER };
        let (now, at) = (self.clock.now(), listening.not_before(oldest + LISTEN_AFTER));
        if at > now {
            return at;
        }
        let (keeper, part) = (Arc::clone(self), Arc::clone(part));
        listening.begin(Box::pin(async move {
            keeper.in_time(now + EXCHANGE_TIMEOUT, part.listen()).await
        }));
        Moment::NEVER
    }

    fn heed_message(&self, listening: &mut Listening, heard: Heard) {
        let now = self.clock.now();
        match heard {
            Heard::Message(message) => self.registry.for_each(|claim_state| {
                if claim_state.key.name == message.name {
                    claim_state.hear(&message, now);
                }
            }),
            // A lease may be older than this, and a message about it was missed. In this process
            // the holder waits for its next renewal: a test that moves the clock counts on that.
            Heard::Begun => {
                if self.direct.info().can_fail {
                    self.registry.for_each(|claim_state| claim_state.look(now));
                }
            }
            Heard::Ended(error) => {
                let cause = error.as_ref().map(Error::to_string);
                tracing::debug!(cause, "messages to holders are not heard; listening again");
                listening.ended(now);
            }
        }
    }

    /// Hands messages to the holders of leases. A message that is lost costs time only: the holder
    /// learns the same by its next renewal.
    pub(crate) async fn send(&self, messages: &[HolderMessage]) {
        let Some(part) = &self.parts.messages else { return };
        for message in messages {
            let until = self.clock.now() + EXCHANGE_TIMEOUT;
            if let Err(error) = self.in_time(until, part.send(message)).await {
                tracing::warn!(name = %message.name, %error, "the holders were not told");
            }
        }
    }

    fn on_alerts(&self, alerts: Vec<Alert>) {
        let mut lost = Vec::new();
        for alert in alerts {
            match alert {
                Alert::Lost(key) => lost.push(key),
                Alert::Server(alert) => self.report_server_alert(&alert),
            }
        }
        if !lost.is_empty() {
            self.look_at(&lost);
        }
    }

    /// Makes renewals of claims due that the engine found lost; their answers say what became of
    /// them.
    fn look_at(&self, keys: &[ClaimKey]) {
        let now = self.clock.now();
        self.registry.for_each(|claim_state| {
            if keys.contains(&claim_state.key) {
                claim_state.renew_soon(now);
            }
        });
    }

    /// Reports to the observer what the engine found about the store's servers, and has logged.
    fn report_server_alert(&self, ServerAlert { server, trouble }: &ServerAlert) {
        match trouble {
            AlertKind::Clock(ClockTrouble::Step { by }) => {
                self.observe(Measure::ClockStep { server, by: *by });
            }
            AlertKind::Clock(ClockTrouble::Frozen { stood }) => {
                self.observe(Measure::ClockFrozen { server, stood: *stood });
            }
            AlertKind::Eviction { policy } => {
                self.observe(Measure::MayEvict { server, policy });
            }
        }
    }

    /// Looks at every claim: declares the lost, sends renewals for the due.
    fn begin_renewals(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let now = self.clock.now();
        let mut next = Moment::NEVER;
        let mut earliest = Moment::NEVER;
        let mut due = Vec::new();
        let mut ended = Vec::new();
        self.registry.for_each(|claim_state| match claim_state.next_step(now) {
            NextStep::Rest(until) => next = next.min(until),
            NextStep::Renew { renewal, due: at, end } => {
                earliest = earliest.min(at);
                next = next.min(end);
                due.push((Arc::clone(claim_state), renewal));
            }
            NextStep::Lost(cause) => ended.push((Arc::clone(claim_state), cause)),
        });
        for (claim_state, cause) in ended {
            self.finish_lost(&claim_state, &cause);
        }
        if earliest > now {
            return next.min(earliest);
        }
        let room = EXCHANGES_MAX.saturating_sub(exchanges.len()) * BATCH_MAX;
        for batch in due[..due.len().min(room)].chunks(BATCH_MAX) {
            exchanges.push(Box::pin(Arc::clone(self).renew(batch.to_vec(), now)));
        }
        // The rest goes out when an exchange ends, which wakes this loop.
        next
    }

    fn renew(
        self: Arc<Self>,
        mut batch: Vec<(Arc<ClaimState>, Renewal)>,
        sent: Moment,
    ) -> impl Future<Output = Completed> + Send + 'static {
        batch.retain(|(claim_state, _)| claim_state.sent());
        async move {
            if batch.is_empty() {
                return Completed::Renewed { batch: Vec::new(), sent, result: Ok(Vec::new()) };
            }
            let (claim_states, renewals): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|(claim_state, renewal)| ((claim_state, renewal.ttl), renewal))
                .unzip();
            let until = sent + Renewal::limit(&renewals);
            let result = self.in_time(until, self.direct.renew(&renewals)).await;
            Completed::Renewed { batch: claim_states, sent, result }
        }
    }

    /// Awaits an answer until an instant, after which the store counts as unreachable.
    async fn in_time<T>(
        &self,
        until: Moment,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep_until(until) => {
                let reason = UnreachableReason::NoAnswer;
                Err(Error::unreachable(&self.engine.info().store, reason, reason.to_string()))
            }
        }
    }

    fn begin_releases(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let now = self.clock.now();
        let mut inbox = self.inbox();
        inbox.releases.retain(|release| {
            let waiting = release.give_up.is_none_or(|at| at > now);
            if !waiting {
                tracing::warn!(name = %release.key.name, "gave up releasing; its ttl has passed");
            }
            waiting
        });
        if inbox.releases.is_empty() {
            return Moment::NEVER;
        }
        if let Some(at) = inbox.next_release.filter(|at| *at > now) {
            return at;
        }
        if exchanges.len() >= EXCHANGES_MAX {
            return Moment::NEVER;
        }
        let mut releases = std::mem::take(&mut inbox.releases);
        inbox.releases = releases.split_off(releases.len().min(BATCH_MAX));
        inbox.release += 1;
        drop(inbox);
        let keeper = Arc::clone(self);
        exchanges.push(Box::pin(async move {
            let last = releases.iter().filter_map(|release| release.give_up).max();
            let until = (now + EXCHANGE_TIMEOUT).min(last.unwrap_or(Moment::NEVER));
            let part = send_releases(&keeper, &releases);
            let result = keeper.in_time(until, part).await;
            Completed::ReleasesSent { releases, result }
        }));
        Moment::NEVER
    }

    fn begin_tally(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let Some(counting) = &self.parts.counting else { return Moment::NEVER };
        let mut inbox = self.inbox();
        let counts = Counters::untold(&self.stats(), &inbox.told);
        if counts == Counts::default() {
            return Moment::NEVER;
        }
        let now = self.clock.now();
        let at = *inbox.last_tally.get_or_insert(now) + TALLY_EVERY;
        if now < at && !self.is_closed() {
            return at;
        }
        inbox.last_tally = Some(now);
        inbox.telling += 1;
        let counts = self.take_untold(&mut inbox);
        drop(inbox);
        let (keeper, counting) = (Arc::clone(self), Arc::clone(counting));
        exchanges.push(Box::pin(async move {
            let tally = counting.tally(&counts);
            let result = keeper.in_time(now + EXCHANGE_TIMEOUT, tally).await;
            Completed::Tallied { result }
        }));
        Moment::NEVER
    }

    /// Sends what waiting claims have to say; the next word of a holder goes out when this one is
    /// answered, which wakes the loop.
    fn begin_notices(self: &Arc<Self>, exchanges: &mut Exchanges) {
        let Some(part) = &self.parts.wait_notices else { return };
        for (notice, number) in self.notices.due() {
            let (keeper, now) = (Arc::clone(self), self.clock.now());
            let part = Arc::clone(part);
            exchanges.push(Box::pin(async move {
                let announce = part.announce(&notice);
                let result = keeper.in_time(now + EXCHANGE_TIMEOUT, announce).await;
                Completed::Announced { holder: notice.holder, number, result }
            }));
        }
    }

    fn finish_exchange(self: &Arc<Self>, done: Completed) {
        match done {
            Completed::Renewed { batch, sent, result } => self.finish_renewal(&batch, sent, result),
            Completed::ReleasesSent { releases, result } => self.finish_releases(releases, result),
            Completed::Tallied { result } => {
                self.inbox().telling -= 1;
                if let Err(error) = result {
                    tracing::debug!(%error, "counts were not added to the store's");
                }
            }
            Completed::Announced { holder, number, result } => {
                if let Err(error) = &result {
                    tracing::debug!(%error, "a notice of waits was not heard; it lapses");
                }
                self.notices.answered(holder, number, result.is_ok());
            }
        }
    }

    fn finish_releases(&self, releases: Vec<PendingRelease>, result: Result<()>) {
        let mut inbox = self.inbox();
        inbox.release -= 1;
        match result {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                inbox.releases.extend(releases);
                inbox.next_release = Some(self.clock.now() + RELEASE_RETRY);
            }
            Err(error) => tracing::warn!(%error, "could not release; the ttl will"),
        }
    }

    fn finish_renewal(
        self: &Arc<Self>,
        batch: &[(Arc<ClaimState>, Duration)],
        sent: Moment,
        result: Result<Vec<Result<Standing>>>,
    ) {
        let now = self.clock.now();
        let answers = match result {
            Ok(answers) => answers,
            Err(error) => {
                return self
                    .renewal_failed(batch.iter().map(|(claim_state, _)| claim_state), error);
            }
        };
        debug_assert_eq!(answers.len(), batch.len(), "an answer for each renewal");
        let claims = answers.iter().filter(|answer| answer.is_ok()).count();
        self.observe(Measure::Renewed { claims, took: now.since(sent) });
        let mut failed = Vec::new();
        let mut cause = None;
        for ((claim_state, ttl), answer) in batch.iter().zip(answers) {
            match answer {
                Ok(standing) => {
                    let answered = claim_state.answered((sent, now), *ttl, &standing);
                    if let Answered::Lost(cause) = answered {
                        self.report_loss(claim_state, &cause);
                        claim_state.report_lost_to_callbacks(&cause);
                        self.unregister(claim_state);
                        if matches!(standing, Standing::Held { .. }) {
                            self.take_out_lost(claim_state);
                        }
                    } else if let Standing::Held { fence, .. } = standing {
                        tracing::debug!(name = %claim_state.key.name, fence, "renewed");
                        claim_state.report_renewed_to_callbacks(now);
                    }
                }
                Err(error @ Error::Replaced { .. }) => {
                    self.renewal_failed(std::iter::once(claim_state), error);
                }
                Err(error) => {
                    failed.push(claim_state);
                    cause.get_or_insert(error);
                }
            }
        }
        if let Some(error) = cause {
            self.renewal_failed(failed.into_iter(), error);
        }
    }

    /// Nothing is known of these claims, except when their store is another one now.
    fn renewal_failed<'a>(
        &self,
        claim_states: impl ExactSizeIterator<Item = &'a Arc<ClaimState>>,
        error: Error,
    ) {
        if let Error::Replaced { .. } = error {
            for claim_state in claim_states {
                if claim_state.lose(LostCause::Replaced) {
                    self.finish_lost(claim_state, &LostCause::Replaced);
                }
            }
            return;
        }
        let (claims, error) = (claim_states.len(), Arc::new(error));
        let now = self.clock.now();
        tracing::warn!(%error, claims, "renewal failed; trying again until the deadline");
        for claim_state in claim_states {
            if claim_state.failed(now, &error) {
                self.observe(Measure::WaitDisturbed { name: &claim_state.key.name, error: &error });
            }
        }
        self.observe(Measure::RenewalFailed { claims, error: &error });
    }

    /// Reports a claim that was just lost, and takes what may be left of it out of the store.
    fn finish_lost(&self, claim_state: &ClaimState, cause: &LostCause) {
        self.report_loss(claim_state, cause);
        claim_state.report_lost_to_callbacks(cause);
        self.unregister(claim_state);
        // In a moment the store finds an expiry itself, counts it and reports it as one.
        if *cause != LostCause::Expired {
            self.take_out_lost(claim_state);
        }
    }

    /// Takes what is left of a lost lease out of the store, unless the name is to stay closed for
    /// a while after a loss.
    fn take_out_lost(&self, claim_state: &ClaimState) {
        if !claim_state.progress().terms.delay().is_zero() {
            return;
        }
        let release =
            self.take_over(PendingRelease::of(claim_state, &claim_state.ended(Phase::Done)));
        self.inbox().releases.push(release);
    }

    fn report_loss(&self, claim_state: &ClaimState, cause: &LostCause) {
        let held = self.clock.now().since(claim_state.progress().since);
        let (name, fence) = (&claim_state.key.name, claim_state.progress().fence);
        tracing::warn!(%name, fence, %cause, "lost");
        self.counters.lost(cause);
        self.observe(Measure::Lost { name: &claim_state.key.name, cause, held });
    }

    /// Whether the thread may end. If so, this marks it as ended and wakes the callers of `close`.
    fn may_end(&self) -> bool {
        let mut inbox = self.inbox();
        let end = self.is_closed() && inbox.releases.is_empty() && self.notices.is_clear();
        if end {
            inbox.running = false;
            for closer in inbox.closers.drain(..) {
                // The caller may have stopped waiting.
                let _gone = closer.send(());
            }
        }
        end
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The alerts of an engine; never ends where it has none.
async fn noticed(part: Option<&dyn Alerts>) -> Vec<Alert> {
    match part {
        Some(part) => part.alerts().await,
        None => std::future::pending().await,
    }
}
