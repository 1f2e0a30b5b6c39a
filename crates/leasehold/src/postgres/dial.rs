//! Making a connection that several may drive, over a socket of the library's own.
//!
//! Does what the driver does when it connects by itself: one host after the other, and each of its
//! addresses, until one is there that fits.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsStream};
use tokio_postgres::{Client, Config, Connection, SimpleQueryMessage};

use crate::address::Host;
use crate::error::{Error, Result};
use crate::socket::{Ear, Socket, Watched};

use super::failure;
use super::link::{self, Messages};
use super::settings::Settings;

/// A connection that nobody drives yet.
pub(super) struct Dialled {
    pub(super) client: Client,
    pub(super) messages: Messages,
    pub(super) watched: Watched,
    pub(super) ear: Arc<Ear>,
}

/// Connects on the present runtime.
pub(super) async fn dial(settings: &Settings) -> Result<Dialled> {
    link::first_of(settings, |host| dial_host(settings, host)).await
}

async fn dial_host(settings: &Settings, host: &Host) -> Result<Dialled> {
    let unreachable = |error: io::Error| Error::Unreachable {
        store: settings.store.clone(),
        cause: format!("error connecting to server: {error}"),
    };
    if host.name.starts_with('/') {
        let path = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
        let socket = Socket::connect_local(&path).await.map_err(unreachable)?;
        return greet(settings, socket, "").await;
    }
    let addresses = tokio::net::lookup_host((host.name.as_str(), host.port)).await;
    let mut failed = None;
    for address in addresses.map_err(unreachable)? {
        let connected = TcpStream::connect(address).await;
        let socket = connected.and_then(|stream| with_limits(&settings.config, stream));
        let greeted = match socket {
            Ok(socket) => greet(settings, socket, &host.name).await,
            Err(error) => Err(unreachable(error)),
        };
        match greeted {
            Ok(dialled) => return Ok(dialled),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| unreachable(io::Error::other("the name has no address"))))
}

/// How long the other side may be silent.
fn with_limits(config: &Config, stream: TcpStream) -> io::Result<Socket> {
    let socket = SockRef::from(&stream);
    let mut probes = TcpKeepalive::new().with_time(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        probes = probes.with_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        probes = probes.with_retries(retries);
    }
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())?;
    Socket::of_tcp(stream)
}

async fn greet(settings: &Settings, socket: Socket, name: &str) -> Result<Dialled> {
    let (watched, ear) = (socket.watched(), socket.ear());
    let failed = |error: tokio_postgres::Error| failure::error(&settings.store, &error);
    let config = &settings.config;
    let (client, mut messages) = match &settings.tls {
        None => driven(config.connect_raw(socket, NoTls).await.map_err(failed)?),
        Some(tls) => {
            let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut tls.0.clone(), name);
            let tls = tls.map_err(|error| Error::Unreachable {
                store: settings.store.clone(),
                cause: format!("the name in its certificate cannot be checked: {error}"),
            })?;
            driven(config.connect_raw(socket, tls).await.map_err(failed)?)
        }
    };
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
        is_writable(settings, &client, &mut messages).await?;
    }
    Ok(Dialled { client, messages, watched, ear })
}

fn driven<S>((client, mut connection): (Client, Connection<Socket, S>)) -> (Client, Messages)
where
    S: TlsStream + Unpin + Send + 'static,
{
    (client, stream::poll_fn(move |context| connection.poll_message(context)).boxed())
}

/// Where there are several servers, one of them takes what is written.
async fn is_writable(settings: &Settings, client: &Client, messages: &mut Messages) -> Result<()> {
    let unfit = |cause: &str| {
        let (store, cause) = (settings.store.clone(), cause.to_owned());
        Err(Error::Unreachable { store, cause })
    };
    let asked = pin!(client.simple_query("SHOW transaction_read_only"));
    let driven = pin!(async { while let Some(Ok(_)) = messages.next().await {} });
    match select(asked, driven).await {
        Either::Left((Ok(said), _)) => {
            let is_on = |said: &SimpleQueryMessage| {
                matches!(
                    said, SimpleQueryMessage::Row(row) if row.get(0) == Some("on")
                )
            };
            match said.iter().any(is_on) {
                true => unfit("it does not allow writes: a standby"),
                false => Ok(()),
            }
        }
        Either::Left((Err(error), _)) => Err(failure::error(&settings.store, &error)),
        Either::Right(_) => unfit("the connection ended as it began"),
    }
}
