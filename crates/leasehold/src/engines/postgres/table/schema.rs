//! The store's schema: its statements, under the name it was given, and installing it.

use std::borrow::Cow;

use crate::clock::remote::Reading;
use crate::clock::{Clock, SystemClock};
use crate::error::{Config, Error, Result};

use super::super::failure;
use super::super::install::unless_made;
use super::super::link::{Link, one};
use super::super::settings::Settings;

/// The layout that this build installs and understands.
const VERSION: i32 = 1;

/// How the statements below call the schema.
const WRITTEN: &str = "leasehold";

const INSTALL: &str = concat!(
    include_str!("tables.sql"),
    include_str!("rule.sql"),
    include_str!("verbs.sql"),
    include_str!("amend.sql"),
    include_str!("epoch.sql"),
    include_str!("views.sql"),
    include_str!("guards.sql"),
    include_str!("plain.sql"),
);

/// What the verbs send, and the channels they hear on.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) identity: String,
    pub(super) claim: String,
    /// The same for a claim that is in line already; it shows the server's clock.
    pub(super) claim_again: String,
    pub(super) claim_all: String,
    pub(super) renew: String,
    pub(super) release: String,
    pub(super) keep_closed: String,
    /// What is prepared: the usual cases of claiming and of giving back.
    pub(super) take: String,
    pub(super) part: String,
    pub(super) join: String,
    pub(super) confirm: String,
    pub(super) hand: String,
    pub(super) ring: String,
    pub(super) amend: String,
    pub(super) resize: String,
    pub(super) bump: String,
    pub(super) inspect: String,
    pub(super) announce: String,
    pub(super) waits_of: String,
    pub(super) evict: String,
    pub(super) steal: String,
    pub(super) tally: String,
    pub(super) totals: String,
    pub(super) watch: String,
    pub(super) unwatch: String,
    pub(super) examine: String,
    /// What bells are sent to that all clients hear.
    pub(super) bells: String,
    pub(super) listen_events: String,
    /// The channel of messages to holders.
    pub(super) for_holders: String,
    pub(super) install: Cow<'static, str>,
}

impl Statements {
    pub(super) fn of(schema: &str) -> Self {
        let named = |statement: &str| rename(statement, schema);
        let (bells, events) = (named("leasehold.bells"), named("leasehold.events"));
        Self {
            identity: named(
                "SELECT version, store_id, current_setting('server_encoding'), \
                 (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_backend_pid() \
                 FROM leasehold.store",
            ),
            claim: named(
                "SELECT * FROM leasehold.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            ),
            claim_again: named(
                "SELECT *, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us \
                 FROM leasehold.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            ),
            claim_all: named("SELECT * FROM leasehold.claim_all($1, $2, $3, $4, $5, $6, $7, $8)"),
            renew: named(
                "SELECT *, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us \
                 FROM leasehold.renew($1, $2, $3, $4)",
            ),
            release: named("SELECT * FROM leasehold.release($1, $2)"),
            keep_closed: named("SELECT * FROM leasehold.keep_closed($1, $2, $3, $4)"),
            take: named(include_str!("take.sql")),
            part: named(include_str!("part.sql")),
            join: named(include_str!("join.sql")),
            confirm: named(include_str!("confirm.sql")),
            hand: named(include_str!("hand.sql")),
            ring: named(include_str!("ring.sql")),
            amend: named("SELECT * FROM leasehold.amend($1, $2, $3, $4, $5)"),
            resize: named("SELECT * FROM leasehold.resize($1, $2)"),
            bump: named("SELECT * FROM leasehold.bump_epoch($1, $2)"),
            inspect: named("SELECT * FROM leasehold.inspect($1, $2, $3, $4, $5)"),
            announce: named("SELECT leasehold.announce($1, $2, $3, $4)"),
            waits_of: named("SELECT * FROM leasehold.waits_of($1)"),
            evict: named("SELECT * FROM leasehold.evict($1, $2, $3)"),
            steal: named("SELECT * FROM leasehold.steal($1, $2, $3, $4, $5, $6, $7, $8)"),
            tally: named("SELECT leasehold.tally($1, $2, $3, $4, $5)"),
            totals: named("SELECT * FROM leasehold.totals()"),
            watch: named("SELECT leasehold.watch($1, $2)"),
            unwatch: named("SELECT leasehold.unwatch($1)"),
            examine: named(include_str!("examine.sql")),
            bells,
            for_holders: named("leasehold.holders"),
            listen_events: format!("LISTEN {}", quoted(&events)),
            install: install_text(schema),
        }
    }
}

pub(in super::super) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Writes another schema's name into statements. It is quoted, because it may be a word of SQL's.
pub(in super::super) fn rename(statements: &str, schema: &str) -> String {
    if schema == WRITTEN {
        return statements.to_owned();
    }
    statements
        .replace("leasehold.", &format!("\"{schema}\"."))
        .replace("'leasehold'", &format!("'\"{schema}\"'"))
        .replace("SCHEMA leasehold;", &format!("SCHEMA \"{schema}\";"))
}

/// The statements that install a schema.
fn install_text(schema: &str) -> Cow<'static, str> {
    if schema == WRITTEN { INSTALL.into() } else { rename(INSTALL, schema).into() }
}

/// A store as a connection found it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) store_id: u128,
    /// What its clock shows.
    pub(super) reading: Reading,
    /// The server process that answered.
    pub(super) process: i32,
}

/// Finds the store on a new connection, and installs it if it is not there.
///
/// Not where the settings rule that out; asking for it by name does it all the same.
pub(super) async fn find_or_install(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
) -> Result<Found> {
    if let Some(found) = find(link, settings, statements).await? {
        return Ok(found);
    }
    if !settings.install {
        let cause = "it is not installed; run `leasehold init`".to_owned();
        return Err(Error::Store { store: settings.store.clone(), cause, transient: false });
    }
    install(link, settings, statements).await?;
    let found = find(link, settings, statements).await?;
    found.ok_or_else(|| failure::broken(&settings.store, "no tables after making them"))
}

/// Finds the store on a new connection; `None` if it is not installed.
pub(super) async fn find(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
) -> Result<Option<Found>> {
    let sent = SystemClock.now();
    let rows = match link.try_query(settings, &statements.identity, &[]).await? {
        Err(error) if failure::is_uninstalled(&error) => return Ok(None),
        answer => answer,
    };
    let received = SystemClock.now();
    let rows = rows.map_err(|error| match failure::is_forbidden(&error) {
        true => forbidden(settings, &grants(settings)),
        false => failure::error(&settings.store, error),
    })?;
    let row = one(&settings.store, rows)?;
    check(settings, row.get(0), row.get(2))?;
    let id: Option<[u8; 16]> = row.get::<_, &[u8]>(1).try_into().ok();
    let id = id.ok_or_else(|| failure::broken(&settings.store, "an odd store id"))?;
    let time = u64::try_from(row.get::<_, i64>(3)).unwrap_or_default();
    let reading = Reading { sent, received, time };
    Ok(Some(Found { store_id: u128::from_be_bytes(id), reading, process: row.get(4) }))
}

fn check(settings: &Settings, version: i32, encoding: &str) -> Result<()> {
    if version != VERSION {
        let reason = format!(
            "its schema `{}` has version {version}, and this build knows version {VERSION}",
            settings.schema
        );
        return Err(failure::unfit(&settings.store, reason, failure::OTHER_VERSION));
    }
    if encoding != "UTF8" {
        let reason = format!("its encoding is {encoding}, which cannot keep every name");
        return Err(failure::unfit(&settings.store, reason, failure::OTHER_ENCODING));
    }
    Ok(())
}

/// Installs the schema; harmless when it is there.
pub(super) async fn install(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
) -> Result<()> {
    let installed = unless_made(link, settings, &statements.install, "store").await?;
    let Err(error) = installed else { return Ok(()) };
    // The transaction that failed is still open on this connection, and ends with it.
    link.set_aside();
    Err(match failure::is_forbidden(&error) {
        true => forbidden(settings, &creation(settings)),
        false => failure::error(&settings.store, error),
    })
}

/// Whether the store cannot be used for want of a right to install it or to use it.
pub(in super::super) fn is_right_missing(error: &Error) -> bool {
    matches!(error, Error::Config(Config::RightMissing { .. }))
}

pub(in super::super) fn forbidden(settings: &Settings, statements: &str) -> Error {
    let (store, statements) = (settings.store.clone(), statements.to_owned());
    Error::Config(Config::RightMissing { store, statements })
}

/// What lets this user install the rest himself.
pub(in super::super) fn creation(settings: &Settings) -> String {
    let user = quoted(settings.config.get_user().unwrap_or_default());
    format!("CREATE SCHEMA {} AUTHORIZATION {user};", quoted(&settings.schema))
}

/// What lets this user work in a schema of somebody else's.
fn grants(settings: &Settings) -> String {
    let user = quoted(settings.config.get_user().unwrap_or_default());
    let schema = quoted(&settings.schema);
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {user}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {user};"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_schema_is_named_wherever_ours_was() {
        let text = install_text("order");
        assert!(text.contains("CREATE SCHEMA \"order\";"));
        assert!(text.contains("to_regnamespace('\"order\"')"));
        assert!(!text.contains("leasehold."), "no statement is left with the usual name");
        assert_eq!(quoted(&Statements::of("order").bells), "\"\"\"order\"\".bells\"");
        assert_eq!(install_text(WRITTEN), INSTALL);
    }
}
