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

use crate::claim::{ClaimKey, HolderId, Released, Renewal, Standing, Token};
use crate::clock::remote::ClockTrouble;
use crate::clock::{Clock, Moment};
use crate::engine::{Concern, Counts, Engine, Trouble, Wait};
use crate::error::{Error, LostCause, Result};
use crate::layer::retry::{Retry, RetryPolicy};
use crate::notices::Notices;
use crate::observe::{Counters, Measure, Observer, Stats};
use crate::parting::{Parted, Parting, part_all};
use crate::registry::Registry;
use crate::tenure::{Answered, Duty, Ended, Phase, Tenure};
use crate::witness::Witness;

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
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Whether what is free may be taken on the spot, with nobody to tell of it.
    pub(crate) answers_now: bool,
    pub(crate) witness: Witness,
    registry: Registry,
    notices: Notices,
    desk: Mutex<Desk>,
    wake: Notify,
    /// When the keeper looks around next, in nanoseconds; `u64::MAX` while it does.
    wake_at: AtomicU64,
    closed: AtomicBool,
}

/// What callers leave for the keeper.
#[derive(Debug, Default)]
struct Desk {
    running: bool,
    /// Claims to take out of the store. Bounded by the registry: each was a tenure.
    partings: Vec<Parting>,
    next_parting: Option<Moment>,
    /// Whom to tell when everything is finished.
    closers: Vec<oneshot::Sender<()>>,
    told: Counts,
    last_tally: Option<Moment>,
    thread_failed: bool,
    /// How many exchanges that take claims out are under way.
    parting: usize,
    /// How many that tell counts.
    telling: usize,
}

impl Desk {
    /// Whether the store has been told everything that the keeper had to tell it.
    fn is_clear(&self) -> bool {
        self.partings.is_empty() && self.parting == 0 && self.telling == 0
    }
}

/// Exchanges of one kind under way.
type Exchanges = FuturesUnordered<BoxFuture<'static, Done>>;

/// What is renewed together, each with its ttl.
type Batch = Vec<(Arc<Tenure>, Duration)>;

enum Done {
    Renewed { batch: Batch, sent: Moment, result: Result<Vec<Result<Standing>>> },
    Parted { partings: Vec<Parting>, result: Result<()> },
    Tallied { counts: Counts, result: Result<()> },
    Announced { holder: HolderId, number: u64, result: Result<()> },
}

impl Keeper {
    pub(crate) fn new(
        direct: Arc<dyn Engine>,
        retry: RetryPolicy,
        clock: Arc<dyn Clock>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Arc<Self> {
        let answers_now = !direct.info().can_fail && observer.is_none();
        Arc::new(Self {
            answers_now,
            engine: Retry::wrap(Arc::clone(&direct), retry),
            direct,
            clock,
            counters: Counters::default(),
            observer,
            witness: Witness::default(),
            registry: Registry::new(),
            notices: Notices::new(),
            desk: Mutex::default(),
            wake: Notify::new(),
            wake_at: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// What this client did and has.
    pub(crate) fn stats(&self) -> Stats {
        self.counters.stats(|| self.registry.turnover())
    }

    pub(crate) fn observe(&self, measure: Measure<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(&measure);
        }
    }

    /// The store has not answered a question of `since`, and the caller's time is up.
    pub(crate) fn silent(&self, since: Moment) -> Error {
        let cause = format!("no answer within {:?}", self.clock.now().since(since));
        Error::Unreachable { store: self.engine.info().store.clone(), cause }
    }

    /// Takes a tenure into care before its claim is sent, so that nothing sent is ever forgotten.
    pub(crate) fn enter(&self, tenure: &Arc<Tenure>) -> Result<()> {
        self.admit(tenure, false)
    }

    /// Takes a lease into care that the store granted on the spot, and counts it.
    pub(crate) fn enter_held(&self, tenure: &Arc<Tenure>) -> Result<()> {
        self.admit(tenure, true)
    }

    fn admit(&self, tenure: &Arc<Tenure>, held: bool) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        self.registry.enter(tenure, held)
    }

    /// Something of a tenure is due at `at`; the keeper wakes if it would sleep past it.
    pub(crate) fn expect_at(self: &Arc<Self>, at: Moment) {
        if at.as_nanos() < self.wake_at.load(Ordering::SeqCst) {
            self.start();
            self.wake.notify_one();
        }
    }

    /// Hands every lease that does not end by itself to `visit`, with its fence.
    pub(crate) fn for_each_lasting_lease(&self, mut visit: impl FnMut(&Tenure, u64)) {
        self.registry.for_each(|tenure| {
            let life = tenure.life();
            let (lasts, fence) = (life.phase == Phase::Held && life.terms.lasts(), life.fence);
            drop(life);
            if lasts {
                visit(tenure, fence);
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
        let Some(number) = self.notices.write(holder, token, wait, keep) else { return false };
        self.start();
        self.wake.notify_one();
        self.notices.said(holder, number).await
    }

    /// Takes back that a claim waits, if others were told.
    pub(crate) fn wait_ended(self: &Arc<Self>, holder: HolderId, token: &Token) {
        if self.notices.strike(holder, token) {
            self.start();
            self.wake.notify_one();
        }
    }

    /// Lets go of a tenure without touching its claim in the store.
    pub(crate) fn forget(&self, tenure: &Tenure) {
        tenure.finish();
        self.registry.leave(tenure, false);
    }

    /// Finishes a tenure whose last owner went away: its claim leaves the store now where the
    /// engine answers at once, else as soon as the keeper gets through.
    pub(crate) fn abandon(self: &Arc<Self>, tenure: &Tenure) {
        match tenure.leave() {
            Some(ended) if ended.may_be_left() => self.take_out(tenure, &ended),
            Some(_) => self.strike(tenure),
            None => {}
        }
    }

    /// Takes a claim that did not become a lease out of its line; also when it was taken out
    /// before, because the answer to it may have come later than that.
    pub(crate) fn withdraw(self: &Arc<Self>, tenure: &Tenure) {
        let ended = self.end(tenure);
        self.take_out(tenure, &ended.unwrap_or_else(|| tenure.ended(Phase::Done)));
    }

    fn take_out(self: &Arc<Self>, tenure: &Tenure, ended: &Ended) {
        if self.release_now(tenure, ended).is_none() {
            self.strike(tenure);
            self.part_later(tenure, ended);
        }
    }

    /// Gives back what ended and takes it off the list, where the store answers without waiting.
    pub(crate) fn release_now(&self, tenure: &Tenure, ended: &Ended) -> Option<Parted> {
        if ended.is_kept() {
            return None;
        }
        let released = self.direct.release_now(&tenure.key)?;
        if matches!((&ended.phase, &released), (Phase::Held, Released::Released)) {
            self.registry.leave(tenure, true);
            self.observe_release(tenure, ended);
            return Some(Ok(()));
        }
        self.strike(tenure);
        self.count_end(tenure, ended, &released);
        Some(Err(Box::new(released)))
    }

    /// Ends a tenure; `None` if nothing of it can be left in the store.
    pub(crate) fn end(&self, tenure: &Tenure) -> Option<Ended> {
        let ended = tenure.finish()?;
        self.strike(tenure);
        ended.may_be_left().then_some(ended)
    }

    /// Takes a tenure that ended off the list.
    pub(crate) fn strike(&self, tenure: &Tenure) {
        self.registry.leave(tenure, false);
    }

    /// Leaves a tenure that ended to the keeper. What becomes of it is not waited for, so it
    /// counts as given back.
    pub(crate) fn part_later(self: &Arc<Self>, tenure: &Tenure, ended: &Ended) {
        self.count_end(tenure, ended, &Released::Released);
        self.post(Parting::of(tenure, ended));
    }

    /// Counts and reports how a lease ended.
    pub(crate) fn count_end(&self, tenure: &Tenure, ended: &Ended, released: &Released) {
        if ended.phase != Phase::Held {
            return;
        }
        match released {
            Released::TakenBy(holder) => {
                self.report_loss(tenure, &LostCause::TakenBy(holder.clone()));
            }
            Released::AlreadyExpired => self.report_loss(tenure, &LostCause::Removed),
            _ => {
                self.counters.released();
                self.observe_release(tenure, ended);
            }
        }
    }

    fn observe_release(&self, tenure: &Tenure, ended: &Ended) {
        if self.observer.is_some() {
            let held = self.clock.now().since(ended.since);
            self.observe(Measure::Released { name: &tenure.key.name, held });
        }
    }

    fn post(self: &Arc<Self>, parting: Parting) {
        let now = self.clock.now();
        let mut desk = self.desk();
        desk.partings.push(parting.given_up_from(now));
        desk.next_parting = None;
        drop(desk);
        self.start();
        self.wake.notify_one();
    }

    /// Releases everything, stops the renewals, and waits until the store has been told.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.notices.close();
        let tenures = self.registry.all();
        for tenure in tenures {
            if let Some(ended) = self.end(&tenure) {
                self.part_later(&tenure, &ended);
            }
            tenure.bell.notify_one();
        }
        let (sender, receiver) = oneshot::channel();
        let untold = {
            // Looked at and taken at once: otherwise the keeper's thread could take the counts in
            // between, and tell them after this has returned.
            let mut desk = self.desk();
            if desk.is_clear() && self.notices.is_clear() {
                Some(self.take_untold(&mut desk))
            } else {
                desk.closers.push(sender);
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

    /// Tells the store what was counted; for a close that needs nothing else of the keeper.
    async fn tell(&self, counts: Counts) {
        if counts != Counts::default() {
            let until = self.clock.now() + EXCHANGE_TIMEOUT;
            if let Err(error) = self.in_time(until, self.direct.tally(&counts)).await {
                tracing::debug!(%error, ?counts, "counts were not added to the store's");
            }
        }
    }

    fn take_untold(&self, desk: &mut Desk) -> Counts {
        if !self.engine.info().can.tally {
            return Counts::default();
        }
        let counts = Counters::untold(&self.stats(), &desk.told);
        desk.told += counts;
        counts
    }

    /// Nobody will ask anything more: finish what is left, then end the thread.
    pub(crate) fn retire(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Starts the thread if it does not run.
    fn start(self: &Arc<Self>) {
        let mut desk = self.desk();
        if desk.running {
            return;
        }
        let keeper = Arc::clone(self);
        let thread = std::thread::Builder::new().name("leasehold-keeper".into());
        match thread.spawn(move || keeper.thread()) {
            Ok(_detached) => desk.running = true,
            Err(error) if !desk.thread_failed => {
                desk.thread_failed = true;
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
                self.desk().running = false;
            }
        }
    }

    async fn run(self: Arc<Self>) {
        let mut renewals = Exchanges::new();
        let mut partings = Exchanges::new();
        let mut tallies = Exchanges::new();
        let mut notices = Exchanges::new();
        loop {
            self.wake_at.store(u64::MAX, Ordering::SeqCst);
            let mut next = self.begin_renewals(&mut renewals);
            next = next.min(self.begin_partings(&mut partings));
            next = next.min(self.begin_tally(&mut tallies));
            self.begin_notices(&mut notices);
            let idle = renewals.is_empty() && partings.is_empty() && tallies.is_empty();
            if idle && notices.is_empty() && self.may_end() {
                return;
            }
            self.wake_at.store(next.as_nanos(), Ordering::SeqCst);
            tokio::select! {
                biased;
                Some(done) = renewals.next() => self.finish_exchange(done),
                Some(done) = partings.next() => self.finish_exchange(done),
                Some(done) = tallies.next() => self.finish_exchange(done),
                Some(done) = notices.next() => self.finish_exchange(done),
                () = self.wake.notified() => {}
                lost = self.direct.losses() => self.look_at(&lost),
                found = self.direct.concerns() => self.report_concerns(&found),
                () = self.clock.alarm(next), if next != Moment::NEVER => {}
            }
        }
    }

    /// Makes renewals of claims due that the engine found lost; their answers say what became of
    /// them.
    fn look_at(&self, keys: &[ClaimKey]) {
        let now = self.clock.now();
        self.registry.for_each(|tenure| {
            if keys.contains(&tenure.key) {
                tenure.hurry(now);
            }
        });
    }

    /// Tells whoever observes what the engine found about the store's servers, and has logged.
    fn report_concerns(&self, concerns: &[Concern]) {
        for Concern { server, trouble } in concerns {
            match trouble {
                Trouble::Clock(ClockTrouble::Step { by }) => {
                    self.observe(Measure::ClockStep { server, by: *by });
                }
                Trouble::Clock(ClockTrouble::Frozen { stood }) => {
                    self.observe(Measure::ClockFrozen { server, stood: *stood });
                }
                Trouble::Eviction { policy } => {
                    self.observe(Measure::MayEvict { server, policy });
                }
            }
        }
    }

    /// Looks at every tenure: declares the lost, sends renewals for the due.
    fn begin_renewals(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let now = self.clock.now();
        let mut next = Moment::NEVER;
        let mut earliest = Moment::NEVER;
        let mut due = Vec::new();
        let mut ended = Vec::new();
        self.registry.for_each(|tenure| match tenure.duty(now) {
            Duty::Rest(until) => next = next.min(until),
            Duty::Renew { renewal, due: at, end } => {
                earliest = earliest.min(at);
                next = next.min(end);
                due.push((Arc::clone(tenure), renewal));
            }
            Duty::Lost(cause) => ended.push((Arc::clone(tenure), cause)),
        });
        for (tenure, cause) in ended {
            self.mourn(&tenure, &cause);
        }
        if earliest > now {
            return next.min(earliest);
        }
        let room = EXCHANGES_MAX.saturating_sub(exchanges.len()) * BATCH_MAX;
        for batch in due[..due.len().min(room)].chunks(BATCH_MAX) {
            exchanges.push(Box::pin(Arc::clone(self).renew(batch.to_vec(), now)));
        }
        // What did not fit goes out when an exchange ends, which wakes this loop.
        next
    }

    fn renew(
        self: Arc<Self>,
        mut batch: Vec<(Arc<Tenure>, Renewal)>,
        sent: Moment,
    ) -> impl Future<Output = Done> + Send + 'static {
        batch.retain(|(tenure, _)| tenure.sent());
        async move {
            if batch.is_empty() {
                return Done::Renewed { batch: Vec::new(), sent, result: Ok(Vec::new()) };
            }
            let (tenures, renewals): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|(tenure, renewal)| ((tenure, renewal.ttl), renewal)).unzip();
            let until = sent + Renewal::limit(&renewals);
            let result = self.in_time(until, self.direct.renew(&renewals)).await;
            Done::Renewed { batch: tenures, sent, result }
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
            () = self.clock.sleep_until(until) => Err(Error::Unreachable {
                store: self.engine.info().store.clone(),
                cause: "no answer in time".into(),
            }),
        }
    }

    fn begin_partings(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let now = self.clock.now();
        let mut desk = self.desk();
        desk.partings.retain(|parting| {
            let waiting = parting.give_up.is_none_or(|at| at > now);
            if !waiting {
                tracing::warn!(name = %parting.key.name, "gave up releasing; its ttl has passed");
            }
            waiting
        });
        if desk.partings.is_empty() {
            return Moment::NEVER;
        }
        if let Some(at) = desk.next_parting.filter(|at| *at > now) {
            return at;
        }
        if exchanges.len() >= EXCHANGES_MAX {
            return Moment::NEVER;
        }
        let (ready, early): (Vec<Parting>, _) =
            std::mem::take(&mut desk.partings).into_iter().partition(Parting::may_go);
        let mut partings = ready;
        desk.partings = partings.split_off(partings.len().min(BATCH_MAX));
        desk.partings.extend::<Vec<Parting>>(early);
        if partings.is_empty() {
            // The end of the renewal they wait for wakes this loop.
            return Moment::NEVER;
        }
        desk.parting += 1;
        drop(desk);
        let keeper = Arc::clone(self);
        exchanges.push(Box::pin(async move {
            let last = partings.iter().filter_map(|parting| parting.give_up).max();
            let until = (now + EXCHANGE_TIMEOUT).min(last.unwrap_or(Moment::NEVER));
            let part = part_all(&*keeper.direct, &*keeper.clock, &partings);
            let result = keeper.in_time(until, part).await;
            Done::Parted { partings, result }
        }));
        Moment::NEVER
    }

    fn begin_tally(self: &Arc<Self>, exchanges: &mut Exchanges) -> Moment {
        let mut desk = self.desk();
        let counts = Counters::untold(&self.stats(), &desk.told);
        if counts == Counts::default() || !self.engine.info().can.tally {
            return Moment::NEVER;
        }
        let now = self.clock.now();
        let at = *desk.last_tally.get_or_insert(now) + TALLY_EVERY;
        if now < at && !self.is_closed() {
            return at;
        }
        desk.last_tally = Some(now);
        desk.telling += 1;
        let counts = self.take_untold(&mut desk);
        drop(desk);
        let keeper = Arc::clone(self);
        exchanges.push(Box::pin(async move {
            let tally = keeper.direct.tally(&counts);
            let result = keeper.in_time(now + EXCHANGE_TIMEOUT, tally).await;
            Done::Tallied { counts, result }
        }));
        Moment::NEVER
    }

    /// Sends what waiting claims have to say; the next word of a holder goes out when this one is
    /// answered, which wakes the loop.
    fn begin_notices(self: &Arc<Self>, exchanges: &mut Exchanges) {
        for (notice, number) in self.notices.due() {
            let (keeper, now) = (Arc::clone(self), self.clock.now());
            exchanges.push(Box::pin(async move {
                let announce = keeper.direct.announce(&notice);
                let result = keeper.in_time(now + EXCHANGE_TIMEOUT, announce).await;
                Done::Announced { holder: notice.holder, number, result }
            }));
        }
    }

    fn finish_exchange(self: &Arc<Self>, done: Done) {
        match done {
            Done::Renewed { batch, sent, result } => self.finish_renewal(&batch, sent, result),
            Done::Parted { partings, result } => self.finish_parting(partings, result),
            Done::Tallied { counts, result } => {
                self.desk().telling -= 1;
                if let Err(error) = result {
                    tracing::debug!(%error, ?counts, "counts were not added to the store's");
                }
            }
            Done::Announced { holder, number, result } => {
                if let Err(error) = &result {
                    tracing::debug!(%error, "a notice of waits was not heard; it lapses");
                }
                self.notices.answered(holder, number, result.is_ok());
            }
        }
    }

    fn finish_parting(&self, partings: Vec<Parting>, result: Result<()>) {
        let mut desk = self.desk();
        desk.parting -= 1;
        match result {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                desk.partings.extend(partings);
                desk.next_parting = Some(self.clock.now() + RELEASE_RETRY);
            }
            Err(error) => tracing::warn!(%error, "could not release; the ttl will"),
        }
    }

    fn finish_renewal(
        self: &Arc<Self>,
        batch: &[(Arc<Tenure>, Duration)],
        sent: Moment,
        result: Result<Vec<Result<Standing>>>,
    ) {
        let now = self.clock.now();
        let answers = match result {
            Ok(answers) => answers,
            Err(error) => {
                return self.renewal_failed(batch.iter().map(|(tenure, _)| tenure), &error);
            }
        };
        debug_assert_eq!(answers.len(), batch.len(), "an answer for each renewal");
        let claims = answers.iter().filter(|answer| answer.is_ok()).count();
        self.observe(Measure::Renewed { claims, took: now.since(sent) });
        let mut failed = Vec::new();
        let mut cause = None;
        for ((tenure, ttl), answer) in batch.iter().zip(answers) {
            match answer {
                Ok(standing) => {
                    if let Answered::Lost(cause) = tenure.answered(sent, *ttl, &standing) {
                        self.report_loss(tenure, &cause);
                        self.strike(tenure);
                    }
                }
                Err(error @ Error::Replaced { .. }) => {
                    self.renewal_failed(std::iter::once(tenure), &error);
                }
                Err(error) => {
                    failed.push(tenure);
                    cause.get_or_insert(error);
                }
            }
        }
        if let Some(error) = cause {
            self.renewal_failed(failed.into_iter(), &error);
        }
    }

    /// Nothing is known of these claims, except when their store is another one now.
    fn renewal_failed<'a>(
        &self,
        tenures: impl ExactSizeIterator<Item = &'a Arc<Tenure>>,
        error: &Error,
    ) {
        if let Error::Replaced { .. } = error {
            for tenure in tenures {
                if tenure.lose(LostCause::Replaced) {
                    self.mourn(tenure, &LostCause::Replaced);
                }
            }
            return;
        }
        let claims = tenures.len();
        let now = self.clock.now();
        tracing::warn!(%error, claims, "renewal failed; trying again until the deadline");
        for tenure in tenures {
            tenure.failed(now, error);
        }
        self.observe(Measure::RenewalFailed { claims, error });
    }

    /// Reports a tenure that was just lost, and takes what may be left of it out of the store.
    fn mourn(&self, tenure: &Tenure, cause: &LostCause) {
        self.report_loss(tenure, cause);
        self.strike(tenure);
        if *cause == LostCause::Expired || !tenure.life().terms.delay().is_zero() {
            // In a moment the store finds that itself, and counts and tells it as what it is; or
            // in a while, if the name is to stay closed.
            return;
        }
        let parting = Parting::of(tenure, &tenure.ended(Phase::Done));
        self.desk().partings.push(parting.given_up_from(self.clock.now()));
    }

    fn report_loss(&self, tenure: &Tenure, cause: &LostCause) {
        let held = self.clock.now().since(tenure.life().since);
        tracing::warn!(name = %tenure.key.name, %cause, "lease lost");
        self.counters.lost(cause);
        self.observe(Measure::Lost { name: &tenure.key.name, cause, held });
    }

    /// Whether the thread may end; if so it is marked as ended, and whoever closes is told.
    fn may_end(&self) -> bool {
        let mut desk = self.desk();
        let end = self.is_closed() && desk.partings.is_empty() && self.notices.is_clear();
        if end {
            desk.running = false;
            for closer in desk.closers.drain(..) {
                // Whoever closed may have stopped waiting.
                let _gone = closer.send(());
            }
        }
        end
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
