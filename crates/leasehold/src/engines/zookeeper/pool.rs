//! A client's sessions: one for each length of life that its claims need, shared by all of them.
//!
//! Ten thousand locks of one ttl are on one session. Its timeout is half as much again as the ttl,
//! because an ensemble counts from what its leader has heard (`session.rs`), and so that a client
//! that dies is gone soon after its ttl and not after that of another claim.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::error::Result;
use crate::rule::claim::Ttl;

use super::lock;
use super::session::{Listener, Session};
use super::settings::Servers;

/// The most sessions of one client. Each is a connection; with more different ttls, claims share
/// the next longer session.
const SESSIONS_MAX: usize = 8;
/// Timeouts are rounded up by at most an eighth, so that few ttls need few sessions.
const STEPS_LOG2: u32 = 3;

#[derive(Debug)]
pub(super) struct Pool {
    servers: Arc<Servers>,
    seats: Mutex<BTreeMap<Duration, Arc<Seat>>>,
    listener: Mutex<Option<Listening>>,
    /// Whether the servers grant sessions that are long enough for everything.
    keeps_all: AtomicBool,
}

struct Listening(Weak<dyn Listener>);

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening")
    }
}

/// The place of one session.
#[derive(Debug, Default)]
struct Seat {
    session: Mutex<Option<Arc<Session>>>,
    /// Held by whoever opens it, so that the others wait for the same.
    turn: tokio::sync::Mutex<()>,
}

impl Seat {
    fn alive(&self) -> Option<Arc<Session>> {
        lock(&self.session).as_ref().filter(|session| !session.has_ended()).cloned()
    }
}

/// The longest timeout that a client can ask for: it is sent as milliseconds in 32 bits.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// How long a session of this timeout lasts without a word of its client, at least.
///
/// The client says a word in every sixteenth of the timeout. The leader hears of it half a tick
/// later, and the timeout counts from there. So a quarter of the timeout is enough for both where
/// the timeout is three ticks or more.
pub(super) fn kept_for(timeout: Duration) -> Duration {
    timeout - timeout / 4
}

/// The timeout of the session for claims that live for `ttl`.
pub(super) fn timeout_for(ttl: Duration) -> Duration {
    let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).saturating_mul(3).div_ceil(2);
    let millis = millis.max(1 << STEPS_LOG2);
    let step = 1 << (millis.ilog2() - STEPS_LOG2);
    Duration::from_millis(millis.div_ceil(step) * step)
}

impl Pool {
    pub(super) fn new(servers: Servers) -> Self {
        let (seats, listener) = (Mutex::default(), Mutex::new(None));
        Self { servers: Arc::new(servers), seats, listener, keeps_all: AtomicBool::new(false) }
    }

    pub(super) fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// Says who hears what the sessions hear, those that are open among them.
    pub(super) fn listen(&self, listener: Weak<dyn Listener>) {
        for seat in lock(&self.seats).values() {
            if let Some(session) = seat.alive() {
                session.listen(Weak::clone(&listener));
            }
        }
        *lock(&self.listener) = Some(Listening(listener));
    }

    /// The session for claims that live for `ttl`.
    pub(super) async fn session(&self, ttl: Duration) -> Result<Arc<Session>> {
        let session = self.opened(ttl).await?;
        session.attend();
        // With all of them taken, the longest may be too short.
        session.stretch(timeout_for(ttl)).await?;
        Ok(session)
    }

    async fn opened(&self, ttl: Duration) -> Result<Arc<Session>> {
        let (span, seat) = self.seat(timeout_for(ttl));
        if let Some(session) = seat.alive() {
            return Ok(session);
        }
        let _turn = seat.turn.lock().await;
        if let Some(session) = seat.alive() {
            return Ok(session);
        }
        let session = Arc::new(Session::open(&self.servers, span, None).await?);
        if let Some(Listening(listener)) = &*lock(&self.listener) {
            session.listen(Weak::clone(listener));
            // Its first connection was made before anybody listened.
            if let Some(listener) = listener.upgrade() {
                listener.back(session.id());
            }
        }
        *lock(&seat.session) = Some(Arc::clone(&session));
        Ok(session)
    }

    fn seat(&self, span: Duration) -> (Duration, Arc<Seat>) {
        let mut seats = lock(&self.seats);
        if !seats.contains_key(&span) && seats.len() >= SESSIONS_MAX {
            let longer = seats.range(span..).next().or_else(|| seats.last_key_value());
            if let Some((span, seat)) = longer {
                return (*span, Arc::clone(seat));
            }
        }
        (span, Arc::clone(seats.entry(span).or_default()))
    }

    /// The longest time for which the servers keep a claim whose client is gone.
    ///
    /// Most clients know it from a session that asked for more than it got. If none did, one asks
    /// for as much as there is.
    pub(super) async fn longest_kept(&self) -> Result<Duration> {
        if self.servers.longest.get().is_none() && !self.keeps_all.load(Ordering::Relaxed) {
            let session = Session::open(&self.servers, TIMEOUT_MAX, None).await?;
            self.keeps_all.store(session.timeout() >= TIMEOUT_MAX, Ordering::Relaxed);
            session.closed().await;
        }
        Ok(kept_for(self.servers.longest.get().unwrap_or(TIMEOUT_MAX)))
    }

    /// Any session, for reading.
    pub(super) async fn any(&self) -> Result<Arc<Session>> {
        let open = lock(&self.seats).values().find_map(|seat| seat.alive());
        match open {
            Some(session) => Ok(session),
            None => self.opened(Ttl::DEFAULT.get()).await,
        }
    }

    /// Ends the sessions on which nothing is left.
    pub(super) fn close_unused(&self, in_use: impl Fn(i64) -> bool) {
        for session in self.take() {
            match in_use(session.id()) {
                true => session.leave(),
                false => session.close(),
            }
        }
    }

    /// [`close_unused`](Self::close_unused), and waits for it.
    pub(super) async fn closed_unused(&self, in_use: impl Fn(i64) -> bool) {
        let (used, unused): (Vec<_>, Vec<_>) =
            self.take().into_iter().partition(|session| in_use(session.id()));
        used.iter().for_each(|session| session.leave());
        futures_util::future::join_all(unused.iter().map(|session| session.closed())).await;
    }

    /// All that are open.
    pub(super) fn alive(&self) -> Vec<Arc<Session>> {
        lock(&self.seats).values().filter_map(|seat| seat.alive()).collect()
    }

    fn take(&self) -> Vec<Arc<Session>> {
        let seats = std::mem::take(&mut *lock(&self.seats));
        seats.values().filter_map(|seat| seat.alive()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::session::home;
    use super::super::settings::Settings;
    use super::super::wire::{Request, code};
    use super::*;

    #[tokio::test]
    async fn whoever_claims_is_answered_although_the_thread_of_the_sessions_is_held_up() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let pool = Pool::new(Settings::from_url(server.url()).expect("a url").servers);
        let session = pool.session(Ttl::DEFAULT.get()).await.expect("a session");
        let (go_on, held) = sync_channel::<()>(1);
        let (ready, is_held) = tokio::sync::oneshot::channel();
        home().expect("a thread").spawn(async move {
            ready.send(()).expect("the test waits");
            // Its end is the word.
            held.recv().expect_err("nothing is sent");
        });
        is_held.await.expect("it is held up");
        for _ in 0..20 {
            let reply = session.ask(Request::GetData { path: "/".into() }).await;
            assert_eq!(reply.expect("an answer").code, code::OK);
        }
        drop(go_on);
    }

    #[tokio::test]
    async fn longest_session_is_known_from_one_that_got_less_than_it_asked_for() {
        let server = leasehold_testkit::Zookeeper::new().start().await.expect("a server");
        let pool = Pool::new(Settings::from_url(server.url()).expect("a url").servers);
        let minute = Duration::from_secs(60);
        drop(pool.session(Ttl::DEFAULT.get()).await.expect("a session"));
        assert_eq!(pool.servers.longest.get(), None, "it got what it asked for");
        drop(pool.session(minute).await.expect("a session"));
        assert_eq!(pool.servers.longest.get(), Some(minute));
        let other = Pool::new(Settings::from_url(server.url()).expect("a url").servers);
        assert_eq!(other.longest_kept().await.expect("an answer"), minute * 3 / 4);
    }

    #[test]
    fn a_session_outlives_its_claims_by_half_and_little_more() {
        for millis in [100, 300, 1_500, 10_000, 30_000, 86_400_000] {
            let ttl = Duration::from_millis(millis);
            let timeout = timeout_for(ttl);
            assert!(timeout >= ttl * 3 / 2 && timeout <= ttl * 3 / 2 * 9 / 8, "{timeout:?}");
        }
    }
}
