//! One Redis server as a node of a quorum.
//!
//! A verb is one script call, atomic on the server. What the keys hold is in
//! `scripts/quorum/line.lua`; the lock key is the plain string that other libraries respect.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use redis::Value;

use crate::engine::{Eviction, Finding, HolderMessage, Level, Query, Select, Wake};
use crate::engines::quorum::{GiveWay, Marker, Node, NodeClaim, NodeView, Passport, Reply, Seat};
use crate::error::{Error, Result};
use crate::rule::claim::{Claim, ClaimKey, Holder, Note, Released, Renewal, Token};
use crate::rule::name::Name;

use super::answer::{Odd, Parts, from_hex, hex, holder};
use super::doctor::{self, About, Flushes, finding};
use super::eviction::{self, Evictions};
use super::keys::{BUCKETS, QuorumLayout};
use super::link::Links;
use super::scripts::{Call, Script, quorum as scripts};
use super::strangers;
use super::survey::{scan, scanned};
use super::{CLAIM_BYTES, NOBODY, millis};

/// Lines viewed in one exchange.
const VIEWS_MAX: usize = 200;

/// How many of a name's keys are its line: the lock, and three beside it.
const LINE_KEYS: usize = 4;

/// The most claims in one line, as in `enter.lua`.
const CLAIMS_MAX: usize = 10_000;

/// One server.
#[derive(Debug)]
pub(super) struct RedisNode {
    address: String,
    layout: QuorumLayout,
    links: Links,
    allow_eviction: bool,
    evictions: Evictions,
}

/// How a claim enters a line.
enum Entry {
    Enter { hint: u64 },
    Repair { fence: u64 },
}

impl RedisNode {
    pub(super) fn new(
        address: String,
        layout: QuorumLayout,
        links: Links,
        allow_eviction: bool,
    ) -> Self {
        let evictions = Evictions::new(allow_eviction);
        Self { address, layout, links, allow_eviction, evictions }
    }

    fn understood<T>(&self, answer: std::result::Result<T, Odd>) -> Result<T> {
        answer.map_err(|Odd| Error::Store {
            store: self.address.clone(),
            cause: "a script gave an answer it never gives; is something rewriting its keys?"
                .into(),
            transient: false,
        })
    }

    fn call(&self, script: &'static Script, key: &ClaimKey) -> Result<Call> {
        let keys = self.layout.keys(&key.name)?;
        Ok(Call::new(script, &keys, CLAIM_BYTES).text(hex(key.token.as_bytes())))
    }

    async fn put(&self, claim: &Claim, owner: &Token, rank: u64, entry: Entry) -> Result<Reply> {
        let keys = self.layout.keys(&claim.key.name)?;
        let Claim { holder, note, ttl, patience, .. } = claim;
        let (label, note) = (holder.label(), note.as_str());
        let id = hex(&holder.id().0.to_be_bytes());
        let (hint, mailbox, way) = match entry {
            Entry::Enter { hint } if claim.join => (hint, self.links.mailbox().await?, "join"),
            Entry::Enter { hint } => (hint, NOBODY.into(), "try"),
            Entry::Repair { .. } => (0, NOBODY.into(), "repair"),
        };
        let call = |run_id: &str| {
            let call = Call::new(&scripts::ENTER, &keys, note.len() + CLAIM_BYTES)
                .text(hex(claim.key.token.as_bytes()))
                .text(hex(owner.as_bytes()))
                .shown(format_args!("{rank:020}"))
                .shown(hint)
                .shown(millis(*ttl))
                .shown(millis(*patience))
                .text(mailbox.as_bytes())
                .shown(format_args!("{id}\n{label}\n{note}"))
                .text(way);
            match entry {
                Entry::Enter { .. } => call.text(run_id),
                Entry::Repair { fence } => call.shown(fence),
            }
        };
        let (_, answer) = self.links.call_run(call).await?;
        match self.understood(reply(answer))? {
            Some(reply) => Ok(reply),
            None => Err(Error::Limit { what: "claims in one line", limit: CLAIMS_MAX }),
        }
    }

    async fn told(&self, call: Call) -> Result<Reply> {
        let answer = self.links.call(&call).await?;
        self.understood(reply(answer).and_then(|reply| reply.ok_or(Odd)))
    }

    /// Whether the keys of a name cannot be read.
    async fn is_broken(&self, name: &Name) -> Result<bool> {
        let call = Call::new(&scripts::VIEW, &self.layout.keys(name)?, 0);
        let answer = self.links.call(&call).await?;
        Ok(view(answer, name).is_err())
    }

    /// Whether everything that is answered is on disk. A server that does not say counts as one
    /// that is not.
    async fn is_durable(&self) -> bool {
        let answer = self.links.run(&doctor::flushing_question()).await.ok();
        Flushes::of(answer) == Flushes::Always
    }

    /// The first names asked for, in order.
    async fn names(&self, query: &Query, limit: usize) -> Result<Vec<Name>> {
        if let Select::Name(name) = &query.select {
            return Ok(Some(name.clone()).filter(|name| query.admits(name)).into_iter().collect());
        }
        let pattern = self.layout.pattern(&query.select);
        let mut names = BTreeSet::new();
        let mut cursor = 0;
        loop {
            let answer = self.links.run(&scan(cursor, &pattern)).await?;
            let (next, keys) = self.understood(scanned(answer))?;
            let found = keys.iter().filter_map(|key| self.layout.name_of_line(key));
            for name in found.filter(|name| query.admits(name)) {
                names.insert(name);
                if names.len() > limit {
                    names.pop_last();
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(names.into_iter().collect());
            }
        }
    }
}

#[async_trait]
impl Node for RedisNode {
    fn address(&self) -> &str {
        &self.address
    }

    fn expect(&self, token: Token) {
        self.links.bells.expect(token);
    }

    fn forget(&self, token: &Token) {
        self.links.bells.forget(token);
    }

    async fn bell(&self, token: &Token) -> Wake {
        match self.links.bells.bell(token) {
            Some(bell) => bell.heard().await,
            None => std::future::pending().await,
        }
    }

    async fn enter(&self, claim: &Claim, owner: &Token, rank: u64, hint: u64) -> Result<Reply> {
        self.put(claim, owner, rank, Entry::Enter { hint }).await
    }

    async fn raise(&self, key: &ClaimKey, fence: u64, ttl: Duration) -> Result<Reply> {
        self.told(self.call(&scripts::RAISE, key)?.shown(fence).shown(millis(ttl))).await
    }

    async fn give_way(&self, key: &ClaimKey, order: &GiveWay) -> Result<Reply> {
        let GiveWay { up_to, hint, patience } = order;
        let call = self.call(&scripts::GIVE_WAY, key)?;
        self.told(call.shown(up_to).shown(hint).shown(millis(*patience))).await
    }

    async fn keep(&self, renewals: &[Renewal]) -> Result<Vec<Reply>> {
        let mut calls = Vec::with_capacity(renewals.len());
        for Renewal { key, ttl, patience } in renewals {
            let call = self.call(&scripts::KEEP, key)?;
            calls.push(call.shown(millis(*ttl)).shown(millis(*patience)));
        }
        let answers = self.links.call_all(&calls).await?;
        let replies = answers.into_iter().map(|answer| reply(answer)?.ok_or(Odd));
        self.understood(replies.collect())
    }

    async fn repair(&self, claim: &Claim, owner: &Token, rank: u64, fence: u64) -> Result<Reply> {
        self.put(claim, owner, rank, Entry::Repair { fence }).await
    }

    async fn leave(&self, keys: &[ClaimKey], hint: u64) -> Result<Vec<Released>> {
        let mut calls = Vec::with_capacity(keys.len());
        for key in keys {
            calls.push(self.call(&scripts::LEAVE, key)?.shown(hint));
        }
        let answers = self.links.call_all(&calls).await?;
        self.understood(answers.into_iter().map(released).collect())
    }

    async fn keep_closed(&self, key: &ClaimKey, stay: Duration, new: &Token) -> Result<Released> {
        let call = self.call(&scripts::KEEP_CLOSED, key)?.shown(millis(stay));
        let answer = self.links.call(&call.text(hex(new.as_bytes()))).await?;
        self.understood(released(answer))
    }

    async fn evict(&self, order: &Eviction, hint: u64) -> Result<Option<Holder>> {
        let keys = self.layout.keys(&order.name)?;
        if order.unreadable && self.is_broken(&order.name).await? {
            let mut delete = redis::cmd("DEL");
            for key in keys.iter().take(LINE_KEYS) {
                delete.arg(key);
            }
            self.links.run(&delete).await?;
            return Ok(Some(Holder::unreadable()));
        }
        let vote = order.fences.iter().max().copied().unwrap_or(0);
        let call = Call::new(&scripts::EVICT, &keys, CLAIM_BYTES).text("").shown(hint);
        let call = call.shown(vote).shown(u8::from(order.names(0)));
        let answer = self.links.call(&call).await?;
        self.understood(evicted(answer))
    }

    async fn send(&self, message: &HolderMessage) -> Result<()> {
        self.links.send(message).await
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        self.links.listen().await
    }

    async fn view(&self, query: &Query, limit: usize) -> Result<Vec<NodeView>> {
        let names = self.names(query, limit).await?;
        let mut views = Vec::with_capacity(names.len());
        for names in names.chunks(VIEWS_MAX) {
            let mut calls = Vec::with_capacity(names.len());
            for name in names {
                calls.push(Call::new(&scripts::VIEW, &self.layout.keys(name)?, 0));
            }
            for (answer, name) in self.links.call_all(&calls).await?.into_iter().zip(names) {
                views.push(view(answer, name).unwrap_or_else(|Odd| NodeView {
                    name: name.clone(),
                    foreign: None,
                    claims: Vec::new(),
                    broken: true,
                }));
            }
        }
        Ok(views)
    }

    async fn passport(&self) -> Result<Passport> {
        for about in doctor::about_each(&self.links).await? {
            doctor::accept(&about, self.allow_eviction)?;
        }
        let durable = self.is_durable().await;
        let keys = self.layout.node_keys();
        let call = |_: &str| Call::new(&scripts::PASSPORT, &keys, 0);
        let (run_id, answer) = self.links.call_run(call).await?;
        let (time, marker) = self.understood(marker(answer))?;
        Ok(Passport { time, run_id: run_id.to_string(), durable, marker })
    }

    async fn ceiling(&self) -> Result<u64> {
        let call = Call::new(&scripts::CEILING, &self.layout.node_keys(), 0);
        let call = call.text(QuorumLayout::FENCES).shown(BUCKETS);
        let answer = self.links.call(&call).await?;
        self.understood(number(&answer))
    }

    async fn admit(&self, passport: &Passport, marker: &Marker, floor: u64) -> Result<bool> {
        let before = passport.marker.as_ref().map_or("", |marker| &marker.run_id);
        let keys = self.layout.node_keys();
        let call = |run_id: &str| {
            Call::new(&scripts::ADMIT, &keys, CLAIM_BYTES)
                .text(before)
                .text(&marker.run_id)
                .text(hex(&marker.set_id.to_be_bytes()))
                .shown(marker.nodes)
                .shown(millis(marker.ttl_max))
                .shown(floor)
                .text(QuorumLayout::FENCES)
                .shown(BUCKETS)
                .text(run_id)
        };
        let (_, answer) = self.links.call_run(call).await?;
        Ok(answer == Value::Int(1))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for about in doctor::about_each(&self.links).await? {
            findings.push(doctor::version(&about));
            findings.push(doctor::eviction(&about));
        }
        findings.push(match self.is_durable().await {
            true => finding(
                Level::Good,
                "persistence",
                "append-only file, flushed before every answer".into(),
                "",
            ),
            false => finding(
                Level::Warning,
                "persistence",
                "it may forget by a restart".into(),
                "after a restart it does not vote for as long as the longest ttl; set \
                 `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`",
            ),
        });
        Ok(findings)
    }

    async fn strangers(&self) -> Option<Finding> {
        let servers = self.links.shape.connect_each().await;
        match servers {
            Ok(servers) => {
                strangers::look(&mut servers.into_iter().next()?, self.layout.prefix()).await
            }
            Err(error) => {
                tracing::debug!(%error, "locks of others were not looked for");
                None
            }
        }
    }

    async fn began_to_evict(&self) -> Result<Option<String>> {
        let answer = self.links.run(&eviction::question()).await?;
        let about = self.understood(About::of(answer))?;
        Ok(self.evictions.read(&self.address, &about))
    }

    fn close(&self) {
        self.links.close();
    }
}

fn number(value: &Value) -> std::result::Result<u64, Odd> {
    match value {
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Odd)
        }
        _ => Err(Odd),
    }
}

/// How a claim stands; `None` if the line is full.
fn reply(value: Value) -> std::result::Result<Option<Reply>, Odd> {
    let mut parts = Parts::of(value)?;
    let verdict = parts.text()?;
    let time = parts.number()?;
    let seat = match verdict.as_str() {
        "holds" => Seat::Holds { vote: parts.number()?, remaining: parts.millis()? },
        "waits" => {
            let (ahead, better) = (parts.number()?, parts.number::<u64>()? == 1);
            Seat::Waits { ahead, better, retry_in: parts.millis()? }
        }
        "out" => {
            let (ahead, retry_in) = (parts.number()?, parts.millis()?);
            Seat::Out { ahead, retry_in, by: parts.holder()? }
        }
        "probation" => Seat::Probation,
        "full" => return Ok(None),
        _ => return Err(Odd),
    };
    Ok(Some(Reply { seat, time }))
}

fn released(value: Value) -> std::result::Result<Released, Odd> {
    let mut parts = Parts::of(value)?;
    let (verdict, _time) = (parts.text()?, parts.number::<u64>()?);
    match verdict.as_str() {
        "released" => Ok(Released::Released),
        "expired" => Ok(Released::AlreadyExpired),
        "taken" => Ok(Released::TakenBy(parts.holder()?.ok_or(Odd)?)),
        _ => Err(Odd),
    }
}

fn evicted(value: Value) -> std::result::Result<Option<Holder>, Odd> {
    let mut parts = Parts::of(value)?;
    let (_verdict, _time) = (parts.text()?, parts.number::<u64>()?);
    parts.holder()
}

fn marker(value: Value) -> std::result::Result<(u64, Option<Marker>), Odd> {
    let mut parts = Parts::of(value)?;
    let (time, run_id, set_id) = (parts.number()?, parts.text()?, parts.text()?);
    if run_id.is_empty() {
        return Ok((time, None));
    }
    let set_id = u128::from_str_radix(&set_id, 16).map_err(|_| Odd)?;
    let (nodes, ttl_max) = (parts.number()?, parts.number()?);
    let ttl_max = Duration::from_millis(ttl_max);
    Ok((time, Some(Marker { run_id, set_id, nodes, ttl_max })))
}

fn view(value: Value, name: &Name) -> std::result::Result<NodeView, Odd> {
    let mut parts = Parts::of(value)?;
    let now = parts.number::<u64>()? / 1_000;
    let foreign = parts.optional_millis()?;
    let mut claims = Vec::new();
    while !parts.is_empty() {
        let (entry, vote) = (parts.text()?, parts.text()?);
        let (since, lapses): (u64, u64) = (parts.number()?, parts.number()?);
        let age = Duration::from_millis(now.saturating_sub(since));
        let remaining = Duration::from_millis(lapses.saturating_sub(now));
        claims.push(NodeClaim { vote: vote.parse().ok(), age, remaining, ..claim(&entry)? });
    }
    Ok(NodeView { name: name.clone(), foreign, claims, broken: false })
}

/// A claim in an entry, whose widths are those of `line.lua`.
fn claim(entry: &str) -> std::result::Result<NodeClaim, Odd> {
    let rank = entry.get(..20).and_then(|rank| rank.parse().ok()).ok_or(Odd)?;
    let token = entry.get(20..52).and_then(from_hex).ok_or(Odd)?;
    let mut rest = entry.get(130..).ok_or(Odd)?.splitn(3, '\n');
    let mut next = || rest.next().ok_or(Odd);
    let (id, label, note) = (next()?, next()?, next()?);
    Ok(NodeClaim {
        token: Token::from_bytes(token),
        rank,
        holder: holder(id, label)?,
        note: Note::new(note).map_err(|_| Odd)?,
        vote: None,
        age: Duration::ZERO,
        remaining: Duration::ZERO,
    })
}
