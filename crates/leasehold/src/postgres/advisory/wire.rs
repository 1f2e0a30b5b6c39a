//! A connection that whoever waits for an answer drives himself, on whatever runtime he is.
//!
//! So an exchange needs no other thread, and a runtime that is blocked or has ended holds up nobody
//! else: the keeper's heartbeat drives the same connection on the keeper's thread. While nobody
//! waits nobody drives; that the connection ended is then noticed by the engine's thread
//! (`hangup.rs`).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsConnect};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::error::{Error, Result};

use super::super::failure;
use super::super::link::{Messages, messages};
use super::super::settings::{SILENCE, Settings};
use super::socket::{Cable, Plug};

type Ended = Box<dyn FnOnce() + Send>;

/// The numbers of those who drive.
static NEXT: AtomicU64 = AtomicU64::new(0);

pub(super) struct Wire {
    /// `None` once it ended.
    messages: Mutex<Option<Messages>>,
    /// Called when it ends by itself.
    ended: Mutex<Option<Ended>>,
    plug: Arc<Plug>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    /// Connects to the first of the hosts that lets in, and is the primary if there are several.
    pub(super) async fn connect(settings: &Settings) -> Result<(Client, Arc<Wire>)> {
        let config = &settings.config;
        let ports = config.get_ports();
        let mut last = None;
        for (at, host) in config.get_hosts().iter().enumerate() {
            let port = ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
            for address in addresses(host, port).await {
                let limit = settings.connect_limit;
                let connected = async { Self::to(settings, host, address?).await };
                match tokio::time::timeout(limit, connected).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(error)) => last = Some(error),
                    Err(_) => last = Some(failure::silent(&settings.store, "no connection", limit)),
                }
            }
        }
        Err(last.unwrap_or_else(|| unreachable(settings, "the url names no host")))
    }

    async fn to(settings: &Settings, host: &Host, address: Place) -> Result<(Client, Arc<Wire>)> {
        let connected = socket(&address).await;
        let plug = Plug::new(connected.map_err(|error| {
            unreachable(settings, &format!("error connecting to server: {error}"))
        })?);
        let name = match host {
            Host::Tcp(name) => name.as_str(),
            _ => "",
        };
        let (client, messages) = match &settings.tls {
            Some(tls) => {
                let mut tls = tls.0.clone();
                let tls = MakeTlsConnect::<Cable>::make_tls_connect(&mut tls, name);
                let tls = tls.map_err(|error| unreachable(settings, &error.to_string()))?;
                greet(settings, &plug, tls).await?
            }
            None => greet(settings, &plug, NoTls).await?,
        };
        let (messages, ended) = (Mutex::new(Some(messages)), Mutex::new(None));
        let wire = Arc::new(Wire { messages, ended, plug });
        if settings.config.get_hosts().len() > 1 {
            wire.insist_on_primary(settings, &client).await?;
        }
        Ok((client, wire))
    }

    async fn insist_on_primary(&self, settings: &Settings, client: &Client) -> Result<()> {
        let asked = self.drive(client.simple_query("SHOW transaction_read_only"));
        let answer = asked.await.map_err(|error| failure::error(&settings.store, &error))?;
        let writes = answer.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("off"),
            _ => false,
        });
        match writes {
            true => Ok(()),
            false => Err(unreachable(settings, "database does not allow writes")),
        }
    }

    /// Says what to do when the connection ends by itself; done at once if it has.
    pub(super) fn on_end(&self, ended: impl FnOnce() + Send + 'static) {
        *self.ended() = Some(Box::new(ended));
        if self.messages().is_none() {
            self.tell();
        }
    }

    /// The socket, to be watched.
    pub(super) fn plug(&self) -> &Plug {
        &self.plug
    }

    /// Awaits an answer, and drives the connection for as long as that takes.
    pub(super) async fn drive<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let driver = Driver::on(self);
        poll_fn(|context| {
            // Sends what there is to send, or finds that somebody else has read the answer.
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            driver.turn(context);
            answer.as_mut().poll(context)
        })
        .await
    }

    /// Drives the connection until it ends.
    pub(super) async fn see_out(&self) {
        let driver = Driver::on(self);
        poll_fn(|context| match driver.turn(context) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Ends the connection from this side, answered or not.
    pub(super) fn cut(&self) {
        drop(self.ended().take());
        self.over(&mut self.messages());
    }

    fn over(&self, messages: &mut Option<Messages>) {
        // Whoever waits for an answer hears of it by this.
        drop(messages.take());
        self.plug.pull();
    }

    /// Reads and writes what can be; `false` if the connection is over.
    fn turn(&self, waker: &Waker) -> bool {
        let mut messages = self.messages();
        let Some(driven) = messages.as_mut() else { return false };
        let mut context = Context::from_waker(waker);
        loop {
            match driven.poll_next_unpin(&mut context) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "a lock session ended");
                    break;
                }
                Poll::Ready(None) => break,
            }
        }
        self.over(&mut messages);
        drop(messages);
        self.tell();
        false
    }

    fn tell(&self) {
        let ended = self.ended().take();
        if let Some(ended) = ended {
            ended();
        }
    }

    fn messages(&self) -> MutexGuard<'_, Option<Messages>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Option<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits for an answer. When he leaves, another one goes on.
struct Driver<'a> {
    wire: &'a Wire,
    id: u64,
}

impl<'a> Driver<'a> {
    fn on(wire: &'a Wire) -> Self {
        Self { wire, id: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn turn(&self, context: &Context<'_>) -> bool {
        let outlet = match self.wire.plug.outlet() {
            Ok(outlet) => outlet,
            Err(error) => {
                tracing::debug!(%error, "a lock session cannot be waited for");
                self.wire.over(&mut self.wire.messages());
                self.wire.tell();
                return false;
            }
        };
        outlet.waiting.attend(self.id, context.waker());
        self.wire.turn(&Waker::from(Arc::clone(&outlet.waiting)))
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.wire.plug.leave(self.id);
    }
}

/// Where a server may be.
enum Place {
    Address(SocketAddr),
    File(std::path::PathBuf),
}

async fn addresses(host: &Host, port: u16) -> Vec<Result<Place>> {
    let name = match host {
        Host::Unix(folder) => {
            return vec![Ok(Place::File(folder.join(format!(".s.PGSQL.{port}"))))];
        }
        Host::Tcp(name) => name,
    };
    match tokio::net::lookup_host((name.as_str(), port)).await {
        Ok(found) => found.map(|address| Ok(Place::Address(address))).collect(),
        Err(error) => {
            let cause = format!("error connecting to server: {error}");
            vec![Err(Error::Unreachable { store: name.clone(), cause })]
        }
    }
}

/// Connects, with the same limits on silence as other connections have.
async fn socket(place: &Place) -> io::Result<OwnedFd> {
    let address = match place {
        Place::File(path) => return Ok(UnixStream::connect(path).await?.into_std()?.into()),
        Place::Address(address) => address,
    };
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(&stream, SILENCE.unacknowledged.as_millis() as u32)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE.idle)?;
    sockopt::set_tcp_keepintvl(&stream, SILENCE.pause)?;
    sockopt::set_tcp_keepcnt(&stream, SILENCE.probes)?;
    Ok(stream.into_std()?.into())
}

/// The server's greeting, password and all.
async fn greet<T>(settings: &Settings, plug: &Arc<Plug>, tls: T) -> Result<(Client, Messages)>
where
    T: TlsConnect<Cable>,
    T::Stream: Send + 'static,
{
    let connected = settings.config.connect_raw(Cable(Arc::clone(plug)), tls).await;
    let connected = connected.map_err(|error| failure::error(&settings.store, &error))?;
    Ok(messages(connected))
}

fn unreachable(settings: &Settings, cause: &str) -> Error {
    Error::Unreachable { store: settings.store.clone(), cause: cause.to_owned() }
}
