//! Reading many lines: finding their names, and viewing them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::claim::{Token, Ttl};
use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::{LineView, Page, Query, Select, Totals};
use crate::error::Result;
use crate::line::{Entry as LineEntry, Line};
use crate::name::Name;

use super::Inner;
use super::ask::fence;
use super::detail::Detail;
use super::leave::ttl_of;
use super::nodes::{holding, ttl_stem};
use super::read::Lineup;
use super::session::Session;
use super::wire::{Request, Stat};

/// Requests on their way at a time.
const AT_ONCE: usize = 128;

/// A page of the lines asked for.
pub(super) async fn inspect(inner: &Inner, query: &Query) -> Result<Page> {
    let session = inner.pool.any().await?;
    session.ask(Request::Sync { path: inner.layout.root().to_owned() }).await?;
    let names = names(inner, &session, query).await?;
    let mut page = Page::default();
    let names: Vec<Name> = names.into_iter().collect();
    for some in names.chunks(AT_ONCE) {
        let lines = read_lines(inner, &session, some).await?;
        for (name, lineup) in some.iter().zip(lines) {
            if lineup.entries.is_empty() {
                continue;
            }
            let line = line(inner, &session, name, lineup).await?;
            let admitted = match &query.select {
                Select::Holder(holder) => line.has_claim_of(*holder),
                _ => true,
            };
            let view = line.view(name, SystemClock.now()).filter(|_| admitted);
            let Some(view) = view else { continue };
            if page.lines.len() == query.page_lines() {
                page.next = page.lines.last().map(|last: &LineView| last.name.clone());
                return Ok(page);
            }
            page.lines.push(view);
        }
    }
    Ok(page)
}

/// What is in all lines.
pub(super) async fn count(inner: &Inner, totals: &mut Totals) -> Result<()> {
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
    Ok(())
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
        lines.push(Lineup::new(inner.children(&read.answer().await?)?));
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
            let found = inner.data_of(&read.answer().await?)?;
            details.push(found.map(|(data, stat)| match entry.ours {
                Some(_) => (Detail::decode(&data), stat),
                None => (Detail::foreign(), stat),
            }));
        }
    }
    Ok(details)
}

async fn line(
    inner: &Inner,
    session: &Session,
    name: &Name,
    lineup: Lineup,
) -> Result<Line<()>> {
    let details = details(inner, session, name, &lineup).await?;
    let now = SystemClock.now();
    let held = holding(&lineup.entries);
    let claims = lineup.entries.iter().zip(details).enumerate();
    let entries = claims.filter_map(|(at, (entry, detail))| {
        let (detail, stat) = detail?;
        let ttl = entry.ours.map(ttl_stem).and_then(|stem| {
            lineup.ttl_nodes(&stem).find_map(ttl_of)
        });
        let ttl = ttl.unwrap_or(detail.ttl);
        let joined: Moment = now - detail.age();
        Some(LineEntry {
            fence: fence(&stat),
            token: Token::from_bytes([0; 16]),
            mode: entry.mode,
            joined,
            granted: (at < held).then_some(joined),
            expires: now + remaining(ttl, at < held),
            holder: detail.holder,
            note: detail.note,
            bell: (),
        })
    });
    Ok(Line::from_iter(entries))
}

/// How long a claim has without another word: when its client last said one is known to its client
/// alone, so this is the most it can be.
fn remaining(ttl: Duration, holds: bool) -> Duration {
    match (holds, Ttl::new(ttl)) {
        (false, Ok(ttl)) => ttl.patience(),
        _ => ttl.min(Ttl::MAX),
    }
}
