//! What PostgreSQL says, in the library's words.

use tokio_postgres::error::DbError;

use crate::error::{Config, Error, UnreachableReason};

/// An error of a connection or a statement, for the caller. `store` is the address without secrets.
pub(super) fn error(store: &str, error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) => refused(store, said),
        None => Error::unreachable_by(store, reason(&error), error),
    }
}

fn reason(error: &tokio_postgres::Error) -> UnreachableReason {
    match UnreachableReason::of(error) {
        UnreachableReason::Other if error.is_closed() => UnreachableReason::Broken,
        reason => reason,
    }
}

/// No answer came within the time limit.
pub(super) fn silent(store: &str, what: &str, limit: std::time::Duration) -> Error {
    let cause = format!("{what} within {limit:?}");
    Error::unreachable(store, UnreachableReason::NoAnswer, cause)
}

/// Something in the tables or an answer that leasehold never writes.
pub(super) fn broken(store: &str, what: &str) -> Error {
    let cause = format!("it answered with {what}, which leasehold never writes");
    Error::Store { store: store.to_owned(), cause, transient: false }
}

const NO_CONNECTION_LEFT: &str = "no connection is left: raise max_connections, or the limit of \
                                  this role or database, or run fewer clients at once";
pub(super) const OTHER_VERSION: &str =
    "use the leasehold version that made it, or another schema: `?schema=NAME`";
pub(super) const OTHER_ENCODING: &str = "use a database in UTF8";

/// A database in which this build cannot keep a store.
pub(super) fn unfit(store: &str, reason: String, advice: &'static str) -> Error {
    Error::Config(Config::Unfit { store: store.to_owned(), reason, advice })
}

/// Whether the statement could not run because the store's schema is not there.
pub(super) fn is_uninstalled(error: &tokio_postgres::Error) -> bool {
    // Undefined table, undefined function, invalid schema name.
    matches!(code(error), Some("42P01" | "42883" | "3F000"))
}

/// Whether a line was locked for as long as a statement waits for it.
pub(super) fn is_locked_out(error: &tokio_postgres::Error) -> bool {
    code(error) == Some("55P03")
}

/// Whether a right is missing.
pub(super) fn is_forbidden(error: &tokio_postgres::Error) -> bool {
    code(error) == Some("42501")
}

/// Whether the connection is of no more use after this.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    error.is_closed()
        || error.as_db_error().is_none()
        // The server shuts down, or became a standby: another connection may find another server.
        || code(error).is_some_and(|code| code.starts_with("57P") || code == "25006")
}

pub(super) fn code(error: &tokio_postgres::Error) -> Option<&str> {
    error.code().map(|state| state.code())
}

fn refused(store: &str, said: &DbError) -> Error {
    let (transient, advice) = verdict(said.code().code());
    // Wrong password or user, no such database, a right that is missing.
    if ["28P01", "28000", "3D000", "42501"].contains(&said.code().code()) {
        return denied(store, said, advice);
    }
    let cause = match advice {
        "" => format!("{} ({})", said.message(), said.code().code()),
        advice => format!("{} ({}); {advice}", said.message(), said.code().code()),
    };
    Error::Store { store: store.to_owned(), cause, transient }
}

/// The server does not let this user in, or not do what is needed.
fn denied(store: &str, said: &DbError, advice: &'static str) -> Error {
    let (store, reason) =
        (store.to_owned(), format!("{} ({})", said.message(), said.code().code()));
    Error::Config(Config::Denied { store, reason, advice })
}

/// Whether the same request may succeed later, and what to do about it.
fn verdict(code: &str) -> (bool, &'static str) {
    match code {
        "28P01" | "28000" => (
            false,
            "check user and password: in the url, PGPASSWORD or the password file, and pg_hba.conf",
        ),
        "3D000" => (false, "create the database, or name another one in the url"),
        "42P01" | "42883" | "3F000" => (false, "run `leasehold init`"),
        "42501" => (false, "grant what `leasehold init --print` needs, or use another role"),
        "53200" => (
            false,
            "raise max_locks_per_transaction or the memory of the server, or hold fewer locks",
        ),
        "53100" => (false, "free some space on the server's disk"),
        "53300" => (true, NO_CONNECTION_LEFT),
        "55P03" => (true, "another transaction keeps the line locked; see pg_stat_activity"),
        "25006" => (true, "this server is a standby; name the primary, or all servers, in the url"),
        // Insufficient resources, operator intervention, connection trouble, transaction rollback.
        code if ["53", "57", "08", "40"].iter().any(|class| code.starts_with(class)) => (true, ""),
        _ => (false, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        for code in ["53300", "55P03", "57P01", "57P03", "40001", "40P01", "08006", "25006"] {
            assert!(verdict(code).0, "{code}");
        }
        for code in ["28P01", "3D000", "42501", "42P01", "53100", "53200", "22023"] {
            assert!(!verdict(code).0, "{code}");
        }
    }
}
