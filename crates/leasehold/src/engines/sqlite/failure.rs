//! What SQLite says, in the library's words.

use std::fs::File;
use std::io;
use std::path::Path;

use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_WRITE};
use rustix::io::Errno;

use crate::error::{Config, Error};

/// Why a transaction did not go through.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another connection writes at this moment: worth another try at once.
    Busy,
    /// This process, or the machine, may not open another file at this moment.
    TooManyFiles,
    /// Fewer fences than these are left under the mark: raise it, then try again.
    MarkReached(i64),
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
            // SQLite does not say why. What it could not open leaves no room for this either.
            Some(ErrorCode::CannotOpen) if File::open("/").is_err_and(|e| is_too_many(&e)) => {
                Failure::TooManyFiles
            }
            _ => Failure::Sqlite(error),
        }
    }
}

/// Whether no other file may be opened at this moment.
pub(super) fn is_too_many(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The error for that.
pub(super) fn too_many_files(path: &Path) -> Error {
    let cause = "too many open files; raise the limit (`ulimit -n`)".into();
    Error::Store { store: path.display().to_string(), cause, transient: true }
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
            Failure::TooManyFiles => too_many_files(path),
            Failure::MarkReached(_) => {
                let cause = "no fence could be reserved".into();
                Error::Store { store: store(), cause, transient: true }
            }
            Failure::Broken(what) => {
                let cause = format!(
                    "it contains {what}, which leasehold never writes; see `leasehold doctor`"
                );
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
                Some(ErrorCode::SystemIoFailure) if may_not_grow(&error) => {
                    let cause = "a file cannot be written: at the limit of file sizes \
                                 (`ulimit -f`), at a quota, or on a broken disk";
                    Error::Store { store: store(), cause: cause.into(), transient: false }
                }
                _ => Error::Store { store: store(), cause: error.to_string(), transient: false },
            },
        }
    }
}

/// Whether a write failed for another reason than a full disk.
fn may_not_grow(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(SQLITE_IOERR_WRITE | SQLITE_IOERR_SHMSIZE))
}
