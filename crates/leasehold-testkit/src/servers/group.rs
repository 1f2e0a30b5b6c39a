//! Several servers that work together, as one thing to start and to drop.
//!
//! The engines' modules make them find each other.

use std::fmt;

use super::redis_groups::master_port;
use super::server::Server;
use crate::error::{Error, Result, unblock};

/// The name under which the sentinels know the master.
pub const SENTINEL_SERVICE: &str = "leasehold";

/// Equal servers: a Redis Cluster, independent Redis servers, a ZooKeeper ensemble, an etcd
/// cluster.
///
/// Dropping it kills all of them and removes their data.
pub struct Group {
    url: String,
    servers: Vec<Server>,
}

impl Group {
    /// Makes a group out of servers that know each other; the address lists all of them behind
    /// `start`, which is the scheme and the login.
    pub(super) fn new(start: &str, servers: Vec<Server>) -> Group {
        Group { url: format!("{start}{}", addresses(&servers)), servers }
    }

    /// Marks these servers as shared by several tests; see [`Server::shared`].
    pub fn shared(self) -> Group {
        let Group { url, servers } = self;
        Group { url, servers: servers.into_iter().map(Server::shared).collect() }
    }

    /// The address of all members, in the form of leasehold's `--url`, with the password when there
    /// is one.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The members; a test may kill, stop or restart each.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Ends all members with `SIGKILL`.
    pub fn kill(&self) -> Result<()> {
        self.servers.iter().try_for_each(Server::kill)
    }

    /// Kills all members, then starts all again on the same ports with the same data.
    ///
    /// # Cancel safety
    ///
    /// Members that were started keep running when the caller stops waiting.
    pub async fn restart(&self) -> Result<()> {
        self.kill()?;
        for server in &self.servers {
            server.launch()?;
        }
        for server in &self.servers {
            server.wait_ready().await?;
        }
        Ok(())
    }
}

/// A group of one.
impl From<Server> for Group {
    fn from(server: Server) -> Group {
        Group { url: server.url().to_owned(), servers: vec![server] }
    }
}

/// A Redis master with two replicas, watched by three sentinels.
///
/// Dropping it kills all six and removes their data.
pub struct SentinelGroup {
    url: String,
    data: Vec<Server>,
    sentinels: Vec<Server>,
}

impl SentinelGroup {
    /// Marks these servers as shared by several tests; see [`Server::shared`].
    pub fn shared(self) -> SentinelGroup {
        let shared = |servers: Vec<Server>| servers.into_iter().map(Server::shared).collect();
        let SentinelGroup { url, data, sentinels } = self;
        SentinelGroup { url, data: shared(data), sentinels: shared(sentinels) }
    }

    /// `data` is the first master, then the replicas; `start` is the scheme and the login.
    pub(super) fn new(start: &str, data: Vec<Server>, sentinels: Vec<Server>) -> SentinelGroup {
        let url = format!("{start}{}/{SENTINEL_SERVICE}", addresses(&sentinels));
        SentinelGroup { url, data, sentinels }
    }

    /// The address of the sentinels and the service, in the form of leasehold's `--url`.
    ///
    /// It holds the password of the data, when there is one; the sentinels' own is not in it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server that was the master at the start; a failover makes another the master.
    pub fn first_master(&self) -> &Server {
        &self.data[0]
    }

    /// All servers that hold data: the first master, then those that started as replicas.
    pub fn data(&self) -> &[Server] {
        &self.data
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The current master, as the first sentinel to answer knows it.
    pub fn current_master(&self) -> Result<&Server> {
        let port = master_port(&self.sentinels)?;
        self.data.iter().find(|server| server.port() == port).ok_or_else(|| Error::Refused {
            server: "redis sentinel".to_owned(),
            request: "SENTINEL GET-MASTER-ADDR-BY-NAME".to_owned(),
            answer: format!("port {port}, which is not in this group"),
        })
    }
}

// The addresses may hold passwords.
impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Group").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl fmt::Debug for SentinelGroup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SentinelGroup")
            .field("data", &self.data)
            .field("sentinels", &self.sentinels)
            .finish_non_exhaustive()
    }
}

fn addresses(servers: &[Server]) -> String {
    let addresses: Vec<String> =
        servers.iter().map(|server| server.address().to_string()).collect();
    addresses.join(",")
}

/// Runs a blocking start of a group or server on options that are cheap to copy.
pub(super) async fn start_with<O, T>(options: &O, start: fn(&O) -> Result<T>) -> Result<T>
where
    O: Clone + Send + 'static,
    T: Send + 'static,
{
    let options = options.clone();
    unblock(move || start(&options)).await
}
