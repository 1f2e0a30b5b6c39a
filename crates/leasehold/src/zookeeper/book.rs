//! The claims this client has in the store: where they are, on which session, and until when.
//!
//! A session is shared, so it does not end one claim of many. That a claim which nobody renews ends
//! with its ttl is seen to here, by the client's clock: a client that dies takes all of them along.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{ClaimKey, Mode};
use crate::clock::Moment;
use crate::name::Name;

use super::lock;
use super::nodes::Ours;
use super::session::Session;

/// A claim of this client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) name: Name,
    pub(super) session: Arc<Session>,
    pub(super) ours: Ours,
    /// How often its session had been connected when it was made.
    pub(super) times: u64,
    pub(super) mode: Mode,
    /// Its nodes, the one that decides first; none as long as it is not known whether it was made.
    pub(super) paths: Vec<String>,
    /// The transaction that created it: its fence.
    pub(super) fence: u64,
    pub(super) held: bool,
    /// Whether the line was read since it holds: who was told of it by an event was not.
    pub(super) seen: bool,
    /// What the store says its ttl is.
    pub(super) ttl: Duration,
    /// The node that says so, if it is not the claim's own.
    pub(super) ttl_path: Option<String>,
    /// The node of another note than it began with, or where it may be.
    pub(super) note_path: Option<String>,
    /// When it ends without another word.
    pub(super) until: Moment,
}

impl Record {
    /// All its nodes, the one that decides first.
    pub(super) fn all_paths(&self) -> impl Iterator<Item = &String> {
        self.paths.iter().chain(&self.ttl_path).chain(&self.note_path)
    }

    /// The names of its nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = String> {
        self.paths.iter().map(|path| path.rsplit('/').next().unwrap_or(path).to_owned())
    }

    /// Whether it holds, and that was seen.
    pub(super) fn is_settled(&self) -> bool {
        self.held && self.seen
    }
}

#[derive(Debug, Default)]
pub(super) struct Book {
    records: Mutex<HashMap<ClaimKey, Record>>,
    /// Rung when a claim may end sooner than all before.
    pub(super) sooner: Notify,
    /// When the janitor looks next.
    next: Mutex<Option<Moment>>,
}

impl Book {
    pub(super) fn get(&self, key: &ClaimKey) -> Option<Record> {
        lock(&self.records).get(key).cloned()
    }

    pub(super) fn enter(&self, key: ClaimKey, record: Record) {
        let until = record.until;
        lock(&self.records).insert(key, record);
        if lock(&self.next).is_none_or(|next| until < next) {
            self.sooner.notify_one();
        }
    }

    pub(super) fn remove(&self, key: &ClaimKey) {
        lock(&self.records).remove(key);
    }

    pub(super) fn change(&self, key: &ClaimKey, change: impl FnOnce(&mut Record)) {
        let until = {
            let mut records = lock(&self.records);
            let Some(record) = records.get_mut(key) else { return };
            change(record);
            record.until
        };
        if lock(&self.next).is_none_or(|next| until < next) {
            self.sooner.notify_one();
        }
    }

    /// The claims whose time is up, and when the next one's is.
    pub(super) fn overdue(&self, now: Moment) -> (Vec<(ClaimKey, Record)>, Option<Moment>) {
        let records = lock(&self.records);
        let due = records.iter().filter(|(_, record)| record.until <= now);
        let due = due.map(|(key, record)| (key.clone(), record.clone())).collect();
        let next = records.values().map(|record| record.until).filter(|until| *until > now).min();
        *lock(&self.next) = next;
        (due, next)
    }

    /// The claims on a session.
    pub(super) fn all_on(&self, session: i64) -> Vec<(ClaimKey, Record)> {
        let records = lock(&self.records);
        let on_it = records.iter().filter(|(_, record)| record.ours.session == session);
        on_it.map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    /// How many claims are on a session; no more than `up_to` are counted.
    pub(super) fn claims_on(&self, session: i64, up_to: usize) -> usize {
        let records = lock(&self.records);
        records.values().filter(|record| record.ours.session == session).take(up_to).count()
    }

    /// Whether something is left on a session.
    pub(super) fn uses(&self, session: i64) -> bool {
        lock(&self.records).values().any(|record| record.ours.session == session)
    }
}
