//! Connections that write once for each request.
//!
//! HTTP/2 sends a request in two parts, and the library that does it flushes each: two packets, for
//! which the server is woken twice. Here a flush waits until whoever else is ready on this runtime
//! has had a turn. By then the second part is there, and so are the requests of other tasks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::codegen::http::Uri;
use tonic::codegen::{Service, StdError};
use tonic::transport::{Channel, Endpoint};

/// What is kept at most; more goes out without waiting.
const KEPT_MAX: usize = 16 << 10;

/// A connection to a member, opened when it is first used.
pub(super) fn channel(member: &Endpoint) -> Channel {
    let mut tcp = HttpConnector::new();
    // What TLS there is comes on top of this.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(member.get_connect_timeout());
    member.connect_with_connector_lazy(Connector(tcp))
}

/// Opens connections.
#[derive(Clone)]
struct Connector(HttpConnector);

impl Service<Uri> for Connector {
    type Response = TokioIo<Gathered<TcpStream>>;
    type Error = StdError;
    type Future = BoxFuture<'static, Result<Self::Response, StdError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, member: Uri) -> Self::Future {
        let connecting = self.0.call(member);
        Box::pin(async move { Ok(TokioIo::new(Gathered::new(connecting.await?.into_inner()))) })
    }
}

/// A connection whose writes are gathered.
struct Gathered<S> {
    stream: S,
    /// What was written and is not sent yet, and how much of it is.
    kept: Vec<u8>,
    sent: usize,
    turn: Turn,
}

/// The turn that a flush leaves to others.
enum Turn {
    Due,
    Left(BoxFuture<'static, ()>),
    Over,
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    fn new(stream: S) -> Self {
        Self { stream, kept: Vec::new(), sent: 0, turn: Turn::Due }
    }

    /// Sends what is kept.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.kept.len() {
            let rest = &self.kept[self.sent..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        self.kept.clear();
        (self.sent, self.turn) = (0, Turn::Due);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.kept.len() + bytes.len() > KEPT_MAX {
            ready!(self.poll_send(context))?;
        }
        if bytes.len() > KEPT_MAX {
            return Pin::new(&mut self.stream).poll_write(context, bytes);
        }
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut count = 0;
        for part in parts {
            match self.as_mut().poll_write(context, part) {
                Poll::Ready(Ok(taken)) => {
                    count += taken;
                    if taken < part.len() {
                        break;
                    }
                }
                // What was taken before was taken.
                _ if count > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sent < self.kept.len() {
            if let Turn::Due = self.turn {
                if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
                    // There whoever wakes last is last in turn; no need to look at sockets first.
                    self.turn = Turn::Over;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                self.turn = Turn::Left(Box::pin(tokio::task::yield_now()));
            }
            if let Turn::Left(turn) = &mut self.turn {
                ready!(turn.as_mut().poll(context));
                self.turn = Turn::Over;
            }
            ready!(self.poll_send(context))?;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Notes what is written at once, of which it takes so much.
    #[derive(Clone)]
    struct Wire {
        written: Arc<Mutex<Vec<usize>>>,
        most: usize,
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.most);
            self.written.lock().expect("nobody panics").push(count);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn wire(most: usize) -> (Wire, Gathered<Wire>) {
        let wire = Wire { written: Arc::default(), most };
        (wire.clone(), Gathered::new(wire))
    }

    impl Wire {
        fn written(&self) -> Vec<usize> {
            std::mem::take(&mut self.written.lock().expect("nobody panics"))
        }
    }

    /// What is written when a task flushes while another one is ready to write. `first` says
    /// whether the flush is to be spawned first.
    async fn written_beside_a_flush(first: bool) -> Vec<usize> {
        let (wire, mut gathered) = wire(usize::MAX);
        gathered.write_all(&[1; 10]).await.expect("kept");
        let gathered = Arc::new(Mutex::new(gathered));
        let flushed = Arc::clone(&gathered);
        let flush = std::future::poll_fn(move |context| {
            let mut gathered = flushed.lock().expect("nobody panics");
            Pin::new(&mut *gathered).poll_flush(context)
        });
        let write = std::future::poll_fn(move |context| {
            let mut gathered = gathered.lock().expect("nobody panics");
            Pin::new(&mut *gathered).poll_write(context, &[2; 20])
        });
        let (flushing, writing) = match first {
            true => (tokio::spawn(flush), tokio::spawn(write)),
            false => {
                let writing = tokio::spawn(write);
                (tokio::spawn(flush), writing)
            }
        };
        writing.await.expect("no panic").expect("kept");
        flushing.await.expect("no panic").expect("sent");
        wire.written()
    }

    #[tokio::test]
    async fn what_is_ready_beside_a_flush_goes_out_with_it() {
        assert_eq!(written_beside_a_flush(true).await, [30]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_ready_beside_a_flush_goes_out_with_it_on_any_runtime() {
        // There whoever is spawned last by a task is first in turn.
        let one_after_the_other = tokio::spawn(written_beside_a_flush(false));
        assert_eq!(one_after_the_other.await.expect("no panic"), [30]);
    }

    #[tokio::test]
    async fn nothing_is_lost_or_sent_twice_by_a_wire_that_takes_little() {
        let (wire, mut gathered) = wire(7);
        gathered.write_all(&[1; 20]).await.expect("kept");
        gathered.flush().await.expect("sent");
        assert_eq!(wire.written(), [7, 7, 6]);
        gathered.flush().await.expect("nothing to send");
        assert!(wire.written().is_empty());
    }

    #[tokio::test]
    async fn what_is_long_goes_out_at_once_behind_what_is_kept() {
        let (wire, mut gathered) = wire(usize::MAX);
        gathered.write_all(&[1; 5]).await.expect("kept");
        let long = vec![2; KEPT_MAX + 1];
        let parts = [IoSlice::new(&[3; 5]), IoSlice::new(&long)];
        let count = gathered.write_vectored(&parts).await.expect("sent");
        assert_eq!(count, 5 + long.len());
        assert_eq!(wire.written(), [10, long.len()]);
    }
}
