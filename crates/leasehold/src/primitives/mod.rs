//! The types that callers lock with. Each turns its options into claims on lines.

pub(crate) mod election;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod rate_limiter;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
