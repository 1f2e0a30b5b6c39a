//! One connection: making it, and one exchange over it with a time limit.
//!
//! Its driver is a task of the runtime that made it, and ends with that runtime. Statements are
//! sent with their types and without a name, so they need one exchange and no session: a
//! transaction-pooling proxy may hand each to another server process. Where there is no such proxy
//! (`own.rs`), those that are sent most often are prepared, and exchanges overlap.
//!
//! Behind a proxy an exchange begins when the one before is over. A proxy lends the server process
//! to the next client once it has seen an answer. If it has passed on the first part of the next
//! request by then, it passes the rest on to another process. That process has the unnamed
//! statement of another client, and carries it out with our arguments.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::{BoxStream, StreamExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use crate::engine::HolderMessage;
use crate::engine::kit::address::Host;
use crate::engine::kit::hearers::Hearers;
use crate::error::{Error, Result, UnreachableReason};

use super::sealed::{self, Sealed};
use super::settings::Settings;
use super::table::schema::quoted;
use super::{dial, failure, own};

/// An exchange that was given up after this long leaves a connection that is not to be trusted.
/// Healthy ones answer in a few milliseconds, and a new one costs no more than that.
const SUSPICIOUS: Duration = Duration::from_millis(40);

/// A statement's argument with its type.
pub(super) type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// An answer: the outer error is the connection's, the inner one what the server said or how the
/// connection ended.
pub(super) type Answer<T> = Result<std::result::Result<T, tokio_postgres::Error>>;

/// What the server says unasked.
pub(super) type Messages = BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

/// Connects, without a task that drives the connection yet.
pub(super) async fn connect(settings: &Settings) -> Result<(Client, Messages)> {
    let dialled = dial::dial::<TcpStream>(settings).await?;
    Ok((dialled.client, dialled.messages))
}

/// The first connection that can be had. Of several hosts each has the time limit to itself: one
/// that is silent must not use up that of the next.
pub(super) async fn first_of<'a, T, F>(
    settings: &'a Settings,
    connect: impl Fn(&'a Host) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let (store, limit) = (&settings.store, settings.connect_limit);
    let mut failed = None;
    for (place, host) in settings.hosts.in_order() {
        match tokio::time::timeout(limit, connect(host)).await {
            Ok(Ok(connected)) => {
                settings.hosts.served(place);
                return Ok(connected);
            }
            Ok(Err(error)) => failed = Some(error),
            Err(_late) => failed = Some(failure::silent(store, "no connection", limit)),
        }
    }
    Err(failed.unwrap_or_else(|| failure::broken(store, "no host")))
}

/// A connection in use.
pub(super) struct Link {
    client: Arc<Client>,
    /// The runtime that drives it.
    runtime: Handle,
    /// Whether a server process is known to be its own.
    is_own: AtomicBool,
    /// Held by the exchange under way, where no process is its own. Closed once an answer was not
    /// read to its end: what comes next may belong to that one.
    turn: Arc<Semaphore>,
    /// How many exchanges are under way.
    busy: AtomicUsize,
    /// When it was made, and how many milliseconds after that it last answered anything.
    made: Instant,
    answered_ms: AtomicU64,
    /// No new exchange is to begin on it; those under way may still be answered.
    aside: AtomicBool,
    prepared: OnceLock<Vec<Statement>>,
    /// What was prepared is not there any more.
    unprepared: AtomicBool,
    /// What is sent when somebody waits for the first time was sent.
    rehearsed: AtomicBool,
    /// Those who hear what is notified here.
    hearers: Hearers,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl Link {
    /// Connects, and drives the connection on the present runtime.
    pub(super) async fn open(settings: &Settings) -> Result<Link> {
        let (client, mut messages) = connect(settings).await?;
        let hearers = Hearers::default();
        let (told, end) = (hearers.clone(), hearers.end_with_this());
        tokio::spawn(async move {
            let _end = end;
            while let Some(message) = messages.next().await {
                match message {
                    Ok(AsyncMessage::Notification(heard)) => told.tell_text(heard.payload()),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a connection to PostgreSQL ended");
                        return;
                    }
                }
            }
        });
        Ok(Link {
            client: Arc::new(client),
            runtime: Handle::current(),
            is_own: AtomicBool::new(false),
            turn: Arc::new(Semaphore::new(1)),
            busy: AtomicUsize::new(0),
            made: Instant::now(),
            answered_ms: AtomicU64::new(0),
            aside: AtomicBool::new(false),
            prepared: OnceLock::new(),
            unprepared: AtomicBool::new(false),
            rehearsed: AtomicBool::new(false),
            hearers,
        })
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.aside.load(Ordering::Acquire) && !self.client.is_closed()
    }

    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// Sends a statement and awaits its rows.
    pub(super) async fn query(
        &self,
        settings: &Settings,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>> {
        let rows = self.try_query(settings, statement, arguments).await?;
        rows.map_err(|error| failure::error(&settings.store, error))
    }

    /// Sends a statement and awaits its rows. The outer error is the connection's, the inner one
    /// the statement's.
    pub(super) async fn try_query(
        &self,
        settings: &Settings,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Answer<Vec<Row>> {
        if self.is_own.load(Ordering::Acquire) {
            return self.ask(settings, self.client.query_typed(statement, arguments)).await;
        }
        let (statement, arguments) = (statement.to_owned(), Sealed::all(arguments));
        let query = |client: Arc<Client>| async move {
            client.query_typed(&statement, &sealed::arguments(&arguments)).await
        };
        self.ask_in_turn(settings, query).await
    }

    /// Makes settings and prepares statements, in one exchange, if the server process `process`,
    /// which runs this connection's statements, is its own. What cannot be prepared is done
    /// without.
    pub(super) async fn prepare(
        &self,
        settings: &Settings,
        process: i32,
        set: &str,
        statements: &[(&str, &[Type])],
    ) -> Result<()> {
        if own::process_told(&self.client).await != Some(process) {
            return Ok(());
        }
        self.is_own.store(true, Ordering::Release);
        let prepared =
            statements.iter().map(|(text, types)| self.client.prepare_typed(text, types));
        let both = async {
            let set = self.client.batch_execute(set);
            let (set, prepared) = tokio::join!(set, try_join_all(prepared));
            set.and(prepared)
        };
        match self.ask(settings, both).await? {
            // Whoever comes second finds them prepared.
            Ok(prepared) => drop(self.prepared.set(prepared)),
            Err(error) => tracing::debug!(%error, "a connection does without prepared statements"),
        }
        Ok(())
    }

    /// A prepared statement by its place, if it could be prepared.
    pub(super) fn prepared(&self, place: usize) -> Option<&Statement> {
        let prepared = self.prepared.get().filter(|_| !self.unprepared.load(Ordering::Acquire));
        prepared.and_then(|prepared| prepared.get(place))
    }

    /// Sends a prepared statement and awaits its row, if there is one. There is none either if the
    /// server does not know the statement any more, which then is not used again.
    pub(super) async fn query_prepared(
        &self,
        settings: &Settings,
        statement: &Statement,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>> {
        let row = self.try_prepared(settings, statement, arguments).await?;
        row.map_err(|error| failure::error(&settings.store, error))
    }

    /// The same. The outer error is the connection's, the inner one the statement's.
    pub(super) async fn try_prepared(
        &self,
        settings: &Settings,
        statement: &Statement,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Answer<Option<Row>> {
        match self.ask(settings, self.client.query_opt(statement, arguments)).await? {
            Err(error) if failure::code(&error) == Some("26000") => {
                tracing::debug!(%error, "a prepared statement is gone");
                self.unprepared.store(true, Ordering::Release);
                Ok(Ok(None))
            }
            answer => Ok(answer),
        }
    }

    /// Whether a server process is known to be its own.
    pub(super) fn is_own(&self) -> bool {
        self.is_own.load(Ordering::Acquire)
    }

    /// Hears messages to holders from the answer on, until the connection ends.
    pub(super) async fn listen(
        &self,
        settings: &Settings,
        channel: &str,
    ) -> Result<BoxStream<'static, HolderMessage>> {
        let messages = self.hearers.listen();
        let listening = self.run(settings, &format!("LISTEN {}", quoted(channel))).await?;
        listening.map_err(|error| failure::error(&settings.store, error))?;
        Ok(messages)
    }

    /// Whether this is asked for the first time.
    pub(super) fn is_unrehearsed(&self) -> bool {
        !self.rehearsed.swap(true, Ordering::AcqRel)
    }

    /// Sends a prepared statement whose answer nobody needs.
    pub(super) fn send_prepared(&self, statement: &Statement, arguments: &[&(dyn ToSql + Sync)]) {
        // What is polled once has been sent. The driver reads past an answer that nobody awaits.
        drop(self.client.query_opt(statement, arguments).now_or_never());
    }

    /// Runs a prepared statement that has no arguments, whose rows nobody needs. If the server does
    /// not know it any more, it is not used again.
    pub(super) async fn run_prepared(
        &self,
        settings: &Settings,
        statement: &Statement,
    ) -> Result<()> {
        match self.ask(settings, self.client.execute(statement, &[])).await? {
            Err(error) => {
                if failure::code(&error) == Some("26000") {
                    self.unprepared.store(true, Ordering::Release);
                }
                Err(failure::error(&settings.store, error))
            }
            Ok(_rows) => Ok(()),
        }
    }

    /// Runs statements that have no arguments and no rows.
    pub(super) async fn run(&self, settings: &Settings, statements: &str) -> Answer<()> {
        let statements = statements.to_owned();
        let run = |client: Arc<Client>| async move { client.batch_execute(&statements).await };
        self.ask_in_turn(settings, run).await
    }

    /// Carries an exchange out when the one before is over. It goes on when the caller stops
    /// waiting for it, so that the next one waits for its answer.
    async fn ask_in_turn<T, F>(
        &self,
        settings: &Settings,
        exchange: impl FnOnce(Arc<Client>) -> F,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, tokio_postgres::Error>> + Send + 'static,
    {
        let answer = async {
            let turn = Arc::clone(&self.turn).acquire_owned().await.ok()?;
            let (client, turns) = (Arc::clone(&self.client), Arc::clone(&self.turn));
            let exchange = exchange(Arc::clone(&client));
            let (sender, answer) = oneshot::channel();
            self.runtime.spawn(async move {
                let answer = exchange.await;
                let refused = answer.as_ref().err().map(|error| error.as_db_error().is_some());
                // The caller may be gone.
                let _unheard = sender.send(answer);
                let is_over = match refused {
                    None => true,
                    // The driver answers as soon as it has the error, and more follows that.
                    Some(true) => client.batch_execute("").await.is_ok(),
                    Some(false) => false,
                };
                if !is_over {
                    turns.close();
                }
                drop(turn);
            });
            answer.await.ok()
        };
        match self.in_time(settings, answer).await? {
            Some(answer) => Ok(self.judged(answer)),
            None => {
                self.set_aside();
                let cause = "its connection is not used any more";
                Err(Error::unreachable(&settings.store, UnreachableReason::Broken, cause))
            }
        }
    }

    /// Awaits an answer, beside others. The outer error is the connection's, the inner one the
    /// statement's.
    pub(super) async fn ask<T>(
        &self,
        settings: &Settings,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Answer<T> {
        let answer = self.in_time(settings, answer).await?;
        Ok(self.judged(answer))
    }

    /// Awaits an answer. The time limit counts from the last answer to anybody on this connection:
    /// a statement that waits behind many others is not one that is not answered.
    async fn in_time<T>(&self, settings: &Settings, answer: impl Future<Output = T>) -> Result<T> {
        let mut pending = Pending::on(self);
        let limit = settings.exchange_limit;
        let mut answer = pin!(answer);
        let answer = loop {
            let until = self.heard_since(pending.since) + limit;
            if let Ok(answer) = tokio::time::timeout_at(until.into(), &mut answer).await {
                break answer;
            }
            if self.heard_since(pending.since) + limit <= Instant::now() {
                return Err(failure::silent(&settings.store, "no answer", limit));
            }
        };
        pending.answered = true;
        self.answered_ms.store(self.made.elapsed().as_millis() as u64, Ordering::Release);
        Ok(answer)
    }

    /// Sets the connection aside if an answer says that it is of no more use.
    fn judged<T>(
        &self,
        answer: std::result::Result<T, tokio_postgres::Error>,
    ) -> std::result::Result<T, tokio_postgres::Error> {
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            self.set_aside();
        }
        answer
    }

    /// When something was last heard from the server, or `since` if that is later.
    fn heard_since(&self, since: Instant) -> Instant {
        let answered_ms = self.answered_ms.load(Ordering::Acquire);
        since.max(self.made + Duration::from_millis(answered_ms))
    }

    /// Begins nothing more on this connection. It is closed when the last who uses it is done;
    /// what was sent before is carried out first, in order.
    pub(super) fn set_aside(&self) {
        self.aside.store(true, Ordering::Release);
    }

    /// Ends when everything that was sent before has been carried out, or the connection is lost.
    pub(super) async fn settled(&self) {
        if self.is_own.load(Ordering::Acquire) {
            // Whatever the answer, it came after the others.
            let _any = self.client.query_typed("SELECT 1", &[]).await;
        } else {
            // Turns are taken in order. Closed ones are over as well.
            let _turn = self.turn.acquire().await;
        }
    }
}

/// An exchange under way. The caller may stop waiting at any point.
struct Pending<'a> {
    link: &'a Link,
    since: Instant,
    answered: bool,
}

impl<'a> Pending<'a> {
    fn on(link: &'a Link) -> Self {
        link.busy.fetch_add(1, Ordering::AcqRel);
        Self { link, since: Instant::now(), answered: false }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.link.busy.fetch_sub(1, Ordering::AcqRel);
        let silent = self.link.heard_since(self.since).elapsed();
        if !self.answered && silent >= SUSPICIOUS {
            self.link.set_aside();
        }
    }
}

/// The only row of an answer.
pub(super) fn one(store: &str, rows: Vec<Row>) -> Result<Row, Error> {
    rows.into_iter().next().ok_or_else(|| failure::broken(store, "no row"))
}
