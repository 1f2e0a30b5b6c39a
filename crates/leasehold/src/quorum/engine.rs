//! The engine on top of the nodes: what each verb means to all of them together.
//!
//! All nodes are asked at once, and a majority is enough. A node has a time limit of its own, so
//! one that is dead holds up nobody while a majority lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;

use super::Node;
use super::attempt::{Attempt, Phase, SILENT};
use super::ballot::{Step, majority};
use super::cause::Cause;
use super::clocks::NodeClocks;
use super::leaving::Debt;
use super::probation::Watches;
use crate::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Mode, Released, Renewal, Standing,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::concern::{ConcernWatch, Rounds};
use crate::engine::{
    Bump, Bumped, Capabilities, Concern, Counts, Engine, Event, Eviction, Finding, Info, Notice,
    Page, Query, Resize, Resized, Totals, Wait, Wake,
};
use crate::error::{Config, Error, Invalid, Result};

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
    pub(super) concern_watch: ConcernWatch,
    /// When to look at the nodes' settings.
    pub(super) rounds: Rounds,
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
    many: false,
    ttl_per_claim: true,
    detach: true,
    across_processes: true,
    watch: false,
    evict: true,
    tally: false,
    deadlocks: false,
    amend: false,
    convert: false,
    resize: false,
    epochs: false,
};

impl Quorum {
    /// Connects to the nodes. A majority of them must answer; all of them, if the set is new.
    pub async fn open(nodes: Vec<Arc<dyn Node>>, settings: Settings) -> Result<Self> {
        let mut inner = Inner {
            info: Info {
                engine: "redlock",
                store: settings.store.clone(),
                store_id: 0,
                can: CAN,
                can_fail: true,
            },
            rounds: Rounds::new(settings.look_every),
            settings,
            clocks: Mutex::new(NodeClocks::new(nodes.len())),
            concern_watch: ConcernWatch::default(),
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
    /// Waiting claims are numbered anew at each attempt, so nothing of them can be seen again.
    fn keeps_no_line(&self) -> Error {
        Error::Config(Config::Unsupported {
            engine: "redlock",
            what: "find deadlocks",
            advice: "give waits a time limit",
        })
    }

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
                let store = self.nodes[node].address().to_owned();
                Err(Error::Unreachable { store, cause: SILENT.into() })
            }
        }
    }

    /// The error that names each node and its cause.
    pub(super) fn no_majority(&self, causes: Vec<Cause>) -> Error {
        let named = self.nodes.iter().map(|node| node.address().to_owned());
        Error::NoMajority { store: self.info.store.clone(), causes: named.zip(causes).collect() }
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

    fn check(&self, claim: &Claim) -> Result<()> {
        if claim.mode != Mode::Exclusive {
            return Err(Error::Config(Config::Unsupported {
                engine: "redlock",
                what: "share a name or count permits",
                advice: "use an exclusive claim, or another engine",
            }));
        }
        self.check_ttl(claim.ttl)
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
                    return Ok(Standing::Queued { ahead: state.ballot.ahead(), retry_in });
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
        self.inner.check(claim)?;
        self.inner.ask(claim).await
    }

    async fn claim_all(&self, _claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        Ok(None)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        let Some(attempt) = self.inner.attempt(key) else { return Ok(Wake::Ask) };
        let Step::Won { fence, kept_until } = self.inner.drive(&attempt, false).await else {
            return Ok(Wake::Ask);
        };
        // Whoever waits counts from its last heartbeat, which not every node may have heard.
        let promised_until = attempt.state().promised_until;
        Ok(if kept_until >= promised_until { Wake::Holds { fence } } else { Wake::Ask })
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

    fn release_now(&self, _key: &ClaimKey) -> Option<Released> {
        None
    }

    async fn amend(&self, _key: &ClaimKey, _amendment: &Amendment) -> Result<Amended> {
        // Nodes that were out of reach would go on showing what was, and be believed by whoever
        // asks a majority with them in it.
        Err(Error::Config(Config::Unsupported {
            engine: "redlock",
            what: "change a claim that holds",
            advice: "release it and claim again",
        }))
    }

    async fn resize(&self, _order: &Resize) -> Result<Resized> {
        Err(Error::Config(Config::Unsupported {
            engine: "redlock",
            what: "keep permits",
            advice: "use another store for semaphores",
        }))
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        // What the store drops before its time is found by the next renewal.
        std::future::pending().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        self.inner.concerns().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.inner.inspect(query).await
    }

    async fn announce(&self, _notice: &Notice) -> Result<()> {
        Err(self.inner.keeps_no_line())
    }

    async fn waits_of(&self, _holder: HolderId) -> Result<Vec<Wait>> {
        Err(self.inner.keeps_no_line())
    }

    async fn watch(&self, _query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        Err(Error::Config(Config::Unsupported {
            engine: "redlock",
            what: "tell events",
            advice: "look at the lines instead",
        }))
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let inner = &*self.inner;
        let hint = inner.hint(SystemClock.now(), 0);
        let evict = |node: usize| inner.in_time(node, inner.nodes[node].evict(&order.name, hint));
        let answers = join_all((0..inner.nodes.len()).map(evict)).await;
        if answers.iter().flatten().count() < inner.majority() {
            let cause = |answer: &Result<Option<Holder>>| match answer {
                Ok(_) => Cause::Granted,
                Err(error) => super::attempt::cause(error),
            };
            return Err(inner.no_majority(answers.iter().map(cause).collect()));
        }
        let mut evicted: Vec<Holder> = Vec::new();
        for holder in answers.into_iter().flatten().flatten() {
            if !evicted.contains(&holder) {
                evicted.push(holder);
            }
        }
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        Ok(evicted)
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        order.by_the_clock(self.inner.info.engine)
    }

    async fn tally(&self, _counts: &Counts) -> Result<()> {
        Ok(())
    }

    async fn totals(&self) -> Result<Totals> {
        self.inner.totals().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.vet_all();
        self.inner.examine().await
    }

    async fn install(&self) -> Result<()> {
        Ok(())
    }

    fn schema(&self) -> &'static str {
        ""
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
}
