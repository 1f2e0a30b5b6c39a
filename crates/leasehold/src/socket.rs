//! A connection of an engine's own thread that callers' runtimes watch as well.
//!
//! What comes for a caller is seen by his own runtime, which pushes the [`Wheel`] that reads it: he
//! has his answer without two threads having been woken one after the other. Reading is tried
//! before anybody's clock or readiness is asked, so it does not matter who comes first.
//!
//! An engine whose callers all watch what they wait for can have its own thread woken by nothing
//! but the end of the connection ([`Ear`]). Of those who wait on one runtime the first watches for
//! himself ([`Watching`]): no task stands between the arrival and him.
//!
//! What was read to its end is not read again before somebody says that more has come.

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

use crate::wheel::Wheel;

/// The most runtimes that watch a connection all the time: each is woken by whatever comes.
const WATCHERS_MAX: usize = 4;

/// The most that is read at once. What is read into is cleared before, and most answers are short.
const READ_MAX: usize = 2_048;

/// A connection, as its owner has it. Closed when it is dropped, whoever watches.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Arc<Stream>,
    ear: Arc<Ear>,
    news: Arc<News>,
    /// Whether all was read that had come.
    is_drained: bool,
    /// What tells the engine's thread that something has come, while it listens for that.
    arrivals: Option<Arrivals>,
    /// What tells it of the end, while it does not.
    end: Option<end::End>,
}

/// What a connection is made of. Never blocks.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Whether the engine's thread is woken by all that comes, or by the end alone.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    closed: AtomicBool,
}

/// Whether something may have come since somebody last looked.
#[derive(Debug, Default)]
struct News(AtomicBool);

/// A connection as those have it who only look whether something has come.
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
    /// Whether somebody who waits watches for himself.
    is_led: AtomicBool,
    /// How many rely on the task that pushes.
    followers: Arc<Followers>,
    pushing: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Followers {
    count: AtomicUsize,
    /// There is one.
    came: Notify,
}

/// How somebody who waits is told that something has come.
#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
#[derive(Debug)]
pub(crate) enum Watching {
    /// He watches for himself and is the first to do so on his runtime.
    Leads(Leading),
    /// A task of his runtime pushes: a first one who is not polled holds nobody up.
    Follows(Following),
    /// His runtime watches no longer than he does.
    Alone(Arrivals),
    /// There is nothing to watch any more, or it cannot be.
    Blind,
}

#[derive(Debug)]
pub(crate) struct Leading(Arc<Watch>);

#[derive(Debug)]
pub(crate) struct Following(Arc<Watch>);

impl Ear {
    /// From the next reading on the end alone wakes the engine's thread. Whoever waits for
    /// something else has to watch.
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

    /// Takes a connection over from tokio, on the engine's thread.
    pub(crate) fn of_tcp(stream: tokio::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // It stays one that never blocks.
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

    /// The connection for those who watch.
    pub(crate) fn watched(&self) -> Watched {
        let (stream, news) = (Arc::downgrade(&self.stream), Arc::clone(&self.news));
        Watched { stream, news, by: Mutex::default() }
    }

    /// What the engine's thread is woken by.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn ear(&self) -> Arc<Ear> {
        Arc::clone(&self.ear)
    }

    /// Waits until there may be something to read. Ready to try at once, or when it failed.
    fn poll_arrival(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ear.closed.load(Ordering::Acquire) && self.end.is_none() {
            match end::End::of(&self.stream) {
                Ok(end) => {
                    self.end = Some(end);
                    // What came before it was there has told only those whom it replaces.
                    return Poll::Ready(Ok(()));
                }
                // A process that may have no more descriptors, perhaps.
                Err(error) => tracing::debug!(%error, "all that comes wakes the engine's thread"),
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
        // Those who watch have it open until they see this. One that is closed already is closed.
        let _closed = self.stream.shutdown(Shutdown::Both);
    }
}

impl Watched {
    /// Pushes a wheel, on the present runtime, whenever something has come; until the connection
    /// or the runtime ends.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn push_on_arrival(&self, wheel: &Arc<Wheel>) {
        if let Some(watch) = self.watch(wheel) {
            // It is relied on for ever.
            watch.followers.enter();
        }
    }

    /// Has the present runtime watch, for those of its tasks that say when they wait.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn attend(&self, wheel: &Arc<Wheel>) {
        self.watch(wheel);
    }

    /// Begins to watch on the present runtime; `None` if it does so already, or cannot.
    fn watch(&self, wheel: &Arc<Wheel>) -> Option<Arc<Watch>> {
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
        let pushing = push(Arc::clone(&arrivals), Arc::clone(&followers), Arc::downgrade(wheel));
        let pushing = tokio::spawn(pushing);
        let watch = Watch { arrivals, is_led: AtomicBool::new(false), followers, pushing };
        let watch = Arc::new(watch);
        by.insert(runtime, Arc::clone(&watch));
        Some(watch)
    }

    /// Watches on the present runtime, for somebody who waits.
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

    /// Says that something may have come, for whoever pushes without having been told.
    #[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
    pub(crate) fn suspect(&self) {
        self.news.tell();
    }

    fn arrivals(&self) -> Option<Arrivals> {
        let stream = self.stream.upgrade()?;
        // A process that may watch no more; all goes on without.
        let failed = |error: &io::Error| tracing::debug!(%error, "a connection is not watched");
        Arrivals::of(&stream, &self.news).inspect_err(failed).ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // While nobody relies on it, it does not see the end.
        self.pushing.abort();
    }
}

impl Followers {
    fn enter(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0 {
            self.came.notify_one();
        }
    }

    /// Ends when there is one.
    async fn any(&self) {
        while self.count.load(Ordering::Acquire) == 0 {
            self.came.notified().await;
        }
    }
}

#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
impl Watching {
    /// Ready when something has come that is to be pushed for.
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

async fn push(arrivals: Arc<Arrivals>, followers: Arc<Followers>, wheel: Weak<Wheel>) {
    loop {
        followers.any().await;
        let Ok(mut seen) = arrivals.descriptor.ready(Interest::READABLE).await else { return };
        let is_over = seen.ready().is_read_closed();
        seen.clear_ready();
        drop(seen);
        arrivals.news.tell();
        match wheel.upgrade() {
            Some(wheel) if !is_over => wheel.push(),
            _ => return,
        }
    }
}

/// Tells a runtime when there is something to read or room to write; neither reads nor writes.
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

    /// Ready when something has come; the next arrival is told again.
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

/// The end of a connection, without anything that comes before it.
#[cfg(target_os = "linux")]
mod end {
    use rustix::event::epoll;

    use super::*;

    /// A set of one connection, in which nothing counts but that the other side has closed it or
    /// it failed: data does not even wake whoever waits.
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

/// Where there is no such thing, everything wakes the engine's thread.
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
            // What came after the last reading was told, or will be: then it wakes somebody.
            if !self.news.take() && self.is_drained {
                ready!(self.poll_arrival(context))?;
                self.news.tell();
                continue;
            }
            match self.stream.read(into.initialize_unfilled_to(room)) {
                Ok(count) => {
                    // The end is there to be read again and again.
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
                    // Whoever wrote need not be there when there is room.
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

    /// An engine's thread, with a task that passes on what its connection reads.
    struct Engine {
        home: Handle,
        wheel: Arc<Wheel>,
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
            let wheel = Wheel::start(&home, async move {
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
            Self { home, wheel, watched, ear, read, server, end: Some(end) }
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

    /// What was to wake the engine's thread has done so, and has been attended to.
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
        // It is seen at the next reading.
        engine.wheel.push();
        rested(&engine).await;
        engine.say(2);
        rested(&engine).await;
        assert!(engine.read.try_recv().is_err(), "nobody watches");
        engine.watched.suspect();
        engine.wheel.push();
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(2)));
        engine.server.shutdown(Shutdown::Both).expect("closed");
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(None));
    }

    #[tokio::test]
    async fn whoever_watches_meanwhile_sees_what_comes() {
        let mut engine = Engine::new();
        engine.ear.close();
        engine.wheel.push();
        let watching = engine.watched.meanwhile();
        assert!(matches!(watching, Watching::Alone(_)), "this runtime does not watch");
        let held = engine.hold_up();
        for byte in 1..=20 {
            engine.say(byte);
            come(&watching).await;
            engine.wheel.push();
            assert_eq!(engine.read.recv().await, Some(byte));
        }
        drop(held);
    }

    async fn come(watching: &Watching) {
        let arrived = poll_fn(|context| watching.poll(context));
        tokio::time::timeout(LIMIT, arrived).await.expect("it comes").expect("it lives");
    }

    /// An engine whose thread hears of nothing but the end, and on whose connection this runtime
    /// watches for those who say so.
    fn attended() -> Engine {
        let engine = Engine::new();
        engine.ear.close();
        engine.wheel.push();
        engine.watched.attend(&engine.wheel);
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
            assert!(engine.read.try_recv().is_err(), "nobody else pushed");
            engine.wheel.push();
            assert_eq!(engine.read.recv().await, Some(byte));
        }
    }

    #[tokio::test]
    async fn a_first_one_who_is_not_polled_holds_nobody_up() {
        let mut engine = attended();
        let first = engine.watched.meanwhile();
        let second = engine.watched.meanwhile();
        assert!(matches!(second, Watching::Follows(_)), "there is one who watches");
        for byte in 1..=20 {
            engine.say(byte);
            assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(byte)));
        }
        drop(first);
        engine.say(21);
        assert_eq!(tokio::time::timeout(LIMIT, engine.read.recv()).await, Ok(Some(21)));
    }

    #[tokio::test]
    async fn what_came_for_one_who_went_is_seen_by_the_next() {
        let mut engine = attended();
        for byte in 1..=20 {
            let gone = engine.watched.meanwhile();
            engine.say(byte);
            // Its answer to this byte is on its way when the first one goes.
            drop(gone);
            come(&engine.watched.meanwhile()).await;
            engine.wheel.push();
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
            // With room for more than there is, it is known that there is no more.
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
        engine.watched.push_on_arrival(&engine.wheel);
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
