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
//!
//! # Which primitive
//!
//! | you want | take |
//! |---|---|
//! | one holder at a time | [`Client::mutex`], or [`Client::with`] around the work |
//! | many readers or one writer | [`Client::rwlock`] |
//! | at most N at a time | [`Client::semaphore`] |
//! | several names, all or none | [`Client::mutexes`], [`Client::all`] |
//! | one leader, which others can find | [`Client::election`] |
//! | at most N in any window of time | [`Client::rate_limiter`] |
//! | work that is done once in a period | [`Client::once`] |
//! | a claim for a client of your server | [`Request::ticket`] |
//!
//! [`LockOptions`] has the options of all of them. [`blocking`] has the same without async.
//! [`Client::admin`] has what operators need.
//!
//! # Engines and features
//!
//! [`connect`] chooses the engine by the URL. No feature is on by default, and the memory engine is
//! always there. The last column has what an engine lacks; [`Client::parts`] and an error say so.
//!
//! | feature | URL | lacks |
//! |---|---|---|
//! | | `memory:` | other processes |
//! | `sqlite` | `sqlite:PATH` | other machines |
//! | `redis` | `redis:`, `redis+sentinel:`, `redis+cluster:` | safety when the server forgets |
//! | `redlock` | `redlock:` | readers, permits, events, deadlock search |
//! | `postgres` | `postgres:` | |
//! | `postgres` | `postgres+advisory:` | permits, events, deadlock search, detached leases |
//! | `etcd` | `etcd:` | a change of mode or limit |
//! | `zookeeper` | `zk:` | a change of mode or limit, several names in one exchange |
//!
//! The feature `json` adds notes that are JSON. The guards in [`fencing`] come with the feature of
//! their store. The engines open with `open` too, such as `redis::Redis::open(url)`; see
//! [`ClientBuilder::engine`].
//!
//! # Cancel safety
//!
//! Every future can be dropped at any await. A dropped wait leaves the line, a dropped lease is
//! given back, and a dropped release goes on in the background. Each method that waits has a
//! section on this. No claim stays behind for longer than its ttl.
//!
//! # Fencing in five lines
//!
//! 1. A process can be paused for longer than its lease lasts, and then go on to write.
//! 2. So each lease has a [`Fence`], which is greater than that of every lease before on its name.
//! 3. Send it with each write, and let the data keep the greatest fence that it has seen.
//! 4. Refuse a write with a smaller one, in the same transaction: `WHERE fence <= $1`.
//! 5. [`fencing`] has guards that do this for files, SQLite, PostgreSQL, Redis and HTTP.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
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
mod options;
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

pub use admin::Admin;
pub use client::{Client, ClientBuilder, connect};
pub use engine::layer;
#[cfg(feature = "etcd")]
pub use engines::etcd;
#[cfg(feature = "postgres")]
pub use engines::postgres;
#[cfg(feature = "redis")]
pub use engines::redis;
#[cfg(feature = "redlock")]
pub mod redlock {
    //! Several Redis servers as one store: a name is held by a majority of them.

    pub use crate::engines::quorum::Quorum as Redlock;
}
pub use engines::memory;
#[cfg(feature = "sqlite")]
pub use engines::sqlite;
#[cfg(feature = "zookeeper")]
pub use engines::zookeeper;
pub use error::{Error, LostCause, Result, TryLockError, UnlessHeld};
pub use handle::Handle;
pub use lease::{Lease, Revocation};
pub use options::LockOptions;
pub use primitives::election::{Election, Leader, Leadership};
pub use primitives::multi::{Leases, Multi};
pub use primitives::mutex::Mutex;
pub use primitives::once::{LastRun, Once, Outcome, Run, RunState};
pub use primitives::rate_limiter::{RateLimiter, Unit};
pub use primitives::rwlock::{ReadLease, RwLock, WriteLease};
pub use primitives::semaphore::Semaphore;
pub use rule::claim;
pub use rule::claim::{Holder, Mode, Released};
pub use rule::fence::Fence;
pub use rule::name::Name;
pub use runtime::acquire::Request;
pub use runtime::claim_state::LeaseState;
pub use runtime::facts::Purpose;
pub use runtime::ticket::{Ticket, TicketState};

#[doc(hidden)]
pub mod internal {
    //! Modules for the tests, the testkit and the benchmarks of this project. They are no part of
    //! the stable API: they may change or go in any version.

    pub use crate::clock::remote;
    pub use crate::engines::quorum;
    pub use crate::rule::{deadlock, line};
}

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
