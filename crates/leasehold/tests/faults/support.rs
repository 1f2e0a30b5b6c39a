//! Stores to test on, an engine with hooks around its verbs, and waiting for facts.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::claim::{
    Amended, Claim, ClaimKey, HolderId, Mode, Note, Released, Renewal, Standing,
};
use leasehold::engine::{
    Amend, ClaimMany, Convert, Engine, Info, Notice, Page, Parts, Query, Resize, Resized,
    Unattended, Wait, WaitNotices, Wake,
};
#[cfg(feature = "etcd")]
use leasehold::etcd::Etcd;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::memory::Memory;
#[cfg(feature = "postgres")]
use leasehold::postgres::{Advisory, LeaseTable};
#[cfg(feature = "redlock")]
use leasehold::redis::Redis;
#[cfg(feature = "redlock")]
use leasehold::redlock::Redlock;
#[cfg(feature = "sqlite")]
use leasehold::sqlite::Sqlite;
#[cfg(feature = "zookeeper")]
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Client, ClientBuilder, Result};

use leasehold_testkit::conformance::Can;
pub(crate) use leasehold_testkit::waiting::{soon, until, until_free, until_waiting};

/// Far beyond every test, so that the test sees every claim that is left behind.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A store of its own.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Memory),
    /// The address of a database of its own: keys belong to the database, not to the schema.
    #[cfg(feature = "postgres")]
    Advisory(String),
    /// The address of a prefix of its own.
    #[cfg(feature = "etcd")]
    Etcd(String),
    /// The address of a schema of its own.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// The address of a database of its own.
    #[cfg(feature = "redlock")]
    Redis(String),
    /// The address of such databases on three nodes.
    #[cfg(feature = "redlock")]
    Redlock(String),
    #[cfg(feature = "sqlite")]
    Sqlite(tempfile::TempDir),
    /// The address of a node of its own.
    #[cfg(feature = "zookeeper")]
    Zookeeper(String),
}

impl Store {
    /// Opens the store once, and makes clients that share its connection.
    fn open<const N: usize>(&self, builders: [ClientBuilder; N]) -> (Arc<dyn Engine>, [Client; N]) {
        match self {
            Store::Memory(memory) => shared(memory.clone(), builders),
            #[cfg(feature = "postgres")]
            Store::Advisory(url) => shared(opened(Advisory::open(url)), builders),
            #[cfg(feature = "etcd")]
            Store::Etcd(url) => shared(opened(Etcd::open(url)), builders),
            #[cfg(feature = "postgres")]
            Store::Postgres(url) => shared(opened(LeaseTable::open(url)), builders),
            #[cfg(feature = "redlock")]
            Store::Redis(url) => shared(opened(Redis::open(url)), builders),
            #[cfg(feature = "redlock")]
            Store::Redlock(url) => shared(opened(Redlock::open(url)), builders),
            #[cfg(feature = "sqlite")]
            Store::Sqlite(folder) => {
                let file = Sqlite::open(folder.path().join("locks.db"));
                shared(file.expect("a file of its own"), builders)
            }
            #[cfg(feature = "zookeeper")]
            Store::Zookeeper(url) => shared(opened(ZooKeeper::open(url)), builders),
        }
    }

    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        self.open([]).0
    }

    /// Whether answers come over a network, and so never within a few polls in a row.
    pub(crate) fn is_remote(&self) -> bool {
        !matches!(self.engine().info().engine, "memory" | "sqlite")
    }

    /// Two clients that share one connection.
    pub(crate) fn twins(&self) -> [Client; 2] {
        self.open([Client::builder(), Client::builder()]).1
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(Client::builder())
    }

    pub(crate) fn client_with(&self, builder: ClientBuilder) -> Client {
        let (_, [client]) = self.open([builder]);
        client
    }

    /// A client whose connection can be cut.
    pub(crate) fn troubled(&self, builder: ClientBuilder) -> (Client, Chaos) {
        let chaos = Chaos::default();
        let client = builder.engine(chaos.trouble(self.hooked(Hooks::default())));
        (client.expect("a client of an empty store"), chaos)
    }

    /// An engine that runs hooks around its verbs.
    pub(crate) fn hooked(&self, hooks: Hooks) -> Hooked {
        let engine = self.engine();
        let mut info = engine.info().clone();
        info.can_fail = true;
        Hooked { engine, info, hooks }
    }
}

fn shared<const N: usize>(
    engine: impl Engine + Clone,
    builders: [ClientBuilder; N],
) -> (Arc<dyn Engine>, [Client; N]) {
    let client = |builder: ClientBuilder| builder.engine(engine.clone());
    let clients = builders.map(|builder| client(builder).expect("a client of an empty store"));
    (Arc::new(engine), clients)
}

/// Tests ask for engines in places that cannot wait; here they may block.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redlock", feature = "zookeeper"))]
fn opened<T>(open: impl Future<Output = Result<T>>) -> T {
    let opened = match tokio::runtime::Handle::try_current() {
        Ok(here) => tokio::task::block_in_place(|| here.block_on(open)),
        // Its connection ends with this runtime; the store makes another one where it is used.
        Err(_) => runtime().block_on(open),
    };
    opened.expect("a store of its own")
}

/// A number that no other store has.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redlock", feature = "zookeeper"))]
fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A prefix of its own on a server that lives as long as this program.
#[cfg(feature = "etcd")]
pub(crate) fn etcd_url() -> String {
    static SERVER: OnceLock<leasehold_testkit::Server> = OnceLock::new();
    let start = || leasehold_testkit::Etcd::new().start_blocking().expect("a server").shared();
    let (url, next) = (SERVER.get_or_init(start).url(), next());
    format!("{url}?prefix=store-{next}/")
}

/// A node of its own on a server that lives as long as this program.
#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper_url() -> String {
    static SERVER: OnceLock<leasehold_testkit::Server> = OnceLock::new();
    let start = || {
        // A lease never lasts longer than its session proves.
        let options = leasehold_testkit::Zookeeper::new().setting("maxSessionTimeout", "3600000");
        options.start_blocking().expect("a server").shared()
    };
    let (url, next) = (SERVER.get_or_init(start).url(), next());
    format!("{url}/store-{next}")
}

/// Databases of their own on servers that live as long as this program: on one, and on three.
#[cfg(feature = "redlock")]
pub(crate) fn redis_urls() -> (String, String) {
    static NODES: OnceLock<leasehold_testkit::servers::Group> = OnceLock::new();
    let start = || {
        let options = leasehold_testkit::Redis::new().argument("--databases").argument("1000");
        options.start_many_blocking(3).expect("servers").shared()
    };
    let nodes = NODES.get_or_init(start).servers();
    let (one, all) = (next(), next());
    let hosts: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
    // A slow answer on a busy machine must not make a node count as silent. The ttls are those of
    // the tests.
    let options = "ttl_max_ms=600000&node_timeout_ms=5000";
    let redlock = format!("redlock://{}/{all}?{options}", hosts.join(","));
    (format!("redis://{}/{one}", hosts[0]), redlock)
}

#[cfg(feature = "postgres")]
fn postgres_server() -> &'static leasehold_testkit::Server {
    static SERVER: OnceLock<leasehold_testkit::Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = leasehold_testkit::Postgres::new().setting("max_connections", "400");
        options.start_blocking().expect("a server").shared()
    })
}

/// A schema of its own on a server that lives as long as this program.
#[cfg(feature = "postgres")]
pub(crate) fn postgres_url() -> String {
    format!("{}?schema=store_{}", postgres_server().url(), next())
}

/// A database of its own on the same server.
#[cfg(feature = "postgres")]
pub(crate) fn advisory_url() -> String {
    let (server, database) = (postgres_server(), format!("store_{}", next()));
    server.sql(&format!("CREATE DATABASE {database}")).expect("made");
    format!("postgres+advisory://postgres@{}/{database}", server.address())
}

/// An empty store of each engine.
pub(crate) fn stores() -> Vec<Store> {
    #[cfg(feature = "redlock")]
    let (redis, redlock) = redis_urls();
    vec![
        Store::Memory(Memory::new()),
        #[cfg(feature = "postgres")]
        Store::Advisory(advisory_url()),
        #[cfg(feature = "etcd")]
        Store::Etcd(etcd_url()),
        #[cfg(feature = "postgres")]
        Store::Postgres(postgres_url()),
        #[cfg(feature = "redlock")]
        Store::Redis(redis),
        #[cfg(feature = "redlock")]
        Store::Redlock(redlock),
        #[cfg(feature = "sqlite")]
        Store::Sqlite(tempfile::tempdir().expect("a folder for the file")),
        #[cfg(feature = "zookeeper")]
        Store::Zookeeper(zookeeper_url()),
    ]
}

/// Runs a test on an empty store of each engine.
pub(crate) fn on_every_store(test: impl AsyncFn(Store) + Sync) {
    on_each(stores(), test);
}

/// Runs a test on stores side by side: most of its time is waiting.
fn on_each(stores: impl IntoIterator<Item = Store>, test: impl AsyncFn(Store) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for store in stores {
            scope.spawn(move || runtime().block_on(test(store)));
        }
    });
}

/// The same on stores with the capabilities that the test needs.
pub(crate) fn on_stores_that(can: fn(&Can) -> bool, test: impl AsyncFn(Store) + Sync) {
    let able = stores().into_iter().filter(|store| can(&Can::of_engine(&store.engine())));
    let able: Vec<Store> = able.collect();
    assert!(!able.is_empty(), "no store of this build can do it");
    on_each(able, test);
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime for one test")
}

pub(crate) type Hook = Arc<dyn Fn(Verb) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Runs around a verb; an error takes the verb's place.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) before: Option<Hook>,
    pub(crate) after: Option<Hook>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl Hooks {
    pub(crate) fn before(
        hook: impl Fn(Verb) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
    ) -> Self {
        Self { before: Some(Arc::new(hook)), after: None }
    }

    pub(crate) fn around(
        hook: impl Fn(Verb) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
    ) -> Self {
        let hook: Hook = Arc::new(hook);
        Self { before: Some(Arc::clone(&hook)), after: Some(hook) }
    }
}

/// An engine with hooks around the verbs that claims go through.
#[derive(Debug)]
pub(crate) struct Hooked {
    engine: Arc<dyn Engine>,
    info: Info,
    hooks: Hooks,
}

impl Hooked {
    fn hook<P: ?Sized>(self: &Arc<Self>, part: Arc<P>) -> Arc<HookedPart<P>> {
        Arc::new(HookedPart { part, engine: Arc::clone(self) })
    }

    async fn through<T>(&self, verb: Verb, call: impl Future<Output = Result<T>>) -> Result<T> {
        if let Some(before) = &self.hooks.before {
            before(verb).await?;
        }
        let answer = call.await;
        if let Some(after) = &self.hooks.after {
            after(verb).await?;
        }
        answer
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Hooked {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.through(Verb::Claim, self.engine.claim(claim)).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.through(Verb::Wait, self.engine.wait(key)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.through(Verb::Renew, self.engine.renew(renewals)).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.through(Verb::Release, self.engine.release(keys)).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.engine.inspect(query).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        let mut parts = Arc::clone(&self.engine).parts();
        // Its verbs may be pending, so claims and dropped leases go through the asynchronous verbs.
        parts.claim_now = None;
        parts.release_now = None;
        parts.claim_many = parts.claim_many.map(|part| self.hook(part) as _);
        parts.amend = parts.amend.map(|part| self.hook(part) as _);
        parts.convert = parts.convert.map(|part| self.hook(part) as _);
        parts.unattended = parts.unattended.map(|part| self.hook(part) as _);
        parts.wait_notices = parts.wait_notices.map(|part| self.hook(part) as _);
        parts
    }
}

/// A part of an engine with hooks.
#[derive(Debug)]
struct HookedPart<P: ?Sized> {
    part: Arc<P>,
    engine: Arc<Hooked>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ClaimMany for HookedPart<dyn ClaimMany> {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.engine.through(Verb::Claim, self.part.claim_all(claims)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Amend for HookedPart<dyn Amend> {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        self.engine.through(Verb::Amend, self.part.set_note(key, note)).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Convert for HookedPart<dyn Convert> {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        self.engine.through(Verb::Amend, self.part.set_mode(key, mode)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.part.resize(order).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Unattended for HookedPart<dyn Unattended> {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.engine.through(Verb::Release, self.part.keep_closed(key, stay)).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        self.part.longest_without_renewal().await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WaitNotices for HookedPart<dyn WaitNotices> {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.part.announce(notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.engine.through(Verb::WaitsOf, self.part.waits_of(holder)).await
    }
}

pub(crate) async fn is_free(client: &Client, name: &str) -> bool {
    client.line(name).await.expect("an answer").is_none()
}
