//! Decides when a command must stop, from the instants and states in its arguments. It has no
//! clock, no process and no store of its own.
//!
//! The rules, and why:
//!
//! * A lease whose renewals fail is still held until its safe end. TERM goes out when no more
//!   than the grace is left, KILL a moment before the safe end: no work goes on after it.
//! * The grace is at most a third of the ttl. The first renewal is due at 60 % of the ttl. So
//!   a failed one can be tried again before TERM goes out.
//! * A lease whose time has run out (this process was stopped, or the machine slept) has no
//!   grace left: KILL at once.
//! * When the store reports that the lease is gone (taken, force-released, replaced), another
//!   holder may be at work already. The safe end is now. The command gets only `LOST_GRACE` to
//!   leave things in order, because half-written files help nobody.
//! * `--hold-at-most` is the user's wish and not a loss: TERM when the time is over, KILL a whole
//!   grace later. This process keeps the lease until the command is gone.

use std::fmt;
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{LeaseState, LostCause};

use crate::duration::human;

/// A process that wakes this much too late was stopped: schedulers are quicker.
const LATE_MIN: Duration = Duration::from_millis(100);

/// The time between TERM and KILL when another holder may have the lock already.
const LOST_GRACE: Duration = Duration::from_millis(500);

/// How long before the safe end KILL goes out at the latest. The kernel needs some time to deliver
/// the signal and end the processes. The margin of the lease comes on top.
const KILL_EARLY: Duration = Duration::from_millis(20);

/// The guard's view of one lease.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    pub(crate) state: LeaseState,
    pub(crate) safe_until: Moment,
    /// Why it is lost, once the library has reported it.
    pub(crate) cause: Option<LostCause>,
}

/// The terms a command runs under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The time between TERM and KILL when a lease is lost.
    grace: Duration,
    /// The time between TERM and KILL when `--hold-at-most` is over.
    whole_grace: Duration,
    kill_early: Duration,
    /// How often to check while a renewal is overdue and has not failed.
    look_every: Duration,
    hold_until: Option<Moment>,
}

/// Why this process ends a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// The lease at this place was lost, or cannot be kept.
    Lost(usize, LostCause),
    /// The renewals of the lease at this place fail, and its safe end is near.
    Unkept(usize),
    /// This process did not run for this long, when it had to keep the lease at this place.
    Stopped(usize, Duration),
    /// It was held for as long as `--hold-at-most` allows.
    HeldLongest,
}

impl Why {
    /// The same reason, found `late` after this process had to check. If the lease ran out
    /// meanwhile, the reason is that this process did not run.
    pub(crate) fn found_late(self, late: Duration) -> Self {
        match self {
            Why::Unkept(index) | Why::Lost(index, LostCause::Expired | LostCause::Unreachable)
                if late >= LATE_MIN =>
            {
                Why::Stopped(index, late)
            }
            why => why,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Lost(_, cause) => write!(f, "a lease was lost: {cause}"),
            Why::Unkept(_) => f.write_str("a lease could not be renewed in time"),
            Why::Stopped(_, late) => write!(
                f,
                "this process did not run for {} (it was stopped, or the machine slept)",
                human(*late)
            ),
            Why::HeldLongest => f.write_str("--hold-at-most is over"),
        }
    }
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing before this instant.
    Rest(Moment),
    /// Ask the command to end, and kill it at `kill_at`, or earlier if `decide_ending` says so.
    Terminate { kill_at: Moment, why: Why },
    /// Kill all that is left of it.
    Kill(Why),
}

/// The most time between TERM and KILL when a lease of this ttl is lost.
pub(crate) fn grace_max(ttl: Duration) -> Duration {
    ttl / 3
}

impl Terms {
    pub(crate) fn new(ttl: Duration, grace: Duration, hold_until: Option<Moment>) -> Self {
        Self {
            grace: grace.min(grace_max(ttl)),
            whole_grace: grace,
            kill_early: KILL_EARLY.min(ttl / 20),
            look_every: (ttl / 50).clamp(Duration::from_millis(1), Duration::from_millis(100)),
            hold_until,
        }
    }

    /// The next step at `now` for a command that was not asked to end yet.
    pub(crate) fn decide(&self, sights: &[Sight], now: Moment) -> Step {
        let mut rest_until = Moment::NEVER;
        for (index, sight) in sights.iter().enumerate() {
            match self.look_at(index, sight, now) {
                Step::Rest(until) => rest_until = rest_until.min(until),
                step => return step,
            }
        }
        match self.hold_until {
            Some(at) if now >= at => {
                Step::Terminate { kill_at: now + self.whole_grace, why: Why::HeldLongest }
            }
            Some(at) => Step::Rest(rest_until.min(at)),
            None => Step::Rest(rest_until),
        }
    }

    fn look_at(&self, index: usize, sight: &Sight, now: Moment) -> Step {
        if let Some(cause) = &sight.cause {
            let why = Why::Lost(index, cause.clone());
            return match cause {
                LostCause::Expired | LostCause::Unreachable => Step::Kill(why),
                _ => Step::Terminate { kill_at: now + self.grace.min(LOST_GRACE), why },
            };
        }
        let kill_at = sight.safe_until - self.kill_early;
        if now >= kill_at {
            return Step::Kill(Why::Unkept(index));
        }
        let term_at = kill_at - self.grace;
        match sight.state {
            _ if now < term_at => Step::Rest(term_at),
            LeaseState::Uncertain => Step::Terminate { kill_at, why: Why::Unkept(index) },
            // The answer to a renewal is overdue, but it has not failed.
            _ => Step::Rest((now + self.look_every).min(kill_at)),
        }
    }

    /// The next step at `now` for a command that was asked to end, and gets KILL at `kill_at` at
    /// the latest.
    pub(crate) fn decide_ending(
        &self,
        sights: &[Sight],
        kill_at: Moment,
        why: &Why,
        now: Moment,
    ) -> Step {
        let lost = match why {
            Why::Lost(index, _) => Some(*index),
            _ => None,
        };
        // The lost lease has set `kill_at` already. The others may still cut the grace short.
        let others = sights.iter().enumerate().filter(|(index, _)| Some(*index) != lost);
        let ends = others.map(|(_, sight)| match &sight.cause {
            Some(_) => now,
            None => sight.safe_until - self.kill_early,
        });
        let kill_at = ends.fold(kill_at, Moment::min);
        if now >= kill_at { Step::Kill(why.clone()) } else { Step::Rest(kill_at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn terms() -> Terms {
        Terms::new(TTL, Duration::from_secs(10), None)
    }

    fn kept(state: LeaseState) -> Sight {
        Sight { state, safe_until: at(30_000), cause: None }
    }

    fn lost(cause: LostCause) -> Sight {
        Sight { state: LeaseState::Lost, safe_until: at(30_000), cause: Some(cause) }
    }

    #[test]
    fn f134_term_goes_out_a_grace_before_the_safe_end_and_kill_just_before_it() {
        let uncertain = [kept(LeaseState::Uncertain)];
        assert_eq!(terms().decide(&uncertain, at(18_000)), Step::Rest(at(19_980)));
        let step = terms().decide(&uncertain, at(19_980));
        assert_eq!(step, Step::Terminate { kill_at: at(29_980), why: Why::Unkept(0) });
        // It turns uncertain late, so the grace is only the time that is left.
        let step = terms().decide(&uncertain, at(25_000));
        assert_eq!(step, Step::Terminate { kill_at: at(29_980), why: Why::Unkept(0) });
        assert_eq!(terms().decide(&uncertain, at(29_980)), Step::Kill(Why::Unkept(0)));
    }

    #[test]
    fn an_overdue_answer_is_waited_for_but_not_past_the_safe_end() {
        let held = [kept(LeaseState::Held)];
        assert_eq!(terms().decide(&held, at(0)), Step::Rest(at(19_980)));
        assert_eq!(terms().decide(&held, at(20_000)), Step::Rest(at(20_100)));
        assert_eq!(terms().decide(&held, at(29_950)), Step::Rest(at(29_980)));
        assert_eq!(terms().decide(&held, at(29_980)), Step::Kill(Why::Unkept(0)));
    }

    #[test]
    fn a_lease_that_somebody_took_ends_the_work_within_half_a_second() {
        for cause in [LostCause::Removed, LostCause::Replaced, LostCause::Closed] {
            let step = terms().decide(&[kept(LeaseState::Held), lost(cause.clone())], at(1_000));
            let why = Why::Lost(1, cause);
            assert_eq!(step, Step::Terminate { kill_at: at(1_500), why });
        }
    }

    #[test]
    fn a_lease_whose_time_ran_out_leaves_no_grace() {
        for cause in [LostCause::Expired, LostCause::Unreachable] {
            let step = terms().decide(&[lost(cause.clone())], at(40_000));
            assert_eq!(step, Step::Kill(Why::Lost(0, cause)));
        }
    }

    #[test]
    fn lease_that_ran_out_while_the_process_was_stopped_is_lost_for_that() {
        let late = Duration::from_secs(5);
        for why in [Why::Unkept(1), Why::Lost(1, LostCause::Expired)] {
            assert_eq!(why.clone().found_late(late), Why::Stopped(1, late));
            assert_eq!(why.clone().found_late(Duration::from_millis(20)), why);
        }
        for why in [Why::HeldLongest, Why::Lost(0, LostCause::Removed)] {
            assert_eq!(why.clone().found_late(late), why);
        }
    }

    #[test]
    fn the_grace_is_a_third_of_the_ttl_at_most() {
        let terms = Terms::new(Duration::from_secs(3), Duration::from_secs(10), None);
        let uncertain =
            [Sight { state: LeaseState::Uncertain, safe_until: at(3_000), cause: None }];
        assert_eq!(terms.decide(&uncertain, at(1_800)), Step::Rest(at(1_980)));
    }

    #[test]
    fn holding_at_most_ends_with_the_whole_grace() {
        let terms = Terms::new(TTL, Duration::from_secs(10), Some(at(5_000)));
        let held = [kept(LeaseState::Held)];
        assert_eq!(terms.decide(&held, at(0)), Step::Rest(at(5_000)));
        let step = terms.decide(&held, at(5_000));
        assert_eq!(step, Step::Terminate { kill_at: at(15_000), why: Why::HeldLongest });
    }

    #[test]
    fn the_nearest_safe_end_cuts_the_grace_short() {
        let terms = terms();
        let held = [kept(LeaseState::Held)];
        let why = Why::HeldLongest;
        let step = terms.decide_ending(&held, at(60_000), &why, at(6_000));
        assert_eq!(step, Step::Rest(at(29_980)));
        assert_eq!(
            terms.decide_ending(&held, at(60_000), &why, at(29_980)),
            Step::Kill(Why::HeldLongest)
        );
        let gone = [kept(LeaseState::Held), lost(LostCause::Removed)];
        let step = terms.decide_ending(&gone, at(60_000), &why, at(6_000));
        assert_eq!(step, Step::Kill(Why::HeldLongest));
        // The lease that began it is not counted twice.
        let why = Why::Lost(1, LostCause::Removed);
        assert_eq!(terms.decide_ending(&gone, at(6_500), &why, at(6_000)), Step::Rest(at(6_500)));
    }
}
