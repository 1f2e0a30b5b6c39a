//! The claims this client has in the store: where they are, on which lease, and until when.
//!
//! A lease of etcd's is shared, so it does not end one claim of many. That a claim which nobody
//! renews ends with its ttl is seen to here, by the client's clock: a client that dies takes all of
//! them along, because nobody keeps its leases.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{ClaimKey, Mode, Token};
use crate::clock::Moment;
use crate::name::Name;

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
/// Up to this many claims are all looked at with each renewal: one transaction or two.
pub(super) const LOOK_ALWAYS_MAX: usize = 128;

/// A claim of this client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    /// Whether the key is this client's, and not that of whoever made the claim.
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
    /// Renewals since it was last seen in the store.
    pub(super) unseen: u8,
    /// Whether a request for it was given up that may yet take effect.
    pub(super) doubtful: bool,
    /// The revision whose value `detail` is: somebody may have amended it since.
    pub(super) seen: i64,
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
    claims: HashMap<Token, Record>,
    /// Whose a key is: an event names no token.
    keys: HashMap<Vec<u8>, Token>,
}

impl Records {
    fn enter(&mut self, token: Token, record: Record) {
        if let Some(before) = self.claims.get(&token).filter(|before| before.key != record.key) {
            let before = before.key.clone();
            self.unlink(&before, &token);
        }
        self.keys.insert(record.key.clone(), token);
        self.claims.insert(token, record);
    }

    fn remove(&mut self, token: &Token) -> Option<Record> {
        let record = self.claims.remove(token)?;
        self.unlink(&record.key, token);
        Some(record)
    }

    /// A key that was used again since is another claim's.
    fn unlink(&mut self, key: &[u8], token: &Token) {
        if self.keys.get(key) == Some(token) {
            self.keys.remove(key);
        }
    }
}

impl Book {
    pub(super) fn get(&self, token: &Token) -> Option<Record> {
        lock(&self.records).claims.get(token).cloned()
    }

    pub(super) fn enter(&self, token: Token, record: Record) {
        let until = record.until;
        lock(&self.records).enter(token, record);
        self.expect(until);
    }

    /// What is new about a claim that was entered; nothing, if it was given back meanwhile.
    pub(super) fn enter_again(&self, token: Token, record: Record) {
        let (until, mut records) = (record.until, lock(&self.records));
        if records.claims.contains_key(&token) {
            records.enter(token, record);
            drop(records);
            self.expect(until);
        }
    }

    /// Something may be to be done at that time.
    fn expect(&self, at: Moment) {
        if lock(&self.next).is_none_or(|next| at < next) {
            self.sooner.notify_one();
        }
    }

    /// A claim is not this client's any more, whatever became of it.
    pub(super) fn remove(&self, token: &Token) {
        let removed = lock(&self.records).remove(token);
        if let Some(record) = removed {
            self.slots.drop_in_doubt(&ClaimKey { name: record.name, token: *token });
        }
    }

    /// A claim was given back. `abandoned` is how many requests were given up so far.
    pub(super) fn given_back(&self, key: &ClaimKey, abandoned: u64) -> Option<Record> {
        let record = lock(&self.records).remove(&key.token);
        let sure = |record: &Record| record.name == key.name && !record.doubtful;
        self.slots.end(key, record.as_ref().is_some_and(sure), abandoned);
        record
    }

    pub(super) fn change(&self, token: &Token, change: impl FnOnce(&mut Record)) {
        if let Some(record) = lock(&self.records).claims.get_mut(token) {
            change(record);
        }
    }

    /// A key is gone from the store.
    pub(super) fn gone(&self, key: &[u8], revision: i64) {
        let mut records = lock(&self.records);
        let Records { claims, keys } = &mut *records;
        let gone = keys.get(key).and_then(|token| claims.get_mut(token));
        // It is seen, and said, when the claim is renewed next. A claim that was made since then
        // with the same key is not meant.
        if let Some(record) = gone.filter(|record| record.created < revision) {
            record.unseen = u8::MAX;
        }
    }

    /// Notes that a claim may come to be although its owner is done with it.
    pub(super) fn doubt(&self, key: ClaimKey, now: Moment) {
        self.note(Doubt { key, at: now + LOOKS[0], looks: 0 });
    }

    /// A claim is wanted: should it come to be, it is not too late.
    pub(super) fn want(&self, key: &ClaimKey) {
        lock(&self.doubts).retain(|doubt| doubt.key != *key);
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
    pub(super) fn overdue(&self, now: Moment) -> (Vec<(Token, Record)>, Option<Moment>) {
        let records = lock(&self.records);
        let due = records.claims.iter().filter(|(_, record)| record.until <= now);
        let due = due.map(|(token, record)| (*token, record.clone())).collect();
        let left = records.claims.values().map(|record| record.until).filter(|until| *until > now);
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
    pub(super) fn all(&self) -> Vec<(Token, Record)> {
        let records = lock(&self.records);
        records.claims.iter().map(|(token, record)| (*token, record.clone())).collect()
    }

    pub(super) fn uses(&self, lease: i64) -> bool {
        lock(&self.records).claims.values().any(|record| record.lease == lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
