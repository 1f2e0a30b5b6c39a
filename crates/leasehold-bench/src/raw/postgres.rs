//! PostgreSQL without a lock on top.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use leasehold_testkit::Server;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::{CHANNEL, END, paced};
use crate::Result;
use crate::machine::now;
use crate::stats::Samples;
use crate::work::Work;

/// How long the server may take to notice that a client has gone.
const GONE_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A connection that a task of the present runtime drives.
pub(crate) struct Postgres {
    pub(crate) client: Client,
    driver: JoinHandle<std::result::Result<(), tokio_postgres::Error>>,
}

impl Postgres {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        Ok(Self { client, driver: tokio::spawn(connection) })
    }

    /// Closes the connection at the server too. The driver can do that only while its runtime runs.
    pub(crate) async fn close(self) -> Result<()> {
        drop(self.client);
        Ok(self.driver.await??)
    }
}

/// The time from a NOTIFY until a listener in another process hears it, without a flush.
pub(crate) async fn wake(url: &str, work: Work) -> Result<Samples> {
    let postgres = Postgres::connect(url).await?;
    let client = &postgres.client;
    client.batch_execute("SET synchronous_commit = off").await?;
    let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
    let samples = super::wake(("postgres", url), work, async |word| {
        client.execute(&notify, &[&CHANNEL, &word]).await?;
        Ok(())
    })
    .await?;
    postgres.close().await?;
    Ok(samples)
}

pub(super) async fn listen(url: &str) -> Result<Vec<u64>> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    let (words, mut heard) = tokio::sync::mpsc::channel(1_000);
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                let word = (now(), notification.payload() == END);
                if words.send(word).await.is_err() {
                    return;
                }
            }
        }
    });
    client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
    println!("ready");
    let mut came = Vec::new();
    while let Some((at, false)) = heard.recv().await {
        came.push(at);
    }
    Ok(came)
}

/// The time of a statement that changes one row, without a flush.
pub(crate) async fn statement(url: &str, work: Work) -> Result<Samples> {
    let postgres = Postgres::connect(url).await?;
    let client = &postgres.client;
    client
        .batch_execute(
            "SET synchronous_commit = off;
             CREATE TABLE IF NOT EXISTS bench_one (id int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO bench_one VALUES (1, 0) ON CONFLICT DO NOTHING",
        )
        .await?;
    let update = client.prepare("UPDATE bench_one SET n = n + 1 WHERE id = 1").await?;
    let samples = paced(work, async || {
        client.execute(&update, &[]).await?;
        Ok(())
    })
    .await?;
    postgres.close().await?;
    Ok(samples)
}

/// A session that locks one number with PostgreSQL's own functions.
pub(crate) struct Session {
    postgres: Postgres,
    lock: Statement,
    unlock: Statement,
}

impl Session {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        Self::locking(url, "SELECT pg_advisory_lock(4711)").await
    }

    /// A session that also takes a number of a sequence with each lock that is free.
    pub(crate) async fn fenced(url: &str, sequence: &str) -> Result<Self> {
        let fence = format!("nextval('{sequence}')");
        let lock = format!("SELECT CASE WHEN pg_try_advisory_lock(4711) THEN {fence} END");
        let session = Self::locking(url, &lock).await?;
        session.postgres.client.batch_execute("SET synchronous_commit = off").await?;
        Ok(session)
    }

    async fn locking(url: &str, lock: &str) -> Result<Self> {
        let postgres = Postgres::connect(url).await?;
        let lock = postgres.client.prepare(lock).await?;
        let unlock = postgres.client.prepare("SELECT pg_advisory_unlock(4711)").await?;
        Ok(Self { postgres, lock, unlock })
    }

    pub(crate) async fn lock(&self) -> Result<()> {
        self.postgres.client.query_one(&self.lock, &[]).await?;
        Ok(())
    }

    pub(crate) async fn unlock(&self) -> Result<()> {
        self.postgres.client.query_one(&self.unlock, &[]).await?;
        Ok(())
    }
}

/// How often the server flushed its log. Its processes report that when they end, so all clients
/// must be gone.
pub(crate) fn flushes(server: &Server) -> Result<u64> {
    let begun = Instant::now();
    while connections(server)? > 0 {
        if begun.elapsed() > GONE_LIMIT {
            return Err("a client of PostgreSQL does not go".into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(server.sql("SELECT wal_sync FROM pg_stat_wal")?.parse()?)
}

/// How many clients are connected, without the one that asks.
pub(crate) fn connections(server: &Server) -> Result<u64> {
    let count = "SELECT count(*) FROM pg_stat_activity \
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    Ok(server.sql(count)?.parse()?)
}
