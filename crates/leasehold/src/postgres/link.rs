//! One connection: making it, and one exchange over it with a time limit.
//!
//! Its driver is a task of the runtime that made it, and ends with that runtime. Statements are
//! sent with their types and without a name, so they need one exchange and no session: a
//! transaction-pooling proxy may hand each to another server process. Where there is no such proxy
//! (`own.rs`), those that are sent most often are prepared.

use std::fmt;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio_postgres::tls::NoTls;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket, Statement};

use crate::address::Host;
use crate::error::{Error, Result};

use super::settings::Settings;
use super::{failure, own};

/// An exchange that was given up after this long leaves a connection that is not to be trusted.
/// Healthy ones answer in a few milliseconds, and a new one costs no more than that.
const SUSPICIOUS: Duration = Duration::from_millis(40);

/// A statement's argument with its type.
pub(super) type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// What the server says unasked.
pub(super) type Messages = BoxStream<'static, Result<AsyncMessage, tokio_postgres::Error>>;

/// Connects, without a task that drives the connection yet.
pub(super) async fn connect(settings: &Settings) -> Result<(Client, Messages)> {
    first_of(settings, |host| connect_to(settings, host)).await
}

async fn connect_to(settings: &Settings, host: &Host) -> Result<(Client, Messages)> {
    let mut config = settings.config.clone();
    config.host(&host.name).port(host.port);
    let connected = match &settings.tls {
        Some(tls) => config.connect(tls.0.clone()).await.map(messages),
        None => config.connect(NoTls).await.map(messages),
    };
    connected.map_err(|error| failure::error(&settings.store, &error))
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

fn messages<S>((client, mut connection): (Client, Connection<Socket, S>)) -> (Client, Messages)
where
    S: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    (client, stream::poll_fn(move |context| connection.poll_message(context)).boxed())
}

/// A connection in use.
pub(super) struct Link {
    client: Client,
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
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                if let Err(error) = message {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                    return;
                }
            }
        });
        Ok(Link {
            client,
            busy: AtomicUsize::new(0),
            made: Instant::now(),
            answered_ms: AtomicU64::new(0),
            aside: AtomicBool::new(false),
            prepared: OnceLock::new(),
            unprepared: AtomicBool::new(false),
            rehearsed: AtomicBool::new(false),
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
        self.ask(settings, self.client.query_typed(statement, arguments))
            .await?
            .map_err(|error| failure::error(&settings.store, &error))
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
        match self.ask(settings, self.client.query_opt(statement, arguments)).await? {
            Err(error) if failure::code(&error) == Some("26000") => {
                tracing::debug!(%error, "a prepared statement is gone");
                self.unprepared.store(true, Ordering::Release);
                Ok(None)
            }
            answer => answer.map_err(|error| failure::error(&settings.store, &error)),
        }
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
                Err(failure::error(&settings.store, &error))
            }
            Ok(_rows) => Ok(()),
        }
    }

    /// Runs statements that have no arguments and no rows.
    pub(super) async fn run(
        &self,
        settings: &Settings,
        statements: &str,
    ) -> Result<std::result::Result<(), tokio_postgres::Error>> {
        self.ask(settings, self.client.batch_execute(statements)).await
    }

    /// Awaits an answer. The time limit counts from the last answer to anybody on this connection:
    /// a statement that waits behind many others is not one that is not answered. The outer error
    /// is the connection's, the inner one the statement's.
    pub(super) async fn ask<T>(
        &self,
        settings: &Settings,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<std::result::Result<T, tokio_postgres::Error>> {
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
        if let Err(error) = &answer
            && failure::ends_connection(error)
        {
            self.set_aside();
        }
        Ok(answer)
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
        // Whatever the answer, it came after the others.
        let _any = self.client.query_typed("SELECT 1", &[]).await;
    }

    /// The client, for statements that no function here sends.
    pub(super) fn client(&self) -> &Client {
        &self.client
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
