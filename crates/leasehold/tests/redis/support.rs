//! Servers, clients and waiting for facts. The tests define the facts.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::claim::{Claim, Mode, Standing};
use leasehold::engine::{Engine, Eviction, Finding, Query};
use leasehold::layer::retry::RetryPolicy;
use leasehold::redis::Redis;
use leasehold::{Client, Holder, Lease, Name, Request, Result};
pub(crate) use leasehold_testkit::bare::renewal;
use leasehold_testkit::{ClockDiary, Proxy, Server, bare, servers};
use tokio::task::JoinHandle;

pub(crate) use leasehold_testkit::waiting::{EVENT_MAX, soon, until, until_free, until_waiting};

/// Far beyond every test, so that the test sees every claim that is left behind.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// A server of the test's own.
pub(crate) async fn server() -> Server {
    servers::Redis::new().start().await.expect("a server starts")
}

/// A proxy before a server, which can break the connection.
pub(crate) async fn proxy(server: &Server) -> Proxy {
    Proxy::start(server.address()).await.expect("a proxy starts")
}

/// The address of a proxy; its time limits are short, so that tests need not wait long.
pub(crate) fn url_of(proxy: &Proxy) -> String {
    format!("redis://{}?connect_timeout_ms=1000&timeout_ms=1000", proxy.address())
}

pub(crate) async fn engine(url: impl AsRef<str>) -> Redis {
    soon("a store", Redis::open(url)).await.expect("the store opens")
}

pub(crate) async fn client(url: impl AsRef<str>) -> Client {
    soon("a client", leasehold::connect(url)).await.expect("the store opens")
}

/// A client without retries that renews early, so that much time is left after a fault.
pub(crate) async fn plain_client(url: impl AsRef<str>) -> Client {
    let builder = Client::builder().retry(RetryPolicy::OFF).renew_at_percent(20);
    soon("a client", builder.connect(url)).await.expect("the store opens")
}

/// A client that renews early, so that much time is left after a fault.
pub(crate) async fn early_client(url: impl AsRef<str>) -> Client {
    let builder = Client::builder().renew_at_percent(20);
    soon("a client", builder.connect(url)).await.expect("the store opens")
}

/// An order to take a name from all its holders.
pub(crate) async fn eviction(engine: &Redis, name: &Name) -> Result<Eviction> {
    let page = engine.inspect(&Query::name(name.clone())).await?;
    let held = page.lines.into_iter().flat_map(|line| line.held);
    let fences = held.map(|claim| claim.fence.as_u64()).collect();
    let (name, by, reason) = (name.clone(), Holder::fresh(), "a test".into());
    Ok(Eviction { name, fences, unreadable: false, by, reason })
}

/// Takes a lock and gives it back, so that connections are open and the server knows the scripts.
pub(crate) async fn warm_up(client: &Client) {
    let lease = client.mutex("warm-up").ttl(LONG).lock().await.expect("a free name");
    lease.release().await.expect("an answer");
}

/// Gives a server a command that it must accept.
#[track_caller]
pub(crate) fn told(server: &Server, command: &[&str]) -> String {
    server.redis(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Waits until a lease was renewed once more.
#[track_caller]
pub(crate) fn until_renewed(lease: &Lease) -> impl Future<Output = ()> + '_ {
    let before = lease.deadline();
    until("a renewal", async move || lease.deadline() > before)
}

/// A claim that waits in a task of its own. Dropping it cancels the wait.
pub(crate) struct Waiter(JoinHandle<Result<Lease>>);

impl Waiter {
    pub(crate) fn start(request: Request) -> Self {
        Self(tokio::spawn(async move { request.acquire().await }))
    }

    /// Begins to wait for `name`, and returns when it is in line behind `before` other waiters.
    pub(crate) async fn queue(looker: &Client, by: &Client, name: &str, before: usize) -> Self {
        let waiter = Self::start(by.request(name).ttl(LONG));
        until_waiting(looker, name, before + 1).await;
        waiter
    }

    #[track_caller]
    pub(crate) fn granted(mut self) -> impl Future<Output = Lease> {
        let place = std::panic::Location::caller();
        async move {
            match tokio::time::timeout(EVENT_MAX, &mut self.0).await {
                Ok(ended) => ended.expect("no panic").expect("a grant"),
                Err(_) => panic!("{place}: waited {EVENT_MAX:?} for a grant"),
            }
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A claim as an engine sees it, for tests that speak to the engine itself.
pub(crate) fn claim(name: &str, mode: Mode) -> Claim {
    Claim { mode, patience: LONG, ..bare::claim(name) }
}

/// Makes a claim, which must hold; the result is its fence.
pub(crate) async fn held(engine: &impl Engine, claim: &Claim) -> u64 {
    match engine.claim(claim).await.expect("an answer") {
        Standing::Held { fence, .. } => fence,
        other => panic!("{other:?}"),
    }
}

/// Makes a claim, which must wait.
pub(crate) async fn queued(engine: &impl Engine, claim: &Claim) {
    let standing = engine.claim(claim).await.expect("an answer");
    assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
}

/// How often a server has run a command, in scripts too.
pub(crate) fn calls(server: &Server, command: &str) -> u64 {
    let stats = told(server, &["INFO", "commandstats"]);
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|rest| rest.split(',').next()).map_or(0, |count| count.parse().expect("a count"))
}

/// How often a server was asked to run a script.
pub(crate) fn script_calls(server: &Server) -> u64 {
    calls(server, "evalsha") + calls(server, "eval")
}

/// How many keys a server has.
pub(crate) fn key_count(server: &Server) -> u64 {
    told(server, &["DBSIZE"]).parse().expect("a count")
}

/// The finding of `doctor` about a subject.
pub(crate) fn about<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject} in {findings:?}"))
}

/// A client that keeps a diary of clocks and renews early.
pub(crate) async fn diarist(diary: &ClockDiary, url: impl AsRef<str>) -> Client {
    let builder = Client::builder().renew_at_percent(20).observer(diary.clone());
    soon("a client", builder.connect(url)).await.expect("the store opens")
}

/// Waits for a report of a clock that was set ahead; the result is its server, and by how much.
#[track_caller]
pub(crate) fn until_ahead(diary: &ClockDiary) -> impl Future<Output = (String, Duration)> + '_ {
    let told = until("word of a step", async || diary.ahead().is_some());
    async move {
        told.await;
        diary.ahead().expect("it was told")
    }
}

/// Waits for a report of a clock that stands still; the result is its server.
#[track_caller]
pub(crate) fn until_frozen(diary: &ClockDiary) -> impl Future<Output = String> + '_ {
    let told = until("word of a clock that stands still", async || diary.frozen().is_some());
    async move {
        told.await;
        diary.frozen().expect("it was told")
    }
}

/// A server's monitor, which shows every command that it runs, in scripts too.
pub(crate) struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub(crate) fn open(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(EVENT_MAX)).expect("a time limit");
        stream.write_all(b"MONITOR\r\n").expect("it is sent");
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim_end(), "+OK");
        Self(lines)
    }

    /// The lines since the last call.
    pub(crate) fn read(&mut self, server: &Server) -> Vec<String> {
        const END: &str = "the end of this look";
        told(server, &["ECHO", END]);
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line.contains(END) {
                return lines;
            }
            lines.push(line);
        }
    }

    /// The lines since the last call, once `scripts` scripts ran in them.
    pub(crate) fn read_scripts(&mut self, server: &Server, scripts: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while scripts_in(&lines) < scripts {
            lines.push(self.line());
        }
        lines.extend(self.read(server));
        assert_eq!(scripts_in(&lines), scripts, "{lines:#?}");
        lines
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).expect("a line");
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}

/// How many scripts ran in a monitor's lines. A script that the server did not know yet ran
/// nothing.
fn scripts_in(lines: &[String]) -> usize {
    let ran = |line: &String| line.contains(" lua] ");
    lines.windows(2).filter(|pair| !ran(&pair[0]) && ran(&pair[1])).count()
}

/// Checks that waiters are granted in order of arrival. Their connections are reset while they
/// queue and while the lock passes from one to the next.
pub(crate) async fn keep_their_order(
    holder: &Client,
    connect: impl AsyncFn() -> Client,
    reset: impl Fn(),
) {
    let turns = turns(holder, connect, reset).await;
    assert!(turns.is_sorted(), "{turns:?}");
}

/// The numbers of eight waiters in the order of their grants. The first to come has number 0.
/// Their connections are reset meanwhile. Each waiter is granted once.
pub(crate) async fn turns(
    holder: &Client,
    connect: impl AsyncFn() -> Client,
    reset: impl Fn(),
) -> Vec<usize> {
    const WAITERS: usize = 8;
    let clients = [connect().await, connect().await, connect().await];
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let (order, mut granted) = tokio::sync::mpsc::channel(WAITERS);
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..WAITERS {
        let (request, order) = (clients[number % 3].request("report").ttl(LONG), order.clone());
        waiters.spawn(async move {
            let lease = request.acquire().await.expect("a grant");
            order.send(number).await.expect("the test listens");
            lease.release().await
        });
        until_waiting(holder, "report", number + 1).await;
        reset();
    }
    lease.release().await.expect("an answer");
    let mut turns = Vec::new();
    for turn in 0..WAITERS {
        turns.push(soon("a grant", granted.recv()).await.expect("waiters are there"));
        if turn % 2 == 1 {
            reset();
        }
    }
    // A reset may hit a release. The client then repeats it, and finds that it was done.
    while let Some(ended) = soon("the end", waiters.join_next()).await {
        ended.expect("no panic").expect("an answer");
    }
    until_free(holder, "report").await;
    turns
}
