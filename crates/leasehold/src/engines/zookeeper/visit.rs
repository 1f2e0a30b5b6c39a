//! Keeping a claim by its handle: the session that it is on is taken up for a moment, which makes
//! its time start anew.

use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Place, Standing, Ttl};
use crate::rule::name::Name;

use super::Inner;
use super::ask::{Kept, RETRY_IN, modes};
use super::detail::Detail;
use super::keep::{out, ttl_node};
use super::leave::{failed, ttl_of};
use super::mark::{self, Seen};
use super::nodes::{Attempt, Ours, closed_node, holds, ttl_stem};
use super::pool::timeout_for;
use super::read::Lineup;
use super::session::{Sent, Session};
use super::taken_up::{Stopped, answered, undisturbed};
use super::wire::{Part, Request, Stat, code};

/// A claim that another client made, as it was found in its line.
pub(super) struct Found {
    pub(super) lineup: Lineup,
    pub(super) at: usize,
    pub(super) ours: Ours,
    pub(super) path: String,
    pub(super) data: Vec<u8>,
    stat: Stat,
}

impl Found {
    /// The ttl that it was kept for last. When that was, no clock tells: a renewal never makes it
    /// end sooner, so it keeps it for no less.
    fn ttl(&self) -> Duration {
        let stem = ttl_stem(self.ours);
        let told = self.lineup.ttl_nodes(&stem).find_map(ttl_of);
        told.unwrap_or_else(|| Detail::decode(&self.data).ttl).min(Ttl::MAX)
    }
}

/// Finds a claim by its token, whoever made it, unless nobody owns it any more.
pub(super) async fn seek(inner: &Inner, reader: &Session, key: &ClaimKey) -> Result<Option<Found>> {
    let found = seek_any(inner, reader, key).await?;
    Ok(found.filter(|found| !found.lineup.is_closed(found.ours)))
}

/// The same, also for a claim that nobody owns any more because it keeps its name closed.
pub(super) async fn seek_any(
    inner: &Inner,
    reader: &Session,
    key: &ClaimKey,
) -> Result<Option<Found>> {
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

/// The session of a claim that was found, taken up to keep that for a while.
pub(super) struct TakenUp {
    pub(super) session: Session,
    seen: Option<Seen>,
    /// What the client that made the claim counted on.
    timeout: Duration,
    /// `None` to leave the session as long as it is.
    wanted: Option<Duration>,
    asked: Duration,
}

impl TakenUp {
    /// Whether it was taken up for as long as those count on who have something on the session:
    /// they may have said so after its mark was read, and before it was taken up.
    pub(super) async fn is_long_enough(&self, inner: &Inner) -> Result<bool> {
        let asked = mark::ask(inner, &self.session, self.session.id()).await?;
        self.is_long_enough_for(inner, asked).await
    }

    async fn is_long_enough_for(&self, inner: &Inner, mark: Sent<'_>) -> Result<bool> {
        let seen = mark::read_answer(inner, &mark.answer().await?)?;
        let span = mark::span(seen.as_ref(), self.timeout, self.wanted);
        Ok(span <= self.asked.max(self.session.timeout()))
    }

    /// What is written into the mark of a session that was left.
    pub(super) fn retimed(&self, inner: &Inner) -> Option<Request> {
        self.seen.as_ref().and_then(|seen| seen.retimed(inner, &self.session))
    }

    /// How much longer the session is now than anybody may count on. If the client that made the
    /// claim lives on, it takes it back in a moment, with the timeout that it asked for; and
    /// servers that heard of the session before, or a new leader, know no other.
    fn longer(&self) -> Duration {
        self.session.timeout().saturating_sub(self.timeout)
    }
}

/// Takes up the session of a claim that was found; `None` if it is gone.
pub(super) async fn take_up(
    inner: &Inner,
    reader: &Session,
    key: &ClaimKey,
    found: &Found,
    wanted: Option<Duration>,
) -> Result<Option<TakenUp>> {
    let detail = Detail::decode(&found.data);
    let (identity, timeout) = (detail.identity(&key.token, found.ours.session), detail.timeout);
    let seen = mark::read(inner, reader, found.ours.session).await?;
    let asked = mark::span(seen.as_ref(), timeout, wanted);
    match Session::open(inner.pool.servers(), asked, Some(identity)).await {
        Ok(session) => Ok(Some(TakenUp { session, seen, timeout, wanted, asked })),
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
    undisturbed(|| visit_once(inner, key, ttl)).await
}

async fn visit_once(inner: &Inner, key: &ClaimKey, ttl: Duration) -> Result<Standing, Stopped> {
    let name = &key.name;
    let reader = inner.pool.any().await?;
    let Some(found) = seek(inner, &reader, key).await? else {
        return Ok(out(inner, &reader, name).await?);
    };
    let ttl = ttl.max(found.ttl());
    let sent = SystemClock.now();
    let wanted = Some(timeout_for(ttl));
    let Some(taken_up) = answered(take_up(inner, &reader, key, &found, wanted).await)? else {
        return Ok(out(inner, &reader, name).await?);
    };
    let safe_until = match answered(keep_for(inner, &found, &taken_up, ttl).await)? {
        Outcome::KeptUntil(safe_until) => safe_until,
        Outcome::Gone => return Ok(out(inner, &reader, name).await?),
        Outcome::Disturbed => return Err(Stopped::TakenBack(inner.busy())),
    };
    let kept = Kept { sent, safe_until: safe_until - taken_up.longer() };
    let Found { lineup, at, stat, .. } = found;
    let holds = holds(modes(&lineup.entries[..at]), lineup.entries[at].mode);
    let fence = inner.fence_at(&reader, stat.created).await?;
    Ok(match holds {
        true => Standing::Held { fence, remaining: kept.remaining(ttl) },
        false => {
            let place = Place::new(fence);
            Standing::Queued { place, ahead: at, retry_in: RETRY_IN }
        }
    })
}

/// What became of a claim that was to be kept.
enum Outcome {
    KeptUntil(Moment),
    Gone,
    /// Somebody else was there.
    Disturbed,
}

async fn keep_for(
    inner: &Inner,
    found: &Found,
    taken_up: &TakenUp,
    ttl: Duration,
) -> Result<Outcome> {
    let session = &taken_up.session;
    let line = found.path.rsplit_once('/').map_or("", |(line, _)| line);
    // The old words about its ttl make way for a new one; that there is a new one tells the client
    // that made the claim not to end it.
    let stem = ttl_stem(found.ours);
    let mut parts = vec![Request::Check { path: found.path.clone() }];
    let old = found.lineup.ttl_nodes(&stem).map(|node| format!("{line}/{node}"));
    parts.extend(old.map(|path| Request::Delete { path }));
    let (visit, millis) = (rand::random::<u32>(), ttl.as_millis());
    parts.push(ttl_node(inner, format!("{line}/{stem}-visit-{visit:08x}-{millis}ms")));
    // Only what nobody closed since the line was read: these fail where the node is.
    let closed = format!("{line}/{}", closed_node(found.ours));
    parts.extend([ttl_node(inner, closed.clone()), Request::Delete { path: closed }]);
    parts.extend(taken_up.retimed(inner));
    // Both at once: the client that lives on it waits for a moment only.
    let written = session.send(Request::Multi(parts)).await?;
    let mark = mark::ask(inner, session, session.id()).await?;
    let reply = written.answer().await?;
    let parts = inner.parts(&reply)?;
    match (failed(&parts), parts.first()) {
        (code::OK, _) => {}
        (code::NO_NODE, Some(Part::Failed(code::NO_NODE))) => return Ok(Outcome::Gone),
        (code::NO_NODE | code::NODE_EXISTS | code::BAD_VERSION, _) => {
            return Ok(Outcome::Disturbed);
        }
        (error, _) => return Err(inner.refusal(error)),
    }
    let is_long_enough = taken_up.is_long_enough_for(inner, mark).await?;
    session.leave();
    Ok(if is_long_enough { Outcome::KeptUntil(reply.safe_until) } else { Outcome::Disturbed })
}

impl Inner {
    /// Whether a node is not there any more.
    async fn is_gone(&self, session: &Session, name: &Name, path: &str) -> Result<bool> {
        self.read_line_now(session, name).await?;
        Ok(self.data(session, path.to_owned()).await?.is_none())
    }
}
