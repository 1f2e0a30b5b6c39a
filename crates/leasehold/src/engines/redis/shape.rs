//! The shapes a Redis store comes in: one server, a master found by Sentinels, a Cluster.

use std::time::Duration;

use redis::aio::PubSubStream;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, io::tcp::TcpSettings,
};

use crate::engine::kit::address::{Host, Secret};

use super::link::Connection;

/// A failure of ours in the driver's clothes.
pub(super) fn unreachable(cause: &str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, cause.to_owned()).into()
}

/// What is sent goes out at once, and not when the one before was answered.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Who to log in as.
#[derive(Debug, Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
}

impl Login {
    fn settings(&self, database: i64) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default().set_db(database);
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.reveal());
        }
        settings
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    pub(super) answer: Duration,
}

/// How to reach a server, whichever it is.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) login: Login,
    pub(super) database: i64,
    /// With TLS, and the certificates to check it by.
    pub(super) tls: Option<TlsCertificates>,
    pub(super) limits: Limits,
}

impl Way {
    /// A client for one server; opens nothing.
    pub(super) fn client(&self, host: &Host) -> RedisResult<Client> {
        let (name, port) = (host.name.clone(), host.port);
        let address = match self.tls {
            None => ConnectionAddr::Tcp(name, port),
            Some(_) => {
                ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
            }
        };
        let info = self.info(address)?;
        match &self.tls {
            None => Client::open(info),
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        }
    }

    /// A client for a socket file.
    pub(super) fn client_of_file(&self, path: &str) -> RedisResult<Client> {
        Client::open(self.info(ConnectionAddr::Unix(path.into()))?)
    }

    fn info(&self, address: ConnectionAddr) -> RedisResult<ConnectionInfo> {
        let settings = self.login.settings(self.database);
        let info = address.into_connection_info()?.set_tcp_settings(at_once());
        Ok(info.set_redis_settings(settings))
    }

    async fn connect(&self, client: &Client) -> RedisResult<redis::aio::MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.connect))
            .set_response_timeout(Some(self.limits.answer));
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn subscribe(&self, client: &Client, channels: &[&str]) -> RedisResult<PubSubStream> {
        let subscribing = async {
            let mut messages = client.get_async_pubsub().await?;
            messages.subscribe(channels).await?;
            Ok(messages.into_on_message())
        };
        match tokio::time::timeout(self.limits.connect, subscribing).await {
            Ok(subscribed) => subscribed,
            Err(_late) => Err(unreachable("no answer in time")),
        }
    }
}

/// A store, however many servers it is made of.
pub(super) enum Shape {
    One { way: Way, client: Client },
    Sentinel { way: Way, sentinels: Sentinels },
    Cluster { way: Way, client: Box<ClusterClient>, seeds: Vec<Client> },
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Shape::One { .. } => "One",
            Shape::Sentinel { .. } => "Sentinel",
            Shape::Cluster { .. } => "Cluster",
        })
    }
}

impl Shape {
    pub(super) fn cluster(way: Way, hosts: &[Host]) -> RedisResult<Shape> {
        let seeds: Vec<Client> =
            hosts.iter().map(|host| way.client(host)).collect::<RedisResult<_>>()?;
        let nodes = seeds.iter().map(|seed| seed.get_connection_info().clone());
        let mut builder = ClusterClientBuilder::new(nodes)
            // Requests are repeated above the engine, which then knows that a release that finds
            // nothing may have been its own.
            .retries(0)
            .connection_timeout(way.limits.connect)
            .response_timeout(way.limits.answer)
            .tcp_settings(at_once());
        if let Some(certificates) = &way.tls {
            builder = builder.certs(certificates.clone());
        }
        Ok(Shape::Cluster { client: Box::new(builder.build()?), way, seeds })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Shape::Cluster { .. })
    }

    /// Opens a connection for commands.
    pub(super) async fn connect(&self) -> RedisResult<Connection> {
        match self {
            Shape::One { way, client } => way.connect(client).await.map(Connection::One),
            Shape::Sentinel { way, sentinels } => {
                let master = sentinels.master(way).await?;
                way.connect(&master).await.map(Connection::One)
            }
            Shape::Cluster { way, client, .. } => {
                let connecting = client.get_async_connection();
                match tokio::time::timeout(way.limits.connect, connecting).await {
                    Ok(connected) => connected.map(Connection::Cluster),
                    Err(_late) => Err(unreachable("no answer in time")),
                }
            }
        }
    }

    /// Opens a connection that hears what is published on these channels.
    pub(super) async fn subscribe(&self, channels: &[&str]) -> RedisResult<PubSubStream> {
        match self {
            Shape::One { way, client } => way.subscribe(client, channels).await,
            Shape::Sentinel { way, sentinels } => {
                way.subscribe(&sentinels.master(way).await?, channels).await
            }
            Shape::Cluster { way, seeds, .. } => {
                // Every node hears what is published on any of them.
                let mut last = unreachable("no node was named");
                for seed in seeds {
                    match way.subscribe(seed, channels).await {
                        Ok(messages) => return Ok(messages),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Opens a connection to every server that keeps lines.
    pub(super) async fn connect_each(&self) -> RedisResult<Vec<redis::aio::MultiplexedConnection>> {
        match self {
            Shape::One { way, client } => Ok(vec![way.connect(client).await?]),
            Shape::Sentinel { way, sentinels } => {
                Ok(vec![way.connect(&sentinels.master(way).await?).await?])
            }
            Shape::Cluster { way, seeds, .. } => {
                let mut connections = Vec::new();
                for host in masters(way, seeds).await? {
                    connections.push(way.connect(&way.client(&host)?).await?);
                }
                Ok(connections)
            }
        }
    }
}

/// The masters of a Cluster, as one of its nodes knows them.
async fn masters(way: &Way, seeds: &[Client]) -> RedisResult<Vec<Host>> {
    let mut last = unreachable("no node was named");
    for seed in seeds {
        let asked = async {
            let mut connection = way.connect(seed).await?;
            redis::cmd("CLUSTER").arg("NODES").query_async::<String>(&mut connection).await
        };
        match asked.await {
            Ok(nodes) => return Ok(nodes.lines().filter_map(master_in).collect()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The address in a line of `CLUSTER NODES`, if it is a living master with slots.
fn master_in(line: &str) -> Option<Host> {
    let mut words = line.split(' ');
    let (_id, address, flags) = (words.next()?, words.next()?, words.next()?);
    let usable = flags.split(',').any(|flag| flag == "master") && !flags.contains("fail");
    // Behind the flags: master, ping, pong, epoch, link, then the slots.
    let has_slots = words.nth(5).is_some();
    let (name, port) = address.split('@').next()?.rsplit_once(':')?;
    (usable && has_slots)
        .then(|| Some(Host { name: name.to_owned(), port: port.parse().ok()? }))
        .flatten()
}

/// The Sentinels that know who is master.
#[derive(Debug)]
pub(super) struct Sentinels {
    /// How to reach them: they have a login of their own, and no databases.
    pub(super) way: Way,
    pub(super) hosts: Vec<Host>,
    pub(super) master: String,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Way({:?}, tls: {})", self.limits, self.tls.is_some())
    }
}

impl Sentinels {
    /// A client for the present master, by the first Sentinel that answers.
    async fn master(&self, way: &Way) -> RedisResult<Client> {
        let mut last = unreachable("no Sentinel was named");
        for host in &self.hosts {
            match self.ask(host).await {
                Ok(Some((name, port))) => {
                    let host = Host { name, port };
                    match self.is_master(way, &host).await {
                        Ok(client) => return Ok(client),
                        Err(error) => last = error,
                    }
                }
                Ok(None) => last = unreachable("no Sentinel knows a master of this name"),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask(&self, host: &Host) -> RedisResult<Option<(String, u16)>> {
        let mut connection = self.way.connect(&self.way.client(host)?).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master);
        question.query_async(&mut connection).await
    }

    /// A Sentinel may be behind: only who says so itself is master.
    async fn is_master(&self, way: &Way, host: &Host) -> RedisResult<Client> {
        let client = way.client(host)?;
        let mut connection = way.connect(&client).await?;
        let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(redis::Value::BulkString(role)) if role == b"master" => Ok(client),
            _ => Err(unreachable("the Sentinels name a server that is no master yet")),
        }
    }
}
