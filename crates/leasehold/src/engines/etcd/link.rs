//! Connections: to each member one on each runtime that uses the store, and which member to ask.
//!
//! A connection is driven by the runtime that opened it. So the keeper, which has a runtime of its
//! own, has its own connections, and a caller who blocks his runtime blocks nobody else. All ask
//! the same member until it fails; then all ask the next. Every request may be repeated, so what
//! one member did not answer is asked of another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream};
use prost::Message;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, Result};

use super::crowd::Crowd;
use super::date;
use super::failure;
use super::mailbox::Mailbox;
use super::settings::Login;
use super::transport;
use super::wire::{LeaseRequest, LeaseResponse, LoginRequest, LoginResponse};
use super::wire::{TxnRequest, TxnResponse, WatchCreate, WatchRequest, WatchResponse};

/// The largest answer: a page of claims with the longest notes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The most members that are asked before a request fails.
const ATTEMPTS_MAX: usize = 3;
/// Who gave up waiting after this long will be better off with another member.
const SUSPECT_AFTER: Duration = Duration::from_millis(150);

/// All connections of a client to a cluster.
pub(super) struct Links {
    members: Vec<Endpoint>,
    login: Option<Login>,
    /// What the last login was answered with, and how often there was one.
    pass: Mutex<(u64, Option<MetadataValue<Ascii>>)>,
    /// The store's address, for errors.
    pub(super) store: String,
    /// How long an answer may take, whichever member it comes from.
    pub(super) answer: Duration,
    /// Which member is asked.
    current: AtomicUsize,
    moved: watch::Sender<usize>,
    /// How many requests may yet take effect although nobody waits for their answers.
    abandoned: AtomicU64,
    desks: Mutex<HashMap<Id, Arc<Desk>>>,
}

/// What a client has on one runtime.
pub(super) struct Desk {
    channels: Vec<OnceLock<Channel>>,
    /// What is sent to each member together.
    crowds: Vec<OnceLock<Arc<Crowd>>>,
    pub(super) mailbox: Mutex<Option<Mailbox>>,
    /// Held by whoever opens the mailbox, so that the others wait for the same one.
    pub(super) opening: tokio::sync::Mutex<()>,
    /// Ends with its runtime.
    pulse: JoinHandle<()>,
}

impl Desk {
    pub(super) fn crowd(&self, member: usize, make: impl FnOnce() -> Arc<Crowd>) -> &Arc<Crowd> {
        self.crowds[member].get_or_init(make)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.pulse.abort();
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Links({})", self.store)
    }
}

/// Notes that a member was too slow for whoever stopped waiting for it.
pub(super) struct Patience<'a> {
    links: &'a Links,
    member: usize,
    since: Instant,
    pub(super) answered: bool,
}

impl<'a> Patience<'a> {
    pub(super) fn new(links: &'a Links, member: usize) -> Self {
        Self { links, member, since: Instant::now(), answered: false }
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.links.abandoned.fetch_add(1, Ordering::AcqRel);
        }
        if !self.answered && self.since.elapsed() >= SUSPECT_AFTER {
            self.links.move_on(self.member);
        }
    }
}

impl Links {
    pub(super) fn new(
        members: Vec<Endpoint>,
        login: Option<Login>,
        store: String,
        answer: Duration,
    ) -> Self {
        // Not everybody on the first: the members share the work of forwarding.
        let first = rand::random_range(0..members.len().max(1));
        Self {
            members,
            login,
            pass: Mutex::default(),
            store,
            answer,
            current: AtomicUsize::new(first),
            moved: watch::Sender::new(first),
            abandoned: AtomicU64::new(0),
            desks: Mutex::default(),
        }
    }

    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    /// Asks the cluster.
    pub(super) async fn ask<Q, A>(&self, path: &'static str, request: &Q) -> Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.try_ask(path, request).await.map_err(|status| self.translate(&status))
    }

    pub(super) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        self.try_ask("/etcdserverpb.KV/Txn", request).await
    }

    /// As `ask`, with what the server said.
    pub(super) async fn try_ask<Q, A>(&self, path: &'static str, request: &Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.in_turn(|member| Box::pin(self.once(member, path, request.clone()))).await
    }

    async fn once<Q, A>(&self, member: usize, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc(member).await?;
        let request = self.dressed(request);
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(request, path, ProstCodec::default()).await?.into_inner())
    }

    /// Asks one member and no other.
    pub(super) async fn ask_member<Q, A>(
        &self,
        member: usize,
        path: &'static str,
        request: &Q,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let asking = self.once(member, path, request.clone());
        match tokio::time::timeout(self.answer, asking).await {
            Ok(answer) => answer,
            Err(_late) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// The date of an answer of one member, if it gives any.
    pub(super) async fn date(&self, member: usize) -> Option<SystemTime> {
        let asking = date::ask(&self.members[member], self.channel(member));
        tokio::time::timeout(self.answer, asking).await.ok().flatten()
    }

    /// Keeps a lease alive; 0 seconds are left of one that is gone.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<i64, Status> {
        self.in_turn(|member| Box::pin(self.keep_alive_by(member, lease))).await
    }

    async fn keep_alive_by(&self, member: usize, lease: i64) -> Result<i64, Status> {
        let mut grpc = self.grpc(member).await?;
        let request = self.dressed(stream::iter([LeaseRequest::of(lease)]));
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = ProstCodec::<LeaseRequest, LeaseResponse>::default();
        let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
        let answer = answers.message().await?;
        answer.map(|answer| answer.ttl).ok_or_else(|| Status::unavailable("no answer"))
    }

    /// Opens a watch, and returns when the server has it: who watches from now on misses nothing.
    pub(super) async fn watch(&self, create: &WatchCreate) -> Result<Watch, Status> {
        self.in_turn(|member| Box::pin(self.watch_by(member, create.clone()))).await
    }

    async fn watch_by(&self, member: usize, create: WatchCreate) -> Result<Watch, Status> {
        let mut grpc = self.grpc(member).await?;
        let (hold, held) = tokio::sync::mpsc::channel::<WatchRequest>(1);
        let request = self.dressed(requests(WatchRequest { create: Some(create) }, held));
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let mut messages = grpc.streaming(request, path, codec).await?.into_inner();
        match messages.message().await? {
            Some(created) if created.created && !created.canceled => {
                Ok(Watch { member, messages, _hold: hold })
            }
            Some(refused) if refused.cancel_reason.contains("permission denied") => {
                Err(Status::permission_denied("etcdserver: permission denied"))
            }
            Some(refused) if refused.compact_revision > 0 => {
                Err(Status::out_of_range("etcdserver: mvcc: revision has been compacted"))
            }
            _ => Err(Status::unavailable("etcdserver: the watch was refused")),
        }
    }

    /// Which member is asked.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// How many requests were given up so far, any of which may yet take effect.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Tells which member is asked, whenever that changes.
    pub(super) fn moves(&self) -> watch::Receiver<usize> {
        self.moved.subscribe()
    }

    pub(super) fn translate(&self, status: &Status) -> Error {
        failure::translate(status, &self.store)
    }

    /// Drops every connection.
    pub(super) fn close(&self) {
        lock(&self.desks).clear();
    }

    /// What there is on this runtime.
    pub(super) fn desk(&self) -> Arc<Desk> {
        let mut desks = lock(&self.desks);
        let runtime = Handle::current();
        if let Some(desk) = desks.get(&runtime.id()) {
            return Arc::clone(desk);
        }
        desks.retain(|_, desk| !desk.pulse.is_finished());
        let channels = self.members.iter().map(|_| OnceLock::new()).collect();
        let crowds = self.members.iter().map(|_| OnceLock::new()).collect();
        let desk = Arc::new(Desk {
            channels,
            crowds,
            mailbox: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            pulse: runtime.spawn(std::future::pending()),
        });
        desks.insert(runtime.id(), Arc::clone(&desk));
        desk
    }

    /// Asks members one after the other until one answers.
    async fn in_turn<'a, A>(
        &'a self,
        ask: impl Fn(usize) -> BoxFuture<'a, Result<A, Status>> + Send + Sync,
    ) -> Result<A, Status> {
        let attempts = self.members.len().min(ATTEMPTS_MAX);
        let limit = self.answer / attempts as u32;
        let mut logins = 0;
        let mut tried = 0;
        loop {
            let member = self.current();
            let pass = lock(&self.pass).0;
            let mut patience = Patience::new(self, member);
            let answer = match tokio::time::timeout(limit, ask(member)).await {
                Ok(answer) => answer,
                Err(_late) => Err(Status::deadline_exceeded("no answer in time")),
            };
            patience.answered = true;
            let status = match answer {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if failure::is_stale_login(&status) && self.login.is_some() && logins < 2 {
                logins += 1;
                match tokio::time::timeout(limit, self.log_in(member, pass)).await {
                    Ok(logged_in) => logged_in?,
                    Err(_late) => return Err(Status::deadline_exceeded("no answer to a login")),
                }
                continue;
            }
            tried += 1;
            if !failure::spoils_member(&status) {
                return Err(status);
            }
            self.abandoned.fetch_add(1, Ordering::AcqRel);
            self.move_on(member);
            if tried >= attempts {
                return Err(status);
            }
        }
    }

    fn move_on(&self, from: usize) {
        let next = (from + 1) % self.members.len();
        let changed =
            self.current.compare_exchange(from, next, Ordering::AcqRel, Ordering::Acquire);
        if changed.is_ok() && next != from {
            self.moved.send_replace(next);
        }
    }

    async fn grpc(&self, member: usize) -> Result<Grpc<Channel>, Status> {
        if self.login.is_some() && lock(&self.pass).1.is_none() {
            self.log_in(member, 0).await?;
        }
        self.bare(member).await
    }

    /// The connection to a member, on this runtime.
    fn channel(&self, member: usize) -> Channel {
        let desk = self.desk();
        let open = || transport::channel(&self.members[member]);
        desk.channels[member].get_or_init(open).clone()
    }

    async fn bare(&self, member: usize) -> Result<Grpc<Channel>, Status> {
        let channel = self.channel(member);
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    /// Logs in, unless somebody else has since this login was found stale.
    async fn log_in(&self, member: usize, stale: u64) -> Result<(), Status> {
        let Some(Login { user, password }) = &self.login else { return Ok(()) };
        if lock(&self.pass).0 > stale {
            return Ok(());
        }
        let request = LoginRequest { name: user.clone(), password: password.reveal().to_owned() };
        let mut grpc = self.bare(member).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let codec = ProstCodec::<LoginRequest, LoginResponse>::default();
        let pass = match grpc.unary(Request::new(request), path, codec).await {
            Ok(answer) => answer.into_inner().token,
            // Without users there is nobody to be.
            Err(status) if failure::is_auth_off(&status) => String::new(),
            Err(status) => return Err(status),
        };
        let pass = pass.parse().map_err(|_| Status::internal("a login that cannot be sent"))?;
        let mut current = lock(&self.pass);
        *current = (current.0 + 1, Some(pass));
        Ok(())
    }

    /// A request with the login, and with the wish not to be kept by a member without a leader.
    fn dressed<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(pass) = lock(&self.pass).1.as_ref().filter(|pass| !pass.is_empty()) {
            metadata.insert("token", pass.clone());
        }
        request
    }
}

/// An open watch. Dropping it closes it.
pub(super) struct Watch {
    /// Who serves it.
    pub(super) member: usize,
    messages: Streaming<WatchResponse>,
    /// The server ends a watch whose requests have ended.
    _hold: tokio::sync::mpsc::Sender<WatchRequest>,
}

impl Watch {
    /// The next message; `None` when the watch is over, for whatever reason.
    pub(super) async fn next(&mut self) -> Option<WatchResponse> {
        match self.messages.message().await {
            Ok(Some(message)) if !message.canceled => Some(message),
            Ok(_) => None,
            Err(status) => {
                tracing::debug!(code = ?status.code(), "a watch broke");
                None
            }
        }
    }
}

fn requests(
    first: WatchRequest,
    more: tokio::sync::mpsc::Receiver<WatchRequest>,
) -> impl Stream<Item = WatchRequest> + Send + 'static {
    stream::unfold((Some(first), more), |(first, mut more)| async move {
        match first {
            Some(first) => Some((first, (None, more))),
            None => more.recv().await.map(|request| (request, (None, more))),
        }
    })
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
