//! What an engine brings to the suite, and what every case gets from it.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::claim::Mode;
use leasehold::engine::{Engine, LineView, Query};
use leasehold::layer::chaos::Chaos;
use leasehold::{Client, ClientBuilder, Result};

use super::forward::Forward;
use super::support::{Failure, mode_text};
use super::worker::URL_VARIABLE;
use crate::Worker;

/// Long enough that no case lives to see it end.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// A while to wait in vain, in which a store answers on a busy machine too.
pub(super) const SPAN: Duration = Duration::from_secs(1);

/// A store of one engine, empty and for one case alone.
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

    /// What is left in the store.
    async fn residue(&self) -> Result<Vec<LineView>> {
        Ok(self.engine().await?.inspect(&Query::all()).await?.lines)
    }
}

impl dyn Harness {
    /// A client with the default settings, on a connection of its own.
    pub(super) async fn client(&self) -> Result<Client> {
        self.client_with(Client::builder()).await
    }

    pub(super) async fn client_with(&self, builder: ClientBuilder) -> Result<Client> {
        builder.engine(Forward(self.engine().await?))
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
        let engine = chaos.trouble(Forward(self.engine().await?));
        Ok((builder.engine(engine)?, chaos))
    }

    /// A ttl whose end a case waits for.
    pub(super) fn brief(&self) -> Duration {
        self.ttl_floor().max(Duration::from_millis(300))
    }

    /// A ttl that is renewed in time on a busy machine too.
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
        let (Some(mut command), Some(url)) = (self.worker(), self.url()) else {
            return Err(Failure::new("this engine works across processes, but has no worker"));
        };
        command.env(URL_VARIABLE, url);
        let mut worker = Worker::spawn(command)?;
        worker.send_line(&format!("claim {name} {} {}", mode_text(mode), ttl.as_millis()))?;
        Ok(worker)
    }
}
