//! Whether a connection has a server process of its own, or a proxy lends it one at a time.
//!
//! The server tells each client which of its processes to name in a request to cancel. A proxy
//! that lends processes cannot know which one it will be, so it tells a number of its own. Hence:
//! if the process that runs the statements is the one that was told, what is said to it stays with
//! it. Named statements need that: by the same name somebody else's process has another statement.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The bytes of a request to cancel: its length, its code, a process and a secret. Before it a
/// request for TLS may stand, which is shorter.
const CANCEL_BYTES: usize = 16;

/// The process that was told to a connection; `None` if there is no telling.
pub(super) async fn process_told(client: &Client) -> Option<i32> {
    // The request is written for nobody, only to read the process in it.
    let (near, mut far) = duplex(4 * CANCEL_BYTES);
    // The answer to a request for TLS, in case there is one.
    far.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(near, Untouched).await.ok()?;
    let mut written = Vec::with_capacity(2 * CANCEL_BYTES);
    far.read_to_end(&mut written).await.ok()?;
    let request = written.last_chunk::<CANCEL_BYTES>()?;
    let process: [u8; 4] = request[8..12].try_into().ok()?;
    Some(i32::from_be_bytes(process))
}

/// Leaves a stream as it is where TLS is expected.
struct Untouched;

impl TlsConnect<DuplexStream> for Untouched {
    type Stream = Bare;
    type Error = Infallible;
    type Future = Ready<Result<Bare, Infallible>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(Bare(stream)))
    }
}

struct Bare(DuplexStream);

impl TlsStream for Bare {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Bare {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Bare {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
