//! Rows in PostgreSQL that are read and written under a fence, in the user's own transaction.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

use super::{GuardError, judge, signed};
use crate::rule::fence::Fence;

const GUARDS: &str = include_str!("../engines/postgres/table/guards.sql");

type Result<T> = std::result::Result<T, GuardError<tokio_postgres::Error>>;

/// A guard in the user's own database, in the table `guards` of a schema.
///
/// The lease table's schema has it already. Other databases get it from
/// [`install`](Self::install). Clients of other languages call the function
/// `fence_check(resource, fence)` that is beside it: see [`statement`](Self::statement).
///
/// ```no_run
/// # async fn change(db: &mut tokio_postgres::Client, lease: leasehold::Lease)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::fencing::GuardedPostgres;
///
/// let guard = GuardedPostgres::new("leasehold");
/// let change = db.transaction().await?;
/// guard.check(&change, "account 7", lease.fence()).await?;
/// change.execute("UPDATE account SET balance = balance - 10 WHERE id = 7", &[]).await?;
/// change.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GuardedPostgres {
    /// In quotes.
    schema: String,
}

impl GuardedPostgres {
    /// The guard in this schema; by default the lease table's schema is `leasehold`.
    pub fn new(schema: &str) -> Self {
        Self { schema: format!("\"{}\"", schema.replace('"', "\"\"")) }
    }

    /// The statement that checks, for any client and language: `$1` is the resource and `$2` the
    /// fence. Where [`check`](Self::check) refuses, the statement fails with SQLSTATE 55000. That
    /// ends the transaction.
    pub fn statement(&self) -> String {
        format!("SELECT {}.fence_check($1, $2)", self.schema)
    }

    /// The statements of [`install`](Self::install), for users who manage their schema themselves.
    pub fn schema_statements(&self) -> String {
        let schema = &self.schema;
        let guards = GUARDS.replace("leasehold.", &format!("{schema}."));
        // Takes the same lock as the lease table's statements, under the same name. Without it one
        // of two concurrent creations fails, even with `IF NOT EXISTS` and `OR REPLACE`.
        let store = if schema == "\"leasehold\"" { "leasehold" } else { schema };
        let store = store.replace('\'', "''");
        format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('{store}.store', 7738));\n\
             CREATE SCHEMA IF NOT EXISTS {schema};\n{guards}"
        )
    }

    /// Creates the schema, the table and the functions if they do not exist. Other transactions
    /// that install them at the same time wait until this one ends.
    pub async fn install(&self, change: &Transaction<'_>) -> Result<()> {
        change.batch_execute(&self.schema_statements()).await.map_err(GuardError::Store)
    }

    /// Refuses an old fence and remembers a new one. Call it first in the transaction that reads
    /// or writes the resource. If it refuses, roll the transaction back.
    ///
    /// Other checks of the same resource wait until the transaction ends, so no newer fence can
    /// come in between. A commit makes the new fence count: commit read-only transactions, too.
    pub async fn check(
        &self,
        change: &Transaction<'_>,
        resource: &str,
        fence: impl Into<Fence>,
    ) -> Result<()> {
        let fence = fence.into();
        let number = signed(resource, fence)?;
        // It locks the row in any case. It returns no row if the remembered fence is greater.
        let raise = format!(
            "INSERT INTO {}.guards AS g VALUES ($1, $2) \
             ON CONFLICT ON CONSTRAINT guards_pkey DO UPDATE SET fence = excluded.fence \
             WHERE g.fence <= excluded.fence RETURNING g.fence",
            self.schema
        );
        if !self
            .ask(change, &raise, &[(&resource, Type::TEXT), (&number, Type::INT8)])
            .await?
            .is_empty()
        {
            return Ok(());
        }
        let look = format!("SELECT fence FROM {}.guards WHERE resource = $1", self.schema);
        let rows = self.ask(change, &look, &[(&resource, Type::TEXT)]).await?;
        let highest = rows.first().map_or(i64::MAX, |row| row.get(0));
        judge(resource, fence, u64::try_from(highest).unwrap_or(u64::MAX).into())?;
        Err(GuardError::Unusable { resource: resource.to_owned(), reason: "its row vanished" })
    }

    /// Forgets a resource whose fences will never be checked again.
    pub async fn forget(&self, change: &Transaction<'_>, resource: &str) -> Result<()> {
        let forget = format!("DELETE FROM {}.guards WHERE resource = $1", self.schema);
        self.ask(change, &forget, &[(&resource, Type::TEXT)]).await.map(|_rows| ())
    }

    async fn ask(
        &self,
        change: &Transaction<'_>,
        statement: &str,
        arguments: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>> {
        change.query_typed(statement, arguments).await.map_err(GuardError::Store)
    }
}
