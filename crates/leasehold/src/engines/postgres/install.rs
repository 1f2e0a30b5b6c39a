//! Installing what a store needs in its database: by one client, however many find it missing.

use tokio_postgres::types::{ToSql, Type};

use super::link::{Link, one};
use super::settings::Settings;
use super::table::schema::{quoted, rename};
use crate::error::Result;

/// The lock that the statements take themselves, taken before.
const BEGIN: &str =
    "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738))";

/// Runs `statements`, unless somebody has made `table` by the time it is this client's turn: run
/// again, they would get in the way of those who use the tables already.
///
/// The inner error is that of a statement; the transaction is open then.
pub(super) async fn unless_made(
    link: &Link,
    settings: &Settings,
    statements: &str,
    table: &str,
) -> Result<std::result::Result<(), tokio_postgres::Error>> {
    if let Err(error) = link.run(settings, &rename(BEGIN, &settings.schema)).await? {
        return Ok(Err(error));
    }
    let table = format!("{}.{table}", quoted(&settings.schema));
    let arguments: [(&(dyn ToSql + Sync), Type); 1] = [(&table, Type::TEXT)];
    let looked = "SELECT to_regclass($1) IS NOT NULL";
    let rows = match link.try_query(settings, looked, &arguments).await? {
        Ok(rows) => rows,
        Err(error) => return Ok(Err(error)),
    };
    let made: bool = one(&settings.store, rows)?.get(0);
    link.run(settings, if made { "COMMIT" } else { statements }).await
}
