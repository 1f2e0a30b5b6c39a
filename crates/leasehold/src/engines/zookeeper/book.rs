//! The claims this client has in the store: where they are, on which session, and until when.
//!
//! A session is shared, so it does not end one claim of many. The book ends a claim that nobody
//! renews, by the client's clock; a client that dies takes all of its claims along.
//!
//! A claim that loses its place and asks again is another [`Stay`] under the same key. Every change
//! names the stay that it was read for, and does nothing if the claim has another one by now. So an
//! answer that comes late, or a sweep that was held up, cannot touch the claim's next stay.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::rule::claim::{ClaimKey, Mode};
use crate::rule::name::Name;
use crate::seeded::{Seeded, seeded};

use super::lock;
use super::nodes::Ours;
use super::session::Session;

/// How soon the sweep looks again at a claim that is asked about.
const BUSY_AGAIN: Duration = Duration::from_secs(1);

/// One stay of a claim in its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stay {
    pub(super) key: ClaimKey,
    /// Rises with each stay that this client begins.
    number: u64,
}

/// A claim of this client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) stay: Stay,
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
    /// The node that says that it was given back and keeps its name closed.
    pub(super) closed_path: Option<String>,
    /// The number of the connection on which its line was read last: another client that has its
    /// handle makes the session connect again.
    pub(super) looked: u64,
    /// When it ends without another word.
    pub(super) until: Moment,
    /// Its time was up, and its nodes are being deleted. It is never renewed again.
    pub(super) ending: bool,
}

impl Record {
    /// All its nodes, the one that decides first.
    pub(super) fn all_paths(&self) -> impl Iterator<Item = &String> {
        let beside = self.ttl_path.iter().chain(&self.note_path).chain(&self.closed_path);
        self.paths.iter().chain(beside)
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
    inside: Mutex<Inside>,
    /// Rung when a claim may end sooner than all before.
    pub(super) sooner: Notify,
    /// When the janitor looks next.
    next: Mutex<Option<Moment>>,
}

#[derive(Debug, Default)]
struct Inside {
    records: HashMap<ClaimKey, Record>,
    /// How many requests about a claim are in flight. The sweep leaves such a claim alone: it
    /// could delete the nodes that an answer says are there.
    asked: HashMap<ClaimKey, usize>,
    /// The number of the last stay.
    stays: u64,
}

/// A request about a claim is in flight, until this is dropped.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    book: &'a Book,
    key: &'a ClaimKey,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut inside = lock(&self.book.inside);
        if let Some(count) = inside.asked.get_mut(self.key) {
            *count -= 1;
            if *count == 0 {
                inside.asked.remove(self.key);
            }
        }
    }
}

/// Whether a request about a claim is in flight.
fn is_asked(asked: &HashMap<ClaimKey, usize>, key: &ClaimKey) -> bool {
    asked.contains_key(key) && !seeded(Seeded::SweepWhileAsked)
}

fn is_ending(record: &Record) -> bool {
    record.ending && !seeded(Seeded::SweepWhileAsked)
}

impl Book {
    /// Keeps the sweep away from a claim. To be called before its record is read.
    pub(super) fn ask<'a>(&'a self, key: &'a ClaimKey) -> Asked<'a> {
        *lock(&self.inside).asked.entry(key.clone()).or_default() += 1;
        Asked { book: self, key }
    }

    /// The claim of a key, unless it was given back and keeps its name closed.
    pub(super) fn get(&self, key: &ClaimKey) -> Option<Record> {
        let inside = lock(&self.inside);
        inside.records.get(key).filter(|record| record.closed_path.is_none()).cloned()
    }

    /// A new stay of a claim.
    pub(super) fn next_stay(&self, key: ClaimKey) -> Stay {
        let mut inside = lock(&self.inside);
        inside.stays += 1;
        Stay { key, number: inside.stays }
    }

    /// Notes a stay that begins.
    pub(super) fn enter(&self, record: Record) {
        let until = record.until;
        lock(&self.inside).records.insert(record.stay.key.clone(), record);
        self.expect(until);
    }

    /// Changes what is known about a stay. False if the claim has another one, or none, by now.
    #[must_use = "the claim may have another place by now"]
    pub(super) fn update(&self, record: Record) -> bool {
        let stay = record.stay.clone();
        self.change(&stay, |known| *known = record)
    }

    /// Forgets a stay, if the claim has no other one by now.
    pub(super) fn remove(&self, stay: &Stay) {
        let mut inside = lock(&self.inside);
        let known = inside.records.get(&stay.key);
        if known.is_some_and(|known| known.stay == *stay) || seeded(Seeded::SweepOfAnotherStay) {
            inside.records.remove(&stay.key);
        }
    }

    /// Changes what is known about a stay. False if the claim has another one, or none, by now, or
    /// if it is ending.
    pub(super) fn change(&self, stay: &Stay, change: impl FnOnce(&mut Record)) -> bool {
        let until = {
            let mut inside = lock(&self.inside);
            let record = inside.records.get_mut(&stay.key);
            let Some(record) = record.filter(|known| known.stay == *stay && !is_ending(known))
            else {
                return false;
            };
            change(record);
            record.until
        };
        self.expect(until);
        true
    }

    /// Marks a stay whose time was up at `until` as ending. False if it was renewed since, or a
    /// request about its claim is in flight.
    pub(super) fn end(&self, stay: &Stay, until: Moment) -> bool {
        let mut inside = lock(&self.inside);
        let Inside { records, asked, .. } = &mut *inside;
        let record = records.get_mut(&stay.key).filter(|record| record.stay == *stay);
        match record {
            Some(record) if record.until == until && !is_asked(asked, &stay.key) => {
                record.ending = true;
                true
            }
            _ => false,
        }
    }

    /// Another client renewed a stay by its handle: the claim lasts until then, also if the sweep
    /// had begun to end it.
    pub(super) fn visited(&self, stay: &Stay, ttl_path: String, until: Moment) {
        let mut inside = lock(&self.inside);
        if let Some(record) = inside.records.get_mut(&stay.key)
            && record.stay == *stay
        {
            record.ttl_path = Some(ttl_path);
            (record.until, record.ending) = (until, false);
        }
    }

    /// A stay was given back and keeps its name closed until then.
    pub(super) fn close(&self, stay: &Stay, marker: String, ttl_path: String, until: Moment) {
        self.change(stay, |record| {
            (record.closed_path, record.ttl_path) = (Some(marker), Some(ttl_path));
            record.until = until;
        });
    }

    /// When the last claim on a session ends, and whether somebody may still renew one of them.
    pub(super) fn last_on(&self, session: i64) -> Option<(Moment, bool)> {
        let Inside { records, .. } = &*lock(&self.inside);
        let on_it = || records.values().filter(|record| record.ours.session == session);
        let last = on_it().map(|record| record.until).max()?;
        Some((last, on_it().any(|record| record.closed_path.is_none())))
    }

    /// Tries again later to end a stay that could not be ended now.
    pub(super) fn end_later(&self, stay: &Stay, at: Moment) {
        let mut inside = lock(&self.inside);
        if let Some(record) = inside.records.get_mut(&stay.key)
            && record.stay == *stay
        {
            record.until = record.until.max(at);
        }
    }

    fn expect(&self, until: Moment) {
        if lock(&self.next).is_none_or(|next| until < next) {
            self.sooner.notify_one();
        }
    }

    /// The claims whose time is up, and about which no request is in flight.
    pub(super) fn overdue(&self, now: Moment) -> Vec<Record> {
        let Inside { records, asked, .. } = &*lock(&self.inside);
        let due = records.values().filter(|record| record.until <= now);
        due.filter(|record| !is_asked(asked, &record.stay.key)).cloned().collect()
    }

    /// When the sweep has to look again. If the time of a claim is up now, a request about it was
    /// in flight, and the sweep left it alone.
    pub(super) fn next_sweep(&self, now: Moment) -> Option<Moment> {
        let Inside { records, .. } = &*lock(&self.inside);
        let at = |until: Moment| if until > now { until } else { now + BUSY_AGAIN };
        let next = records.values().map(|record| at(record.until)).min();
        *lock(&self.next) = next;
        next
    }

    /// The claims on a session.
    pub(super) fn all_on(&self, session: i64) -> Vec<Record> {
        let Inside { records, .. } = &*lock(&self.inside);
        let on_it = records.values().filter(|record| record.ours.session == session);
        on_it.cloned().collect()
    }

    /// How many claims are on a session; no more than `up_to` are counted.
    pub(super) fn claims_on(&self, session: i64, up_to: usize) -> usize {
        let Inside { records, .. } = &*lock(&self.inside);
        records.values().filter(|record| record.ours.session == session).take(up_to).count()
    }

    /// Whether something is left on a session.
    pub(super) fn uses(&self, session: i64) -> bool {
        lock(&self.inside).records.values().any(|record| record.ours.session == session)
    }
}
