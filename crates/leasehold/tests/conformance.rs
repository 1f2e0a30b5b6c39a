//! The conformance suite on every engine of this build: one test per engine and case.
//!
//! What is tested is in `leasehold_testkit::conformance`; here are only the stores to test it on.
//! A case that an engine's capabilities rule out is not listed for it.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::Ttl;
use leasehold::engine::Engine;
use leasehold::memory::Memory;
use leasehold_testkit::conformance::{CASES, Case, Failure, Harness, run, worker};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    worker::run_if_asked();
    let mut arguments = Arguments::from_args();
    // Most cases wait most of the time.
    let parallel = std::thread::available_parallelism().map_or(1, usize::from) * 4;
    arguments.test_threads.get_or_insert(parallel);
    // Servers of engines that nobody asked for need not start.
    let asked = |engine: &str| match arguments.filter.as_deref().and_then(|f| f.split_once("::")) {
        Some((only, _)) => only == engine,
        None => true,
    };
    let engines = ENGINES.iter().filter(|(engine, _)| asked(engine));
    let all = engines.flat_map(|(engine, make)| trials(engine, *make)).collect();
    libtest_mimic::run(&arguments, all).exit_code()
}

/// Makes an empty store.
type Make = fn() -> std::result::Result<Arc<dyn Harness>, Failure>;

const ENGINES: &[(&str, Make)] = &[
    ("memory", || Ok(Arc::new(MemoryStore(Memory::new())))),
    #[cfg(feature = "etcd")]
    ("etcd", || Ok(Arc::new(etcd::cluster()?))),
    #[cfg(feature = "postgres")]
    ("postgres", || Ok(Arc::new(postgres::table()?))),
    #[cfg(feature = "postgres")]
    ("advisory", || Ok(Arc::new(postgres::advisory()?))),
    #[cfg(feature = "redis")]
    ("redis", || Ok(Arc::new(redis::one()?))),
    #[cfg(feature = "redis")]
    ("sentinel", || Ok(Arc::new(redis::sentinel()?))),
    #[cfg(feature = "redis")]
    ("cluster", || Ok(Arc::new(redis::cluster()?))),
    #[cfg(feature = "redis")]
    ("redlock3", || Ok(Arc::new(redis::redlock3()?))),
    #[cfg(feature = "redis")]
    ("redlock5", || Ok(Arc::new(redis::redlock5()?))),
    #[cfg(feature = "sqlite")]
    ("sqlite", || Ok(Arc::new(sqlite::SqliteStore::new()?))),
    #[cfg(feature = "zookeeper")]
    ("zookeeper", || Ok(Arc::new(zookeeper::ensemble()?))),
];

fn trials(engine: &str, make: Make) -> Vec<Trial> {
    let can = runtime().block_on(async {
        let store = make().expect("an empty store");
        store.engine().await.expect("a connection to an empty store").info().can
    });
    let cases = CASES.iter().filter(|case| (case.needs)(&can));
    let named = |case: &Case| format!("{engine}::{}", case.name);
    cases.map(|case| Trial::test(named(case), move || test(case, make))).collect()
}

fn test(case: &'static Case, make: Make) -> std::result::Result<(), Failed> {
    let ran = runtime().block_on(async { run(case, make()?).await });
    ran.map_err(Failed::from)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime for one case")
}

#[derive(Debug)]
struct MemoryStore(Memory);

#[async_trait]
impl Harness for MemoryStore {
    async fn engine(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(self.0.clone()))
    }

    fn url(&self) -> Option<String> {
        None
    }

    fn ttl_floor(&self) -> Duration {
        Ttl::MIN
    }

    fn worker(&self) -> Option<Command> {
        None
    }
}

/// Starts something once; whoever comes meanwhile waits for it.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn once<T: Send + Sync + 'static>(
    place: &'static std::sync::OnceLock<T>,
    start: impl FnOnce() -> leasehold_testkit::Result<T>,
) -> std::result::Result<&'static T, Failure> {
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(started) = place.get() {
        return Ok(started);
    }
    let started = start()?;
    Ok(place.get_or_init(|| started))
}

#[cfg(feature = "postgres")]
mod postgres {
    //! A server that lives as long as this program, and a schema of its own for each store; for
    //! advisory locks, whose keys are the database's, a database of its own.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use leasehold::postgres::{Advisory, LeaseTable};
    use leasehold_testkit::servers;

    #[derive(Debug)]
    pub(super) struct TableStore {
        url: String,
    }

    fn server() -> std::result::Result<&'static servers::Server, Failure> {
        static SERVER: OnceLock<servers::Server> = OnceLock::new();
        once(&SERVER, || {
            servers::Postgres::new().setting("max_connections", "500").start_blocking()
        })
    }

    pub(super) fn table() -> std::result::Result<TableStore, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(TableStore { url: format!("{}?schema=store_{number}", server()?.url()) })
    }

    #[derive(Debug)]
    pub(super) struct AdvisoryStore {
        url: String,
    }

    pub(super) fn advisory() -> std::result::Result<AdvisoryStore, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let server = server()?;
        server.sql(&format!("CREATE DATABASE store_{number}"))?;
        let address = server.address();
        let url = format!("postgres+advisory://postgres@{address}/store_{number}");
        // One case has fifty claims wait at once.
        Ok(AdvisoryStore { url: format!("{url}?connections=64") })
    }

    #[async_trait]
    impl Harness for AdvisoryStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(Advisory::open(&self.url).await?))
        }

        fn url(&self) -> Option<String> {
            Some(self.url.clone())
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }

    #[async_trait]
    impl Harness for TableStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(LeaseTable::open(&self.url).await?))
        }

        fn url(&self) -> Option<String> {
            Some(self.url.clone())
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    //! A cluster that lives as long as this program, and a key prefix of its own for each store.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::etcd::Etcd;
    use leasehold_testkit::servers;

    #[derive(Debug)]
    pub(super) struct EtcdStore {
        url: String,
    }

    pub(super) fn cluster() -> std::result::Result<EtcdStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let servers = once(&SERVERS, || servers::Etcd::new().start_cluster_blocking())?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(EtcdStore { url: format!("{}?prefix=store{number}:", servers.url()) })
    }

    #[async_trait]
    impl Harness for EtcdStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(Etcd::open(&self.url).await?))
        }

        fn url(&self) -> Option<String> {
            Some(self.url.clone())
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}

#[cfg(feature = "redis")]
mod redis {
    //! Servers that live as long as this program, and a key prefix of its own for each store.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::redis::{Redis, open_redlock};
    use leasehold_testkit::servers;

    #[derive(Debug)]
    pub(super) struct RedisStore {
        url: String,
    }

    /// A store on independent servers. Cases have ttls beyond what a quorum allows by itself.
    fn redlock_store(servers: &servers::Group) -> RedisStore {
        let hosts: Vec<String> =
            servers.servers().iter().map(|server| server.address().to_string()).collect();
        let RedisStore { url } = store(&format!("redlock://{}", hosts.join(",")));
        RedisStore { url: format!("{url}&ttl_max_ms=86400000") }
    }

    pub(super) fn redlock3() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        Ok(redlock_store(once(&SERVERS, || servers::Redis::new().start_many_blocking(3))?))
    }

    pub(super) fn redlock5() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        Ok(redlock_store(once(&SERVERS, || servers::Redis::new().start_many_blocking(5))?))
    }

    fn store(address: &str) -> RedisStore {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        RedisStore { url: format!("{address}?prefix=store{number}:") }
    }

    pub(super) fn one() -> std::result::Result<RedisStore, Failure> {
        static SERVER: OnceLock<servers::Server> = OnceLock::new();
        let server = once(&SERVER, || servers::Redis::new().start_blocking())?;
        Ok(store(server.url()))
    }

    pub(super) fn sentinel() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::SentinelGroup> = OnceLock::new();
        let servers = once(&SERVERS, || servers::Redis::new().start_sentinel_blocking())?;
        Ok(store(servers.url()))
    }

    pub(super) fn cluster() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        let servers = once(&SERVERS, || servers::Redis::new().start_cluster_blocking())?;
        Ok(store(servers.url()))
    }

    #[async_trait]
    impl Harness for RedisStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            match self.url.starts_with("redlock") {
                true => Ok(Arc::new(open_redlock(&self.url).await?)),
                false => Ok(Arc::new(Redis::open(&self.url).await?)),
            }
        }

        fn url(&self) -> Option<String> {
            Some(self.url.clone())
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    //! A store in a file of its own, which every connection opens anew.

    use super::*;
    use leasehold::sqlite::Sqlite;
    use tempfile::TempDir;

    #[derive(Debug)]
    pub(super) struct SqliteStore(TempDir);

    impl SqliteStore {
        pub(super) fn new() -> std::result::Result<Self, Failure> {
            Ok(Self(TempDir::new()?))
        }
    }

    #[async_trait]
    impl Harness for SqliteStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(Sqlite::open(self.0.path().join("locks.db"))?))
        }

        fn url(&self) -> Option<String> {
            Some(format!("sqlite:{}", self.0.path().join("locks.db").display()))
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    //! An ensemble that lives as long as this program, and a node of its own for each store.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::zookeeper::ZooKeeper;
    use leasehold_testkit::servers;

    #[derive(Debug)]
    pub(super) struct ZooKeeperStore {
        url: String,
    }

    pub(super) fn ensemble() -> std::result::Result<ZooKeeperStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Cases have ttls beyond the sessions that a server allows by itself.
        let servers = once(&SERVERS, || {
            let options = servers::Zookeeper::new();
            options.setting("maxSessionTimeout", "200000000").start_ensemble_blocking()
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(ZooKeeperStore { url: format!("{}/store{number}", servers.url()) })
    }

    #[async_trait]
    impl Harness for ZooKeeperStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            Ok(Arc::new(ZooKeeper::open(&self.url).await?))
        }

        fn url(&self) -> Option<String> {
            Some(self.url.clone())
        }

        fn ttl_floor(&self) -> Duration {
            Ttl::MIN
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }
    }
}
