//! A connection of an engine's own thread that callers' runtimes watch as well.
//!
//! The caller's own runtime sees that data has come for the caller, and polls the [`SharedTask`]
//! that reads it. So the answer reaches the caller without two threads being woken one after the
//! other. A poll reads before it checks any timer or readiness. So it does not matter which runtime
//! sees the data first.
//!
//! If all callers of an engine watch, only the end of the connection needs to wake the engine's
//! thread ([`Ear`]). On each runtime, the first caller that waits watches directly, without a
//! task in between ([`Watching`]).
//!
//! After a read that emptied the socket, the reader waits until a watcher reports that more came.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::engine::kit::shared_task::SharedTask;

/// The most runtimes that watch a connection all the time: all arriving data wakes each of them.
const WATCHERS_MAX: usize = 4;

/// The most bytes in one read. Each read clears its buffer first, and most answers are short.
const READ_MAX: usize = 2_048;

/// A connection, in its owner's hands. Dropping it closes the connection, even while others watch.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Arc<Stream>,
    ear: Arc<Ear>,
    news: Arc<News>,
    /// Whether the last read emptied the socket.
    is_drained: bool,
    /// Wakes the engine's thread for all data, while the ear is open.
    arrivals: Option<Arrivals>,
    /// Wakes the engine's thread at the end of the connection, while the ear is closed.
    end: Option<end::End>,
}

/// The socket of a connection. It never blocks.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Decides whether all data wakes the engine's thread, or only the end of the connection.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    closed: AtomicBool,
}

/// Whether data may have come since the last read.
#[derive(Debug, Default)]
struct News(AtomicBool);

/// A connection in the hands of watchers, which see that data comes but do not read it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    stream: Weak<Stream>,
    news: Arc<News>,
    /// The runtimes that watch all the time.
    by: Mutex<HashMap<Id, Arc<Watch>>>,
}

/// A runtime that watches all the time.
#[derive(Debug)]
struct Watch {
    arrivals: Arc<Arrivals>,
    /// Whether a waiting caller watches directly.
    is_led: AtomicBool,
    /// The callers that rely on the pushing task.
    followers: Arc<Followers>,
    pushing: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Followers {
    count: AtomicUsize,
    /// Tells the pushing task that the first one came.
    came: Notify,
}

/// How a waiting caller learns that data has come.
#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
#[derive(Debug)]
pub(crate) enum Watching {
    /// The caller watches directly, as the first one on its runtime.
    Leads(Leading),
    /// A task of the caller's runtime pushes. So a first caller that nobody polls does not hold
    /// up the others.
    Follows(Following),
    /// The caller watches directly, and its runtime stops watching when the caller does.
    Alone(Arrivals),
    /// The connection is closed, or it cannot be watched.
    Blind,
}

#[derive(Debug)]
pub(crate) struct Leading(Arc<Watch>);

#[derive(Debug)]
pub(crate) struct Following(Arc<Watch>);

impl Ear {
    /// From the next read on, only the end wakes the engine's thread. Callers that wait for data
    /// have to watch.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl News {
    fn tell(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl Stream {
    fn try_clone(&self) -> io::Result<OwnedFd> {
        match self {
            Stream::Tcp(stream) => stream.as_fd().try_clone_to_owned(),
            Stream::Unix(stream) => stream.as_fd().try_clone_to_owned(),
        }
    }

    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => Read::read(&mut &*stream, into),
            Stream::Unix(stream) => Read::read(&mut &*stream, into),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => Write::write(&mut &*stream, bytes),
            Stream::Unix(stream) => Write::write(&mut &*stream, bytes),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        }
    }
}

impl Socket {
    /// Connects to a host, on the engine's thread.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) async fn connect(host: &str, port: u16) -> io::Result<Self> {
        Self::of_tcp(tokio::net::TcpStream::connect((host, port)).await?)
    }

    /// Takes over a connection from tokio, on the engine's thread.
    pub(crate) fn of_tcp(stream: tokio::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // It stays non-blocking.
        Self::new(Stream::Tcp(stream.into_std()?))
    }

    /// Connects to a socket of this machine, on the engine's thread.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) async fn connect_local(path: &Path) -> io::Result<Self> {
        let stream = tokio::net::UnixStream::connect(path).await?;
        Self::new(Stream::Unix(stream.into_std()?))
    }

    fn new(stream: Stream) -> io::Result<Self> {
        let (stream, news) = (Arc::new(stream), Arc::<News>::default());
        let arrivals = Some(Arrivals::of(&stream, &news)?);
        Ok(Self { stream, ear: Arc::default(), news, is_drained: false, arrivals, end: None })
    }

    /// The connection for watchers.
    pub(crate) fn watched(&self) -> Watched {
        let (stream, news) = (Arc::downgrade(&self.stream), Arc::clone(&self.news));
        Watched { stream, news, by: Mutex::default() }
    }

    /// The ear of the engine's thread.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn ear(&self) -> Arc<Ear> {
        Arc::clone(&self.ear)
    }

    /// Waits until there may be data to read. Also ends when the socket failed.
    fn poll_arrival(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ear.closed.load(Ordering::Acquire) && self.end.is_none() {
            match end::End::of(&self.stream) {
                Ok(end) => {
                    self.end = Some(end);
                    // Data that came earlier was reported only to `arrivals`, which it replaces.
                    return Poll::Ready(Ok(()));
                }
                // For example, the process has no descriptors left.
                Err(error) => tracing::debug!(%error, "all data wakes the engine's thread"),
            }
        }
        if let Some(end) = &self.end {
            self.arrivals = None;
            return end.poll(context);
        }
        self.arrivals()?.poll_read(context)
    }

    fn arrivals(&mut self) -> io::Result<&Arrivals> {
        if self.arrivals.is_none() {
            self.arrivals = Some(Arrivals::of(&self.stream, &self.news)?);
        }
        self.arrivals.as_ref().ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Watchers keep the descriptor open until they see this. The error says: closed already.
        let _closed = self.stream.shutdown(Shutdown::Both);
    }
}

impl Watched {
    /// Pushes a task on the present runtime whenever data comes, until the connection or the
    /// runtime ends.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn push_on_arrival(&self, shared_task: &Arc<SharedTask>) {
        if let Some(watch) = self.watch(shared_task) {
            // This follower never leaves, so the pushing task never rests.
            watch.followers.enter();
        }
    }

    /// Lets the present runtime watch for its callers that use [`meanwhile`](Self::meanwhile).
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn attend(&self, shared_task: &Arc<SharedTask>) {
        self.watch(shared_task);
    }

    /// Begins to watch on the present runtime; `None` if it watches already, or cannot.
    fn watch(&self, shared_task: &Arc<SharedTask>) -> Option<Arc<Watch>> {
        let runtime = Handle::current().id();
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        if by.contains_key(&runtime) {
            return None;
        }
        by.retain(|_, watch| !watch.pushing.is_finished());
        if by.len() >= WATCHERS_MAX {
            return None;
        }
        let (arrivals, followers) = (Arc::new(self.arrivals()?), Arc::<Followers>::default());
        let pushing =
            push(Arc::clone(&arrivals), Arc::clone(&followers), Arc::downgrade(shared_task));
        let pushing = tokio::spawn(pushing);
        let watch = Watch { arrivals, is_led: AtomicBool::new(false), followers, pushing };
        let watch = Arc::new(watch);
        by.insert(runtime, Arc::clone(&watch));
        Some(watch)
    }

    /// Watches on the present runtime while a caller waits.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn meanwhile(&self) -> Watching {
        let by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = by.get(&Handle::current().id()).filter(|watch| !watch.pushing.is_finished());
        let watch = watch.cloned();
        drop(by);
        match watch {
            None => self.arrivals().map_or(Watching::Blind, Watching::Alone),
            Some(watch) if !watch.is_led.swap(true, Ordering::AcqRel) => {
                Watching::Leads(Leading(watch))
            }
            Some(watch) => {
                watch.followers.enter();
                Watching::Follows(Following(watch))
            }
        }
    }

    /// Marks that data may have come, before a push that no arrival caused.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn suspect(&self) {
        self.news.tell();
    }

    fn arrivals(&self) -> Option<Arrivals> {
        let stream = self.stream.upgrade()?;
        // For example, the process has no descriptors left. All works without watching too.
        let failed = |error: &io::Error| tracing::debug!(%error, "a connection is not watched");
        Arrivals::of(&stream, &self.news).inspect_err(failed).ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Without followers the task rests, and would not see the end.
        self.pushing.abort();
    }
}

impl Followers {
    fn enter(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.came.notify_one();
        }
    }

    /// Ends when there is a follower.
    async fn any(&self) {
        while self.count.load(Ordering::Acquire) == 0 {
            self.came.notified().await;
        }
    }
}

#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
impl Watching {
    /// Ready when data has come, and the caller should push.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Watching::Leads(Leading(watch)) => watch.arrivals.poll_read(context),
            Watching::Alone(arrivals) => arrivals.poll_read(context),
            Watching::Follows(_) | Watching::Blind => Poll::Pending,
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.is_led.store(false, Ordering::Release);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.followers.count.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn push(arrivals: Arc<Arrivals>, followers: Arc<Followers>, shared_task: Weak<SharedTask>) {
    loop {
        followers.any().await;
        let Ok(mut seen) = arrivals.descriptor.ready(Interest::READABLE).await else { return };
        let is_over = seen.ready().is_read_closed();
        seen.clear_ready();
        drop(seen);
        arrivals.news.tell();
        match shared_task.upgrade() {
            Some(shared_task) if !is_over => {
                shared_task.poll_here();
            }
            _ => return,
        }
    }
}

/// Tells a runtime when there is data to read or room to write. It neither reads nor writes.
#[derive(Debug)]
pub(crate) struct Arrivals {
    descriptor: AsyncFd<OwnedFd>,
    news: Arc<News>,
}

impl Arrivals {
    /// For the present runtime.
    fn of(stream: &Stream, news: &Arc<News>) -> io::Result<Self> {
        let both = Interest::READABLE | Interest::WRITABLE;
        let descriptor = registered(stream.try_clone()?, both)?;
        Ok(Self { descriptor, news: Arc::clone(news) })
    }

    /// Ready when data has come. The next arrival is reported again.
    fn poll_read(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.descriptor.poll_read_ready(context))?.clear_ready();
        self.news.tell();
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.descriptor.poll_write_ready(context))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

/// A descriptor, registered with the present runtime.
#[expect(
    deprecated,
    reason = "its heir is `unsafe`, for descriptors that are not owned as this is"
)]
fn registered(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}

/// Notices the end of a connection, and ignores the data before it.
#[cfg(target_os = "linux")]
mod end {
    use rustix::event::epoll;

    use super::*;

    /// An epoll set of one connection. It reports only that the server closed the connection, or
    /// that it failed. Data does not wake the waiting thread.
    #[derive(Debug)]
    pub(super) struct End(AsyncFd<OwnedFd>);

    impl End {
        pub(super) fn of(stream: &Stream) -> io::Result<Self> {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let data = epoll::EventData::new_u64(0);
            let flags = epoll::EventFlags::RDHUP;
            match stream {
                Stream::Tcp(stream) => epoll::add(&set, stream, data, flags)?,
                Stream::Unix(stream) => epoll::add(&set, stream, data, flags)?,
            }
            registered(set, Interest::READABLE).map(Self)
        }

        pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            ready!(self.0.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

/// Without epoll, all data wakes the engine's thread.
#[cfg(not(target_os = "linux"))]
mod end {
    use super::*;

    #[derive(Debug)]
    pub(super) enum End {}

    impl End {
        pub(super) fn of(_stream: &Stream) -> io::Result<Self> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(super) fn poll(&self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match *self {}
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = into.remaining().min(READ_MAX);
        loop {
            // Data that came after the last read is in the news, or some watcher will report it.
            if !self.news.take() && self.is_drained {
                ready!(self.poll_arrival(context))?;
                self.news.tell();
                continue;
            }
            match self.stream.read(into.initialize_unfilled_to(room)) {
                Ok(count) => {
                    // A read of 0 is the end, which every later read returns again.
                    self.is_drained = 0 < count && count < room;
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_drained = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Wakes the engine's thread: the caller may be gone when there is room.
                    ready!(self.arrivals()?.poll_write(context))?;
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
    use std::future::poll_fn;
    use std::net::TcpListener;
    use std::pin::pin;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// An engine's thread, with a task that passes on each byte of its connection.
    struct Engine {
        home: Handle,
        shared_task: Arc<SharedTask>,
        watched: Watched,
        ear: Arc<Ear>,
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
            let shared_task = SharedTask::start(&home, async move {
                let mut socket = Socket::connect("127.0.0.1", port).await.expect("connected");
                told.send((socket.watched(), socket.ear())).expect("the test waits");
                while let Ok(byte) = socket.read_u8().await {
                    socket.write_u8(byte + 1).await.expect("room");
                    if pass_on.send(byte).await.is_err() || byte == END {
                        return;
                    }
                }
            });
            let (watched, ear) = tell.recv_timeout(LIMIT).expect("connected");
            let (server, _) = listener.accept().expect("a connection");
            server.set_read_timeout(Some(LIMIT)).expect("a limit");
            Self { home, shared_task, watched, ear, read, server, end: Some(end) }
        }

        /// Blocks the engine's thread until the returned sender is dropped.
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

    /// The byte that ends the task.
    const END: u8 = 99;

    #[tokio::test]
    async fn watching_runtime_reads_data_while_the_engines_thread_is_blocked() {
        let mut engine = Engine::new();
        engine.watched.push_on_arrival(&engine.shared_task);
        // The second call changes nothing.
        engine.watched.push_on_arrival(&engine.shared_task);
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
    async fn engines_thread_reads_data_if_no_runtime_watches() {
        let mut engine = Engine::new();
        engine.say(1);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(1)));
        assert_eq!(engine.heard(), Some(2));
    }

    /// Ends when the engine's thread has handled all its wake-ups so far.
    async fn rested(engine: &Engine) {
        for _ in 0..2 {
            engine.home.spawn(async {}).await.expect("it runs");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_end_wakes_the_engines_thread_and_what_comes_before_it_does_not() {
        let mut engine = Engine::new();
        engine.say(1);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(1)));
        assert_eq!(engine.heard(), Some(2));
        engine.ear.close();
        // The closed ear counts from the next read on.
        engine.shared_task.poll_here();
        rested(&engine).await;
        engine.say(2);
        rested(&engine).await;
        assert!(engine.read.try_recv().is_err(), "no runtime watches");
        engine.watched.suspect();
        engine.shared_task.poll_here();
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(2)));
        engine.server.shutdown(Shutdown::Both).expect("closed");
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(None));
    }

    #[tokio::test]
    async fn caller_that_watches_alone_sees_data() {
        let mut engine = Engine::new();
        engine.ear.close();
        engine.shared_task.poll_here();
        let watching = engine.watched.meanwhile();
        assert!(matches!(watching, Watching::Alone(_)), "this runtime does not watch");
        let held = engine.hold_up();
        for byte in 1..=20 {
            engine.say(byte);
            come(&watching).await;
            engine.shared_task.poll_here();
            assert_eq!(engine.read.recv().await, Some(byte));
        }
        drop(held);
    }

    async fn come(watching: &Watching) {
        let arrived = poll_fn(|context| watching.poll(context));
        tokio::time::timeout(LIMIT, arrived).await.expect("it comes").expect("it lives");
    }

    /// An engine whose thread only the end wakes. This runtime watches its connection.
    fn attended() -> Engine {
        let engine = Engine::new();
        engine.ear.close();
        engine.shared_task.poll_here();
        engine.watched.attend(&engine.shared_task);
        engine
    }

    #[tokio::test]
    async fn the_first_who_waits_on_a_runtime_watches_for_himself() {
        let mut engine = attended();
        for byte in 1..=20 {
            let watching = engine.watched.meanwhile();
            assert!(matches!(watching, Watching::Leads(_)), "the one before is done");
            engine.say(byte);
            come(&watching).await;
            assert!(engine.read.try_recv().is_err(), "no task pushed");
            engine.shared_task.poll_here();
            assert_eq!(engine.read.recv().await, Some(byte));
        }
    }

    #[tokio::test]
    async fn a_first_one_who_is_not_polled_holds_nobody_up() {
        let mut engine = attended();
        let first = engine.watched.meanwhile();
        let second = engine.watched.meanwhile();
        assert!(matches!(second, Watching::Follows(_)), "the first caller watches");
        for byte in 1..=20 {
            engine.say(byte);
            assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(byte)));
        }
        drop(first);
        engine.say(21);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(21)));
    }

    #[tokio::test]
    async fn next_caller_sees_data_that_came_for_one_that_left() {
        let mut engine = attended();
        for byte in 1..=20 {
            let gone = engine.watched.meanwhile();
            engine.say(byte);
            // The byte is in flight when the first caller leaves.
            drop(gone);
            come(&engine.watched.meanwhile()).await;
            engine.shared_task.poll_here();
            assert_eq!(engine.read.recv().await, Some(byte));
        }
    }

    #[tokio::test]
    async fn all_that_comes_is_read_however_long_or_late_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut socket = Socket::connect("127.0.0.1", port).await.expect("connected");
        let (mut server, _) = listener.accept().expect("a connection");
        for length in [1, READ_MAX - 1, READ_MAX, READ_MAX + 1, 3 * READ_MAX, 1, 2] {
            let mut read = vec![0; length];
            server.write_all(&vec![7; length]).expect("it is sent");
            let all = tokio::time::timeout(LIMIT, socket.read_exact(&mut read)).await;
            assert_eq!(all.expect("it comes").expect("it lives"), length);
            // A read with room left over shows that there is no more.
            let mut more = vec![0; READ_MAX];
            let more = poll_fn(|context| {
                Poll::Ready(pin!(socket.read(&mut more)).as_mut().poll(context).is_ready())
            });
            assert!(!more.await, "no more was sent than {length}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_closed_when_its_owner_is_done_although_others_watch() {
        let mut engine = Engine::new();
        engine.watched.push_on_arrival(&engine.shared_task);
        engine.say(END);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(END)));
        assert_eq!(engine.heard(), Some(END + 1));
        assert_eq!(engine.heard(), None, "the end, and not the time limit");
        let mut by = engine.watched.by.lock().expect("nobody panics").drain().collect::<Vec<_>>();
        let (_, mut watch) = by.pop().expect("this runtime watched");
        let pushing = &mut Arc::get_mut(&mut watch).expect("nobody else has it").pushing;
        tokio::time::timeout(LIMIT, pushing).await.expect("it ends").expect("without a panic");
    }
}
