//! Replacing the note of a claim that holds.
//!
//! A claim's own node is written only when it is given back, and whoever waits takes that for its
//! end. So another note is a node beside it, as another ttl is: those who wait do not watch it, and
//! it is made only together with a check that the claim is there.
//!
//! A claim's mode is part of its node's name, and its place the number behind that: a node with
//! another mode would be behind everybody. So modes and limits stay as they are here.

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::rule::claim::{Amended, ClaimKey, Note};

use super::Inner;
use super::ask::modes;
use super::book::Record;
use super::keep;
use super::leave::{self, failed};
use super::nodes::{Ours, holds, note_node};
use super::read::claim_acl;
use super::session::Session;
use super::taken_up::{Stopped, answered, undisturbed};
use super::visit;
use super::wire::{Part, Request, Sort, code};

/// How often a note is tried that others write meanwhile.
const ROUNDS_MAX: usize = 16;

/// What became of a note for a claim that this client made.
enum Own {
    Done,
    Waits,
    /// The claim is not there any more.
    Gone,
}

pub(super) async fn set_note(inner: &Inner, key: &ClaimKey, note: &Note) -> Result<Amended> {
    let done = match inner.book.get(key) {
        Some(record) if record.until <= SystemClock.now() || record.session.has_ended() => None,
        Some(record) => match amend_own(inner, key, note).await? {
            Own::Done => Some(()),
            Own::Waits => None,
            Own::Gone if record.session.has_ended() => None,
            // Whoever has its token may have made it anew.
            Own::Gone => amend_by_handle(inner, key, note).await?,
        },
        None => amend_by_handle(inner, key, note).await?,
    };
    match done {
        Some(()) => Ok(Amended::Done),
        None => {
            let session = inner.pool.any().await?;
            let lineup = inner.read_line_now(&session, &key.name).await?;
            let by = inner.holder_of_first(&session, &key.name, &lineup).await?;
            Ok(Amended::Out { by })
        }
    }
}

/// Of a claim that this client made.
async fn amend_own(inner: &Inner, key: &ClaimKey, note: &Note) -> Result<Own> {
    let Some(record) = keep::find(inner, key).await? else { return Ok(Own::Gone) };
    // What is written is checked with it; what is not is read. So is a line that another client
    // may have written by a handle.
    let times = record.session.times();
    let is_seen = record.is_settled() && record.looked == times;
    if !is_seen {
        let lineup = inner.read_line_now(&record.session, &record.name).await?;
        let Some(at) = lineup.place(record.ours) else { return gone(inner, &record).await };
        if lineup.is_closed(record.ours) {
            keep::closed_elsewhere(inner, &record, &lineup);
            return Ok(Own::Gone);
        }
        if !holds(modes(&lineup.entries[..at]), record.mode) {
            return Ok(Own::Waits);
        }
    }
    let path = format!("{}/{}", inner.layout.line(&record.name), note_node(record.ours));
    let is_there = record.note_path.is_some();
    // Before it is sent: whatever becomes of the answer, the node goes with the claim.
    let is_known = inner.book.change(&record.stay, |record| record.note_path = Some(path));
    if !is_known {
        return Ok(Own::Gone);
    }
    let place = (record.ours, is_there);
    match write(inner, (&record.session, times), &record.paths[0], place, note).await? {
        Some(()) => Ok(Own::Done),
        None => gone(inner, &record).await,
    }
}

/// Forgets a claim that somebody took out.
async fn gone(inner: &Inner, record: &Record) -> Result<Own> {
    keep::forget(inner, &record.stay);
    leave::delete_beside(inner, record).await?;
    Ok(Own::Gone)
}

/// Of a claim that another client made: its session is taken up for a moment.
async fn amend_by_handle(inner: &Inner, key: &ClaimKey, note: &Note) -> Result<Option<()>> {
    undisturbed(|| amend_on_its_session(inner, key, note)).await
}

async fn amend_on_its_session(
    inner: &Inner,
    key: &ClaimKey,
    note: &Note,
) -> Result<Option<()>, Stopped> {
    let reader = inner.pool.any().await?;
    let Some(found) = visit::seek(inner, &reader, key).await? else {
        return Ok(None);
    };
    let entry = &found.lineup.entries[found.at];
    if !holds(modes(&found.lineup.entries[..found.at]), entry.mode) {
        return Ok(None);
    }
    let taken_up = visit::take_up(inner, &reader, key, &found, None).await;
    let Some(taken_up) = answered(taken_up)? else { return Ok(None) };
    let session = &taken_up.session;
    let is_there = found.lineup.note_of(found.ours).is_some();
    let on = (session, session.times());
    let written = write(inner, on, &found.path, (found.ours, is_there), note).await;
    let written = answered(written)?;
    let is_long_enough = answered(taken_up.is_long_enough(inner).await)?;
    session.leave();
    match is_long_enough {
        true => Ok(written),
        false => Err(Stopped::TakenBack(inner.busy())),
    }
}

/// Makes the node beside a claim's; `None` if the claim is not there.
async fn write(
    inner: &Inner,
    (session, times): (&Session, u64),
    claim: &str,
    (ours, mut is_there): (Ours, bool),
    note: &Note,
) -> Result<Option<()>> {
    let line = claim.rsplit_once('/').map_or("", |(line, _)| line);
    for _ in 0..ROUNDS_MAX {
        let path = format!("{line}/{}", note_node(ours));
        let (data, acl) = (note.as_str().as_bytes().to_vec(), claim_acl(inner.has_login()));
        // Only the connection that made a node may write it, so one that is there makes way.
        let mut parts = vec![Request::Check { path: claim.to_owned() }];
        parts.extend(is_there.then(|| Request::Delete { path: path.clone() }));
        parts.push(Request::Create { path, data, acl, sort: Sort::Ephemeral });
        let sent = session.send_on(times, Request::Multi(parts)).await?;
        let reply = sent.answer().await?;
        let parts = inner.parts(&reply)?;
        match (failed(&parts), parts.first()) {
            (code::OK, _) => return Ok(Some(())),
            (code::NO_NODE, Some(Part::Failed(_))) => return Ok(None),
            (code::NO_NODE, _) => is_there = false,
            (code::NODE_EXISTS, _) => is_there = true,
            (error, _) => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}
