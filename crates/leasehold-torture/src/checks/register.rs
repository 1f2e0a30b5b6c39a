//! The register's accepted history is whole tenures in the order of fences, and no lease that is
//! valid is refused.
//!
//! The register writes down what it did, in its own order. A worker writes down that it was
//! refused, and what its lease says afterwards.

use std::collections::HashMap;

use super::{Tally, Violation, count};
use crate::event::{Event, What};
use crate::history::{Attempt, History};

pub(super) const NAME: &str = "register";

/// What was accepted so far for a name.
#[derive(Debug, Default)]
struct Accepted {
    fence: u64,
    value: u64,
    /// Which attempt has each fence.
    owners: HashMap<u64, (u32, u64)>,
}

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut names: HashMap<&str, Accepted> = HashMap::new();
    for event in &history.events {
        let What::Access { name, .. } = &event.what else { continue };
        count(tally, NAME, false);
        if let Some(text) = names.entry(name).or_default().accept(event) {
            let attempts = event_owner(event).into_iter().collect();
            found.push(Violation { check: NAME, at: event.at, text, attempts });
        }
    }
    found.extend(history.attempts.iter().filter_map(|attempt| refused(history, attempt)));
    found
}

fn event_owner(event: &Event) -> Option<(u32, u64)> {
    match event.what {
        What::Access { by, of, .. } => Some((by, of)),
        _ => None,
    }
}

impl Accepted {
    /// The fault of an access that was accepted after the others, if it has one.
    fn accept(&mut self, event: &Event) -> Option<String> {
        let What::Access { name, by, of, fence, accepted: true, wrote } = &event.what else {
            return None;
        };
        let (by, of) = (*by, *of);
        if *fence < self.fence {
            let last = self.fence;
            return Some(format!("`{name}`: fence {fence} was accepted after fence {last}"));
        }
        self.fence = *fence;
        let owner = *self.owners.entry(*fence).or_insert((by, of));
        if owner != (by, of) {
            return Some(format!("`{name}`: two attempts used fence {fence}"));
        }
        let value = (*wrote)?;
        let before = std::mem::replace(&mut self.value, value);
        (value != before + 1)
            .then(|| format!("`{name}`: {value} was written over {before}, so a write is lost"))
    }
}

/// A lease that says it is held, after the register had refused its fence.
fn refused(history: &History, attempt: &Attempt) -> Option<Violation> {
    let mut events = attempt.events.iter().map(|index| &history.events[*index]);
    let (at, fence, seen) = events.find_map(|event| match event.what {
        What::Turned { fence, seen } => Some((event.at, fence, seen)),
        _ => None,
    })?;
    let held = events.find(|event| matches!(event.what, What::Held { .. }))?;
    if history.may_have_forgotten(attempt.worker, attempt.grant?.since, at) {
        return None;
    }
    let name = &attempt.name;
    let text =
        format!("`{name}`: fence {fence} was refused, {seen} was seen, and its lease was valid");
    Some(Violation::new(NAME, held.at, text, &[attempt]))
}
