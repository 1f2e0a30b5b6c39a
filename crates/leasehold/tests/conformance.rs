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
    let done = libtest_mimic::run(&arguments, all);
    #[cfg(feature = "etcd")]
    if let Err(leases) = etcd::all_leases_end() {
        eprintln!("the cases left leases in etcd:\n{leases}");
        return ExitCode::FAILURE;
    }
    done.exit_code()
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
    //!
    //! What is left is read raw. Keys are a store's, and looked at after each case; a lease does
    //! not say whose it is, so leases are looked at when all cases are over.

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock};
    use std::time::Instant;

    use leasehold::engine::{LineView, Query};
    use leasehold::error::Kind;
    use leasehold::etcd::Etcd;
    use leasehold::{Mode, Name};
    use leasehold_testkit::servers;

    static SERVERS: OnceLock<servers::Group> = OnceLock::new();

    /// What cases opened and is closed. A client that was dropped may have been renewing then, and
    /// have made one more lease.
    static CLOSED: Mutex<Vec<Etcd>> = Mutex::new(Vec::new());

    /// What stays in a store for good.
    const STAYS: [&str; 4] =
        ["leasehold:store", "leasehold:epoch", "leasehold:farewell", "leasehold:totals:"];

    /// How long a lease may last that a case leaves to a process which it kills. What nobody
    /// revoked although its client was closed lasts longer, with the ttls that most cases have.
    const LEASE_MAX: Duration = Duration::from_secs(30);

    pub(super) struct EtcdStore {
        url: String,
        prefix: String,
        /// Every connection of this process, to be closed when the case is over.
        opened: Mutex<Vec<Etcd>>,
    }

    impl std::fmt::Debug for EtcdStore {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "EtcdStore({})", self.url)
        }
    }

    pub(super) fn cluster() -> std::result::Result<EtcdStore, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let servers = once(&SERVERS, || servers::Etcd::new().start_cluster_blocking())?;
        let prefix = format!("store{}:", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}?prefix={prefix}", servers.url());
        Ok(EtcdStore { url, prefix, opened: Mutex::default() })
    }

    /// What etcd's own command says, line by line.
    fn etcdctl(words: &[&str]) -> Vec<String> {
        let servers = SERVERS.get().expect("the cluster runs");
        let address = servers.servers()[0].address();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={address}")).args(words);
        let done = command.output().expect("`cargo xtask setup` installs etcdctl");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let text = String::from_utf8_lossy(&done.stdout);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Waits until no lease is left; those that stay are the error.
    pub(super) fn all_leases_end() -> std::result::Result<(), String> {
        if SERVERS.get().is_none() {
            return Ok(());
        }
        let closed = std::mem::take(&mut *CLOSED.lock().expect("nobody panics"));
        runtime().block_on(async {
            for engine in closed {
                engine.close().await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        })?;
        let begun = Instant::now();
        loop {
            let mut leases = etcdctl(&["lease", "list"]);
            leases.remove(0);
            if leases.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > LEASE_MAX {
                let told =
                    leases.iter().flat_map(|id| etcdctl(&["lease", "timetolive", id, "--keys"]));
                return Err(told.collect::<Vec<String>>().join("\n"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    impl EtcdStore {
        /// Every key of the store that does not stay for good.
        fn keys(&self) -> Vec<String> {
            let mut keys = etcdctl(&["get", &self.prefix, "--prefix", "--keys-only"]);
            keys.retain(|key| {
                let own = &key[self.prefix.len()..];
                !STAYS.iter().any(|stays| own.starts_with(stays))
            });
            keys
        }
    }

    #[async_trait]
    impl Harness for EtcdStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            let engine = Etcd::open(&self.url).await?;
            self.opened.lock().expect("nobody panics").push(engine.clone());
            Ok(Arc::new(engine))
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

        async fn residue(&self) -> Result<Vec<LineView>> {
            let lines = Etcd::open(&self.url).await?.inspect(&Query::all()).await?.lines;
            if !lines.is_empty() {
                return Ok(lines);
            }
            let lines = self.keys().into_iter().map(|key| LineView {
                name: Name::new(key).expect("a key is a good name"),
                kind: Kind::from(Mode::Exclusive),
                held: Vec::new(),
                waiting: Vec::new(),
            });
            let lines: Vec<LineView> = lines.collect();
            if lines.is_empty() {
                // What is not revoked now lives on for as long as the longest ttl of the case.
                let opened = std::mem::take(&mut *self.opened.lock().expect("nobody panics"));
                for engine in &opened {
                    engine.close().await?;
                }
                CLOSED.lock().expect("nobody panics").extend(opened);
            }
            Ok(lines)
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

    use leasehold::engine::LineView;
    use leasehold::error::Kind;
    use leasehold::zookeeper::ZooKeeper;
    use leasehold::{Error, Name};
    use leasehold_testkit::servers;

    #[derive(Debug)]
    pub(super) struct ZooKeeperStore {
        url: String,
        servers: &'static servers::Group,
        root: String,
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
        let root = format!("/store{number}");
        Ok(ZooKeeperStore { url: format!("{}{root}", servers.url()), servers, root })
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

        /// Every node that is not the store's own, whatever the engine would make of it.
        async fn residue(&self) -> Result<Vec<LineView>> {
            let server = self.servers.servers()[0].address();
            let nodes = servers::znodes(server, &self.root, None).await.map_err(|error| {
                let (store, cause) = (self.url.clone(), error.to_string());
                Error::Store { store, cause, transient: false }
            })?;
            let left = servers::litter(&nodes, &self.root).into_iter().map(|node| {
                let name = Name::new(node.path.chars().take(256).collect::<String>())?;
                Ok(LineView { name, kind: Kind::Lock, held: Vec::new(), waiting: Vec::new() })
            });
            left.collect()
        }
    }
}
