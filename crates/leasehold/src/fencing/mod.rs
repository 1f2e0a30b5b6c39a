//! The checking half of a fence: resources that refuse late accesses.
//!
//! A lease's [`fence`](crate::Lease::fence) is greater than that of every lease granted on its
//! name before. A guarded resource remembers the greatest fence that it has seen, and refuses every
//! access with a smaller one, *reads included*. So it sees the leases one after the other, even if
//! clocks jump or processes pause. Only this protects data when a process can be paused.
//!
//! | the resource | its guard | where the greatest fence is kept |
//! |---|---|---|
//! | a file | [`GuardedFile`] | beside it |
//! | rows in SQLite | `GuardedSqlite` (feature `sqlite`) | a table of the same database |
//! | rows in PostgreSQL | `GuardedPostgres` (feature `postgres`) | a table of the same database |
//! | keys in Redis | `GuardedRedis` (feature `redis`) | a key of the same slot |
//! | anything behind HTTP | [`HighestSeen`], [`FenceHeader`] | the server's memory |
//!
//! Each guard checks in the same atomic step as the access, in the store that has the data. A check
//! elsewhere, or a moment before, would leave a gap in which the process may pause. A fence equal
//! to the greatest is good: one lease may do many things. All programs that use a resource must
//! check, with fences of one name.
//!
//! The remembered fences must last as long as the store of the locks. A restored backup sets that
//! store back to an older state. Then [`bump_epoch`](crate::Admin::bump_epoch) raises its fences
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

use crate::rule::fence::Fence;

/// An access that came too late: a holder of a newer lease came first.
///
/// Stop, and do not try again with the same lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fence {given} is old: {highest} was seen for `{resource}`; the lease was lost")]
#[non_exhaustive]
pub struct Refused {
    /// The resource.
    pub resource: String,
    /// The fence of the access.
    pub given: Fence,
    /// The greatest fence that the guard has seen.
    pub highest: Fence,
}

/// Why a guarded access failed. `E` is the error of the store that has the data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError<E> {
    /// The access came too late; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store failed. Whether the access took effect is unknown, as with any access to it.
    #[error("the guarded store failed")]
    Store(#[source] E),
    /// The store cannot keep this fence, or its record is no fence.
    #[error("the guard of `{resource}` cannot be used: {reason}")]
    Unusable {
        /// The resource.
        resource: String,
        /// The fault.
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

/// Refuses a fence that is smaller than the greatest one seen.
fn judge(resource: &str, given: Fence, highest: Fence) -> Result<(), Refused> {
    match given < highest {
        true => Err(Refused { resource: resource.to_owned(), given, highest }),
        false => Ok(()),
    }
}

/// A fence for stores whose numbers have a sign.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn signed<E>(resource: &str, fence: Fence) -> Result<i64, GuardError<E>> {
    i64::try_from(fence.as_u64()).map_err(|_| GuardError::Unusable {
        resource: resource.to_owned(),
        reason: "the fence is larger than any that a store gives out",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_the_guarded_store_is_told_once_in_the_chain() {
        let failed = GuardError::Store(std::io::Error::other("the disk is full"));
        let source = std::error::Error::source(&failed).expect("its cause");
        assert_eq!(source.to_string(), "the disk is full");
        assert!(!failed.to_string().contains("disk"), "{failed}");
    }
}
