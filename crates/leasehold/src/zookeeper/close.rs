//! Closing a client: sessions on which something is to stay are left, and their marks say so.

use crate::error::Result;

use super::Inner;
use super::leave::delete_beside;
use super::mark;
use super::session::Session;
use super::wire::{Request, code};

/// Requests on their way at a time.
const AT_ONCE: usize = 64;

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
    if inner.book.uses(session.id()) {
        forget_gone(inner, session).await?;
    }
    match inner.book.uses(session.id()) {
        true => mark::leave(inner, session).await,
        false => Ok(()),
    }
}

/// Forgets claims that are not there any more: whoever ended one by its handle did not tell.
async fn forget_gone(inner: &Inner, session: &Session) -> Result<()> {
    let claims = inner.book.all_on(session.id());
    for some in claims.chunks(AT_ONCE) {
        let mut sent = Vec::with_capacity(some.len());
        for (key, record) in some {
            // One that may have been made is looked for by whoever has the handle.
            if let Some(path) = record.paths.first() {
                let exists = Request::Exists { path: path.clone(), watch: false };
                sent.push((key, record, session.send(exists).await?));
            }
        }
        for (key, record, exists) in sent {
            if exists.answer().await?.code == code::NO_NODE {
                inner.book.remove(key);
                delete_beside(inner, record).await?;
            }
        }
    }
    Ok(())
}
