//! The checks: each reads a history and names what breaks one promise.
//!
//! A check reports only what is certain from the history. It leaves out what the store itself may
//! have forgotten, as docs/safety.md says, and claims whose clients were disturbed, where the
//! promise is about clients that are not.

mod answers;
mod exclusion;
mod fences;
mod order;
mod ownership;
mod primitives;
mod register;
mod waiting;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::event::Instant;
use crate::history::{Attempt, History};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which check found it: one of [`NAMES`].
    pub check: &'static str,
    /// When it was certain.
    pub at: Instant,
    /// What happened.
    pub text: String,
    /// The attempts that it is about: worker and number.
    pub attempts: Vec<(u32, u64)>,
}

/// The names of all checks.
pub const NAMES: [&str; 15] = [
    exclusion::NAME,
    fences::NAME,
    register::NAME,
    ownership::NAME,
    ownership::RELEASE,
    order::NAME,
    waiting::ASLEEP,
    waiting::OPENS,
    waiting::PROGRESS,
    waiting::LEFT,
    waiting::STUCK,
    answers::NAME,
    primitives::RATE,
    primitives::ONCE,
    exclusion::ELECTION,
];

/// How much a check could judge.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// How often it could have found something.
    pub judged: usize,
    /// How often it could not, because of a fault.
    pub excused: usize,
}

/// How much each check could judge, by its name.
pub type Tally = BTreeMap<&'static str, Judged>;

/// Counts something that a check judged, or excused.
fn count(tally: &mut Tally, check: &'static str, is_excused: bool) {
    let judged = tally.entry(check).or_default();
    judged.judged += usize::from(!is_excused);
    judged.excused += usize::from(is_excused);
}

/// Everything that is wrong with a history, in order of time, and how much was judged.
pub fn judge(history: &History) -> (Vec<Violation>, Tally) {
    let checks = [
        exclusion::check,
        fences::check,
        register::check,
        ownership::check,
        order::check,
        waiting::check,
        answers::check,
        primitives::check,
    ];
    let mut tally = Tally::new();
    let mut found: Vec<Violation> =
        checks.iter().flat_map(|check| check(history, &mut tally)).collect();
    found.sort_by_key(|violation| violation.at);
    (found, tally)
}

impl Violation {
    fn new(check: &'static str, at: Instant, text: String, attempts: &[&Attempt]) -> Violation {
        let attempts = attempts.iter().map(|one| (one.worker, one.number)).collect();
        Violation { check, at, text, attempts }
    }
}
