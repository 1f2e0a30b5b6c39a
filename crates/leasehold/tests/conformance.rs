//! The conformance suite on every engine of this build: one test per engine and case.
//!
//! The cases are in `leasehold_testkit::conformance`; this file only brings the stores. A case that
//! an engine's capabilities rule out is not listed for it.

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::Ttl;
use leasehold::engine::Engine;
use leasehold::memory::Memory;
use leasehold_testkit::conformance::{CASES, Can, Case, Failure, Harness, run, worker};
#[cfg(any(
    feature = "etcd",
    feature = "postgres",
    feature = "redlock",
    feature = "zookeeper"
))]
use leasehold_testkit::conformance::{Crashing, Proxied, Starting};
use libtest_mimic::{Arguments, Failed, Trial};
use toy_engine::Toy;

#[allow(dead_code, unreachable_pub, reason = "it is an example as well, with a main function")]
#[path = "../examples/toy_engine.rs"]
mod toy_engine;

fn main() -> ExitCode {
    worker::run_if_asked();
    let mut arguments = Arguments::from_args();
    // Most cases wait most of the time.
    let parallel = std::thread::available_parallelism().map_or(1, usize::from) * 4;
    arguments.test_threads.get_or_insert(parallel);
    // Only the engines that the filter names need servers.
    let asked = |engine: &str| match arguments.filter.as_deref().and_then(|f| f.split_once("::")) {
        Some((only, _)) => only == engine,
        None => true,
    };
    let engines = ENGINES.iter().filter(|(engine, _)| asked(engine));
    let mut all: Vec<Trial> = engines.flat_map(|(engine, make)| trials(engine, *make)).collect();
    // In the order of other test programs: `cargo xtask test` thereby knows when each test began.
    all.sort_by(|one, other| one.name().cmp(other.name()));
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
    ("toy", || Ok(Arc::new(ToyStore(Toy::open())))),
    #[cfg(feature = "etcd")]
    ("etcd", || Ok(Arc::new(etcd::cluster()?))),
    #[cfg(feature = "postgres")]
    ("postgres", || Ok(Arc::new(postgres::table()?))),
    #[cfg(feature = "postgres")]
    ("advisory", || Ok(Arc::new(postgres::advisory()?))),
    #[cfg(feature = "redlock")]
    ("redis", || Ok(Arc::new(redis::one()?))),
    #[cfg(feature = "redlock")]
    ("sentinel", || Ok(Arc::new(redis::sentinel()?))),
    #[cfg(feature = "redlock")]
    ("cluster", || Ok(Arc::new(redis::cluster()?))),
    #[cfg(feature = "redlock")]
    ("redlock3", || Ok(Arc::new(redis::redlock3()?))),
    #[cfg(feature = "redlock")]
    ("redlock5", || Ok(Arc::new(redis::redlock5()?))),
    #[cfg(feature = "redlock")]
    (USUAL, || Ok(Arc::new(redis::redlock_usual()?))),
    #[cfg(feature = "sqlite")]
    ("sqlite", || Ok(Arc::new(sqlite::SqliteStore::new()?))),
    #[cfg(feature = "zookeeper")]
    ("zookeeper", || Ok(Arc::new(zookeeper::ensemble()?))),
];

/// Redlock with the longest ttl that it allows by default.
const USUAL: &str = "redlock_usual";

/// Whether a case is about spans, which Redlock bounds, and asks the store for its longest one. The
/// others have ttls beyond that.
fn fits_usual(case: &Case) -> bool {
    let group = case.group.rsplit("::").next();
    let is_about_spans = group.is_some_and(|g| ["handle", "limits", "once", "rate"].contains(&g));
    is_about_spans && case.name != "extreme_ttls_are_kept"
}

fn trials(engine: &str, make: Make) -> Vec<Trial> {
    let store = make().expect("an empty store");
    let can = runtime().block_on(async {
        Can::of_engine(&store.engine().await.expect("a connection to an empty store"))
    });
    let applies = |case: &&Case| (case.needs)(&can) && (case.applies)(&*store);
    let cases = CASES.iter().filter(applies).filter(|case| engine != USUAL || fits_usual(case));
    let named = |case: &Case| format!("{engine}::{}", case.name);
    cases.map(|case| Trial::test(named(case), move || test(case, make))).collect()
}

fn test(case: &'static Case, make: Make) -> std::result::Result<(), Failed> {
    leasehold_testkit::servers::set_failed(false);
    let ran = runtime().block_on(async { run(case, make()?).await });
    ran.map_err(|failure| {
        leasehold_testkit::servers::show_shared_logs();
        Failed::from(failure)
    })
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

/// The engine of `docs/adding-an-engine.md`.
#[derive(Debug)]
struct ToyStore(Toy);

#[async_trait]
impl Harness for ToyStore {
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

/// Starts something once; callers that come meanwhile wait for it.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redlock", feature = "zookeeper"))]
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
    //! A server that lives as long as this program, and a schema of its own for each store. The
    //! keys of advisory locks belong to a database, so each of their stores has a database of its
    //! own.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use leasehold::postgres::{Advisory, LeaseTable};
    use leasehold_testkit::servers;

    static SERVER: OnceLock<servers::Server> = OnceLock::new();

    #[derive(Debug)]
    pub(super) struct TableStore {
        url: String,
    }

    fn alone() -> leasehold_testkit::Result<servers::Group> {
        Ok(servers::Postgres::new().start_blocking()?.into())
    }

    fn server() -> std::result::Result<&'static servers::Server, Failure> {
        once(&SERVER, || {
            // The cases that run at once have more clients than the usual 100 connections serve.
            servers::Postgres::new()
                .setting("max_connections", "500")
                .start_blocking()
                .map(servers::Server::shared)
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
        // In one case fifty claims wait at once.
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

        fn proxied(&self) -> Option<Starting<Proxied>> {
            let server = SERVER.get();
            Some(Proxied::start(&self.url, server, |url| Arc::new(AdvisoryStore { url })))
        }

        fn crashing(&self) -> Option<Starting<Crashing>> {
            Some(Crashing::start(alone, |servers| {
                let address = servers.servers()[0].address();
                let url = format!("postgres+advisory://postgres@{address}/postgres");
                Arc::new(AdvisoryStore { url })
            }))
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

        fn proxied(&self) -> Option<Starting<Proxied>> {
            let server = SERVER.get();
            Some(Proxied::start(&self.url, server, |url| Arc::new(TableStore { url })))
        }

        fn crashing(&self) -> Option<Starting<Crashing>> {
            Some(Crashing::start(alone, |servers| {
                Arc::new(TableStore { url: servers.url().to_owned() })
            }))
        }
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    //! A cluster that lives as long as this program, and a key prefix of its own for each store.
    //!
    //! The test reads leftovers raw. A key belongs to one store, so the test looks for keys after
    //! each case. A lease does not name its owner, so the test looks for leases when all cases are
    //! over.

    use super::*;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock};
    use std::time::Instant;

    use leasehold::engine::{LineView, Query};
    use leasehold::error::Kind;
    use leasehold::etcd::Etcd;
    use leasehold::{Mode, Name};
    use leasehold_testkit::servers;

    static SERVERS: OnceLock<servers::Group> = OnceLock::new();

    /// Engines that cases opened, closed by now. A client that was dropped during a renewal may
    /// have made one more lease.
    static CLOSED: Mutex<Vec<Etcd>> = Mutex::new(Vec::new());

    /// Keys that stay in a store for good.
    const STAYS: [&str; 5] = [
        "leasehold:store",
        "leasehold:epoch",
        "leasehold:farewell",
        "leasehold:holders",
        "leasehold:totals:",
    ];

    /// The longest ttl of a lease that a case leaves to a process which it kills. With the ttls of
    /// most cases, a lease that no closed client revoked lasts longer.
    const LEASE_MAX: Duration = Duration::from_secs(30);

    pub(super) struct EtcdStore {
        url: String,
        prefix: String,
        /// One of the servers, without a proxy.
        server: SocketAddr,
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
        let servers = once(&SERVERS, || {
            servers::Etcd::new().start_cluster_blocking().map(servers::Group::shared)
        })?;
        let prefix = format!("store{}:", NEXT.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}?prefix={prefix}", servers.url());
        Ok(EtcdStore::new(url, prefix, servers.servers()[0].address()))
    }

    fn alone() -> leasehold_testkit::Result<servers::Group> {
        Ok(servers::Etcd::new().start_blocking()?.into())
    }

    /// The output of etcd's own command, line by line.
    fn etcdctl(address: SocketAddr, words: &[&str]) -> Vec<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={address}")).args(words);
        let done = command.output().expect("`cargo xtask setup` installs etcdctl");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let text = String::from_utf8_lossy(&done.stdout);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Waits until no lease is left that holds a key; the error names those that stay. A client
    /// that a case cut off cannot revoke its lease, which holds nothing and ends by itself.
    pub(super) fn all_leases_end() -> std::result::Result<(), String> {
        let Some(servers) = SERVERS.get() else { return Ok(()) };
        let server = servers.servers()[0].address();
        let closed = std::mem::take(&mut *CLOSED.lock().expect("nobody panics"));
        runtime().block_on(async {
            for engine in closed {
                engine.close().await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        })?;
        let begun = Instant::now();
        loop {
            let mut leases = etcdctl(server, &["lease", "list"]);
            leases.remove(0);
            if leases.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > LEASE_MAX {
                let told = leases
                    .iter()
                    .flat_map(|id| etcdctl(server, &["lease", "timetolive", id, "--keys"]));
                let holding: Vec<String> =
                    told.filter(|lease| !lease.contains("attached keys([])")).collect();
                return if holding.is_empty() { Ok(()) } else { Err(holding.join("\n")) };
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    impl EtcdStore {
        fn new(url: String, prefix: String, server: SocketAddr) -> Self {
            Self { url, prefix, server, opened: Mutex::default() }
        }

        /// Every key of the store, without those that stay for good.
        fn keys(&self) -> Vec<String> {
            let mut keys = etcdctl(self.server, &["get", &self.prefix, "--prefix", "--keys-only"]);
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

        fn proxied(&self) -> Option<Starting<Proxied>> {
            let (prefix, server) = (self.prefix.clone(), self.server);
            // One member: with several, a client stops listening to a member that is silent and
            // asks another.
            let url = format!("etcd://{server}?prefix={prefix}");
            let member = SERVERS.get().and_then(|servers| servers.servers().first());
            Some(Proxied::start(&url, member, move |url| {
                Arc::new(EtcdStore::new(url, prefix, server))
            }))
        }

        fn crashing(&self) -> Option<Starting<Crashing>> {
            Some(Crashing::start(alone, |servers| {
                let server = servers.servers()[0].address();
                Arc::new(EtcdStore::new(servers.url().to_owned(), String::new(), server))
            }))
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
                // A lease that is not revoked now lives on for as long as the longest ttl of the
                // case.
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

#[cfg(feature = "redlock")]
mod redis {
    //! Servers that live as long as this program, and a key prefix of its own for each store.

    use super::*;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use leasehold::redis::Redis;
    use leasehold::redlock::Redlock;
    use leasehold_testkit::servers;

    #[derive(Debug, Clone)]
    pub(super) struct RedisStore {
        url: String,
        /// The servers that the url names, if clients find no others.
        named: &'static [servers::Server],
        alone: Option<Start>,
    }

    /// Starts servers that keep their data.
    type Start = fn() -> leasehold_testkit::Result<servers::Group>;

    fn durable() -> servers::Redis {
        servers::Redis::new().append_only()
    }

    /// A store on independent servers. Cases have ttls beyond the 60 s that a quorum allows by
    /// default; those that are about such bounds run on [`redlock_usual`], too.
    fn redlock_store(servers: &'static servers::Group, alone: Start) -> RedisStore {
        let mut redlock = store(servers.url(), servers.servers(), Some(alone));
        redlock.url.push_str("&ttl_max_ms=86400000");
        redlock.url.push_str(PATIENT);
        redlock
    }

    /// A busy machine is no silent node.
    const PATIENT: &str = "&node_timeout_ms=2000";

    pub(super) fn redlock_usual() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        let servers = once(&SERVERS, || {
            servers::Redis::new().start_many_blocking(3).map(servers::Group::shared)
        })?;
        let mut redlock = store(servers.url(), servers.servers(), None);
        redlock.url.push_str(PATIENT);
        Ok(redlock)
    }

    pub(super) fn redlock3() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        let servers = once(&SERVERS, || {
            servers::Redis::new().start_many_blocking(3).map(servers::Group::shared)
        })?;
        Ok(redlock_store(servers, || durable().start_many_blocking(3)))
    }

    pub(super) fn redlock5() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        let servers = once(&SERVERS, || {
            servers::Redis::new().start_many_blocking(5).map(servers::Group::shared)
        })?;
        Ok(redlock_store(servers, || durable().start_many_blocking(5)))
    }

    fn store(address: &str, named: &'static [servers::Server], alone: Option<Start>) -> RedisStore {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        RedisStore { url: format!("{address}?prefix=store{number}:"), named, alone }
    }

    pub(super) fn one() -> std::result::Result<RedisStore, Failure> {
        static SERVER: OnceLock<servers::Server> = OnceLock::new();
        let server =
            once(&SERVER, || servers::Redis::new().start_blocking().map(servers::Server::shared))?;
        let alone = || Ok(durable().start_blocking()?.into());
        Ok(store(server.url(), std::slice::from_ref(server), Some(alone)))
    }

    pub(super) fn sentinel() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::SentinelGroup> = OnceLock::new();
        let servers = once(&SERVERS, || {
            servers::Redis::new().start_sentinel_blocking().map(servers::SentinelGroup::shared)
        })?;
        // A failover may lose writes that the master has answered.
        Ok(store(servers.url(), &[], None))
    }

    pub(super) fn cluster() -> std::result::Result<RedisStore, Failure> {
        static SERVERS: OnceLock<servers::Group> = OnceLock::new();
        let servers = once(&SERVERS, || {
            servers::Redis::new().start_cluster_blocking().map(servers::Group::shared)
        })?;
        Ok(store(servers.url(), &[], Some(|| durable().start_cluster_blocking())))
    }

    #[async_trait]
    impl Harness for RedisStore {
        async fn engine(&self) -> Result<Arc<dyn Engine>> {
            match self.url.starts_with("redlock") {
                true => Ok(Arc::new(Redlock::open(&self.url).await?)),
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

        fn proxied(&self) -> Option<Starting<Proxied>> {
            let far = self.clone();
            let at = move |url| Arc::new(RedisStore { url, ..far }) as Arc<dyn Harness>;
            (!self.named.is_empty()).then(|| Proxied::start(&self.url, self.named, at))
        }

        fn crashing(&self) -> Option<Starting<Crashing>> {
            let far = self.clone();
            let at = move |servers: &servers::Group| {
                let url = servers.url().to_owned();
                Arc::new(RedisStore { url, ..far }) as Arc<dyn Harness>
            };
            self.alone.map(|start| Crashing::start(start, at))
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    //! A store in a file of its own, which every connection opens again.

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
    use std::net::SocketAddr;
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
        /// One of the servers, without a proxy.
        server: SocketAddr,
        root: String,
    }

    static SERVERS: OnceLock<servers::Group> = OnceLock::new();

    /// ZooKeeper's default tick, and so its default limits for sessions: 4 to 40 s.
    fn usual() -> servers::Zookeeper {
        let options = servers::Zookeeper::new().setting("tickTime", "2000");
        options.setting("minSessionTimeout", "4000").setting("maxSessionTimeout", "40000")
    }

    /// With ZooKeeper's default limit of connections for each address.
    fn alone() -> leasehold_testkit::Result<servers::Group> {
        Ok(usual().setting("maxClientCnxns", "60").start_blocking()?.into())
    }

    pub(super) fn ensemble() -> std::result::Result<ZooKeeperStore, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let servers =
            once(&SERVERS, || usual().start_ensemble_blocking().map(servers::Group::shared))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = format!("/store{number}");
        let server = servers.servers()[0].address();
        Ok(ZooKeeperStore { url: format!("{}{root}", servers.url()), server, root })
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

        /// A session lasts for at most 40 s.
        fn emptied_within(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn worker(&self) -> Option<Command> {
            Some(Command::new(std::env::current_exe().expect("this program is a file")))
        }

        fn proxied(&self) -> Option<Starting<Proxied>> {
            let (server, root) = (self.server, self.root.clone());
            let servers = SERVERS.get().into_iter().flat_map(servers::Group::servers);
            Some(Proxied::start(&self.url, servers, move |url| {
                Arc::new(ZooKeeperStore { url, server, root })
            }))
        }

        fn crashing(&self) -> Option<Starting<Crashing>> {
            Some(Crashing::start(alone, |servers| {
                let (server, root) = (servers.servers()[0].address(), "/store".to_owned());
                let url = format!("{}{root}", servers.url());
                Arc::new(ZooKeeperStore { url, server, root })
            }))
        }

        /// Every node that is not the store's own, also those that the engine would not read.
        async fn residue(&self) -> Result<Vec<LineView>> {
            let nodes = servers::znodes(self.server, &self.root, None).await.map_err(|error| {
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
