//! Fences are unique in a name, and rise from one lease to the next.
//!
//! If one lease was returned before another was asked for, its fence is smaller. Nothing excuses
//! this: also a store that forgot its leases goes on with greater numbers.

use std::collections::HashMap;

use super::{Tally, Violation, count};
use crate::event::{Instant, Want};
use crate::history::{Attempt, History};

pub(super) const NAME: &str = "fences";

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, attempts) in history.by_name() {
        // A unit of a rate shows no fence.
        let granted: Vec<(&Attempt, Instant, u64)> = attempts
            .into_iter()
            .filter(|one| !matches!(one.want, Want::Unit { .. }))
            .filter_map(|one| one.grant.map(|grant| (one, grant.at, grant.fence)))
            .collect();
        granted.iter().skip(1).for_each(|_| count(tally, NAME, false));
        found.extend(twice(name, &granted));
        found.extend(falls(name, granted));
    }
    found
}

fn twice(name: &str, granted: &[(&Attempt, Instant, u64)]) -> Vec<Violation> {
    let mut seen: HashMap<u64, &Attempt> = HashMap::new();
    let mut found = Vec::new();
    for (attempt, at, fence) in granted {
        if let Some(other) = seen.insert(*fence, attempt) {
            let text = format!("`{name}` was granted twice with fence {fence}");
            found.push(Violation::new(NAME, *at, text, &[other, attempt]));
        }
    }
    found
}

fn falls(name: &str, granted: Vec<(&Attempt, Instant, u64)>) -> Vec<Violation> {
    // Attempts are in the order in which they were asked for.
    let mut by_grant = granted.clone();
    by_grant.sort_by_key(|(_, at, _)| *at);
    let mut before = by_grant.into_iter().peekable();
    let mut greatest: Option<(&Attempt, u64)> = None;
    let mut found = Vec::new();
    for (attempt, at, fence) in granted {
        while let Some((other, _, known)) = before.next_if(|(_, at, _)| *at < attempt.asked) {
            if greatest.is_none_or(|(_, fence)| known > fence) {
                greatest = Some((other, known));
            }
        }
        if let Some((other, known)) = greatest
            && known >= fence
        {
            let text = format!(
                "`{name}` was granted with fence {fence}, asked for after fence {known} was granted"
            );
            found.push(Violation::new(NAME, at, text, &[other, attempt]));
        }
    }
    found
}
