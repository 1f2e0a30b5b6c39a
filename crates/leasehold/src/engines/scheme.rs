//! From a URL to an engine: which schemes there are, and which of them this build has.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engines::memory::Memory;
use crate::error::{Config, Error, Result};

/// The schemes of this build, as error messages show them.
pub(crate) fn known() -> Vec<&'static str> {
    let mut known = vec!["memory:"];
    if cfg!(feature = "etcd") {
        known.push("etcd://HOST,HOST");
    }
    if cfg!(feature = "redis") {
        known.push("redis://HOST");
        known.push("redis+sentinel://HOST,HOST/MASTER");
        known.push("redis+cluster://HOST,HOST");
    }
    if cfg!(feature = "redlock") {
        known.push("redlock://HOST,HOST,HOST");
    }
    if cfg!(feature = "sqlite") {
        known.push("sqlite:PATH");
    }
    if cfg!(feature = "postgres") {
        known.push("postgres://HOST/DATABASE");
        known.push("postgres+advisory://HOST/DATABASE");
    }
    if cfg!(feature = "zookeeper") {
        known.push("zk://HOST,HOST");
    }
    known
}

/// Opens the store at `url`.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Engine>> {
    let Some((scheme, rest)) = url.split_once(':') else {
        // The text itself stays out of the message: it may be a password in the wrong place.
        let reason = "it has no scheme".to_owned();
        return Err(Error::Config(Config::Url { reason, known: known() }));
    };
    match scheme {
        "memory" => Ok(Arc::new(Memory::shared(rest))),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(crate::engines::etcd::Etcd::open(url).await?)),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(Error::Config(Config::NotBuilt {
            scheme: scheme.to_owned(),
            advice: "build `leasehold` with the feature `etcd`",
        })),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            Ok(Arc::new(crate::engines::redis::Redis::open(url).await?))
        }
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => Err(Error::Config(Config::NotBuilt {
            scheme: scheme.to_owned(),
            advice: "build `leasehold` with the feature `redis`",
        })),
        #[cfg(feature = "redlock")]
        "redlock" | "redlocks" => Ok(Arc::new(crate::engines::quorum::Quorum::open(url).await?)),
        #[cfg(not(feature = "redlock"))]
        "redlock" | "redlocks" => Err(Error::Config(Config::NotBuilt {
            scheme: scheme.to_owned(),
            advice: "build `leasehold` with the feature `redlock`",
        })),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(crate::engines::sqlite::Sqlite::open_url(rest)?)),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(Error::Config(Config::NotBuilt {
            scheme: scheme.to_owned(),
            advice: "build `leasehold` with the feature `sqlite`",
        })),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(crate::engines::postgres::LeaseTable::open(url).await?))
        }
        #[cfg(feature = "postgres")]
        "postgres+advisory" | "postgresql+advisory" => {
            Ok(Arc::new(crate::engines::postgres::Advisory::open(url).await?))
        }
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" | "postgres+advisory" | "postgresql+advisory" => {
            Err(Error::Config(Config::NotBuilt {
                scheme: scheme.to_owned(),
                advice: "build `leasehold` with the feature `postgres`",
            }))
        }
        #[cfg(feature = "zookeeper")]
        "zk" | "zks" => Ok(Arc::new(crate::engines::zookeeper::ZooKeeper::open(url).await?)),
        #[cfg(not(feature = "zookeeper"))]
        "zk" | "zks" => Err(Error::Config(Config::NotBuilt {
            scheme: scheme.to_owned(),
            advice: "build `leasehold` with the feature `zookeeper`",
        })),
        _ => Err(Error::Config(Config::UnknownScheme {
            scheme: scheme.chars().take(40).collect(),
            known: known(),
        })),
    }
}
