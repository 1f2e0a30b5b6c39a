//! Connections: one for commands and one for bells on each runtime that uses the store.
//!
//! A connection is driven by the runtime that opened it. So the keeper, which has a runtime of its
//! own, has its own connection, and a caller who blocks his runtime blocks nobody else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::{Handle, Id};

use crate::engine::HolderMessage;
use crate::error::Result;

use super::bells::Bells;
use super::failure;
use super::mailbox::Mailbox;
use super::scripts::Call;
use super::shape::{Shape, unreachable};

/// A connection is not used again after somebody gave up waiting for an answer for this long: it
/// may be one whose other end is gone without a word. As short as the shortest wait for a renewal,
/// far longer than a server that lives takes.
const SILENCE_MAX: Duration = Duration::from_millis(50);

/// How often a command follows a slot of a Cluster that has moved. The first answer already makes
/// the driver read the map; another one is needed only if a slot moves again meanwhile.
const REDIRECTS_MAX: u32 = 3;

/// A connection for commands.
#[derive(Clone)]
pub(super) enum Connection {
    One(redis::aio::MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(super) async fn run(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Connection::One(connection) => {
                connection.req_packed_command(command).await?.extract_error()
            }
            Connection::Cluster(connection) => {
                let mut redirects = 0;
                loop {
                    let answer = connection.req_packed_command(command).await;
                    match answer.and_then(Value::extract_error) {
                        // Nothing was done, and the driver has read the map of the slots again.
                        Err(error) if failure::is_moved(&error) && redirects < REDIRECTS_MAX => {
                            redirects += 1;
                        }
                        answer => return answer,
                    }
                }
            }
        }
    }
}

/// All connections of a client to a store.
pub(super) struct Links {
    pub(super) shape: Arc<Shape>,
    /// The store's address, for errors.
    store: String,
    pub(super) bells: Arc<Bells>,
    /// The channel of messages to holders.
    for_holders: String,
    desks: Mutex<HashMap<Id, Arc<Desk>>>,
    /// Whether the run of the server's process is asked for on opening a connection.
    asks_run_id: bool,
}

/// An open connection.
#[derive(Clone)]
struct Open {
    generation: u64,
    connection: Connection,
    /// The run of the server's process at the other end, where it was asked for. A connection
    /// does not survive its server, so it is asked for once.
    run_id: Option<Arc<str>>,
}

/// What a client has on one runtime.
struct Desk {
    shape: Arc<Shape>,
    connection: Mutex<Option<Open>>,
    /// Whether another connection is being opened while the present one is still in use.
    replacing: AtomicBool,
    mailbox: Mutex<Option<Mailbox>>,
    /// Held by whoever opens a connection, so that the others wait for the same one.
    opening: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Links({})", self.store)
    }
}

impl Links {
    pub(super) fn new(shape: Shape, store: String, for_holders: String) -> Self {
        Self {
            shape: Arc::new(shape),
            store,
            bells: Arc::default(),
            for_holders,
            desks: Mutex::default(),
            asks_run_id: false,
        }
    }

    /// Connections that know the run of the process they lead to.
    pub(super) fn with_run_id(shape: Shape, store: String, for_holders: String) -> Self {
        Self { asks_run_id: true, ..Self::new(shape, store, for_holders) }
    }

    /// Runs one command.
    pub(super) async fn run(&self, command: &Cmd) -> Result<Value> {
        self.attempt(command).await.map_err(|error| self.translate(&error))
    }

    pub(super) async fn attempt(&self, command: &Cmd) -> RedisResult<Value> {
        let (desk, open) = self.connection().await?;
        open.run(&desk, command).await
    }

    /// Calls a script that is told the run of the process it is sent to, and returns that run.
    pub(super) async fn call_run(&self, call: impl Fn(&str) -> Call) -> Result<(Arc<str>, Value)> {
        let attempt = async {
            let (desk, open) = self.connection().await?;
            let run_id = open.run_id.clone().unwrap_or_default();
            let call = call(&run_id);
            let answer = match open.run(&desk, &call.command).await {
                // On the same connection, so that it is the same run.
                Err(error) if failure::is_unknown_script(&error) => {
                    open.run(&desk, &call.by_text()).await
                }
                answer => answer,
            };
            answer.map(|answer| (run_id, answer))
        };
        attempt.await.map_err(|error| self.translate(&error))
    }

    /// Runs several commands in one exchange, on a server that is not part of a Cluster.
    pub(super) async fn run_all(&self, pipeline: &Pipeline) -> Result<Vec<RedisResult<Value>>> {
        let count = pipeline.len();
        let attempt = async {
            let (desk, open) = self.connection().await?;
            let generation = open.generation;
            let pending = Pending::begin(Arc::clone(&desk), generation);
            let answers = match open.connection {
                Connection::One(mut one) => one.req_packed_commands(pipeline, 0, count).await,
                Connection::Cluster(mut all) => all.req_packed_commands(pipeline, 0, count).await,
            };
            pending.answered();
            if let Err(error) = &answers {
                desk.drop_spoilt(generation, error);
            }
            answers
        };
        let answers = attempt.await.map_err(|error| self.translate(&error))?;
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }

    /// Calls a script.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        match self.attempt(&call.command).await {
            Err(error) if failure::is_unknown_script(&error) => self.run(&call.by_text()).await,
            answer => answer.map_err(|error| self.translate(&error)),
        }
    }

    /// Calls scripts for several names, all or nothing: for what can be repeated as a whole.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Result<Vec<Value>> {
        if self.shape.is_cluster() {
            // All are sent before a failure counts: what one node refuses, others must still get.
            return self.call_side_by_side(calls, None).await.into_iter().collect();
        }
        self.call_together(calls).await
    }

    /// Calls scripts for several names: in one exchange with one server; side by side in a
    /// Cluster, where a node that is silent for `limit` keeps only its own names' answers.
    pub(super) async fn call_each(
        &self,
        calls: &[Call],
        limit: Duration,
    ) -> Result<Vec<Result<Value>>> {
        if self.shape.is_cluster() {
            return Ok(self.call_side_by_side(calls, Some(limit)).await);
        }
        Ok(self.call_together(calls).await?.into_iter().map(Ok).collect())
    }

    /// The calls are as many as their caller has at once; to send some later would let them wait
    /// for a node that is not theirs.
    async fn call_side_by_side(
        &self,
        calls: &[Call],
        limit: Option<Duration>,
    ) -> Vec<Result<Value>> {
        let mut going = Vec::with_capacity(calls.len());
        for call in calls {
            going.push(self.call_within(call, limit));
        }
        join_all(going).await
    }

    async fn call_within(&self, call: &Call, limit: Option<Duration>) -> Result<Value> {
        let Some(limit) = limit else { return self.call(call).await };
        match tokio::time::timeout(limit, self.call(call)).await {
            Ok(answer) => answer,
            Err(_late) => Err(self.translate(&unreachable("no answer in time"))),
        }
    }

    /// Calls scripts in one exchange with one server.
    async fn call_together(&self, calls: &[Call]) -> Result<Vec<Value>> {
        if let [call] = calls {
            return Ok(vec![self.call(call).await?]);
        }
        let mut found = vec![Value::Nil; calls.len()];
        let mut left: Vec<usize> = (0..calls.len()).collect();
        while !left.is_empty() {
            let mut pipeline = Pipeline::with_capacity(left.len());
            pipeline.ignore_errors();
            for index in &left {
                pipeline.add_command(calls[*index].command.clone());
            }
            let mut unknown = Vec::new();
            for (answer, index) in self.run_all(&pipeline).await?.into_iter().zip(left) {
                match answer {
                    Err(error) if failure::is_unknown_script(&error) => unknown.push(index),
                    answer => found[index] = answer.map_err(|error| self.translate(&error))?,
                }
            }
            // The first of them brings the script along; the others need not.
            left = unknown;
            if !left.is_empty() {
                let first = left.remove(0);
                found[first] = self.run(&calls[first].by_text()).await?;
            }
        }
        Ok(found)
    }

    /// The id of the mailbox on this runtime, which is open when this returns.
    pub(super) async fn mailbox(&self) -> Result<Arc<str>> {
        let desk = self.desk();
        if let Some(id) = desk.mailbox_id() {
            return Ok(id);
        }
        let _turn = desk.opening.lock().await;
        if let Some(id) = desk.mailbox_id() {
            return Ok(id);
        }
        let (shape, bells) = (Arc::clone(&self.shape), Arc::clone(&self.bells));
        let opened = Mailbox::open(shape, bells, self.for_holders.clone()).await;
        let mailbox = opened.map_err(|error| self.translate(&error))?;
        let id = mailbox.id();
        *lock(&desk.mailbox) = Some(mailbox);
        Ok(id)
    }

    /// Hands a message to all clients that listen.
    pub(super) async fn send(&self, message: &HolderMessage) -> Result<()> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.for_holders).arg(message.to_text());
        self.run(&publish).await.map(|_how_many| ())
    }

    /// Messages to holders from the answer on. A mailbox of whatever runtime hears them: another
    /// would be one more connection.
    pub(super) async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        if let Some(messages) = self.listen_by_any() {
            return Ok(messages);
        }
        self.mailbox().await?;
        self.listen_by_any().ok_or_else(|| self.translate(&unreachable("its mailbox is closed")))
    }

    fn listen_by_any(&self) -> Option<BoxStream<'static, HolderMessage>> {
        let desks = lock(&self.desks);
        let mut open = desks.values().filter(|desk| !desk.is_orphaned());
        open.find_map(|desk| lock(&desk.mailbox).as_ref().map(Mailbox::listen))
    }

    /// Drops every connection.
    pub(super) fn close(&self) {
        lock(&self.desks).clear();
    }

    pub(super) fn translate(&self, error: &RedisError) -> crate::error::Error {
        if self.shape.is_cluster() && failure::is_redirect(error) {
            return failure::slot_moves(error, &self.store);
        }
        failure::translate(error, &self.store)
    }

    async fn connection(&self) -> RedisResult<(Arc<Desk>, Open)> {
        let desk = self.desk();
        if let Some(open) = desk.current() {
            return Ok((desk, open));
        }
        let turn = desk.opening.lock().await;
        if let Some(open) = desk.current() {
            drop(turn);
            return Ok((desk, open));
        }
        let mut connection = self.shape.connect().await?;
        let run_id = match self.asks_run_id {
            true => Some(run_id(&mut connection).await?),
            false => None,
        };
        let open = Open { generation: next_generation(), connection, run_id };
        *lock(&desk.connection) = Some(open.clone());
        drop(turn);
        Ok((desk, open))
    }

    /// The connection of this runtime, if it is open.
    pub(super) fn in_use(&self) -> Option<InUse> {
        let desk = self.desk();
        let generation = desk.current()?.generation;
        Some(InUse { desk, generation })
    }

    fn desk(&self) -> Arc<Desk> {
        let mut desks = lock(&self.desks);
        if let Some(desk) = desks.get(&Handle::current().id()) {
            return Arc::clone(desk);
        }
        // Runtimes that ended took the tasks of their mailboxes with them.
        desks.retain(|_, desk| !desk.is_orphaned());
        let desk = desks.entry(Handle::current().id());
        Arc::clone(desk.or_insert_with(|| Arc::new(Desk::new(Arc::clone(&self.shape)))))
    }
}

/// The connection that a request goes out on.
pub(super) struct InUse {
    desk: Arc<Desk>,
    generation: u64,
}

impl InUse {
    /// Whoever waited for an answer gave up.
    pub(super) fn given_up_after(&self, waited: Duration) {
        if waited >= SILENCE_MAX {
            self.desk.drop_connection(self.generation);
        }
    }
}

impl Open {
    async fn run(&self, desk: &Arc<Desk>, command: &Cmd) -> RedisResult<Value> {
        let pending = Pending::begin(Arc::clone(desk), self.generation);
        let answer = self.connection.clone().run(command).await;
        pending.answered();
        if let Err(error) = &answer {
            desk.drop_spoilt(self.generation, error);
        }
        answer
    }
}

/// The run of the server's process that a connection leads to.
async fn run_id(connection: &mut Connection) -> RedisResult<Arc<str>> {
    let told = connection.run(redis::cmd("INFO").arg("server")).await?;
    let told = String::from_redis_value(told)?;
    let run = told.lines().find_map(|line| line.trim_end().strip_prefix("run_id:"));
    Ok(run.unwrap_or_default().into())
}

/// A number for a connection, so that nobody drops another one than he used.
fn next_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Desk {
    fn new(shape: Arc<Shape>) -> Self {
        Self {
            shape,
            connection: Mutex::default(),
            replacing: AtomicBool::new(false),
            mailbox: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    fn current(&self) -> Option<Open> {
        lock(&self.connection).clone()
    }

    fn mailbox_id(&self) -> Option<Arc<str>> {
        lock(&self.mailbox).as_ref().map(Mailbox::id)
    }

    fn is_orphaned(&self) -> bool {
        lock(&self.mailbox).as_ref().is_some_and(Mailbox::is_over)
    }

    fn drop_spoilt(self: &Arc<Self>, generation: u64, error: &RedisError) {
        if failure::spoils_connection(error) {
            self.drop_connection(generation);
        }
    }

    /// Does not use a connection again. That of a Cluster leads to many nodes, of which one has
    /// failed: it stays in use for the others until there is a new one.
    fn drop_connection(self: &Arc<Self>, generation: u64) {
        let mut connection = lock(&self.connection);
        if connection.as_ref().is_none_or(|open| open.generation != generation) {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) if self.shape.is_cluster() => {
                if !self.replacing.swap(true, Ordering::AcqRel) {
                    runtime.spawn(Arc::clone(self).replace(generation));
                }
            }
            _ => *connection = None,
        }
    }

    async fn replace(self: Arc<Self>, generation: u64) {
        match self.shape.connect().await {
            Ok(connection) => {
                let fresh = Open { generation: next_generation(), connection, run_id: None };
                let mut current = lock(&self.connection);
                if current.as_ref().is_some_and(|open| open.generation == generation) {
                    *current = Some(fresh);
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to the Cluster yet"),
        }
        self.replacing.store(false, Ordering::Release);
    }
}

/// An exchange under way. Dropped without an answer, it was given up by whoever waited for it.
struct Pending {
    desk: Arc<Desk>,
    generation: u64,
    since: Instant,
    answered: bool,
}

impl Pending {
    fn begin(desk: Arc<Desk>, generation: u64) -> Self {
        Self { desk, generation, since: Instant::now(), answered: false }
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= SILENCE_MAX {
            self.desk.drop_connection(self.generation);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
