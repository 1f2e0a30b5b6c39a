//! Making a connection, over a socket that the library opens: so that messages have a limit, and
//! several may drive it where that is wanted.
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsStream};
use tokio_postgres::{Client, Config, Connection, SimpleQueryMessage};

use crate::engine::kit::address::Host;
use crate::engine::kit::socket::{Ear, Socket, Watched};
use crate::error::{Error, Result, UnreachableReason};

use super::bounded::{Bounded, BoundedTls};
use super::failure;
use super::link::{self, Messages};
use super::settings::Settings;

/// What a connection is made over.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for S {}

/// A kind of socket: how it is opened, and what its user has of it beside the driver.
pub(super) trait Transport: Wire + Sized {
    /// The same for socket files.
    type Local: Wire;
    type Handles: Send;

    fn of_tcp(stream: TcpStream) -> io::Result<(Self, Self::Handles)>;

    fn connect_local(
        path: &Path,
    ) -> impl Future<Output = io::Result<(Self::Local, Self::Handles)>> + Send;
}

impl Transport for Socket {
    type Local = Socket;
    type Handles = (Watched, Arc<Ear>);

    fn of_tcp(stream: TcpStream) -> io::Result<(Self, Self::Handles)> {
        Socket::of_tcp(stream).map(with_handles)
    }

    async fn connect_local(path: &Path) -> io::Result<(Self, Self::Handles)> {
        Socket::connect_local(path).await.map(with_handles)
    }
}

fn with_handles(socket: Socket) -> (Socket, (Watched, Arc<Ear>)) {
    let handles = (socket.watched(), socket.ear());
    (socket, handles)
}

/// Sockets that the runtime drives.
impl Transport for TcpStream {
    type Local = UnixStream;
    type Handles = ();

    fn of_tcp(stream: TcpStream) -> io::Result<(Self, ())> {
        stream.set_nodelay(true)?;
        Ok((stream, ()))
    }

    async fn connect_local(path: &Path) -> io::Result<(UnixStream, ())> {
        Ok((UnixStream::connect(path).await?, ()))
    }
}

/// A connection that nobody drives yet.
pub(super) struct Dialled<H> {
    pub(super) client: Client,
    pub(super) messages: Messages,
    pub(super) handles: H,
}

/// Connects on the present runtime.
pub(super) async fn dial<T: Transport>(settings: &Settings) -> Result<Dialled<T::Handles>> {
    link::first_of(settings, |host| dial_host::<T>(settings, host)).await
}

async fn dial_host<T: Transport>(settings: &Settings, host: &Host) -> Result<Dialled<T::Handles>> {
    let store = &settings.store;
    let unreachable =
        |error: io::Error| Error::unreachable_by(store, UnreachableReason::of(&error), error);
    if host.name.starts_with('/') {
        let path = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
        let opened = T::connect_local(&path).await.map_err(unreachable)?;
        return greet(settings, opened, "").await;
    }
    let addresses = tokio::net::lookup_host((host.name.as_str(), host.port)).await;
    let mut failed = None;
    let unknown = |error| Error::unreachable_by(store, UnreachableReason::UnknownHost, error);
    for address in addresses.map_err(unknown)? {
        let connected = TcpStream::connect(address).await;
        let opened = connected.and_then(|stream| {
            limit(&settings.config, &stream)?;
            T::of_tcp(stream)
        });
        let greeted = match opened {
            Ok(opened) => greet(settings, opened, &host.name).await,
            Err(error) => Err(unreachable(error)),
        };
        match greeted {
            Ok(dialled) => return Ok(dialled),
            Err(error) => failed = Some(error),
        }
    }
    let reason = UnreachableReason::UnknownHost;
    Err(failed.unwrap_or_else(|| Error::unreachable(store, reason, reason.to_string())))
}

/// How long the other side may be silent.
fn limit(config: &Config, stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
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
    Ok(())
}

async fn greet<W: Wire, H>(
    settings: &Settings,
    (wire, handles): (W, H),
    name: &str,
) -> Result<Dialled<H>> {
    let failed = |error: tokio_postgres::Error| failure::error(&settings.store, error);
    let config = &settings.config;
    let (client, mut messages) = match &settings.tls {
        None => driven(config.connect_raw(Bounded::new(wire), NoTls).await.map_err(failed)?),
        Some(tls) => {
            let tls = MakeTlsConnect::<W>::make_tls_connect(&mut tls.0.clone(), name);
            let tls = tls.map_err(|error| {
                let cause = format!("the name in its certificate cannot be checked: {error}");
                Error::unreachable(&settings.store, UnreachableReason::Tls, cause)
            })?;
            driven(config.connect_raw(wire, BoundedTls(tls)).await.map_err(failed)?)
        }
    };
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
        is_writable(settings, &client, &mut messages).await?;
    }
    Ok(Dialled { client, messages, handles })
}

fn driven<W, S>((client, mut connection): (Client, Connection<W, S>)) -> (Client, Messages)
where
    W: Wire,
    S: TlsStream + Unpin + Send + 'static,
{
    (client, stream::poll_fn(move |context| connection.poll_message(context)).boxed())
}

/// Where there are several servers, one of them takes what is written.
async fn is_writable(settings: &Settings, client: &Client, messages: &mut Messages) -> Result<()> {
    let unfit =
        |cause: &str| Err(Error::unreachable(&settings.store, UnreachableReason::ReadOnly, cause));
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
        Either::Left((Err(error), _)) => Err(failure::error(&settings.store, error)),
        Either::Right(_) => unfit("the connection ended as it began"),
    }
}
