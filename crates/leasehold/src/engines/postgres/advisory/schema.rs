//! What advisory locks have in the database: statements under the schema's name, and installing.

use std::borrow::Cow;

use crate::error::{Error, Result};

use super::super::failure;
use super::super::install::unless_made;
use super::super::link::{Link, one};
use super::super::settings::Settings;
use super::super::table::schema::{creation, forbidden, quoted, rename};

/// The layout that this build installs and understands.
pub(super) const VERSION: i32 = 1;

const WRITTEN: &str = "leasehold";
const INSTALL: &str = include_str!("schema.sql");

/// What is sent, under the schema's name.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) identity: String,
    pub(super) begin: String,
    pub(super) fences: String,
    pub(super) inspect: String,
    pub(super) describe: String,
    pub(super) prolong: String,
    pub(super) forget: String,
    pub(super) sweep: String,
    pub(super) guard: String,
    pub(super) tally: String,
    pub(super) totals: String,
    pub(super) bump: String,
    pub(super) examine: String,
    pub(super) collisions: String,
    /// The channel of messages to holders.
    pub(super) for_holders: String,
    pub(super) install: Cow<'static, str>,
}

impl Statements {
    pub(super) fn of(schema: &str) -> Self {
        let named = |statement: &str| rename(statement, schema);
        Self {
            for_holders: named("leasehold.holders"),
            identity: named(
                "SELECT version, store_id, current_setting('server_encoding') \
                 FROM leasehold.advisory",
            ),
            begin: named(
                "SELECT pg_backend_pid(), \
                 floor(extract(epoch FROM a.backend_start) * 1000000)::bigint, \
                 (extract(epoch FROM current_setting('idle_session_timeout')::interval) * 1000)\
                 ::bigint, b.version, b.store_id, b.ttl_ms, b.guard_ms, b.age_ms \
                 FROM leasehold.advisory_begin() b, pg_stat_activity a \
                 WHERE a.pid = pg_backend_pid()",
            ),
            fences: named("'leasehold.advisory_fences'"),
            inspect: named(include_str!("inspect.sql")),
            describe: named(include_str!("describe.sql")),
            prolong: named(
                "UPDATE leasehold.advisory_claims c \
                 SET expires = clock_timestamp() + n.left_us * interval '1 microsecond' \
                 FROM unnest($1::bigint[], $2::bigint[]) AS n (id, left_us) WHERE c.id = n.id",
            ),
            forget: named("DELETE FROM leasehold.advisory_claims WHERE id = ANY($1)"),
            sweep: named(
                "DELETE FROM leasehold.advisory_claims c WHERE NOT EXISTS \
                 (SELECT FROM pg_stat_activity a WHERE a.pid = c.pid AND (a.backend_start IS NULL \
                 OR c.backend = floor(extract(epoch FROM a.backend_start) * 1000000)::bigint))",
            ),
            guard: named(
                "UPDATE leasehold.advisory SET ttl_ms = greatest(ttl_ms, $1) WHERE ttl_ms < $1",
            ),
            tally: named(
                "UPDATE leasehold.advisory SET acquired = acquired + $1, released = released + $2, \
                 contended = contended + $3, expired = expired + $4, lost = lost + $5",
            ),
            totals: named(
                "SELECT acquired, released, contended, expired, lost FROM leasehold.advisory",
            ),
            bump: named("SELECT before, first FROM leasehold.advisory_bump($1, $2)"),
            examine: named(include_str!("examine.sql")),
            collisions: named(
                "SELECT string_agg(DISTINCT name, ', ' ORDER BY name) \
                 FROM leasehold.advisory_claims GROUP BY class, object, kind \
                 HAVING count(DISTINCT name) > 1 LIMIT 5",
            ),
            install: install_text(schema),
        }
    }
}

/// The statements that install a schema.
fn install_text(schema: &str) -> Cow<'static, str> {
    if schema == WRITTEN { INSTALL.into() } else { rename(INSTALL, schema).into() }
}

/// Finds the store; `None` if it is not installed.
pub(super) async fn find(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
) -> Result<Option<u128>> {
    let rows = match link.try_query(settings, &statements.identity, &[]).await? {
        Err(error) if failure::is_uninstalled(&error) => return Ok(None),
        answer => answer.map_err(|error| explained(settings, error))?,
    };
    let row = one(&settings.store, rows)?;
    check(settings, row.get(0))?;
    check_encoding(settings, row.get(2))?;
    store_id(settings, row.get(1)).map(Some)
}

/// The id of a store in the bytes it is kept in.
pub(super) fn store_id(settings: &Settings, bytes: &[u8]) -> Result<u128> {
    let id: Option<[u8; 16]> = bytes.try_into().ok();
    let id = id.ok_or_else(|| failure::broken(&settings.store, "an odd store id"))?;
    Ok(u128::from_be_bytes(id))
}

/// Refuses a layout of another version.
pub(super) fn check(settings: &Settings, version: i32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let reason = format!(
        "its advisory part in schema `{}` has version {version}, and this build knows version \
         {VERSION}",
        settings.schema
    );
    Err(failure::unfit(&settings.store, reason, failure::OTHER_VERSION))
}

/// Refuses a database that cannot keep every name.
fn check_encoding(settings: &Settings, encoding: &str) -> Result<()> {
    if ["UTF8", "SQL_ASCII"].contains(&encoding) {
        return Ok(());
    }
    let reason = format!("its encoding is {encoding}, which cannot keep every name");
    Err(failure::unfit(&settings.store, reason, failure::OTHER_ENCODING))
}

/// Installs the schema; harmless when it is there.
pub(super) async fn install(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
) -> Result<()> {
    let installed = unless_made(link, settings, &statements.install, "advisory").await?;
    let Err(error) = installed else { return Ok(()) };
    // The transaction that failed is still open on this connection, and ends with it.
    link.set_aside();
    Err(match failure::is_forbidden(&error) {
        true => forbidden(settings, &creation(settings)),
        false => failure::error(&settings.store, error),
    })
}

/// An error for the caller; where a right is missing, with the statements that give it.
pub(super) fn explained(settings: &Settings, error: tokio_postgres::Error) -> Error {
    // A table that is not logged is not there while the server follows another.
    let follows = failure::code(&error) == Some("0A000") && error.to_string().contains("recovery");
    match failure::is_forbidden(&error) {
        true => forbidden(settings, &grants(settings)),
        false if follows => Error::Store {
            store: settings.store.clone(),
            cause: "this server is a standby; name the primary, or all servers, in the url".into(),
            transient: true,
        },
        false => failure::error(&settings.store, error),
    }
}

/// What lets this user work in a schema of somebody else's.
fn grants(settings: &Settings) -> String {
    let user = quoted(settings.config.get_user().unwrap_or_default());
    let schema = quoted(&settings.schema);
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}; \
         GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {user};"
    )
}
