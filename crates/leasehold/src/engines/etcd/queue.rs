//! A client's waiting claims, and what the standing watch tells about those before them.
//!
//! A waiting claim knows whom it has to outlive. When the last of them goes, it holds: the watch's
//! event is the hand-off, and nobody asks. Departures during the claim's own request are kept until
//! its answer says as of which revision it is true.
//!
//! A claim whose own key is gone has lost its place. So has, as far as this client can know, every
//! claim whose departure a broken watch may have missed. Neither is granted by later departures: it
//! asks, and gets another place. Only the answer to the claim's own request says at which place it
//! stands: what a heartbeat reads is about the place that was known when it went out.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::Wake;
use crate::rule::claim::{Mode, Token};
use crate::rule::name::Name;
use crate::seeded::{Seeded, seeded};

use super::lineup::{Entry, holds};
use super::link::lock;

/// Departures kept for a request that is on its way. Beyond that some are missed, and the claim
/// asks again.
const DEPARTURES_MAX: usize = 1_024;

/// A waiting claim.
#[derive(Debug)]
enum Wait {
    /// Its request is in flight; these keys left meanwhile, and when.
    Asking { left: Vec<(Vec<u8>, i64)>, missed: bool },
    /// It is in line behind these: their keys, when they were created, and their modes.
    Standing { own: Own, ahead: Ahead, whole: bool },
    /// Its key is gone, or the watch may have missed that.
    Gone,
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

/// A claim to ring, and the news for its waiter.
pub(super) type Ring = (Token, Wake);

impl Queue {
    /// A claim's request is about to go out.
    pub(super) fn asks(&self, name: &Name, token: Token) {
        let mut waits = lock(&self.waits);
        let line = waits.entry(name.clone()).or_default();
        line.insert(token, Wait::Asking { left: Vec::new(), missed: false });
    }

    /// Whether a claim waits or is about to, or waited since this was last asked.
    pub(super) fn was_used(&self) -> bool {
        let waits = lock(&self.waits);
        self.used.swap(false, Ordering::AcqRel) || !waits.is_empty()
    }

    /// The answer to a claim's request: it stands behind `ahead`, as of `revision`; `whole` if that
    /// is everybody before it. Returns what has become of it meanwhile.
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
        let ask = Some((token, Wake::Ask));
        let left = match wait {
            // A reading that is older than the claim's place cannot know who is before it.
            _ if revision < own.created => return ask,
            Wait::Asking { missed: false, left } => std::mem::take(left),
            // Some departures are not known; its own may be among them.
            Wait::Asking { .. } => {
                *wait = Wait::Gone;
                return ask;
            }
            Wait::Standing { .. } | Wait::Gone => return ask,
        };
        let mut ahead = behind(ahead);
        let mut ring = None;
        for (key, at) in left {
            if key == own.key && at > own.created {
                *wait = Wait::Gone;
                return ask;
            }
            if at > revision && ahead.remove(&key).is_some() && !whole {
                ring = ask;
            }
        }
        if whole && holds(modes(&ahead), own.mode) {
            ring = Some((token, Wake::holds_at(own.fence)));
        }
        *wait = Wait::Standing { own, ahead, whole };
        ring
    }

    /// A heartbeat read, as of `revision`, that a claim stands behind `ahead`. That repairs what
    /// the watch missed, if the claim is known to stand at that very place. While a request of the
    /// claim is in flight it changes nothing: the answer says more.
    pub(super) fn reads(
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
        let ask = Some((token, Wake::Ask));
        let mut ahead = behind(ahead);
        match wait {
            Wait::Asking { .. } => return None,
            // Nobody comes before a claim that is in line. A key that was known to be gone stays
            // gone, whatever an older reading says.
            Wait::Standing { own: present, ahead: known, whole: is_whole }
                if *present == own && revision >= own.created || seeded(Seeded::LineFromBefore) =>
            {
                if *is_whole {
                    ahead.retain(|key, _| known.contains_key(key));
                }
            }
            Wait::Standing { .. } | Wait::Gone => return ask,
        }
        let holds = whole && holds(modes(&ahead), own.mode);
        let ring = holds.then(|| (token, Wake::holds_at(own.fence)));
        *wait = Wait::Standing { own, ahead, whole };
        ring
    }

    /// A claim was looked for, and its key that was created then is not there.
    pub(super) fn lost(&self, name: &Name, token: &Token, created: i64) {
        let mut waits = lock(&self.waits);
        let wait = waits.get_mut(name).and_then(|line| line.get_mut(token));
        if let Some(wait @ Wait::Standing { .. }) = wait
            && let Wait::Standing { own, .. } = &*wait
            && own.created <= created
        {
            *wait = Wait::Gone;
        }
    }

    /// The watch broke, and may have missed departures: every claim that waits must ask.
    pub(super) fn missed(&self) {
        for wait in lock(&self.waits).values_mut().flat_map(HashMap::values_mut) {
            match wait {
                Wait::Asking { missed, .. } => *missed = true,
                Wait::Standing { .. } | Wait::Gone => *wait = Wait::Gone,
            }
        }
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
                Wait::Asking { left, .. } if left.len() < DEPARTURES_MAX => {
                    left.push((key.to_vec(), revision));
                }
                Wait::Asking { missed, .. } => *missed = true,
                Wait::Gone => {}
                // Its own key is gone: it lost its place, and must ask for another.
                Wait::Standing { own, .. } if own.key == key => {
                    if own.created < revision {
                        if !seeded(Seeded::BellWithoutPlace) {
                            *wait = Wait::Gone;
                        }
                        rings.push((*token, Wake::Ask));
                    }
                }
                Wait::Standing { own, ahead, whole } => {
                    // An event may come late: one that was here before with the same key is meant.
                    if ahead.get(key).is_none_or(|(created, _)| *created > revision) {
                        continue;
                    }
                    ahead.remove(key);
                    if !*whole {
                        rings.push((*token, Wake::Ask));
                    } else if holds(modes(ahead), own.mode) {
                        rings.push((*token, Wake::holds_at(own.fence)));
                    }
                }
            }
        }
        rings
    }
}

fn behind(ahead: &[Entry]) -> Ahead {
    let one = |entry: &Entry| (entry.key.clone(), (entry.created, entry.owner.mode()));
    ahead.iter().map(one).collect()
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
        assert_eq!(queue.departed(&name(), b"b", 11), [(token, Wake::holds_at(FENCE))]);
    }

    #[test]
    fn a_departure_that_overtook_the_answer_counts_if_it_came_later() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        assert!(queue.departed(&name(), b"a", 10).is_empty());
        let ahead = [entry("a", 3)];
        let stood = queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert_eq!(stood, Some((token, Wake::holds_at(FENCE))));
        queue.asks(&name(), token);
        queue.departed(&name(), b"a", 8);
        let stood = queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert_eq!(stood, None, "what left before is not in the answer; this is a later claim's");
    }

    #[test]
    fn claim_that_does_not_know_all_before_it_asks() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        let nearest = [entry("b", 5)];
        queue.stands(&name(), token, own(), (&nearest, false), 9);
        assert!(queue.departed(&name(), b"a", 10).is_empty());
        assert_eq!(queue.departed(&name(), b"b", 12), [(token, Wake::Ask)]);
        queue.forget(&name(), &token);
        assert!(queue.departed(&name(), b"b", 13).is_empty());
    }

    #[test]
    fn event_about_an_earlier_claim_with_the_same_key_is_not_taken_for_the_present_one() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        let ahead = [entry("a", 7)];
        queue.stands(&name(), token, own(), (&ahead, true), 9);
        assert!(queue.departed(&name(), b"a", 6).is_empty(), "it came again at 7");
        assert!(queue.departed(&name(), b"own", 8).is_empty(), "that was the claim before");
        assert_eq!(queue.departed(&name(), b"own", 10), [(token, Wake::Ask)]);
    }

    #[test]
    fn claim_that_lost_its_place_is_not_granted_by_a_later_departure() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        queue.stands(&name(), token, own(), (&[entry("a", 3)], true), 9);
        assert_eq!(queue.departed(&name(), b"own", 10), [(token, Wake::Ask)]);
        assert_eq!(queue.departed(&name(), b"a", 11), [], "its place is gone");
        let late = queue.reads(&name(), token, own(), (&[], true), 9);
        assert_eq!(late, Some((token, Wake::Ask)), "a reading of the place that is gone");
    }

    #[test]
    fn claim_whose_own_key_went_during_its_request_asks_again() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        queue.departed(&name(), b"own", 10);
        let stood = queue.stands(&name(), token, own(), (&[entry("a", 3)], true), 9);
        assert_eq!(stood, Some((token, Wake::Ask)));
        assert_eq!(queue.departed(&name(), b"a", 11), [], "its place is gone");
    }

    #[test]
    fn reading_from_before_the_claim_came_back_grants_nothing() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        queue.stands(&name(), token, own(), (&[entry("a", 3)], true), 9);
        let again = Own { created: 12, fence: FENCE + 1, ..own() };
        queue.asks(&name(), token);
        let stood = queue.stands(&name(), token, again.clone(), (&[], true), 11);
        assert_eq!(stood, Some((token, Wake::Ask)), "somebody may have joined at 11");
        queue.stands(&name(), token, again.clone(), (&[entry("b", 10)], true), 12);
        let read = queue.reads(&name(), token, again, (&[], true), 11);
        assert_eq!(read, Some((token, Wake::Ask)), "somebody may have joined at 11");
        let old = queue.reads(&name(), token, own(), (&[], true), 13);
        assert_eq!(old, Some((token, Wake::Ask)), "that is the place before");
        let grant = Wake::holds_at(FENCE + 1);
        assert_eq!(queue.departed(&name(), b"b", 14), [(token, grant)]);
    }

    #[test]
    fn heartbeat_about_the_place_before_keeps_the_departures_for_the_answer() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        queue.stands(&name(), token, own(), (&[entry("a", 3)], true), 9);
        queue.asks(&name(), token);
        let next = Own { key: b"next".to_vec(), created: 12, fence: FENCE + 1, ..own() };
        queue.departed(&name(), b"next", 13);
        assert_eq!(queue.reads(&name(), token, own(), (&[entry("a", 3)], true), 9), None);
        let stood = queue.stands(&name(), token, next, (&[entry("b", 10)], true), 12);
        assert_eq!(stood, Some((token, Wake::Ask)), "its key is gone");
        assert_eq!(queue.departed(&name(), b"b", 14), [], "its place is gone");
    }

    #[test]
    fn claim_that_was_not_told_of_all_departures_is_granted_by_none() {
        let (queue, token) = (Queue::default(), Token::random());
        queue.asks(&name(), token);
        for revision in 0..=DEPARTURES_MAX as i64 {
            queue.departed(&name(), b"other", revision);
        }
        queue.departed(&name(), b"own", 2_000);
        let stood = queue.stands(&name(), token, own(), (&[entry("a", 3)], true), 9);
        assert_eq!(stood, Some((token, Wake::Ask)));
        assert_eq!(queue.departed(&name(), b"a", 2_001), [], "its own key may be gone");
    }

    #[test]
    fn claim_is_not_granted_by_an_event_after_the_watch_missed_some() {
        let (queue, standing, asking) = (Queue::default(), Token::random(), Token::random());
        queue.asks(&name(), standing);
        queue.stands(&name(), standing, own(), (&[entry("a", 3)], true), 9);
        queue.asks(&name(), asking);
        queue.missed();
        assert_eq!(queue.departed(&name(), b"a", 11), []);
        let stood = queue.stands(&name(), asking, own(), (&[], true), 9);
        assert_eq!(stood, Some((asking, Wake::Ask)));
        queue.asks(&name(), standing);
        let stood = queue.stands(&name(), standing, own(), (&[], true), 12);
        assert_eq!(stood, Some((standing, Wake::holds_at(FENCE))), "it was read after the gap");
    }
}
