//! Events for those who watch.
//!
//! etcd tells that a key is gone, not why. Who takes a claim from its owner, or ends one that was
//! not renewed, leaves a word in the same transaction. A key that goes without a word was given
//! back if its lease lives, and has run out if that is gone too. So while somebody watches, a
//! client that closes lets its leases end by themselves.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};

use crate::engine::kit::epochs::Epochs;
use crate::engine::{Event, EventKind, Query};
use crate::error::Result;
use crate::rule::claim::{Holder, Note};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::epoch::fence;
use super::keys::{Layout, Owner};
use super::leases;
use super::lineup::holds;
use super::link::Watch;
use super::survey::{scan, span_of};
use super::wire::{
    KeyEvent, KeyValue, LeaseRequest, RangeRequest, RangeResponse, Span, TimeToLive,
};
use super::wire::{TxnRequest, WatchCreate, WatchResponse, put};

/// Where words of farewell are left.
pub(super) const FAREWELL: &str = "farewell";
/// How long a watcher that died is believed in.
const PRESENCE: Duration = Duration::from_secs(30);
/// How often a watcher says that it is there.
const PRESENT_EVERY: Duration = Duration::from_secs(10);
/// The pause before a broken watch is opened again, or a lease is revoked again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a watcher that is done tries to revoke its lease. The connection may just have broken.
const REVOKE_TRIES: usize = 3;

const DELETED: i32 = 1;

/// Where watchers say that they are there.
pub(super) fn watchers(layout: &Layout) -> Span {
    Span::prefix(&layout.own("watcher:"))
}

/// The word about a claim whose client did not renew it.
pub(super) fn farewell_expired(created: i64) -> String {
    format!("expired\n{created}")
}

/// The word about claims that were taken.
pub(super) fn farewell_evicted(reason: &str, created: impl Iterator<Item = i64>) -> String {
    let created: Vec<String> = created.map(|created| created.to_string()).collect();
    format!("evicted\n{}\n{reason}", created.join(" "))
}

/// What a word of farewell says.
#[derive(Debug, Default)]
struct Farewell {
    expired: HashSet<i64>,
    evicted: HashMap<i64, String>,
}

impl Farewell {
    fn hear(&mut self, word: &[u8]) {
        let Ok(word) = std::str::from_utf8(word) else { return };
        match word.split_once('\n') {
            Some(("expired", created)) => self.expired.extend(created.parse::<i64>()),
            Some(("evicted", rest)) => {
                let (created, reason) = rest.split_once('\n').unwrap_or((rest, ""));
                let created = created.split(' ').filter_map(|created| created.parse().ok());
                self.evicted.extend(created.map(|created| (created, reason.to_owned())));
            }
            _ => {}
        }
    }
}

/// A claim as a watcher knows it.
#[derive(Debug)]
struct Seen {
    created: i64,
    fence: u64,
    key: Vec<u8>,
    owner: Owner,
    holder: Holder,
    note: Note,
    lease: i64,
    held: bool,
}

struct Feed {
    inner: Arc<Inner>,
    query: Query,
    presence: Presence,
    watch: Watch,
    lines: HashMap<Name, Vec<Seen>>,
    /// What is added to revisions, as of the last event.
    epochs: Arc<Epochs>,
    events: VecDeque<Event>,
}

pub(super) async fn watch(
    inner: Arc<Inner>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    let presence = Presence::new(&inner).await?;
    let (watch, lines, epochs) = begin(&inner, &query).await?;
    let feed = Feed { inner, query, presence, watch, lines, epochs, events: VecDeque::new() };
    let next = |mut feed: Feed| async move { Some((Ok(feed.next().await), feed)) };
    Ok(stream::unfold(feed, next).boxed())
}

/// Reads the lines, and watches from there on.
async fn begin(
    inner: &Inner,
    query: &Query,
) -> Result<(Watch, HashMap<Name, Vec<Seen>>, Arc<Epochs>)> {
    let mut lines: HashMap<Name, Vec<Seen>> = HashMap::new();
    let revision = scan(inner, &span_of(inner, &query.select), true, |kv| {
        if let Some((name, owner)) = inner.layout.read(&kv.key)
            && query.admits(&name)
        {
            lines.entry(name).or_default().push(Seen::new(kv, owner));
        }
    })
    .await?;
    let epochs = inner.epochs(revision).await?;
    for line in lines.values_mut() {
        line.iter_mut().for_each(|seen| seen.fence = fence(&epochs, seen.created));
        line.sort_by_key(|seen| seen.created);
        settle(line);
    }
    let span = inner.layout.all();
    let create = WatchCreate {
        key: span.from,
        range_end: span.to,
        start_revision: revision + 1,
        ..WatchCreate::default()
    };
    let watch = inner.links.watch(&create).await;
    Ok((watch.map_err(|status| inner.links.translate(&status))?, lines, epochs))
}

impl Seen {
    fn new(kv: KeyValue, owner: Owner) -> Self {
        let Detail { holder, note, .. } = match owner {
            Owner::Ours { .. } => Detail::decode(&kv.value),
            Owner::Foreign => Detail::foreign(),
        };
        let (created, lease) = (kv.create_revision, kv.lease);
        Self { created, fence: 0, key: kv.key, owner, holder, note, lease, held: false }
    }
}

/// Marks who holds; returns the places of those who did not before.
fn settle(line: &mut [Seen]) -> Vec<usize> {
    let mut fresh = Vec::new();
    let mut ahead = Vec::with_capacity(line.len());
    for (at, seen) in line.iter_mut().enumerate() {
        let mode = seen.owner.mode();
        if !holds(ahead.iter().copied(), mode) {
            break;
        }
        if !seen.held {
            seen.held = true;
            fresh.push(at);
        }
        ahead.push(mode);
    }
    fresh
}

impl Feed {
    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            tokio::select! {
                message = self.watch.next() => match message {
                    Some(message) => self.take_in(message).await,
                    None => self.begin_again().await,
                },
                () = tokio::time::sleep(PRESENT_EVERY) => {}
            }
            self.presence.say().await;
        }
    }

    /// The watch broke: what happened since is not known.
    async fn begin_again(&mut self) {
        loop {
            match begin(&self.inner, &self.query).await {
                Ok((watch, lines, epochs)) => {
                    let anywhere = self.lines.keys().chain(lines.keys()).next().cloned();
                    (self.watch, self.lines, self.epochs) = (watch, lines, epochs);
                    if let Some(name) = anywhere {
                        self.events.push_back(Event::missed(0, &name));
                    }
                    return;
                }
                Err(error) => tracing::debug!(%error, "cannot watch"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn take_in(&mut self, message: WatchResponse) {
        let word = self.inner.layout.own(FAREWELL);
        let mut farewells: HashMap<i64, Farewell> = HashMap::new();
        for kv in message.events.iter().filter_map(|event| event.kv.as_ref()) {
            if kv.key == word {
                farewells.entry(kv.mod_revision).or_default().hear(&kv.value);
            }
        }
        let silence = Farewell::default();
        for KeyEvent { kind, kv, .. } in message.events {
            let Some(kv) = kv else { continue };
            if self.inner.is_epoch(&kv.key) {
                self.enter_epoch(kind, &kv);
                continue;
            }
            let Some((name, owner)) = self.inner.layout.read(&kv.key) else { continue };
            if !self.query.admits(&name) {
                continue;
            }
            if kind == DELETED {
                let farewell = farewells.get(&kv.mod_revision).unwrap_or(&silence);
                self.depart(&name, &kv.key, farewell).await;
            } else {
                let fence = fence(&self.epochs, kv.create_revision);
                self.arrive(&name, Seen { fence, ..Seen::new(kv, owner) });
            }
        }
    }

    /// Who comes after this has other fences.
    fn enter_epoch(&mut self, kind: i32, kv: &KeyValue) {
        let record = (kind != DELETED).then_some(kv);
        match self.inner.learn_epochs(record, kv.mod_revision) {
            Ok(epochs) => self.epochs = epochs,
            Err(error) => tracing::warn!(%error, "events have the fences of before"),
        }
    }

    fn arrive(&mut self, name: &Name, seen: Seen) {
        let line = self.lines.entry(name.clone()).or_default();
        if let Some(known) = line.iter_mut().find(|known| known.key == seen.key) {
            // It moved to another lease, or was amended.
            known.lease = seen.lease;
            if known.note != seen.note {
                known.note = seen.note;
                let told = event(EventKind::Amended, name, known);
                self.tell([told]);
            }
            return;
        }
        line.push(seen);
        settle(line);
        let told = line.last().map(|last| {
            let kind = if last.held { EventKind::Granted } else { EventKind::Queued };
            event(kind, name, last)
        });
        self.tell(told);
    }

    async fn depart(&mut self, name: &Name, key: &[u8], farewell: &Farewell) {
        let Some(line) = self.lines.get_mut(name) else { return };
        let Some(at) = line.iter().position(|seen| seen.key == key) else { return };
        let gone = line.remove(at);
        let kind = match farewell.evicted.get(&gone.created) {
            Some(reason) => EventKind::Evicted { reason: reason.clone() },
            None if farewell.expired.contains(&gone.created) => EventKind::Expired,
            // Other clients end their leases when they are done; that they gave the lock back is
            // the likelier.
            None if gone.owner != Owner::Foreign && !lives(&self.inner, gone.lease).await => {
                EventKind::Expired
            }
            None if gone.held => EventKind::Released,
            None => EventKind::Left,
        };
        let Some(line) = self.lines.get_mut(name) else { return };
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

/// Whether a lease is there. Who cannot be asked counts as alive.
async fn lives(inner: &Inner, id: i64) -> bool {
    let path = "/etcdserverpb.Lease/LeaseTimeToLive";
    let asked = inner.links.try_ask::<_, TimeToLive>(path, &LeaseRequest::of(id)).await;
    asked.is_ok_and(|answer| answer.ttl >= 0) || id == 0
}

/// Whether somebody watches the store.
pub(super) async fn is_watched(inner: &Inner) -> bool {
    let mut request = RangeRequest::span(&watchers(&inner.layout));
    request.count_only = true;
    let asked = inner.links.try_ask::<_, RangeResponse>("/etcdserverpb.KV/Range", &request).await;
    asked.is_ok_and(|answer| answer.count > 0)
}

fn event(kind: EventKind, name: &Name, seen: &Seen) -> Event {
    Event { kind, name: name.clone(), holder: seen.holder.clone(), fence: seen.fence.into() }
}

/// Says in the store that somebody watches.
struct Presence {
    inner: Arc<Inner>,
    lease: Lease,
    said: tokio::time::Instant,
}

impl Presence {
    async fn new(inner: &Arc<Inner>) -> Result<Self> {
        let lease = Self::appear(inner).await?;
        Ok(Self { inner: Arc::clone(inner), lease, said: tokio::time::Instant::now() })
    }

    async fn appear(inner: &Arc<Inner>) -> Result<Lease> {
        let links = &inner.links;
        let id = leases::fresh_id();
        // Noted before it is asked for: the answer may be lost.
        let lease = Lease { inner: Arc::clone(inner), id };
        leases::grant_once(links, id, PRESENCE).await?;
        let key = inner.layout.own(&format!("watcher:{id:x}"));
        let request = TxnRequest { success: vec![put(&key, b"", id)], ..TxnRequest::default() };
        links.txn(&request).await.map_err(|status| links.translate(&status))?;
        Ok(lease)
    }

    /// Says it again when it is time. Failing costs the watcher only the reasons.
    async fn say(&mut self) {
        if self.said.elapsed() < PRESENT_EVERY {
            return;
        }
        self.said = tokio::time::Instant::now();
        let said = match self.inner.links.keep_alive(self.lease.id).await {
            Ok(1..) => Ok(()),
            Ok(_) => Self::appear(&self.inner).await.map(|lease| self.lease = lease),
            Err(status) => Err(self.inner.links.translate(&status)),
        };
        if let Err(error) = said {
            tracing::debug!(%error, "a watcher cannot say that it is there");
        }
    }
}

/// A lease that this client asked for, and revokes when it is dropped.
struct Lease {
    inner: Arc<Inner>,
    id: i64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Without a runtime it ends by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, id) = (Arc::clone(&self.inner), self.id);
        runtime.spawn(async move {
            for _ in 0..REVOKE_TRIES {
                if leases::revoke(&inner.links, id).await {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_says_who_and_why() {
        let mut farewell = Farewell::default();
        farewell.hear(farewell_expired(5).as_bytes());
        farewell.hear(farewell_evicted("stuck\nsince noon", [7, 9].into_iter()).as_bytes());
        assert!(farewell.expired.contains(&5));
        assert_eq!(farewell.evicted[&9], "stuck\nsince noon");
    }
}
