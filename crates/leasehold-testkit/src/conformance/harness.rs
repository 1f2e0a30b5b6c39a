//! The hooks that an engine brings to the suite, and what every case gets from them.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::claim::Mode;
use leasehold::engine::{Engine, LineView, Query};
use leasehold::layer::chaos::Chaos;
use leasehold::{Client, ClientBuilder, Result};

use super::forward::Forward;
use super::support::{EVENT_MAX, Failure, mode_text, until};
use super::worker::URL_VARIABLE;
use crate::error::unblock;
use crate::{Direction, Group, Proxy, Server, Worker};

/// Long enough that no case lives to see it end. A store may keep an unrenewed claim for less: see
/// [`long`](Harness::long).
pub(super) const LONG: Duration = Duration::from_secs(300);

/// A while to wait in vain, in which a store on a busy machine also answers.
pub(super) const SPAN: Duration = Duration::from_secs(1);

/// A store of one engine, empty, for one case alone.
#[async_trait]
pub trait Harness: fmt::Debug + Send + Sync + 'static {
    /// One more connection to the store, as another client would open it.
    async fn engine(&self) -> Result<Arc<dyn Engine>>;

    /// The store's address for other processes; `None` where no other process can reach it.
    fn url(&self) -> Option<String>;

    /// The shortest time to live that the store can keep.
    fn ttl_floor(&self) -> Duration;

    /// A command whose program calls [`worker::run_if_asked`](super::worker::run_if_asked) first
    /// of all; `None` where no other process can reach the store.
    fn worker(&self) -> Option<Command>;

    /// How soon the store is empty after a case. A claim that a case forgot must outlive this, so
    /// that the suite sees it.
    fn emptied_within(&self) -> Duration {
        EVENT_MAX
    }

    /// The way to the same store through proxies, with which a case stalls the network. `None`
    /// where there is no network, and where clients find servers that the url does not name.
    /// Sentinel and Redis Cluster announce the addresses of their servers, the same to every
    /// client. If a server announced its proxy, a case would also stall the client that watches it.
    /// It would also stall Sentinel, which would begin a failover.
    fn proxied(&self) -> Option<Starting<Proxied>> {
        None
    }

    /// Another empty store of this engine, on servers of its own that a case kills. `None` where
    /// there is no server, and where a killed server may lose what it has answered.
    fn crashing(&self) -> Option<Starting<Crashing>> {
        None
    }

    /// The lines that are left in the store.
    async fn residue(&self) -> Result<Vec<LineView>> {
        Ok(self.engine().await?.inspect(&Query::all()).await?.lines)
    }
}

/// The future of a hook that starts a store for a case.
pub type Starting<T> = BoxFuture<'static, std::result::Result<T, Failure>>;

/// A store behind a proxy for each of its servers.
#[derive(Debug)]
pub struct Proxied {
    /// The store by the addresses of the proxies.
    pub lab: Arc<dyn Harness>,
    proxies: Vec<Proxy>,
}

impl Proxied {
    /// Puts a proxy before each server that `url` names; `at` makes the harness of the new url.
    pub fn start<'a>(
        url: &str,
        servers: impl IntoIterator<Item = &'a Server>,
        at: impl FnOnce(String) -> Arc<dyn Harness> + Send + 'static,
    ) -> Starting<Self> {
        let mut url = url.to_owned();
        let servers: Vec<_> = servers.into_iter().map(Server::address).collect();
        Box::pin(async move {
            let mut proxies = Vec::new();
            for server in servers {
                let proxy = Proxy::start(server).await?;
                url = url.replace(&server.to_string(), &proxy.address().to_string());
                proxies.push(proxy);
            }
            Ok(Self { lab: at(url), proxies })
        })
    }

    pub(super) fn block(&self, direction: Direction) {
        self.proxies.iter().for_each(|proxy| proxy.block(direction));
    }

    /// Waits until an answer is held back.
    pub(super) async fn until_held(&self) -> std::result::Result<(), Failure> {
        let is_held = |proxy: &Proxy| proxy.traffic().to_client.held > 0;
        let any = || self.proxies.iter().any(is_held);
        until("an answer that is held back", async || Ok(any())).await
    }

    /// Waits until a request is held back.
    pub(super) async fn until_request_held(&self) -> std::result::Result<(), Failure> {
        let is_held = |proxy: &Proxy| proxy.traffic().to_server.held > 0;
        let any = || self.proxies.iter().any(is_held);
        until("a request that is held back", async || Ok(any())).await
    }

    /// Ends all connections, and lets nobody connect until [`restore`](Self::restore).
    pub(super) async fn cut(&self) -> std::result::Result<(), Failure> {
        for proxy in &self.proxies {
            proxy.refuse_new().await?;
            proxy.reset_all();
        }
        Ok(())
    }

    pub(super) async fn restore(&self) -> std::result::Result<(), Failure> {
        for proxy in &self.proxies {
            proxy.accept_new().await?;
        }
        Ok(())
    }

    pub(super) async fn pass(&self) -> std::result::Result<(), Failure> {
        for proxy in &self.proxies {
            proxy.pass().await?;
        }
        Ok(())
    }
}

/// A store whose servers may be killed.
#[derive(Debug)]
pub struct Crashing {
    /// The store.
    pub lab: Arc<dyn Harness>,
    /// All its servers.
    pub servers: Group,
}

impl Crashing {
    /// Starts servers that keep their data when they are killed; `at` makes the harness of a store
    /// on them.
    pub fn start(
        servers: fn() -> crate::Result<Group>,
        at: impl FnOnce(&Group) -> Arc<dyn Harness> + Send + 'static,
    ) -> Starting<Self> {
        Box::pin(async move {
            let servers = unblock(servers).await?;
            Ok(Self { lab: at(&servers), servers })
        })
    }
}

impl dyn Harness {
    /// A client with the default settings, on a connection of its own.
    pub(super) async fn client(&self) -> Result<Client> {
        self.client_with(Client::builder()).await
    }

    pub(super) async fn client_with(&self, builder: ClientBuilder) -> Result<Client> {
        builder.engine(Forward(self.engine().await?, None))
    }

    pub(super) async fn clients<const N: usize>(&self) -> Result<[Client; N]> {
        let mut clients = Vec::with_capacity(N);
        for _ in 0..N {
            clients.push(self.client().await?);
        }
        Ok(clients.try_into().expect("N clients were made"))
    }

    /// A client whose connection can be cut, and the board to cut it with.
    pub(super) async fn troubled(&self) -> Result<(Client, Chaos)> {
        self.troubled_with(Client::builder()).await
    }

    pub(super) async fn troubled_with(&self, builder: ClientBuilder) -> Result<(Client, Chaos)> {
        let chaos = Chaos::default();
        let engine = chaos.trouble(Forward(self.engine().await?, None));
        Ok((builder.engine(engine)?, chaos))
    }

    /// A short ttl: a case waits for its end.
    pub(super) fn brief(&self) -> Duration {
        self.ttl_floor().max(Duration::from_millis(300))
    }

    /// A ttl that the store keeps without a renewal. Hardly a case lives to see its end. It is a
    /// little less than the longest, so that every renewal is answered with all of it.
    pub(super) async fn long(&self) -> Result<Duration> {
        Ok(self.longest().await?.map_or(LONG, |longest| LONG.min(longest * 4 / 5)))
    }

    /// How long the store keeps an unrenewed claim; `None` if it has no such limit.
    pub(super) async fn longest(&self) -> Result<Option<Duration>> {
        match self.engine().await?.parts().unattended {
            Some(part) => part.longest_without_renewal().await,
            None => Ok(None),
        }
    }

    /// A ttl that a client on a busy machine also renews in time.
    pub(super) fn steady(&self) -> Duration {
        self.ttl_floor().max(Duration::from_millis(2_500))
    }

    /// A process of its own that asks for `name`.
    pub(super) fn process(
        &self,
        name: &str,
        mode: Mode,
        ttl: Duration,
    ) -> std::result::Result<Worker, Failure> {
        let mut worker = self.worker_process()?;
        worker.send_line(&format!("claim {name} {} {}", mode_text(mode), ttl.as_millis()))?;
        Ok(worker)
    }
    /// A process of its own that waits for orders.
    pub(super) fn worker_process(&self) -> std::result::Result<Worker, Failure> {
        let (Some(mut command), Some(url)) = (self.worker(), self.url()) else {
            return Err(Failure::new("this engine works across processes, but has no worker"));
        };
        command.env(URL_VARIABLE, url);
        Ok(Worker::spawn(command)?)
    }
}
