//! Only one of us at a time, across machines, on the store you already run.
//!
//! Connect to a store, take a [`Lease`] on a name, hand its [`fence`](Lease::fence) to whatever
//! the lock protects, and give it back:
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
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]

mod acquire;
#[cfg(feature = "postgres")]
pub mod advisory {
    //! PostgreSQL's advisory locks for transactions of your own, and the keys of names.
    //!
    //! Leases on advisory locks are had as on any other store, with a client of a
    //! `postgres+advisory:` URL. What is here is for locks that end with a transaction: the
    //! number that a name stands for, and the statement that locks it.

    pub use crate::postgres::advisory::{AdvisoryKey, Keys, lock_in, try_lock_in};
}
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
mod address;
mod bell;
pub mod blocking;
pub mod claim;
mod client;
pub mod clock;
pub mod concern;
pub mod deadlock;
mod election;
pub mod engine;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod epochs;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fencing;
mod handle;
mod keeper;
mod lane;
pub mod layer;
mod lease;
pub mod line;
pub mod memory;
mod multi;
mod mutex;
mod name;
mod notice;
mod notices;
pub mod observe;
mod once;
mod parting;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod quorum;
mod rate_limiter;
#[cfg(feature = "redis")]
pub mod redis;
mod registry;
mod rwlock;
mod scheme;
mod scope;
mod search;
mod semaphore;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
mod socket;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod tenure;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
mod tls;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
mod wheel;
mod witness;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use acquire::Request;
pub use claim::{Holder, Mode, Released};
pub use client::{Client, ClientBuilder, connect};
pub use election::{Election, Leader, Leadership};
pub use error::{Error, LostCause, Result};
pub use handle::Handle;
pub use lease::Lease;
pub use multi::{Leases, Multi};
pub use mutex::Mutex;
pub use name::Name;
pub use once::{LastRun, Once, Outcome, Run, RunState};
pub use rate_limiter::{RateLimiter, Unit};
pub use rwlock::{ReadLease, RwLock, WriteLease};
pub use semaphore::Semaphore;
pub use tenure::LeaseState;

/// The README's examples, so that they are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[derive(Debug)]
pub struct Readme;

/// The guide's examples, likewise.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
#[derive(Debug)]
pub struct Guide;
