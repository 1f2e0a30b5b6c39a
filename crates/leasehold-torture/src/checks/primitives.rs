//! A rate limiter hands out no more units than its number in any period, and work that is done
//! once is not begun again within its period.
//!
//! An election has one leader at a time, which `exclusion` sees to. Each observer sees
//! leaders in the order of their terms.

use std::collections::HashMap;

use super::exclusion::ELECTION;
use super::{Tally, Violation, count};
use crate::event::{Instant, RUN, Want, What, ms};
use crate::history::{Attempt, History};

pub(super) const RATE: &str = "rate";
pub(super) const ONCE: &str = "once";

/// Stores count in milliseconds and some round; a client may read an answer at the last instant.
const ROUNDING: Instant = ms(50);

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, attempts) in history.by_name() {
        found.extend(rate(history, name, &attempts, tally));
        found.extend(once(history, name, &attempts, tally));
    }
    found.extend(observed(history, tally));
    found
}

/// An observer that sees a leader of an earlier term than before.
fn observed(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut last: HashMap<u32, (Instant, u64)> = HashMap::new();
    let mut found = Vec::new();
    for event in &history.events {
        let What::Leads { term } = event.what else { continue };
        let Some((since, before)) = last.insert(event.worker, (event.at, term)) else { continue };
        // Several servers are not read at one instant: two candidates may change places.
        let is_excused =
            history.terms.has_copies || history.may_have_forgotten(RUN, since, event.at);
        count(tally, ELECTION, is_excused);
        if term < before && !is_excused {
            let worker = event.worker;
            let text = format!("an observer in worker {worker} saw term {before}, then {term}");
            found.push(Violation::new(ELECTION, event.at, text, &[]));
        }
    }
    found
}

/// More units than the number, all of which were certainly handed out within one period.
fn rate(history: &History, name: &str, attempts: &[&Attempt], tally: &mut Tally) -> Vec<Violation> {
    let Some((units, period)) = attempts.iter().find_map(|one| match one.want {
        Want::Unit { units, period_ms } => Some((units as usize, ms(period_ms))),
        _ => None,
    }) else {
        return Vec::new();
    };
    // A unit was handed out between the question and the answer. The waiter heard of it late.
    let mut taken: Vec<(Instant, Instant, &Attempt)> = attempts
        .iter()
        .filter(|one| one.how == "try")
        .filter_map(|one| one.grant.map(|grant| (one.asked, grant.at, *one)))
        .collect();
    taken.sort_by_key(|(_, at, _)| *at);
    let too_many = taken.windows(units + 1).find(|window| {
        let first = window.iter().map(|(asked, ..)| *asked).min().unwrap_or_default();
        let last = window.last().map_or(first, |(_, at, _)| *at);
        let is_excused = history.may_have_forgotten(RUN, first, last);
        count(tally, RATE, is_excused);
        last - first + ROUNDING < period && !is_excused
    });
    too_many.map_or_else(Vec::new, |window| {
        let attempts: Vec<&Attempt> = window.iter().map(|(_, _, one)| *one).collect();
        let text = format!("`{name}`: {} units within a period of {units}", units + 1);
        vec![Violation::new(RATE, window[units].1, text, &attempts)]
    })
}

/// A run that began within the period of one that was done and told.
fn once(history: &History, name: &str, attempts: &[&Attempt], tally: &mut Tally) -> Vec<Violation> {
    let mut runs: Vec<(Instant, &Attempt, Instant)> = attempts
        .iter()
        .filter_map(|one| match (one.want, one.grant) {
            (Want::Once { period_ms }, Some(grant)) => Some((grant.at, *one, ms(period_ms))),
            _ => None,
        })
        .collect();
    runs.sort_by_key(|(at, ..)| *at);
    let mut found = Vec::new();
    let mut done: Option<(Instant, &Attempt, Instant)> = None;
    for run in runs {
        let (at, attempt, _) = run;
        if let Some((_, before, period)) = done {
            let is_excused = history.may_have_forgotten(before.worker, before.asked, at);
            count(tally, ONCE, is_excused);
            if at + ROUNDING < before.asked + period && !is_excused {
                let text = format!("`{name}` ran again within its period");
                found.push(Violation::new(ONCE, at, text, &[before, attempt]));
            }
        }
        if attempt.settled {
            done = Some(run);
        }
    }
    found
}
