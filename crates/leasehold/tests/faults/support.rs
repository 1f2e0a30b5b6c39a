//! Stores to test on, an engine with hooks around its verbs, and waiting for facts.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use leasehold::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Released, Renewal, Standing,
};
use leasehold::engine::{
    Bump, Bumped, Capabilities, Concern, Counts, Engine, Event, Eviction, Finding, Info, Notice,
    Page, Query, Resize, Resized, Totals, Wait, Wake,
};
#[cfg(feature = "etcd")]
use leasehold::etcd::Etcd;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::memory::Memory;
#[cfg(feature = "postgres")]
use leasehold::postgres::{Advisory, LeaseTable};
#[cfg(feature = "redis")]
use leasehold::redis::{Redis, open_redlock};
#[cfg(feature = "sqlite")]
use leasehold::sqlite::Sqlite;
#[cfg(feature = "zookeeper")]
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Client, ClientBuilder, Result};

pub(crate) use leasehold_testkit::waiting::{soon, until, until_free, until_waiting};

/// Far beyond every test, so that what is left behind is seen.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A store of its own.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Memory),
    /// The address of a database of its own: keys are the database's, not the schema's.
    #[cfg(feature = "postgres")]
    Advisory(String),
    /// The address of a prefix of its own.
    #[cfg(feature = "etcd")]
    Etcd(String),
    /// The address of a schema of its own.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// The address of a database of its own.
    #[cfg(feature = "redis")]
    Redis(String),
    /// The address of such databases on three nodes.
    #[cfg(feature = "redis")]
    Redlock(String),
    #[cfg(feature = "sqlite")]
    Sqlite(tempfile::TempDir),
    /// The address of a node of its own.
    #[cfg(feature = "zookeeper")]
    Zookeeper(String),
}

impl Store {
    /// Opens the store once, and makes clients that share what was opened.
    fn open<const N: usize>(&self, builders: [ClientBuilder; N]) -> (Arc<dyn Engine>, [Client; N]) {
        match self {
            Store::Memory(memory) => shared(memory.clone(), builders),
            #[cfg(feature = "postgres")]
            Store::Advisory(url) => shared(opened(Advisory::open(url)), builders),
            #[cfg(feature = "etcd")]
            Store::Etcd(url) => shared(opened(Etcd::open(url)), builders),
            #[cfg(feature = "postgres")]
            Store::Postgres(url) => shared(opened(LeaseTable::open(url)), builders),
            #[cfg(feature = "redis")]
            Store::Redis(url) => shared(opened(Redis::open(url)), builders),
            #[cfg(feature = "redis")]
            Store::Redlock(url) => shared(opened(open_redlock(url)), builders),
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

/// Tests ask for engines where they cannot wait; here they may block.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn opened<T>(open: impl Future<Output = Result<T>>) -> T {
    let opened = match tokio::runtime::Handle::try_current() {
        Ok(here) => tokio::task::block_in_place(|| here.block_on(open)),
        // Its connection ends with this runtime; another is made where it is used.
        Err(_) => runtime().block_on(open),
    };
    opened.expect("a store of its own")
}

/// A number that no other store has.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A prefix of its own on a server that lives as long as this program.
#[cfg(feature = "etcd")]
pub(crate) fn etcd_url() -> String {
    static SERVER: OnceLock<leasehold_testkit::Server> = OnceLock::new();
    let start = || leasehold_testkit::Etcd::new().start_blocking().expect("a server");
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
        options.start_blocking().expect("a server")
    };
    let (url, next) = (SERVER.get_or_init(start).url(), next());
    format!("{url}/store-{next}")
}

/// Databases of their own on servers that live as long as this program: on one, and on three.
#[cfg(feature = "redis")]
pub(crate) fn redis_urls() -> (String, String) {
    static NODES: OnceLock<leasehold_testkit::servers::Group> = OnceLock::new();
    let start = || {
        let options = leasehold_testkit::Redis::new().argument("--databases").argument("1000");
        options.start_many_blocking(3).expect("servers")
    };
    let nodes = NODES.get_or_init(start).servers();
    let (one, all) = (next(), next());
    let hosts: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
    // A busy machine is no silent node, and ttls are as long as the tests have them.
    let options = "ttl_max_ms=600000&node_timeout_ms=5000";
    let redlock = format!("redlock://{}/{all}?{options}", hosts.join(","));
    (format!("redis://{}/{one}", hosts[0]), redlock)
}

#[cfg(feature = "postgres")]
fn postgres_server() -> &'static leasehold_testkit::Server {
    static SERVER: OnceLock<leasehold_testkit::Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = leasehold_testkit::Postgres::new().setting("max_connections", "400");
        options.start_blocking().expect("a server")
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
    #[cfg(feature = "redis")]
    let (redis, redlock) = redis_urls();
    vec![
        Store::Memory(Memory::new()),
        #[cfg(feature = "postgres")]
        Store::Advisory(advisory_url()),
        #[cfg(feature = "etcd")]
        Store::Etcd(etcd_url()),
        #[cfg(feature = "postgres")]
        Store::Postgres(postgres_url()),
        #[cfg(feature = "redis")]
        Store::Redis(redis),
        #[cfg(feature = "redis")]
        Store::Redlock(redlock),
        #[cfg(feature = "sqlite")]
        Store::Sqlite(tempfile::tempdir().expect("a folder for the file")),
        #[cfg(feature = "zookeeper")]
        Store::Zookeeper(zookeeper_url()),
    ]
}

/// Runs a test on an empty store of each engine.
pub(crate) fn on_every_store(test: impl AsyncFn(Store)) {
    for store in stores() {
        runtime().block_on(test(store));
    }
}

/// The same on those that can do what the test needs.
pub(crate) fn on_stores_that(can: fn(&Capabilities) -> bool, test: impl AsyncFn(Store)) {
    let mut tested = 0;
    for store in stores() {
        if can(&store.engine().info().can) {
            runtime().block_on(test(store));
            tested += 1;
        }
    }
    assert!(tested > 0, "no store of this build can do it");
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime for one test")
}

pub(crate) type Hook = Arc<dyn Fn(Verb) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// What happens around a verb; an error takes the verb's place.
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
impl Engine for Hooked {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.through(Verb::Claim, self.engine.claim(claim)).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.through(Verb::Claim, self.engine.claim_all(claims)).await
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

    fn release_now(&self, _key: &ClaimKey) -> Option<Released> {
        // Its verbs may be pending, so a dropped lease goes the long way.
        None
    }

    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
        self.through(Verb::Amend, self.engine.amend(key, amendment)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.engine.resize(order).await
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        self.engine.losses().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        self.engine.concerns().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.engine.inspect(query).await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.engine.announce(notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.through(Verb::WaitsOf, self.engine.waits_of(holder)).await
    }

    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        self.engine.watch(query).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        self.engine.evict(order).await
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.engine.bump_epoch(order).await
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        self.engine.tally(counts).await
    }

    async fn totals(&self) -> Result<Totals> {
        self.engine.totals().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.engine.examine().await
    }

    async fn install(&self) -> Result<()> {
        self.engine.install().await
    }

    fn schema(&self) -> &'static str {
        self.engine.schema()
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}

pub(crate) async fn is_free(client: &Client, name: &str) -> bool {
    client.show(name).await.expect("an answer").is_none()
}
