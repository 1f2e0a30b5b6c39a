//! One session with the ensemble: who keeps it alive, what it can prove, and how it ends.
//!
//! A session lives on a thread of the engine's own, so that a caller who blocks his runtime starves
//! nobody's nodes. It moves from server to server by itself; requests that were on their way then
//! fail, and whoever made them finds out what became of them.
//!
//! What an answer proves about time is worked out where the request is sent. Servers pass on to
//! the leader that they heard of a session twice in each tick of theirs; the shortest session that
//! an ensemble grants by default is two ticks. So what was sent a quarter of the timeout before a
//! request that a majority agreed on is known to the leader, and from there the timeout counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::clock::Moment;
use crate::engine::kit::shared_task::SharedTask;
use crate::engine::kit::socket::Watched;
use crate::error::{Error, Result, UnreachableReason};

use super::driver::Driver;
use super::link::Links;
use super::lock;
use super::settings::Servers;
use super::together::Keep;
use super::wire::{Change, Request};

/// Requests that wait to be sent; who comes beyond that waits for room.
const QUEUE_MAX: usize = 1_024;
/// The part of the timeout that a request waits for a session that is not connected.
pub(super) const MOVING_PART: u32 = 8;

/// Hears what a session hears.
pub(super) trait Listener: Send + Sync + 'static {
    /// Something happened to a node that is watched.
    fn heard(&self, change: Change, path: &str);

    /// The session is connected again, or over; what happened meanwhile was not heard.
    fn back(&self, session: i64);
}

/// What came back for a request.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    /// What the server made of it.
    pub(super) code: i32,
    /// The latest transaction that the server knew of, or the one that this was.
    pub(super) zxid: i64,
    pub(super) body: Vec<u8>,
    /// Until when the ensemble keeps the session at least, if the request was one that a majority
    /// agrees on.
    pub(super) safe_until: Moment,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// The connection broke, or there is none.
    Cut(String),
    /// The session is over, and its nodes are gone or will be.
    Ended,
}

/// A request on its way to the driver.
pub(super) struct Asked {
    pub(super) request: Request,
    /// The line that a transaction is about, if it may be one with those about other lines.
    pub(super) line: Option<String>,
    /// The only connection on which it may be sent, by its number.
    pub(super) only_on: Option<u64>,
    pub(super) reply: oneshot::Sender<Result<Reply, Trouble>>,
}

/// A session as its users have it.
pub(super) struct Session {
    requests: mpsc::Sender<Asked>,
    driver: Arc<SharedTask>,
    shared: Arc<Shared>,
    links: Links,
}

/// What a session's users and its driver both see.
pub(super) struct Shared {
    pub(super) servers: Arc<Servers>,
    pub(super) control: Mutex<Control>,
    pub(super) changed: Notify,
    pub(super) status: watch::Sender<Status>,
    /// The latest instant until which the ensemble was proven to keep the session.
    pub(super) proven: AtomicU64,
    pub(super) listener: Mutex<Option<Weak<dyn Listener>>>,
    /// The present connection.
    pub(super) watched: Mutex<Watched>,
}

impl Shared {
    /// Nobody has the session any more. Whoever had it may have said how it is to end.
    pub(super) fn left_to_itself(&self) {
        let mut control = lock(&self.control);
        if control.wish == Wish::Live {
            control.wish = Wish::Leave;
        }
    }
}

/// What is wanted of a session.
pub(super) struct Control {
    pub(super) wish: Wish,
    pub(super) timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Live,
    /// Hang up, and leave the session to its timeout.
    Leave,
    /// End it, with all its nodes.
    Close,
}

/// How a session is.
#[derive(Clone, Default)]
pub(super) struct Status {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    /// As it was asked for when it was last taken up.
    pub(super) asked: Duration,
    /// As the ensemble granted it.
    pub(super) timeout: Duration,
    /// The same when it was first connected.
    pub(super) first: Duration,
    /// What others know of.
    pub(super) told: Duration,
    /// Counts connections.
    pub(super) times: u64,
    pub(super) connected: bool,
    pub(super) ended: bool,
    /// Whether the client ended it for itself, so that the ensemble may still have it.
    pub(super) given_up: bool,
    pub(super) cause: String,
}

/// What one needs to take up a session that somebody else opened.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) password: [u8; 16],
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:x})", self.id)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:x})", self.id())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Session {
    /// Opens a session, or takes one up.
    pub(super) async fn open(
        servers: &Arc<Servers>,
        span: Duration,
        identity: Option<Identity>,
    ) -> Result<Session> {
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let once = identity.is_some();
        let status = match identity {
            Some(Identity { id, password }) => {
                Status { id, password: password.to_vec(), ..Status::default() }
            }
            None => Status { password: vec![0; 16], ..Status::default() },
        };
        let shared = Arc::new(Shared {
            servers: Arc::clone(servers),
            control: Mutex::new(Control { wish: Wish::Live, timeout: span }),
            changed: Notify::new(),
            status: watch::Sender::new(status),
            proven: AtomicU64::new(0),
            listener: Mutex::new(None),
            watched: Mutex::default(),
        });
        let secret = format!("leasehold:{:032x}", rand::random::<u128>());
        let keep = Keep::default();
        let driver = Driver { shared: Arc::clone(&shared), queue, keep, secret, seen: 0, once };
        let driver = SharedTask::start(home()?, driver.run());
        let session = Session { requests, driver, shared, links: Links::default() };
        session.until(|status| status.connected).await?;
        Ok(session)
    }

    /// Says who is to hear what the session hears.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        *lock(&self.shared.listener) = Some(listener);
    }

    /// Lets the present runtime see for itself what comes from the server.
    pub(super) fn attend(&self) {
        lock(&self.shared.watched).push_on_arrival(&self.driver);
    }

    /// Waits until the session is as wanted, for as long as a connection and a request may take.
    async fn until(&self, fits: impl FnMut(&Status) -> bool) -> Result<()> {
        let limit = self.shared.servers.answer + self.shared.servers.connect;
        self.until_within(limit, fits).await.map(drop)
    }

    /// The number of the present connection. If there is none, it waits for one as long as a
    /// request does.
    pub(super) async fn connection(&self) -> Result<u64> {
        {
            let status = self.shared.status.borrow();
            if status.connected {
                return Ok(status.times);
            }
        }
        self.until_within(self.limit(), |status| status.connected).await
    }

    /// Waits until the session is as wanted; returns the number of its connection.
    async fn until_within(
        &self,
        limit: Duration,
        fits: impl FnMut(&Status) -> bool,
    ) -> Result<u64> {
        let mut fits = fits;
        let mut status = self.shared.status.subscribe();
        let waited = timeout(limit, status.wait_for(|now| now.ended || fits(now))).await;
        match waited {
            Ok(Ok(now)) if !now.ended => Ok(now.times),
            Ok(Ok(_)) => Err(self.over()),
            _ => {
                let cause = self.shared.status.borrow().cause.clone();
                Err(if cause.is_empty() { self.silent() } else { self.error(&Trouble::Cut(cause)) })
            }
        }
    }

    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    pub(super) fn id(&self) -> i64 {
        self.shared.status.borrow().id
    }

    pub(super) fn timeout(&self) -> Duration {
        self.shared.status.borrow().timeout
    }

    /// How often it was connected. Whoever takes it up for a moment makes it connect anew.
    pub(super) fn times(&self) -> u64 {
        self.shared.status.borrow().times
    }

    /// Until when the ensemble was proven to keep it.
    pub(super) fn proven_until(&self) -> Moment {
        Moment::from_nanos(self.shared.proven.load(Ordering::Acquire))
    }

    /// Whether the ensemble said that it is over.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.status.borrow().ended
    }

    /// Whether this client ended it for itself. The ensemble may still have it, and its nodes.
    pub(super) fn was_given_up(&self) -> bool {
        self.shared.status.borrow().given_up
    }

    /// What another process needs to take it up.
    pub(super) fn identity(&self) -> Identity {
        let status = self.shared.status.borrow();
        let mut password = [0; 16];
        for (to, from) in password.iter_mut().zip(&status.password) {
            *to = *from;
        }
        Identity { id: status.id, password }
    }

    /// Sends a request; its answer is awaited apart, so that several can be on their way.
    pub(super) async fn send(&self, request: Request) -> Result<Sent<'_>> {
        self.send_about(None, None, request).await
    }

    /// Sends a request on the connection of this number, and on no later one: what it rests on was
    /// read there. Another client that takes up the session cuts it.
    pub(super) async fn send_on(&self, times: u64, request: Request) -> Result<Sent<'_>> {
        self.send_about(None, Some(times), request).await
    }

    /// Sends a transaction that is about one line and may be one with others, if many come at a
    /// time; nothing else may be on its way about its line. It goes out on the connection of this
    /// number, and on no later one.
    pub(super) async fn send_with_others_on(
        &self,
        times: u64,
        line: String,
        parts: Vec<Request>,
    ) -> Result<Sent<'_>> {
        self.send_about(Some(line), Some(times), Request::Multi(parts)).await
    }

    #[expect(clippy::result_large_err, reason = "a request comes back whole if the queue is full")]
    async fn send_about(
        &self,
        line: Option<String>,
        only_on: Option<u64>,
        request: Request,
    ) -> Result<Sent<'_>> {
        let (reply, answer) = oneshot::channel();
        let limit = self.limit();
        let until = tokio::time::Instant::now() + limit;
        let sent = Sent { session: self, answer, until };
        let asked = Asked { request, line, only_on, reply };
        let asked = match self.driver.queue_and_poll(|| self.requests.try_send(asked)) {
            Ok(()) => return Ok(sent),
            Err(TrySendError::Closed(_)) => return Err(self.over()),
            Err(TrySendError::Full(asked)) => asked,
        };
        match timeout(limit, self.requests.send(asked)).await {
            Ok(Ok(())) => Ok(sent),
            Ok(Err(_)) => Err(self.over()),
            Err(_) => Err(self.error(&Trouble::Cut("too many requests wait".into()))),
        }
    }

    /// How long a request may take. A session that moves at the moment has less: whoever holds a
    /// lease must learn that something is wrong while there is time.
    pub(super) fn limit(&self) -> Duration {
        let (status, answer) = (self.shared.status.borrow(), self.shared.servers.answer);
        match status.connected {
            true => answer,
            false => answer.min(status.timeout / MOVING_PART),
        }
    }

    pub(super) async fn ask(&self, request: Request) -> Result<Reply> {
        self.send(request).await?.answer().await
    }

    /// Makes the session last longer without a word: it is taken up anew with another timeout.
    pub(super) async fn stretch(&self, span: Duration) -> Result<()> {
        if self.shared.status.borrow().asked >= span {
            return Ok(());
        }
        {
            let mut control = lock(&self.shared.control);
            control.timeout = control.timeout.max(span);
        }
        self.shared.changed.notify_one();
        self.until(|status| status.connected && status.asked >= span).await
    }

    /// Makes the session last for so long without a word, which is shorter: it is taken up anew.
    pub(super) async fn shorten(&self, span: Duration) -> Result<()> {
        lock(&self.shared.control).timeout = span;
        self.shared.changed.notify_one();
        self.until(|status| status.connected && status.asked == span).await
    }

    /// Whether it lasts longer than it did at first.
    pub(super) fn has_grown(&self) -> bool {
        let status = self.shared.status.borrow();
        status.timeout > status.first
    }

    /// Whether others know that it lasts for so long.
    pub(super) fn has_told(&self, timeout: Duration) -> bool {
        self.shared.status.borrow().told >= timeout
    }

    /// Others know now that it lasts for so long.
    pub(super) fn note_told(&self, timeout: Duration) {
        self.shared.status.send_if_modified(|status| {
            status.told = timeout;
            // Nobody waits for that.
            false
        });
    }

    /// Ends the session with all its nodes, without waiting for it.
    pub(super) fn close(&self) {
        self.wish(Wish::Close);
    }

    /// Hangs up, and leaves the session to its timeout.
    pub(super) fn leave(&self) {
        self.wish(Wish::Leave);
    }

    /// [`close`](Self::close), and waits until it has happened or cannot.
    pub(super) async fn closed(&self) {
        let mut status = self.shared.status.subscribe();
        self.close();
        let ended = status.wait_for(|now| now.ended);
        // One that cannot be told ends by itself.
        drop(timeout(self.shared.servers.answer, ended).await);
    }

    fn wish(&self, wish: Wish) {
        let mut control = lock(&self.shared.control);
        if control.wish == Wish::Live {
            control.wish = wish;
            drop(control);
            self.shared.changed.notify_one();
        }
    }

    /// Why nothing is asked on this session any more. One that was only taken up for a moment is
    /// over when its connection is, which the session itself outlives.
    fn over(&self) -> Error {
        let cause = self.shared.status.borrow().cause.clone();
        match cause.is_empty() {
            true => self.error(&Trouble::Ended),
            false => self.error(&Trouble::Cut(cause)),
        }
    }

    /// No answer came in time.
    pub(super) fn silent(&self) -> Error {
        let reason = UnreachableReason::NoAnswer;
        Error::unreachable(&self.shared.servers.store, reason, reason.to_string())
    }

    pub(super) fn error(&self, trouble: &Trouble) -> Error {
        let store = self.shared.servers.store.clone();
        match trouble {
            Trouble::Cut(cause) => Error::unreachable(store, UnreachableReason::Broken, cause),
            Trouble::Ended => {
                Error::Store { store, cause: "its session ended".into(), transient: true }
            }
        }
    }
}

/// A request on its way.
pub(super) struct Sent<'a> {
    session: &'a Session,
    answer: oneshot::Receiver<Result<Reply, Trouble>>,
    until: tokio::time::Instant,
}

impl Sent<'_> {
    pub(super) async fn answer(self) -> Result<Reply> {
        match tokio::time::timeout_at(self.until, self.answer).await {
            Ok(Ok(Ok(reply))) => Ok(reply),
            Ok(Ok(Err(trouble))) => Err(self.session.error(&trouble)),
            Ok(Err(_)) => Err(self.session.over()),
            Err(_) => Err(self.session.silent()),
        }
    }
}

/// Where sessions live: a thread for all engines of this process, on which nobody else works.
pub(super) fn home() -> Result<&'static Handle> {
    static HOME: OnceLock<Option<Handle>> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("leasehold-zookeeper".into());
        thread.spawn(move || runtime.block_on(std::future::pending::<()>())).ok()?;
        Some(handle)
    });
    home.as_ref().ok_or_else(|| Error::Store {
        store: "zookeeper".into(),
        cause: "this process cannot start a thread".into(),
        transient: true,
    })
}
