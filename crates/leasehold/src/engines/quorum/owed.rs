//! Claims that still have to be taken out of the line of a node that did not answer.
//!
//! Only what to keep, and when to say it again: [`leaving`](super::leaving) says it. What is owed
//! is bounded in number and in time. Saying it late, twice or never harms nobody but whoever waits
//! at that node: an attempt's token is never used again, so no later claim can be meant.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::clock::Moment;
use crate::rule::claim::{ClaimKey, Released, Token};

/// The most claims that are owed to one node: what a busy client leaves behind in some seconds, in
/// less than a megabyte. Beyond it the oldest is left to its ttl.
const OWED_MAX: usize = 4_096;

/// How long a claim may lie on the way to a node that is silent: a kernel goes on sending what
/// was not acknowledged for a quarter of an hour.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(900);

/// How long after a node was heard again something from before may still arrive there: a kernel
/// pauses for up to two minutes before it sends again.
const LATE_MAX: Duration = Duration::from_secs(120);

/// The first pause before something is said again, which doubles.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause while the node is silent. An exchange with it wakes earlier.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is known about a claim that leaves a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// How long the node keeps the claim without another word.
    pub(super) ttl: Duration,
    /// How many requests to let it in were not answered, and so may be carried out later.
    pub(super) adrift: u32,
}

#[derive(Debug)]
struct Entry {
    key: ClaimKey,
    terms: Terms,
    /// When it is the ttl's business.
    until: Moment,
    /// Once the node was heard: when to say it again, and the pause after that.
    again: Option<(Moment, Duration)>,
}

/// What is owed to one node.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// In order of their coming.
    entries: BTreeMap<u64, Entry>,
    numbers: HashMap<Token, u64>,
    next: u64,
    /// While the node does not answer: when to try again, and the pause after that.
    silence: Option<(Moment, Duration)>,
}

impl Owed {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The node did not answer when it was told that these leave.
    pub(super) fn unanswered(&mut self, key: &ClaimKey, terms: Terms, now: Moment) {
        let on_its_way = if terms.adrift > 0 { ON_ITS_WAY_MAX } else { Duration::ZERO };
        self.keep(key, terms, now + on_its_way + terms.ttl, None);
        self.silence.get_or_insert((now + PAUSE_MIN, 2 * PAUSE_MIN));
    }

    /// The node answered that one leaves, or is not there.
    pub(super) fn answered(
        &mut self,
        key: &ClaimKey,
        terms: Terms,
        released: &Released,
        now: Moment,
    ) {
        let arrived = terms.adrift == 1 && *released == Released::Released;
        if terms.adrift == 0 || arrived {
            self.settle(&key.token);
            return;
        }
        let until = now + terms.ttl.min(LATE_MAX);
        self.keep(key, terms, until, Some((now + PAUSE_MIN, 2 * PAUSE_MIN)));
    }

    fn keep(
        &mut self,
        key: &ClaimKey,
        terms: Terms,
        until: Moment,
        again: Option<(Moment, Duration)>,
    ) {
        let known = self.numbers.get(&key.token).and_then(|number| self.entries.get_mut(number));
        if let Some(entry) = known {
            entry.terms.adrift = entry.terms.adrift.max(terms.adrift);
            if entry.again.is_none() {
                (entry.until, entry.again) = (until, again);
            }
            return;
        }
        if self.entries.len() >= OWED_MAX
            && let Some((_, oldest)) = self.entries.pop_first()
        {
            self.numbers.remove(&oldest.key.token);
        }
        self.numbers.insert(key.token, self.next);
        self.entries.insert(self.next, Entry { key: key.clone(), terms, until, again });
        self.next += 1;
    }

    /// A claim is not there, and nothing of it is on its way.
    pub(super) fn settle(&mut self, token: &Token) {
        if let Some(number) = self.numbers.remove(token) {
            self.entries.remove(&number);
        }
    }

    /// When there is something to say; `None` if nothing is owed any more.
    pub(super) fn next_turn(&mut self, now: Moment) -> Option<Moment> {
        let numbers = &mut self.numbers;
        self.entries.retain(|_, entry| {
            let lasts = entry.until > now;
            if !lasts {
                numbers.remove(&entry.key.token);
            }
            lasts
        });
        let again = |entry: &Entry| entry.again.map_or(now, |(at, _)| at);
        let turn = self.entries.values().map(again).min()?;
        Some(self.silence.map_or(turn, |(at, _)| at.max(turn)))
    }

    /// What to say now, in order, from number `from` on; with the numbers.
    pub(super) fn batch(&self, now: Moment, from: u64, limit: usize) -> Vec<(u64, ClaimKey)> {
        let due = |entry: &Entry| entry.again.is_none_or(|(at, _)| at <= now);
        let due = self.entries.range(from..).filter(|(_, entry)| due(entry));
        due.map(|(number, entry)| (*number, entry.key.clone())).take(limit).collect()
    }

    /// The node answered what it was told again.
    pub(super) fn told(&mut self, token: &Token, released: &Released, now: Moment) {
        self.silence = None;
        let Some(number) = self.numbers.get(token).copied() else { return };
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Terms { ttl, adrift } = entry.terms;
        if adrift == 0 || (adrift == 1 && *released == Released::Released) {
            self.settle(token);
            return;
        }
        let pause = match entry.again {
            Some((_, pause)) => pause,
            None => {
                entry.until = entry.until.min(now + ttl.min(LATE_MAX));
                PAUSE_MIN
            }
        };
        entry.again = Some((now + pause, 2 * pause));
    }

    /// The node did not answer again.
    pub(super) fn silent(&mut self, now: Moment) {
        let pause = self.silence.map_or(PAUSE_MIN, |(_, pause)| pause);
        self.silence = Some((now + pause, (2 * pause).min(PAUSE_MAX)));
    }

    /// The node answered something else: there is no need to wait. Whether that is news.
    pub(super) fn heard(&mut self, now: Moment) -> bool {
        match &mut self.silence {
            Some((at, _)) if *at > now => {
                *at = now;
                true
            }
            _ => false,
        }
    }

    /// Nobody is there any more who would say it.
    pub(super) fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::name::Name;

    const NOW: Moment = Moment::from_nanos(1_000_000_000);
    const TTL: Duration = Duration::from_secs(30);

    fn key() -> ClaimKey {
        ClaimKey { name: Name::new("report").expect("a name"), token: Token::random() }
    }

    fn terms(adrift: u32) -> Terms {
        Terms { ttl: TTL, adrift }
    }

    fn tokens(owed: &Owed, now: Moment) -> Vec<Token> {
        owed.batch(now, 0, usize::MAX).into_iter().map(|(_, key)| key.token).collect()
    }

    #[test]
    fn a_silent_node_is_tried_ever_more_rarely_and_at_once_when_it_is_heard() {
        let (mut owed, key) = (Owed::default(), key());
        owed.unanswered(&key, Terms { ttl: 10 * TTL, adrift: 0 }, NOW);
        let (mut now, mut pauses) = (NOW, Vec::new());
        for _ in 0..7 {
            let at = owed.next_turn(now).expect("it is owed");
            pauses.push(at.since(now).as_millis());
            now = at;
            owed.silent(now);
        }
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        assert!(owed.heard(now));
        assert_eq!(owed.next_turn(now), Some(now));
        assert!(!owed.heard(now), "once is enough");
        owed.told(&key.token, &Released::AlreadyExpired, now);
        assert_eq!(owed.next_turn(now), None, "what was in line is out of it, one way or another");
    }

    #[test]
    fn what_is_owed_ends_when_the_claim_must_have_ended() {
        let (mut owed, key) = (Owed::default(), key());
        owed.unanswered(&key, terms(0), NOW);
        assert!(owed.next_turn(NOW + TTL - PAUSE_MIN).is_some());
        assert_eq!(owed.next_turn(NOW + TTL), None);
        assert!(owed.is_empty() && owed.numbers.is_empty());
    }

    #[test]
    fn a_claim_that_may_still_arrive_is_owed_for_longer() {
        let (mut owed, key) = (Owed::default(), key());
        owed.unanswered(&key, terms(1), NOW);
        let heard = NOW + ON_ITS_WAY_MAX;
        assert!(owed.next_turn(heard).is_some(), "it may lie on the way until then");
        owed.told(&key.token, &Released::AlreadyExpired, heard);
        let mut pauses = Vec::new();
        let mut now = heard;
        while let Some(at) = owed.next_turn(now) {
            pauses.push(at.since(now).as_millis());
            now = at;
            owed.told(&key.token, &Released::AlreadyExpired, now);
        }
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000]);
        assert!(now.since(heard) > TTL, "as long as it would live there");
    }

    #[test]
    fn one_that_came_is_settled_and_of_two_the_other_may_follow() {
        for (adrift, settled) in [(1, true), (2, false)] {
            let (mut owed, key) = (Owed::default(), key());
            owed.unanswered(&key, terms(adrift), NOW);
            owed.told(&key.token, &Released::Released, NOW);
            assert_eq!(owed.is_empty(), settled, "{adrift}");
            let mut owed = Owed::default();
            owed.answered(&key, terms(adrift), &Released::Released, NOW);
            assert_eq!(owed.is_empty(), settled, "{adrift}");
            owed.answered(&key, terms(0), &Released::AlreadyExpired, NOW);
            assert!(owed.is_empty());
        }
    }

    #[test]
    fn the_oldest_is_left_to_its_ttl_when_there_are_too_many() {
        let mut owed = Owed::default();
        let keys: Vec<ClaimKey> = (0..OWED_MAX + 2).map(|_| key()).collect();
        for key in &keys {
            owed.unanswered(key, terms(0), NOW);
            owed.unanswered(key, terms(1), NOW);
        }
        let expected: Vec<Token> = keys[2..].iter().map(|key| key.token).collect();
        assert_eq!(tokens(&owed, NOW), expected, "each once");
        assert_eq!(owed.numbers.len(), OWED_MAX);
        let first = owed.batch(NOW, 0, 10);
        let second = owed.batch(NOW, first[9].0 + 1, 10);
        assert_eq!(second[0].1, keys[12], "in pieces");
        owed.clear();
        assert!(owed.is_empty() && owed.next_turn(NOW).is_none());
    }
}
