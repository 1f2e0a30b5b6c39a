//! Claiming: the node is created and the line read in one go; who waits watches whom it must
//! outlive.
//!
//! A claim whose answer was lost is found again by its attempt, in the session it was made in. The
//! requests of a connection are handled in order. None that makes a claim is handled once a later
//! connection has written the session's link, which `recover` sees to. So a claim that is not found
//! then will not come to be.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, Kind, Result};
use crate::rule::claim::{Claim, Standing};
use crate::rule::line::{CLAIMS_MAX, Refusal};
use crate::seeded::{Seeded, seeded};

use super::Inner;
use super::book::Record;
use super::create::create;
use super::keep::{abandon, forget};
use super::leave;
use super::link;
use super::nodes::{Entry, holds};
use super::read::Lineup;
use super::visit;
use super::waits::{self, Place, Stands, Wait};
use super::wire::{Part, Request, code};

/// How often a claim is tried when the nodes above it go away under it.
const ROUNDS_MAX: usize = 16;
/// When to ask again although no bell rang; the heartbeat looks sooner.
pub(super) const RETRY_IN: Duration = Duration::from_secs(10);

pub(super) async fn claim(inner: &Inner, claim: &Claim) -> Result<Standing> {
    let sent = SystemClock.now();
    let _asked = inner.book.ask(&claim.key);
    if let Some(record) = inner.book.get(&claim.key)
        && let Some(standing) = again(inner, claim, record, sent).await?
    {
        return Ok(standing);
    }
    if !claim.join
        && let Some(out) = is_taken(inner, claim).await?
    {
        return Ok(out);
    }
    for _ in 0..ROUNDS_MAX {
        let sent = SystemClock.now();
        if let Some((record, lineup, safe_until)) = create(inner, claim).await? {
            if lineup.made_elsewhere(&claim.key.token, record.ours.session) {
                // Another client made it already; there is one claim for a token.
                undo(inner, &record).await?;
                match visit::visit(inner, &claim.key, claim.ttl).await? {
                    // That was left of a session which ended, and is gone now.
                    Standing::Out { .. } => continue,
                    standing => return Ok(standing),
                }
            }
            if let Some(refusal) = refusal(claim, &lineup) {
                undo(inner, &record).await?;
                return Err(refusal.into_error(claim));
            }
            let has_others = lineup.has_others_of(record.ours, &record.paths);
            if has_others && !seeded(Seeded::SweepOfAnotherStay) {
                // The claim was in line already, and nobody knew. The first of its places counts.
                delete_nodes(inner, &record).await?;
                match recover(inner, &record).await? {
                    Some(found) => match again(inner, claim, found, sent).await? {
                        Some(standing) => return Ok(standing),
                        None => continue,
                    },
                    None => {
                        forget(inner, &record.stay);
                        continue;
                    }
                }
            }
            let kept = Kept { sent, safe_until };
            if let Some(standing) = settle(inner, claim, record, lineup, (kept, true)).await? {
                return Ok(standing);
            }
        }
    }
    Err(Error::Store {
        store: inner.info.store.clone(),
        cause: format!("the line of `{}` changes too fast to join it", claim.key.name),
        transient: true,
    })
}

/// Whether a claim that does not join would have to.
async fn is_taken(inner: &Inner, claim: &Claim) -> Result<Option<Standing>> {
    let (name, session) = (&claim.key.name, inner.session(claim.ttl).await?);
    let lineup = inner.read_line(&session, name).await?;
    if lineup.made_elsewhere(&claim.key.token, session.id()) {
        let standing = visit::visit(inner, &claim.key, claim.ttl).await?;
        // What is left of a session that ended is gone by now.
        if !matches!(standing, Standing::Out { .. }) {
            return Ok(Some(standing));
        }
    } else if holds(modes(&lineup.entries), claim.mode) {
        return Ok(None);
    }
    // The server may be behind: who is refused was refused by the latest.
    let lineup = inner.read_line_now(&session, name).await?;
    if let Some(refusal) = refusal(claim, &lineup) {
        return Err(refusal.into_error(claim));
    }
    if holds(modes(&lineup.entries), claim.mode) {
        return Ok(None);
    }
    let by = inner.holder_of_first(&session, name, &lineup).await?;
    Ok(Some(Standing::Out { ahead: lineup.entries.len(), retry_in: RETRY_IN, by }))
}

pub(super) fn modes(entries: &[Entry]) -> impl Iterator<Item = crate::rule::claim::Mode> + '_ {
    entries.iter().map(|entry| entry.mode)
}

/// Why the line does not take this claim.
fn refusal(claim: &Claim, lineup: &Lineup) -> Option<Refusal> {
    let kind = Kind::from(claim.mode);
    match lineup.entries.first().map(|first| Kind::from(first.mode)) {
        Some(in_force) if in_force != kind => Some(Refusal::Mismatch(in_force)),
        _ if lineup.entries.len() > CLAIMS_MAX => Some(Refusal::Full),
        _ => None,
    }
}

/// When something was asked, and what its answer proved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) sent: Moment,
    pub(super) safe_until: Moment,
}

impl Kept {
    /// How long the ensemble keeps a claim of this ttl, counted from when it was asked.
    pub(super) fn remaining(self, ttl: Duration) -> Duration {
        self.safe_until.since(self.sent).min(ttl)
    }
}

/// A claim that was made before, or may have been; `None` if it is not there.
async fn again(
    inner: &Inner,
    claim: &Claim,
    mut record: Record,
    sent: Moment,
) -> Result<Option<Standing>> {
    let stay = record.stay.clone();
    if record.session.has_ended() {
        abandon(inner, &record).await?;
        return Ok(None);
    }
    if record.paths.is_empty() {
        match recover(inner, &record).await? {
            Some(found) => record = found,
            None => {
                forget(inner, &stay);
                return Ok(None);
            }
        }
    }
    if record.ending {
        // The sweep may delete its nodes at any time. It must be gone before there is another.
        delete_nodes(inner, &record).await?;
        leave::delete_beside(inner, &record).await?;
        forget(inner, &stay);
        return Ok(None);
    }
    let session = Arc::clone(&record.session);
    let check = Request::Multi(vec![Request::Check { path: record.paths[0].clone() }]);
    let checked = session.send(check).await?;
    let read = session.send(Request::Children { path: inner.layout.line(&record.name) }).await?;
    let (checked, read) = (checked.answer().await?, read.answer().await?);
    if inner.parts(&checked)?.contains(&Part::Failed(code::NO_NODE)) {
        leave::delete_beside(inner, &record).await?;
        forget(inner, &stay);
        return Ok(None);
    }
    let lineup = Lineup::new(inner.children(&read)?);
    let kept = Kept { sent, safe_until: checked.safe_until };
    settle(inner, claim, record, lineup, (kept, false)).await
}

/// Finds a claim whose answer was lost.
pub(super) async fn recover(inner: &Inner, record: &Record) -> Result<Option<Record>> {
    let link = link::of(inner, &record.session).await?;
    let lineup = inner.read_line_now_on(link.times, &record.session, &record.name).await?;
    let Some(at) = lineup.place(record.ours) else { return Ok(None) };
    let (entry, line) = (&lineup.entries[at], inner.layout.line(&record.name));
    let first = format!("{line}/{}", entry.node);
    let Some((_, stat)) = inner.data(&record.session, first.clone()).await? else {
        return Ok(None);
    };
    let others = lineup.nodes_of(entry).filter(|node| *node != entry.node);
    let others = others.map(|node| format!("{line}/{node}"));
    let mut found = record.clone();
    found.paths = [first].into_iter().chain(others).collect();
    found.fence = inner.fence_at(&record.session, stat.created).await?;
    Ok(Some(found))
}

async fn undo(inner: &Inner, record: &Record) -> Result<()> {
    delete_nodes(inner, record).await?;
    inner.book.remove(&record.stay);
    Ok(())
}

/// Deletes a claim's nodes, those that are there: each for itself, in the order of the session.
pub(super) async fn delete_nodes(inner: &Inner, record: &Record) -> Result<()> {
    let mut sent = Vec::with_capacity(record.paths.len());
    for path in &record.paths {
        sent.push(record.session.send(Request::Delete { path: path.clone() }).await?);
    }
    for sent in sent {
        match sent.answer().await?.code {
            code::OK | code::NO_NODE => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Ok(())
}

/// The claim is in line: does it hold? `None` if it is gone again.
async fn settle(
    inner: &Inner,
    claim: &Claim,
    mut record: Record,
    lineup: Lineup,
    (kept, is_new): (Kept, bool),
) -> Result<Option<Standing>> {
    let (stay, name) = (record.stay.clone(), claim.key.name.clone());
    let Some(at) = lineup.place(record.ours) else {
        forget(inner, &stay);
        return Ok(None);
    };
    let ahead = &lineup.entries[..at];
    if holds(modes(ahead), claim.mode) {
        return Ok(held(inner, claim, record, kept));
    }
    if !claim.join && is_new {
        let session = Arc::clone(&record.session);
        undo(inner, &record).await?;
        let by = inner.holder_of_first(&session, &name, &lineup).await?;
        return Ok(Some(Standing::Out { ahead: at, retry_in: RETRY_IN, by }));
    }
    (record.held, record.until) = (false, SystemClock.now() + claim.patience);
    let wait = Wait {
        stay: stay.clone(),
        name,
        session: Arc::clone(&record.session),
        ours: record.ours,
        place: Place {
            mode: claim.mode,
            fence: record.fence,
            ahead: ahead.to_vec(),
            watched: Vec::new(),
            kept: kept.safe_until >= kept.sent + claim.patience,
        },
    };
    if !inner.book.update(record.clone()) {
        return Ok(None);
    }
    inner.waits.enter(wait);
    let place = crate::rule::claim::Place::new(record.fence);
    match waits::stand(inner, &stay).await? {
        Stands::Behind => Ok(Some(Standing::Queued { place, ahead: at, retry_in: RETRY_IN })),
        Stands::Holds => Ok(held(inner, claim, record, kept)),
        Stands::Gone => {
            forget(inner, &stay);
            Ok(None)
        }
    }
}

/// The claim holds; `None` if its stay was over meanwhile.
fn held(inner: &Inner, claim: &Claim, mut record: Record, kept: Kept) -> Option<Standing> {
    (record.held, record.seen, record.until) = (true, true, SystemClock.now() + claim.ttl);
    let fence = record.fence;
    let is_there = inner.book.update(record);
    is_there.then(|| Standing::Held { fence, remaining: kept.remaining(claim.ttl) })
}
