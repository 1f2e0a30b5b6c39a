//! Servers, clients of them, etcd's own command, and waiting for facts.

use std::io::{Read as _, Write as _};
use std::process::{Command, Output};
use std::time::Duration;

use leasehold::{Client, Lease, Request, connect};
use leasehold_testkit::{Etcd, Group, Server, Worker};
use tokio::task::JoinHandle;

pub(crate) use leasehold_testkit::waiting::{EVENT_MAX, soon, until, until_waiting};

/// Far beyond every test, so that what is left behind is seen.
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

/// What etcd's own command says.
pub(crate) fn ctl(endpoints: &str, words: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        etcdctl(endpoints).args(words).output().expect("`cargo xtask setup` installs etcdctl");
    let error = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{words:?}: {error}");
    String::from_utf8(stdout).expect("etcdctl writes text").trim().to_owned()
}

/// A process that takes a lock with etcd's own command, and holds it until it is ended.
pub(crate) fn lock(server: &Server, name: &str, ttl: u32) -> Worker {
    let mut command = etcdctl(&endpoint(server));
    command.args(["lock", name, &format!("--ttl={ttl}")]);
    Worker::spawn(command).expect("a worker")
}

/// The key of the lock, once the process holds it.
pub(crate) async fn locked(worker: &mut Worker) -> String {
    worker.next_line(EVENT_MAX).await.expect("a line").expect("a key")
}

/// Which member leads, by its place in the group, as the first that answers says.
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

/// The revision a store is at.
pub(crate) fn revision(server: &Server) -> u64 {
    let text = ctl(&endpoint(server), &["get", "none", "--write-out=json"]);
    let rest = text.split("\"revision\":").nth(1).expect("a revision");
    rest.split([',', '}']).next().and_then(|number| number.parse().ok()).expect("a number")
}

/// What the server counts under this name.
pub(crate) fn metric(server: &Server, name: &str) -> u64 {
    let mut stream = std::net::TcpStream::connect(server.address()).expect("a connection");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.find_map(|value| value.strip_prefix(' ')).expect(name);
    value.trim().parse::<f64>().expect("a number") as u64
}

/// The claims in a store: every key but those of the library's own.
pub(crate) fn claims(server: &Server) -> Vec<String> {
    let text = ctl(&endpoint(server), &["get", "", "--prefix", "--keys-only"]);
    let keys = text.lines().filter(|line| !line.is_empty() && !line.starts_with("leasehold:"));
    keys.map(str::to_owned).collect()
}

/// The ids of all leases.
pub(crate) fn lease_ids(server: &Server) -> Vec<String> {
    let text = ctl(&endpoint(server), &["lease", "list"]);
    text.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Waits until neither a claim nor a lease is left.
pub(crate) async fn until_empty(server: &Server) {
    until("an empty store", async || claims(server).is_empty() && lease_ids(server).is_empty())
        .await;
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
