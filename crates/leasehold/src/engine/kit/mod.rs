//! Tools that several engines share. An engine may use these, and nothing of another engine.

#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
pub(crate) mod address;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod epochs;
pub(crate) mod hearers;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
pub(crate) mod shared_task;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
pub(crate) mod socket;
pub(crate) mod thread_shard;
#[cfg(any(feature = "postgres", feature = "zookeeper"))]
pub(crate) mod tls;
