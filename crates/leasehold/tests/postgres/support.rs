//! Servers to test on, and waiting for facts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::postgres::LeaseTable;
use leasehold::{Client, Lease, Request, Result, connect};
use leasehold_testkit::{Postgres, Proxy, Server};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use leasehold_testkit::waiting::{EVENT_MAX, soon, until, until_free, until_waiting};

/// Far beyond every test, so that the test sees every claim that is left behind.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A server that no test disturbs, for all tests that only need one.
pub(crate) fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Postgres::new()
            .setting("max_connections", "400")
            .start_blocking()
            .expect("a server")
            .shared()
    })
}

/// A schema that no other test uses.
pub(crate) fn fresh_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A store that clients reach directly and over a proxy.
pub(crate) struct Troubled {
    pub(crate) proxy: Proxy,
    pub(crate) direct: String,
    pub(crate) troubled: String,
}

impl Troubled {
    pub(crate) async fn new(options: &str) -> Self {
        let (server, schema) = (server(), fresh_schema());
        let proxy = Proxy::start(server.address()).await.expect("a proxy");
        let direct = format!("{}?schema={schema}", server.url());
        let troubled =
            format!("postgres://postgres@{}/postgres?schema={schema}{options}", proxy.address());
        Self { proxy, direct, troubled }
    }

    /// A client behind the proxy, and one without a proxy.
    pub(crate) async fn clients(&self) -> (Client, Client) {
        let other = connect(&self.direct).await.expect("connected");
        (connect(&self.troubled).await.expect("connected"), other)
    }
}

/// A client that renews nothing: a waiter learns of its grant only by a bell.
pub(crate) async fn without_heartbeats(url: &str) -> Client {
    let chaos = Chaos::default();
    let engine = chaos.trouble(LeaseTable::open(url).await.expect("connected"));
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    Client::builder().engine(engine).expect("a client")
}

/// A claim that waits in a task of its own.
pub(crate) fn waiter(request: Request) -> JoinHandle<Result<Lease>> {
    tokio::spawn(async move { request.acquire().await })
}

/// Claims that wait, each in a task of its own.
pub(crate) struct Crowd {
    ended: mpsc::Receiver<Result<Lease>>,
}

impl Crowd {
    pub(crate) fn of(waiters: usize, request: &Request) -> Self {
        let (sender, ended) = mpsc::channel(waiters);
        for _ in 0..waiters {
            let (request, sender) = (request.clone(), sender.clone());
            tokio::spawn(async move {
                // At its end the test closes the client, and receives no more.
                let _unheard = sender.send(request.acquire().await).await;
            });
        }
        Self { ended }
    }

    /// Waits until `count` claims wait for `name`; a claim that ends before is a failure.
    #[track_caller]
    pub(crate) fn until_waiting<'a>(
        &'a mut self,
        client: &'a Client,
        name: &'a str,
        count: usize,
    ) -> impl Future<Output = ()> + 'a {
        let waiting = until_waiting(client, name, count);
        async {
            tokio::select! {
                () = waiting => {}
                ended = self.ended.recv() => panic!("a claim does not wait: {ended:?}"),
            }
        }
    }

    /// The lease of the next claim that ends.
    pub(crate) async fn next(&mut self) -> Lease {
        let ended = soon("the next grant", self.ended.recv()).await;
        ended.expect("somebody waits").expect("a lease")
    }

    /// Whether another claim has ended.
    pub(crate) fn has_next(&self) -> bool {
        !self.ended.is_empty()
    }
}

/// The lease of a waiter.
#[track_caller]
pub(crate) fn granted(waiter: JoinHandle<Result<Lease>>) -> impl Future<Output = Lease> {
    let grant = soon("a grant", waiter);
    async move { grant.await.expect("the task ends").expect("a lease") }
}

/// Kills the server processes that listen for bells in a schema, or all of leasehold's.
pub(crate) fn terminate(server: &Server, which: &str) -> u32 {
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE application_name = 'leasehold' AND {which}"
    );
    server.sql(&sql).expect("an answer").trim().parse().expect("a number")
}

/// Advisory locks in a database of their own: keys belong to the database, not to the schema.
pub(crate) fn advisory_on(server: &Server) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let database = format!("advisory_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    server.sql(&format!("CREATE DATABASE {database}")).expect("made");
    format!("postgres+advisory://postgres@{}/{database}", server.address())
}

/// The database of a URL.
pub(crate) fn database(url: &str) -> &str {
    let path = url.rsplit('/').next().expect("a path");
    path.split('?').next().expect("a name")
}

/// A plain connection to the same database, for statements of a test's own.
pub(crate) async fn plain(url: &str) -> tokio_postgres::Client {
    let url = url.replace("postgres+advisory", "postgres");
    let url = url.split('?').next().expect("a url").to_owned();
    let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("connected");
    tokio::spawn(connection);
    client
}

/// The number in the answer to a statement.
pub(crate) async fn number(client: &tokio_postgres::Client, statement: &str) -> i64 {
    client.query_one(statement, &[]).await.expect("an answer").get(0)
}

/// The truth value in the answer to a statement.
pub(crate) async fn truth(client: &tokio_postgres::Client, statement: &str) -> bool {
    client.query_one(statement, &[]).await.expect("an answer").get(0)
}

/// How many statements with this text a server that logs them has carried out.
pub(crate) fn carried_out(server: &Server, text: &str) -> usize {
    let log = std::fs::read(server.folder().join("log")).expect("a log");
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| line.contains("execute") && line.contains(text)).count()
}
