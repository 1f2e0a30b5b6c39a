//! One claim's life as its client sees it: asking, waiting, held, lost or done.
//!
//! Decides from instants it is given; it reads no clock and talks to nobody. The keeper drives it
//! and the lease reads it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::engine::{HolderMessage, MessageKind};
use crate::error::{Error, LostCause};
use crate::rule::claim::{ClaimKey, Place, Renewal, Standing, Ttl, margin};
use crate::runtime::scope::Usage;
use crate::seeded::{Seeded, seeded};

/// How often a waiting claim's heartbeat goes out at the latest. It repairs a lost bell, so it
/// bounds how long one can hold somebody up.
pub(crate) const BEAT_MAX: Duration = Duration::from_secs(1);

/// The first pause after a failed renewal; it doubles up to a tenth of the ttl.
const RETRY_FIRST: Duration = Duration::from_millis(25);

/// How long a renewal that got no answer may take to reach the store. A connection that is silent
/// is given up long before. A store that an earlier build installed may end the lease sooner by it.
const LATE_MAX: Duration = Duration::from_secs(120);

/// How long a message may explain a loss that the store confirms.
const EXPLAINS_MAX: Duration = Duration::from_secs(10);

/// How a lease stands, as far as its holder can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, and renewals come through.
    Held,
    /// Renewals fail, but the time has not run out: still held, and in danger.
    Uncertain,
    /// Not held any more.
    Lost,
}

/// The terms of a lease that its claim does not say.
#[derive(Debug, Clone)]
pub(crate) struct LeaseTerms {
    pub(crate) ttl: Ttl,
    pub(crate) renew: bool,
    /// Which part of the ttl passes before the first renewal, in percent.
    pub(crate) renew_at_percent: u32,
    /// Few set any, and every lease carries its terms.
    pub(crate) bounds: Option<Box<HoldLimits>>,
}

/// How long a lease lasts beside its ttl.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HoldLimits {
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
    /// How much longer the store keeps a lease than its owner may use it.
    pub(crate) delay: Duration,
}

impl LeaseTerms {
    /// How long the store is asked to keep the lease without another word.
    pub(crate) fn kept(&self) -> Duration {
        self.ttl.get() + self.delay()
    }

    /// How much longer the store keeps the lease than its owner may use it.
    pub(crate) fn delay(&self) -> Duration {
        self.bounds.as_ref().map_or(Duration::ZERO, |bounds| bounds.delay)
    }

    fn hold_at_most(&self) -> Option<Duration> {
        self.bounds.as_ref()?.hold_at_most
    }

    /// How long its owner may use what the store keeps for `remaining`.
    pub(crate) fn safe(&self, remaining: Duration) -> Duration {
        let own = remaining.saturating_sub(self.delay());
        own.saturating_sub(margin(own))
    }

    /// When the first renewal is due of what may be used for `safe` from `sent` on.
    fn due(&self, sent: Moment, safe: Duration) -> Moment {
        match self.renew {
            true => sent + part(safe, self.renew_at_percent),
            false => Moment::NEVER,
        }
    }

    /// When a lease that holds since `since` ends, whatever its owner does.
    fn latest_end(&self, since: Moment) -> Moment {
        self.hold_at_most().map_or(Moment::NEVER, |span| since + span)
    }

    /// Whether the lease lasts until its owner gives it back.
    pub(crate) fn lasts(&self) -> bool {
        self.renew && self.hold_at_most().is_none()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Asking,
    Waiting,
    Held,
    Lost(Box<LostCause>),
    Done,
}

#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) phase: Phase,
    pub(crate) terms: LeaseTerms,
    pub(crate) fence: u64,
    pub(crate) since: Moment,
    pub(crate) deadline: Moment,
    /// When the next renewal or heartbeat is due.
    due: Moment,
    /// The waiting claim's place in line, as the waiter was last told.
    place: Place,
    /// When the last request went out that made the store keep the claim at that place.
    beat: Moment,
    /// Whether the store keeps the lease for its patience only, because a bell granted it.
    provisional: bool,
    failures: u32,
    /// The ttl of the last renewal that was asked for.
    asked: Duration,
    /// Renewals that got no answer and may still reach the store.
    unanswered: Option<Box<Unanswered>>,
    /// Why the last renewal failed, unless one was answered since.
    pub(crate) trouble: Option<Arc<Error>>,
    in_flight: bool,
    /// The last message about the lease, and when it came; few leases ever get one.
    message: Option<Box<(HolderMessage, Moment)>>,
    /// The last request for the lease, and when its time is over; few leases ever get one.
    request: Option<Box<(HolderMessage, Moment)>>,
    /// Only an answer to a renewal that was sent later says how the lease stands.
    look: Moment,
    /// Counts answered renewals, so that `extend` can wait for its own.
    pub(crate) answers: u64,
    /// How many leases share this claim: more than one only by re-entry.
    pub(crate) entries: u32,
    /// Whom to tell of renewals and of the loss; few leases have any.
    pub(crate) callbacks: Option<Box<Callbacks>>,
}

pub(crate) type OnLost = dyn FnOnce(&LostCause) + Send;
pub(crate) type OnRenewed = dyn Fn(Duration) + Send + Sync;

/// Callbacks of the owner of a lease.
#[derive(Default)]
pub(crate) struct Callbacks {
    pub(crate) lost: Option<Box<OnLost>>,
    pub(crate) renewed: Option<Arc<OnRenewed>>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

/// Renewals that got no answer.
#[derive(Debug)]
struct Unanswered {
    /// The shortest of their ttls.
    ttl: Duration,
    /// None of them arrives later.
    until: Moment,
}

#[derive(Debug)]
pub(crate) struct ClaimState {
    pub(crate) key: ClaimKey,
    /// Rings the waiting loop; at most one waits.
    pub(crate) bell: Notify,
    /// Wakes everybody who awaits the loss or a renewal.
    pub(crate) changed: Notify,
    progress: Mutex<Progress>,
    /// Where the registry keeps it.
    pub(crate) slot: AtomicUsize,
    /// The task that uses it, as far as can be seen.
    pub(crate) usage: Usage,
}

/// The next thing that the keeper does about a claim.
pub(crate) enum NextStep {
    /// Nothing before this instant.
    Rest(Moment),
    /// Send this renewal; it may go out a little before it is due, to share an exchange. Whether
    /// it is answered or not, something is to be done at `end`.
    Renew { renewal: Renewal, due: Moment, end: Moment },
    /// It was just found lost, or was held for as long as it may be.
    Lost(LostCause),
}

impl ClaimState {
    pub(crate) fn new(key: ClaimKey, terms: LeaseTerms, now: Moment) -> Self {
        Self {
            key,
            bell: Notify::new(),
            changed: Notify::new(),
            progress: Mutex::new(Progress::new(terms, now)),
            slot: AtomicUsize::new(usize::MAX),
            usage: Usage::here(),
        }
    }

    /// A claim that holds from the start, by an answer to a request sent at `sent`. Also returns
    /// when the keeper has to look at it first.
    #[inline(always)]
    pub(crate) fn held(
        key: ClaimKey,
        terms: LeaseTerms,
        fence: u64,
        (sent, remaining): (Moment, Duration),
    ) -> (Arc<Self>, Moment) {
        let safe = terms.safe(remaining);
        let (deadline, due) = (sent + safe, terms.due(sent, safe));
        let next = due.min(deadline).min(terms.latest_end(sent));
        // In one piece: whatever is moved here is moved for each lock.
        let claim_state = Arc::new(Self {
            key,
            bell: Notify::new(),
            changed: Notify::new(),
            progress: Mutex::new(Progress {
                phase: Phase::Held,
                fence,
                deadline,
                due,
                ..Progress::new(terms, sent)
            }),
            slot: AtomicUsize::new(usize::MAX),
            usage: Usage::here(),
        });
        (claim_state, next)
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store answered a request sent at `sent` that the claim waits at `place`. Returns when
    /// its next heartbeat is due, or `None` if the claim was taken away in the meantime.
    pub(crate) fn queue(&self, place: Place, sent: Moment) -> Option<Moment> {
        let mut progress = self.progress();
        if !matches!(progress.phase, Phase::Asking | Phase::Waiting) {
            return None;
        }
        progress.phase = Phase::Waiting;
        progress.place = place;
        progress.beat(sent);
        Some(progress.due)
    }

    /// A bell says that the claim holds at `place`. The store keeps it since the last heartbeat,
    /// for as long as a waiting claim; the first renewal makes that the whole ttl. Returns when
    /// that renewal is due. `None` if the store must be asked: the bell was rung for a place that
    /// the claim has lost, or the last heartbeat is too old.
    pub(crate) fn hold_by_bell(&self, place: Place, fence: u64, now: Moment) -> Option<Moment> {
        let mut progress = self.progress();
        let patience = progress.terms.ttl.patience();
        let deadline = progress.beat + (patience - margin(patience));
        let whole = progress.terms.renew && progress.terms.delay().is_zero();
        let here = place == progress.place && place != Place::NONE;
        let here = here || seeded(Seeded::BellWithoutPlace);
        if progress.phase != Phase::Waiting || !here || !whole || now >= deadline {
            return None;
        }
        progress.phase = Phase::Held;
        progress.fence = fence;
        progress.since = now;
        let sent = progress.beat;
        progress.keep(sent, patience);
        progress.provisional = true;
        Some(progress.next_event())
    }

    /// Whether the store keeps the lease for less than its ttl until the next renewal.
    pub(crate) fn is_provisional(&self) -> bool {
        self.progress().provisional
    }

    /// The claim holds, by an answer to a request sent at `sent`. Returns when the first renewal
    /// is due, or `None` if the claim_state was ended in the meantime or the answer came too late.
    pub(crate) fn hold(
        &self,
        fence: u64,
        sent: Moment,
        remaining: Duration,
        now: Moment,
    ) -> Option<Moment> {
        let mut progress = self.progress();
        let safe = progress.terms.safe(remaining);
        let sent = if seeded(Seeded::GrantFromAnswer) { now } else { sent };
        if !matches!(progress.phase, Phase::Asking | Phase::Waiting) || now >= sent + safe {
            return None;
        }
        progress.phase = Phase::Held;
        progress.fence = fence;
        progress.since = now;
        progress.keep_safe(sent, safe);
        Some(progress.next_event())
    }

    pub(crate) fn state(&self, now: Moment) -> LeaseState {
        let progress = self.progress();
        match progress.phase {
            Phase::Held if now >= progress.deadline => LeaseState::Lost,
            Phase::Held if progress.failures > 0 => LeaseState::Uncertain,
            Phase::Held => LeaseState::Held,
            _ => LeaseState::Lost,
        }
    }

    /// Why the lease is lost, if it is.
    pub(crate) fn lost(&self, now: Moment) -> Option<LostCause> {
        let progress = self.progress();
        match &progress.phase {
            Phase::Lost(cause) => Some((**cause).clone()),
            Phase::Held if now >= progress.deadline => Some(progress.cause_of_expiry()),
            Phase::Done => Some(LostCause::Closed),
            _ => None,
        }
    }

    /// Ends the claim_state. Returns how it was before, or `None` if it had ended already.
    pub(crate) fn finish(&self) -> Option<EndedClaim> {
        let mut progress = self.progress();
        if progress.phase == Phase::Done {
            return None;
        }
        let phase = std::mem::replace(&mut progress.phase, Phase::Done);
        let ended = progress.ended(phase);
        drop(progress);
        self.changed.notify_waiters();
        Some(ended)
    }

    /// Takes one of its leases away. Returns how it was before if that was the last one; then
    /// nobody is left who could await anything of it.
    #[inline(always)]
    pub(crate) fn leave(&self) -> Option<EndedClaim> {
        let mut progress = self.progress();
        progress.entries = progress.entries.saturating_sub(1);
        if progress.entries > 0 {
            return None;
        }
        let phase = std::mem::replace(&mut progress.phase, Phase::Done);
        Some(progress.ended(phase))
    }

    /// The state of a claim that ended before, in this phase.
    pub(crate) fn ended(&self, phase: Phase) -> EndedClaim {
        self.progress().ended(phase)
    }

    /// Ends a lease as lost; returns whether it was one. A waiting claim is rung instead: it
    /// finds out by asking.
    pub(crate) fn lose(&self, cause: LostCause) -> bool {
        let mut progress = self.progress();
        progress.in_flight = false;
        let held = progress.phase == Phase::Held;
        if held {
            progress.phase = Phase::Lost(Box::new(cause));
        }
        drop(progress);
        self.changed.notify_waiters();
        self.bell.notify_one();
        held
    }

    /// Ends a lease that its client gives back while its owner still has it. Returns how it was
    /// before; `None` for a claim that does not hold.
    pub(crate) fn give_back(&self) -> Option<EndedClaim> {
        let mut progress = self.progress();
        if progress.phase != Phase::Held {
            return None;
        }
        let ended = progress.ended(Phase::Held);
        progress.phase = Phase::Lost(Box::new(LostCause::Released));
        drop(progress);
        self.changed.notify_waiters();
        Some(ended)
    }

    /// Calls whom the owner named for the loss, once. Its panic ends here: the caller renews other
    /// leases. Not to be called under a lock.
    pub(crate) fn report_lost_to_callbacks(&self, cause: &LostCause) {
        let callback =
            self.progress().callbacks.as_mut().and_then(|callbacks| callbacks.lost.take());
        if let Some(callback) = callback {
            self.call(|| callback(cause));
        }
    }

    /// Calls the callbacks for renewals, as
    /// [`report_lost_to_callbacks`](Self::report_lost_to_callbacks) does.
    pub(crate) fn report_renewed_to_callbacks(&self, now: Moment) {
        let progress = self.progress();
        let callback = progress.callbacks.as_ref().and_then(|callbacks| callbacks.renewed.clone());
        let left = progress.deadline.since(now);
        drop(progress);
        if let Some(callback) = callback {
            self.call(|| callback(left));
        }
    }

    fn call(&self, callback: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(callback)).is_err() {
            tracing::error!(name = %self.key.name, "a callback of a lease panicked");
        }
    }

    /// What is to be done at `now`. A returned `Lost` is already entered here.
    pub(crate) fn next_step(&self, now: Moment) -> NextStep {
        let mut progress = self.progress();
        match progress.phase {
            Phase::Held if now >= progress.end() => {
                let cause = if now >= progress.deadline {
                    progress.cause_of_expiry()
                } else {
                    LostCause::HoldAtMost
                };
                progress.phase = Phase::Lost(Box::new(cause.clone()));
                drop(progress);
                self.changed.notify_waiters();
                NextStep::Lost(cause)
            }
            Phase::Held | Phase::Waiting => {
                let slack = progress.terms.ttl.get() / 20;
                if !progress.in_flight && progress.due - slack <= now {
                    let due = progress.due;
                    let ttl = progress.terms.kept();
                    progress.asked = ttl;
                    let patience = progress.terms.ttl.patience();
                    let renewal = Renewal { key: self.key.clone(), ttl, patience };
                    NextStep::Renew { renewal, due, end: progress.end() }
                } else {
                    NextStep::Rest(progress.next_event())
                }
            }
            _ => NextStep::Rest(Moment::NEVER),
        }
    }

    /// Makes the next renewal or heartbeat due at once.
    pub(crate) fn renew_soon(&self, now: Moment) {
        self.progress().due = now;
    }

    /// Since when it holds, if it does.
    pub(crate) fn held_since(&self) -> Option<Moment> {
        let progress = self.progress();
        (progress.phase == Phase::Held).then_some(progress.since)
    }

    /// Asks the store at once whether the lease still holds. A lease that is not renewed is left
    /// alone: asking would prolong it.
    pub(crate) fn look(&self, now: Moment) {
        let mut progress = self.progress();
        if progress.phase == Phase::Held && progress.terms.renew {
            progress.due = now;
            progress.look = now;
        }
    }

    /// A message is about the lease. If it says that the lease is gone, the store is asked at once.
    pub(crate) fn hear(&self, message: &HolderMessage, now: Moment) {
        let mut progress = self.progress();
        if progress.phase != Phase::Held || !message.fences.contains(&progress.fence) {
            return;
        }
        match message.kind {
            MessageKind::Evicted => {
                progress.message = Some(Box::new((message.clone(), now)));
                drop(progress);
                self.look(now);
            }
            MessageKind::Revoked { within } => {
                // A request that is repeated does not give more time.
                let until = progress.request.as_ref().map_or(Moment::NEVER, |request| request.1);
                progress.request = Some(Box::new((message.clone(), until.min(now + within))));
                drop(progress);
                self.changed.notify_waiters();
            }
        }
    }

    /// The name of the one that asks for the lease, the reason, and the time that its holder has
    /// from `now`.
    pub(crate) fn request(&self, now: Moment) -> Option<(String, String, Duration)> {
        let progress = self.progress();
        let (message, until) = &**progress.request.as_ref()?;
        Some((message.by.clone(), message.reason.clone(), until.since(now)))
    }

    /// Notes that a renewal is in flight; no second one goes out before its answer. False if the
    /// claim ended meanwhile, and none is to go out.
    pub(crate) fn sent(&self) -> bool {
        let mut progress = self.progress();
        let goes = matches!(progress.phase, Phase::Held | Phase::Waiting);
        progress.in_flight |= goes;
        goes
    }

    /// The store answered a renewal sent at `sent`; the answer is read at `now`. Returns the cause
    /// if the lease is lost by it.
    pub(crate) fn answered(
        &self,
        (sent, now): (Moment, Moment),
        ttl: Duration,
        answer: &Standing,
    ) -> Answered {
        let mut progress = self.progress();
        progress.in_flight = false;
        progress.answers += 1;
        let outcome = match (&progress.phase, answer) {
            // A heartbeat that went out before the claim held says nothing about the lease.
            (Phase::Held, _) if sent < progress.since => Answered::Kept,
            // The lease was over before the answer came. Its holder may have seen that, and the
            // engine may have removed it since: no late answer brings it back.
            (Phase::Held, Standing::Held { .. }) if now >= progress.deadline => {
                let cause = progress.cause_of_expiry();
                progress.lose(cause)
            }
            (Phase::Held, Standing::Held { fence, remaining }) if *fence == progress.fence => {
                let since = if seeded(Seeded::RenewalFromAnswer) { now } else { sent };
                progress.keep(since, *remaining);
                if ttl != progress.terms.kept() || sent < progress.look {
                    // `extend` changed the ttl while this renewal was in flight, or a message came.
                    progress.due = sent;
                }
                Answered::Kept
            }
            // Not there, or in line again at another place: the lease is gone either way.
            (Phase::Held, _) => {
                let cause = match answer {
                    _ if let Some(cause) = progress.explanation(now) => cause,
                    Standing::Out { by: Some(holder), .. } => LostCause::TakenBy(holder.clone()),
                    _ if sent >= progress.deadline => LostCause::Expired,
                    _ => LostCause::Removed,
                };
                progress.lose(cause)
            }
            (Phase::Waiting, Standing::Queued { place, .. }) if *place == progress.place => {
                progress.beat(sent);
                Answered::Kept
            }
            // It holds, is gone, or waits at another place than its waiter knows of: the waiter
            // asks. The answer says nothing of how long the store keeps the waiter's place.
            (Phase::Waiting, _) => {
                progress.due = sent + progress.beat_every();
                Answered::Ring
            }
            _ => Answered::Kept,
        };
        drop(progress);
        self.changed.notify_waiters();
        if matches!(outcome, Answered::Ring) {
            self.bell.notify_one();
        }
        outcome
    }

    /// A renewal failed. The deadline stays where it was: losing contact is not losing the lease.
    pub(crate) fn failed(&self, now: Moment, error: &Arc<Error>) -> bool {
        let mut progress = self.progress();
        progress.in_flight = false;
        progress.failures += 1;
        progress.note_unanswered(now);
        progress.trouble = Some(Arc::clone(error));
        let limit = progress.terms.ttl.get() / 10;
        let pause = RETRY_FIRST.saturating_mul(1 << progress.failures.min(10)).min(limit);
        progress.due = now + pause.mul_f64(rand::random_range(0.5..1.0));
        let waits = progress.phase == Phase::Waiting;
        drop(progress);
        self.changed.notify_waiters();
        waits
    }

    /// Sets another ttl and makes a renewal due at once.
    pub(crate) fn renew_now(&self, ttl: Ttl, now: Moment) -> u64 {
        let mut progress = self.progress();
        progress.terms.ttl = ttl;
        progress.due = now;
        // An answer that is already in flight belongs to the renewal before.
        progress.answers + 1 + u64::from(progress.in_flight)
    }
}

/// The state of a claim when it ended.
#[derive(Debug)]
pub(crate) struct EndedClaim {
    pub(crate) phase: Phase,
    pub(crate) since: Moment,
    pub(crate) ttl: Duration,
    /// Until when the lease was held whatever was heard of it.
    pub(crate) safe_until: Moment,
    /// Until when the claim must stay in the store although its holder is done with it.
    pub(crate) keep_until: Option<Moment>,
}

impl EndedClaim {
    /// Whether something of the claim can be left in the store. The store has dropped a lost claim,
    /// or the keeper removed it when it found the loss.
    pub(crate) fn may_be_left(&self) -> bool {
        !matches!(self.phase, Phase::Lost(_) | Phase::Done)
    }

    /// Whether the claim stays in the store for a while although nobody works under it.
    pub(crate) fn is_kept(&self) -> bool {
        self.keep_until.is_some() && matches!(self.phase, Phase::Held)
    }
}

/// What an answer to a renewal means.
#[derive(Debug)]
pub(crate) enum Answered {
    Kept,
    Ring,
    Lost(LostCause),
}

/// So many percent of a span. Spans are far below the 584 years that fit.
fn part(span: Duration, percent: u32) -> Duration {
    Duration::from_nanos(span.as_nanos() as u64 / 100 * u64::from(percent))
}

impl Progress {
    #[inline(always)]
    fn new(terms: LeaseTerms, now: Moment) -> Self {
        Self {
            phase: Phase::Asking,
            terms,
            fence: 0,
            since: now,
            deadline: Moment::NEVER,
            due: Moment::NEVER,
            place: Place::NONE,
            beat: now,
            provisional: false,
            failures: 0,
            asked: Duration::ZERO,
            unanswered: None,
            trouble: None,
            in_flight: false,
            message: None,
            request: None,
            look: now,
            answers: 0,
            entries: 1,
            callbacks: None,
        }
    }

    fn keep(&mut self, sent: Moment, remaining: Duration) {
        // If one arrives now, such a store keeps the lease for that ttl only.
        let late = self.unanswered.as_ref().filter(|late| sent < late.until);
        let remaining = late.map_or(remaining, |late| remaining.min(late.ttl));
        self.keep_safe(sent, self.terms.safe(remaining));
    }

    fn keep_safe(&mut self, sent: Moment, safe: Duration) {
        self.failures = 0;
        self.trouble = None;
        self.provisional = false;
        self.deadline = sent + safe;
        self.due = self.terms.due(sent, safe);
    }

    /// The last renewal got no answer.
    fn note_unanswered(&mut self, now: Moment) {
        let before = self.unanswered.as_ref().filter(|late| now < late.until);
        let ttl = before.map_or(self.asked, |late| late.ttl.min(self.asked));
        self.unanswered = Some(Box::new(Unanswered { ttl, until: now + LATE_MAX }));
    }

    /// The store keeps the claim's present place since `sent`.
    fn beat(&mut self, sent: Moment) {
        self.failures = 0;
        self.beat = sent;
        self.due = sent + self.beat_every();
    }

    fn lose(&mut self, cause: LostCause) -> Answered {
        self.phase = Phase::Lost(Box::new(cause.clone()));
        Answered::Lost(cause)
    }

    /// The cause that a message names for a loss which the store confirms at `now`.
    fn explanation(&self, now: Moment) -> Option<LostCause> {
        let (message, heard) = &**self.message.as_ref()?;
        (now.since(*heard) < EXPLAINS_MAX).then(|| {
            let (by, reason) = (message.by.clone(), message.reason.clone());
            LostCause::Evicted { by, reason }
        })
    }

    fn beat_every(&self) -> Duration {
        let beat = (self.terms.ttl.patience() * 6 / 10).min(BEAT_MAX);
        beat.mul_f64(rand::random_range(0.8..1.0))
    }

    fn next_event(&self) -> Moment {
        let renewal = if self.in_flight { Moment::NEVER } else { self.due };
        renewal.min(self.end())
    }

    #[inline]
    fn ended(&self, phase: Phase) -> EndedClaim {
        let bounds = self.terms.bounds.as_ref();
        EndedClaim {
            phase,
            since: self.since,
            ttl: self.terms.kept(),
            safe_until: self.deadline,
            keep_until: bounds
                .and_then(|bounds| bounds.hold_at_least)
                .map(|span| self.since + span),
        }
    }

    /// When the lease ends if nothing more is heard.
    fn end(&self) -> Moment {
        match self.phase {
            Phase::Held => self.deadline.min(self.terms.latest_end(self.since)),
            _ => Moment::NEVER,
        }
    }

    fn cause_of_expiry(&self) -> LostCause {
        match self.trouble.as_deref() {
            Some(Error::Unreachable { .. } | Error::NoMajority { .. }) => LostCause::Unreachable,
            _ => LostCause::Expired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::Token;
    use crate::rule::name::Name;

    const START: Moment = Moment::from_nanos(1_000_000_000);
    const TTL: Duration = Duration::from_secs(2);

    fn terms() -> LeaseTerms {
        let ttl = Ttl::new(TTL).expect("within bounds");
        LeaseTerms { ttl, renew: true, renew_at_percent: 33, bounds: None }
    }

    fn key() -> ClaimKey {
        ClaimKey { name: Name::new("n").expect("good"), token: Token::random() }
    }

    fn waiting_at(place: u64) -> ClaimState {
        let claim_state = ClaimState::new(key(), terms(), START);
        claim_state.queue(Place::new(place), START).expect("it waits");
        claim_state
    }

    fn queued(place: u64) -> Standing {
        Standing::Queued { place: Place::new(place), ahead: 1, retry_in: Duration::ZERO }
    }

    fn after(millis: u64) -> Moment {
        START + Duration::from_millis(millis)
    }

    #[test]
    fn bell_grants_only_the_place_that_it_was_rung_for() {
        let claim_state = waiting_at(6);
        assert!(claim_state.hold_by_bell(Place::new(5), 5, after(1)).is_none());
        assert!(claim_state.hold_by_bell(Place::new(6), 6, after(1)).is_some());
        let claim_state = ClaimState::new(key(), terms(), START);
        claim_state.queue(Place::NONE, START).expect("it waits");
        assert!(claim_state.hold_by_bell(Place::NONE, 1, after(1)).is_none(), "it has no place");
    }

    #[test]
    fn bell_that_was_kept_from_a_lost_place_does_not_grant_the_next_one() {
        let claim_state = waiting_at(6);
        // The claim lost its place in a pause, and asked for another one.
        claim_state.queue(Place::new(13), after(5_000)).expect("it waits");
        assert!(claim_state.hold_by_bell(Place::new(6), 6, after(5_001)).is_none());
    }

    #[test]
    fn bell_does_not_grant_a_claim_whose_last_heartbeat_is_too_old() {
        let claim_state = waiting_at(6);
        assert!(claim_state.hold_by_bell(Place::new(6), 6, after(1_990)).is_none());
    }

    #[test]
    fn heartbeat_about_another_place_rings_the_waiter_and_keeps_nothing() {
        let claim_state = waiting_at(6);
        let times = (after(1_500), after(1_501));
        assert!(matches!(claim_state.answered(times, TTL, &queued(9)), Answered::Ring));
        assert!(
            claim_state.hold_by_bell(Place::new(6), 6, after(2_100)).is_none(),
            "it was not kept"
        );
        let claim_state = waiting_at(6);
        assert!(matches!(claim_state.answered(times, TTL, &queued(6)), Answered::Kept));
        assert!(claim_state.hold_by_bell(Place::new(6), 6, after(2_100)).is_some());
    }

    #[test]
    fn renewal_that_is_answered_after_the_safe_end_does_not_bring_the_lease_back() {
        let held = Standing::Held { fence: 6, remaining: TTL };
        let (claim_state, _) = ClaimState::held(key(), terms(), 6, (START, TTL));
        let late = claim_state.answered((after(1_900), after(2_000)), TTL, &held);
        assert!(matches!(late, Answered::Lost(LostCause::Expired)), "{late:?}");
        assert_eq!(claim_state.state(after(2_000)), LeaseState::Lost);
        let (claim_state, _) = ClaimState::held(key(), terms(), 6, (START, TTL));
        let timely = claim_state.answered((after(1_900), after(1_950)), TTL, &held);
        assert!(matches!(timely, Answered::Kept), "{timely:?}");
        assert_eq!(claim_state.state(after(3_800)), LeaseState::Held);
    }

    #[test]
    fn lease_counts_from_when_its_renewal_was_sent() {
        let held = Standing::Held { fence: 6, remaining: TTL };
        let (claim_state, _) = ClaimState::held(key(), terms(), 6, (START, TTL));
        claim_state.answered((after(500), after(1_500)), TTL, &held);
        assert_eq!(claim_state.state(after(2_400)), LeaseState::Held);
        assert_eq!(claim_state.state(after(2_600)), LeaseState::Lost);
    }

    #[test]
    fn answer_to_a_heartbeat_from_before_the_grant_does_not_change_the_lease() {
        let answers =
            [Standing::Out { ahead: 0, retry_in: Duration::ZERO, by: None }, queued(6), queued(9)];
        for answer in answers {
            let claim_state = waiting_at(6);
            claim_state.hold(6, after(100), TTL, after(101)).expect("it is granted");
            let late = claim_state.answered((after(50), after(200)), TTL, &answer);
            assert!(matches!(late, Answered::Kept), "{answer:?}: {late:?}");
            assert_eq!(claim_state.state(after(200)), LeaseState::Held);
        }
    }

    #[test]
    fn lease_counts_on_the_shorter_ttl_while_a_renewal_with_it_may_be_late() {
        let long = Ttl::new(TTL * 100).expect("within bounds");
        let held = Standing::Held { fence: 6, remaining: long.get() };
        let after_a_failure = |wait: Duration| {
            let (claim_state, _) = ClaimState::held(key(), terms(), 6, (START, TTL * 100));
            claim_state.renew_soon(after(1_000));
            assert!(matches!(claim_state.next_step(after(1_000)), NextStep::Renew { .. }));
            claim_state.failed(after(1_100), &Arc::new(Error::Closed));
            let now = after(1_100) + wait;
            claim_state.renew_now(long, now);
            claim_state.answered((now, now), long.get(), &held);
            claim_state.state(now + TTL)
        };
        assert_eq!(after_a_failure(LATE_MAX / 2), LeaseState::Lost);
        assert_eq!(after_a_failure(LATE_MAX), LeaseState::Held);
    }

    #[test]
    fn renewal_that_finds_another_fence_loses_the_lease() {
        let (claim_state, _) = ClaimState::held(key(), terms(), 6, (START, TTL));
        let held = Standing::Held { fence: 9, remaining: TTL };
        let answered = claim_state.answered((after(500), after(501)), TTL, &held);
        assert!(matches!(answered, Answered::Lost(LostCause::Removed)), "{answered:?}");
    }
}
