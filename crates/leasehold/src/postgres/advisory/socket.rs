//! A socket that any runtime may use, not only the one that connected it.
//!
//! Each runtime that waits for the socket has an outlet: its own word on whether there is something
//! to read. What comes is read by whoever is awake; the others find nothing, and wait on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::{Handle, Id};

/// The socket, and the runtimes that tell of it.
#[derive(Debug)]
pub(super) struct Plug {
    socket: Arc<OwnedFd>,
    outlets: Mutex<Outlets>,
}

#[derive(Debug, Default)]
struct Outlets {
    /// The runtime whose outlet stays when nobody waits there: that of the last claim.
    home: Option<Id>,
    list: Vec<Arc<Outlet>>,
}

/// What one runtime says about the socket, and who waits for that.
#[derive(Debug)]
pub(super) struct Outlet {
    runtime: Id,
    tells: AsyncFd<Watched>,
    pub(super) waiting: Arc<Waiting>,
}

#[derive(Debug)]
struct Watched(Arc<OwnedFd>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Those who wait on one runtime. The first of them is woken, and serves all.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Vec<(u64, Waker)>>);

impl Waiting {
    fn list(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits, under a number of his own.
    pub(super) fn attend(&self, id: u64, waker: &Waker) {
        let mut list = self.list();
        match list.iter_mut().find(|(other, _)| *other == id) {
            Some((_, known)) => known.clone_from(waker),
            None => list.push((id, waker.clone())),
        }
    }

    /// Somebody waits no more. Whoever is first now looks after the socket.
    fn leave(&self, id: u64) -> bool {
        let mut list = self.list();
        let was_first = list.first().is_some_and(|(first, _)| *first == id);
        list.retain(|(other, _)| *other != id);
        let next = list.first().filter(|_| was_first).map(|(_, waker)| waker.clone());
        let empty = list.is_empty();
        drop(list);
        if let Some(next) = next {
            next.wake();
        }
        empty
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let first = self.list().first().map(|(_, waker)| waker.clone());
        if let Some(first) = first {
            first.wake();
        }
    }
}

impl Plug {
    /// `socket` does not block.
    pub(super) fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self { socket: Arc::new(socket), outlets: Mutex::default() })
    }

    fn outlets(&self) -> MutexGuard<'_, Outlets> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outlet of the present runtime.
    pub(super) fn outlet(&self) -> io::Result<Arc<Outlet>> {
        let runtime = Handle::try_current().map_err(io::Error::other)?.id();
        let mut outlets = self.outlets();
        if let Some(outlet) = outlets.list.iter().find(|outlet| outlet.runtime == runtime) {
            return Ok(Arc::clone(outlet));
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        #[allow(deprecated, reason = "its successor is unsafe to call; `Watched` keeps it open")]
        let tells = AsyncFd::with_interest(Watched(Arc::clone(&self.socket)), interest)?;
        let outlet = Arc::new(Outlet { runtime, tells, waiting: Arc::default() });
        outlets.list.push(Arc::clone(&outlet));
        Ok(outlet)
    }

    /// The present runtime is the one that mostly uses the socket from here on.
    pub(super) fn settle_here(&self) {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        self.outlets().home = runtime;
    }

    /// Somebody waits nowhere any more. Outlets that nobody waits at go, but for the usual one: a
    /// runtime that has none is not woken by what comes.
    pub(super) fn leave(&self, id: u64) {
        let mut outlets = self.outlets();
        let home = outlets.home;
        outlets.list.retain(|outlet| !outlet.waiting.leave(id) || Some(outlet.runtime) == home);
    }

    /// Ends the connection.
    pub(super) fn pull(&self) {
        // The other side may have ended it before.
        let _over = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Plug {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The socket as the driver reads and writes it, wherever that is done.
#[derive(Debug)]
pub(super) struct Cable(pub(super) Arc<Plug>);

impl AsyncRead for Cable {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outlet = self.0.outlet()?;
        loop {
            let mut guard = ready!(outlet.tells.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            let receive = |socket: &AsyncFd<Watched>| {
                Ok(rustix::net::recv(&*socket.get_ref().0, unfilled, RecvFlags::empty())?.1)
            };
            if let Ok(received) = guard.try_io(receive) {
                buffer.advance(received?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Cable {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let send = || rustix::net::send(&*self.0.socket, bytes, SendFlags::NOSIGNAL);
        // There is nearly always room, and a new outlet does not know that yet.
        match send() {
            Err(rustix::io::Errno::AGAIN) => {}
            sent => return Poll::Ready(Ok(sent?)),
        }
        let outlet = self.0.outlet()?;
        loop {
            let mut guard = ready!(outlet.tells.poll_write_ready(context))?;
            if let Ok(sent) = guard.try_io(|_| Ok(send()?)) {
                return Poll::Ready(sent);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.pull();
        Poll::Ready(Ok(()))
    }
}
