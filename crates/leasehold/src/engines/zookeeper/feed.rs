//! Events for those who watch.
//!
//! ZooKeeper tells that a node is gone, not why. A claim that held and is given back is written
//! before it is deleted; who ends one for another reason leaves a word in the same transaction: a
//! node that is created and deleted in it, whose name says all. What goes without a word ended with
//! its session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use crate::engine::{Event, EventKind, Query};
use crate::error::Result;
use crate::rule::claim::{Holder, Mode};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::nodes::{Ours, Sequence, decode, encode, holds, read_node, read_note_node};
use super::read::make;
use super::session::{Listener, Session};
use super::survey::{details, names, read_lines};
use super::wire::{Change, Request, Sort, code};

/// How long a watcher that died is believed in.
const PRESENCE: Duration = Duration::from_secs(20);
/// Events that wait to be told; beyond that the watcher is told that it missed some.
const EVENTS_MAX: usize = 10_000;
/// The pause before a broken watch is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a reason that are passed on.
const REASON_BYTES_MAX: usize = 1_024;

/// Why a claim ended, if not because its holder gave it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Farewell {
    Released,
    Expired,
    Evicted { reason: String },
}

impl Farewell {
    /// The name of the node that says so of another node.
    fn write(&self, of: &str) -> String {
        let (kind, reason) = match self {
            Farewell::Released => ("released", ""),
            Farewell::Expired => ("expired", ""),
            Farewell::Evicted { reason } => ("evicted", reason.as_str()),
        };
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        format!("{kind}:{}:{of}", encode(&reason[..end]).replace(':', "%3A"))
    }

    fn read(node: &str) -> Option<(&str, Farewell)> {
        let mut parts = node.splitn(3, ':');
        let (kind, reason, of) = (parts.next()?, parts.next()?, parts.next()?);
        let farewell = match kind {
            "released" => Farewell::Released,
            "expired" => Farewell::Expired,
            "evicted" => Farewell::Evicted { reason: decode(reason)? },
            _ => return None,
        };
        Some((of, farewell))
    }
}

/// The requests that leave a word about claims, if anybody listens.
pub(super) async fn words(
    inner: &Inner,
    session: &Session,
    nodes: &[&str],
    farewell: &Farewell,
) -> Result<Vec<Request>> {
    let watchers = session.ask(Request::Children { path: inner.layout.own("watchers") }).await?;
    if inner.children(&watchers)?.is_empty() {
        return Ok(Vec::new());
    }
    let acl = super::read::shared_acl(inner.has_login());
    let words = nodes.iter().flat_map(|node| {
        let path = inner.layout.own(&format!("farewells/{}", farewell.write(node)));
        let (data, acl) = (Vec::new(), acl.clone());
        let create = Request::Create { path: path.clone(), data, acl, sort: Sort::Ephemeral };
        [create, Request::Delete { path }]
    });
    Ok(words.collect())
}

/// What a watcher's session hears, on its way to the watcher.
struct Ear {
    events: mpsc::Sender<(Change, String)>,
    /// Whether something was not passed on.
    deaf: AtomicBool,
}

impl Listener for Ear {
    fn heard(&self, change: Change, path: &str) {
        if self.events.try_send((change, path.to_owned())).is_err() {
            self.deaf.store(true, Ordering::Release);
        }
    }

    fn back(&self, _session: i64) {
        self.deaf.store(true, Ordering::Release);
        // An event that is none wakes the watcher.
        drop(self.events.try_send((Change::Other, String::new())));
    }
}

/// A claim as a watcher knows it.
#[derive(Debug)]
struct Seen {
    node: String,
    sequence: Sequence,
    mode: Mode,
    ours: Option<Ours>,
    holder: Holder,
    fence: u64,
    held: bool,
    /// Its holder gave it back.
    given_back: bool,
}

struct Feed {
    inner: Arc<Inner>,
    query: Query,
    session: Session,
    ear: Arc<Ear>,
    heard: mpsc::Receiver<(Change, String)>,
    lines: HashMap<Name, Vec<Seen>>,
    farewells: HashMap<String, Farewell>,
    events: VecDeque<Event>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.session.close();
    }
}

pub(super) async fn watch(
    inner: Arc<Inner>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    let (events, heard) = mpsc::channel(EVENTS_MAX);
    let ear = Arc::new(Ear { events, deaf: AtomicBool::new(false) });
    let session = Session::open(inner.pool.servers(), PRESENCE, None).await?;
    session.listen(Arc::downgrade(&ear) as std::sync::Weak<dyn Listener>);
    let (lines, farewells, events) = (HashMap::new(), HashMap::new(), VecDeque::new());
    let mut feed = Feed { inner, query, session, ear, heard, lines, farewells, events };
    feed.begin().await?;
    let next = |mut feed: Feed| async move { Some((Ok(feed.next().await), feed)) };
    Ok(stream::unfold(feed, next).boxed())
}

impl Feed {
    /// Says that somebody watches, hears from now on, and reads the lines.
    async fn begin(&mut self) -> Result<()> {
        if self.session.has_ended() {
            let servers = self.inner.pool.servers();
            self.session = Session::open(servers, PRESENCE, None).await?;
            self.session.listen(Arc::downgrade(&self.ear) as std::sync::Weak<dyn Listener>);
        }
        let (inner, session) = (&self.inner, &self.session);
        let (login, store) = (inner.has_login(), &inner.info.store);
        for what in ["watchers", "farewells"] {
            let path = inner.layout.own(what);
            make(session, path, Sort::Container, Vec::new(), login, store).await?;
        }
        let path = inner.layout.own(&format!("watchers/{:016x}", session.id()));
        make(session, path, Sort::Ephemeral, Vec::new(), login, store).await?;
        // Before it is asked for: a connection that breaks from here on is to be noticed.
        self.ear.deaf.store(false, Ordering::Release);
        let path = inner.layout.root().to_owned();
        let watched = session.ask(Request::WatchBelow { path }).await?;
        if watched.code != code::OK {
            return Err(inner.refusal(watched.code));
        }
        self.lines.clear();
        let names: Vec<Name> = names(inner, session, &self.query).await?.into_iter().collect();
        let lineups = read_lines(inner, session, &names).await?;
        for (name, lineup) in names.into_iter().zip(lineups) {
            let details = details(inner, session, &name, &lineup).await?;
            let mut line: Vec<Seen> = Vec::with_capacity(details.len());
            for (entry, detail) in lineup.entries.into_iter().zip(details) {
                let Some((detail, stat)) = detail else { continue };
                line.push(Seen {
                    node: entry.node,
                    sequence: entry.sequence,
                    mode: entry.mode,
                    ours: entry.ours,
                    holder: detail.holder,
                    fence: inner.fence_at(session, stat.created).await?,
                    held: false,
                    given_back: false,
                });
            }
            settle(&mut line);
            self.lines.insert(name, line);
        }
        Ok(())
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.ear.deaf.load(Ordering::Acquire) || self.session.has_ended() {
                self.begin_again().await;
                continue;
            }
            if let Some((change, path)) = self.heard.recv().await {
                self.take_in(change, &path).await;
            }
        }
    }

    /// The watch broke: what happened since is not known.
    async fn begin_again(&mut self) {
        let known = self.lines.keys().next().cloned();
        loop {
            while self.heard.try_recv().is_ok() {}
            match self.begin().await {
                Ok(()) => {
                    if let Some(name) = known.or_else(|| self.lines.keys().next().cloned()) {
                        self.events.push_back(Event::missed(0, &name));
                    }
                    return;
                }
                Err(error) => tracing::debug!(%error, "cannot watch"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn take_in(&mut self, change: Change, path: &str) {
        let words = self.inner.layout.own("farewells/");
        if let Some(word) = path.strip_prefix(&words) {
            if let (Change::Created, Some((of, farewell))) = (change, Farewell::read(word)) {
                self.farewells.insert(of.to_owned(), farewell);
            }
            return;
        }
        let Some((name, node)) = self.inner.layout.read(path) else { return };
        if !self.query.admits(&name) {
            return;
        }
        if let Some(ours) = read_note_node(node) {
            if change == Change::Created {
                self.amended(&name, ours);
            }
            return;
        }
        match change {
            Change::Created => self.arrive(&name, node, path).await,
            Change::Written => {
                let line = self.lines.entry(name).or_default();
                if let Some(seen) = line.iter_mut().find(|seen| seen.node == node) {
                    seen.given_back |= seen.ours.is_some();
                }
            }
            Change::Deleted => self.depart(&name, node),
            Change::Other => {}
        }
    }

    /// A claim has another note.
    fn amended(&mut self, name: &Name, ours: Ours) {
        let mut line = self.lines.get(name).into_iter().flatten();
        let told = line.find(|seen| seen.ours == Some(ours));
        let told = told.map(|seen| event(EventKind::Amended, name, seen));
        self.tell(told);
    }

    async fn arrive(&mut self, name: &Name, node: &str, path: &str) {
        let Some(entry) = read_node(node.to_owned()) else { return };
        let line = self.lines.entry(name.clone()).or_default();
        let is_known =
            |seen: &Seen| seen.node == node || (seen.ours.is_some() && seen.ours == entry.ours);
        if line.iter().any(is_known) {
            return;
        }
        let read = self.inner.data(&self.session, path.to_owned()).await;
        // Who came and went before it could be read is known to have done neither.
        let Ok(Some((data, stat))) = read else { return };
        let Ok(fence) = self.inner.fence_at(&self.session, stat.created).await else { return };
        let detail = match entry.ours {
            Some(_) => Detail::decode(&data),
            None => Detail::foreign(),
        };
        let seen = Seen {
            node: entry.node,
            sequence: entry.sequence,
            mode: entry.mode,
            ours: entry.ours,
            holder: detail.holder,
            fence,
            held: false,
            given_back: false,
        };
        let line = self.lines.entry(name.clone()).or_default();
        let at = line.partition_point(|other| other.sequence.is_before(seen.sequence));
        line.insert(at, seen);
        settle(line);
        let seen = &line[at];
        let kind = if seen.held { EventKind::Granted } else { EventKind::Queued };
        let told = event(kind, name, seen);
        self.tell([told]);
    }

    fn depart(&mut self, name: &Name, node: &str) {
        let farewell = self.farewells.remove(node);
        let Some(line) = self.lines.get_mut(name) else { return };
        let Some(at) = line.iter().position(|seen| seen.node == node) else { return };
        let gone = line.remove(at);
        let kind = match farewell {
            Some(Farewell::Evicted { reason }) => EventKind::Evicted { reason },
            Some(Farewell::Expired) => EventKind::Expired,
            // Others delete their nodes to give back, and lose them with their sessions; the
            // first is the likelier.
            _ if !gone.held => EventKind::Left,
            Some(Farewell::Released) => EventKind::Released,
            None if gone.given_back || gone.ours.is_none() => EventKind::Released,
            None => EventKind::Expired,
        };
        let mut told = vec![event(kind, name, &gone)];
        for at in settle(line) {
            told.push(event(EventKind::Granted, name, &line[at]));
        }
        if line.is_empty() {
            self.lines.remove(name);
        }
        self.tell(told);
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>) {
        let query = &self.query;
        self.events.extend(events.into_iter().filter(|event| query.admits_event(event)));
    }
}

/// Marks who holds; returns the places of those who did not before.
fn settle(line: &mut [Seen]) -> Vec<usize> {
    let mut fresh = Vec::new();
    let mut ahead = Vec::with_capacity(line.len());
    for (at, seen) in line.iter_mut().enumerate() {
        if !holds(ahead.iter().copied(), seen.mode) {
            break;
        }
        if !seen.held {
            seen.held = true;
            fresh.push(at);
        }
        ahead.push(seen.mode);
    }
    fresh
}

fn event(kind: EventKind, name: &Name, seen: &Seen) -> Event {
    Event { kind, name: name.clone(), holder: seen.holder.clone(), fence: seen.fence.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_says_of_whom_and_why() {
        let evicted = Farewell::Evicted { reason: "stuck: a/b\nsince 100 %".into() };
        for farewell in [Farewell::Released, Farewell::Expired, evicted] {
            let node = farewell.write("x:y__lock__0000000001");
            assert!(!node.contains('/') && !node.contains('\n'), "{node}");
            assert_eq!(Farewell::read(&node), Some(("x:y__lock__0000000001", farewell)));
        }
    }
}
