//! What SQLite says, in the library's words.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::{Config, Error};

/// Why a transaction did not go through.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another connection writes at this moment: worth another try at once.
    Busy,
    /// No fence is left under the mark: raise it, then try again.
    MarkReached,
    /// What SQLite said.
    Sqlite(rusqlite::Error),
    /// Something in the tables that leasehold never writes.
    Broken(&'static str),
    /// An answer for the caller.
    Final(Error),
}

pub(super) fn broken(what: &'static str) -> Failure {
    Failure::Broken(what)
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Failure::Busy,
            _ => Failure::Sqlite(error),
        }
    }
}

impl Failure {
    /// The error for the caller.
    pub(super) fn into_error(self, path: &Path) -> Error {
        let store = || path.display().to_string();
        let refuse = |reason: &str, advice| {
            Error::Config(Config::Refused { path: path.into(), reason: reason.into(), advice })
        };
        match self {
            Failure::Final(error) => error,
            Failure::Busy => {
                let cause = "other processes kept it busy for too long".into();
                Error::Store { store: store(), cause, transient: true }
            }
            Failure::MarkReached => {
                let cause = "no fence could be reserved".into();
                Error::Store { store: store(), cause, transient: true }
            }
            Failure::Broken(what) => {
                let cause = format!("it contains {what}, which leasehold never writes");
                Error::Store { store: store(), cause, transient: false }
            }
            Failure::Sqlite(error) => match error.sqlite_error_code() {
                Some(ErrorCode::NotADatabase) => {
                    refuse("it is not a database", "name another file, or move this one away")
                }
                Some(ErrorCode::DatabaseCorrupt) => {
                    refuse("the database is damaged", "move it away; a new one is made by itself")
                }
                Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                    refuse("it cannot be written to", "use a file and a folder you may write to")
                }
                Some(ErrorCode::DiskFull) => {
                    let cause = "the disk is full; free some space".into();
                    Error::Store { store: store(), cause, transient: false }
                }
                _ => Error::Store { store: store(), cause: error.to_string(), transient: false },
            },
        }
    }
}
