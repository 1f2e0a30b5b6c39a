//! A client's waiting claims, and what the standing watch tells about those before them.
//!
//! A waiting claim knows whom it has to outlive. When the last of them goes, it holds: the watch's
//! event is the hand-off, and nobody asks. What happens while the claim's own request is on its way
//! is kept until its answer says as of when it is true.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::claim::{Mode, Token};
use crate::name::Name;

use super::lineup::{Entry, holds};
use super::link::lock;

/// Departures kept for a request that is on its way; beyond that the claim asks again.
const DEPARTURES_MAX: usize = 1_024;

/// A waiting claim.
#[derive(Debug)]
enum Wait {
    /// Its request is on its way; these left meanwhile, and when.
    Asking { left: Vec<(Vec<u8>, i64)> },
    /// It is in line behind these: their keys, when they were created, and their modes.
    Standing { own: Own, ahead: Ahead, whole: bool },
}

/// A claim that is in line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) key: Vec<u8>,
    /// The revision that created it. In another epoch that is not its fence.
    pub(super) created: i64,
    pub(super) fence: u64,
    pub(super) mode: Mode,
}

/// Keys are used again, so a claim is a key that was created then.
type Ahead = HashMap<Vec<u8>, (i64, Mode)>;

/// The claims of one client that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waits: Mutex<HashMap<Name, HashMap<Token, Wait>>>,
    /// Whether a claim waited since somebody last asked for that.
    used: AtomicBool,
}

/// What to ring: the claim, and its fence if it holds; 0 if it should ask.
pub(super) type Ring = (Token, u64);

impl Queue {
    /// A claim's request is about to go out.
    pub(super) fn asks(&self, name: &Name, token: Token) {
        let mut waits = lock(&self.waits);
        let line = waits.entry(name.clone()).or_default();
        line.insert(token, Wait::Asking { left: Vec::new() });
    }

    /// Whether a claim waits or is about to, or waited since this was last asked.
    pub(super) fn was_used(&self) -> bool {
        let waits = lock(&self.waits);
        self.used.swap(false, Ordering::AcqRel) || !waits.is_empty()
    }

    /// A claim stands behind `ahead`, as of `revision`; `whole` if that is everybody before it.
    /// Returns what has become of it meanwhile.
    pub(super) fn stands(
        &self,
        name: &Name,
        token: Token,
        own: Own,
        (ahead, whole): (&[Entry], bool),
        revision: i64,
    ) -> Option<Ring> {
        self.used.store(true, Ordering::Release);
        let mut waits = lock(&self.waits);
        let wait = waits.get_mut(name)?.get_mut(&token)?;
        let ahead = ahead.iter();
        let mut ahead: Ahead =
            ahead.map(|entry| (entry.key.clone(), (entry.created, entry.owner.mode()))).collect();
        let mut ring = None;
        match wait {
            Wait::Asking { left } => {
                if left.len() >= DEPARTURES_MAX {
                    ring = Some((token, 0));
                }
                for (key, at) in left.drain(..) {
                    if at > revision && ahead.remove(&key).is_some() && !whole {
                        ring = Some((token, 0));
                    }
                }
            }
            // Nobody comes before a claim that is in line; who was known to be gone stays so,
            // whatever an older reading says.
            Wait::Standing { own: before, ahead: known, whole: true } if *before == own => {
                ahead.retain(|key, _| known.contains_key(key));
            }
            Wait::Standing { .. } => {}
        }
        if whole && holds(modes(&ahead), own.mode) {
            ring = Some((token, own.fence));
        }
        *wait = Wait::Standing { own, ahead, whole };
        ring
    }

    /// A claim does not wait any more.
    pub(super) fn forget(&self, name: &Name, token: &Token) {
        let mut waits = lock(&self.waits);
        if let Some(line) = waits.get_mut(name) {
            line.remove(token);
            if line.is_empty() {
                waits.remove(name);
            }
        }
    }

    /// A key of a line is gone since `revision`.
    pub(super) fn departed(&self, name: &Name, key: &[u8], revision: i64) -> Vec<Ring> {
        let mut rings = Vec::new();
        let mut waits = lock(&self.waits);
        let Some(line) = waits.get_mut(name) else { return rings };
        for (token, wait) in line {
            match wait {
                Wait::Asking { left } if left.len() < DEPARTURES_MAX => {
                    left.push((key.to_vec(), revision));
                }
                Wait::Asking { .. } => {}
                // Its own key is gone: it lost its place, and must ask for another.
                Wait::Standing { own, .. } if own.key == key => {
                    if own.created < revision {
                        rings.push((*token, 0));
                    }
                }
                Wait::Standing { own, ahead, whole } => {
                    // An event may come late: one that was here before with the same key is meant.
                    if ahead.get(key).is_none_or(|(created, _)| *created > revision) {
                        continue;
                    }
                    ahead.remove(key);
                    if !*whole {
                        rings.push((*token, 0));
                    } else if holds(modes(ahead), own.mode) {
                        rings.push((*token, own.fence));
                    }
                }
            }
        }
        rings
    }
}

fn modes(ahead: &Ahead) -> impl Iterator<Item = Mode> + '_ {
    ahead.values().map(|(_, mode)| *mode)
}

#[cfg(test)]
mod tests {
    use super::super::keys::Owner;
    use super::*;

    const FENCE: u64 = 1 << 50;

    fn name() -> Name {
        Name::new("n").expect("a name")
    }

    fn entry(key: &str, created: i64) -> Entry {
        let (key, owner) = (key.as_bytes().to_vec(), Owner::Foreign);
        Entry { key, created, modified: created, lease: 1, owner, token: None }
    }

    /// A claim of another epoch than the first: its fence is far above its revision.
    fn own() -> Own {
        Own { key: b"own".to_vec(), created: 9, fence: FENCE, mode: Mode::Exclusive }
    }

    #[test]
    fn the_last_departure_before_a_claim_rings_it_with_its_fence() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        let ahead = [entry("a", 3), entry("b", 5)];
        let stood = queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert_eq!(stood, None);
        assert!(queue.departed(&name(), b"a", 10).is_empty());
        assert_eq!(queue.departed(&name(), b"b", 11), [(token, FENCE)]);
    }

    #[test]
    fn a_departure_that_overtook_the_answer_counts_if_it_came_later() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        assert!(queue.departed(&name(), b"a", 10).is_empty());
        let ahead = [entry("a", 3)];
        let stood = queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert_eq!(stood, Some((token, FENCE)));
        queue.asks(&name(), token);
        queue.departed(&name(), b"a", 8);
        let stood = queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert_eq!(stood, None, "what left before is not in the answer; this is a later claim's");
    }

    #[test]
    fn who_does_not_know_all_before_it_asks_and_who_lost_its_key_too() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        let nearest = [entry("b", 5)];
        queue.stands(&name(), token, own(), (&nearest, false), 9);
        assert!(queue.departed(&name(), b"a", 10).is_empty());
        assert_eq!(queue.departed(&name(), b"own", 11), [(token, 0)]);
        assert_eq!(queue.departed(&name(), b"b", 12), [(token, 0)]);
        queue.forget(&name(), &token);
        assert!(queue.departed(&name(), b"b", 13).is_empty());
    }

    #[test]
    fn an_event_about_whoever_had_the_key_before_is_not_taken_for_its_present_owner() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        let ahead = [entry("a", 7)];
        queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert!(queue.departed(&name(), b"a", 6).is_empty(), "it came again at 7");
        assert!(queue.departed(&name(), b"own", 8).is_empty(), "that was the claim before");
        assert_eq!(queue.departed(&name(), b"own", 10), [(token, 0)]);
        assert_eq!(queue.departed(&name(), b"a", 11), [(token, FENCE)]);
    }
}
