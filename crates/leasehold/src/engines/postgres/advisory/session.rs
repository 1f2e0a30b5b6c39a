//! One dedicated connection: a PostgreSQL session that holds locks, or waits for one.
//!
//! Everything a session is to be is said in its start-up message, so that a proxy in between that
//! does not keep sessions apart is found at once. Each grant and heartbeat names the server's
//! process: should it ever be another one, the locks are not ours, and the session is over.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use crate::engine::kit::socket::Socket;
use crate::error::{Error, Result};

use super::super::failure;
pub(super) use super::super::link::Answer;
use super::super::settings::Settings;
use super::super::{dial, link, own};
use super::course::Course;
use super::keys::AdvisoryKey;
use super::schema::{self, Statements};

/// What the engine is called in messages.
pub(super) const ENGINE: &str = "postgres+advisory";

/// What lock sessions are called in `pg_stat_activity`.
pub(super) const APPLICATION: &str = "leasehold advisory";

/// How often the server looks whether a waiting client is still there. A waiter that died delays
/// the others by at most this long.
const CHECK_MS: u64 = 250;

/// Silence after which the server gives a connection up: 6 s, then three probes 3 s apart.
const KEEPALIVE: &str = "-c tcp_keepalives_idle=6 -c tcp_keepalives_interval=3 \
                         -c tcp_keepalives_count=3 -c tcp_user_timeout=15000";

/// The statements of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Take,
    Wait,
    Drop,
    Beat,
}

/// A session in use.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) pid: i32,
    /// When the server's process began, in microseconds of its clock.
    pub(super) backend: i64,
    client: Client,
    fences: String,
    prepared: [OnceCell<Statement>; 13],
    over: AtomicBool,
    course: Course,
    exchange_limit: Duration,
    store: String,
}

/// A lock that was waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) fence: u64,
    /// For how long, by the server's clock.
    pub(super) waited: Duration,
}

/// What the server said about itself when a session began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) store_id: u128,
    /// The longest ttl that was written down for a guard.
    pub(super) ttl: Duration,
    /// The longest one there was when the server last forgot its locks.
    pub(super) guard: Duration,
    /// How long the server remembers.
    pub(super) age: Duration,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("pid", &self.pid).finish()
    }
}

impl Session {
    /// Connects on the engine's thread, to which the session belongs from then on. `ended` is
    /// called when it is over.
    pub(super) async fn open(
        settings: &Settings,
        statements: &Statements,
        (id, timeout_ms, pair): (u64, u64, bool),
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(Session, Begun)> {
        let mut own = settings.clone();
        own.config.application_name(APPLICATION).options(options(timeout_ms));
        let dialled = dial::dial::<Socket>(&own).await.map_err(|error| refusal(settings, error))?;
        let (watched, ear) = dialled.handles;
        // From here on whoever asks watches for the answer.
        ear.close();
        let course = Course::begin(dialled.messages, watched, ended);
        let mut session = Session {
            id,
            pid: 0,
            backend: 0,
            client: dialled.client,
            fences: statements.fences.clone(),
            prepared: Default::default(),
            over: AtomicBool::new(false),
            course,
            exchange_limit: settings.exchange_limit,
            store: settings.store.clone(),
        };
        let begun = session.begin(settings, statements, timeout_ms, pair).await?;
        Ok((session, begun))
    }

    /// The first exchange. What is needed in every life is prepared along with it.
    async fn begin(
        &mut self,
        settings: &Settings,
        statements: &Statements,
        timeout_ms: u64,
        pair: bool,
    ) -> Result<Begun> {
        let key = if pair { AdvisoryKey::Pair(0, 0) } else { AdvisoryKey::Number(0) };
        let session = &*self;
        let first = async {
            let asked = session.client.query_typed(&statements.begin, &[]);
            let prepared = [Verb::Take, Verb::Wait, Verb::Drop, Verb::Beat]
                .map(|verb| session.statement(verb, key, false));
            let (rows, prepared) = tokio::join!(asked, futures_util::future::join_all(prepared));
            let rows = rows?;
            for statement in prepared {
                statement?;
            }
            Ok(rows)
        };
        let rows = session.in_time(session.course.answered(first)).await?;
        let rows = rows.map_err(|error| schema::explained(settings, error))?;
        let row = link::one(&self.store, rows)?;
        if row.get::<_, i64>(2) != timeout_ms as i64 {
            return Err(pooled("the settings of its session were not kept"));
        }
        schema::check(settings, row.get(3))?;
        let begun = Begun {
            store_id: schema::store_id(settings, row.get(4))?,
            ttl: millis(row.get(5)),
            guard: millis(row.get(6)),
            age: millis(row.get(7)),
        };
        (self.pid, self.backend) = (row.get(0), row.get(1));
        Ok(begun)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.client.is_closed()
    }

    /// Ends the session: its connection is closed, answered or not.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.course.end();
    }

    /// Has the present runtime watch what the server says.
    pub(super) fn attend(&self) {
        self.course.attend();
    }

    /// Awaits what comes of the answer to a wait, for which the present runtime watches.
    pub(super) async fn meanwhile<T>(&self, awaited: impl Future<Output = T>) -> T {
        self.course.meanwhile(awaited).await
    }

    /// Reads what the server has said, if anything.
    pub(super) fn look(&self) {
        self.course.look();
    }

    /// Does something on the session that nobody need wait for, beginning here and now.
    pub(super) fn along(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.course.along(job);
    }

    /// Takes a lock if it is free, and a fence with it. `timeout_ms` is said first where the
    /// session is to be kept for another time than before.
    pub(super) async fn take(
        &self,
        key: AdvisoryKey,
        shared: bool,
        timeout_ms: Option<u64>,
    ) -> Answer<Option<u64>> {
        let asked = pin!(self.say(Verb::Take, key, shared, timeout_ms));
        let asked = pin!(self.course.answered(asked));
        self.answered(self.in_time(asked).await?, fence)
    }

    /// Waits for a lock, and takes a fence once it is there. No time limit: whoever waits is
    /// cancelled. Only [`along`](Self::along) with the connection: nothing watches for the answer
    /// but [`meanwhile`](Self::meanwhile).
    pub(super) async fn wait(
        &self,
        key: AdvisoryKey,
        shared: bool,
        timeout_ms: Option<u64>,
    ) -> Answer<Option<Grant>> {
        self.answered(self.say(Verb::Wait, key, shared, timeout_ms).await, |row| {
            let waited = row.get::<_, Option<f64>>(2).map(Duration::try_from_secs_f64);
            // Below zero if the clock was set back.
            let waited = waited.and_then(|waited| waited.ok()).unwrap_or_default();
            fence(row).map(|fence| Grant { fence, waited })
        })
    }

    /// Gives a lock back; answers whether it was there. What was written about it goes after it,
    /// so that whoever waits does not wait for that as well; nobody reads it without the lock.
    pub(super) async fn drop_lock(
        &self,
        key: AdvisoryKey,
        shared: bool,
        forget: Option<(&str, i64)>,
    ) -> Answer<bool> {
        let asked = pin!(async {
            let answer = match forget {
                None => self.say(Verb::Drop, key, shared, None).await,
                Some(forget) => {
                    // Polled in this order, so sent in this order, and in one exchange.
                    let first = self.say(Verb::Drop, key, shared, None);
                    Box::pin(async { tokio::join!(biased; first, self.forget(forget)).0 }).await
                }
            };
            match answer {
                Err(error) if is_cancelled(&error) => {
                    Box::pin(self.say(Verb::Drop, key, shared, None)).await
                }
                answer => answer,
            }
        });
        let asked = pin!(self.course.answered(asked));
        match self.in_time(asked).await?.map(|row| row.get(0)) {
            // Only the process that had it could say so.
            Ok(true) => Ok(Ok(true)),
            Ok(false) => Ok(Box::pin(self.beat(None)).await?.map(|()| false)),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn forget(&self, (statement, row): (&str, i64)) {
        let rows = vec![row];
        let row: [(&(dyn ToSql + Sync), Type); 1] = [(&rows, Type::INT8_ARRAY)];
        if let Err(error) = self.client.execute_typed(statement, &row).await {
            tracing::debug!(%error, "a row about a lock is left; it is swept later");
        }
    }

    /// Asks something that has nothing to do with locks.
    pub(super) async fn ask(&self, statement: &str) -> Answer<Vec<Row>> {
        self.in_time(self.course.answered(self.client.query_typed(statement, &[]))).await
    }

    /// The server process that was named when the session began.
    pub(super) async fn process_told(&self) -> Option<i32> {
        own::process_told(&self.client).await
    }

    /// Shows the server that the client is alive.
    pub(super) async fn beat(&self, timeout_ms: Option<u64>) -> Answer<()> {
        let key = AdvisoryKey::Number(0);
        let asked = async {
            match self.say(Verb::Beat, key, false, timeout_ms).await {
                Err(error) if is_cancelled(&error) => {
                    Box::pin(self.say(Verb::Beat, key, false, timeout_ms)).await
                }
                answer => answer,
            }
        };
        let asked = self.course.answered(asked);
        self.answered(self.in_time(asked).await?, |_| ())
    }

    async fn say(
        &self,
        verb: Verb,
        key: AdvisoryKey,
        shared: bool,
        timeout_ms: Option<u64>,
    ) -> std::result::Result<Row, tokio_postgres::Error> {
        let Some(timeout) = timeout_ms else { return self.put(verb, key, shared).await };
        let set = format!("SET idle_session_timeout = {timeout}");
        let set = self.client.batch_execute(&set);
        // Polled in this order, so sent in this order, and in one exchange. It is seldom, and kept
        // out of what is usual: futures are moved about with all that they may ever need.
        let both = async { tokio::join!(biased; set, self.put(verb, key, shared)) };
        let (set, row) = Box::pin(both).await;
        set.and(row)
    }

    async fn put(
        &self,
        verb: Verb,
        key: AdvisoryKey,
        shared: bool,
    ) -> std::result::Result<Row, tokio_postgres::Error> {
        let statement = match self.prepared[place(verb, key, shared)].get() {
            Some(statement) => statement,
            None => Box::pin(self.statement(verb, key, shared)).await?,
        };
        match (verb, key) {
            (Verb::Beat, _) => self.client.query_one(statement, &[]).await,
            (_, AdvisoryKey::Number(number)) => self.client.query_one(statement, &[&number]).await,
            (_, AdvisoryKey::Pair(first, second)) => {
                self.client.query_one(statement, &[&first, &second]).await
            }
        }
    }

    /// A statement, prepared when it is first needed. What gives back is prepared with what takes,
    /// so that giving back is sent the moment it is asked for.
    async fn statement(
        &self,
        verb: Verb,
        key: AdvisoryKey,
        shared: bool,
    ) -> std::result::Result<&Statement, tokio_postgres::Error> {
        if matches!(verb, Verb::Take | Verb::Wait) {
            self.prepared(Verb::Drop, key, shared).await?;
        }
        self.prepared(verb, key, shared).await
    }

    async fn prepared(
        &self,
        verb: Verb,
        key: AdvisoryKey,
        shared: bool,
    ) -> std::result::Result<&Statement, tokio_postgres::Error> {
        let make = || async {
            let pair = matches!(key, AdvisoryKey::Pair(..));
            self.client.prepare(&text(verb, pair, shared, &self.fences)).await
        };
        self.prepared[place(verb, key, shared)].get_or_try_init(make).await
    }

    /// Awaits an answer within the time limit.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Answer<T> {
        match tokio::time::timeout(self.exchange_limit, answer).await {
            Ok(answer) => Ok(answer),
            Err(_) => Err(failure::silent(&self.store, "no answer", self.exchange_limit)),
        }
    }

    fn answered<T>(
        &self,
        answer: std::result::Result<Row, tokio_postgres::Error>,
        read: impl FnOnce(&Row) -> T,
    ) -> Answer<T> {
        let row = match answer {
            Ok(row) => row,
            Err(error) => return Ok(Err(error)),
        };
        if row.get::<_, i32>(0) != self.pid {
            self.end();
            return Err(pooled("another server process answered than the one that began"));
        }
        Ok(Ok(read(&row)))
    }
}

/// Whether a cancellation hit a statement. One that was meant for a wait may come when that is
/// over; then the statement is said once more.
fn is_cancelled(error: &tokio_postgres::Error) -> bool {
    failure::code(error) == Some("57014")
}

/// Where a statement is kept.
fn place(verb: Verb, key: AdvisoryKey, shared: bool) -> usize {
    let pair = matches!(key, AdvisoryKey::Pair(..));
    match verb {
        Verb::Beat => 12,
        verb => verb as usize * 4 + usize::from(pair) * 2 + usize::from(shared),
    }
}

fn fence(row: &Row) -> Option<u64> {
    row.get::<_, Option<i64>>(1).map(|fence| fence.max(0) as u64)
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.max(0) as u64)
}

fn options(timeout_ms: u64) -> String {
    // What a role or a database sets for others must not end a wait or a lock. A session writes
    // nothing that has to survive a crash (`advisory_begin` sees to fences), so it waits for no
    // disk.
    format!(
        "-c idle_session_timeout={timeout_ms} -c client_connection_check_interval={CHECK_MS} \
         {KEEPALIVE} -c synchronous_commit=off -c statement_timeout=0 -c lock_timeout=0"
    )
}

/// `CASE` keeps the order: the fence is taken once the lock is there, and not without it. The
/// clock is read once the fence is there, because a row is made before anything is said of it; a
/// statement's own time is that of its arrival.
fn text(verb: Verb, pair: bool, shared: bool, fences: &str) -> String {
    let shared = if shared { "_shared" } else { "" };
    let key = if pair { "$1::integer, $2::integer" } else { "$1::bigint" };
    match verb {
        Verb::Take => format!(
            "SELECT pg_backend_pid(), \
             CASE WHEN pg_try_advisory_lock{shared}({key}) THEN nextval({fences}) END"
        ),
        Verb::Wait => format!(
            "SELECT pg_backend_pid(), fence, CASE WHEN fence IS NOT NULL \
             THEN date_part('epoch', clock_timestamp() - statement_timestamp()) END \
             FROM (SELECT CASE WHEN pg_advisory_lock{shared}({key})::text = '' \
             THEN nextval({fences}) END AS fence) AS granted"
        ),
        // It is given back by the process that has it, and by no other.
        Verb::Drop => format!("SELECT pg_advisory_unlock{shared}({key})"),
        Verb::Beat => "SELECT pg_backend_pid()".to_owned(),
    }
}

/// What a refused start-up message means.
fn refusal(settings: &Settings, error: Error) -> Error {
    let Error::Store { cause, .. } = &error else { return error };
    if cause.contains("startup parameter") {
        return pooled("it refuses the settings of a session");
    }
    if cause.contains("idle_session_timeout") {
        tracing::debug!(store = settings.store, "the server has no idle_session_timeout");
        return Error::Unsupported {
            engine: ENGINE,
            what: "work with a server older than PostgreSQL 14, which has no \
                   idle_session_timeout",
            advice: "use the lease table (`postgres://`), which needs 12",
        };
    }
    error
}

/// The refusal of a proxy that lends sessions.
pub(super) fn pooled(seen: &'static str) -> Error {
    tracing::debug!(seen, "a pooling proxy is in between");
    Error::Unsupported {
        engine: ENGINE,
        what: "work behind a proxy that pools sessions or transactions, such as PgBouncer: a \
               lock belongs to one session of the server, and there is no telling which one a \
               statement gets",
        advice: "connect to the server itself, or use the lease table (`postgres://`)",
    }
}

/// A session that others use as well.
pub(super) type Shared = Arc<Session>;
