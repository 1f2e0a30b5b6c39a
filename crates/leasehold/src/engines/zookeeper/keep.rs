//! Renewing: one agreed look at whether the claims are there, which proves contact for all of them.
//!
//! A server that is cut off from the others goes on answering for a while, so only what a majority
//! agreed on counts: a transaction with a check for each claim, which changes nothing but the mark.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Place, Renewal, Standing};
use crate::rule::name::Name;

use super::Inner;
use super::ask::{Kept, RETRY_IN, modes, recover};
use super::book::{Record, Stay};
use super::closing::closed;
use super::leave::{self, failed};
use super::link;
use super::mark;
use super::nodes::{holds, ttl_stem};
use super::pool::timeout_for;
use super::read::{Lineup, claim_acl};
use super::session::Session;
use super::visit::visit;
use super::waits::{self, Stands};
use super::wire::{Part, Request, Sort, code};

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
    let _asked: Vec<_> = renewals.iter().map(|renewal| inner.book.ask(&renewal.key)).collect();
    let mut standings: Vec<Option<Standing>> = vec![None; renewals.len()];
    let mut groups: HashMap<i64, Vec<Case<'_>>> = HashMap::new();
    for (at, renewal) in renewals.iter().enumerate() {
        let key = &renewal.key;
        let known = inner.book.get(key);
        let over = known.filter(|record| record.session.has_ended() || record.ending);
        if let Some(record) = over {
            // Whatever the ensemble has of it yet is not ours any more, and not taken up again. The
            // sweep removes it, or the claim itself when it is made again.
            if !record.ending && !record.session.was_given_up() {
                forget(inner, &record.stay);
            }
            standings[at] = Some(out(inner, &*inner.pool.any().await?, &key.name).await?);
            continue;
        }
        match find(inner, key).await? {
            Some(record) => {
                groups.entry(record.ours.session).or_default().push(Case { at, renewal, record });
            }
            None => standings[at] = Some(visit(inner, key, renewal.ttl).await?),
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
    let stay = record.stay.clone();
    let record = match () {
        () if record.session.has_ended() => None,
        () if record.paths.is_empty() => recover(inner, &record).await?,
        () => Some(record),
    };
    if record.is_none() {
        forget(inner, &stay);
    }
    Ok(record)
}

/// Forgets a stay of a claim whose session is over for this client.
///
/// If the client gave the session up, the ensemble may still have it: a server that was away gives
/// each session its whole time again. What is left of the claim is removed then. Otherwise another
/// claim that is kept on that session would keep this one too, and nobody could take the name.
pub(super) async fn abandon(inner: &Inner, record: &Record) -> Result<()> {
    if record.session.was_given_up() {
        leave::remove_left(inner, record).await?;
    }
    forget(inner, &record.stay);
    Ok(())
}

/// Forgets a stay of a claim that is over.
pub(super) fn forget(inner: &Inner, stay: &Stay) {
    inner.book.remove(stay);
    inner.waits.end(stay);
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
        mark::tell_longer(inner, &session).await?;
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
    // Before the lines are read: what they do not tell, another connection will.
    let times = session.times();
    let lines = lines_to_read(inner, (&session, times), &cases).await?;
    for case in cases {
        let line = lines.get(&case.record.name).map(|line| (line, times));
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
        let (timeout, now) = (session.timeout(), mark::written(inner, session));
        let reply = session.ask(Request::Multi(checks.chain([now]).collect())).await?;
        let parts = inner.parts(&reply)?;
        let missing = parts.iter().position(|part| *part == Part::Failed(code::NO_NODE));
        match missing {
            None => match failed(&parts) {
                code::OK => {
                    session.note_told(timeout);
                    if session.timeout() > timeout {
                        // It grew meanwhile, and this may have been written over what told so.
                        continue;
                    }
                    return Ok(Some(Kept { sent, safe_until: reply.safe_until }));
                }
                error => return Err(inner.refusal(error)),
            },
            Some(index) if index == cases.len() => mark::begin(inner, session).await?,
            Some(index) => {
                let case = cases.remove(index);
                let Renewal { key, ttl, .. } = case.renewal;
                forget(inner, &case.record.stay);
                // Whoever took it out may not have known of what was beside it.
                leave::delete_beside(inner, &case.record).await?;
                // Whoever has its token may have made it anew.
                standings[case.at] = Some(visit(inner, key, *ttl).await?);
            }
        }
    }
    Ok(None)
}

/// The lines in which claims wait: what was not heard of them is seen here. Also those of leases,
/// once for each connection: another client that closed one by its handle cut the one before.
async fn lines_to_read(
    inner: &Inner,
    (session, times): (&Session, u64),
    cases: &[Case<'_>],
) -> Result<HashMap<Name, Lineup>> {
    let mut sent = HashMap::new();
    for Case { record, .. } in cases {
        let is_needed = !record.is_settled() || record.looked != times;
        if is_needed && !sent.contains_key(&record.name) {
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
    line: Option<(&Lineup, u64)>,
    kept: Kept,
) -> Result<Standing> {
    let (key, stay) = (&renewal.key, record.stay.clone());
    if let Some((line, times)) = line {
        if line.is_closed(record.ours) {
            closed_elsewhere(inner, &record, line);
            return out(inner, &record.session, &record.name).await;
        }
        record.looked = times;
    }
    let line = line.map(|(line, _)| line);
    if renewal.ttl != record.ttl {
        retime(inner, &mut record, renewal.ttl).await?;
    }
    let (mut ahead, was_held) = (0, record.held);
    if let Some(line) = line.filter(|_| !record.is_settled()) {
        let Some(at) = line.place(record.ours) else {
            forget(inner, &stay);
            return visit(inner, key, renewal.ttl).await;
        };
        ahead = at;
        let before = &line.entries[..at];
        record.held = holds(modes(before), record.mode);
        if record.held && !was_held {
            // Whoever waits need not ask once more.
            waits::ring_held(inner, &stay);
        } else if !record.held {
            inner.waits.change(&stay, |wait| {
                wait.place.ahead = before.to_vec();
                wait.place.kept = kept.safe_until >= kept.sent + renewal.patience;
            });
            match waits::stand(inner, &stay).await? {
                Stands::Holds => record.held = true,
                // A claim that waits for no bell needs none.
                Stands::Behind | Stands::Gone => {}
            }
        }
    }
    let span = if record.held { renewal.ttl } else { renewal.patience };
    let until = SystemClock.now() + span;
    let (held, ttl, ttl_path) = (record.held, record.ttl, record.ttl_path.clone());
    let (mut lasts, looked) = (renewal.ttl, record.looked);
    let is_there = inner.book.change(&stay, |record| {
        // An event may have told meanwhile that it holds; only what was wrong before is taken back.
        if held != was_held {
            record.held = held;
        }
        record.seen |= held;
        if record.until > until {
            // A renewal with a shorter ttl does not make it end sooner.
            lasts = record.until.since(kept.sent);
        } else {
            record.until = until;
        }
        (record.ttl, record.ttl_path, record.looked) = (ttl, ttl_path, looked);
    });
    if !is_there {
        // Its stay ended while this was asked; the claim may have another one.
        return out(inner, &record.session, &record.name).await;
    }
    Ok(match held {
        true => Standing::Held { fence: record.fence, remaining: kept.remaining(lasts) },
        false => Standing::Queued { place: Place::new(record.fence), ahead, retry_in: RETRY_IN },
    })
}

/// Another client gave a claim back by its handle, and keeps its name closed.
pub(super) fn closed_elsewhere(inner: &Inner, record: &Record, line: &Lineup) {
    let stem = ttl_stem(record.ours);
    let stay = line.ttl_nodes(&stem).find_map(leave::ttl_of);
    closed(inner, record, stay.unwrap_or(record.ttl));
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
        let Some(parts) = link::ask(inner, &record.session, parts).await? else { continue };
        match failed(&parts) {
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

pub(super) fn ttl_node(inner: &Inner, path: String) -> Request {
    let acl = claim_acl(inner.has_login());
    Request::Create { path, data: Vec::new(), acl, sort: Sort::Ephemeral }
}

/// The answer for a claim that is not in its line.
pub(super) async fn out(inner: &Inner, session: &Session, name: &Name) -> Result<Standing> {
    let lineup = inner.read_line(session, name).await?;
    let by = inner.holder_of_first(session, name, &lineup).await?;
    Ok(Standing::Out { ahead: lineup.entries.len(), retry_in: Duration::ZERO, by })
}
