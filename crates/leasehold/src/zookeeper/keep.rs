//! Renewing: one agreed look at whether the claims are there, which proves contact for all of them.
//!
//! A server that is cut off from the others goes on answering for a while, so only what a majority
//! agreed on counts: a transaction that changes nothing, with a check for each claim. Whoever has a
//! handle keeps a claim by taking up its session for a moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimKey, Renewal, Standing};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::name::Name;

use super::Inner;
use super::ask::{Kept, RETRY_IN, modes, recover};
use super::book::Record;
use super::detail::Detail;
use super::leave::{self, failed};
use super::nodes::{Attempt, Ours, holds, ttl_stem};
use super::pool::timeout_for;
use super::read::{Lineup, claim_acl, make};
use super::session::Session;
use super::waits::{self, Stands};
use super::wire::{Part, Request, Sort, Stat, code};

/// How often something is tried when others change the same.
const ROUNDS_MAX: usize = 16;
/// Checks in one transaction: some twenty kilobytes in the servers' logs.
const CHECKS_MAX: usize = 200;

/// A claim that is to be renewed, and where it is among those asked for.
struct Case<'a> {
    at: usize,
    renewal: &'a Renewal,
    record: Record,
}

pub(super) async fn renew(inner: &Inner, renewals: &[Renewal]) -> Result<Vec<Standing>> {
    let mut standings: Vec<Option<Standing>> = vec![None; renewals.len()];
    let mut groups: HashMap<i64, Vec<Case<'_>>> = HashMap::new();
    for (at, renewal) in renewals.iter().enumerate() {
        match find(inner, &renewal.key).await? {
            Some(record) => {
                groups.entry(record.ours.session).or_default().push(Case { at, renewal, record });
            }
            None => standings[at] = Some(visit(inner, &renewal.key, renewal.ttl).await?),
        }
    }
    for cases in groups.into_values() {
        let mut cases = cases;
        while !cases.is_empty() {
            let rest = cases.split_off(cases.len().min(CHECKS_MAX));
            renew_some(inner, cases, &mut standings).await?;
            cases = rest;
        }
    }
    let out = || Standing::Out { ahead: 0, retry_in: Duration::ZERO, by: None };
    Ok(standings.into_iter().map(|standing| standing.unwrap_or_else(out)).collect())
}

/// The record of a claim that this client made, if its session lives.
pub(super) async fn find(inner: &Inner, key: &ClaimKey) -> Result<Option<Record>> {
    let Some(record) = inner.book.get(key) else { return Ok(None) };
    let record = match () {
        () if record.session.has_ended() => None,
        () if record.paths.is_empty() => recover(inner, &record).await?,
        () => Some(record),
    };
    if record.is_none() {
        forget(inner, key);
    }
    Ok(record)
}

fn forget(inner: &Inner, key: &ClaimKey) {
    inner.book.remove(key);
    inner.waits.forget(key);
}

/// Renews claims of one session.
async fn renew_some(
    inner: &Inner,
    mut cases: Vec<Case<'_>>,
    standings: &mut [Option<Standing>],
) -> Result<()> {
    let Some(session) = cases.first().map(|case| Arc::clone(&case.record.session)) else {
        return Ok(());
    };
    let longest = cases.iter().map(|case| case.renewal.ttl).max().unwrap_or_default();
    if cases.iter().any(|case| case.renewal.ttl > case.record.ttl) {
        session.stretch(timeout_for(longest)).await?;
    }
    let sent = SystemClock.now();
    let patience = cases.iter().map(|case| case.renewal.patience).max().unwrap_or_default();
    let waiting = cases.iter().all(|case| !case.record.held);
    // Those who wait need to be kept for their patience, and that may be proven already.
    let kept = match session.proven_until() {
        safe_until if waiting && safe_until >= sent + patience => Kept { sent, safe_until },
        _ => match prove(inner, &session, &mut cases, standings).await? {
            Some(kept) => kept,
            None => return Ok(()),
        },
    };
    let lines = lines_of_waiting(inner, &session, &cases).await?;
    for case in cases {
        let line = lines.get(&case.record.name);
        standings[case.at] = Some(one(inner, case.renewal, case.record, line, kept).await?);
    }
    Ok(())
}

/// Has the ensemble agree that the claims are there; those that are not are answered and taken out.
/// `None` if none is left.
async fn prove(
    inner: &Inner,
    session: &Session,
    cases: &mut Vec<Case<'_>>,
    standings: &mut [Option<Standing>],
) -> Result<Option<Kept>> {
    while !cases.is_empty() {
        let sent = SystemClock.now();
        let checks = cases.iter().map(|case| Request::Check { path: case.record.paths[0].clone() });
        let path = inner.layout.own(&mark(session.id()));
        let now = Request::SetData { path: path.clone(), data: Vec::new(), version: -1 };
        let reply = session.ask(Request::Multi(checks.chain([now]).collect())).await?;
        let parts = inner.parts(&reply)?;
        let missing = parts.iter().position(|part| *part == Part::Failed(code::NO_NODE));
        match missing {
            None => match failed(&parts) {
                code::OK => return Ok(Some(Kept { sent, safe_until: reply.safe_until })),
                error => return Err(inner.refusal(error)),
            },
            Some(index) if index == cases.len() => {
                let (login, store) = (inner.has_login(), &inner.info.store);
                make(session, path, Sort::Ephemeral, Vec::new(), login, store).await?;
            }
            Some(index) => {
                let case = cases.remove(index);
                let Renewal { key, ttl, .. } = case.renewal;
                forget(inner, key);
                // Whoever took it out may not have known of what was beside it.
                leave::delete_beside(inner, &case.record).await?;
                // Whoever has its token may have made it anew.
                standings[case.at] = Some(visit(inner, key, *ttl).await?);
            }
        }
    }
    Ok(None)
}

/// The store's node that a session writes when it renews: others see by it when that was.
pub(super) fn mark(session: i64) -> String {
    format!("session-{session:016x}")
}

/// The lines in which claims wait: what was not heard of them is seen here.
async fn lines_of_waiting(
    inner: &Inner,
    session: &Session,
    cases: &[Case<'_>],
) -> Result<HashMap<Name, Lineup>> {
    let mut sent = HashMap::new();
    for Case { record, .. } in cases {
        if !record.is_settled() && !sent.contains_key(&record.name) {
            let path = inner.layout.line(&record.name);
            sent.insert(record.name.clone(), session.send(Request::Children { path }).await?);
        }
    }
    let mut lines = HashMap::with_capacity(sent.len());
    for (name, read) in sent {
        lines.insert(name, Lineup::new(inner.children(&read.answer().await?)?));
    }
    Ok(lines)
}

/// One claim's answer.
async fn one(
    inner: &Inner,
    renewal: &Renewal,
    mut record: Record,
    line: Option<&Lineup>,
    kept: Kept,
) -> Result<Standing> {
    let key = &renewal.key;
    if renewal.ttl != record.ttl {
        retime(inner, &mut record, renewal.ttl).await?;
    }
    let (mut ahead, was_held) = (0, record.held);
    if let Some(line) = line.filter(|_| !record.is_settled()) {
        let Some(at) = line.place(record.ours) else {
            forget(inner, key);
            return visit(inner, key, renewal.ttl).await;
        };
        ahead = at;
        let before = &line.entries[..at];
        record.held = holds(modes(before), record.mode);
        if record.held && !was_held {
            // Whoever waits need not ask once more.
            waits::ring_held(inner, key);
        } else if !record.held {
            inner.waits.change(key, |wait| {
                wait.place.ahead = before.to_vec();
                wait.place.kept = kept.safe_until >= kept.sent + renewal.patience;
            });
            match waits::stand(inner, key).await? {
                Stands::Holds => record.held = true,
                // A claim that waits for no bell needs none.
                Stands::Behind | Stands::Gone => {}
            }
        }
    }
    let span = if record.held { renewal.ttl } else { renewal.patience };
    let until = SystemClock.now() + span;
    let (held, ttl, ttl_path) = (record.held, record.ttl, record.ttl_path.clone());
    inner.book.change(key, |record| {
        // An event may have told meanwhile that it holds; only what was wrong before is taken back.
        if held != was_held {
            record.held = held;
        }
        record.seen |= held;
        (record.until, record.ttl, record.ttl_path) = (until, ttl, ttl_path);
    });
    Ok(match held {
        true => Standing::Held { fence: record.fence, remaining: kept.remaining(renewal.ttl) },
        false => Standing::Queued { ahead, retry_in: RETRY_IN },
    })
}

/// Says in the store that a claim has another ttl now. Its own node is written only when it is
/// given back, so another beside it says so.
async fn retime(inner: &Inner, record: &mut Record, ttl: Duration) -> Result<()> {
    let line = inner.layout.line(&record.name);
    let path = ttl_path(&line, record, ttl);
    for _ in 0..ROUNDS_MAX {
        let lineup = inner.read_line(&record.session, &record.name).await?;
        let stem = ttl_stem(record.ours);
        let old = lineup.ttl_nodes(&stem).map(|node| format!("{line}/{node}"));
        let deletes = old.map(|path| Request::Delete { path });
        let parts = deletes.chain([ttl_node(inner, path.clone())]).collect();
        let reply = record.session.ask(Request::Multi(parts)).await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => {
                (record.ttl, record.ttl_path) = (ttl, Some(path));
                return Ok(());
            }
            // Somebody with its handle was faster.
            code::NO_NODE | code::NODE_EXISTS => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

fn ttl_path(line: &str, record: &Record, ttl: Duration) -> String {
    format!("{line}/{}-{}ms", ttl_stem(record.ours), ttl.as_millis())
}

fn ttl_node(inner: &Inner, path: String) -> Request {
    let acl = claim_acl(inner.has_login());
    Request::Create { path, data: Vec::new(), acl, sort: Sort::Ephemeral }
}

/// The answer for a claim that is not in its line.
async fn out(inner: &Inner, session: &Session, name: &Name) -> Result<Standing> {
    let lineup = inner.read_line(session, name).await?;
    let by = inner.holder_of_first(session, name, &lineup).await?;
    Ok(Standing::Out { ahead: lineup.entries.len(), retry_in: Duration::ZERO, by })
}

/// A claim that another client made, as it was found in its line.
pub(super) struct Found {
    pub(super) lineup: Lineup,
    pub(super) at: usize,
    pub(super) ours: Ours,
    pub(super) path: String,
    pub(super) data: Vec<u8>,
    stat: Stat,
}

/// Finds a claim by its token, whoever made it.
pub(super) async fn seek(inner: &Inner, reader: &Session, key: &ClaimKey) -> Result<Option<Found>> {
    let lineup = inner.read_line_now(reader, &key.name).await?;
    let attempt = Attempt::of(&key.token);
    let found = lineup
        .entries
        .iter()
        .position(|entry| entry.ours.is_some_and(|ours| ours.attempt == attempt));
    let Some((at, ours)) = found.and_then(|at| Some((at, lineup.entries[at].ours?))) else {
        return Ok(None);
    };
    let path = format!("{}/{}", inner.layout.line(&key.name), lineup.entries[at].node);
    let read = inner.data(reader, path.clone()).await?;
    Ok(read.map(|(data, stat)| Found { lineup, at, ours, path, data, stat }))
}

/// Takes up the session of a claim that was found; `None` if it is gone.
pub(super) async fn take_up(
    inner: &Inner,
    reader: &Session,
    key: &ClaimKey,
    found: &Found,
    ttl: Duration,
) -> Result<Option<Session>> {
    let identity = Detail::decode(&found.data).identity(&key.token, found.ours.session);
    match Session::open(inner.pool.servers(), timeout_for(ttl), Some(identity)).await {
        Ok(session) => Ok(Some(session)),
        Err(error)
            if error.is_transient() && inner.is_gone(reader, &key.name, &found.path).await? =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Keeps a claim that another client made: its session is taken up for a moment, which makes its
/// time start anew.
pub(super) async fn visit(inner: &Inner, key: &ClaimKey, ttl: Duration) -> Result<Standing> {
    let name = &key.name;
    let reader = inner.pool.any().await?;
    let Some(found) = seek(inner, &reader, key).await? else {
        return out(inner, &reader, name).await;
    };
    let sent = SystemClock.now();
    let Some(session) = take_up(inner, &reader, key, &found, ttl).await? else {
        return out(inner, &reader, name).await;
    };
    let Found { lineup, at, ours, path, data, stat } = found;
    let line = inner.layout.line(name);
    // The old words about its ttl make way for a new one; that there is a new one tells the client
    // that made the claim not to end it.
    let stem = ttl_stem(ours);
    let mut parts = vec![Request::Check { path }];
    let old = lineup.ttl_nodes(&stem).map(|node| format!("{line}/{node}"));
    parts.extend(old.map(|path| Request::Delete { path }));
    let (visit, millis) = (rand::random::<u32>(), ttl.as_millis());
    parts.push(ttl_node(inner, format!("{line}/{stem}-visit-{visit:08x}-{millis}ms")));
    let reply = session.ask(Request::Multi(parts)).await;
    session.leave();
    let reply = reply?;
    for part in inner.parts(&reply)? {
        match part {
            Part::Failed(code::NO_NODE)
                if inner.read_line_now(&reader, name).await?.place(ours).is_none() =>
            {
                return out(inner, &reader, name).await;
            }
            Part::Failed(error) => return Err(inner.refusal(error)),
            _ => {}
        }
    }
    // If the client that made it lives on, the session is its own again in a moment, with the
    // timeout that it asked for.
    let longer = session.timeout().saturating_sub(timeout_for(Detail::decode(&data).ttl));
    let kept = Kept { sent, safe_until: reply.safe_until - longer };
    let holds = holds(modes(&lineup.entries[..at]), lineup.entries[at].mode);
    Ok(match holds {
        true => {
            let fence = super::create::fence(&stat);
            Standing::Held { fence, remaining: kept.remaining(ttl) }
        }
        false => Standing::Queued { ahead: at, retry_in: RETRY_IN },
    })
}

impl Inner {
    /// Whether a node is not there any more.
    async fn is_gone(&self, session: &Session, name: &Name, path: &str) -> Result<bool> {
        self.read_line_now(session, name).await?;
        Ok(self.data(session, path.to_owned()).await?.is_none())
    }
}
