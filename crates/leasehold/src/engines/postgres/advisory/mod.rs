//! Advisory locks: PostgreSQL's own, on sessions that are kept for them, with a fence and a time
//! to live.
//!
//! A lock belongs to a session of the server. Many are on one session; whoever has to wait does
//! so on a session of his own. The server ends a session that is silent for the longest ttl on
//! it, and heartbeats keep it. What is lost with a session is noticed when its connection ends.
//! What is promised and what is not is in `docs/engines/postgres-advisory.md`.

mod age;
mod book;
mod control;
mod course;
mod crew;
mod describe;
mod digest;
mod direct;
mod examine;
mod keys;
mod lapse;
mod leave;
mod renew;
mod rounds;
mod schema;
mod seats;
mod session;
mod survey;
mod take;
mod view;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::Notify;
use tokio_postgres::types::{ToSql, Type};

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::bell::BellRegistry;
use crate::engine::{
    Administer, Alert, Alerts, Bump, Bumped, Capabilities, Counting, Counts, Engine, Eviction,
    Finding, HolderMessage, HolderMessages, Info, Page, Parts, Query, RaiseFences, Setup, Totals,
    Wake,
};
use crate::error::{Error, Result};
use crate::rule::claim::{Claim, ClaimKey, Holder, Released, Renewal, Standing};

pub use direct::{lock_in, try_lock_in};
pub use keys::{AdvisoryKey, Keys};

use super::link::{Argument, one};
use super::settings::Settings;
use super::table::schema::is_right_missing;
use book::Book;
use control::Control;
use crew::{Crew, Deck};
use lapse::Lapse;
use schema::Statements;
use session::ENGINE;

/// The most sessions of a client: one for the locks of each ttl, and one for each that waits.
/// A server has a hundred by default, and others want some as well.
const SESSIONS: u64 = 32;

const KNOWN: &str = "`keys`, `guard_ms`, `connections`, `schema`, `install`, `sslmode`, \
                     `sslrootcert`, `sslcert`, `sslkey`, `passfile`, `host`, \
                     `connect_timeout_ms` and `timeout_ms`";

/// The longest that claims wait for after the server forgot its locks, unless the URL says
/// otherwise. Whoever still has a connection has noticed by then, whatever his ttl.
const GUARD_MAX: Duration = Duration::from_secs(30);

/// When to ask about a waiting claim although nothing rang: never, in practice.
const RETRY_IN: Duration = Duration::from_secs(600);

/// Advisory locks of a PostgreSQL database. Clones share their sessions.
#[derive(Debug, Clone)]
pub struct Advisory {
    inner: Arc<Inner>,
    /// Ends the engine's thread when the last clone is gone.
    _crew: Arc<Crew>,
}

#[derive(Debug)]
struct Inner {
    settings: Arc<Settings>,
    keys: Keys,
    /// How long claims wait after the server forgot its locks, if the URL says so.
    guard: Option<Duration>,
    statements: Arc<Statements>,
    deck: Deck,
    book: Mutex<Book>,
    bell_registry: BellRegistry,
    control: Control,
    /// What is known before the store was found.
    fresh: Info,
    found: OnceLock<Info>,
    /// Held by whoever opens a session to take locks on; the others share it or its failure.
    opening: tokio::sync::Mutex<Option<Error>>,
    next_session: AtomicU64,
    /// Until when no lock counts, in nanoseconds of the clock.
    guarded_until: AtomicU64,
    /// The longest ttl that the store has written down for a guard, in milliseconds.
    ttl_known_ms: AtomicU64,
    lost: Notify,
    lapse: Lapse,
    scribe: describe::Scribe,
    rounds: rounds::Rounds,
    /// Server processes of sessions that ended, until they are gone there as well.
    ghosts: Mutex<Vec<(i32, Moment)>>,
}

impl Advisory {
    /// Connects to the database at `url`, and installs what is needed if it is not there and the
    /// URL does not say `install=no`.
    ///
    /// Where it is not there, or a right is missing, this succeeds all the same, so that
    /// [`schema`](Setup::schema) can be asked for; every verb then says what is missing.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let url = url.as_ref();
        let own = |options: &mut crate::engine::kit::address::Options| {
            let keys = options.text("keys").map(|keys| keys.parse()).transpose()?;
            Ok((keys.unwrap_or_default(), options.millis("guard_ms")?))
        };
        let (settings, (keys, guard)) = Settings::parse_with(url, SESSIONS, KNOWN, own)?;
        let (crew, deck) = Crew::muster(&settings.store)?;
        let fresh = Info {
            engine: ENGINE,
            store: settings.store.clone(),
            store_id: 0,
            can: CAN,
            can_fail: true,
        };
        let inner = Arc::new(Inner {
            statements: Arc::new(Statements::of(&settings.schema)),
            settings: Arc::new(settings),
            keys,
            guard,
            deck,
            book: Mutex::default(),
            bell_registry: BellRegistry::default(),
            control: Control::default(),
            fresh,
            found: OnceLock::new(),
            opening: tokio::sync::Mutex::new(None),
            next_session: AtomicU64::new(1),
            guarded_until: AtomicU64::new(0),
            ttl_known_ms: AtomicU64::new(0),
            lost: Notify::new(),
            lapse: Lapse::default(),
            scribe: describe::Scribe::default(),
            rounds: rounds::Rounds::default(),
            ghosts: Mutex::default(),
        });
        let engine = Self { inner, _crew: Arc::new(crew) };
        match engine.inner.find().await {
            Err(error) if !is_right_missing(&error) => return Err(error),
            _ => {}
        }
        engine.inner.deck.run(lapse::watch(Arc::clone(&engine.inner)));
        engine.inner.deck.run(describe::write(Arc::clone(&engine.inner)));
        engine.inner.deck.run(rounds::go(Arc::clone(&engine.inner)));
        Ok(engine)
    }
}

/// Arrival order is the server's, among those who are connected, so it is not promised.
const CAN: Capabilities = Capabilities { fifo: false, permits: false, ..Capabilities::ALL };

impl Inner {
    /// Finds the store, and sees to it that a session can be had: what is wrong with the server,
    /// or with what is before it, is said when the store is opened.
    async fn find(self: &Arc<Self>) -> Result<()> {
        let link = self.control().await?;
        let found = schema::find(&link, &self.settings, &self.statements).await?;
        if found.is_none() {
            if !self.settings.install {
                return Ok(());
            }
            schema::install(&link, &self.settings, &self.statements).await?;
            schema::find(&link, &self.settings, &self.statements).await?;
        }
        self.open_session(book::timeout_ms(crate::rule::claim::Ttl::DEFAULT.get())).await
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        SystemClock.now()
    }

    /// Sees to it that all sessions lead to one store.
    fn know(&self, store_id: u128) -> Result<()> {
        let found = self.found.get_or_init(|| Info { store_id, ..self.fresh.clone() });
        match found.store_id == store_id {
            true => Ok(()),
            false => Err(Error::Replaced { store: self.settings.store.clone() }),
        }
    }

    /// The error for what the server said about a lock.
    fn said(&self, error: tokio_postgres::Error) -> Error {
        schema::explained(&self.settings, error)
    }
}

#[async_trait]
impl Engine for Advisory {
    fn info(&self) -> &Info {
        self.inner.found.get().unwrap_or(&self.inner.fresh)
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.inner.claim(claim).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bell_registry.bell(&key.token) {
            Some(bell) => Ok(match self.inner.waits_on(key) {
                Some(session) => session.meanwhile(bell.heard()).await,
                None => bell.heard().await,
            }),
            // It waits for the guard to pass: the time that was answered says when to ask.
            None if self.inner.guarded().is_some() => std::future::pending().await,
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        Ok(self.inner.renew(renewals).await?.into_iter().map(Ok).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.inner.release(keys).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let locks = self.inner.locks().await?;
        Ok(view::page(self.inner.keys, query, &locks))
    }

    async fn close(&self) -> Result<()> {
        // What the client that closes had is given back. Another may share this engine, and what
        // is in use is that one's.
        let sessions: Vec<_> = {
            let book = self.inner.book();
            let idle = book.seats.values().filter(|seat| seat.is_idle());
            idle.map(|seat| Arc::clone(&seat.session)).collect()
        };
        for session in sessions {
            session.end();
            self.inner.session_over(session.id);
        }
        self.inner.close_control().await;
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        // The server ends a lock with its session, and a session with its process. It knows no more
        // of a lock than its key, so nothing of it can be changed. It finds deadlocks by itself.
        Parts {
            messages: Some(self.clone()),
            alerts: Some(self.clone()),
            admin: Some(self.clone()),
            counting: Some(self.clone()),
            raise_fences: Some(self.clone()),
            setup: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl HolderMessages for Advisory {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        self.inner.send(message).await
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        let link = self.inner.control().await?;
        link.listen(&self.inner.settings, &self.inner.statements.for_holders).await
    }
}

#[async_trait]
impl Alerts for Advisory {
    async fn alerts(&self) -> Vec<Alert> {
        loop {
            let told = self.inner.lost.notified();
            let lost = std::mem::take(&mut self.inner.book().losses);
            if !lost.is_empty() {
                return lost.into_iter().map(Alert::Lost).collect();
            }
            told.await;
        }
    }
}

#[async_trait]
impl Administer for Advisory {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        self.inner.evict(order).await
    }

    async fn totals(&self) -> Result<Totals> {
        let inner = &self.inner;
        let locks = inner.locks().await?;
        let row = one(&inner.settings.store, inner.ask(&inner.statements.totals, &[]).await?)?;
        let sum = |column: usize| row.get::<_, i64>(column).max(0) as u64;
        let active = locks.iter().filter(|lock| lock.granted).count() as u64;
        Ok(Totals {
            counts: Counts {
                acquired: sum(0),
                released: sum(1),
                contended: sum(2),
                expired: sum(3),
                lost: sum(4),
            },
            active,
            waiting: locks.len() as u64 - active,
        })
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.inner).await
    }
}

#[async_trait]
impl Counting for Advisory {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        self.inner.tally(counts).await
    }
}

#[async_trait]
impl RaiseFences for Advisory {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.inner.bump_epoch(order).await
    }
}

#[async_trait]
impl Setup for Advisory {
    async fn install(&self) -> Result<()> {
        let inner = &self.inner;
        let link = inner.control().await?;
        if let Some(store_id) = schema::find(&link, &inner.settings, &inner.statements).await? {
            return inner.know(store_id);
        }
        schema::install(&link, &inner.settings, &inner.statements).await
    }

    fn schema(&self) -> Cow<'static, str> {
        self.inner.statements.install.clone()
    }
}

impl Inner {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        let (channel, text) = (self.statements.for_holders.as_str(), message.to_text());
        let arguments: [Argument<'_>; 2] = [(&channel, Type::TEXT), (&text, Type::TEXT)];
        self.ask("SELECT pg_notify($1, $2)", &arguments).await.map(drop)
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        let counted =
            [counts.acquired, counts.released, counts.contended, counts.expired, counts.lost]
                .map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        let arguments = counted.each_ref().map(|count| (count as &(dyn ToSql + Sync), Type::INT8));
        self.ask(&self.statements.tally, &arguments).await.map(|_rows| ())
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let (above, now) = (signed(order.above), signed(order.now_us));
        let arguments: [Argument<'_>; 2] = [(&above, Type::INT8), (&now, Type::INT8)];
        let row = one(&self.settings.store, self.ask(&self.statements.bump, &arguments).await?)?;
        let fence = |column: usize| row.get::<_, i64>(column).max(0) as u64;
        Ok(Bumped::Raised { before: fence(0).into(), from: fence(1).into() })
    }

    /// For how much longer no lock counts.
    fn guarded(&self) -> Option<Duration> {
        let until = Moment::from_nanos(self.guarded_until.load(Ordering::Acquire));
        let left = until.since(self.now());
        (!left.is_zero()).then_some(left)
    }
}
