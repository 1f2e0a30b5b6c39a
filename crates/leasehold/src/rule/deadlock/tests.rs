//! Tests of the search for knots: known shapes, and random pictures. The latter are compared with
//! a definition that plays the picture to its end.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::Kept;
use crate::rule::claim::Note;

fn name(index: usize) -> Name {
    Name::new(format!("n{index}")).expect("a good name")
}

fn holder(index: usize) -> Holder {
    Holder::known(HolderId(index as u128 + 1), format!("h{index}")).expect("a good label")
}

/// A claim in a line: whose, and how much of it.
type Asked = (usize, Mode);

/// A line as the rule would have it. Numbers rise over all lines in the order they are made.
#[derive(Debug, Default, Clone)]
struct World {
    lines: Vec<Vec<(Asked, u64)>>,
    waits: Vec<(usize, Wait)>,
    fence: u64,
}

impl World {
    /// A line with these claims; returns their numbers.
    fn line(&mut self, claims: &[Asked]) -> Vec<u64> {
        let from = self.fence + 1;
        self.fence += claims.len() as u64;
        self.lines.push(claims.iter().copied().zip(from..).collect());
        (from..=self.fence).collect()
    }

    /// Reports that the holder's claim with this number waits in line `at`, and that the holder
    /// keeps these leases.
    fn says(&mut self, who: usize, at: usize, fence: u64, keeps: &[(usize, u64)]) {
        let kept = |(line, fence): &(usize, u64)| Kept { name: name(*line), fence: *fence };
        let keeps = keeps.iter().map(kept).collect();
        self.waits.push((who, Wait { name: name(at), fence, keeps }));
    }

    fn capacity(&self, line: usize) -> u64 {
        self.lines[line].first().map_or(0, |((_, mode), _)| u64::from(mode.capacity()))
    }

    fn holding(&self, line: usize) -> usize {
        let mut units = 0;
        let fits = |((_, mode), _): &&(Asked, u64)| {
            units += u64::from(mode.units());
            units <= self.capacity(line)
        };
        self.lines[line].iter().take_while(fits).count()
    }

    fn picture(&self) -> Picture {
        let mut picture = Picture::default();
        for (index, claims) in self.lines.iter().enumerate() {
            let Some(((_, mode), _)) = claims.first() else { continue };
            let kind = Kind::from(*mode);
            let view = |((who, mode), fence): &(Asked, u64)| ClaimView {
                holder: holder(*who),
                fence: (*fence).into(),
                mode: *mode,
                age: Duration::ZERO,
                remaining: Duration::ZERO,
                note: Note::default(),
                closed: false,
            };
            let mut held: Vec<ClaimView> = claims.iter().map(view).collect();
            let waiting = held.split_off(self.holding(index));
            picture.add_line(&LineView { name: name(index), kind, held, waiting });
        }
        for who in 0..8 {
            let waits = self.waits.iter().filter(|(other, _)| *other == who);
            picture.add_waits(holder(who).id(), waits.map(|(_, wait)| wait.clone()).collect());
        }
        picture
    }

    fn find(&self, line: usize, fence: u64) -> Option<Knot> {
        find(&self.picture(), &WaitId { name: name(line), fence }, &BTreeSet::new())
    }
}

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Each holder holds one line and waits for the next.
fn ring(size: usize) -> World {
    let mut world = World::default();
    let fences: Vec<Vec<u64>> =
        (0..size).map(|at| world.line(&[(at, X), ((at + size - 1) % size, X)])).collect();
    for (who, own) in fences.iter().enumerate() {
        let next = (who + 1) % size;
        world.says(who, next, fences[next][1], &[(who, own[0])]);
    }
    world
}

#[test]
fn rings_of_two_to_five_are_found_by_all_with_one_victim_and_every_name_and_holder() {
    for size in 2..=5 {
        let world = ring(size);
        for who in 0..size {
            let next = (who + 1) % size;
            let knot = world.find(next, world.lines[next][1].1).expect("a knot");
            assert_eq!(knot.victim.fence, world.fence, "the last that came");
            let expected = (0..size).map(|step| (who + 1 + step) % size);
            let expected: Vec<_> = expected.map(|at| (name(at), holder(at))).collect();
            assert_eq!(knot.cycle.0, expected);
        }
    }
}

#[test]
fn waits_that_converge_on_somebody_who_waits_for_nobody_are_no_knot() {
    let mut world = World::default();
    let hub = world.line(&[(0, X), (1, X), (2, X), (3, X)]);
    for (who, fence) in hub.iter().enumerate().skip(1) {
        let own = world.line(&[(who, X)]);
        world.says(who, 0, *fence, &[(who, own[0])]);
    }
    assert!(hub[1..].iter().all(|fence| world.find(0, *fence).is_none()));
}

#[test]
fn waiter_for_a_knot_without_being_part_of_it_is_no_victim() {
    let mut world = ring(2);
    let more = world.line(&[(5, X)]);
    world.fence += 1;
    let fence = world.fence;
    world.lines[0].push(((5, X), fence));
    world.says(5, 0, fence, &[(2, more[0])]);
    assert!(world.find(0, fence).is_none(), "no claim waits for it");
    assert_eq!(world.find(0, world.lines[0][1].1).expect("a knot").victim.name, name(1));
}

#[test]
fn a_notice_without_its_claim_in_the_line_means_nothing() {
    let mut world = ring(3);
    world.lines[1].pop();
    assert!(world.find(2, world.lines[2][1].1).is_none());
}

#[test]
fn a_lease_that_is_not_kept_during_the_wait_opens_the_ring() {
    let mut world = ring(3);
    world.waits[1].1.keeps.clear();
    assert!((0..3).all(|at| world.find(at, world.lines[at][1].1).is_none()));
    world.waits[1].1.keeps = vec![Kept { name: name(1), fence: 0 }];
    assert!(world.find(0, world.lines[0][1].1).is_some(), "0 is every lease there");
}

#[test]
fn with_a_permit_that_somebody_free_holds_a_ring_is_no_knot() {
    let mut world = World::default();
    let pool = world.line(&[(0, permits(1, 2)), (2, permits(1, 2)), (1, permits(1, 2))]);
    let lock = world.line(&[(1, X), (0, X)]);
    world.says(0, 1, lock[1], &[(0, pool[0])]);
    world.says(1, 0, pool[2], &[(1, lock[0])]);
    assert!(world.find(1, lock[1]).is_none(), "the third will give its permit back");
    let mine = world.line(&[(2, X)]);
    let wait = world.line(&[(0, X), (2, X)]);
    world.says(2, 3, wait[1], &[(0, pool[1]), (2, mine[0])]);
    world.waits[0].1.keeps.push(Kept { name: name(3), fence: wait[0] });
    assert!(world.find(1, lock[1]).is_some(), "now all permits are in the knot");
}

#[test]
fn one_who_waits_for_more_of_the_same_name_keeps_nothing_of_it() {
    let mut world = World::default();
    let pool = world.line(&[
        (0, permits(1, 2)),
        (1, permits(1, 2)),
        (0, permits(1, 2)),
        (1, permits(1, 2)),
    ]);
    world.says(0, 0, pool[2], &[(0, pool[0])]);
    world.says(1, 0, pool[3], &[(0, pool[1])]);
    assert!(world.find(0, pool[2]).is_none() && world.find(0, pool[3]).is_none());
}

#[test]
fn a_reader_behind_a_writer_who_waits_is_part_of_the_knot() {
    let mut world = World::default();
    let book = world.line(&[(0, S), (1, X), (2, S)]);
    let lock = world.line(&[(2, X), (0, X)]);
    world.says(0, 1, lock[1], &[(0, book[0])]);
    world.says(2, 0, book[2], &[(1, lock[0])]);
    let knot = world.find(1, lock[1]).expect("the writer never gets in");
    assert_eq!(knot.victim.fence, lock[1], "not the writer, who keeps nothing");
    assert_eq!(knot.cycle.0, [(name(1), holder(2)), (name(0), holder(0))], "only leases are held");
    world.lines[0].remove(1);
    assert!(world.find(1, lock[1]).is_none(), "readers do not wait for readers");
}

#[test]
fn somebody_else_is_the_victim_when_one_is_excused() {
    let world = ring(3);
    let from = WaitId { name: name(0), fence: world.lines[0][1].1 };
    let mut excused = BTreeSet::new();
    let mut victims = Vec::new();
    for _ in 0..3 {
        let knot = find(&world.picture(), &from, &excused).expect("a knot");
        victims.push(knot.victim.name.clone());
        excused.insert(knot.victim);
    }
    assert_eq!(victims, [name(2), name(1), name(0)]);
}

#[test]
fn only_what_both_readings_saw_counts() {
    let (first, mut second) = (ring(3), ring(3));
    let from = WaitId { name: name(0), fence: first.lines[0][1].1 };
    let same = first.picture().confirmed_by(&second.picture());
    let find = |picture: &Picture, from| find(picture, from, &BTreeSet::new());
    assert!(find(&same, &from).is_some());
    let mut other = second.clone();
    other.lines[2][0].1 += 100;
    assert!(find(&first.picture().confirmed_by(&other.picture()), &from).is_none(), "a new lease");
    second.waits[1].1.keeps.clear();
    assert!(find(&first.picture().confirmed_by(&second.picture()), &from).is_none(), "given away");
    let nothing = first.picture().confirmed_by(&Picture::default());
    assert!(find(&nothing, &from).is_none());
}

/// Plays on until nothing happens any more, and returns the waits that are left. A holder gives a
/// lease back unless a wait keeps it, and a claim that fits holds. Only leases that were held at
/// first can be kept.
fn played_out(mut world: World) -> BTreeSet<WaitId> {
    let first = world.clone();
    let held_at_first = |line: usize, fence: u64| {
        let held = &first.lines[line][..first.holding(line)];
        held.iter().any(|(_, other)| *other == fence)
    };
    let id = |line: usize, fence| WaitId { name: name(line), fence };
    let mut waiting: BTreeSet<WaitId> = BTreeSet::new();
    for line in 0..world.lines.len() {
        let claims = world.lines[line].iter().skip(world.holding(line));
        waiting.extend(claims.map(|(_, fence)| id(line, *fence)));
    }
    loop {
        for line in 0..world.lines.len() {
            for (_, fence) in &world.lines[line][..world.holding(line)] {
                waiting.remove(&id(line, *fence));
            }
        }
        let mut gives_back = None;
        for (line, claims) in world.lines.iter().enumerate() {
            for (place, ((who, _), fence)) in claims.iter().enumerate() {
                let kept = world.waits.iter().any(|(other, wait)| {
                    let wait_id = WaitId { name: wait.name.clone(), fence: wait.fence };
                    let waits = world.lines.iter().enumerate().any(|(at, claims)| {
                        let own = |((owner, _), number): &(Asked, u64)| {
                            owner == other && *number == wait.fence
                        };
                        name(at) == wait.name && claims.iter().any(own)
                    });
                    let keeps = |kept: &Kept| {
                        kept.name == name(line) && (kept.fence == 0 || kept.fence == *fence)
                    };
                    other == who
                        && held_at_first(line, *fence)
                        && waits
                        && waiting.contains(&wait_id)
                        && wait.name != name(line)
                        && wait.keeps.iter().any(keeps)
                });
                if !waiting.contains(&id(line, *fence)) && !kept {
                    gives_back = Some((line, place));
                }
            }
        }
        let Some((line, place)) = gives_back else { return waiting };
        world.lines[line].remove(place);
    }
}

fn worlds() -> impl Strategy<Value = World> {
    let kind = prop_oneof![Just(None), (1_u32..4).prop_map(Some)];
    let claims = prop::collection::vec((0_usize..5, 1_u32..4), 0..5);
    let lines = prop::collection::vec((kind, claims), 1..5);
    let said = prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..4)), 0..9);
    (lines, said).prop_map(|(lines, said)| {
        let mut world = World::default();
        for (kind, claims) in &lines {
            let mode = |size: u32| match kind {
                Some(of) => permits(size.min(*of), *of),
                None if size == 1 => S,
                None => X,
            };
            let claims: Vec<Asked> = claims.iter().map(|(who, size)| (*who, mode(*size))).collect();
            world.line(&claims);
        }
        // Notices mostly about claims that are there, so that there is something to find.
        let all: Vec<(usize, usize, u64)> = world
            .lines
            .iter()
            .enumerate()
            .flat_map(|(line, claims)| claims.iter().map(move |((who, _), f)| (line, *who, *f)))
            .collect();
        for (wait, keeps) in said.iter().filter(|_| !all.is_empty()) {
            let (at, who, fence) = all[usize::from(*wait) % all.len()];
            let own: Vec<_> = all.iter().filter(|(_, owner, _)| *owner == who).collect();
            let kept = |pick: &u8| {
                let (line, _, fence) = own[usize::from(*pick / 2) % own.len()];
                (*line, if pick.is_multiple_of(8) { 0 } else { *fence })
            };
            let keeps: Vec<(usize, u64)> = keeps.iter().map(kept).collect();
            world.says(who, at, fence, &keeps);
        }
        world
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn stuck_waits_are_those_left_when_the_picture_is_played_to_its_end(world in worlds()) {
        prop_assert_eq!(Stuck::of(&world.picture()).waits, played_out(world));
    }

    #[test]
    fn all_members_of_a_knot_choose_the_same_victim_among_them(world in worlds()) {
        let picture = world.picture();
        let stuck = Stuck::of(&picture);
        for from in &stuck.waits {
            let own = stuck.reach(from);
            let knot = find(&picture, from, &BTreeSet::new());
            prop_assert_eq!(knot.is_some(), own.contains(from));
            let Some(knot) = knot else { continue };
            prop_assert!(own.contains(&knot.victim), "a victim that is no member");
            prop_assert!(stuck.reach(&knot.victim).contains(from));
            for other in own.iter().filter(|other| stuck.reach(other).contains(from)) {
                let seen = find(&picture, other, &BTreeSet::new()).map(|knot| knot.victim);
                prop_assert_eq!(seen.as_ref(), Some(&knot.victim));
            }
        }
    }
}
