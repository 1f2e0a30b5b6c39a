//! The checking half of a fence: resources that refuse whoever comes too late.
//!
//! A lease's [`fence`](crate::Lease::fence) is greater than that of every lease granted on its
//! name before. A resource that remembers the greatest fence it has seen, and refuses every access
//! with a smaller one, *reads included*, sees whole tenures one after the other, whatever clocks
//! and pauses do. Nothing but that protects data when a process can be paused.
//!
//! | the resource | its guard | where the greatest fence is kept |
//! |---|---|---|
//! | a file | [`GuardedFile`] | beside it |
//! | rows in SQLite | `GuardedSqlite` (feature `sqlite`) | a table of the same database |
//! | rows in PostgreSQL | `GuardedPostgres` (feature `postgres`) | a table of the same database |
//! | keys in Redis | `GuardedRedis` (feature `redis`) | a key of the same slot |
//! | whatever is behind HTTP | [`HighestSeen`], [`FenceHeader`] | the server's memory |
//!
//! All check in the same atomic step in which the access happens, in the store that has the data;
//! a check somewhere else, or a moment before, would leave a gap to be paused in. A fence equal to
//! the greatest is good: one lease may do many things. All who use a resource must check, with
//! fences of one name.
//!
//! What is remembered must last as long as the store of the locks. If that is set back to an older
//! state, as by restoring a backup, [`bump_epoch`](crate::Client::bump_epoch) raises its fences
//! above all that guards may have seen.

mod file;
mod http;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use file::GuardedFile;
pub use http::{FenceHeader, HeaderError, HighestSeen, HttpRefusal, Turn};
#[cfg(feature = "postgres")]
pub use postgres::GuardedPostgres;
#[cfg(feature = "redis")]
pub use redis::{GuardedRedis, GuardedScript};
#[cfg(feature = "sqlite")]
pub use sqlite::GuardedSqlite;

/// An access that came too late: somebody with a newer lease was here already.
///
/// Stop, and do not try again with the same lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fence {given} is old: {highest} was seen for `{resource}`; the lease was lost")]
pub struct Refused {
    /// What was to be accessed.
    pub resource: String,
    /// The fence of the access.
    pub given: u64,
    /// The greatest that was seen.
    pub highest: u64,
}

/// Why a guarded access failed. `E` is the error of the store that has the data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError<E> {
    /// It came too late; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store failed. Whether anything was done is as unknown as with any access to it.
    #[error("the guarded store failed: {0}")]
    Store(#[source] E),
    /// The store cannot keep this fence, or what it kept is no fence.
    #[error("the guard of `{resource}` cannot be used: {reason}")]
    Unusable {
        /// What was to be accessed.
        resource: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl<E> GuardError<E> {
    /// The refusal, if it is one.
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            GuardError::Refused(refused) => Some(refused),
            _ => None,
        }
    }
}

/// Refuses a fence that is smaller than the greatest seen.
fn judge(resource: &str, given: u64, highest: u64) -> Result<(), Refused> {
    match given < highest {
        true => Err(Refused { resource: resource.to_owned(), given, highest }),
        false => Ok(()),
    }
}

/// A fence for stores whose numbers have a sign.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn signed<E>(resource: &str, fence: u64) -> Result<i64, GuardError<E>> {
    i64::try_from(fence).map_err(|_| GuardError::Unusable {
        resource: resource.to_owned(),
        reason: "the fence is larger than any that a store gives out",
    })
}
