//! The Redis engine: one server, a master behind Sentinels, or a Cluster.
//!
//! A verb is one script call, atomic on the server. An exclusive lease is also the plain string
//! that clients of other libraries respect; who waits, notes and numbers are in companion keys of
//! the same slot. What the keys hold is in `scripts/line.lua`.
//!
//! Exchanges: claim 1, renew 1 for all of a client's claims, release 1 for any number. Whoever
//! holds next is rung through its mailbox by the release itself and need not ask.

mod adrift;
mod amend;
mod answer;
mod bells;
mod clocks;
mod doctor;
mod eviction;
mod failure;
mod feed;
mod keys;
mod link;
mod mailbox;
#[cfg(feature = "redlock")]
mod node;
#[cfg(all(test, feature = "redlock"))]
mod node_tests;
mod notices;
#[cfg(feature = "redlock")]
mod redlock;
mod scripts;
mod settings;
mod shape;
mod strangers;
mod survey;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use futures_util::stream::BoxStream;
use redis::{FromRedisValue, Pipeline, Value};

use crate::clock::remote::Reading;
use crate::clock::{Clock, SystemClock};
use crate::engine::server_alert::{AlertQueue, CheckTimer};
use crate::engine::{
    Administer, Alert, Alerts, Amend, Capabilities, ClaimMany, Convert, Counting, Counts, Engine,
    Event, Eviction, Finding, HolderMessage, HolderMessages, Info, Notice, Page, Parts, Query,
    Resize, Resized, Steal, Totals, Unattended, Wait, WaitNotices, Wake, Watch,
};
use crate::error::{Error, Result};
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Renewal, Standing,
    Token,
};
use crate::rule::line::Refusal;
use crate::rule::name::Name;

use adrift::Adrift;
use answer::{Answer, Odd, hex};
use clocks::StoreClocks;
use eviction::Evictions;
use keys::{Keys, Layout};
use link::{Links, lock};
use scripts::{Call, Script};
use settings::{Settings, WaitFor};

pub(crate) use keys::guard_key;

/// A store in Redis. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Redis {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: Info,
    layout: Layout,
    links: Links,
    adrift: Arc<Adrift>,
    wait_for: Option<WaitFor>,
    /// Leases found expired and not yet told to the store.
    expired: AtomicU64,
    clocks: Mutex<StoreClocks>,
    concern_watch: AlertQueue,
    evictions: Evictions,
    /// When to look at the servers' settings.
    rounds: CheckTimer,
}

impl Redis {
    /// Opens the store at a URL: `redis:`, `rediss:`, `redis+unix:`, `redis+sentinel:` or
    /// `redis+cluster:`.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let settings = Settings::from_url(url.as_ref())?;
        let for_holders = settings.layout.for_holders.clone();
        let links = Links::new(settings.shape, settings.store.clone(), for_holders);
        let (store_id, reading) =
            doctor::greet(&links, &settings.layout, settings.allow_eviction).await?;
        let mut clocks = StoreClocks::default();
        if let Some(reading) = reading {
            // What the clock shows first is no news.
            let _first = clocks.read(0, reading);
        }
        let info = Info {
            engine: "redis",
            store: settings.store,
            store_id,
            can: Capabilities::ALL,
            can_fail: true,
        };
        let (layout, wait_for) = (settings.layout, settings.wait_for);
        let inner = Inner {
            info,
            layout,
            links,
            adrift: Arc::default(),
            wait_for,
            expired: AtomicU64::new(0),
            clocks: Mutex::new(clocks),
            concern_watch: AlertQueue::default(),
            evictions: Evictions::new(settings.allow_eviction),
            rounds: CheckTimer::new(settings.look_every),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// What the store counts time in. Rounded up, so that the store keeps a claim at least as long.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// How much longer than a lease its companion keys live, to tell who it was that expired.
const GRACE_MS: u64 = 600_000;

/// The mailbox of a claim that nobody waits for.
const NOBODY: &str = "00000000000000000000000000000000";

/// Room for the arguments of a claim that has no note.
const CLAIM_BYTES: usize = 512;
/// What the text of a fence needs.
const FENCE_BYTES: usize = 24;

/// What becomes of a claim that holds, but not on enough replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithoutReplicas {
    /// The next in line gets the name.
    GiveBack,
    /// The caller asks again or gives the claim back. If a waiter got the name between two tries to
    /// steal it, the second one would evict that waiter.
    Keep,
}

/// Whether a script answered that the claim holds.
fn is_held(answer: &Value) -> bool {
    let answer = answer::standing(answer.clone(), Duration::ZERO);
    matches!(answer, Ok((Answer::Stands(Standing::Held { .. }), _)))
}

impl Inner {
    /// What an answer says, or the error for one that says nothing.
    fn understood<T>(&self, answer: std::result::Result<T, Odd>) -> Result<T> {
        answer.map_err(|Odd| Error::Store {
            store: self.info.store.clone(),
            cause: "a script gave an answer it never gives; is something rewriting its keys?"
                .into(),
            transient: false,
        })
    }

    /// A call of a script that changes a line and gives out no fence, so far as all are alike.
    fn call(&self, script: &'static Script, keys: &Keys, room: usize) -> Call {
        Call::without_fence(script, keys, room).text(&self.layout.events)
    }

    fn note_expired(&self, count: u64) {
        if count > 0 {
            self.expired.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// An answer about a name showed the clock of the server that gave it.
    fn read_clock(&self, name: &Name, reading: Reading) {
        let slot = self.layout.part(name);
        let trouble = lock(&self.clocks).read(slot, reading);
        if let Some(trouble) = trouble {
            self.concern_watch.tell(&self.info.store, trouble);
        }
    }

    async fn ask(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let keys = self.layout.keys(&claim.key.name)?;
        let mailbox = if claim.join { self.links.mailbox().await? } else { NOBODY.into() };
        let Claim { mode, holder, note, .. } = claim;
        let (units, label, note) = (mode.units(), holder.label(), note.as_str());
        let shortest = if *mode == Mode::Exclusive { 'x' } else { '-' };
        let (capacity, patience) = (mode.capacity(), millis(claim.patience));
        let join = if claim.join { " join" } else { "" };
        let id = hex(&holder.id().0.to_be_bytes());
        let call = Call::new(&scripts::CLAIM, &keys, note.len() + CLAIM_BYTES)
            .text(&self.layout.events)
            .text(hex(claim.key.token.as_bytes()))
            .shown(millis(claim.ttl))
            .shown(millis(claim.ttl) + GRACE_MS)
            .shown(format_args!("{units}\n{id}\n{mailbox}\n{label}\n{note}"))
            .shown(format_args!("{shortest} {units} {capacity} {patience}{join}"));
        let sent = SystemClock.now();
        let answer = self.send_claim(call, &claim.key, WithoutReplicas::GiveBack).await?;
        if let Some(time) = answer::shown_clock(&answer) {
            let received = SystemClock.now();
            self.read_clock(&claim.key.name, Reading { sent, received, time });
        }
        self.standing(claim, answer)
    }

    /// Sends the call that makes a claim. Where replicas count, a grant waits for them.
    async fn send_claim(
        self: &Arc<Self>,
        call: Call,
        key: &ClaimKey,
        without_replicas: WithoutReplicas,
    ) -> Result<Value> {
        let (inner, claimed) = (Arc::clone(self), key.clone());
        let exchange = async move {
            let Some(wait_for) = inner.wait_for else { return inner.links.call(&call).await };
            let (answer, reached) = inner.call_and_wait(&call, wait_for).await?;
            if reached < wait_for.replicas && is_held(&answer) {
                if without_replicas == WithoutReplicas::GiveBack {
                    inner.let_go(&[claimed]).await?;
                }
                return Err(inner.too_few(wait_for, reached));
            }
            Ok(answer)
        };
        self.awaited(vec![key.token], exchange).await
    }

    /// How a claim stands by the answer to it.
    fn standing(&self, claim: &Claim, answer: Value) -> Result<Standing> {
        let (answer, expired) = self.understood(answer::standing(answer, claim.ttl))?;
        self.note_expired(expired);
        match answer {
            Answer::Stands(standing) => Ok(standing),
            Answer::Mismatch(kind) => Err(Refusal::Mismatch(kind).into_error(claim)),
            Answer::Full => Err(Refusal::Full.into_error(claim)),
        }
    }

    /// Awaits the answer to claims, which go on if nobody waits any more.
    async fn awaited(
        &self,
        tokens: Vec<Token>,
        exchange: impl Future<Output = Result<Value>> + Send + 'static,
    ) -> Result<Value> {
        self.adrift.answer(tokens, self.links.in_use(), Box::pin(exchange)).await
    }

    /// Makes claims on several names that nobody uses; all are at one server.
    async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        let plain = claims.iter().all(|claim| claim.mode == Mode::Exclusive);
        if !plain || self.wait_for.is_some() {
            return Ok(None);
        }
        let mut keys = Vec::with_capacity(claims.len());
        for claim in claims {
            keys.push(self.layout.keys(&claim.key.name)?);
        }
        let room = claims.iter().map(|claim| claim.note.as_str().len() + CLAIM_BYTES).sum();
        let call = Call::of_many(&scripts::CLAIM_ALL, &keys, room);
        let mut call = call.text(&self.layout.events);
        for claim in claims {
            let (holder, note) = (&claim.holder, claim.note.as_str());
            let (units, label) = (claim.mode.units(), holder.label());
            let id = hex(&holder.id().0.to_be_bytes());
            call = call
                .text(hex(claim.key.token.as_bytes()))
                .shown(millis(claim.ttl))
                .shown(millis(claim.ttl) + GRACE_MS)
                .shown(format_args!("{units}\n{id}\n{NOBODY}\n{label}\n{note}"));
        }
        let (inner, tokens) = (Arc::clone(self), claims.iter().map(|claim| claim.key.token));
        let exchange = async move { inner.links.call(&call).await };
        let answer = self.awaited(tokens.collect(), exchange).await?;
        let Some(fences) = self.understood(answer::fences(answer))? else { return Ok(None) };
        let held = |(fence, claim): (u64, &Claim)| Standing::Held { fence, remaining: claim.ttl };
        Ok(Some(fences.into_iter().zip(claims).map(held).collect()))
    }

    /// Calls a script, and says how many replicas have what it wrote.
    async fn call_and_wait(&self, call: &Call, wait_for: WaitFor) -> Result<(Value, u64)> {
        // In one exchange, so that both go over the same connection: WAIT is about its writes.
        let mut wait = redis::cmd("WAIT");
        wait.arg(wait_for.replicas).arg(millis(wait_for.at_most));
        for command in [call.command.clone(), call.by_text()] {
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.ignore_errors().add_command(command).add_command(wait.clone());
            let mut answers = self.links.run_all(&pipeline).await?.into_iter();
            let (Some(answer), Some(reached)) = (answers.next(), answers.next()) else {
                return self.understood(Err(Odd));
            };
            let answer = match answer {
                Err(error) if failure::is_unknown_script(&error) => continue,
                answer => answer.map_err(|error| self.links.translate(&error))?,
            };
            let reached = reached.and_then(|value| Ok(u64::from_redis_value(value)?));
            let reached = reached.map_err(|error| self.links.translate(&error))?;
            return Ok((answer, reached));
        }
        self.understood(Err(Odd))
    }

    fn too_few(&self, wait_for: WaitFor, reached: u64) -> Error {
        let wanted = wait_for.replicas;
        Error::Store {
            store: self.info.store.clone(),
            cause: format!("{reached} of {wanted} replicas had the grant in time"),
            transient: true,
        }
    }

    /// Gives claims back; those that are adrift as soon as they are not, without holding up the
    /// others.
    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let late: Vec<bool> = keys.iter().map(|key| self.adrift.has(&key.token)).collect();
        if !late.contains(&true) {
            return self.let_go(keys).await;
        }
        let of = |wanted: bool| -> Vec<ClaimKey> {
            let those = keys.iter().zip(&late).filter(|(_, late)| **late == wanted);
            those.map(|(key, _)| key.clone()).collect()
        };
        let (free, adrift) = (of(false), of(true));
        let settled = async {
            self.adrift.settled(&adrift).await;
            self.let_go(&adrift).await
        };
        let (free, adrift) = join(self.let_go(&free), settled).await;
        let (mut free, mut adrift) = (free?.into_iter(), adrift?.into_iter());
        let next = |late: &bool| if *late { adrift.next() } else { free.next() };
        Ok(late.iter().filter_map(next).collect())
    }

    async fn let_go(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let mut calls = Vec::with_capacity(keys.len());
        for key in keys {
            let keys = self.layout.keys(&key.name)?;
            let call = self.call(&scripts::RELEASE, &keys, CLAIM_BYTES);
            calls.push(call.text(hex(key.token.as_bytes())));
        }
        let mut released = Vec::with_capacity(keys.len());
        for answer in self.links.call_all(&calls).await? {
            let (outcome, expired) = self.understood(answer::released(answer))?;
            self.note_expired(expired);
            released.push(outcome);
        }
        Ok(released)
    }

    /// Takes a name from its holders for a new claim, before those who wait.
    async fn steal(self: &Arc<Self>, claim: &Claim, order: &Eviction) -> Result<Standing> {
        let keys = self.layout.keys(&claim.key.name)?;
        let Claim { mode, holder, note, .. } = claim;
        let (units, label, note) = (mode.units(), holder.label(), note.as_str());
        let id = hex(&holder.id().0.to_be_bytes());
        let room = note.len() + order.reason.len() + order.fences.len() * FENCE_BYTES + CLAIM_BYTES;
        let call = Call::new(&scripts::STEAL, &keys, room)
            .text(&self.layout.events)
            .text(hex(claim.key.token.as_bytes()))
            .shown(millis(claim.ttl))
            .shown(millis(claim.ttl) + GRACE_MS)
            .shown(format_args!("{units}\n{id}\n{NOBODY}\n{label}\n{note}"))
            .text(&order.reason);
        let call = order.fences.iter().fold(call, |call, fence| call.shown(fence));
        let answer = self.send_claim(call, &claim.key, WithoutReplicas::Keep).await?;
        self.standing(claim, answer)
    }

    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        let keys = self.layout.keys(&key.name)?;
        let call = self
            .call(&scripts::KEEP_CLOSED, &keys, CLAIM_BYTES)
            .text(hex(key.token.as_bytes()))
            .shown(millis(stay))
            .shown(millis(stay) + GRACE_MS)
            .text(hex(Token::retired().as_bytes()));
        let (released, expired) =
            self.understood(answer::released(self.links.call(&call).await?))?;
        self.note_expired(expired);
        Ok(released)
    }

    async fn add(&self, counts: &Counts) -> Result<()> {
        let mut pipeline = Pipeline::new();
        let fields = [
            ("acquired", counts.acquired),
            ("released", counts.released),
            ("contended", counts.contended),
            ("expired", counts.expired),
            ("lost", counts.lost),
        ];
        for (field, count) in fields.into_iter().filter(|(_, count)| *count > 0) {
            pipeline.cmd("HINCRBY").arg(&self.layout.totals).arg(field).arg(count);
        }
        if pipeline.is_empty() {
            return Ok(());
        }
        for answer in self.links.run_all(&pipeline).await? {
            answer.map_err(|error| self.links.translate(&error))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for Redis {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let bells = &self.inner.links.bells;
        if claim.join {
            bells.expect(claim.key.token);
        }
        let standing = self.inner.ask(claim).await?;
        if !matches!(standing, Standing::Queued { .. }) {
            bells.forget(&claim.key.token);
        }
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        let wake = match self.inner.links.bells.bell(&key.token) {
            Some(bell) => bell.heard().await,
            None => Wake::Ask,
        };
        // A grant that replicas must have is confirmed by a claim, which waits for them.
        Ok(if self.inner.wait_for.is_some() { Wake::Ask } else { wake })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let inner = &*self.inner;
        let mut calls = Vec::with_capacity(renewals.len());
        for Renewal { key, ttl, patience } in renewals {
            let keys = inner.layout.keys(&key.name)?;
            let call = inner
                .call(&scripts::RENEW, &keys, CLAIM_BYTES)
                .text(hex(key.token.as_bytes()))
                .shown(millis(*ttl))
                .shown(millis(*ttl) + GRACE_MS)
                .shown(millis(*patience));
            calls.push(call);
        }
        // Those that are answered must be told before the caller gives them all up.
        let limit = Renewal::limit(renewals) * 3 / 4;
        let sent = SystemClock.now();
        let answers = inner.links.call_each(&calls, limit).await?;
        let received = SystemClock.now();
        let standing = |(answer, renewal): (Result<Value>, &Renewal)| {
            let answer = inner.understood(answer::renewed(answer?, renewal.ttl))?;
            let (time, answer, expired) = answer;
            inner.read_clock(&renewal.key.name, Reading { sent, received, time });
            inner.note_expired(expired);
            match answer {
                Answer::Stands(standing) => Ok(standing),
                _ => inner.understood(Err(Odd)),
            }
        };
        Ok(answers.into_iter().zip(renewals).map(standing).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let released = self.inner.release(keys).await;
        for key in keys {
            self.inner.links.bells.forget(&key.token);
        }
        released
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        survey::inspect(&self.inner, query).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.links.close();
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        // The nodes of a Cluster have no exchange in common.
        let is_one_server = !self.inner.layout.cluster;
        Parts {
            claim_many: is_one_server.then(|| self.clone() as Arc<dyn ClaimMany>),
            amend: Some(self.clone()),
            convert: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
            alerts: Some(self.clone()),
            watch: Some(self.clone()),
            admin: Some(self.clone()),
            steal: Some(self.clone()),
            counting: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl ClaimMany for Redis {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.inner.claim_all(claims).await
    }
}

#[async_trait]
impl Amend for Redis {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        let amendment = Amendment::note(note.clone());
        amend::amend(&self.inner, key, &amendment).await
    }
}

#[async_trait]
impl Convert for Redis {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        let amendment = Amendment::mode(mode);
        amend::amend(&self.inner, key, &amendment).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        amend::resize(&self.inner, order).await
    }
}

#[async_trait]
impl Unattended for Redis {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.inner.keep_closed(key, stay).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

#[async_trait]
impl WaitNotices for Redis {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        notices::announce(&self.inner, notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        notices::waits_of(&self.inner, holder).await
    }
}

#[async_trait]
impl HolderMessages for Redis {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        self.inner.links.send(message).await
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        self.inner.links.listen().await
    }
}

#[async_trait]
impl Alerts for Redis {
    async fn alerts(&self) -> Vec<Alert> {
        let server_alerts = eviction::server_alerts(&self.inner).await;
        server_alerts.into_iter().map(Alert::Server).collect()
    }
}

#[async_trait]
impl Watch for Redis {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        feed::watch(Arc::clone(&self.inner), query.clone()).await
    }
}

#[async_trait]
impl Administer for Redis {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let inner = &*self.inner;
        let keys = inner.layout.keys(&order.name)?;
        let evicted = if survey::is_broken(inner, &order.name).await? {
            // Nobody can say which of its fences the order names.
            if !order.unreadable {
                return Ok(Vec::new());
            }
            survey::remove(inner, &keys).await?;
            vec![Holder::unreadable()]
        } else {
            let bytes = order.reason.len() + order.fences.len() * FENCE_BYTES;
            let call = inner.call(&scripts::EVICT, &keys, bytes).text(&order.reason);
            let call = order.fences.iter().fold(call, |call, fence| call.shown(fence));
            let answer = inner.links.call(&call).await?;
            let (evicted, expired) = inner.understood(answer::evicted(answer))?;
            inner.note_expired(expired);
            evicted
        };
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        Ok(evicted)
    }

    async fn totals(&self) -> Result<Totals> {
        let inner = &*self.inner;
        self.tally(&Counts::default()).await?;
        let mut question = redis::cmd("HGETALL");
        question.arg(&inner.layout.totals);
        let answer = inner.links.run(&question).await?;
        let sums: std::collections::HashMap<String, u64> =
            inner.understood(FromRedisValue::from_redis_value(answer).map_err(|_| Odd))?;
        let sum = |field: &str| sums.get(field).copied().unwrap_or(0);
        let counts = Counts {
            acquired: sum("acquired"),
            released: sum("released"),
            contended: sum("contended"),
            expired: sum("expired"),
            lost: sum("lost"),
        };
        let mut totals = Totals { counts, ..Totals::default() };
        survey::count(inner, &mut totals).await?;
        Ok(totals)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await
    }
}

#[async_trait]
impl Steal for Redis {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        self.inner.steal(claim, order).await
    }
}

#[async_trait]
impl Counting for Redis {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        let inner = &*self.inner;
        let found = inner.expired.swap(0, Ordering::Relaxed);
        let counts = Counts { expired: counts.expired + found, ..*counts };
        let added = inner.add(&counts).await;
        if added.is_err() {
            inner.note_expired(found);
        }
        added
    }
}
