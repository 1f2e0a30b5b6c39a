//! Reading: `pg_locks` says what is held and waited for, sessions say whose it is.
//!
//! What a session of ours has just taken is not written down yet; whoever reads waits a moment
//! for it. Locks of others are shown as what the server knows of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::claim::{Holder, HolderId, Mode, Note};
use crate::engine::{ClaimView, Eviction, LineView, Page, Query, Select};
use crate::error::{Config, Error, Kind, Result};
use crate::name::Name;

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

/// The high half of the ids of holders that are not ours; the low half is their process.
const STRANGER: u128 = 0x7067_5f6c_6f63_6b73_0000_0000_0000_0000;

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
    age: Duration,
}

/// What its session said about it.
#[derive(Debug)]
struct Told {
    name: Name,
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
        self.ours && (fence.is_none() || (self.granted && fence == Some(0)))
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
        if let Some(told) = &self.told {
            return Some(told.name.clone());
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
        let id = HolderId(STRANGER | self.pid as u32 as u128);
        Holder::known(id, format!("{plain} pid {}", self.pid)).ok()
    }

    fn view(&self) -> Option<ClaimView> {
        let told = self.told.as_ref();
        Some(ClaimView {
            holder: self.holder()?,
            fence: told.map_or(0, |told| told.fence),
            mode: if self.shared { Mode::Shared } else { Mode::Exclusive },
            age: told.map_or(self.age, |told| told.age),
            remaining: told.map_or(Duration::ZERO, |told| told.left),
            note: told.map(|told| told.note.clone()).unwrap_or_default(),
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
            let lock = lock(row)?;
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

    /// Ends the sessions that hold a name.
    pub(super) async fn evict(self: &Arc<Self>, order: &Eviction) -> Result<Vec<Holder>> {
        let on = self.keys.key(&order.name)?;
        let holds = |lock: &&Lock| lock.granted && lock.key == on;
        let locks = self.locks().await?;
        let held: Vec<&Lock> = locks.iter().filter(holds).collect();
        let pids: Vec<i32> = held.iter().map(|lock| lock.pid).collect();
        if pids.is_empty() {
            return Ok(Vec::new());
        }
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, ?pids, "evicting: their sessions end");
        let statement = "SELECT pg_terminate_backend(p) FROM unnest($1::integer[]) p";
        let link = self.control().await?;
        let arguments: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
            [(&pids, Type::INT4_ARRAY)];
        let asked = link.client().query_typed(statement, &arguments);
        link.ask(&self.settings, asked).await?.map_err(|error| self.not_ours(&error))?;
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

    fn not_ours(&self, error: &tokio_postgres::Error) -> Error {
        if super::super::failure::is_forbidden(error) {
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
        Lock { told: Some(told), application: self.application.clone(), ..*self }
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
            name: entry.key.name.clone(),
            holder: entry.holder.clone(),
            note: entry.note.clone(),
            fence,
            age: now.since(entry.since),
            left: entry.left(now),
        })
    };
    book.on(key).filter(on).filter_map(told).collect()
}

fn lock(row: &Row) -> Result<Lock> {
    let micros = |column: usize| {
        let micros: Option<i64> = row.get(column);
        Duration::from_micros(micros.unwrap_or_default().max(0) as u64)
    };
    let application: Option<String> = row.get(6);
    let application = application.unwrap_or_default();
    let name: Option<&str> = row.get(7);
    let told = match name {
        Some(name) => {
            let id: Option<[u8; 16]> = row.get::<_, &[u8]>(8).try_into().ok();
            let id = HolderId(u128::from_be_bytes(id.unwrap_or_default()));
            Some(Told {
                name: Name::new(name)?,
                holder: Holder::known(id, row.get::<_, &str>(9))?,
                note: Note::new(row.get::<_, &str>(10))?,
                fence: row.get::<_, i64>(11).max(0) as u64,
                age: micros(12),
                left: micros(13),
            })
        }
        None => None,
    };
    let (class, object): (i64, i64) = (row.get(1), row.get(2));
    Ok(Lock {
        pid: row.get(0),
        key: AdvisoryKey::from_columns(class as u32, object as u32, row.get(3)),
        granted: row.get(4),
        shared: row.get(5),
        ours: application == APPLICATION,
        application,
        told,
        age: micros(14),
    })
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
    for lock in locks {
        let (Some(name), Some(view)) = (lock.name(keys, query), lock.view()) else { continue };
        if !query.admits(&name) {
            continue;
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
    Page { lines, next }
}
