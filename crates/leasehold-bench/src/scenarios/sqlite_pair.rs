//! The pair in a file: lock a free name and give it back, beside two transactions of SQLite itself
//! with the same settings.
//!
//! "Empty" can have two meanings. A transaction without a statement writes nothing at all: not a
//! page, not a byte of the log. It is the floor. A transaction that changes one row is the least
//! that a lock must write so that others see it. The target means that one.

use std::fs::File;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rustix::fs::FlockOperation;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::progress::Progress;
use crate::report::{Report, Table, span, times};
use crate::scenarios::Setting;
use crate::scenarios::pair::{DROPPED, RELEASED, each};
use crate::stats::{Samples, ratio_of_rounds};

const EMPTY: &str = "two transactions without a statement";
const ONE_ROW: &str = "two transactions that change one row";
const FLOCK: &str = "flock(2), lock + unlock";

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let pairs = setting.either(200, 500);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let runtime = &runtime;
    let client = runtime.block_on(leasehold::connect(setting.scratch.sqlite("pair.db")))?;
    let mutex = &client.mutex("order:42:settle");
    let raw = &raw(&setting.scratch.file("raw.db"))?;
    let file = &File::create(setting.scratch.file("pair.lock"))?;
    let contenders = vec![
        Contender::new(Role::Ours, RELEASED, move || {
            runtime.block_on(each(pairs, async || {
                mutex.lock().await?.release().await?;
                Ok(())
            }))
        }),
        Contender::new(Role::Ours, DROPPED, move || {
            runtime.block_on(each(pairs, async || {
                drop(mutex.lock().await?);
                Ok(())
            }))
        }),
        Contender::new(Role::Limit, EMPTY, move || {
            runtime.block_on(each(pairs, async || {
                empty(raw)?;
                empty(raw)
            }))
        }),
        Contender::new(Role::Limit, ONE_ROW, move || {
            runtime.block_on(each(pairs, async || {
                one_row(raw)?;
                one_row(raw)
            }))
        }),
        Contender::new(Role::Rival, FLOCK, move || {
            runtime.block_on(each(pairs, async || {
                rustix::fs::flock(file, FlockOperation::LockExclusive)?;
                Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
            }))
        }),
    ];
    let outcomes = take_turns(contenders, setting.either(10, 40), progress)?;
    Ok(report(&outcomes))
}

/// A database with the settings of leasehold's own.
fn raw(path: &Path) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    db.pragma_update(None, "page_size", 2048)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "wal_autocheckpoint", 4_000)?;
    db.execute_batch("CREATE TABLE one (n INTEGER NOT NULL); INSERT INTO one VALUES (0)")?;
    Ok(db)
}

fn empty(db: &Connection) -> Result<()> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    db.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

fn one_row(db: &Connection) -> Result<()> {
    db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    db.prepare_cached("UPDATE one SET n = n + 1")?.execute([])?;
    db.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

fn report(outcomes: &[Outcome<Samples>]) -> Report {
    let rounds = |name: &str| {
        let found = outcomes.iter().find(|outcome| outcome.name == name);
        found.map(|outcome| outcome.rounds.as_slice()).unwrap_or_default()
    };
    let mut report = Report::default();
    let mut table = Table::new(["pair", "role", "p50", "p99", "to one row", "to no statement"]);
    for outcome in outcomes {
        let all = Samples::pooled(&outcome.rounds);
        table.row([
            outcome.name.clone(),
            outcome.role.word().into(),
            span(all.p50()),
            span(all.p99()),
            times(ratio_of_rounds(&outcome.rounds, rounds(ONE_ROW))),
            times(ratio_of_rounds(&outcome.rounds, rounds(EMPTY))),
        ]);
    }
    report.table(table);
    report.note(
        "A transaction without a statement writes nothing at all, so it is the floor. A \
         lock that others can see must at least change one row. The target is read as two such \
         transactions.",
    );
    let ratio = ratio_of_rounds(rounds(RELEASED), rounds(ONE_ROW));
    let floor = ratio_of_rounds(rounds(RELEASED), rounds(EMPTY));
    let met = ratio.is_some_and(|ratio| ratio <= 2.0);
    let measured = format!("{} (floor: {})", times(ratio), times(floor));
    report.target("SQLite pair", "at most 2 × two one-row transactions", measured, met);
    report
}
