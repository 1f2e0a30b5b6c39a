//! Messages to holders: a node that is created and deleted in one transaction, whose name says all.
//!
//! Who listens watches the node above on one of its sessions. A session that was connected again
//! watches nothing, so the streams end with each connection.

use futures_util::stream::BoxStream;

use crate::engine::HolderMessage;
use crate::error::Result;

use super::Inner;
use super::leave::failed;
use super::nodes::{decode, encode};
use super::read::{make, shared_acl};
use super::wire::{Change, Request, Sort, code};

/// How often the node above is made that the servers take away while it is empty.
const ROUNDS_MAX: usize = 16;

fn parent(inner: &Inner) -> String {
    inner.layout.own("holders")
}

pub(super) async fn send(inner: &Inner, message: &HolderMessage) -> Result<()> {
    let session = inner.pool.any().await?;
    let path = format!("{}/{}", parent(inner), encode(&message.to_text()));
    for _ in 0..ROUNDS_MAX {
        let (path, acl) = (path.clone(), shared_acl(inner.has_login()));
        let (data, sort) = (Vec::new(), Sort::Ephemeral);
        let create = Request::Create { path: path.clone(), data, acl, sort };
        let both = Request::Multi(vec![create, Request::Delete { path }]);
        let reply = session.ask(both).await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => return Ok(()),
            code::NO_NODE => {
                let (login, store) = (inner.has_login(), &inner.info.store);
                make(&session, parent(inner), Sort::Container, Vec::new(), login, store).await?;
            }
            // Another client sends the same just now.
            code::NODE_EXISTS => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

pub(super) async fn listen(inner: &Inner) -> Result<BoxStream<'static, HolderMessage>> {
    let session = inner.pool.any().await?;
    let messages = inner.hearers.listen();
    let watched = session.ask(Request::WatchBelow { path: parent(inner) }).await?;
    match watched.code {
        code::OK => Ok(messages),
        error => Err(inner.refusal(error)),
    }
}

/// Whether something happened to a message.
pub(super) fn heard(inner: &Inner, change: Change, path: &str) -> bool {
    let Some(below) = path.strip_prefix(&parent(inner)) else { return false };
    if let (Change::Created, Some(node)) = (change, below.strip_prefix('/'))
        && let Some(text) = decode(node)
    {
        inner.hearers.tell_text(&text);
    }
    true
}
