//! A lock in PostgreSQL that workers pass round by hand, with the least SQL that can do it.
//!
//! One row names the holder. A holder that gives the lock up writes the next one's number there,
//! with a flush, and notifies that one's process, without a flush. It sends both statements
//! together. Each holder knows the next one, because they take turns in a fixed order, each time in
//! another process. There is no line, no fence and no time to live, so no worker may come, leave or
//! die. A lock that has those costs more, and the difference is their price.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::postgres::Postgres;
use crate::Result;

/// The row, and a sequence that numbers the processes of a round as they come.
pub(crate) const TABLES: &str = "
    CREATE TABLE bench_relay (id int PRIMARY KEY, holder bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO bench_relay VALUES (1, 0);
    CREATE SEQUENCE bench_relay_seats";
const SEAT: &str = "SELECT nextval('bench_relay_seats') - 1";
const PASS: &str = "UPDATE bench_relay SET holder = $1 WHERE id = 1";
const RING: &str = "SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)";

/// One process in the round.
pub(crate) struct Relay {
    postgres: Postgres,
    /// Kept so that the connection that listens stays open.
    _ear: Client,
    pass: Statement,
    ring: Statement,
    seat: usize,
    processes: usize,
    bells: Vec<Arc<Notify>>,
    /// Set in the first process: no worker passes the lock to the very first.
    unbegun: Cell<bool>,
}

impl Relay {
    /// Takes a number among `processes`, which each have `tasks` tasks.
    pub(crate) async fn open(url: &str, processes: usize, tasks: usize) -> Result<Self> {
        let postgres = Postgres::connect(url).await?;
        let client = &postgres.client;
        let seats: i64 = client.query_one(SEAT, &[]).await?.get(0);
        let seat = usize::try_from(seats)? % processes;
        let (pass, ring) = (client.prepare(PASS).await?, client.prepare(RING).await?);
        let bells: Vec<Arc<Notify>> = (0..tasks).map(|_| Arc::default()).collect();
        let ear = listen(url, seat, bells.clone()).await?;
        let unbegun = Cell::new(seat == 0);
        Ok(Self { postgres, _ear: ear, pass, ring, seat, processes, bells, unbegun })
    }

    /// Waits until another worker passes the lock to this task.
    pub(crate) async fn take(&self, task: usize) {
        if task > 0 || !self.unbegun.take() {
            self.bells[task].notified().await;
        }
    }

    /// Passes the lock to the same task of the next process. The last process passes it to the next
    /// task of the first one.
    pub(crate) async fn pass(&self, task: usize) -> Result<()> {
        let last = self.seat + 1 == self.processes;
        let seat = if last { 0 } else { self.seat + 1 };
        let task = (task + usize::from(last)) % self.bells.len();
        let holder = (task * self.processes + seat) as i64;
        let (channel, word) = (channel(seat), task.to_string());
        let client = &self.postgres.client;
        let passed = async { client.execute(&self.pass, &[&holder]).await };
        let rung = async { client.execute(&self.ring, &[&channel, &word]).await };
        tokio::try_join!(passed, rung)?;
        Ok(())
    }
}

fn channel(seat: usize) -> String {
    format!("bench_relay_{seat}")
}

/// Rings the bell of the task that each word names.
async fn listen(url: &str, seat: usize, bells: Vec<Arc<Notify>>) -> Result<Client> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(AsyncMessage::Notification(word)) = message
                && let Some(bell) =
                    word.payload().parse().ok().and_then(|task: usize| bells.get(task))
            {
                bell.notify_one();
            }
        }
    });
    client.batch_execute(&format!("LISTEN {}", channel(seat))).await?;
    Ok(client)
}
