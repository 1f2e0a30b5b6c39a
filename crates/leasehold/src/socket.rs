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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// An engine's thread, with a task that passes on what its connection reads.
    struct Engine {
        home: Handle,
        wheel: Arc<Wheel>,
        watched: Watched,
        read: mpsc::Receiver<u8>,
        server: TcpStream,
        end: Option<std::sync::mpsc::SyncSender<()>>,
    }

    impl Engine {
        fn new() -> Self {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let home = runtime.handle().clone();
            let (end, ended) = sync_channel::<()>(1);
            std::thread::spawn(move || {
                let end = tokio::task::spawn_blocking;
                runtime.block_on(async move {
                    drop(end(move || ended.recv()).await);
                });
            });
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let (told, tell) = sync_channel(1);
            let (pass_on, read) = mpsc::channel(64);
            let wheel = Wheel::start(&home, async move {
                let mut socket = Socket::connect("127.0.0.1", port).await.expect("connected");
                told.send(socket.watched()).expect("the test waits");
                while let Ok(byte) = socket.read_u8().await {
                    socket.write_u8(byte + 1).await.expect("room");
                    if pass_on.send(byte).await.is_err() || byte == END {
                        return;
                    }
                }
            });
            let watched = tell.recv_timeout(LIMIT).expect("connected");
            let (server, _) = listener.accept().expect("a connection");
            server.set_read_timeout(Some(LIMIT)).expect("a limit");
            Self { home, wheel, watched, read, server, end: Some(end) }
        }

        /// Keeps the engine's thread from doing anything until what is returned is dropped.
        fn hold_up(&self) -> std::sync::mpsc::SyncSender<()> {
            let (go_on, held) = sync_channel::<()>(1);
            let (ready, is_held) = sync_channel::<()>(1);
            self.home.spawn(async move {
                ready.send(()).expect("the test waits");
                held.recv().expect_err("nothing is sent");
            });
            is_held.recv_timeout(LIMIT).expect("it is held up");
            go_on
        }

        fn say(&mut self, byte: u8) {
            self.server.write_all(&[byte]).expect("it is sent");
        }

        fn heard(&mut self) -> Option<u8> {
            let mut answer = [0];
            self.server.read_exact(&mut answer).ok().map(|()| answer[0])
        }
    }

    impl Drop for Engine {
        fn drop(&mut self) {
            drop(self.end.take());
        }
    }

    /// What ends the task.
    const END: u8 = 99;

    #[tokio::test]
    async fn what_comes_is_read_by_a_runtime_that_watches_while_the_engines_thread_is_held_up() {
        let mut engine = Engine::new();
        engine.watched.push_on_arrival(&engine.wheel);
        // Twice is once.
        engine.watched.push_on_arrival(&engine.wheel);
        let held = engine.hold_up();
        for byte in 1..=20 {
            engine.say(byte);
            let read = tokio::time::timeout(LIMIT, engine.read.recv()).await;
            assert_eq!(read, Ok(Some(byte)));
            assert_eq!(engine.heard(), Some(byte + 1));
        }
        drop(held);
    }

    #[tokio::test]
    async fn what_comes_is_read_by_the_engines_thread_if_nobody_watches() {
        let mut engine = Engine::new();
        engine.say(1);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(1)));
        assert_eq!(engine.heard(), Some(2));
    }

    #[tokio::test]
    async fn a_connection_is_closed_when_its_owner_is_done_although_others_watch() {
        let mut engine = Engine::new();
        engine.watched.push_on_arrival(&engine.wheel);
        engine.say(END);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(END)));
        assert_eq!(engine.heard(), Some(END + 1));
        assert_eq!(engine.heard(), None, "the end, and not the time limit");
        let mut by = engine.watched.by.lock().expect("nobody panics").drain().collect::<Vec<_>>();
        let (_, pushing) = by.pop().expect("this runtime watched");
        tokio::time::timeout(LIMIT, pushing).await.expect("it ends").expect("without a panic");
    }
}
