//! Locks inside a transaction that the caller owns: given back by commit or rollback.
//!
//! They exclude the locks of sessions, and each other. PostgreSQL sees who waits for whom among
//! them, and ends one of those who wait in a circle.

use tokio_postgres::Transaction;

use crate::error::{Cycle, Error, Result};
use crate::rule::name::Name;

use super::super::failure;
use super::keys::AdvisoryKey;

/// Waits for a lock inside a transaction of `tokio-postgres`. Commit or rollback gives it back.
///
/// For any other client run [`AdvisoryKey::lock_statement`].
///
/// # Cancel safety
///
/// A dropped future does not end the statement: the transaction may get the lock later, and has
/// it until it ends.
pub async fn lock_in(transaction: &Transaction<'_>, key: AdvisoryKey, shared: bool) -> Result<()> {
    let locked = transaction.batch_execute(&key.lock_statement(shared)).await;
    locked.map_err(|error| explained(key, error))
}

/// Takes a lock inside a transaction if it is free now; answers whether it did.
///
/// # Cancel safety
///
/// As [`lock_in`].
pub async fn try_lock_in(
    transaction: &Transaction<'_>,
    key: AdvisoryKey,
    shared: bool,
) -> Result<bool> {
    let row = transaction.query_one(&key.try_lock_statement(shared), &[]).await;
    row.map(|row| row.get(0)).map_err(|error| explained(key, error))
}

fn explained(key: AdvisoryKey, error: tokio_postgres::Error) -> Error {
    if failure::code(&error) == Some("40P01")
        && let Ok(name) = Name::new(format!("advisory:{key}"))
    {
        return Error::Deadlock { name, cycle: Cycle(Vec::new()) };
    }
    failure::error("the caller's connection", error)
}
