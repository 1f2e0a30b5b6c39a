//! Claims that stay in line are granted in the order in which they joined.
//!
//! A claim certainly joined before another if its worker knew that it stands in line before the
//! other was asked for. It certainly stayed if nothing disturbed its worker or the store until the
//! other was granted. Only claims that exclude each other are compared: of others both may hold,
//! and one worker hears of it later.

use super::exclusion::excludes;
use super::{Tally, Violation, count};
use crate::event::{Instant, ms};
use crate::history::{Attempt, History};

pub(super) const NAME: &str = "order";

/// Some time passes between a grant and the instant at which a worker knows of it.
const LATE: Instant = ms(200);

/// A disturbance that is over may cost a place a little later.
const AFTER: Instant = ms(3_000);

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    if !history.terms.fifo {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (name, attempts) in history.by_name() {
        let mut queued: Vec<(Instant, &Attempt)> =
            attempts.iter().filter_map(|one| Some((one.queued?, *one))).collect();
        queued.sort_by_key(|(at, _)| *at);
        let mut waiting: Vec<&Attempt> = Vec::new();
        let mut joins = queued.into_iter().peekable();
        // In the order in which they were asked for.
        for later in attempts {
            let Some(grant) = later.grant else { continue };
            while let Some((_, one)) = joins.next_if(|(at, _)| *at < later.asked) {
                waiting.push(one);
            }
            waiting.retain(|one| one.waits_at(later.asked));
            // The one that waited longest of those that exclude it must have left before.
            if let Some(one) = waiting.iter().find(|one| excludes(one.want, later.want)) {
                count(tally, NAME, !stayed(history, one, grant.at));
            }
            let late = history.after(grant.at, LATE);
            let passed = waiting
                .iter()
                .filter(|one| excludes(one.want, later.want) && one.waits_at(late))
                .find(|one| stayed(history, one, grant.at));
            if let Some(one) = passed {
                let fence = grant.fence;
                let text =
                    format!("`{name}`: fence {fence} was granted before a claim that had joined");
                found.push(Violation::new(NAME, grant.at, text, &[one, later]));
            }
        }
    }
    found
}

fn stayed(history: &History, attempt: &Attempt, until: Instant) -> bool {
    let from = attempt.asked.saturating_sub(AFTER);
    !history.is_disturbed(attempt.worker, from, until + LATE)
        && !history.may_have_forgotten(attempt.worker, attempt.asked, until)
}
