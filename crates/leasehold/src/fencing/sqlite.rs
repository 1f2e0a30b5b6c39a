//! Rows in SQLite that are read and written under a fence, in the user's own transaction.

use rusqlite::{Connection, OptionalExtension, Transaction};

use super::{GuardError, judge, signed};
use crate::rule::fence::Fence;

type Result<T> = std::result::Result<T, GuardError<rusqlite::Error>>;

/// A guard in the user's own database, in the table `leasehold_guards`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::fencing::GuardedSqlite;
///
/// let mut db = rusqlite::Connection::open_in_memory()?;
/// db.execute("CREATE TABLE account (id INTEGER, balance INTEGER)", [])?;
/// let guard = GuardedSqlite::install(&db)?;
///
/// let fence = 7; // lease.fence()
/// let change = db.transaction()?;
/// guard.check(&change, "account 1", fence)?;
/// change.execute("UPDATE account SET balance = balance - 10 WHERE id = 1", [])?;
/// change.commit()?;
///
/// guard.check(&db.transaction()?, "account 1", 6).expect_err("7 was here");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GuardedSqlite {
    _installed: (),
}

impl GuardedSqlite {
    /// The statement of [`install`](Self::install), for users who manage their schema themselves.
    pub const SCHEMA: &'static str = "CREATE TABLE IF NOT EXISTS leasehold_guards \
         (resource TEXT PRIMARY KEY, fence INTEGER NOT NULL) WITHOUT ROWID";

    /// Creates the table if it does not exist.
    pub fn install(db: &Connection) -> Result<Self> {
        db.execute(Self::SCHEMA, []).map_err(GuardError::Store)?;
        Ok(Self { _installed: () })
    }

    /// Refuses an old fence and remembers a new one. Call it first in the transaction that reads
    /// or writes the resource. If it refuses, end the transaction without a commit.
    ///
    /// It keeps other connections from writing to the database until the transaction ends, so no
    /// newer fence can come in between. A commit makes the new fence count: commit transactions
    /// that only read, too.
    pub fn check(
        &self,
        change: &Transaction<'_>,
        resource: &str,
        fence: impl Into<Fence>,
    ) -> Result<()> {
        let fence = fence.into();
        let number = signed(resource, fence)?;
        let highest = raise(change, resource, number).map_err(GuardError::Store)?;
        Ok(judge(resource, fence, u64::try_from(highest).unwrap_or(0).into())?)
    }

    /// Forgets a resource whose fences will never be checked again.
    pub fn forget(&self, change: &Transaction<'_>, resource: &str) -> Result<()> {
        let sql = "DELETE FROM leasehold_guards WHERE resource = ?1";
        change.execute(sql, [resource]).map(|_rows| ()).map_err(GuardError::Store)
    }
}

/// Raises the remembered fence; returns the greatest one seen.
fn raise(db: &Connection, resource: &str, fence: i64) -> rusqlite::Result<i64> {
    // This always writes, even if there is nothing to raise, because it must take the write lock.
    db.prepare_cached(
        "INSERT INTO leasehold_guards (resource, fence) VALUES (?1, ?2) \
         ON CONFLICT (resource) DO UPDATE SET fence = max(fence, excluded.fence)",
    )?
    .execute((resource, fence))?;
    let sql = "SELECT fence FROM leasehold_guards WHERE resource = ?1";
    let highest = db.prepare_cached(sql)?.query_row([resource], |row| row.get(0)).optional()?;
    Ok(highest.unwrap_or(fence))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn open(path: &Path) -> (Connection, GuardedSqlite) {
        let db = Connection::open(path).expect("a database");
        db.busy_timeout(Duration::from_secs(30)).expect("set");
        db.execute("CREATE TABLE IF NOT EXISTS data (id INTEGER PRIMARY KEY, fence INTEGER)", [])
            .expect("a table");
        let guard = GuardedSqlite::install(&db).expect("installed");
        (db, guard)
    }

    #[test]
    fn an_old_fence_is_refused_and_an_equal_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut db, guard) = open(&folder.path().join("db"));
        for fence in [5, 5, 8] {
            let change = db.transaction().expect("begun");
            guard.check(&change, "r", fence).expect("not old");
            change.commit().expect("committed");
        }
        let change = db.transaction().expect("begun");
        let late = guard.check(&change, "r", 7).expect_err("8 was here");
        let expected = super::super::Refused {
            resource: "r".into(),
            given: 7_u64.into(),
            highest: 8_u64.into(),
        };
        assert_eq!(late.refused(), Some(&expected));
        guard.check(&change, "other", 1).expect("another resource");
        guard.forget(&change, "r").expect("forgotten");
        guard.check(&change, "r", 1).expect("nothing is known of it");
        drop(change);
        let again = open(&folder.path().join("db"));
        drop(db);
        let mut db = again.0;
        let change = db.transaction().expect("begun");
        assert!(guard.check(&change, "r", 7).is_err(), "what was rolled back was not forgotten");
        assert!(matches!(guard.check(&change, "r", u64::MAX), Err(GuardError::Unusable { .. })));
    }

    #[test]
    fn twelve_connections_that_start_at_once_install_one_guard() {
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("db");
            let start = std::sync::Barrier::new(12);
            std::thread::scope(|scope| {
                for _ in 0..12 {
                    scope.spawn(|| {
                        let mut db = Connection::open(&path).expect("a database");
                        start.wait();
                        let guard = GuardedSqlite::install(&db).expect("installed");
                        let behaviour = rusqlite::TransactionBehavior::Immediate;
                        let change = db.transaction_with_behavior(behaviour).expect("begun");
                        guard.check(&change, "r", 5).expect("not old");
                        change.commit().expect("committed");
                    });
                }
            });
        }
    }

    #[test]
    fn among_many_connections_what_is_accepted_never_goes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("db");
        drop(open(&path));
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let path = &path;
                scope.spawn(move || {
                    let (mut db, guard) = open(path);
                    for round in 0..25_u64 {
                        let fence = round * 6 + (thread * 5) % 6;
                        let behaviour = rusqlite::TransactionBehavior::Immediate;
                        let change = db.transaction_with_behavior(behaviour).expect("begun");
                        match guard.check(&change, "r", fence) {
                            Ok(()) => {
                                let sql = "INSERT INTO data (fence) VALUES (?1)";
                                change.execute(sql, [fence as i64]).expect("written");
                                change.commit().expect("committed");
                            }
                            Err(error) => assert!(error.refused().is_some(), "{error}"),
                        }
                    }
                });
            }
        });
        let (db, _) = open(&path);
        let mut select = db.prepare("SELECT fence FROM data ORDER BY id").expect("prepared");
        let fences = select.query_map([], |row| row.get::<_, i64>(0)).expect("read");
        let fences: Vec<i64> = fences.collect::<rusqlite::Result<_>>().expect("read");
        assert!(fences.is_sorted() && !fences.is_empty(), "{fences:?}");
    }
}
