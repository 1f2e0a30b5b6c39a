//! Leaving: giving back, being taken out by an administrator, and running out of time.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::{Counts, Eviction};
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Holder, Released};

use super::Inner;
use super::ask::recover;
use super::book::Record;
use super::detail::Detail;
use super::feed::{self, Farewell};
use super::keep::{self, forget};
use super::mark;
use super::nodes::{Attempt, closed_node, holding, ttl_stem};
use super::notices;
use super::read::Lineup;
use super::session::Session;
use super::sums;
use super::wire::{Part, Request, code};

/// Claims given back at a time: enough to fill a connection.
const AT_ONCE: usize = 64;
/// How often something is tried when others change the same.
const ROUNDS_MAX: usize = 16;
/// The pause after what is to end could not be removed.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn release(inner: &Inner, keys: &[ClaimKey]) -> Result<Vec<Released>> {
    let mut released = Vec::with_capacity(keys.len());
    let mut rest = keys;
    while !rest.is_empty() {
        let (some, later) = rest.split_at(without_repetition(rest));
        for one in join_all(some.iter().map(|key| release_one(inner, key))).await {
            released.push(one?);
        }
        rest = later;
    }
    Ok(released)
}

/// How many keys can be given back at once: what becomes of one claim of a line is told before the
/// next of it is touched.
fn without_repetition(keys: &[ClaimKey]) -> usize {
    let mut names = HashSet::new();
    keys.iter().take(AT_ONCE).take_while(|key| names.insert(&key.name)).count()
}

pub(super) async fn release_one(inner: &Inner, key: &ClaimKey) -> Result<Released> {
    let Some(mut record) = inner.book.get(key) else {
        return release_by_handle(inner, key).await;
    };
    if !record.session.has_ended() {
        if record.paths.is_empty() {
            match recover(inner, &record).await? {
                Some(found) => record = found,
                None => {
                    inner.book.remove(&record.stay);
                    return release_by_handle(inner, key).await;
                }
            }
        }
        match delete(inner, &record).await? {
            Deleted::Done => {
                inner.book.remove(&record.stay);
                return Ok(Released::Released);
            }
            Deleted::Closed => return told(inner, key).await,
            Deleted::Before => {
                inner.book.remove(&record.stay);
                release_by_handle(inner, key).await?;
                return Ok(Released::Released);
            }
            Deleted::Gone => {}
        }
    }
    inner.book.remove(&record.stay);
    // Another client that has its token may have made it again.
    release_by_handle(inner, key).await
}

/// What became of a claim whose nodes were to be deleted.
enum Deleted {
    Done,
    Gone,
    /// They are gone, and an earlier deletion whose answer was lost may have done that.
    Before,
    /// Another client gave it back by its handle, and keeps its name closed.
    Closed,
}

/// Deletes a claim's nodes.
async fn delete(inner: &Inner, record: &Record) -> Result<Deleted> {
    for round in 0..ROUNDS_MAX {
        let times = record.session.times();
        match delete_on(inner, record, times).await {
            Err(error) if error.is_transient() && record.session.times() != times => {}
            Ok(Deleted::Gone) if round > 0 => return Ok(Deleted::Before),
            deleted => return deleted,
        }
    }
    Err(inner.busy())
}

/// Deletes them on the connection of this number: what is not known then, another connection told.
async fn delete_on(inner: &Inner, record: &Record, times: u64) -> Result<Deleted> {
    let line = inner.layout.line(&record.name);
    let mut paths: Vec<String> = record.all_paths().cloned().collect();
    // Another client with its handle may have taken up its session, and left a word beside it.
    if times != record.times {
        let lineup = inner.read_line_now(&record.session, &record.name).await?;
        if lineup.is_closed(record.ours) {
            keep::closed_elsewhere(inner, record, &lineup);
            return Ok(Deleted::Closed);
        }
        paths.truncate(record.paths.len());
        paths.extend(beside(inner, record, &lineup));
    }
    let is_one = paths.len() == 1;
    let deletes = paths.into_iter().map(|path| Request::Delete { path });
    let parts = word_of(record).into_iter().chain(deletes).collect();
    let session = &record.session;
    let reply = session.send_with_others_on(times, line, parts).await?.answer().await?;
    let was_there = match failed(&inner.parts(&reply)?) {
        code::OK => true,
        code::NO_NODE if is_one => false,
        code::NO_NODE => rest_of(inner, record).await?,
        error => return Err(inner.refusal(error)),
    };
    Ok(if was_there { Deleted::Done } else { Deleted::Gone })
}

/// What is written before a claim that held is deleted: whoever waits behind it takes it for what
/// it is.
fn word_of(record: &Record) -> Option<Request> {
    let path = record.paths[0].clone();
    record.held.then_some(Request::SetData { path, data: Vec::new(), version: -1 })
}

/// Deletes what is left of a claim of several nodes, of which one was gone; whether the one that
/// decides was there.
async fn rest_of(inner: &Inner, record: &Record) -> Result<bool> {
    let mut was_there = false;
    let lineup = inner.read_line(&record.session, &record.name).await?;
    let beside = beside(inner, record, &lineup);
    for (at, path) in record.paths.iter().cloned().chain(beside).enumerate() {
        let word = word_of(record).filter(|_| at == 0);
        let parts = word.into_iter().chain([Request::Delete { path }]).collect();
        let reply = record.session.ask(Request::Multi(parts)).await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => was_there |= at == 0,
            code::NO_NODE => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Ok(was_there)
}

/// Deletes what is left beside a claim that is gone.
pub(super) async fn delete_beside(inner: &Inner, record: &Record) -> Result<()> {
    for path in record.ttl_path.iter().chain(&record.note_path).chain(&record.closed_path) {
        let path = path.clone();
        match record.session.ask(Request::Delete { path }).await?.code {
            code::OK | code::NO_NODE => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Ok(())
}

/// Where nodes that tell of a claim beside its own are.
fn beside<'a>(
    inner: &Inner,
    record: &Record,
    lineup: &'a Lineup,
) -> impl Iterator<Item = String> + 'a {
    let line = inner.layout.line(&record.name);
    lineup.beside(record.ours).map(move |node| format!("{line}/{node}"))
}

/// The first error among the parts of a transaction.
pub(super) fn failed(parts: &[Part]) -> i32 {
    let error = parts.iter().find_map(|part| match part {
        Part::Failed(error) if *error != RUNTIME_INCONSISTENCY => Some(*error),
        _ => None,
    });
    error.unwrap_or(code::OK)
}

/// What the parts behind one that failed are answered with.
const RUNTIME_INCONSISTENCY: i32 = -2;

/// Gives back a claim that another client made.
async fn release_by_handle(inner: &Inner, key: &ClaimKey) -> Result<Released> {
    let session = inner.pool.any().await?;
    let attempt = Attempt::of(&key.token);
    for _ in 0..ROUNDS_MAX {
        let lineup = inner.read_line_now(&session, &key.name).await?;
        let entry = lineup
            .entries
            .iter()
            .find(|entry| entry.ours.is_some_and(|ours| ours.attempt == attempt));
        let ours = entry.and_then(|entry| Some((entry, entry.ours?)));
        let Some((entry, ours)) = ours.filter(|(_, ours)| !lineup.is_closed(*ours)) else {
            return told(inner, key).await;
        };
        let line = inner.layout.line(&key.name);
        let nodes = lineup.nodes_of(entry).chain(lineup.beside(ours));
        let deletes = nodes.map(|node| Request::Delete { path: format!("{line}/{node}") });
        let mut parts = feed::words(inner, &session, &[&entry.node], &Farewell::Released).await?;
        parts.extend(deletes);
        let read = inner.data(&session, format!("{line}/{}", entry.node)).await?;
        let known = read.map(|(data, _)| Detail::decode(&data).timeout);
        parts.extend(mark::without(inner, &session, ours.session, known.as_slice()).await?);
        let reply = session.ask(Request::Multi(parts)).await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => return Ok(Released::Released),
            code::NO_NODE | code::BAD_VERSION => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// Deletes what is left of a claim whose session this client gave up, unless another client keeps
/// it by its handle.
pub(super) async fn remove_left(inner: &Inner, record: &Record) -> Result<()> {
    let session = inner.pool.any().await?;
    let line = inner.layout.line(&record.name);
    for _ in 0..ROUNDS_MAX {
        let lineup = inner.read_line_now(&session, &record.name).await?;
        let Some(at) = lineup.place(record.ours) else { return Ok(()) };
        let stem = ttl_stem(record.ours);
        let mut told = lineup.ttl_nodes(&stem).map(|node| format!("{line}/{node}"));
        if told.any(|path| Some(&path) != record.ttl_path.as_ref()) {
            return Ok(());
        }
        let entry = &lineup.entries[at];
        let mut parts = feed::words(inner, &session, &[&entry.node], &Farewell::Expired).await?;
        let nodes = lineup.nodes_of(entry).chain(lineup.beside(record.ours));
        parts.extend(nodes.map(|node| Request::Delete { path: format!("{line}/{node}") }));
        let reply = session.ask(Request::Multi(parts)).await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => return Ok(()),
            code::NO_NODE | code::BAD_VERSION => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// What became of a claim that is not there.
async fn told(inner: &Inner, key: &ClaimKey) -> Result<Released> {
    let session = inner.pool.any().await?;
    let lineup = inner.read_line_now(&session, &key.name).await?;
    Ok(match inner.holder_of_first(&session, &key.name, &lineup).await? {
        Some(holder) => Released::TakenBy(holder),
        None => Released::AlreadyExpired,
    })
}

/// Sweeps for as long as the engine is there.
pub(super) async fn keep_sweeping(inner: Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let (claims, said) = (sweep(&strong).await, notices::sweep(&strong, AGAIN).await);
        let next = claims.into_iter().chain(said).min().unwrap_or(Moment::NEVER);
        let book = Arc::clone(&strong.book);
        drop(strong);
        tokio::select! {
            () = book.sooner.notified() => {}
            () = SystemClock.sleep_until(next) => {}
        }
    }
}

/// Removes this client's claims whose time is up. Returns when the next one's is.
async fn sweep(inner: &Inner) -> Option<Moment> {
    for record in inner.book.overdue(SystemClock.now()) {
        let stay = record.stay.clone();
        if let Err(error) = expire(inner, record).await {
            tracing::debug!(%error, "a claim whose time is up was not removed yet");
            inner.book.end_later(&stay, SystemClock.now() + AGAIN);
        }
    }
    inner.book.next_sweep(SystemClock.now())
}

/// Ends a claim that was not renewed in time. Leaves it alone if it is asked about, or was renewed,
/// since its record was read.
///
/// Another client may renew it by its handle on the same session, which cuts this client's
/// connection. So the line is read as the leader knows it, and the deletion goes out only on the
/// connection on which the line was read.
pub(super) async fn expire(inner: &Inner, mut record: Record) -> Result<()> {
    let (stay, until) = (record.stay.clone(), record.until);
    if record.session.has_ended() {
        return keep::abandon(inner, &record).await;
    }
    if record.paths.is_empty() {
        match recover(inner, &record).await? {
            Some(found) => record = found,
            None => {
                forget(inner, &stay);
                return Ok(());
            }
        }
    }
    let times = record.session.times();
    let lineup = inner.read_line_now(&record.session, &record.name).await?;
    let stem = ttl_stem(record.ours);
    let line = inner.layout.line(&record.name);
    // Another client with its handle may have written it.
    record.note_path = lineup.note_of(record.ours).map(|node| format!("{line}/{node}"));
    let closed = lineup.is_closed(record.ours).then(|| closed_node(record.ours));
    record.closed_path = closed.map(|node| format!("{line}/{node}"));
    let visited = lineup.ttl_nodes(&stem).map(|node| format!("{line}/{node}")).next();
    if let Some(visited) = visited.filter(|path| Some(path) != record.ttl_path.as_ref()) {
        // Another client with its handle keeps it. If that ends, so does the claim, a ttl later.
        let span = ttl_of(&visited).unwrap_or(record.ttl);
        inner.book.visited(&stay, visited, SystemClock.now() + span);
        return Ok(());
    }
    // A claim whose record was forgotten and that was made again can have two places in line.
    let all = lineup.place(record.ours).map(|at| lineup.nodes_of(&lineup.entries[at]));
    for path in all.into_iter().flatten().map(|node| format!("{line}/{node}")) {
        if !record.paths.contains(&path) {
            record.paths.push(path);
        }
    }
    for _ in 0..ROUNDS_MAX {
        if !inner.book.end(&stay, until) {
            return Ok(());
        }
        let counts = Counts { expired: u64::from(record.held), ..Counts::default() };
        let nodes: Vec<&str> = record.paths[..1].iter().map(|path| leaf(path)).collect();
        let word = Farewell::Expired;
        let mut parts = feed::words(inner, &record.session, &nodes, &word).await?;
        if record.held {
            parts.push(sums::addition(inner, &record.session, &counts).await?);
        }
        parts.extend(record.all_paths().map(|path| Request::Delete { path: path.clone() }));
        let sent = record.session.send_on(times, Request::Multi(parts)).await?;
        let reply = sent.answer().await?;
        match failed(&inner.parts(&reply)?) {
            code::OK => {
                forget(inner, &stay);
                return Ok(());
            }
            code::NO_NODE
                if inner.data(&record.session, record.paths[0].clone()).await?.is_none() =>
            {
                forget(inner, &stay);
                return delete_beside(inner, &record).await;
            }
            code::NO_NODE | code::BAD_VERSION => {}
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// The ttl that a node tells of.
pub(super) fn ttl_of(node: &str) -> Option<Duration> {
    let millis = node.rsplit('-').next()?.strip_suffix("ms")?;
    Some(Duration::from_millis(millis.parse().ok()?))
}

fn leaf(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Takes a name from the claims that the order names.
pub(super) async fn evict(inner: &Inner, order: &Eviction) -> Result<Vec<Holder>> {
    let session = inner.pool.any().await?;
    for _ in 0..ROUNDS_MAX {
        if let Some(evicted) = evict_once(inner, &session, order).await? {
            if !evicted.is_empty() {
                let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
                tracing::warn!(%name, by, reason, "evicted");
            }
            return Ok(evicted);
        }
    }
    Err(inner.busy())
}

/// `None` if one of them left meanwhile.
async fn evict_once(
    inner: &Inner,
    session: &Session,
    order: &Eviction,
) -> Result<Option<Vec<Holder>>> {
    let lineup = inner.read_line_now(session, &order.name).await?;
    let line = inner.layout.line(&order.name);
    let held = &lineup.entries[..holding(&lineup.entries)];
    let mut evicted = Vec::with_capacity(held.len());
    let mut nodes = Vec::new();
    let mut deletes = Vec::new();
    let mut sessions: BTreeMap<i64, Vec<Duration>> = BTreeMap::new();
    for entry in held {
        let path = format!("{line}/{}", entry.node);
        let Some((data, stat)) = inner.data(session, path).await? else { return Ok(None) };
        if !order.names(inner.fence_at(session, stat.created).await?) {
            continue;
        }
        evicted.push(match entry.ours {
            Some(_) => Detail::decode(&data).holder,
            None => Detail::foreign().holder,
        });
        nodes.push(entry.node.as_str());
        let beside = entry.ours.into_iter().flat_map(|ours| lineup.beside(ours));
        let all = lineup.nodes_of(entry).chain(beside);
        deletes.extend(all.map(|node| format!("{line}/{node}")));
        if let Some(ours) = entry.ours {
            sessions.entry(ours.session).or_default().push(Detail::decode(&data).timeout);
        }
    }
    if evicted.is_empty() {
        return Ok(Some(evicted));
    }
    let word = Farewell::Evicted { reason: order.reason.clone() };
    let mut parts = feed::words(inner, session, &nodes, &word).await?;
    parts.extend(deletes.into_iter().map(|path| Request::Delete { path }));
    for (of, ended) in sessions {
        parts.extend(mark::without(inner, session, of, &ended).await?);
    }
    let reply = session.ask(Request::Multi(parts)).await?;
    match failed(&inner.parts(&reply)?) {
        code::OK => Ok(Some(evicted)),
        code::NO_NODE | code::BAD_VERSION => Ok(None),
        error => Err(inner.refusal(error)),
    }
}
