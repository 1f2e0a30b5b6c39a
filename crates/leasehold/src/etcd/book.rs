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

/// When a claim that was given back is looked for again, if a request for it may still be on its
/// way: servers give up on a request after seven seconds.
const LOOKS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15)];
/// How many of those are kept in mind; beyond that the oldest are left to their lease.
const DOUBTS_MAX: usize = 10_000;

/// A claim of this client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
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
    records: Mutex<HashMap<Token, Record>>,
    /// Rung when a claim may end sooner than all before.
    pub(super) sooner: Notify,
    /// When the janitor looks next.
    next: Mutex<Option<Moment>>,
    doubts: Mutex<VecDeque<Doubt>>,
}

impl Book {
    pub(super) fn get(&self, token: &Token) -> Option<Record> {
        lock(&self.records).get(token).cloned()
    }

    pub(super) fn enter(&self, token: Token, record: Record) {
        let until = record.until;
        lock(&self.records).insert(token, record);
        if lock(&self.next).is_none_or(|next| until < next) {
            self.sooner.notify_one();
        }
    }

    pub(super) fn remove(&self, token: &Token) -> Option<Record> {
        lock(&self.records).remove(token)
    }

    pub(super) fn change(&self, token: &Token, change: impl FnOnce(&mut Record)) {
        if let Some(record) = lock(&self.records).get_mut(token) {
            change(record);
        }
    }

    /// A key of ours is gone from the store.
    pub(super) fn gone(&self, token: &Token, revision: i64) {
        // It is seen, and said, when the claim is renewed next.
        self.change(token, |record| {
            if record.created < revision {
                record.unseen = u8::MAX;
            }
        });
    }

    /// Notes that a claim may come to be although its owner is done with it.
    pub(super) fn doubt(&self, key: ClaimKey, now: Moment) {
        self.note(Doubt { key, at: now + LOOKS[0], looks: 0 });
    }

    /// Looks once more later, unless it was the last time.
    pub(super) fn doubt_again(&self, mut doubt: Doubt, now: Moment) {
        doubt.looks += 1;
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
        if lock(&self.next).is_none_or(|next| at < next) {
            self.sooner.notify_one();
        }
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
        let due = records.iter().filter(|(_, record)| record.until <= now);
        let due = due.map(|(token, record)| (*token, record.clone())).collect();
        let left = records.values().map(|record| record.until).filter(|until| *until > now);
        let doubts = lock(&self.doubts).iter().map(|doubt| doubt.at).min();
        let next = left.chain(doubts).min();
        *lock(&self.next) = next;
        (due, next)
    }

    pub(super) fn uses(&self, lease: i64) -> bool {
        lock(&self.records).values().any(|record| record.lease == lease)
    }
}
