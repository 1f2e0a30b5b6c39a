//! The link of a session: a node that is written on each connection before a claim is made there.
//!
//! A server may carry out a request long after the client gave it up. The leader refuses what comes
//! from a server that the session has left. But a server that was stopped finds old hellos of the
//! client when it goes on. The leader then takes the session for one that came back to that server,
//! and carries out what the server was sent before the client left. A claim that is made so late is
//! known to no client, and it keeps its name closed for as long as the session lives.
//!
//! So a transaction that makes a claim checks the version of the link that its own connection
//! wrote. Once a later connection has written the link, no server carries it out any more. The
//! first connection makes the node: one request more for each connection that makes claims.

use std::sync::Mutex;
use std::time::Duration;

use crate::error::Result;

use super::Inner;
use super::lock;
use super::read::claim_acl;
use super::session::Session;
use super::wire::{In, Odd, Part, Request, Sort, code};

/// How often the node is written that others take away.
const ROUNDS_MAX: usize = 16;

/// What a session knows of its link.
#[derive(Debug, Default)]
pub(super) struct Links {
    known: Mutex<Option<Link>>,
    /// Held by whoever writes it, so that the others wait for the same.
    turn: tokio::sync::Mutex<()>,
}

/// The link as a connection wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    /// The number of that connection; 0 if the version turned out to be another one.
    pub(super) times: u64,
    version: i32,
}

impl Links {
    /// What the connection of this number wrote.
    fn on(&self, times: u64) -> Option<Link> {
        lock(&self.known).filter(|link| link.times == times)
    }

    /// The version is another one than was thought: the link is written again.
    pub(super) fn was_wrong(&self, wrong: Link) {
        if let Some(link) = &mut *lock(&self.known)
            && *link == wrong
        {
            link.times = 0;
        }
    }
}

impl Link {
    /// What makes a transaction fail once another connection has written the link.
    pub(super) fn check(self, inner: &Inner, session: &Session) -> Request {
        Request::CheckVersion { path: path(inner, session), version: self.version }
    }
}

fn path(inner: &Inner, session: &Session) -> String {
    inner.layout.own(&format!("link-{:016x}", session.id()))
}

/// The link of the present connection, which is written if it was not. What earlier connections
/// sent with a check of theirs is carried out by now, or never.
pub(super) async fn of(inner: &Inner, session: &Session) -> Result<Link> {
    let times = session.connection().await?;
    if let Some(link) = session.links().on(times) {
        return Ok(link);
    }
    let _turn = turn(session, session.limit()).await?;
    let times = session.connection().await?;
    if let Some(link) = session.links().on(times) {
        return Ok(link);
    }
    let link = write(inner, session, times).await?;
    *lock(&session.links().known) = Some(link);
    Ok(link)
}

async fn turn(session: &Session, limit: Duration) -> Result<tokio::sync::MutexGuard<'_, ()>> {
    let turn = tokio::time::timeout(limit, session.links().turn.lock()).await;
    turn.map_err(|_| session.silent())
}

async fn write(inner: &Inner, session: &Session, times: u64) -> Result<Link> {
    let path = path(inner, session);
    let mut is_there = lock(&session.links().known).is_some();
    for _ in 0..ROUNDS_MAX {
        let (path, data, acl) = (path.clone(), Vec::new(), claim_acl(inner.has_login()));
        let request = match is_there {
            true => Request::SetData { path, data, version: -1 },
            false => Request::Create { path, data, acl, sort: Sort::Ephemeral },
        };
        let reply = session.send_on(times, request).await?.answer().await?;
        match reply.code {
            code::OK if is_there => {
                let stat = In(&reply.body).stat().map_err(|odd: Odd| inner.odd(odd))?;
                return Ok(Link { times, version: stat.version });
            }
            code::OK => return Ok(Link { times, version: 0 }),
            code::NODE_EXISTS => is_there = true,
            code::NO_NODE if is_there => is_there = false,
            code::NO_NODE => inner.make_own(session).await?,
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// Sends a transaction that no server carries out once a later connection has written the link.
/// `None` if the link was not as it was thought to be: then nothing was done.
pub(super) async fn ask(
    inner: &Inner,
    session: &Session,
    parts: Vec<Request>,
) -> Result<Option<Vec<Part>>> {
    let link = of(inner, session).await?;
    let all = [link.check(inner, session)].into_iter().chain(parts).collect();
    let reply = session.send_on(link.times, Request::Multi(all)).await?.answer().await?;
    let mut parts = inner.parts(&reply)?;
    if let Some(Part::Failed(code::BAD_VERSION | code::NO_NODE)) = parts.first() {
        session.links().was_wrong(link);
        return Ok(None);
    }
    Ok(Some(parts.split_off(parts.len().min(1))))
}

/// Takes the link away from a session that is left: no claim is made on it any more.
pub(super) async fn remove(inner: &Inner, session: &Session) -> Result<()> {
    if lock(&session.links().known).is_none() {
        return Ok(());
    }
    match session.ask(Request::Delete { path: path(inner, session) }).await?.code {
        code::OK | code::NO_NODE => Ok(()),
        error => Err(inner.refusal(error)),
    }
}
