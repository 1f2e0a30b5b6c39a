//! The engine on top of the nodes: what each verb means to all of them together.
//!
//! All nodes are asked at once, and a majority is enough. A node has a time limit of its own, so
//! one that is dead holds up nobody while a majority lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, ready};
use futures_util::stream::{self, BoxStream, StreamExt};

use super::Node;
use super::attempt::{Attempt, Phase};
use super::ballot::{Step, majority};
use super::clocks::NodeClocks;
use super::leaving::Debt;
use super::probation::Watches;
use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::server_alert::{AlertQueue, CheckTimer};
use crate::engine::{
    Administer, Alert, Alerts, Capabilities, Engine, Eviction, Finding, HolderMessage,
    HolderMessages, Info, Page, Parts, Query, Totals, Unattended, Wake,
};
use crate::error::{Error, Invalid, NodeFailure, NodeReason, Result, UnreachableReason};
use crate::rule::claim::{Claim, ClaimKey, Holder, Released, Renewal, Standing};

/// What all clients of a quorum have to agree on, and how this one asks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The store's address without credentials.
    pub store: String,
    /// The longest ttl: what a node that forgot has to wait for.
    pub ttl_max: Duration,
    /// How long a node may take for its answer.
    pub node_timeout: Duration,
    /// How often to look whether the nodes' settings were changed.
    pub look_every: Duration,
}

/// A store made of independent nodes, of which a majority makes a lease.
#[derive(Debug, Clone)]
pub struct Quorum {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) info: Info,
    pub(super) settings: Settings,
    pub(super) nodes: Vec<Arc<dyn Node>>,
    clocks: Mutex<NodeClocks>,
    pub(super) concern_watch: AlertQueue,
    /// When to look at the nodes' settings.
    pub(super) rounds: CheckTimer,
    /// The attempts of this client's claims, by what their owners call them.
    attempts: Mutex<HashMap<ClaimKey, Arc<Attempt>>>,
    pub(super) watches: Mutex<Watches>,
    /// What each node was told and did not answer, and has to be told again.
    pub(super) debts: Vec<Arc<Debt>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for debt in &self.debts {
            debt.close();
        }
    }
}

const CAN: Capabilities = Capabilities {
    fifo: false,
    shared: false,
    permits: false,
    ttl_per_claim: true,
    across_processes: true,
    // Each attempt of a claim has a token that only its client knows.
    waits_by_token: false,
};

impl Quorum {
    /// Connects to the nodes. A majority of them must answer; all of them, if the set is new.
    pub async fn of_nodes(nodes: Vec<Arc<dyn Node>>, settings: Settings) -> Result<Self> {
        let mut inner = Inner {
            info: Info {
                engine: "redlock",
                store: settings.store.clone(),
                store_id: 0,
                can: CAN,
                can_fail: true,
            },
            rounds: CheckTimer::new(settings.look_every),
            settings,
            clocks: Mutex::new(NodeClocks::new(nodes.len())),
            concern_watch: AlertQueue::default(),
            attempts: Mutex::default(),
            watches: Mutex::new(Watches::new(nodes.len())),
            debts: nodes.iter().map(|_| Arc::default()).collect(),
            nodes,
        };
        inner.info.store_id = inner.greet().await?;
        let inner = Arc::new(inner);
        inner.vet_all();
        Ok(Self { inner })
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// What to suggest as a vote now.
    pub(super) fn hint(&self, now: Moment, known: u64) -> u64 {
        lock(&self.clocks).hint(now, known)
    }

    pub(super) fn read_clock(&self, node: usize, time: u64, sent: Moment, received: Moment) {
        let trouble = lock(&self.clocks).read(node, time, sent, received);
        if let Some(trouble) = trouble {
            self.concern_watch.tell(self.nodes[node].address(), trouble);
        }
    }

    /// Awaits a node's answer for as long as it may take.
    pub(super) async fn in_time<T>(
        &self,
        node: usize,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.settings.node_timeout, answer).await {
            Ok(answer) => answer,
            Err(_late) => {
                let (store, reason) = (self.nodes[node].address(), UnreachableReason::NoAnswer);
                Err(Error::unreachable(store, reason, reason.to_string()))
            }
        }
    }

    /// The error that names each node and its cause.
    pub(super) fn no_majority(&self, causes: Vec<NodeReason>) -> Error {
        let failed = self.nodes.iter().zip(causes);
        let nodes = failed.map(|(node, reason)| NodeFailure::new(node.address(), reason)).collect();
        Error::NoMajority { store: self.info.store.clone(), nodes }
    }

    pub(super) fn attempt(&self, key: &ClaimKey) -> Option<Arc<Attempt>> {
        lock(&self.attempts).get(key).cloned()
    }

    pub(super) fn enlist(&self, attempt: &Arc<Attempt>) {
        let key = ClaimKey { name: attempt.key.name.clone(), token: attempt.owner };
        lock(&self.attempts).insert(key, Arc::clone(attempt));
    }

    /// Takes an attempt off the list, unless another took its place.
    pub(super) fn strike(&self, attempt: &Arc<Attempt>) {
        let key = ClaimKey { name: attempt.key.name.clone(), token: attempt.owner };
        let mut attempts = lock(&self.attempts);
        if attempts.get(&key).is_some_and(|listed| Arc::ptr_eq(listed, attempt)) {
            attempts.remove(&key);
        }
        drop(attempts);
        for node in &self.nodes {
            node.forget(&attempt.key.token);
        }
    }

    /// A node that forgot waits for the longest ttl, so there must be no longer one.
    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let ttl_max = self.settings.ttl_max;
        match ttl > ttl_max {
            true => Err(Error::Invalid(Invalid::TtlAboveStore { ttl, ttl_max })),
            false => Ok(()),
        }
    }

    /// A new attempt of a claim, which everybody who rings can reach from now on.
    fn begin(&self, claim: &Claim, round: u32, rank: Option<u64>) -> Arc<Attempt> {
        let now = SystemClock.now();
        let rank = rank.unwrap_or_else(|| lock(&self.clocks).time_at(now));
        let attempt = Arc::new(Attempt::new(claim, self.nodes.len(), round, rank));
        for node in &self.nodes {
            node.expect(attempt.key.token);
        }
        self.enlist(&attempt);
        attempt
    }

    async fn ask(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let begun = SystemClock.now();
        let (mut round, mut rank) = (0, None);
        loop {
            let attempt = match self.attempt(&claim.key) {
                Some(attempt) => {
                    self.beat(&attempt, claim).await?;
                    if attempt.phase() == Phase::Over {
                        // Its caller asks for it, so nobody holds by it.
                        self.end(&attempt);
                        continue;
                    }
                    attempt
                }
                None => self.begin(claim, round, rank),
            };
            match self.drive(&attempt, true).await {
                Step::Won { fence, kept_until } => {
                    if kept_until >= begun + claim.ttl {
                        return Ok(Standing::Held { fence, remaining: claim.ttl });
                    }
                    // Kept for as long as a claim that waits, and asked for as a lease.
                    self.beat(&attempt, claim).await?;
                    if let Phase::Held { fence, kept_until } = attempt.phase() {
                        let remaining = kept_until.since(begun).min(claim.ttl);
                        return Ok(Standing::Held { fence, remaining });
                    }
                    // It was won and lost again before its caller was told.
                    self.end(&attempt);
                }
                Step::Taken { by } => {
                    let retry_in = attempt.retry_in(SystemClock.now());
                    let ahead = attempt.state().ballot.ahead().max(1);
                    self.end(&attempt);
                    if by.as_ref() == Some(&claim.holder)
                        && let held @ Standing::Held { .. } = self.adopt(claim).await?
                    {
                        return Ok(held);
                    }
                    return Ok(Standing::Out { ahead, retry_in, by });
                }
                Step::Again { at } => {
                    self.end(&attempt);
                    SystemClock.sleep_until(at).await;
                    (round, rank) = (round + 1, Some(attempt.rank));
                }
                Step::Failed => {
                    self.end(&attempt);
                    return Err(self.failure(&attempt));
                }
                Step::Wait { .. } | Step::Send { .. } => {
                    let retry_in = attempt.retry_in(SystemClock.now());
                    let mut state = attempt.state();
                    state.promised_until = state.promised_until.max(begun + claim.patience);
                    let (place, ahead) = (attempt.place(), state.ballot.ahead());
                    return Ok(Standing::Queued { place, ahead, retry_in });
                }
            }
        }
    }

    /// Asks whether the claim is a lease that was granted to another connection of its owner.
    async fn adopt(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let Claim { key, ttl, patience, .. } = claim;
        let renewal = Renewal { key: key.clone(), ttl: *ttl, patience: *patience };
        let standings = self.renew(&[renewal]).await?;
        let out = Standing::Out { ahead: 0, retry_in: Duration::ZERO, by: None };
        standings.into_iter().next().unwrap_or(Ok(out))
    }

    /// Starts the time of one claim anew at all nodes, and hears how it stands there.
    async fn beat(self: &Arc<Self>, attempt: &Arc<Attempt>, claim: &Claim) -> Result<()> {
        let Claim { key, ttl, patience, .. } = claim;
        let (key, ttl, patience) = (key.clone(), *ttl, *patience);
        if attempt.phase() == Phase::Over {
            return Ok(());
        }
        self.renew(&[Renewal { key, ttl, patience }]).await.map(drop)
    }
}

#[async_trait]
impl Engine for Quorum {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.inner.check_ttl(claim.ttl)?;
        self.inner.ask(claim).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        let Some(attempt) = self.inner.attempt(key) else { return Ok(Wake::Ask) };
        let Step::Won { fence, kept_until } = self.inner.drive(&attempt, false).await else {
            return Ok(Wake::Ask);
        };
        // Whoever waits counts from its last heartbeat, which not every node may have heard.
        let promised_until = attempt.state().promised_until;
        Ok(match kept_until >= promised_until {
            true => Wake::Holds { place: attempt.place(), fence },
            false => Wake::Ask,
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        for renewal in renewals {
            self.inner.check_ttl(renewal.ttl)?;
        }
        self.inner.renew(renewals).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.inner.release(keys).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.inner.inspect(query).await
    }

    async fn close(&self) -> Result<()> {
        for debt in &self.inner.debts {
            debt.close();
        }
        for node in &self.inner.nodes {
            node.close();
        }
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        // Nodes that were out of reach would go on showing what was before a change, and a majority
        // with them in it would be believed. Waiting claims are numbered again at each attempt, so
        // a search for deadlocks could not see one of them twice.
        Parts {
            unattended: Some(self.clone()),
            messages: Some(self.clone()),
            alerts: Some(self.clone()),
            admin: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl Unattended for Quorum {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.inner.check_ttl(stay)?;
        self.inner.keep_closed(key, stay).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(Some(self.inner.settings.ttl_max))
    }
}

#[async_trait]
impl HolderMessages for Quorum {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        let inner = &*self.inner;
        let send = |node: usize| inner.in_time(node, inner.nodes[node].send(message));
        first_error_unless_any(join_all((0..inner.nodes.len()).map(send)).await).map(drop)
    }

    /// The same message from several nodes only makes the holder look more than once.
    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        let inner = &*self.inner;
        let listen = |node: usize| inner.in_time(node, inner.nodes[node].listen());
        let heard = join_all((0..inner.nodes.len()).map(listen)).await;
        let streams = first_error_unless_any(heard)?;
        let ends = |stream: BoxStream<'static, HolderMessage>| {
            stream.map(Some).chain(stream::iter([None])).boxed()
        };
        let all = stream::select_all(streams.into_iter().map(ends));
        // One that ends may have missed a message.
        Ok(all.take_while(|message| ready(message.is_some())).filter_map(ready).boxed())
    }
}

/// What some nodes answered; the first error if none did.
fn first_error_unless_any<T>(answers: Vec<Result<T>>) -> Result<Vec<T>> {
    let mut answered = Vec::new();
    let mut failed = None;
    for answer in answers {
        match answer {
            Ok(answer) => answered.push(answer),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if answered.is_empty() => Err(error),
        _ => Ok(answered),
    }
}

#[async_trait]
impl Alerts for Quorum {
    async fn alerts(&self) -> Vec<Alert> {
        let server_alerts = self.inner.server_alerts().await;
        server_alerts.into_iter().map(Alert::Server).collect()
    }
}

#[async_trait]
impl Administer for Quorum {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let inner = &*self.inner;
        let hint = inner.hint(SystemClock.now(), 0);
        let evict = |node: usize| inner.in_time(node, inner.nodes[node].evict(order, hint));
        let answers = join_all((0..inner.nodes.len()).map(evict)).await;
        let answered = answers.iter().flatten().count();
        if answered < inner.majority() {
            let cause = |answer: &Result<Option<Holder>>| match answer {
                Ok(_) => NodeReason::Granted,
                Err(error) => super::attempt::cause(error),
            };
            return Err(inner.no_majority(answers.iter().map(cause).collect()));
        }
        // What a minority had was no lease.
        let silent = answers.len() - answered;
        let taken: Vec<Holder> = answers.into_iter().flatten().flatten().collect();
        let mut evicted: Vec<Holder> = Vec::new();
        for holder in &taken {
            let nodes = taken.iter().filter(|other| *other == holder).count();
            // A record that was removed at one node is removed.
            let is_gone = nodes + silent >= inner.majority() || holder.is_unreadable();
            if is_gone && !evicted.contains(holder) {
                evicted.push(holder.clone());
            }
        }
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        Ok(evicted)
    }

    async fn totals(&self) -> Result<Totals> {
        self.inner.totals().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.vet_all();
        self.inner.examine().await
    }
}
