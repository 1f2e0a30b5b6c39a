//! The test harness of leasehold: real servers, a fault proxy and worker processes.
//!
//! - [`servers`] starts Redis, PostgreSQL, ZooKeeper and etcd as child processes, alone or in
//!   groups, on free loopback ports with folders of their own.
//! - [`proxy`] stands between a client and a server and breaks the connection in chosen ways.
//! - [`redirect`] sends the connections of a program to such proxies.
//! - [`worker`] runs a program that a crash test stops, continues and kills.
//! - [`peer`] runs other packages that take locks on the same servers.
//! - [`clock`] moves and stops the wall clock of a server.
//! - [`stall`] stalls the disk of a process.
//! - [`certificates`] makes a private authority and what it signs.
//! - [`waiting`] awaits events, with a limit that only a hanging test reaches.
//! - [`doctor`] asks for the findings about a store.
//! - [`bare`] makes claims for an engine itself, and [`Renewals`] counts what a keeper does.
//! - [`PartVerbs`] asks an engine's parts without a client.
//! - [`conformance`] is the suite that every engine passes.
//!
//! Nothing outlives the test process: children get `SIGKILL` when it ends, however it ends. A
//! missing server is an error that names the Debian package, never a reason to skip a test. The
//! tests decide what they test, and with which client.
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold_testkit::Error> {
//! use leasehold_testkit::{Direction, Proxy, Redis};
//!
//! let server = Redis::new().start().await?;
//! let proxy = Proxy::start(server.address()).await?;
//! proxy.block(Direction::ToClient);
//! server.restart().await?;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

pub mod bare;
pub mod certificates;
pub mod clock;
pub mod conformance;
mod diary;
pub mod doctor;
pub mod error;
mod folder;
pub mod fork;
mod part_verbs;
pub mod peer;
pub mod ports;
mod preload;
pub mod process;
mod programs;
pub mod proxy;
pub mod redirect;
mod renewals;
pub mod scheduling;
pub mod servers;
pub mod stall;
pub mod waiting;
pub mod worker;

pub use certificates::Certificates;
pub use clock::Clock;
pub use diary::ClockDiary;
pub use error::{Error, Result};
pub use folder::remove_orphans;
pub use part_verbs::PartVerbs;
pub use peer::{Peer, PeerKind};
pub use proxy::{AfterLoss, Direction, Proxy, Traffic};
pub use redirect::Redirect;
pub use renewals::Renewals;
pub use servers::{Etcd, Group, Pgbouncer, Postgres, Redis, SentinelGroup, Server};
pub use servers::{SplitCluster, Zookeeper};
pub use stall::StalledDisk;
pub use worker::Worker;
