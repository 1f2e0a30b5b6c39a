//! Waiting ends: no claim sleeps beside a free name, and a name that was closed opens. Once the
//! faults are over, every claim has an answer, every worker ends, and nothing is left in the store.

use super::{Tally, Violation, count};
use crate::event::{Instant, RUN, SEVERAL, What, ms};
use crate::history::{Attempt, History, forgotten_after};

pub(super) const ASLEEP: &str = "asleep";
pub(super) const OPENS: &str = "opens";
pub(super) const PROGRESS: &str = "progress";
pub(super) const LEFT: &str = "left";
pub(super) const STUCK: &str = "stuck";

/// A lost bell is repaired by the heartbeat after a second; the rest is for a busy machine.
const ASLEEP_MAX: Instant = ms(4_000);

/// The rest of a claim is gone so soon after its end, if nothing is disturbed.
const LEAVES: Instant = ms(2_000);

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, attempts) in history.by_name() {
        found.extend(Line::new(history, &attempts).asleep(name, tally));
        found.extend(progress(history, name, &attempts, tally));
    }
    found.extend(history.events.iter().filter_map(|event| {
        let (check, text) = match &event.what {
            What::Left { name, held, waiting } => {
                let text = format!("`{name}`: {held} hold and {waiting} wait after all have ended");
                (LEFT, text)
            }
            What::Rest { found } => (LEFT, format!("after all have ended there is {found}")),
            What::Stuck { target, said } => {
                (STUCK, format!("worker {target} did not end in time; it said: {said}"))
            }
            _ => return None,
        };
        Some(Violation::new(check, event.at, text, &[]))
    }));
    found
}

/// The attempts on a name, and what may have left a claim of one of them in the store.
struct Line<'a> {
    history: &'a History,
    attempts: &'a [&'a Attempt],
    /// From when to when.
    disturbances: Vec<(Instant, Instant)>,
    /// How long the store keeps what such an attempt left.
    left: Instant,
}

impl Line<'_> {
    /// A fault of one worker alone disturbs this name if the worker has an attempt on it.
    fn new<'a>(history: &'a History, attempts: &'a [&'a Attempt]) -> Line<'a> {
        let concerns = |worker: u32, from: Instant, to: Instant| {
            let is_there = |one: &&Attempt| one.asked <= to && one.ended + LEAVES >= from;
            attempts.iter().filter(|one| one.worker == worker).any(is_there)
        };
        let all = history.disturbances.iter();
        let all = all.filter(|one| one.worker == RUN || concerns(one.worker, one.from, one.to));
        let disturbances = all.map(|one| (one.from, one.to)).collect();
        let longest = attempts.iter().map(|one| one.ttl).max().unwrap_or_default();
        Line { history, attempts, disturbances, left: forgotten_after(longest) }
    }

    /// Names that nobody had while somebody waited, and that were granted to nobody for long.
    fn asleep(&self, name: &str, tally: &mut Tally) -> Option<Violation> {
        let grants = self.attempts.iter().filter_map(|one| one.grant.map(|grant| grant.at));
        let mut grants: Vec<Instant> = grants.collect();
        grants.sort_unstable();
        for last in self.attempts.iter().filter(|one| one.grant.is_some()) {
            let free = last.ended.max(last.opens(&self.history.terms).unwrap_or_default());
            let check = if last.closes.is_some() { OPENS } else { ASLEEP };
            let granted_after = |at: Instant| {
                let next = grants.partition_point(|grant| *grant <= at);
                grants.get(next).copied().unwrap_or(self.history.last)
            };
            // A store that is on time opens the name before it is late.
            let due = last.ended.max(last.due().unwrap_or_default());
            if self.attempts.iter().any(|one| one.waits_at(due)) {
                let late = self.late(free).min(granted_after(due) - 1);
                count(tally, check, self.taken_later(due, late).is_some());
            }
            let until = granted_after(free);
            let Some(from) = self.surely_free(free, until) else { continue };
            let late = self.late(from);
            let mut waits = self.attempts.iter();
            if let Some(one) = waits.find(|one| one.waits_at(from) && one.waits_at(late)) {
                let text = match last.closes {
                    Some(_) => format!("`{name}` stayed closed, and a claim in line waited"),
                    None => format!("`{name}` was free, and a claim in line was not granted"),
                };
                // One for each name: the others say the same again.
                return Some(Violation::new(check, late, text, &[last, one]));
            }
        }
        None
    }

    /// When a claim that waits since `from` beside a free name has waited for too long.
    fn late(&self, from: Instant) -> Instant {
        self.history.after(from, ASLEEP_MAX)
    }

    /// The first instant from which on the name was surely free for long enough, before `until`.
    fn surely_free(&self, free: Instant, until: Instant) -> Option<Instant> {
        let mut from = free;
        loop {
            let late = self.late(from);
            if late > until {
                return None;
            }
            match self.taken_later(from, late) {
                None => return Some(from),
                Some(later) => from = later.max(from + 1),
            }
        }
    }

    /// Until when somebody may have the name, if anybody may between two instants.
    ///
    /// An attempt that was disturbed, or ended without an answer, may have left a claim in the
    /// line. The store drops it in time, so the instant is later by that much.
    fn taken_later(&self, from: Instant, late: Instant) -> Option<Instant> {
        let left = self.left;
        let disturbed = self.disturbances.iter();
        let disturbed = disturbed.filter(|(begin, end)| *begin <= late && end + left >= from);
        let disturbed = disturbed.map(|(_, end)| end + left + 1);
        let taken = self.attempts.iter();
        let taken = taken.filter_map(|one| taken_until(one, left, (from, late)));
        disturbed.chain(taken).max()
    }
}

/// Until when an attempt may keep the name, if it may between two instants. A lease that is valid
/// or stays closed keeps it, and so may a claim that ended without an answer or has several names.
fn taken_until(one: &Attempt, left: Instant, (from, late): (Instant, Instant)) -> Option<Instant> {
    if one.asked > late {
        return None;
    }
    let granted = one.grant.filter(|grant| grant.at <= late);
    let held = granted.map(|grant| grant.end.max(one.ended)).filter(|end| *end > from);
    let waits = one.waits_at(from) || one.waits_at(late);
    let is_unsure = !one.settled && !waits && one.ended + left >= from;
    let unsure = is_unsure.then(|| one.ended + left + 1);
    let is_several = one.how == SEVERAL && one.ended > from;
    held.max(unsure).max(is_several.then_some(one.ended))
}

/// Claims that were not answered in time after the last fault. The time does not count in which the
/// name was closed, as those before it had asked for.
fn progress(
    history: &History,
    name: &str,
    attempts: &[&Attempt],
    tally: &mut Tally,
) -> Vec<Violation> {
    let bound = history.terms.progress;
    let mut closed: Vec<(Instant, Instant)> = attempts
        .iter()
        .filter_map(|one| Some((one.grant?.at, one.opens(&history.terms)?)))
        .collect();
    closed.sort_unstable();
    let late = attempts.iter().filter(|one| {
        let since = one.asked.max(history.calm);
        let answered = one.grant.map_or(one.ended, |grant| grant.at);
        if answered >= history.calm {
            count(tally, PROGRESS, false);
        }
        let waited = answered.saturating_sub(since);
        waited > bound && {
            let closed = closed_for(&closed, since, answered);
            waited.saturating_sub(closed + history.delay(since, answered)) > bound
        }
    });
    let found = late.map(|one| {
        let seconds = bound / ms(1_000);
        let line = in_store(history, name);
        let text = format!("`{name}`: no answer for {seconds} s after all faults{line}");
        Violation::new(PROGRESS, one.ended, text, &[one])
    });
    found.collect()
}

/// For how long of a span a name was closed, by the spans from each grant to its opening.
fn closed_for(closed: &[(Instant, Instant)], since: Instant, until: Instant) -> Instant {
    let mut counted = since;
    let mut sum = 0;
    for (from, to) in closed {
        let (from, to) = ((*from).max(counted), (*to).min(until));
        sum += to.saturating_sub(from);
        counted = counted.max(to);
    }
    sum
}

/// The line of a name in the store when a worker did not end, as the end of a sentence.
fn in_store(history: &History, wanted: &str) -> String {
    let line = history.events.iter().find_map(|event| match &event.what {
        What::Line { name, held, waiting } if name == wanted => Some((held, waiting)),
        _ => None,
    });
    let Some((held, waiting)) = line else { return String::new() };
    let (held, waiting) = (held.join("; "), waiting.join("; "));
    format!("; in the store hold [{held}] and wait [{waiting}]")
}
