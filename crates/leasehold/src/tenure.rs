//! One claim's life as its client sees it: asking, waiting, held, lost or done.
//!
//! Decides from instants it is given; it reads no clock and talks to nobody. The keeper drives it
//! and the lease reads it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{ClaimKey, Renewal, Standing, Ttl, margin};
use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::scope::Usage;

/// How often a waiting claim's heartbeat goes out at the latest. It repairs a lost bell, so it
/// bounds how long one can hold somebody up.
const BEAT_MAX: Duration = Duration::from_secs(1);

/// The first pause after a failed renewal; it doubles up to a tenth of the ttl.
const RETRY_FIRST: Duration = Duration::from_millis(25);

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

/// What a tenure may do that its claim does not say.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) renew: bool,
    /// Which part of the ttl passes before the first renewal, in percent.
    pub(crate) renew_at_percent: u32,
    /// Few set any, and every lease carries its terms.
    pub(crate) bounds: Option<Box<Bounds>>,
}

/// How long a lease lasts beside its ttl.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
    /// How much longer the store keeps a lease than its owner may use it.
    pub(crate) delay: Duration,
}

impl Terms {
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
    fn safe(&self, remaining: Duration) -> Duration {
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
pub(crate) struct Life {
    pub(crate) phase: Phase,
    pub(crate) terms: Terms,
    pub(crate) fence: u64,
    pub(crate) since: Moment,
    pub(crate) deadline: Moment,
    /// When the next renewal or heartbeat is due.
    due: Moment,
    /// When the last request went out that made the store keep the waiting claim.
    beat: Moment,
    /// Whether the store keeps the lease for its patience only, because a bell granted it.
    provisional: bool,
    failures: u32,
    unreachable: bool,
    in_flight: bool,
    /// Set when it has landed; only where somebody waits for that.
    landing: Option<Arc<AtomicBool>>,
    /// Counts answered renewals, so that `extend` can wait for its own.
    pub(crate) answers: u64,
    /// How many leases share this tenure: more than one only by re-entry.
    pub(crate) entries: u32,
}

#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) key: ClaimKey,
    /// Rings the waiting loop; at most one waits.
    pub(crate) bell: Notify,
    /// Wakes everybody who awaits the loss or a renewal.
    pub(crate) changed: Notify,
    life: Mutex<Life>,
    /// Where the registry keeps it.
    pub(crate) slot: AtomicUsize,
    /// Who uses it, as far as can be seen.
    pub(crate) usage: Usage,
}

/// What the keeper has to do about a tenure now.
pub(crate) enum Duty {
    /// Nothing before this instant.
    Rest(Moment),
    /// Send this renewal; it may go out a little before it is due, to share an exchange. Whether
    /// it is answered or not, something is to be done at `end`.
    Renew { renewal: Renewal, due: Moment, end: Moment },
    /// It was just found lost, or was held for as long as it may be.
    Lost(LostCause),
}

impl Tenure {
    pub(crate) fn new(key: ClaimKey, terms: Terms, now: Moment) -> Self {
        Self {
            key,
            bell: Notify::new(),
            changed: Notify::new(),
            life: Mutex::new(Life::new(terms, now)),
            slot: AtomicUsize::new(usize::MAX),
            usage: Usage::here(),
        }
    }

    /// A tenure that holds from the start, by an answer to a request sent at `sent`; and when the
    /// keeper has to look at it first.
    #[inline(always)]
    pub(crate) fn held(
        key: ClaimKey,
        terms: Terms,
        fence: u64,
        (sent, remaining): (Moment, Duration),
    ) -> (Arc<Self>, Moment) {
        let safe = terms.safe(remaining);
        let (deadline, due) = (sent + safe, terms.due(sent, safe));
        let next = due.min(deadline).min(terms.latest_end(sent));
        // In one piece: whatever is moved here is moved for each lock.
        let tenure = Arc::new(Self {
            key,
            bell: Notify::new(),
            changed: Notify::new(),
            life: Mutex::new(Life {
                phase: Phase::Held,
                fence,
                deadline,
                due,
                ..Life::new(terms, sent)
            }),
            slot: AtomicUsize::new(usize::MAX),
            usage: Usage::here(),
        });
        (tenure, next)
    }

    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim is in line since `sent`. Returns when its first heartbeat is due, or `None` if
    /// it was taken away in the meantime.
    pub(crate) fn queue(&self, sent: Moment) -> Option<Moment> {
        let mut life = self.life();
        if !matches!(life.phase, Phase::Asking | Phase::Waiting) {
            return None;
        }
        life.phase = Phase::Waiting;
        life.beat(sent);
        Some(life.due)
    }

    /// A bell says that the waiting claim holds. The store keeps it since the last heartbeat, for
    /// as long as a waiting claim; the first renewal makes that the whole ttl. Returns when it is
    /// due, or `None` if that is not good enough and the store must be asked.
    pub(crate) fn hold_by_bell(&self, fence: u64, now: Moment) -> Option<Moment> {
        let mut life = self.life();
        let patience = life.terms.ttl.patience();
        let deadline = life.beat + (patience - margin(patience));
        let whole = life.terms.renew && life.terms.delay().is_zero();
        if life.phase != Phase::Waiting || !whole || now >= deadline {
            return None;
        }
        life.phase = Phase::Held;
        life.fence = fence;
        life.since = now;
        let sent = life.beat;
        life.keep(sent, patience);
        life.provisional = true;
        Some(life.next_event())
    }

    /// Whether the store keeps the lease for less than its ttl until the next renewal.
    pub(crate) fn is_provisional(&self) -> bool {
        self.life().provisional
    }

    /// The claim holds, by an answer to a request sent at `sent`. Returns when the first renewal
    /// is due, or `None` if the tenure was ended in the meantime or the answer came too late.
    pub(crate) fn hold(
        &self,
        fence: u64,
        sent: Moment,
        remaining: Duration,
        now: Moment,
    ) -> Option<Moment> {
        let mut life = self.life();
        let safe = life.terms.safe(remaining);
        if !matches!(life.phase, Phase::Asking | Phase::Waiting) || now >= sent + safe {
            return None;
        }
        life.phase = Phase::Held;
        life.fence = fence;
        life.since = now;
        life.keep_safe(sent, safe);
        Some(life.next_event())
    }

    pub(crate) fn state(&self, now: Moment) -> LeaseState {
        let life = self.life();
        match life.phase {
            Phase::Held if now >= life.deadline => LeaseState::Lost,
            Phase::Held if life.failures > 0 => LeaseState::Uncertain,
            Phase::Held => LeaseState::Held,
            _ => LeaseState::Lost,
        }
    }

    /// Why the lease is lost, if it is.
    pub(crate) fn lost(&self, now: Moment) -> Option<LostCause> {
        let life = self.life();
        match &life.phase {
            Phase::Lost(cause) => Some((**cause).clone()),
            Phase::Held if now >= life.deadline => Some(life.cause_of_expiry()),
            Phase::Done => Some(LostCause::Closed),
            _ => None,
        }
    }

    /// Ends the tenure. Returns how it was before, or `None` if it had ended already.
    pub(crate) fn finish(&self) -> Option<Ended> {
        let mut life = self.life();
        if life.phase == Phase::Done {
            return None;
        }
        let phase = std::mem::replace(&mut life.phase, Phase::Done);
        let ended = life.ended(phase);
        drop(life);
        self.changed.notify_waiters();
        Some(ended)
    }

    /// Takes one of its leases away. Returns how it was before if that was the last one; then
    /// nobody is left who could await anything of it.
    #[inline(always)]
    pub(crate) fn leave(&self) -> Option<Ended> {
        let mut life = self.life();
        life.entries = life.entries.saturating_sub(1);
        if life.entries > 0 {
            return None;
        }
        let phase = std::mem::replace(&mut life.phase, Phase::Done);
        Some(life.ended(phase))
    }

    /// What a tenure that ended before, in this phase, was.
    pub(crate) fn ended(&self, phase: Phase) -> Ended {
        self.life().ended(phase)
    }

    /// Ends a lease as lost; returns whether it was one. A waiting claim is rung instead: it
    /// finds out by asking.
    pub(crate) fn lose(&self, cause: LostCause) -> bool {
        let mut life = self.life();
        life.land();
        let held = life.phase == Phase::Held;
        if held {
            life.phase = Phase::Lost(Box::new(cause));
        }
        drop(life);
        self.changed.notify_waiters();
        self.bell.notify_one();
        held
    }

    /// What is to be done at `now`. A returned `Lost` is already entered here.
    pub(crate) fn duty(&self, now: Moment) -> Duty {
        let mut life = self.life();
        match life.phase {
            Phase::Held if now >= life.end() => {
                let cause =
                    if now >= life.deadline { life.cause_of_expiry() } else { LostCause::MaxHold };
                life.phase = Phase::Lost(Box::new(cause.clone()));
                drop(life);
                self.changed.notify_waiters();
                Duty::Lost(cause)
            }
            Phase::Held | Phase::Waiting => {
                let slack = life.terms.ttl.get() / 20;
                if !life.in_flight && life.due - slack <= now {
                    let due = life.due;
                    let ttl = life.terms.kept();
                    let patience = life.terms.ttl.patience();
                    let renewal = Renewal { key: self.key.clone(), ttl, patience };
                    Duty::Renew { renewal, due, end: life.end() }
                } else {
                    Duty::Rest(life.next_event())
                }
            }
            _ => Duty::Rest(Moment::NEVER),
        }
    }

    /// Makes the next renewal or heartbeat due at once.
    pub(crate) fn hurry(&self, now: Moment) {
        self.life().due = now;
    }

    /// A renewal is on its way; no second one goes out before its answer. False if the tenure ended
    /// meanwhile, and none is to go out.
    pub(crate) fn sent(&self) -> bool {
        let mut life = self.life();
        let goes = matches!(life.phase, Phase::Held | Phase::Waiting);
        life.in_flight |= goes;
        goes
    }

    /// Says when the renewal that is on its way has landed; `None` if there is none.
    pub(crate) fn landing(&self) -> Option<Arc<AtomicBool>> {
        let mut life = self.life();
        let in_flight = life.in_flight;
        in_flight.then(|| Arc::clone(life.landing.get_or_insert_default()))
    }

    /// Ends when no renewal is on its way. Of a tenure that ended, none goes out any more.
    pub(crate) async fn landed(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.life().in_flight {
                return;
            }
            changed.await;
        }
    }

    /// The store answered a renewal sent at `sent`. Returns the cause if the lease is lost by it.
    pub(crate) fn answered(&self, sent: Moment, ttl: Duration, answer: &Standing) -> Answered {
        let mut life = self.life();
        life.land();
        life.answers += 1;
        let outcome = match (&life.phase, answer) {
            // A heartbeat that went out before the claim held says nothing about the lease.
            (Phase::Held, _) if sent < life.since => Answered::Kept,
            (Phase::Held, Standing::Held { remaining, .. }) => {
                life.keep(sent, *remaining);
                if ttl != life.terms.kept() {
                    // `extend` changed the ttl while this renewal was on its way.
                    life.due = sent;
                }
                Answered::Kept
            }
            (Phase::Held, Standing::Queued { .. } | Standing::Out { .. }) => {
                let cause = match answer {
                    Standing::Out { by: Some(holder), .. } => LostCause::TakenBy(holder.clone()),
                    _ if sent >= life.deadline => LostCause::Expired,
                    _ => LostCause::Removed,
                };
                life.phase = Phase::Lost(Box::new(cause.clone()));
                Answered::Lost(cause)
            }
            (Phase::Waiting, Standing::Queued { .. }) => {
                life.beat(sent);
                Answered::Kept
            }
            (Phase::Waiting, Standing::Held { .. } | Standing::Out { .. }) => {
                life.due = sent + life.beat_every();
                Answered::Ring
            }
            _ => Answered::Kept,
        };
        drop(life);
        self.changed.notify_waiters();
        if matches!(outcome, Answered::Ring) {
            self.bell.notify_one();
        }
        outcome
    }

    /// A renewal failed. The deadline stays where it was: losing contact is not losing the lease.
    pub(crate) fn failed(&self, now: Moment, error: &Error) {
        let mut life = self.life();
        life.land();
        life.failures += 1;
        life.unreachable = matches!(error, Error::Unreachable { .. } | Error::NoMajority { .. });
        let limit = life.terms.ttl.get() / 10;
        let pause = RETRY_FIRST.saturating_mul(1 << life.failures.min(10)).min(limit);
        life.due = now + pause.mul_f64(rand::random_range(0.5..1.0));
        drop(life);
        self.changed.notify_waiters();
    }

    /// Sets another ttl and makes a renewal due at once.
    pub(crate) fn renew_now(&self, ttl: Ttl, now: Moment) -> u64 {
        let mut life = self.life();
        life.terms.ttl = ttl;
        life.due = now;
        // An answer that is already on its way belongs to the renewal before.
        life.answers + 1 + u64::from(life.in_flight)
    }
}

/// What a tenure was when it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) phase: Phase,
    pub(crate) since: Moment,
    pub(crate) ttl: Duration,
    /// Until when the claim must stay in the store although its holder is done with it.
    pub(crate) keep_until: Option<Moment>,
}

impl Ended {
    /// Whether something of the claim can be left in the store. What is lost, the store has
    /// dropped, or the keeper took out when it found the loss.
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

impl Life {
    #[inline(always)]
    fn new(terms: Terms, now: Moment) -> Self {
        Self {
            phase: Phase::Asking,
            terms,
            fence: 0,
            since: now,
            deadline: Moment::NEVER,
            due: Moment::NEVER,
            beat: now,
            provisional: false,
            failures: 0,
            unreachable: false,
            in_flight: false,
            landing: None,
            answers: 0,
            entries: 1,
        }
    }

    fn keep(&mut self, sent: Moment, remaining: Duration) {
        self.keep_safe(sent, self.terms.safe(remaining));
    }

    fn keep_safe(&mut self, sent: Moment, safe: Duration) {
        self.failures = 0;
        self.unreachable = false;
        self.provisional = false;
        self.deadline = sent + safe;
        self.due = self.terms.due(sent, safe);
    }

    fn land(&mut self) {
        self.in_flight = false;
        if let Some(landed) = self.landing.take() {
            landed.store(true, Ordering::Release);
        }
    }

    fn beat(&mut self, sent: Moment) {
        self.failures = 0;
        self.beat = sent;
        self.due = sent + self.beat_every();
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
    fn ended(&self, phase: Phase) -> Ended {
        let bounds = self.terms.bounds.as_ref();
        Ended {
            phase,
            since: self.since,
            ttl: self.terms.kept(),
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
        if self.unreachable { LostCause::Unreachable } else { LostCause::Expired }
    }
}
