//! Finds deadlocks: a knot of waits, in lines and notices that were read before, that never ends.
//!
//! Pure: no clock, no store. A wait is *stuck* if it would not hold even after all claims that are
//! not stuck had left its line. Then the stuck claims before it leave no room. A lease is stuck if
//! its owner keeps it during a stuck wait. A waiting claim is stuck if it is a stuck wait itself.
//! The stuck claims are the greatest set that fulfils this. So a free permit, a reader that will
//! leave, or a holder that does not wait loosens every wait that depends on it. The waits that are
//! left never end by themselves.
//!
//! A client reads lines one after the other. So a knot counts only in a [`Picture`] of what two
//! readings have in common, where the second begins after the first has ended. A claim with the
//! same number in both was there all the time in between. So all of them were there together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::engine::{ClaimView, LineView, Wait};
use crate::error::{Cycle, Kind};
use crate::rule::claim::{Holder, HolderId, Mode};
use crate::rule::name::Name;

/// Lines and notices as they were read.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    lines: BTreeMap<Name, Line>,
    /// The waits that clients reported, by holder.
    said: BTreeMap<HolderId, Vec<Wait>>,
}

#[derive(Debug, Clone)]
struct Line {
    capacity: u64,
    /// In order; those that hold come first.
    claims: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    holder: Holder,
    fence: u64,
    units: u64,
    held: bool,
}

/// Names a wait: the line, and the claim's number in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitId {
    /// The name that the claim waits for.
    pub name: Name,
    /// Its number there.
    pub fence: u64,
}

/// Waits that depend on one another and on nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knot {
    /// A way around the knot that begins and ends with the wait from which the search started.
    pub cycle: Cycle,
    /// The wait that has to give up: the one with the greatest number. Every client that searches
    /// finds the same one.
    pub victim: WaitId,
}

impl Picture {
    /// Adds a line.
    pub fn add_line(&mut self, view: &LineView) {
        let capacity = match view.kind {
            Kind::Lock | Kind::Once => u64::from(Mode::LOCK_CAPACITY),
            Kind::Permits { of } | Kind::Rate { of } => u64::from(of),
        };
        let member = |claim: &ClaimView, held| Member {
            holder: claim.holder.clone(),
            fence: claim.fence.as_u64(),
            units: u64::from(claim.mode.units()),
            held,
        };
        // A closed lease ends by itself, even while its last holder waits.
        let held = view.held.iter().filter(|claim| !claim.closed);
        let held = held.map(|claim| member(claim, true));
        let waiting = view.waiting.iter().map(|claim| member(claim, false));
        let claims = held.chain(waiting).collect();
        self.lines.insert(view.name.clone(), Line { capacity, claims });
    }

    /// Adds the waits that the clients of a holder reported.
    pub fn add_waits(&mut self, holder: HolderId, waits: Vec<Wait>) {
        self.said.insert(holder, waits);
    }

    /// Whether a line was read.
    pub fn has_line(&self, name: &Name) -> bool {
        self.lines.contains_key(name)
    }

    /// Whether a holder's waits were read.
    pub fn has_waits_of(&self, holder: HolderId) -> bool {
        self.said.contains_key(&holder)
    }

    /// The holders of all leases in the lines that were read.
    pub fn holders(&self) -> impl Iterator<Item = HolderId> {
        let claims = self.lines.values().flat_map(|line| &line.claims);
        claims.filter(|claim| claim.held).map(|claim| claim.holder.id())
    }

    /// The names that holders wait for while they keep a lease in the lines that were read.
    pub fn awaited(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for (name, line) in &self.lines {
            for claim in line.claims.iter().filter(|claim| claim.held) {
                names.extend(self.keeping(name, claim).map(|wait| wait.name.clone()));
            }
        }
        names
    }

    /// The number of the only claim of `holder` that waits for `name`; `None` if there is none, or
    /// more than one.
    pub fn only_wait(&self, name: &Name, holder: HolderId) -> Option<u64> {
        let claims = self.lines.get(name)?.claims.iter();
        let mut own = claims.filter(|claim| !claim.held && claim.holder.id() == holder);
        let fence = own.next()?.fence;
        own.next().is_none().then_some(fence)
    }

    /// The claims and waits that this picture and a later one have in common.
    pub fn confirmed_by(&self, later: &Picture) -> Picture {
        let mut both = Picture::default();
        for (name, line) in &self.lines {
            let Some(other) = later.lines.get(name) else { continue };
            let seen: BTreeSet<(u64, bool)> =
                other.claims.iter().map(|claim| (claim.fence, claim.held)).collect();
            let claims = line.claims.iter();
            let claims = claims.filter(|claim| seen.contains(&(claim.fence, claim.held)));
            let line = Line { capacity: line.capacity, claims: claims.cloned().collect() };
            both.lines.insert(name.clone(), line);
        }
        for (holder, waits) in &self.said {
            let Some(again) = later.said.get(holder) else { continue };
            let mut common = Vec::new();
            for wait in waits {
                let same = |other: &&Wait| other.name == wait.name && other.fence == wait.fence;
                let Some(other) = again.iter().find(same) else { continue };
                let keeps = wait.keeps.iter().filter(|kept| other.keeps.contains(kept));
                common.push(Wait { keeps: keeps.cloned().collect(), ..wait.clone() });
            }
            both.said.insert(*holder, common);
        }
        both
    }

    /// The waits during which the owner of a lease keeps it. Waits for more of the same name do not
    /// count: a caller that takes single permits passes them on while it waits for the next.
    fn keeping<'a>(&'a self, name: &Name, lease: &Member) -> impl Iterator<Item = &'a Wait> {
        let waits = self.said.get(&lease.holder.id()).map_or(&[][..], Vec::as_slice);
        waits.iter().filter(move |wait| {
            let keeps = |fence| fence == 0 || fence == lease.fence;
            wait.name != *name
                && wait.keeps.iter().any(|kept| kept.name == *name && keeps(kept.fence))
        })
    }
}

/// Looks for a knot that the wait `from` is part of. Its victim is not in `excused`, unless all
/// waits of the knot are.
pub fn find(picture: &Picture, from: &WaitId, excused: &BTreeSet<WaitId>) -> Option<Knot> {
    let stuck = Stuck::of(picture);
    if !stuck.waits.contains(from) {
        return None;
    }
    let cycle = stuck.cycle(from)?;
    let reached = stuck.reach(from);
    let keepers = stuck.all_keepers().into_iter().filter(|wait| reached.contains(wait));
    let members = keepers.filter(|wait| stuck.reach(wait).contains(from));
    // In a store with one counter for all names, this is the youngest claim. In other stores it is
    // at least the same claim for every client.
    let victim =
        members.max_by_key(|wait| (!excused.contains(wait), wait.fence, wait.name.clone()))?;
    Some(Knot { cycle, victim })
}

/// The waits that never end by themselves.
struct Stuck<'a> {
    picture: &'a Picture,
    waits: BTreeSet<WaitId>,
}

/// Why a wait goes on: a stuck wait keeps a claim before it in place. `holder` is set if that claim
/// is a lease.
struct Reason {
    holder: Option<Holder>,
    keeper: WaitId,
}

impl<'a> Stuck<'a> {
    fn of(picture: &'a Picture) -> Self {
        let mut waits = BTreeSet::new();
        for (name, line) in &picture.lines {
            for claim in line.claims.iter().filter(|claim| !claim.held) {
                waits.insert(WaitId { name: name.clone(), fence: claim.fence });
            }
        }
        let mut stuck = Self { picture, waits };
        while stuck.loosen() {}
        stuck
    }

    /// Takes out every wait that has room beside the claims that are still stuck. Returns whether
    /// there was one.
    fn loosen(&mut self) -> bool {
        let mut loose = Vec::new();
        for (name, line) in &self.picture.lines {
            let mut units = 0;
            for claim in &line.claims {
                let stays = if claim.held {
                    self.keepers(name, claim).next().is_some()
                } else {
                    let wait = WaitId { name: name.clone(), fence: claim.fence };
                    let stays = self.waits.contains(&wait);
                    if stays && units + claim.units <= line.capacity {
                        loose.push(wait);
                        false
                    } else {
                        stays
                    }
                };
                units += if stays { claim.units } else { 0 };
            }
        }
        for wait in &loose {
            self.waits.remove(wait);
        }
        !loose.is_empty()
    }

    /// The stuck waits during which a lease is kept.
    fn keepers<'b>(
        &'b self,
        name: &Name,
        lease: &'b Member,
    ) -> impl Iterator<Item = WaitId> + use<'a, 'b> {
        let waits = self.picture.keeping(name, lease);
        // The notice names the holder of the wait; the line must confirm it.
        let mut ids = Vec::new();
        for wait in waits {
            let id = WaitId { name: wait.name.clone(), fence: wait.fence };
            if self.waits.contains(&id) && self.is_of(&id, lease.holder.id()) {
                ids.push(id);
            }
        }
        ids.into_iter()
    }

    fn is_of(&self, wait: &WaitId, holder: HolderId) -> bool {
        let line = self.picture.lines.get(&wait.name);
        let mut claims = line.into_iter().flat_map(|line| &line.claims);
        claims.any(|claim| claim.fence == wait.fence && claim.holder.id() == holder)
    }

    /// The stuck waits during which any lease is kept.
    fn all_keepers(&self) -> BTreeSet<WaitId> {
        let mut all = BTreeSet::new();
        for (name, line) in &self.picture.lines {
            for lease in line.claims.iter().filter(|claim| claim.held) {
                all.extend(self.keepers(name, lease));
            }
        }
        all
    }

    /// The claims that a stuck wait depends on: leases first, then the stuck wait next before it.
    /// Through that wait it depends on all before that one.
    fn reasons(&self, wait: &WaitId) -> Vec<Reason> {
        let Some(line) = self.picture.lines.get(&wait.name) else { return Vec::new() };
        let place = line.claims.partition_point(|claim| claim.fence < wait.fence);
        let (before, name) = (&line.claims[..place], &wait.name);
        let mut reasons = Vec::new();
        for lease in before.iter().take_while(|claim| claim.held) {
            let keepers = self.keepers(name, lease);
            reasons.extend(
                keepers.map(|keeper| Reason { holder: Some(lease.holder.clone()), keeper }),
            );
        }
        for claim in before.iter().rev().take_while(|claim| !claim.held) {
            let keeper = WaitId { name: name.clone(), fence: claim.fence };
            if self.waits.contains(&keeper) {
                reasons.push(Reason { holder: None, keeper });
                break;
            }
        }
        reasons
    }

    /// All waits that a stuck wait depends on in the end. A wait of a knot depends on itself.
    fn reach(&self, from: &WaitId) -> BTreeSet<WaitId> {
        let mut reached = BTreeSet::new();
        let mut ahead = vec![from.clone()];
        while let Some(wait) = ahead.pop() {
            for reason in self.reasons(&wait) {
                if reached.insert(reason.keeper.clone()) {
                    ahead.push(reason.keeper);
                }
            }
        }
        reached
    }

    /// The leases on the shortest way from a wait back to itself.
    fn cycle(&self, from: &WaitId) -> Option<Cycle> {
        let mut seen = BTreeSet::new();
        let mut ahead = VecDeque::from([(from.clone(), Vec::new())]);
        while let Some((wait, way)) = ahead.pop_front() {
            for Reason { holder, keeper } in self.reasons(&wait) {
                let mut longer: Vec<(Name, Holder)> = way.clone();
                longer.extend(holder.map(|holder| (wait.name.clone(), holder)));
                if keeper == *from {
                    return Some(Cycle(longer));
                }
                if seen.insert(keeper.clone()) {
                    ahead.push_back((keeper, longer));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
