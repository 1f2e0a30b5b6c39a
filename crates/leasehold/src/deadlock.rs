//! Who can never go on: finds a knot of waits in what was read of the lines.
//!
//! Pure: no clock, no store. A wait is *stuck* if it would not hold even when everybody who is not
//! stuck had left its line: the units of the stuck claims before it leave it no room. A lease is
//! stuck if its owner keeps it during a stuck wait; a waiting claim is if it is itself a stuck
//! wait. All that are stuck is the greatest set of which this is true. So a free permit, a reader
//! who will leave, or a holder who waits for nobody loosens whatever depends on them, and what is
//! left never ends by itself.
//!
//! Lines are read one after the other, so a knot counts only in a [`Picture`] of what two readings
//! have in common, the second begun after the first had ended: a claim with the same number in
//! both was there all the time in between, and so all of them were there together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::claim::{Holder, HolderId, Mode};
use crate::engine::{ClaimView, LineView, Wait};
use crate::error::{Cycle, Kind};
use crate::name::Name;

/// Lines and notices as they were read.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    lines: BTreeMap<Name, Line>,
    /// What clients said of their waits, by holder.
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
    /// What it waits for.
    pub name: Name,
    /// Its number there.
    pub fence: u64,
}

/// Waits that depend on one another and on nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knot {
    /// A way around it that begins and ends with the wait it was looked for from.
    pub cycle: Cycle,
    /// The wait that has to give up: the one with the greatest number. Whoever looks finds the
    /// same one.
    pub victim: WaitId,
}

impl Picture {
    /// Adds a line.
    pub fn add_line(&mut self, view: &LineView) {
        let capacity = match view.kind {
            Kind::Lock => u64::from(Mode::LOCK_CAPACITY),
            Kind::Permits { of } => u64::from(of),
        };
        let member = |claim: &ClaimView, held| Member {
            holder: claim.holder.clone(),
            fence: claim.fence,
            units: u64::from(claim.mode.units()),
            held,
        };
        let held = view.held.iter().map(|claim| member(claim, true));
        let waiting = view.waiting.iter().map(|claim| member(claim, false));
        let claims = held.chain(waiting).collect();
        self.lines.insert(view.name.clone(), Line { capacity, claims });
    }

    /// Adds what the clients of a holder said of their waits.
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

    /// Who holds something in the lines that were read.
    pub fn holders(&self) -> impl Iterator<Item = HolderId> {
        let claims = self.lines.values().flat_map(|line| &line.claims);
        claims.filter(|claim| claim.held).map(|claim| claim.holder.id())
    }

    /// What those who keep a lease in the lines that were read wait for.
    pub fn awaited(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for (name, line) in &self.lines {
            for claim in line.claims.iter().filter(|claim| claim.held) {
                names.extend(self.keeping(name, claim).map(|wait| wait.name.clone()));
            }
        }
        names
    }

    /// The number of the only claim of `holder` that waits for `name`; `None` if there is none,
    /// or if they cannot be told apart.
    pub fn only_wait(&self, name: &Name, holder: HolderId) -> Option<u64> {
        let claims = self.lines.get(name)?.claims.iter();
        let mut own = claims.filter(|claim| !claim.held && claim.holder.id() == holder);
        let fence = own.next()?.fence;
        own.next().is_none().then_some(fence)
    }

    /// What this picture and a later one have in common.
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

    /// The waits during which the owner of a lease keeps it. Waits for more of the same name are
    /// none of them: one who takes permits one by one hands them out while he waits for the next.
    fn keeping<'a>(&'a self, name: &Name, lease: &Member) -> impl Iterator<Item = &'a Wait> {
        let waits = self.said.get(&lease.holder.id()).map_or(&[][..], Vec::as_slice);
        waits.iter().filter(move |wait| {
            let keeps = |fence| fence == 0 || fence == lease.fence;
            wait.name != *name
                && wait.keeps.iter().any(|kept| kept.name == *name && keeps(kept.fence))
        })
    }
}

/// Looks for a knot that the wait `from` is part of. Its victim is none of those `excused`, unless
/// all are.
pub fn find(picture: &Picture, from: &WaitId, excused: &BTreeSet<WaitId>) -> Option<Knot> {
    let stuck = Stuck::of(picture);
    if !stuck.waits.contains(from) {
        return None;
    }
    let cycle = stuck.cycle(from)?;
    let reached = stuck.reach(from);
    let keepers = stuck.all_keepers().into_iter().filter(|wait| reached.contains(wait));
    let members = keepers.filter(|wait| stuck.reach(wait).contains(from));
    // Numbers of different names rise together where the store has one counter, and then this is
    // the youngest claim. Elsewhere it is at least the same one for everybody.
    let victim =
        members.max_by_key(|wait| (!excused.contains(wait), wait.fence, wait.name.clone()))?;
    Some(Knot { cycle, victim })
}

/// The waits that never end by themselves.
struct Stuck<'a> {
    picture: &'a Picture,
    waits: BTreeSet<WaitId>,
}

/// Why a wait goes on: the stuck wait that keeps a claim before it there, and whose lease that
/// claim is, if it is one.
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

    /// Takes out every wait that those who are still in the set leave room for; whether there
    /// was one.
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
        // Whose wait it is was read from the notice; that it is his, from the line.
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

    /// The stuck waits that keep somebody's lease in place.
    fn all_keepers(&self) -> BTreeSet<WaitId> {
        let mut all = BTreeSet::new();
        for (name, line) in &self.picture.lines {
            for lease in line.claims.iter().filter(|claim| claim.held) {
                all.extend(self.keepers(name, lease));
            }
        }
        all
    }

    /// What a stuck wait depends on: leases first, then the one that waits before it, and by that
    /// on all before that one.
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

    /// All that a stuck wait depends on in the end; itself too if it is part of a knot.
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

    /// The shortest way from a wait back to itself: the leases on it.
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
