//! A limit on how long one message of a server may be.
//!
//! The driver gathers a message before it reads it, however long the server says it is. A server
//! that never ends a message would fill this process's memory until a time limit is over.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The longest message that is read. Leasehold's own are far shorter: a row is a claim.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// What a message begins with: its kind, and its length without the kind.
const HEAD_BYTES: usize = 5;

/// A stream that ends with an error where the server begins a message that is too long.
pub(super) struct Bounded<S> {
    stream: S,
    /// The head of the present message, as far as it was read.
    head: [u8; HEAD_BYTES],
    head_read: usize,
    /// What is still to come of the present message.
    left: u32,
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, head: [0; HEAD_BYTES], head_read: 0, left: 0 }
    }

    /// Follows the messages through the next bytes.
    fn follow(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let passed = bytes.len().min(self.left as usize);
            self.left -= passed as u32;
            bytes = &bytes[passed..];
            let read = bytes.len().min(HEAD_BYTES - self.head_read);
            self.head[self.head_read..][..read].copy_from_slice(&bytes[..read]);
            self.head_read += read;
            bytes = &bytes[read..];
            if self.head_read == HEAD_BYTES {
                let [_kind, length @ ..] = self.head;
                let length = u32::from_be_bytes(length);
                if length > MESSAGE_BYTES_MAX {
                    let what = format!("a message of {length} bytes is more than is read");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                // A length counts itself. The driver refuses one that is shorter than that.
                self.left = length.saturating_sub(4);
                self.head_read = 0;
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.follow(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: TlsStream + Unpin> TlsStream for Bounded<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.stream.channel_binding()
    }
}

/// Makes TLS as another does, with a limit on the messages inside it.
pub(super) struct BoundedTls<T>(pub(super) T);

impl<S, T> TlsConnect<S> for BoundedTls<T>
where
    T: TlsConnect<S>,
    T::Future: Send + 'static,
    T::Stream: Unpin,
{
    type Stream = Bounded<T::Stream>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, T::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = self.0.connect(stream);
        Box::pin(async move { connecting.await.map(Bounded::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, length: u32) -> Vec<u8> {
        [&[kind][..], &length.to_be_bytes()].concat()
    }

    #[test]
    fn message_is_followed_in_pieces_of_every_size_and_a_long_one_is_refused() {
        let well = [message(b'D', 9), vec![7; 5], message(b'Z', 4), message(b'D', 300)].concat();
        let well = [well, vec![255; 296]].concat();
        for long in [MESSAGE_BYTES_MAX + 1, i32::MAX as u32, u32::MAX] {
            let bytes = [&well[..], &message(b'D', long)].concat();
            for size in 1..20 {
                let mut bounded = Bounded::new(());
                let mut followed = bytes.chunks(size).map(|piece| bounded.follow(piece));
                let refused = followed.position(|followed| followed.is_err());
                assert_eq!(refused, Some((bytes.len() - 1) / size), "{long} in pieces of {size}");
            }
        }
        let mut bounded = Bounded::new(());
        let longest = [&well[..], &message(b'D', MESSAGE_BYTES_MAX), &[1; 100]].concat();
        assert!(bounded.follow(&longest).is_ok());
    }
}
