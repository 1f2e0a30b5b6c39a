//! The engines, one for each kind of store. No engine uses another one; Redlock is `quorum` with
//! the nodes of `redis`.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
pub(crate) mod scheme;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
