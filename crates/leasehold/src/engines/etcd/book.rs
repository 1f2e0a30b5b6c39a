//! The claims this client has in the store: where they are, on which lease, and until when.
//!
//! A lease of etcd's is shared, so it does not end one claim of many. That a claim which nobody
//! renews ends with its ttl is seen to here, by the client's clock: a client that dies takes all of
//! them along, because nobody keeps its leases.
//!
//! Several requests about a claim may be in flight. So nobody writes a record back: an answer is
//! merged into the present record, and only if the claim has the place that the answer is about.
//! What this client noted of a claim by itself is in no record, and no answer takes it back.

use std::collections::{HashMap, HashSet, VecDeque, hash_map};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::rule::claim::{ClaimKey, Mode};
use crate::rule::name::Name;

use super::detail::Detail;
use super::link::lock;
use super::slots::Slots;

/// The pauses after which a claim that was given back is looked for again, if a request for it may
/// still be on its way. Servers give up on a request after seven seconds, but one that is stopped
/// begins with what came meanwhile when it goes on.
const LOOKS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(240),
];
/// How many of those are kept in mind; beyond that the oldest are left to their lease.
const DOUBTS_MAX: usize = 10_000;
/// With more claims, each is looked at with every fourth renewal at the latest.
const UNSEEN_MAX: u8 = 3;
/// Up to this many claims are all looked at with each renewal: one transaction or two.
pub(super) const LOOK_ALWAYS_MAX: usize = 128;

/// A claim of this client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    /// Whether this client made the key, and not another one that made the claim.
    pub(super) own: bool,
    pub(super) mode: Mode,
    pub(super) detail: Detail,
    /// The revision it was created at: its fence.
    pub(super) created: i64,
    /// The revision it was last written at.
    pub(super) modified: i64,
    pub(super) lease: i64,
    pub(super) held: bool,
    /// When it ends without another word.
    pub(super) until: Moment,
    /// The revision whose value `detail` is: somebody may have amended it since.
    pub(super) seen: i64,
}

impl Record {
    /// Takes in what an answer says about the same place. An answer that was overtaken is older
    /// than the record in part.
    fn merge(&mut self, answer: Record) {
        if answer.modified >= self.modified {
            (self.modified, self.lease) = (answer.modified, answer.lease);
        }
        if answer.seen >= self.seen {
            (self.seen, self.detail) = (answer.seen, answer.detail);
        }
        if answer.held == self.held {
            self.until = self.until.max(answer.until);
        } else if answer.held {
            // A claim that holds waits no more, and ends with its ttl.
            (self.held, self.until) = (true, answer.until);
        }
    }
}

/// A claim, and what was noted of its place.
#[derive(Debug)]
struct Entry {
    record: Record,
    /// Its key was heard to go. No reading from before brings it back.
    gone: bool,
    /// Renewals since it was last seen in the store.
    unseen: u8,
    /// Its time was up, and a request to delete its key may be in flight. The request deletes only
    /// what was not written since: an answer that finds the claim is believed once it is written.
    ending: bool,
}

/// How an answer came by the record of a claim.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    /// The claim was known when the request was sent. `seen` says that it was looked at.
    Known { seen: bool },
    /// It was found in the store, and was known as this when the request was sent.
    Found { before: Option<&'a Record> },
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the sweep may delete the claim"]
pub(super) enum Entered {
    Done,
    /// The sweep may delete the claim, or has deleted it, unless the claim is written first.
    Ending,
    /// The claim has another place by now, or none.
    Elsewhere,
}

/// A claim that was given back, but may be made by a request that is still on its way.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    pub(super) key: ClaimKey,
    at: Moment,
    looks: usize,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    records: Mutex<Records>,
    /// The keys of those claims, and of such that may be on their way.
    pub(super) slots: Slots,
    /// Rung when a claim may end sooner than all before.
    pub(super) sooner: Notify,
    /// When the janitor looks next.
    next: Mutex<Option<Moment>>,
    doubts: Mutex<VecDeque<Doubt>>,
}

#[derive(Debug, Default)]
struct Records {
    claims: HashMap<ClaimKey, Entry>,
    /// Whose a key is: an event names no token.
    keys: HashMap<Vec<u8>, ClaimKey>,
    /// Claims of which a request was given up that may yet take effect. They are so until they are
    /// given back, whatever their place is.
    doubtful: HashSet<ClaimKey>,
}

impl Records {
    /// Enters a place, or merges what is new about it.
    fn enter(&mut self, claim: &ClaimKey, record: Record) -> &mut Entry {
        if let Some(before) = self.claims.get(claim).map(|before| &before.record)
            && before.key != record.key
        {
            let before = before.key.clone();
            self.unlink(&before, claim);
        }
        self.keys.insert(record.key.clone(), claim.clone());
        match self.claims.entry(claim.clone()) {
            hash_map::Entry::Occupied(known) if known.get().record.created == record.created => {
                let known = known.into_mut();
                known.record.merge(record);
                known.ending = false;
                known
            }
            other => {
                let fresh = Entry { record, gone: false, unseen: 0, ending: false };
                other.insert_entry(fresh).into_mut()
            }
        }
    }

    fn remove(&mut self, claim: &ClaimKey) -> Option<Record> {
        let record = self.claims.remove(claim)?.record;
        self.unlink(&record.key, claim);
        Some(record)
    }

    /// A key that was used again since is another claim's.
    fn unlink(&mut self, key: &[u8], claim: &ClaimKey) {
        if self.keys.get(key) == Some(claim) {
            self.keys.remove(key);
        }
    }

    fn doubt(&mut self, key: &ClaimKey) {
        if self.doubtful.len() >= DOUBTS_MAX
            && let Some(other) = self.doubtful.iter().next().cloned()
        {
            self.doubtful.remove(&other);
        }
        self.doubtful.insert(key.clone());
    }
}

impl Book {
    pub(super) fn get(&self, claim: &ClaimKey) -> Option<Record> {
        lock(&self.records).claims.get(claim).map(|known| known.record.clone())
    }

    /// Whether the place of a claim that was created then is to be looked at before it is renewed.
    pub(super) fn is_to_be_seen(&self, claim: &ClaimKey, created: i64) -> bool {
        let records = lock(&self.records);
        let known = records.claims.get(claim).filter(|known| known.record.created == created);
        known.is_none_or(|known| known.gone || known.unseen >= UNSEEN_MAX)
    }

    /// Enters a claim that this client just made.
    pub(super) fn enter(&self, claim: &ClaimKey, record: Record) {
        let until = record.until;
        lock(&self.records).enter(claim, record);
        self.expect(until);
    }

    /// Takes in what an answer says about a claim, if the claim has no later place and its sweep
    /// has not begun.
    pub(super) fn take_in(&self, claim: &ClaimKey, record: &Record, source: Source<'_>) -> Entered {
        let mut records = lock(&self.records);
        let known = records.claims.get(claim);
        let unwritten =
            |known: &Record| known.created == record.created && record.modified <= known.modified;
        match (known, source) {
            (Some(known), _) if known.ending && unwritten(&known.record) => return Entered::Ending,
            (Some(known), _) if known.record.created > record.created => return Entered::Elsewhere,
            (Some(known), Source::Known { .. }) if known.record.created != record.created => {
                return Entered::Elsewhere;
            }
            (None, Source::Known { .. }) => return Entered::Elsewhere,
            // The sweep may have deleted it after it was found.
            (None, Source::Found { before: Some(before) }) if unwritten(before) => {
                return Entered::Ending;
            }
            _ => {}
        }
        let entry = records.enter(claim, record.clone());
        entry.unseen = match source {
            Source::Known { seen: false } => entry.unseen.saturating_add(1),
            _ => 0,
        };
        let until = entry.record.until;
        drop(records);
        self.expect(until);
        Entered::Done
    }

    /// Marks a claim whose time was up when `record` was read as ending. False if it was renewed
    /// since.
    pub(super) fn end(&self, claim: &ClaimKey, record: &Record) -> bool {
        let mut records = lock(&self.records);
        let known = records.claims.get_mut(claim).filter(|known| {
            known.record.created == record.created && known.record.until == record.until
        });
        known.is_some_and(|known| {
            known.ending = true;
            true
        })
    }

    /// Something may be to be done at that time.
    fn expect(&self, at: Moment) {
        if lock(&self.next).is_none_or(|next| at < next) {
            self.sooner.notify_one();
        }
    }

    /// The place of a claim that was created then is not this client's any more, whatever became
    /// of it. A later place of the claim stays.
    pub(super) fn remove(&self, claim: &ClaimKey, created: i64) {
        let mut records = lock(&self.records);
        let known = records.claims.get(claim);
        let is_it = known.is_some_and(|known| known.record.created == created);
        let removed = if is_it { records.remove(claim) } else { None };
        drop(records);
        if removed.is_some() {
            self.slots.drop_in_doubt(claim);
        }
    }

    /// A claim is about to be given back. If a request about it was given up, it is looked for
    /// later, also if the store does not answer for as long as the claim is given back.
    pub(super) fn gives_back(&self, key: &ClaimKey, now: Moment) {
        if lock(&self.records).doubtful.contains(key) {
            self.doubt(key.clone(), now);
        }
    }

    /// A claim was given back. `abandoned` is how many requests were given up so far. A request
    /// about it that was given up may be behind the one that took it out, so it is looked for
    /// later. Returns whether it was known.
    pub(super) fn given_back(&self, key: &ClaimKey, abandoned: u64, now: Moment) -> bool {
        let mut records = lock(&self.records);
        let record = records.remove(key);
        let doubtful = records.doubtful.remove(key);
        drop(records);
        self.slots.end(key, record.is_some() && !doubtful, abandoned);
        if record.is_none() || doubtful {
            self.doubt(key.clone(), now);
        }
        record.is_some()
    }

    /// The place of a claim that was created then stays closed, and nobody owns it any more. A
    /// request about it that was given up may come after its end.
    pub(super) fn closed(&self, key: &ClaimKey, created: i64, now: Moment) {
        self.remove(key, created);
        if lock(&self.records).doubtful.remove(key) {
            self.doubt(key.clone(), now);
        }
    }

    /// A request about a claim was given up, and may yet take effect.
    pub(super) fn gave_up(&self, key: &ClaimKey) {
        lock(&self.records).doubt(key);
    }

    /// A claim is not in its line by the last answer. If a request about it was given up, it is
    /// looked for later.
    pub(super) fn not_made(&self, key: &ClaimKey, now: Moment) {
        if lock(&self.records).doubtful.remove(key) {
            self.doubt(key.clone(), now);
        }
    }

    /// Changes what is known about the place of a claim that was created then.
    pub(super) fn change_at(
        &self,
        claim: &ClaimKey,
        created: i64,
        change: impl FnOnce(&mut Record),
    ) {
        let mut records = lock(&self.records);
        let known = records.claims.get_mut(claim);
        if let Some(known) = known.filter(|known| known.record.created == created) {
            change(&mut known.record);
        }
    }

    /// The key of a claim that is ending was written by a request whose answer was lost or comes
    /// later. So the request to delete the key deletes nothing.
    pub(super) fn was_written(&self, claim: &ClaimKey, created: i64, modified: i64, lease: i64) {
        let mut records = lock(&self.records);
        let known = records.claims.get_mut(claim);
        if let Some(known) = known.filter(|known| known.record.created == created) {
            (known.record.modified, known.record.lease) = (modified, lease);
            known.ending = false;
        }
    }

    /// A key is gone from the store.
    pub(super) fn gone(&self, key: &[u8], revision: i64) {
        let mut records = lock(&self.records);
        let Records { claims, keys, .. } = &mut *records;
        let gone = keys.get(key).and_then(|claim| claims.get_mut(claim));
        // It is seen, and said, when the claim is renewed next. A claim that was made since then
        // with the same key is not meant.
        if let Some(known) = gone.filter(|known| known.record.created < revision) {
            known.gone = true;
        }
    }

    /// Notes that a claim may come to be although its owner is done with it.
    pub(super) fn doubt(&self, key: ClaimKey, now: Moment) {
        self.note(Doubt { key, at: now + LOOKS[0], looks: 0 });
    }

    /// A claim is wanted: should it come to be, it is not too late.
    pub(super) fn want(&self, key: &ClaimKey) {
        let mut doubts = lock(&self.doubts);
        let before = doubts.len();
        doubts.retain(|doubt| doubt.key != *key);
        let doubted = doubts.len() != before;
        drop(doubts);
        if doubted {
            self.gave_up(key);
        }
    }

    /// Looks once more later, unless it was the last time. One that was not answered was none.
    pub(super) fn doubt_again(&self, mut doubt: Doubt, now: Moment, answered: bool) {
        doubt.looks += usize::from(answered);
        if let Some(pause) = LOOKS.get(doubt.looks) {
            doubt.at = now + *pause;
            self.note(doubt);
        }
    }

    fn note(&self, doubt: Doubt) {
        let at = doubt.at;
        let mut doubts = lock(&self.doubts);
        doubts.retain(|other| other.key != doubt.key);
        if doubts.len() >= DOUBTS_MAX {
            doubts.pop_front();
        }
        doubts.push_back(doubt);
        drop(doubts);
        self.expect(at);
    }

    /// The doubts that are to be looked at.
    pub(super) fn doubts(&self, now: Moment) -> Vec<Doubt> {
        let mut doubts = lock(&self.doubts);
        let (due, left): (VecDeque<_>, _) = doubts.drain(..).partition(|doubt| doubt.at <= now);
        *doubts = left;
        due.into()
    }

    /// The claims whose time is up, and when the next one's is.
    pub(super) fn overdue(&self, now: Moment) -> (Vec<(ClaimKey, Record)>, Option<Moment>) {
        let records = lock(&self.records);
        let all = records.claims.iter().map(|(claim, known)| (claim, &known.record));
        let due = all.clone().filter(|(_, record)| record.until <= now);
        let due = due.map(|(claim, record)| (claim.clone(), record.clone())).collect();
        let left = all.map(|(_, record)| record.until).filter(|until| *until > now);
        let doubts = lock(&self.doubts).iter().map(|doubt| doubt.at).min();
        let next = left.chain(doubts).min();
        *lock(&self.next) = next;
        (due, next)
    }

    /// Whether there are more claims than are all looked at with each renewal.
    pub(super) fn is_long(&self) -> bool {
        lock(&self.records).claims.len() > LOOK_ALWAYS_MAX
    }

    /// The claims that are this client's as far as it knows.
    pub(super) fn all(&self) -> Vec<(ClaimKey, Record)> {
        let records = lock(&self.records);
        records.claims.iter().map(|(claim, known)| (claim.clone(), known.record.clone())).collect()
    }

    pub(super) fn uses(&self, lease: i64) -> bool {
        lock(&self.records).claims.values().any(|known| known.record.lease == lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::Token;

    fn key() -> ClaimKey {
        ClaimKey { name: Name::new("n").expect("a good name"), token: Token::random() }
    }

    fn record() -> Record {
        let claim = crate::rule::claim::Claim {
            key: key(),
            mode: Mode::Exclusive,
            holder: crate::rule::claim::Holder::fresh(),
            note: crate::rule::claim::Note::default(),
            ttl: Duration::from_secs(2),
            patience: Duration::from_secs(2),
            join: true,
        };
        Record {
            name: claim.key.name.clone(),
            key: b"key".to_vec(),
            own: true,
            mode: claim.mode,
            detail: Detail::of(&claim),
            created: 7,
            modified: 7,
            lease: 1,
            held: false,
            until: Moment::from_nanos(1),
            seen: 7,
        }
    }

    #[test]
    fn late_claim_is_looked_for_five_times_and_what_was_not_answered_does_not_count() {
        let (book, mut now) = (Book::default(), Moment::from_nanos(1_000_000_000));
        let name = Name::new("late").expect("a good name");
        book.doubt(ClaimKey { name, token: Token::random() }, now);
        for (look, pause) in LOOKS.into_iter().enumerate() {
            for answered in [false, true] {
                let just_before = now + pause - Duration::from_millis(1);
                assert!(book.doubts(just_before).is_empty(), "look {look}");
                now = now + pause;
                let [doubt] = <[Doubt; 1]>::try_from(book.doubts(now)).expect("one is due");
                book.doubt_again(doubt, now, answered);
            }
        }
        assert!(book.doubts(now + Duration::from_secs(86_400)).is_empty(), "it was the last");
    }

    #[test]
    fn claim_that_ended_while_it_was_found_is_not_entered_before_it_is_written() {
        let (book, claim) = (Book::default(), key());
        let mut record = record();
        book.enter(&claim, record.clone());
        let known = book.get(&claim);
        let found = Source::Found { before: known.as_ref() };
        assert!(book.end(&claim, &record));
        book.remove(&claim, record.created);
        assert_eq!(book.take_in(&claim, &record, found), Entered::Ending);
        assert!(book.get(&claim).is_none());
        record.modified += 1;
        assert_eq!(book.take_in(&claim, &record, found), Entered::Done);
        assert!(book.get(&claim).is_some());
    }

    const KNOWN: Source<'static> = Source::Known { seen: true };

    /// A renewal copies the record of a claim that waits. The claim is granted by another answer.
    #[test]
    fn heartbeat_that_was_overtaken_by_the_grant_does_not_shorten_the_lease() {
        let (book, claim) = (Book::default(), key());
        let mut heartbeat = record();
        book.enter(&claim, heartbeat.clone());
        let granted =
            Record { held: true, until: Moment::from_nanos(60), modified: 8, lease: 2, ..record() };
        let found = Source::Found { before: Some(&heartbeat) };
        assert_eq!(book.take_in(&claim, &granted, found), Entered::Done);
        heartbeat.until = Moment::from_nanos(10);
        assert_eq!(book.take_in(&claim, &heartbeat, KNOWN), Entered::Done);
        let known = book.get(&claim).expect("it holds");
        assert!(known.held);
        assert_eq!((known.until, known.modified, known.lease), (granted.until, 8, 2));
    }

    #[test]
    fn renewal_does_not_hide_that_the_key_was_heard_to_go() {
        let (book, key, claim) = (Book::default(), key(), record());
        book.enter(&key, claim.clone());
        assert!(!book.is_to_be_seen(&key, claim.created));
        book.gone(&claim.key, claim.created + 1);
        for seen in [false, true] {
            assert_eq!(book.take_in(&key, &claim, Source::Known { seen }), Entered::Done);
            assert!(book.is_to_be_seen(&key, claim.created));
        }
    }

    #[test]
    fn renewal_does_not_hide_that_a_request_was_given_up() {
        let (book, now) = (Book::default(), Moment::from_nanos(1_000_000_000));
        let claim = record();
        let key = key();
        book.enter(&key, claim.clone());
        book.gave_up(&key);
        assert_eq!(book.take_in(&key, &claim, KNOWN), Entered::Done);
        assert!(book.given_back(&key, 0, now));
        assert_eq!(book.doubts(now + LOOKS[0]).len(), 1);
    }

    #[test]
    fn answer_about_a_place_that_is_over_is_not_taken_in() {
        let (book, key, claim) = (Book::default(), key(), record());
        assert_eq!(book.take_in(&key, &claim, KNOWN), Entered::Elsewhere);
        let later = Record { created: 9, modified: 9, ..record() };
        book.enter(&key, later);
        let found = Source::Found { before: None };
        for source in [KNOWN, found] {
            assert_eq!(book.take_in(&key, &claim, source), Entered::Elsewhere);
        }
        assert_eq!(book.get(&key).map(|known| known.created), Some(9));
    }

    #[test]
    fn one_token_may_claim_several_names() {
        let (book, early) = (Book::default(), key());
        let name = Name::new("other").expect("a good name");
        let late = ClaimKey { name: name.clone(), token: early.token };
        book.enter(&late, Record { name, key: b"other".to_vec(), created: 9, ..record() });
        let found = Source::Found { before: None };
        assert_eq!(book.take_in(&early, &record(), found), Entered::Done);
        let created = |claim| book.get(claim).map(|known| known.created);
        assert_eq!((created(&early), created(&late)), (Some(7), Some(9)));
    }

    #[test]
    fn claim_that_is_wanted_again_is_not_looked_for() {
        let (book, now) = (Book::default(), Moment::from_nanos(1_000_000_000));
        let [again, late] = ["again", "late"].map(|text| {
            let name = Name::new(text).expect("a good name");
            ClaimKey { name, token: Token::random() }
        });
        book.doubt(again.clone(), now);
        book.doubt(late.clone(), now);
        book.want(&again);
        let due: Vec<ClaimKey> =
            book.doubts(now + LOOKS[0]).into_iter().map(|doubt| doubt.key).collect();
        assert_eq!(due, [late]);
        book.not_made(&again, now);
        let due: Vec<ClaimKey> =
            book.doubts(now + LOOKS[0]).into_iter().map(|doubt| doubt.key).collect();
        assert_eq!(due, [again], "it is looked for when nobody wants it any more");
    }
}
