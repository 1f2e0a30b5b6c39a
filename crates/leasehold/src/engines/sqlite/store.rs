//! The store's tables: reading a line out of them and writing what changed in it.
//!
//! Straight SQL with no decisions in it; the rule is `line.rs`, and what a verb does with it is in
//! `verbs.rs`. Every function here runs inside a transaction of the caller's.

use rusqlite::types::{FromSql, Value};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::clock::Moment;
use crate::engine::{Counts, Event, EventKind};
use crate::error::{Error, Result};
use crate::rule::claim::{Holder, HolderId, Mode, Note, Token};
use crate::rule::line::{Entry, Line};
use crate::rule::name::Name;

use super::failure::{Failure, broken};

/// The mailbox of a claim's client.
pub(super) type Mailbox = i64;
pub(super) type FileLine = Line<Mailbox>;
pub(super) type FileEntry = Entry<Mailbox>;

/// How many events are kept for watchers that fall behind.
const EVENTS_KEPT: i64 = 1_024;

/// The row that every writing verb reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) fence: i64,
    pub(super) fence_mark: i64,
    pub(super) watched_until: i64,
}

pub(super) fn nanos(at: Moment) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(nanos.max(0) as u64)
}

pub(super) fn head(db: &Connection) -> Result<Head, Failure> {
    let sql = "SELECT fence, fence_mark, watched_until FROM store";
    Ok(db.prepare_cached(sql)?.query_row([], |row| {
        Ok(Head { fence: row.get(0)?, fence_mark: row.get(1)?, watched_until: row.get(2)? })
    })?)
}

pub(super) fn set_fence(db: &Connection, fence: i64) -> Result<(), Failure> {
    db.prepare_cached("UPDATE store SET fence = ?1")?.execute([fence])?;
    Ok(())
}

const COLUMNS: &str = "fence, token, mode, take, of, holder, label, note, joined, granted, \
                       expires, mailbox, name";

/// The claims on one name.
pub(super) fn line(db: &Connection, name: &Name) -> Result<FileLine, Failure> {
    let mut select = db.prepare_cached(
        "SELECT fence, token, mode, take, of, holder, label, note, joined, granted, expires, \
         mailbox FROM claims WHERE name = ?1 ORDER BY fence",
    )?;
    let mut rows = select.query([name.as_str()])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(entry(row).map_err(broken)?);
    }
    Ok(entries.into_iter().collect())
}

/// Hands the lines from `first` on to `visit`, in name order, until it says stop. For looking only:
/// claims that cannot be read are left out, as is what has no name.
pub(super) fn lines_from(
    db: &Connection,
    first: &str,
    mut visit: impl FnMut(Name, FileLine, Option<What>) -> bool,
) -> Result<(), Failure> {
    let sql = format!("SELECT {COLUMNS} FROM claims WHERE name >= ?1 ORDER BY name, fence");
    let mut select = db.prepare_cached(&sql)?;
    let mut rows = select.query([first])?;
    let mut open: Option<(Name, Vec<FileEntry>, Option<What>)> = None;
    while let Some(row) = rows.next()? {
        let Ok(found) = name(row) else { continue };
        if let Some((name, entries, what)) = open.take_if(|(name, ..)| *name != found)
            && !visit(name, entries.into_iter().collect(), what)
        {
            return Ok(());
        }
        let (_, entries, broken) = open.get_or_insert_with(|| (found, Vec::new(), None));
        match entry(row) {
            Ok(entry) => entries.push(entry),
            Err(what) => *broken = Some(what),
        }
    }
    if let Some((name, entries, what)) = open {
        visit(name, entries.into_iter().collect(), what);
    }
    Ok(())
}

/// What is wrong with a claim that cannot be read.
pub(super) type What = &'static str;

/// Claims whose names are none, so that nobody can ask for them.
pub(super) fn nameless(db: &Connection) -> Result<usize, Failure> {
    let mut select = db.prepare(&format!("SELECT {COLUMNS} FROM claims"))?;
    let mut rows = select.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += usize::from(name(row).is_err());
    }
    Ok(count)
}

/// The claims on one name that can be read, and the fences of the others, as they are in the file.
pub(super) fn readable(
    db: &Connection,
    name: &Name,
) -> Result<(Vec<FileEntry>, Vec<Value>), Failure> {
    let sql = format!("SELECT {COLUMNS} FROM claims WHERE name = ?1 ORDER BY fence");
    let mut select = db.prepare(&sql)?;
    let mut rows = select.query([name.as_str()])?;
    let (mut entries, mut others) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        match entry(row) {
            Ok(entry) => entries.push(entry),
            Err(_what) => others.push(row.get(0)?),
        }
    }
    Ok((entries, others))
}

/// Deletes a claim that cannot be read.
pub(super) fn delete_unreadable(
    db: &Connection,
    name: &Name,
    fence: &Value,
) -> Result<(), Failure> {
    let sql = "DELETE FROM claims WHERE name = ?1 AND fence = ?2";
    db.prepare(sql)?.execute(params![name.as_str(), fence])?;
    Ok(())
}

fn name(row: &Row<'_>) -> Result<Name, &'static str> {
    Name::new(text(row, 12)?).map_err(|_| "a name out of bounds")
}

/// A claim, or what is wrong with it.
fn entry(row: &Row<'_>) -> Result<FileEntry, &'static str> {
    let mode = match value::<i64>(row, 2)? {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        2 => Mode::Permits { take: value(row, 3)?, of: value(row, 4)? },
        _ => return Err("an unknown mode"),
    };
    let id = HolderId(u128::from_be_bytes(value(row, 5)?));
    let granted: Option<i64> = value(row, 9)?;
    Ok(Entry {
        fence: u64::try_from(value::<i64>(row, 0)?).map_err(|_| "a fence below zero")?,
        token: Token::from_bytes(value(row, 1)?),
        mode: mode.checked().map_err(|_| "permits out of bounds")?,
        holder: Holder::known(id, text(row, 6)?).map_err(|_| "a label out of bounds")?,
        note: Note::new(text(row, 7)?).map_err(|_| "a note out of bounds")?,
        joined: moment(value(row, 8)?),
        granted: granted.map(moment),
        expires: moment(value(row, 10)?),
        bell: value(row, 11)?,
    })
}

fn value<T: FromSql>(row: &Row<'_>, column: usize) -> Result<T, &'static str> {
    row.get(column).map_err(|_| "a value of another type or size")
}

fn text<'row>(row: &'row Row<'_>, column: usize) -> Result<&'row str, &'static str> {
    let value = row.get_ref(column).map_err(|_| "no such column")?;
    value.as_str().map_err(|_| "a text that is none")
}

fn columns(mode: Mode) -> (u32, u32, u32) {
    match mode {
        Mode::Exclusive => (0, 0, 0),
        Mode::Shared => (1, 0, 0),
        Mode::Permits { take, of } => (2, take, of),
    }
}

pub(super) fn insert(db: &Connection, name: &Name, entry: &FileEntry) -> Result<(), Failure> {
    let (mode, take, of) = columns(entry.mode);
    db.prepare_cached(
        "INSERT INTO claims (name, fence, token, mode, take, of, holder, label, note, joined, \
         granted, expires, mailbox) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?
    .execute(params![
        name.as_str(),
        entry.fence as i64,
        entry.token.as_bytes(),
        mode,
        take,
        of,
        entry.holder.id().0.to_be_bytes(),
        entry.holder.label(),
        entry.note.as_str(),
        nanos(entry.joined),
        entry.granted.map(nanos),
        nanos(entry.expires),
        entry.bell,
    ])?;
    Ok(())
}

/// Writes what a claim that is in line asks for, and its note.
pub(super) fn amend(db: &Connection, name: &Name, entry: &FileEntry) -> Result<(), Failure> {
    let (mode, take, of) = columns(entry.mode);
    let sql = "UPDATE claims SET mode = ?3, take = ?4, of = ?5, note = ?6 \
               WHERE name = ?1 AND fence = ?2";
    let (name, note) = (name.as_str(), entry.note.as_str());
    db.prepare_cached(sql)?.execute(params![name, entry.fence as i64, mode, take, of, note])?;
    Ok(())
}

/// Writes the times of a claim that is in line.
pub(super) fn update(db: &Connection, name: &Name, entry: &FileEntry) -> Result<(), Failure> {
    db.prepare_cached(
        "UPDATE claims SET granted = ?3, expires = ?4 WHERE name = ?1 AND fence = ?2",
    )?
    .execute(params![
        name.as_str(),
        entry.fence as i64,
        entry.granted.map(nanos),
        nanos(entry.expires)
    ])?;
    Ok(())
}

/// Writes that nobody owns a claim any more, and its new end.
pub(super) fn retire(db: &Connection, name: &Name, entry: &FileEntry) -> Result<(), Failure> {
    let sql = "UPDATE claims SET token = ?3 WHERE name = ?1 AND fence = ?2";
    let fence = entry.fence as i64;
    db.prepare_cached(sql)?.execute(params![name.as_str(), fence, entry.token.as_bytes()])?;
    update(db, name, entry)
}

pub(super) fn delete(db: &Connection, name: &Name, fence: u64) -> Result<(), Failure> {
    db.prepare_cached("DELETE FROM claims WHERE name = ?1 AND fence = ?2")?
        .execute(params![name.as_str(), fence as i64])?;
    Ok(())
}

pub(super) fn add_counts(db: &Connection, counts: &Counts) -> Result<(), Failure> {
    if *counts == Counts::default() {
        return Ok(());
    }
    db.prepare_cached(
        "UPDATE totals SET acquired = acquired + ?1, released = released + ?2, \
         contended = contended + ?3, expired = expired + ?4, lost = lost + ?5",
    )?
    .execute(
        [counts.acquired, counts.released, counts.contended, counts.expired, counts.lost]
            .map(|count| count as i64),
    )?;
    Ok(())
}

pub(super) fn counts(db: &Connection) -> Result<Counts, Failure> {
    // What is no number counts as 0, as it does when something is added to it.
    let sql = "SELECT CAST(total(acquired) AS INTEGER), CAST(total(released) AS INTEGER), \
               CAST(total(contended) AS INTEGER), CAST(total(expired) AS INTEGER), \
               CAST(total(lost) AS INTEGER) FROM totals";
    Ok(db.prepare_cached(sql)?.query_row([], |row| {
        let count = |index| row.get::<_, i64>(index).map(|count| count.max(0) as u64);
        Ok(Counts {
            acquired: count(0)?,
            released: count(1)?,
            contended: count(2)?,
            expired: count(3)?,
            lost: count(4)?,
        })
    })?)
}

/// Writes an event down for the watchers.
pub(super) fn record(
    db: &Connection,
    kind: &EventKind,
    name: &Name,
    entry: &FileEntry,
) -> Result<(), Failure> {
    let (word, reason) = match kind {
        EventKind::Queued => ("queued", ""),
        EventKind::Granted => ("granted", ""),
        EventKind::Released => ("released", ""),
        EventKind::Left => ("left", ""),
        EventKind::Expired => ("expired", ""),
        EventKind::Amended => ("amended", ""),
        EventKind::Evicted { reason } => ("evicted", reason.as_str()),
        EventKind::Missed(_) => return Ok(()),
    };
    db.prepare_cached(
        "INSERT INTO events (kind, name, holder, label, fence, reason) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        word,
        name.as_str(),
        entry.holder.id().0.to_be_bytes(),
        entry.holder.label(),
        entry.fence as i64,
        reason
    ])?;
    db.prepare_cached("DELETE FROM events WHERE id <= ?1")?
        .execute([db.last_insert_rowid() - EVENTS_KEPT])?;
    Ok(())
}

/// The number of the newest event; zero if there was none yet.
pub(super) fn last_event(db: &Connection) -> Result<i64, Failure> {
    let sql = "SELECT max(id) FROM events";
    let last: Option<i64> = db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(last.unwrap_or(0))
}

/// The events after number `last`, each with its number.
pub(super) fn events_after(db: &Connection, last: i64) -> Result<Vec<(i64, Event)>, Failure> {
    let mut select = db.prepare_cached(
        "SELECT id, kind, name, holder, label, fence, reason FROM events WHERE id > ?1 ORDER BY id",
    )?;
    let mut rows = select.query([last])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let word: String = row.get(1)?;
        let kind = match word.as_str() {
            "queued" => EventKind::Queued,
            "granted" => EventKind::Granted,
            "released" => EventKind::Released,
            "left" => EventKind::Left,
            "expired" => EventKind::Expired,
            "amended" => EventKind::Amended,
            "evicted" => EventKind::Evicted { reason: row.get(6)? },
            _ => return Err(broken("an event of an unknown kind")),
        };
        let name: String = row.get(2)?;
        let label: String = row.get(4)?;
        let id = HolderId(u128::from_be_bytes(row.get(3)?));
        let holder = Holder::known(id, label).map_err(|_| broken("a label out of bounds"))?;
        let name = Name::new(name).map_err(|_| broken("a name out of bounds"))?;
        let fence = row.get::<_, i64>(5)? as u64;
        events.push((row.get(0)?, Event { kind, name, holder, fence: fence.into() }));
    }
    Ok(events)
}

/// Enters or prolongs a watcher.
pub(super) fn watch_until(db: &Connection, mailbox: Mailbox, until: Moment) -> Result<(), Failure> {
    db.prepare_cached(
        "INSERT INTO watchers (mailbox, until) VALUES (?1, ?2) \
         ON CONFLICT (mailbox) DO UPDATE SET until = excluded.until",
    )?
    .execute([mailbox, nanos(until)])?;
    db.prepare_cached("UPDATE store SET watched_until = max(watched_until, ?1)")?
        .execute([nanos(until)])?;
    Ok(())
}

pub(super) fn unwatch(db: &Connection, mailbox: Mailbox) -> Result<(), Failure> {
    db.prepare_cached("DELETE FROM watchers WHERE mailbox = ?1")?.execute([mailbox])?;
    db.prepare_cached(
        "UPDATE store SET watched_until = coalesce((SELECT max(until) FROM watchers), 0)",
    )?
    .execute([])?;
    Ok(())
}

pub(super) fn watchers(db: &Connection, now: Moment) -> Result<Vec<Mailbox>, Failure> {
    let mut select = db.prepare_cached("SELECT mailbox FROM watchers WHERE until > ?1")?;
    let mailboxes = select.query_map([nanos(now)], |row| row.get(0))?;
    Ok(mailboxes.collect::<rusqlite::Result<_>>()?)
}

/// The id and the boot of the store; `None` if the tables are not there.
pub(super) fn identity(db: &Connection) -> Result<Option<(u128, String)>, Failure> {
    let sql = "SELECT store_id, boot_id FROM store";
    let row = db.query_row(sql, [], |row| Ok((u128::from_be_bytes(row.get(0)?), row.get(1)?)));
    Ok(row.optional()?)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Final(error)
    }
}
