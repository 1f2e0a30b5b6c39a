//! The database file: opening it, its transactions, and its upkeep.
//!
//! Commits are not flushed one by one: what the kernel has survives a crash of the process, and a
//! reboot voids every claim anyway. Only the mark under which fences are given out is flushed,
//! once for thousands of them.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::engine::{Bump, Bumped};
use crate::error::{Config, Error};
use crate::rule::claim::Holder;

use super::failure::Failure;
use super::store;

/// How many fences one flush reserves. After a power loss at most this many numbers are skipped,
/// of which there are enough for ever; the flush holds everybody up for milliseconds.
pub(super) const FENCE_BLOCK: i64 = if cfg!(test) { 64 } else { 65_536 };

/// Marks the file as ours, in SQLite's own field for that: `lhld`.
const APPLICATION_ID: i32 = 0x6c68_6c64;
const VERSION: i32 = 1;

/// How long opening waits for others that open, recover or install at the same moment.
const OPEN_WAIT: Duration = Duration::from_secs(10);

/// How long the log may grow before it is written back. Larger logs are read through by the next
/// process that opens the file alone.
const LOG_PAGES: i64 = 1_000;
/// The same when a client closes: a command that ends has time, one that starts has not.
const LOG_PAGES_AT_CLOSE: i64 = 100;

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// What is in the schema and neither ours nor SQLite's own: a trigger would change what verbs do.
const STRANGE: &str = "SELECT type || ' `' || name || '`' FROM sqlite_schema \
    WHERE name NOT GLOB 'sqlite_*' AND (type <> 'table' OR name NOT IN \
    ('store', 'claims', 'totals', 'events', 'notices', 'watchers')) LIMIT 1";

/// Opens the file, installs what it needs, and returns the connection and the store's id.
pub(super) fn open(path: &Path, boot_id: &str) -> Result<(Connection, u128), Failure> {
    let begun = Instant::now();
    loop {
        let opened = connect(path).and_then(|db| {
            db.busy_timeout(OPEN_WAIT)?;
            let store_id = install(&db, path, boot_id)?;
            db.busy_timeout(Duration::ZERO)?;
            Ok((db, store_id))
        });
        match opened {
            // Some steps, such as turning the log on, are refused at once rather than waited for
            // while somebody else does the same.
            Err(Failure::Busy) if begun.elapsed() < OPEN_WAIT => {
                std::thread::sleep(Duration::from_micros(rand::random_range(200..2_000)));
            }
            opened => return opened,
        }
    }
}

/// Opens one more connection to a file that is installed. It answers at once when another one
/// writes; the caller knows how to wait.
pub(super) fn connect(path: &Path) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.set_prepared_statement_cache_capacity(40);
    db.busy_timeout(Duration::ZERO)?;
    // Otherwise the last one to close would write the log back and flush, which takes longer than
    // everything else a short command does.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Plans that do not depend on bound values: SQLite would otherwise compile the query for a
    // line anew for every name, which doubles the cost of a verb.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Somebody who may write to the file may add one at any time.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    Ok(db)
}

/// Installs the tables if they are not there, and empties the lines of an earlier boot. Safe when
/// many do it at once. Returns the store's id.
pub(super) fn install(db: &Connection, path: &Path, boot_id: &str) -> Result<u128, Failure> {
    if pragma(db, "user_version")? == 0 {
        // Both settings stick to the file, and must come before its first table. Small pages,
        // because each grant writes one or two of them.
        db.pragma_update(None, "page_size", 2048)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        flushed(db, |db| create(db, path, boot_id))?;
    }
    check(db, path)?;
    let (store_id, boot) = store::identity(db)?.ok_or(Failure::Broken("no store row"))?;
    if boot != boot_id {
        flushed(db, |db| begin_boot(db, boot_id))?;
    }
    Ok(store_id)
}

fn create(db: &Connection, path: &Path, boot_id: &str) -> Result<(), Failure> {
    if pragma(db, "user_version")? != 0 {
        return Ok(());
    }
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 {
        return Err(refuse(
            path,
            "it is a database of another program".into(),
            "name another file",
        ));
    }
    db.execute_batch(SCHEMA)?;
    let store_id = Holder::fresh().id().0.to_be_bytes();
    db.execute(
        "INSERT INTO store (id, store_id, boot_id, fence, fence_mark, watched_until) \
         VALUES (1, ?1, ?2, 0, ?3, 0)",
        rusqlite::params![store_id, boot_id, FENCE_BLOCK],
    )?;
    db.execute("INSERT INTO totals VALUES (1, 0, 0, 0, 0, 0)", [])?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", VERSION)?;
    Ok(())
}

fn check(db: &Connection, path: &Path) -> Result<(), Failure> {
    if pragma(db, "application_id")? != APPLICATION_ID {
        return Err(refuse(
            path,
            "it is a database of another program".into(),
            "name another file",
        ));
    }
    let version = pragma(db, "user_version")?;
    if version != VERSION {
        let reason = format!("it has layout {version}, and this build knows layout {VERSION}");
        return Err(refuse(
            path,
            reason,
            "use the leasehold version that made it, or another file",
        ));
    }
    let strange = db.query_row(STRANGE, [], |row| row.get::<_, String>(0)).optional()?;
    if let Some(what) = strange {
        let reason = format!("it contains the {what}, which leasehold never makes");
        return Err(refuse(path, reason, "drop that if you know what it is, or use another file"));
    }
    Ok(())
}

/// The machine was started again: nobody who held a claim runs any more, the instants in the
/// claims mean nothing, and unflushed fences may be gone, so counting goes on from the mark.
fn begin_boot(db: &Connection, boot_id: &str) -> Result<(), Failure> {
    let (_, boot) = store::identity(db)?.ok_or(Failure::Broken("no store row"))?;
    if boot == boot_id {
        return Ok(());
    }
    db.execute("DELETE FROM claims", [])?;
    db.execute("DELETE FROM watchers", [])?;
    db.execute("DELETE FROM notices", [])?;
    db.execute(
        "UPDATE store SET boot_id = ?1, fence = fence_mark, fence_mark = fence_mark + ?2, \
         watched_until = 0",
        rusqlite::params![boot_id, FENCE_BLOCK],
    )?;
    Ok(())
}

/// Reserves more fences if fewer than `least` are left.
pub(super) fn raise_mark(db: &Connection, least: i64) -> Result<(), Failure> {
    let head = store::head(db)?;
    if head.fence_mark - head.fence >= least {
        return Ok(());
    }
    flushed(db, |db| {
        db.prepare_cached("UPDATE store SET fence_mark = max(fence_mark, fence + ?1)")?
            .execute([FENCE_BLOCK])?;
        Ok(())
    })
}

/// Lets fences go on above all that any state of this file ever gave out.
pub(super) fn bump_epoch(db: &Connection, order: &Bump) -> Result<Bumped, Failure> {
    flushed(db, |db| {
        let head = store::head(db)?;
        let before = head.fence as u64 + 1;
        // Above the mark, not only the count: after a power loss nobody knows what was given out.
        let from = order.floor(head.fence_mark as u64);
        let sql = "UPDATE store SET fence = ?1 - 1, fence_mark = ?1 - 1 + ?2";
        db.prepare_cached(sql)?.execute([from as i64, FENCE_BLOCK])?;
        Ok(Bumped::Raised { before: before.into(), from: from.into() })
    })
}

/// Writes the log back into the database if it has grown.
pub(super) fn write_back(db: &Connection, at_close: bool) -> Result<(), Failure> {
    let log = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    let (pages, written) = db.query_row("PRAGMA wal_checkpoint(NOOP)", [], log)?;
    if at_close && pages >= LOG_PAGES_AT_CLOSE {
        // Truncated as well: whoever opens the file alone reads all of the log, and cannot know
        // how much of it was written back already.
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], log)?;
    } else if pages - written >= LOG_PAGES {
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], log)?;
    }
    Ok(())
}

/// Runs `act` in a transaction that writes.
pub(super) fn transact<T>(
    db: &Connection,
    act: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    finish(db, act(db))
}

/// Runs `act` in a transaction that sees one state of the file.
pub(super) fn read<T>(
    db: &Connection,
    act: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    db.prepare_cached("BEGIN")?.execute([])?;
    finish(db, act(db))
}

fn finish<T>(db: &Connection, outcome: Result<T, Failure>) -> Result<T, Failure> {
    let committed = outcome.and_then(|value| {
        db.prepare_cached("COMMIT")?.execute([])?;
        Ok(value)
    });
    if committed.is_err() && !db.is_autocommit() {
        // After some errors SQLite has rolled back by itself; what counts is the first error.
        let _first_error_counts = db.execute_batch("ROLLBACK");
    }
    committed
}

/// Runs `act` in a transaction that is on the disk when this returns, with all before it.
pub(super) fn flushed<T>(
    db: &Connection,
    act: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    db.pragma_update(None, "synchronous", "FULL")?;
    let outcome = transact(db, act);
    db.pragma_update(None, "synchronous", "NORMAL")?;
    outcome
}

fn pragma(db: &Connection, name: &str) -> Result<i32, Failure> {
    Ok(db.pragma_query_value(None, name, |row| row.get(0))?)
}

fn refuse(path: &Path, reason: String, advice: &'static str) -> Failure {
    Failure::Final(Error::Config(Config::Refused { path: path.into(), reason, advice }))
}
