//! A connection of an engine's own thread that callers' runtimes watch as well.
//!
//! What comes for a caller is seen by his own runtime, which pushes the [`Wheel`] that reads it: he
//! has his answer without two threads having been woken one after the other. Reading is tried
//! before anybody's clock or readiness is asked, so it does not matter who comes first.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;

use crate::wheel::Wheel;

/// A connection, as its owner has it. Closed when it is dropped, whoever watches.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    arrivals: Arrivals,
}

/// A connection as those have it who only look whether something has come.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    stream: Weak<TcpStream>,
    /// What pushes on each runtime that watches.
    by: Mutex<HashMap<Id, JoinHandle<()>>>,
}

impl Socket {
    /// Connects, on the engine's thread.
    pub(crate) async fn connect(host: &str, port: u16) -> io::Result<Self> {
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        // It stays one that never blocks.
        let stream = Arc::new(stream.into_std()?);
        Ok(Self { arrivals: Arrivals::of(&stream)?, stream })
    }

    /// The connection for those who watch.
    pub(crate) fn watched(&self) -> Watched {
        Watched { stream: Arc::downgrade(&self.stream), by: Mutex::default() }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Those who watch have it open until they see this. One that is closed already is closed.
        let _closed = self.stream.shutdown(Shutdown::Both);
    }
}

impl Watched {
    /// Pushes a wheel, on the present runtime, whenever something has come; until the connection
    /// or the runtime ends.
    pub(crate) fn push_on_arrival(&self, wheel: &Arc<Wheel>) {
        let runtime = Handle::current().id();
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        if by.contains_key(&runtime) {
            return;
        }
        let Some(stream) = self.stream.upgrade() else { return };
        match Arrivals::of(&stream) {
            Ok(arrivals) => {
                by.retain(|_, pushing| !pushing.is_finished());
                by.insert(runtime, tokio::spawn(push(arrivals, Arc::downgrade(wheel))));
            }
            // A process that may watch no more; all goes on without.
            Err(error) => {
                tracing::debug!(%error, "a connection is watched by the engine's thread alone");
            }
        }
    }
}

async fn push(arrivals: Arrivals, wheel: Weak<Wheel>) {
    while let Ok(seen) = arrivals.0.ready(Interest::READABLE).await {
        arrivals.forget(Interest::READABLE);
        match wheel.upgrade() {
            Some(wheel) if !seen.is_read_closed() => wheel.push(),
            _ => return,
        }
    }
}

/// Tells a runtime when there is something to read or room to write; neither reads nor writes.
#[derive(Debug)]
struct Arrivals(tokio::net::TcpStream);

impl Arrivals {
    /// For the present runtime.
    fn of(stream: &TcpStream) -> io::Result<Self> {
        tokio::net::TcpStream::from_std(stream.try_clone()?).map(Self)
    }

    /// What was told is over; the next arrival is told again.
    fn forget(&self, interest: Interest) {
        let over = || Err::<(), _>(ErrorKind::WouldBlock.into());
        // It fails because it is made to.
        let _over = self.0.try_io(interest, over);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.stream.as_ref().read(into.initialize_unfilled()) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.arrivals.0.poll_read_ready(context))?;
                    self.arrivals.forget(Interest::READABLE);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.as_ref().write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.arrivals.0.poll_write_ready(context))?;
                    self.arrivals.forget(Interest::WRITABLE);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(Shutdown::Write))
    }
}
