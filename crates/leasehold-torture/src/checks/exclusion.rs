//! No two leases that exclude each other are valid at the same instant.
//!
//! The leases of a name are swept in the order of their grants, with those that are still valid
//! beside them. A name that must stay closed counts as held until it opens. Two leaders of an
//! election at once are named by a check of its own.

use super::{Tally, Violation, count};
use crate::event::Want;
use crate::history::{Attempt, History};

pub(super) const NAME: &str = "exclusion";
pub(super) const ELECTION: &str = "election";

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, attempts) in history.by_name() {
        let mut valid: Vec<&Attempt> =
            attempts.into_iter().filter(|one| one.valid().is_some()).collect();
        valid.sort_by_key(|one| one.valid());
        let mut beside: Vec<&Attempt> = Vec::new();
        let mut last: Option<&Attempt> = None;
        for next in valid {
            let Some((from, _)) = next.valid() else { continue };
            let check = if next.want == Want::Leader { ELECTION } else { NAME };
            if let Some(before) = last.replace(next)
                && (excludes(before.want, next.want) || is_permit(next.want))
            {
                count(tally, check, is_forgotten(history, before, next));
            }
            beside.retain(|one| one.valid().is_some_and(|(_, end)| end > from));
            if let Some(others) = too_many(&beside, next)
                && !others.iter().any(|other| is_forgotten(history, other, next))
            {
                let other = others[0];
                let (one, two) = (fence(other), fence(next));
                let text =
                    format!("`{name}` was held with fence {one} and with fence {two} at once");
                found.push(Violation::new(check, from, text, &[other, next]));
            }
            beside.push(next);
        }
    }
    found
}

fn is_permit(want: Want) -> bool {
    matches!(want, Want::Permits { .. })
}

fn fence(attempt: &Attempt) -> u64 {
    attempt.grant.map_or(0, |grant| grant.fence)
}

/// The leases that `next` cannot be beside, if there are any.
fn too_many<'a>(beside: &[&'a Attempt], next: &Attempt) -> Option<Vec<&'a Attempt>> {
    if let Some(other) = beside.iter().find(|other| excludes(other.want, next.want)) {
        return Some(vec![other]);
    }
    let Want::Permits { take, of } = next.want else { return None };
    let held = beside.iter().map(|other| match other.want {
        Want::Permits { take, .. } => take,
        _ => 0,
    });
    (held.sum::<u32>() + take > of && !beside.is_empty()).then(|| beside.to_vec())
}

/// Whether two wants exclude each other whatever else is held. A unit of a rate excludes nothing.
pub(super) fn excludes(one: Want, other: Want) -> bool {
    let alone = |want: Want| want.is_mutex() || matches!(want, Want::Once { .. });
    let is_unit = |want| matches!(want, Want::Unit { .. });
    (alone(one) || alone(other)) && !is_unit(one) && !is_unit(other)
}

/// Whether the store may have forgotten one of two leases before it granted the other. It may have
/// granted the one that its client heard of later first.
fn is_forgotten(history: &History, one: &Attempt, later: &Attempt) -> bool {
    let Some((both, _)) = later.valid() else { return false };
    [one, later].into_iter().any(|lease| {
        let granted = lease.grant.filter(|grant| grant.since < both);
        granted.is_some_and(|grant| history.may_have_forgotten(lease.worker, grant.since, both))
    })
}
