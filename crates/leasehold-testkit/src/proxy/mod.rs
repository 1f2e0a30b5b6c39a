//! A TCP proxy that breaks connections in chosen ways while it runs.
//!
//! It listens on loopback and forwards to a target. It knows no protocol: faults are about bytes
//! and connections. This file holds the controls and the listener. `connection` handles each
//! connection, and `pump` its bytes.
//!
//! The proxy runs on the tokio runtime that started it. A test that blocks that runtime's only
//! thread blocks the proxy too.

mod connection;
mod pump;
mod settings;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::error::{Doing, Error, Result};
use crate::ports::Port;
use connection::serve;
pub use settings::{AfterLoss, Direction, Flow, Traffic};
use settings::{Loss, Settings};

/// Opening and closing the listener takes microseconds; a runtime that needs longer is stuck.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);

/// A running proxy.
///
/// Faults add up until [`pass`](Proxy::pass) takes all back. Dropping the proxy closes the listener
/// and all connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    listener: AbortHandle,
    port: Port,
}

/// The state that the controls, the listener and the connections share.
#[derive(Debug)]
struct Shared {
    settings: watch::Sender<Settings>,
    traffic: watch::Sender<Traffic>,
    listening: watch::Sender<bool>,
}

impl Proxy {
    /// Starts a proxy to `target` that passes everything.
    pub async fn start(target: SocketAddr) -> Result<Proxy> {
        let port = Port::reserve()?;
        let address = port.address();
        let listener = TcpListener::bind(address).await;
        let listener = listener.doing(|| format!("listen on {address}"))?;
        let shared = Arc::new(Shared {
            settings: watch::Sender::new(Settings::passing(target)),
            traffic: watch::Sender::new(Traffic::default()),
            listening: watch::Sender::new(true),
        });
        let task = tokio::spawn(listen(Arc::clone(&shared), address, listener));
        Ok(Proxy { shared, listener: task.abort_handle(), port })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Takes back all faults; held bytes go on. The target stays.
    ///
    /// # Cancel safety
    ///
    /// The faults are taken back even when the caller stops waiting for the listener.
    pub async fn pass(&self) -> Result<()> {
        self.change(Settings::pass);
        self.wait_listening(true).await
    }

    /// Holds the bytes of one or both directions, on present and new connections.
    ///
    /// When this returns no byte passes any more. The proxy keeps held bytes, and also holds the
    /// end of a side that has closed. A new connection reaches the target only when bytes to the
    /// server may.
    pub fn block(&self, direction: Direction) {
        self.change(|settings| settings.block(direction));
    }

    /// Holds all bytes to the server, on all connections, once `part` has passed on one of them.
    ///
    /// The part must arrive in one piece, which short requests do.
    pub fn hold_behind(&self, part: impl Into<Vec<u8>>) {
        let part = part.into();
        assert!(!part.is_empty(), "every request has an empty part");
        self.change(|settings| settings.last = Some(part));
    }

    /// Lets every byte of one or both directions arrive later by `delay`.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.change(|settings| settings.delay(direction, delay));
    }

    /// Resets connections over which nothing has passed for `idle`, as a middlebox would.
    pub fn cut_idle(&self, idle: Duration) {
        self.change(|settings| settings.idle_max = Some(idle));
    }

    /// Resets all present connections, on both sides; held bytes are lost.
    ///
    /// When this returns no byte passes on them any more.
    pub fn reset_all(&self) {
        self.change(|settings| settings.resets += 1);
    }

    /// Refuses new connections, as a host without the server would; present ones go on.
    pub async fn refuse_new(&self) -> Result<()> {
        self.change(|settings| settings.refuses = true);
        self.wait_listening(false).await
    }

    /// Accepts new connections again.
    pub async fn accept_new(&self) -> Result<()> {
        self.change(|settings| settings.refuses = false);
        self.wait_listening(true).await
    }

    /// Sends new connections to another target; present ones stay where they are.
    pub fn set_target(&self, target: SocketAddr) {
        self.change(|settings| settings.target = target);
    }

    /// Loses the reply to the next request: the server gets it, the client hears nothing.
    ///
    /// The request is the next piece of bytes that any client sends; the reply is the next piece
    /// that comes back on that connection. Afterwards the connection is of no use, because a stream
    /// cannot go on with a gap in it: see [`AfterLoss`].
    pub fn lose_next_reply(&self, after: AfterLoss) {
        self.change(|settings| settings.loss = Some(Loss { request: Vec::new(), after }));
    }

    /// Loses the reply to the next request that contains `part`, for example the name of a command.
    ///
    /// The part must arrive in one piece, which short requests do.
    pub fn lose_reply_to(&self, part: impl Into<Vec<u8>>, after: AfterLoss) {
        let request = part.into();
        self.change(|settings| settings.loss = Some(Loss { request, after }));
    }

    /// What has passed so far.
    pub fn traffic(&self) -> Traffic {
        *self.shared.traffic.borrow()
    }

    /// Waits until the traffic is as wanted, and returns it; `what` is for the error.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the caller stops waiting.
    pub async fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl FnMut(&Traffic) -> bool,
    ) -> Result<Traffic> {
        let mut traffic = self.shared.traffic.subscribe();
        // This proxy owns the sender, so that the only failure is the limit.
        let result = tokio::time::timeout(limit, traffic.wait_for(wanted)).await;
        match result {
            Ok(Ok(traffic)) => Ok(*traffic),
            _ => Err(Error::TimedOut {
                what: format!("the proxy: {what}"),
                waited: limit,
                seen: format!("{:?}", self.traffic()),
            }),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Settings)) {
        self.shared.settings.send_modify(change);
    }

    async fn wait_listening(&self, wanted: bool) -> Result<()> {
        let mut listening = self.shared.listening.subscribe();
        let result = listening.wait_for(|listening| *listening == wanted);
        match tokio::time::timeout(LISTEN_LIMIT, result).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::TimedOut {
                what: format!("the proxy to {}", if wanted { "listen" } else { "refuse" }),
                waited: LISTEN_LIMIT,
                seen: format!("its address is {}", self.address()),
            }),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections belong to the listener's task, and end with it.
        self.listener.abort();
    }
}

/// Accepts connections; closes and opens the listener as the settings say.
async fn listen(shared: Arc<Shared>, address: SocketAddr, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let mut settings = shared.settings.subscribe();
    let mut listener = Some(listener);
    loop {
        if settings.borrow_and_update().refuses {
            if let Some(listener) = listener.take() {
                // A process that another thread starts has a copy of the listener until it runs its
                // program. If the proxy closed only its own, clients could still connect to that
                // copy.
                let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            }
        } else if listener.is_none() {
            // The port is reserved, so this fails only for want of file descriptors. Then the
            // caller that waits for the listener gets an error, and the next change tries again.
            listener = TcpListener::bind(address).await.ok();
        }
        shared.listening.send_replace(listener.is_some());
        tokio::select! {
            Some(client) = accept(listener.as_ref()) => {
                connections.spawn(serve(client, Arc::clone(&shared)));
            }
            Ok(()) = settings.changed() => {}
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The next client; waits for ever without a listener.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        // A client that left before it was accepted is an error here, and no fault of the proxy.
        Some(listener) => listener.accept().await.ok().map(|(client, _)| client),
        None => std::future::pending().await,
    }
}
