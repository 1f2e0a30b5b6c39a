//! Servers, their clients, the servers' own counts, and waiting for facts.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leasehold::engine::Engine as _;
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Client, Lease, Request, connect};
use leasehold_testkit::servers::{litter, znodes};
use leasehold_testkit::{Group, Server, Zookeeper};
use tokio::task::JoinHandle;

pub(crate) use leasehold_testkit::waiting::{EVENT_MAX, soon, until, until_waiting};

/// Far beyond every test, so that the test sees every claim that is left behind.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// The root of a store whose url has no path.
const ROOT: &str = "/locks";

pub(crate) async fn server() -> Server {
    Zookeeper::new().start().await.expect("a server")
}

/// A server that keeps unrenewed claims for longer than any test takes.
pub(crate) async fn server_with_long_sessions() -> Server {
    let server = Zookeeper::new().setting("maxSessionTimeout", "1000000");
    server.start().await.expect("a server")
}

pub(crate) async fn ensemble() -> Group {
    Zookeeper::new().start_ensemble().await.expect("an ensemble")
}

pub(crate) async fn client(url: &str) -> Client {
    connect(url).await.expect("a connection")
}

/// The answer of a server to one of its four-letter words.
pub(crate) fn says(server: SocketAddr, word: &str) -> Option<String> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&server, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(word.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// One of the server's counts.
pub(crate) fn counted(server: &Server, what: &str) -> u64 {
    let text = says(server.address(), "mntr").expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{what}\t")));
    line.and_then(|number| number.trim().parse().ok()).expect(what)
}

/// The place of the leader in the group.
pub(crate) async fn leader(group: &Group) -> usize {
    let leads = |server: &Server| {
        says(server.address(), "srvr").is_some_and(|text| text.contains("Mode: leader"))
    };
    soon("a leader", async {
        loop {
            if let Some(leader) = group.servers().iter().position(leads) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// The nodes in a store that end with a session, without those of the library's own.
pub(crate) fn claims(server: &Server) -> Vec<String> {
    let text = says(server.address(), "dump").expect("it answers");
    let nodes = text.lines().filter_map(|line| line.strip_prefix('\t'));
    let nodes = nodes.filter(|node| node.starts_with('/') && !node.contains("/%leasehold/"));
    nodes.map(str::to_owned).collect()
}

/// Waits until no claim is left.
pub(crate) async fn until_empty(server: &Server) {
    until("an empty store", async || claims(server).is_empty()).await;
}

/// Closes clients, and checks that none of their nodes stays: reads all nodes, of whatever kind.
pub(crate) async fn leaves_nothing(server: &Server, clients: impl IntoIterator<Item = Client>) {
    leaves_nothing_at(server, (ROOT, None), clients).await;
}

/// The same for a store elsewhere, whose nodes belong to this `USER:PASSWORD`.
pub(crate) async fn leaves_nothing_at(
    server: &Server,
    (root, login): (&str, Option<&str>),
    clients: impl IntoIterator<Item = Client>,
) {
    for client in clients {
        soon("the close", client.close()).await.expect("an answer");
    }
    let mut left = None;
    let emptied = tokio::time::timeout(EVENT_MAX, async {
        loop {
            // A server that lost its leader answers when it has another one.
            let nodes = znodes(server.plain_address(), "/", login).await;
            let litter = nodes.map(|nodes| {
                let mut litter = litter(&nodes, root);
                litter.retain(|node| !is_the_servers(&node.path));
                litter
            });
            if litter.as_ref().is_ok_and(Vec::is_empty) {
                return;
            }
            left = Some(litter);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(emptied.is_ok(), "left behind: {left:?}");
}

/// Whether a node exists before any store does.
fn is_the_servers(path: &str) -> bool {
    path == "/" || path == "/zookeeper" || path.starts_with("/zookeeper/")
}

/// Closes engines that a test uses without a client.
pub(crate) async fn close<'a>(engines: impl IntoIterator<Item = &'a ZooKeeper>) {
    for engine in engines {
        soon("the close", engine.close()).await.expect("an answer");
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
