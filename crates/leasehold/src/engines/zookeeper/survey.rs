//! Reading many lines: finding their names, and viewing them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::{BrokenLine, Page, Query, Select, Totals};
use crate::error::Result;
use crate::rule::claim::{Note, Token, Ttl};
use crate::rule::line::{Entry as LineEntry, Line};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::leave::ttl_of;
use super::mark;
use super::nodes::{Entry, holding, ttl_stem};
use super::pool::TIMEOUT_MAX;
use super::read::Lineup;
use super::session::Session;
use super::sums;
use super::wire::{In, Request, Stat, code};

/// Requests on their way at a time.
const AT_ONCE: usize = 128;

/// What is wrong with a line that cannot be read.
const BROKEN: &str =
    "a node of it holds something that leasehold never writes, or forbids this client to read it";

/// A page of the lines asked for.
pub(super) async fn inspect(inner: &Inner, query: &Query) -> Result<Page> {
    let session = inner.pool.any().await?;
    session.ask(Request::Sync { path: inner.layout.root().to_owned() }).await?;
    let names = names(inner, &session, query).await?;
    let mut page = Page::default();
    // A name may be a line and broken at once.
    let (mut shown, mut last): (usize, Option<&Name>) = (0, None);
    let names: Vec<Name> = names.into_iter().collect();
    for some in names.chunks(AT_ONCE) {
        let lines = read_lines(inner, &session, some).await?;
        for (name, lineup) in some.iter().zip(lines) {
            if lineup.entries.is_empty() && !lineup.forbidden {
                continue;
            }
            let now = SystemClock.now();
            let (line, broken) = line(inner, &session, name, lineup, now).await?;
            let (admitted, broken) = match &query.select {
                Select::Holder(holder) => (line.has_claim_of(*holder), false),
                _ => (true, broken),
            };
            let view = line.view(name, now).filter(|_| admitted);
            if view.is_none() && !broken {
                continue;
            }
            if shown == query.page_lines() {
                page.next = last.cloned();
                return Ok(page);
            }
            shown += 1;
            last = Some(name);
            let broken = broken.then(|| BrokenLine { name: name.clone(), cause: BROKEN.into() });
            page.broken.extend(broken);
            page.lines.extend(view);
        }
    }
    Ok(page)
}

/// What was counted, and what is in all lines.
pub(super) async fn totals(inner: &Inner) -> Result<Totals> {
    let mut totals = Totals { counts: sums::total(inner).await?, ..Totals::default() };
    let session = inner.pool.any().await?;
    session.ask(Request::Sync { path: inner.layout.root().to_owned() }).await?;
    let names: Vec<Name> = names(inner, &session, &Query::all()).await?.into_iter().collect();
    for some in names.chunks(AT_ONCE) {
        for lineup in read_lines(inner, &session, some).await? {
            let held = holding(&lineup.entries);
            totals.active += held as u64;
            totals.waiting += (lineup.entries.len() - held) as u64;
        }
    }
    Ok(totals)
}

/// The names asked for that have a node.
pub(super) async fn names(
    inner: &Inner,
    session: &Session,
    query: &Query,
) -> Result<BTreeSet<Name>> {
    if let Select::Name(name) = &query.select {
        return Ok(Some(name.clone()).filter(|name| query.admits(name)).into_iter().collect());
    }
    let reply = session.ask(Request::Children { path: inner.layout.root().to_owned() }).await?;
    let names = inner.children(&reply)?.into_iter().filter_map(|node| inner.layout.name(&node));
    Ok(names.filter(|name| query.admits(name)).collect())
}

pub(super) async fn read_lines(
    inner: &Inner,
    session: &Session,
    names: &[Name],
) -> Result<Vec<Lineup>> {
    let mut sent = Vec::with_capacity(names.len());
    for name in names {
        let path = inner.layout.line(name);
        sent.push(session.send(Request::Children { path }).await?);
    }
    let mut lines = Vec::with_capacity(names.len());
    for read in sent {
        let reply = read.answer().await?;
        lines.push(match reply.code {
            code::NO_AUTH => Lineup::forbidden(),
            _ => Lineup::new(inner.children(&reply)?),
        });
    }
    Ok(lines)
}

/// Reads the claims of a line; `None` for those that left meanwhile.
pub(super) async fn details(
    inner: &Inner,
    session: &Session,
    name: &Name,
    lineup: &Lineup,
) -> Result<Vec<Option<(Detail, Stat)>>> {
    let line = inner.layout.line(name);
    let mut details = Vec::with_capacity(lineup.entries.len());
    for some in lineup.entries.chunks(AT_ONCE) {
        let mut sent = Vec::with_capacity(some.len());
        for entry in some {
            let path = format!("{line}/{}", entry.node);
            sent.push(session.send(Request::GetData { path }).await?);
        }
        for (entry, read) in some.iter().zip(sent) {
            let reply = read.answer().await?;
            let found = match reply.code {
                code::NO_AUTH => {
                    let path = format!("{line}/{}", entry.node);
                    stat(inner, session, path).await?.map(|stat| (None, stat))
                }
                _ => inner.data_of(&reply)?.map(|(data, stat)| (Detail::read(&data), stat)),
            };
            details.push(found.map(|(detail, stat)| match entry.ours {
                Some(_) => (detail.unwrap_or_else(Detail::unreadable), stat),
                None => (Detail::foreign(), stat),
            }));
        }
    }
    Ok(details)
}

/// What every client may know of a node, whatever the node's rights; `None` if it is not there.
async fn stat(inner: &Inner, session: &Session, path: String) -> Result<Option<Stat>> {
    let reply = session.ask(Request::Exists { path, watch: false }).await?;
    match reply.code {
        code::OK => In(&reply.body).stat().map(Some).map_err(|odd| inner.odd(odd)),
        code::NO_NODE => Ok(None),
        error => Err(inner.refusal(error)),
    }
}

/// The data of a node; `None` if it is not there, or its rights forbid this client to read it.
async fn data(inner: &Inner, session: &Session, path: String) -> Result<Option<(Vec<u8>, Stat)>> {
    let reply = session.ask(Request::GetData { path }).await?;
    if reply.code == code::NO_AUTH {
        return Ok(None);
    }
    inner.data_of(&reply)
}

/// A line, and whether a claim of ours in it cannot be read.
async fn line(
    inner: &Inner,
    session: &Session,
    name: &Name,
    lineup: Lineup,
    now: Moment,
) -> Result<(Line<()>, bool)> {
    let details = details(inner, session, name, &lineup).await?;
    let held = holding(&lineup.entries);
    let unreadable = details.iter().flatten().any(|(detail, _)| detail.is_unreadable());
    let broken = unreadable || lineup.forbidden;
    let mut entries = Vec::with_capacity(details.len());
    for (at, (entry, detail)) in lineup.entries.iter().zip(details).enumerate() {
        let Some((detail, stat)) = detail else { continue };
        let (ttl, kept_ms) = kept(inner, session, name, &lineup, entry, &detail, &stat).await?;
        let joined: Moment = now - detail.age();
        let note = note(inner, session, name, &lineup, entry).await?;
        entries.push(LineEntry {
            fence: inner.fence_at(session, stat.created).await?,
            token: match entry.ours.is_some_and(|ours| lineup.is_closed(ours)) {
                true => Token::retired(),
                false => Token::from_bytes([0; 16]),
            },
            mode: entry.mode,
            joined,
            granted: (at < held).then_some(joined),
            expires: now + remaining(ttl, at < held, kept_ms),
            holder: detail.holder,
            note: note.unwrap_or(detail.note),
            bell: (),
        });
    }
    Ok((Line::from_iter(entries), broken))
}

/// Another note than a claim began with.
async fn note(
    inner: &Inner,
    session: &Session,
    name: &Name,
    lineup: &Lineup,
    entry: &Entry,
) -> Result<Option<Note>> {
    let Some(node) = entry.ours.and_then(|ours| lineup.note_of(ours)) else { return Ok(None) };
    let path = format!("{}/{node}", inner.layout.line(name));
    let read = data(inner, session, path).await?;
    // It is what somebody wrote, so it fits; what does not is somebody else's.
    Ok(read.and_then(|(data, _)| Note::new(String::from_utf8(data).ok()?).ok()))
}

/// A claim's ttl, and when it was last kept for that long, as far as can be seen: when its node
/// was made, when it got another ttl, or when its session last renewed something.
async fn kept(
    inner: &Inner,
    session: &Session,
    name: &Name,
    lineup: &Lineup,
    entry: &Entry,
    detail: &Detail,
    stat: &Stat,
) -> Result<(Duration, i64)> {
    let Some(ours) = entry.ours else { return Ok((Ttl::MAX, i64::MAX)) };
    let (mut ttl, mut kept_ms) = (detail.ttl, stat.born_ms);
    let stem = ttl_stem(ours);
    if let Some(node) = lineup.ttl_nodes(&stem).next() {
        ttl = ttl_of(node).unwrap_or(ttl);
        let path = format!("{}/{node}", inner.layout.line(name));
        let found = data(inner, session, path).await?;
        kept_ms = found.map_or(kept_ms, |(_, stat)| stat.born_ms);
    }
    let mark = mark::path(inner, ours.session);
    // Nobody renews a claim that is closed, whatever else is on its session.
    if lineup.is_closed(ours) {
        return Ok((ttl, kept_ms));
    }
    if let Some((_, stat)) = data(inner, session, mark).await? {
        kept_ms = kept_ms.max(stat.written_ms);
    }
    Ok((ttl, kept_ms))
}

/// How long a claim has without another word. It is told by wall clocks, so only for people.
fn remaining(ttl: Duration, holds: bool, kept_ms: i64) -> Duration {
    let whole = match (holds, Ttl::new(ttl)) {
        (false, Ok(ttl)) => ttl.patience(),
        _ => ttl.min(TIMEOUT_MAX),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let kept = Duration::from_millis(u64::try_from(kept_ms).unwrap_or(0));
    whole.saturating_sub(now.saturating_sub(kept))
}
