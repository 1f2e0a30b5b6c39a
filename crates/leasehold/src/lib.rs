//! Only one process at a time does a thing, on one machine or many.
//!
//! Connect to a store, take a [`Lease`] on a name, hand its [`fence`](Lease::fence) (a *fencing
//! token*) to the resource that the lock protects, and give it back. Claims on one name wait in
//! line (a *queue*), and are granted in order:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let client = leasehold::connect("memory:").await?;
//! client
//!     .with("order:42:settle", async |lease| {
//!         println!("charging with fence {}", lease.fence());
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! A lease is renewed until it is given back. It tells the truth about itself: [`Lease::state`]
//! says held, uncertain or lost, counted on a clock that runs on through suspend, and never says
//! held after [`Lease::safe_until`]. That is a statement about time; **only a fence that is
//! checked protects data when a process can be paused.**

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod blocking;
mod client;
pub mod clock;
pub mod engine;
mod engines;
pub mod error;
pub mod fencing;
mod handle;
mod lease;
pub mod observe;
mod primitives;
mod rule;
mod runtime;
mod seeded;

#[cfg(feature = "postgres")]
pub mod advisory {
    //! PostgreSQL's advisory locks for transactions of your own, and the keys of names.
    //!
    //! For leases on advisory locks, make a client with a `postgres+advisory:` URL. This module is
    //! for locks that end with a transaction: the number that a name stands for, and the statement
    //! that locks it.

    pub use crate::engines::postgres::advisory::{AdvisoryKey, Keys, lock_in, try_lock_in};
}

pub mod scope {
    //! Says which task takes a lease or waits, for callers whose tasks tokio does not know.

    pub use crate::runtime::scope::{of_task, within};
}

pub use client::{Client, ClientBuilder, connect};
pub use engine::layer;
#[cfg(feature = "etcd")]
pub use engines::etcd;
#[cfg(feature = "postgres")]
pub use engines::postgres;
#[cfg(feature = "redis")]
pub use engines::redis;
#[cfg(feature = "sqlite")]
pub use engines::sqlite;
#[cfg(feature = "zookeeper")]
pub use engines::zookeeper;
pub use engines::{memory, quorum};
pub use error::{Error, LostCause, Result, TryLockError, UnlessHeld};
pub use handle::Handle;
pub use lease::{Lease, Revocation};
pub use primitives::election::{Election, Leader, Leadership};
pub use primitives::multi::{Leases, Multi};
pub use primitives::mutex::Mutex;
pub use primitives::once::{LastRun, Once, Outcome, Run, RunState};
pub use primitives::rate_limiter::{RateLimiter, Unit};
pub use primitives::rwlock::{ReadLease, RwLock, WriteLease};
pub use primitives::semaphore::Semaphore;
pub use rule::claim::{Holder, Mode, Released};
pub use rule::name::Name;
pub use rule::{claim, deadlock, line};
pub use runtime::acquire::Request;
pub use runtime::claim_state::LeaseState;
pub use runtime::facts::Purpose;
pub use runtime::ticket::{Ticket, TicketState};

/// The Rust of the pages, so that it is compiled and run as a reader sees it.
#[cfg(doctest)]
mod pages {
    macro_rules! page {
        ($name:ident, $path:literal) => {
            #[doc = include_str!($path)]
            struct $name;
        };
    }

    page!(Readme, "../../../README.md");
    page!(Tutorial, "../../../docs/tutorial.md");
    page!(Library, "../../../docs/library.md");
    page!(CheckTheFence, "../../../docs/how-to/check-the-fence.md");
    page!(ChooseATtl, "../../../docs/how-to/choose-a-ttl.md");
    page!(Migrations, "../../../docs/how-to/migrations.md");
    page!(TestLockLoss, "../../../docs/how-to/test-lock-loss.md");
    page!(Skill, "../../../skills/leasehold/SKILL.md");
}
