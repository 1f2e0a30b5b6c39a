//! Closing a client: sessions on which something is to stay are left, and their marks say so.

use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::seeded::{Seeded, seeded};

use super::Inner;
use super::leave::delete_beside;
use super::link;
use super::mark;
use super::pool::timeout_for;
use super::session::Session;
use super::wire::{Request, code};

/// Requests on their way at a time.
const AT_ONCE: usize = 64;
/// The part of its time by which a session must last for too long to be taken up for that.
const SPARED_PART: u32 = 4;

/// Says of the sessions on which something stays that nobody is on them any more.
pub(super) async fn leave_sessions(inner: &Inner) {
    for session in inner.pool.alive() {
        if let Err(error) = leave(inner, &session).await {
            // Others take it for one that somebody is on.
            tracing::debug!(%error, "a ZooKeeper session was left without a word");
        }
    }
}

async fn leave(inner: &Inner, session: &Session) -> Result<()> {
    if !inner.book.uses(session.id()) {
        return Ok(());
    }
    forget_gone(inner, session).await?;
    if !inner.book.uses(session.id()) {
        return link::remove(inner, session).await;
    }
    if let Err(error) = shorten(inner, session).await {
        tracing::debug!(%error, "a ZooKeeper session lasts for longer than what is on it");
    }
    mark::leave(inner, session).await?;
    link::remove(inner, session).await
}

/// Sees to it that a session ends with the last claim on it, if it would last for much longer.
///
/// Its time begins anew when it is taken up, so a session of claims that nobody renews need not
/// last for longer than they do. A claim that somebody may renew needs one that is longer, as ever.
async fn shorten(inner: &Inner, session: &Session) -> Result<()> {
    let Some((until, is_owned)) = inner.book.last_on(session.id()) else { return Ok(()) };
    let left = until.since(SystemClock.now());
    let span = if is_owned { timeout_for(left) } else { left };
    // The protocol counts in milliseconds, and takes none for a new session.
    let span = span.max(Duration::from_millis(1)) + Duration::from_millis(1);
    let is_long = span + span / SPARED_PART < session.timeout();
    match is_long && !seeded(Seeded::ClosedForTheSession) {
        true => session.shorten(span).await,
        false => Ok(()),
    }
}

/// Forgets claims that are not there any more: a client may have ended one by its handle.
async fn forget_gone(inner: &Inner, session: &Session) -> Result<()> {
    let claims = inner.book.all_on(session.id());
    for some in claims.chunks(AT_ONCE) {
        let mut sent = Vec::with_capacity(some.len());
        for record in some {
            // The client with the handle looks for one that may have been made.
            if let Some(path) = record.paths.first() {
                let exists = Request::Exists { path: path.clone(), watch: false };
                sent.push((record, session.send(exists).await?));
            }
        }
        for (record, exists) in sent {
            if exists.answer().await?.code == code::NO_NODE {
                inner.book.remove(&record.stay);
                delete_beside(inner, record).await?;
            }
        }
    }
    Ok(())
}
