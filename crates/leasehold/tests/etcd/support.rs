//! Servers, their clients, etcd's own command, and waiting for facts.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Lease, Request, connect};
use leasehold_testkit::{Etcd, Group, Server, Worker};
use tokio::task::JoinHandle;

pub(crate) use leasehold_testkit::waiting::{EVENT_MAX, soon, until, until_waiting};

/// Far beyond every test, so that the test sees every claim that is left behind.
pub(crate) const LONG: Duration = Duration::from_secs(300);

pub(crate) async fn server() -> Server {
    Etcd::new().start().await.expect("a server")
}

pub(crate) async fn cluster() -> Group {
    Etcd::new().start_cluster().await.expect("a cluster")
}

pub(crate) async fn client(url: &str) -> Client {
    connect(url).await.expect("a connection")
}

/// etcd's own command.
pub(crate) fn etcdctl(endpoints: &str) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoints}"));
    command
}

/// The address of a server for etcd's own command.
pub(crate) fn endpoint(server: &Server) -> String {
    server.address().to_string()
}

/// The output of etcd's own command.
pub(crate) fn ctl(endpoints: &str, words: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        etcdctl(endpoints).args(words).output().expect("`cargo xtask setup` installs etcdctl");
    let error = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{words:?}: {error}");
    String::from_utf8(stdout).expect("etcdctl writes text").trim().to_owned()
}

/// A process that takes a lock with etcd's own command, and holds it until the test ends it.
pub(crate) fn lock(server: &Server, name: &str, ttl: u32) -> Worker {
    let mut command = etcdctl(&endpoint(server));
    command.args(["lock", name, &format!("--ttl={ttl}")]);
    Worker::spawn(command).expect("a worker")
}

/// The key of the lock, once the process holds it.
pub(crate) async fn locked(worker: &mut Worker) -> String {
    worker.next_line(EVENT_MAX).await.expect("a line").expect("a key")
}

/// The place of the leader in the group, as the first member that answers reports it.
pub(crate) fn leader(group: &Group) -> usize {
    let id = |text: &str, field: &str| {
        let rest = text.split(&format!("\"{field}\":")).nth(1).expect(field);
        rest.split([',', '}']).next().expect("a number").to_owned()
    };
    let mut members = Vec::new();
    let mut leader = None;
    for server in group.servers() {
        let status = etcdctl(&endpoint(server))
            .args(["--command-timeout=2s", "endpoint", "status", "--write-out=json"])
            .output()
            .expect("etcdctl");
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        let known = status.status.success() && text.contains("\"leader\":");
        members.push(known.then(|| id(&text, "member_id")));
        if known {
            leader = Some(id(&text, "leader"));
        }
    }
    let leader = leader.expect("a leader");
    members.iter().position(|member| *member == Some(leader.clone())).expect("the leader answers")
}

/// The revision of a store.
pub(crate) fn revision(server: &Server) -> u64 {
    let text = ctl(&endpoint(server), &["get", "none", "--write-out=json"]);
    let rest = text.split("\"revision\":").nth(1).expect("a revision");
    rest.split([',', '}']).next().and_then(|number| number.parse().ok()).expect("a number")
}

/// All counters of the server.
fn metrics(server: &Server) -> String {
    let mut stream = std::net::TcpStream::connect(server.address()).expect("a connection");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// The counter with this name.
fn counted(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.find_map(|value| value.strip_prefix(' ')).expect(name);
    value.trim().parse::<f64>().expect("a number") as u64
}

/// The server's counter with this name.
pub(crate) fn metric(server: &Server, name: &str) -> u64 {
    counted(&metrics(server), name)
}

/// Counts the requests to a server, and its proposals to its cluster.
pub(crate) struct Meter<'a> {
    server: &'a Server,
    requests: BTreeMap<String, u64>,
    proposals: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn of(server: &'a Server) -> Self {
        let mut meter = Self { server, requests: BTreeMap::new(), proposals: 0 };
        meter.spent();
        meter
    }

    /// The counts since the last call: how many requests of each kind, and the proposals.
    pub(crate) fn spent(&mut self) -> String {
        let text = metrics(self.server);
        let mut requests = BTreeMap::new();
        for line in text.lines() {
            let rest = line.strip_prefix("grpc_server_started_total{grpc_method=\"");
            let Some((kind, rest)) = rest.and_then(|rest| rest.split_once('"')) else { continue };
            let count = rest.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
            *requests.entry(kind.to_owned()).or_default() += count.expect("a number") as u64;
        }
        assert!(requests.contains_key("Txn"), "{requests:?}");
        let proposals = counted(&text, "etcd_server_proposals_committed_total");
        let since = requests.iter().map(|(kind, count)| {
            (kind, count - self.requests.get(kind).copied().unwrap_or_default())
        });
        let told: Vec<String> = since
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        let told = format!("{}; proposals {}", told.join(", "), proposals - self.proposals);
        (self.requests, self.proposals) = (requests, proposals);
        told
    }
}

/// The lines of etcd's own command for a user with these login options.
fn lines(server: &Server, login: &[&str], words: &[&str]) -> Vec<String> {
    let text = ctl(&endpoint(server), &[login, words].concat());
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn keys(server: &Server, login: &[&str]) -> Vec<String> {
    lines(server, login, &["get", "", "--prefix", "--keys-only"])
}

/// The claims in a store: every key but those of the library's own.
pub(crate) fn claims(server: &Server) -> Vec<String> {
    let mut keys = keys(server, &[]);
    keys.retain(|key| !key.starts_with("leasehold:"));
    keys
}

/// Whether a key stays in a store for good, as docs/engines/etcd.md says.
fn stays(key: &str) -> bool {
    let own = key.split_once("leasehold:").map(|(_, own)| own);
    own.is_some_and(|own| {
        ["store", "epoch", "farewell", "holders"].contains(&own) || own.starts_with("totals:")
    })
}

fn leases(server: &Server, login: &[&str]) -> Vec<String> {
    lines(server, login, &["lease", "list"]).split_off(1)
}

/// The ids of all leases.
pub(crate) fn lease_ids(server: &Server) -> Vec<String> {
    leases(server, &[])
}

/// Waits until no lease is left, and no key but those that stay for good.
pub(crate) async fn until_empty(server: &Server) {
    until_empty_for(server, &[]).await;
}

/// The same for a store that needs these login options of `etcdctl`.
async fn until_empty_for(server: &Server, login: &[&str]) {
    let begun = Instant::now();
    loop {
        let mut left = keys(server, login);
        left.retain(|key| !stays(key));
        left.extend(leases(server, login));
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > EVENT_MAX {
            let lives = leases(server, login).into_iter();
            let lives = lives.flat_map(|id| lines(server, login, &["lease", "timetolive", &id]));
            panic!("left in the store: {left:?}, {:?}", lives.collect::<Vec<String>>());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Closes the clients of a store, and checks that nothing is left in it.
pub(crate) async fn nothing_is_left(server: &Server, clients: &[Client]) {
    nothing_is_left_for(server, &[], clients).await;
}

/// The same for a store that needs these login options of `etcdctl`.
pub(crate) async fn nothing_is_left_for(server: &Server, login: &[&str], clients: &[Client]) {
    for client in clients {
        soon("the close", client.close()).await.expect("an answer");
    }
    until_empty_for(server, login).await;
}

/// Waits until the store reports no watcher. A client that is closed before that lets its leases
/// end by themselves.
pub(crate) async fn until_unwatched(server: &Server) {
    until("nobody watches", async || {
        !keys(server, &[]).iter().any(|key| key.starts_with("leasehold:watcher:"))
    })
    .await;
}

/// Changes a key and compacts everything before that, over and over, until it is stopped.
pub(crate) struct Compacting {
    endpoint: String,
    stops: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Compacting {
    pub(crate) fn start(server: &Server) -> Self {
        let (stops, endpoint) = (Arc::new(AtomicBool::new(false)), endpoint(server));
        let (told, server) = (Arc::clone(&stops), endpoint.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                let text = ctl(&server, &["put", "filler", "", "--write-out=json"]);
                let rest = text.split("\"revision\":").nth(1).expect("a revision");
                let revision = rest.split([',', '}']).next().expect("a number");
                ctl(&server, &["compact", revision]);
            }
        });
        Self { endpoint, stops, thread: Some(thread) }
    }

    /// Stops, and leaves nothing.
    pub(crate) fn stop(mut self) {
        self.stops.store(true, Ordering::SeqCst);
        self.thread.take().expect("it runs").join().expect("it compacts");
        ctl(&self.endpoint, &["del", "filler"]);
    }
}

impl Drop for Compacting {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
    }
}

/// A claim that waits in a task of its own.
pub(crate) struct Waiter(JoinHandle<leasehold::Result<Lease>>);

impl Waiter {
    pub(crate) fn start(request: Request) -> Self {
        Self(tokio::spawn(async move { request.acquire().await }))
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }

    pub(crate) async fn granted(&mut self) -> Lease {
        soon("a grant", &mut self.0).await.expect("no panic").expect("a lease")
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}
