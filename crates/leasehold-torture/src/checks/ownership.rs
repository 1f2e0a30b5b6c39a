//! Only the owner renews and releases. Nobody owns a lease that was given back or lost, and an
//! earlier owner does not give back the lease of the next. No owner hears that its lease was gone
//! while it was safe.

use super::{Tally, Violation, count};
use crate::event::{Instant, What};
use crate::history::{Attempt, History};

pub(super) const NAME: &str = "ownership";
pub(super) const RELEASE: &str = "release";

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.attempts.iter().filter_map(|one| stale(history, one, tally)).collect();
    found.extend(history.attempts.iter().filter_map(|one| denied(history, one, tally)));
    for (name, attempts) in history.by_name() {
        found.extend(late_releases(history, name, &attempts));
    }
    found
}

/// A handle, or a lost lease, that still worked.
fn stale(history: &History, attempt: &Attempt, tally: &mut Tally) -> Option<Violation> {
    let events = attempt.events.iter().map(|index| &history.events[*index]);
    let mut used = events.filter_map(|event| match &event.what {
        What::Stale { call, worked } => Some((event.at, call, *worked)),
        _ => None,
    });
    let (at, call, worked) = used.next()?;
    // A server that did not hear of the first release says of the second one that it released.
    let is_excused = history.terms.has_copies
        && call == "release"
        && history.is_disturbed(attempt.worker, attempt.asked, at);
    count(tally, NAME, is_excused);
    if !worked || is_excused {
        return None;
    }
    let name = &attempt.name;
    let text = format!("`{name}`: `{call}` worked on a lease that was given back or lost");
    Some(Violation::new(NAME, at, text, &[attempt]))
}

/// A release that was answered "released" although the next exclusive lease had been granted
/// before it was asked for.
fn late_releases(history: &History, name: &str, attempts: &[&Attempt]) -> Vec<Violation> {
    let mut grants: Vec<(Instant, u64, &Attempt)> = attempts
        .iter()
        .filter(|one| one.want.is_mutex())
        .filter_map(|one| one.grant.map(|grant| (grant.at, grant.fence, *one)))
        .collect();
    grants.sort_by_key(|(at, ..)| *at);
    let mut found = Vec::new();
    for attempt in attempts.iter().filter(|one| one.want.is_mutex()) {
        let (Some(grant), Some(parting)) = (attempt.grant, &attempt.parting) else { continue };
        if !matches!(&parting.answer, Some((_, answer)) if answer == "released") {
            continue;
        }
        let asked = parting.asked;
        let first = grants.partition_point(|(at, ..)| *at <= grant.at);
        let mut between = grants[first..].iter().take_while(|(at, ..)| *at < asked);
        let later = between.find(|(at, fence, _)| {
            *fence > grant.fence && !history.may_have_forgotten(attempt.worker, grant.since, *at)
        });
        if let Some((_, fence, other)) = later {
            let own = grant.fence;
            let text = format!(
                "`{name}`: fence {own} was released by its owner after fence {fence} was granted"
            );
            found.push(Violation::new(NAME, asked, text, &[attempt, other]));
        }
    }
    found
}

/// A release that was answered "expired" or "taken" before the safe end. Nobody evicts here, so the
/// lease was there when its owner gave it back.
fn denied(history: &History, attempt: &Attempt, tally: &mut Tally) -> Option<Violation> {
    let (grant, parting) = (attempt.grant?, attempt.parting.as_ref()?);
    let (at, answer) = parting.answer.as_ref()?;
    if !history.terms.lasts_to_safe_end {
        return None;
    }
    let is_gone = matches!(answer.as_str(), "expired" | "taken");
    let was_safe = *at < parting.safe_until;
    let is_excused = !was_safe || history.may_have_forgotten(attempt.worker, grant.since, *at);
    if answer != "dropped" {
        count(tally, RELEASE, is_excused);
    }
    if !is_gone || is_excused {
        return None;
    }
    let (name, fence) = (&attempt.name, grant.fence);
    let text = format!("`{name}`: the release of fence {fence} was answered `{answer}` too early");
    Some(Violation::new(RELEASE, *at, text, &[attempt]))
}
