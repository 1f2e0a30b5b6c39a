//! What clients say of their long waits: a node for each, below one that is named by the holder.
//!
//! The nodes are beside the lines, so that no client of others takes them for claims. They end with
//! the session of whoever said it; a client that lives and says nothing more takes its word back by
//! its own clock, so that no clock is compared with another.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::{Notice, Wait};
use crate::error::Result;
use crate::rule::claim::HolderId;

use super::Inner;
use super::leave::failed;
use super::link;
use super::lock;
use super::read::shared_acl;
use super::session::Session;
use super::wire::{Request, Sort, code};

/// How often a notice is tried when the node above it goes away under it.
const ROUNDS_MAX: usize = 16;

/// What this client said, by path, and until when it stands.
#[derive(Debug, Default)]
pub(super) struct Notices {
    said: Mutex<HashMap<String, Moment>>,
}

impl Notices {
    /// Returns whether it was said before.
    fn enter(&self, path: &str, until: Moment) -> bool {
        lock(&self.said).insert(path.to_owned(), until).is_some()
    }

    /// Forgets what was taken back, unless it was said anew for longer than `until`.
    fn forget(&self, path: &str, until: Moment) {
        lock(&self.said).retain(|other, stands| other != path || *stands > until);
    }

    /// Those whose time is up, and when the next one's is.
    fn overdue(&self, now: Moment) -> (Vec<String>, Option<Moment>) {
        let said = lock(&self.said);
        let due = said.iter().filter(|(_, until)| **until <= now);
        let due = due.map(|(path, _)| path.clone()).collect();
        (due, said.values().copied().filter(|until| *until > now).min())
    }

    fn postpone(&self, path: &str, until: Moment) {
        if let Some(said) = lock(&self.said).get_mut(path) {
            *said = until.max(*said);
        }
    }

    fn is_overdue(&self, path: &str, now: Moment) -> bool {
        lock(&self.said).get(path).is_some_and(|until| *until <= now)
    }
}

/// The node below which a holder's notices are: one that the servers remove when it is empty.
fn holder_path(inner: &Inner, holder: HolderId) -> String {
    inner.layout.own(&format!("waits-{:032x}", holder.0))
}

pub(super) async fn announce(inner: &Inner, notice: &Notice) -> Result<()> {
    let parent = holder_path(inner, notice.holder);
    let path = format!("{parent}/{:032x}", notice.client);
    let session = inner.pool.any().await?;
    if notice.waits.is_empty() {
        return take_back(inner, &session, &path, Moment::NEVER).await;
    }
    // Entered before it is sent: what may have been said is taken back in time.
    let mut is_there = inner.notices.enter(&path, SystemClock.now() + notice.keep);
    inner.book.sooner.notify_one();
    let data = notice.text().into_bytes();
    for _ in 0..ROUNDS_MAX {
        let (path, data, acl) = (path.clone(), data.clone(), shared_acl(inner.has_login()));
        let request = match is_there {
            true => Request::SetData { path, data, version: -1 },
            false => Request::Create { path, data, acl, sort: Sort::Ephemeral },
        };
        let Some(parts) = link::ask(inner, &session, vec![request]).await? else { continue };
        match failed(&parts) {
            code::OK => return Ok(()),
            code::NODE_EXISTS => is_there = true,
            code::NO_NODE if is_there => is_there = false,
            code::NO_NODE => make_parent(inner, &session, &parent).await?,
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// Makes the node of a holder, and the store's own above it if they are not there.
async fn make_parent(inner: &Inner, session: &Session, parent: &str) -> Result<()> {
    let (path, acl) = (parent.to_owned(), shared_acl(inner.has_login()));
    let container = Request::Create { path, data: Vec::new(), acl, sort: Sort::Container };
    match session.ask(container).await?.code {
        code::OK | code::NODE_EXISTS => Ok(()),
        // The caller tries again.
        code::NO_NODE => inner.make_own(session).await,
        error => Err(inner.refusal(error)),
    }
}

async fn take_back(inner: &Inner, session: &Session, path: &str, until: Moment) -> Result<()> {
    match session.ask(Request::Delete { path: path.to_owned() }).await?.code {
        code::OK | code::NO_NODE => {
            inner.notices.forget(path, until);
            Ok(())
        }
        error => Err(inner.refusal(error)),
    }
}

pub(super) async fn waits_of(inner: &Inner, holder: HolderId) -> Result<Vec<Wait>> {
    let session = inner.pool.any().await?;
    let parent = holder_path(inner, holder);
    let synced = session.send(Request::Sync { path: parent.clone() }).await?;
    let read = session.send(Request::Children { path: parent.clone() }).await?;
    // Whether the node is there is told by the second answer.
    synced.answer().await?;
    let clients = inner.children(&read.answer().await?)?;
    let mut sent = Vec::with_capacity(clients.len());
    for client in clients {
        let path = format!("{parent}/{client}");
        sent.push(session.send(Request::GetData { path }).await?);
    }
    let mut waits = Vec::new();
    for read in sent {
        if let Some((data, _)) = inner.data_of(&read.answer().await?)? {
            waits.extend(Wait::read(&String::from_utf8_lossy(&data)));
        }
    }
    Ok(waits)
}

/// Takes back all that this client said: its session may stay for the sake of a lease.
pub(super) async fn take_all_back(inner: &Inner) {
    sweep_until(inner, Moment::NEVER, Duration::MAX).await;
}

/// Takes back what this client said and did not repeat in time. Returns when to look again.
pub(super) async fn sweep(inner: &Inner, pause: Duration) -> Option<Moment> {
    sweep_until(inner, SystemClock.now(), pause).await
}

async fn sweep_until(inner: &Inner, now: Moment, pause: Duration) -> Option<Moment> {
    let (overdue, mut next) = inner.notices.overdue(now);
    for path in overdue {
        // It may have been said again meanwhile.
        if !inner.notices.is_overdue(&path, now) {
            continue;
        }
        let taken = match inner.pool.any().await {
            Ok(session) => take_back(inner, &session, &path, now).await,
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            tracing::debug!(%error, "a notice whose time is up was not taken back yet");
            let again = SystemClock.now() + pause;
            inner.notices.postpone(&path, again);
            next = Some(next.map_or(again, |next| next.min(again)));
        }
    }
    next
}
