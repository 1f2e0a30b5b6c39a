//! Reading: `pg_locks` says what is held and waited for, sessions say whose it is.
//!
//! What a session of ours has just taken is not written down yet; whoever reads waits a moment
//! for it. Locks of others are shown as what the server knows of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::engine::{
    BrokenLine, ClaimView, Eviction, HolderMessage, LineView, Page, Query, Select,
};
use crate::error::{Config, Error, Kind, Result};
use crate::rule::claim::{Holder, HolderId, Mode, Note};
use crate::rule::name::Name;

use super::Inner;
use super::book::{Book, Entry, Place};
use super::keys::{AdvisoryKey, Keys};
use super::session::APPLICATION;

/// The pause before reading again what was not written down yet.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How often it is read again: two seconds, far longer than a session takes to write unless its
/// client is frozen.
const LOOK_TIMES: usize = 400;

/// How often it is looked whether evicted sessions are gone.
const GONE_TIMES: usize = 1_000;

/// How long a holder has to hear why before its session ends. A holder that hears later knows only
/// that its session ended.
const HEAR_FIRST: Duration = Duration::from_millis(100);

/// One lock, or one that waits for it.
#[derive(Debug)]
pub(super) struct Lock {
    pid: i32,
    key: AdvisoryKey,
    pub(super) granted: bool,
    shared: bool,
    /// Whether a session of leasehold has it.
    ours: bool,
    application: String,
    told: Option<Told>,
    /// What is wrong with what its session said, if something is.
    broken: Option<&'static str>,
    age: Duration,
}

/// What its session said about it, as far as it can be read.
#[derive(Debug)]
struct Told {
    name: Option<Name>,
    holder: Holder,
    note: Note,
    fence: u64,
    age: Duration,
    left: Duration,
}

impl Lock {
    /// Whether something about it is still to be written.
    fn is_untold(&self) -> bool {
        let fence = self.told.as_ref().map(|told| told.fence);
        let is_read = self.broken.is_none();
        self.ours && is_read && (fence.is_none() || (self.granted && fence == Some(0)))
    }

    /// Whether another row is about the same exclusive lock, which one claim has or waits for.
    fn is_same(&self, other: &Lock) -> bool {
        let same = (self.pid, self.key, self.granted) == (other.pid, other.key, other.granted);
        same && !self.shared && !other.shared
    }

    /// One that waits has no fence yet; of those that hold, the last was granted last.
    fn is_better_told_than(&self, other: &Lock) -> bool {
        let fence = |lock: &Lock| lock.told.as_ref().map_or(0, |told| told.fence);
        match self.granted {
            true => fence(self) > fence(other),
            false => fence(self) < fence(other),
        }
    }

    fn name(&self, keys: Keys, query: &Query) -> Option<Name> {
        if let Some(name) = self.told.as_ref().and_then(|told| told.name.as_ref()) {
            return Some(name.clone());
        }
        // Somebody else's lock on a key that is asked about by its name.
        if let Select::Name(name) = &query.select
            && keys.key(name).is_ok_and(|key| key == self.key)
        {
            return Some(name.clone());
        }
        Name::new(keys.name_of(self.key)).ok()
    }

    fn holder(&self) -> Option<Holder> {
        if let Some(told) = &self.told {
            return Some(told.holder.clone());
        }
        let who = match self.application.trim() {
            "" => "postgres",
            who => who,
        };
        let plain: String = who.chars().filter(|c| !c.is_control()).collect();
        let id = HolderId(HolderId::FOREIGN_SESSION | self.pid as u32 as u128);
        Holder::known(id, format!("{plain} pid {}", self.pid)).ok()
    }

    fn view(&self) -> Option<ClaimView> {
        let told = self.told.as_ref();
        Some(ClaimView {
            holder: self.holder()?,
            fence: told.map_or(0, |told| told.fence).into(),
            mode: if self.shared { Mode::Shared } else { Mode::Exclusive },
            age: told.map_or(self.age, |told| told.age),
            remaining: told.map_or(Duration::ZERO, |told| told.left),
            note: told.map(|told| told.note.clone()).unwrap_or_default(),
            closed: false,
        })
    }
}

impl Inner {
    /// All locks, with what is known of them.
    pub(super) async fn locks(&self) -> Result<Vec<Lock>> {
        let mut times = 0;
        loop {
            let (locks, complete) = self.read().await?;
            if complete || times == LOOK_TIMES {
                return Ok(locks);
            }
            times += 1;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// One reading, and whether nothing is missing in it.
    async fn read(&self) -> Result<(Vec<Lock>, bool)> {
        let rows = self.ask(&self.statements.inspect, &[]).await?;
        let ghosts = self.ghosts();
        let mut complete = true;
        let mut locks: Vec<Lock> = Vec::with_capacity(rows.len());
        let book = self.book();
        for row in &rows {
            let lock = lock(row);
            let own = book.seats.values().find(|seat| seat.session.pid == lock.pid);
            if let Some(seat) = own {
                // What this client knows itself is newer than what it wrote.
                let before = locks.last().is_some_and(|l| l.pid == lock.pid && l.key == lock.key);
                let known = own_claims(&book, seat.session.id, lock.key, self.now());
                complete &= !known.is_empty();
                if !before {
                    locks.extend(known.into_iter().map(|told| lock.told_by(told)));
                }
                continue;
            }
            if ghosts.contains(&lock.pid) {
                complete = false;
                continue;
            }
            if let Some(last) = locks.last_mut().filter(|last| last.is_same(&lock)) {
                // A claim before it left its row behind, for the moment.
                if lock.is_better_told_than(last) {
                    *last = lock;
                }
                continue;
            }
            locks.push(lock);
        }
        complete &= !locks.iter().any(Lock::is_untold);
        Ok((locks, complete))
    }

    /// Who holds a name, if anybody does and the server says it.
    pub(super) async fn holder_of(&self, name: &Name) -> Option<Holder> {
        let locks = match self.locks().await {
            Ok(locks) => locks,
            Err(error) => {
                tracing::debug!(%error, %name, "who holds it is not known");
                return None;
            }
        };
        holder(self.keys, name, &locks)
    }

    /// Ends the sessions that hold a name with a fence of the order.
    pub(super) async fn evict(self: &Arc<Self>, order: &Eviction) -> Result<Vec<Holder>> {
        let on = self.keys.key(&order.name)?;
        let is_named = |lock: &Lock| {
            let fence = lock.told.as_ref().map_or(0, |told| told.fence);
            order.names(fence) || (order.unreadable && lock.broken.is_some())
        };
        // Also by the name that it is shown with.
        let shown = |lock: &Lock| lock.name(self.keys, &Query::name(order.name.clone()));
        let is_on = |lock: &Lock| lock.key == on || shown(lock).as_ref() == Some(&order.name);
        let holds = |lock: &&Lock| lock.granted && is_named(lock) && is_on(lock);
        let locks = self.locks().await?;
        let held: Vec<&Lock> = locks.iter().filter(holds).collect();
        let pids: Vec<i32> = held.iter().map(|lock| lock.pid).collect();
        if pids.is_empty() {
            return Ok(Vec::new());
        }
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, ?pids, "evicting: their sessions end");
        for message in HolderMessage::of_eviction(order) {
            self.send(&message).await?;
        }
        tokio::time::sleep(HEAR_FIRST).await;
        let statement = "SELECT pg_terminate_backend(p) FROM unnest($1::integer[]) p";
        let link = self.control().await?;
        let arguments: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
            [(&pids, Type::INT4_ARRAY)];
        let asked = link.try_query(&self.settings, statement, &arguments).await?;
        asked.map_err(|error| self.not_ours(error))?;
        let holders = held.iter().filter_map(|lock| lock.holder()).collect();
        for _ in 0..GONE_TIMES {
            let rows = self.ask(&self.statements.inspect, &[]).await?;
            let there = |row: &Row| pids.contains(&row.get(0)) && row.get::<_, bool>(4);
            if !rows.iter().any(there) {
                return Ok(holders);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(Error::Store {
            store: self.settings.store.clone(),
            cause: "the sessions that hold it do not end".into(),
            transient: true,
        })
    }

    fn not_ours(&self, error: tokio_postgres::Error) -> Error {
        if super::super::failure::is_forbidden(&error) {
            return Error::Config(Config::Denied {
                store: self.settings.store.clone(),
                reason: "it may not end the holder's session".into(),
                advice: "use the holder's role, or let an administrator grant `pg_signal_backend`",
            });
        }
        self.said(error)
    }
}

impl Lock {
    fn told_by(&self, told: Told) -> Lock {
        Lock { told: Some(told), broken: None, application: self.application.clone(), ..*self }
    }
}

/// What this client has on one of its sessions under a key.
fn own_claims(book: &Book, session: u64, key: AdvisoryKey, now: crate::clock::Moment) -> Vec<Told> {
    let on = |entry: &&Entry| entry.session() == Some(session);
    let told = |entry: &Entry| {
        let fence = match entry.place {
            Place::Held { fence, .. } => fence,
            Place::Waiting { leaving: false, .. } => 0,
            _ => return None,
        };
        Some(Told {
            name: Some(entry.key.name.clone()),
            holder: entry.holder.clone(),
            note: entry.note.clone(),
            fence,
            age: now.since(entry.since),
            left: entry.left(now),
        })
    };
    book.on(key).filter(on).filter_map(told).collect()
}

fn lock(row: &Row) -> Lock {
    let age: Option<i64> = row.get(14);
    let application: Option<String> = row.get(6);
    let application = application.unwrap_or_default();
    let (told, broken) = told(row).unzip();
    let (class, object): (i64, i64) = (row.get(1), row.get(2));
    Lock {
        pid: row.get(0),
        key: AdvisoryKey::from_columns(class as u32, object as u32, row.get(3)),
        granted: row.get(4),
        shared: row.get(5),
        ours: application == APPLICATION,
        application,
        told,
        broken: broken.flatten(),
        age: span(age.unwrap_or_default()),
    }
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0) as u64)
}

/// What a session said about a lock, if it said something, and what is wrong with that.
fn told(row: &Row) -> Option<(Told, Option<&'static str>)> {
    let name: Option<&str> = row.get(7);
    let (name, fence) = (Name::new(name?), row.get::<_, i64>(11));
    let id: Option<[u8; 16]> = row.get::<_, &[u8]>(8).try_into().ok();
    let holder = id.and_then(|id| {
        Holder::known(HolderId(u128::from_be_bytes(id)), row.get::<_, &str>(9)).ok()
    });
    let note = Note::new(row.get::<_, &str>(10));
    let (age, left): (Option<i64>, Option<i64>) = (row.get(12), row.get(13));
    let wrong = [
        (name.is_err(), "a name out of bounds"),
        (holder.is_none(), "an odd holder"),
        (note.is_err(), "a note out of bounds"),
        (fence < 0, "a fence below zero"),
        (age.is_none() || left.is_none(), "a time without an end"),
    ];
    let told = Told {
        name: name.ok(),
        holder: holder.unwrap_or_else(Holder::unreadable),
        note: note.unwrap_or_default(),
        fence: fence.max(0) as u64,
        age: span(age.unwrap_or_default()),
        left: span(left.unwrap_or_default()),
    };
    Some((told, wrong.iter().find(|(is_so, _)| *is_so).map(|(_, what)| *what)))
}

/// The first who holds a name.
pub(super) fn holder(keys: Keys, name: &Name, locks: &[Lock]) -> Option<Holder> {
    let page = page(keys, &Query::name(name.clone()), locks);
    let line = page.lines.into_iter().next()?;
    line.held.into_iter().next().map(|held| held.holder)
}

/// The lines that were asked for.
pub(super) fn page(keys: Keys, query: &Query, locks: &[Lock]) -> Page {
    let mut lines: BTreeMap<Name, LineView> = BTreeMap::new();
    let mut causes: BTreeMap<Name, &str> = BTreeMap::new();
    for lock in locks {
        let (Some(name), Some(view)) = (lock.name(keys, query), lock.view()) else { continue };
        if !query.admits(&name) {
            continue;
        }
        if let Some(what) = lock.broken {
            causes.insert(name.clone(), what);
        }
        let line = lines.entry(name).or_insert_with_key(|name| LineView {
            name: name.clone(),
            kind: Kind::Lock,
            held: Vec::new(),
            waiting: Vec::new(),
        });
        match lock.granted {
            true => line.held.push(view),
            false => line.waiting.push(view),
        }
    }
    let mut lines: Vec<LineView> = lines.into_values().collect();
    for line in &mut lines {
        line.held.sort_by_key(|held| held.fence);
        line.waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.age));
    }
    if let Select::Holder(holder) = &query.select {
        let has = |view: &ClaimView| view.holder.id() == *holder;
        lines.retain(|line| line.held.iter().chain(&line.waiting).any(has));
    }
    let more = lines.len() > query.page_lines();
    lines.truncate(query.page_lines());
    let next = more.then(|| lines.last().map(|line| line.name.clone())).flatten();
    let cause = |what: &&str| format!("what its session wrote has {what}");
    let broken = |line: &LineView| {
        let cause = causes.get(&line.name).map(cause)?;
        Some(BrokenLine { name: line.name.clone(), cause })
    };
    let broken = match &query.select {
        Select::Holder(_) => Vec::new(),
        _ => lines.iter().filter_map(broken).collect(),
    };
    Page { lines, broken, next }
}
