//! Renewing: one keep-alive for each lease, then a look at whether the claims are still there.
//!
//! The look comes after the keep-alive, because older servers acknowledge the renewal of a lease
//! that is revoked. With very many claims each is looked at every few renewals; the standing watch
//! tells of those that went in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::Wake;
use crate::error::{Error, Result};
use crate::rule::claim::{ClaimKey, Place, Renewal, Standing};
use crate::rule::name::Name;
use crate::seeded::{Seeded, seeded};

use super::Inner;
use super::ask::{RETRY_IN, ROUNDS_MAX, Rehung, written_again};
use super::book::{Entered, LOOK_ALWAYS_MAX, Record, Source};
use super::detail::Detail;
use super::failure;
use super::leases::Granted;
use super::lineup::{self, Ahead, Lineup, first_with_value, holds, modes, read_many};
use super::mailbox;
use super::queue::Own;
use super::wire::{LeaseRequest, RangeRequest, RangeResponse, RequestOp, TimeToLive};

/// A claim that is to be renewed.
struct Case<'a> {
    renewal: &'a Renewal,
    record: Option<Record>,
    /// Whether this client knew it, or found it in the store.
    is_known: bool,
    /// Where it is among what was read: its own key.
    look: Option<usize>,
}

pub(super) async fn renew(inner: &Arc<Inner>, renewals: &[Renewal]) -> Result<Vec<Standing>> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let sent = SystemClock.now();
    let mut cases = Vec::with_capacity(renewals.len());
    for renewal in renewals {
        let known = inner.book.get(&renewal.key);
        let is_known = known.is_some();
        let record = match known {
            Some(record) => Some(record),
            None => find(inner, &renewal.key).await?,
        };
        cases.push(Case { renewal, record, is_known, look: None });
    }
    let kept = keep(inner, &cases).await?;
    let heard = mailbox::is_open(inner);
    if !heard && cases.len() > LOOK_ALWAYS_MAX {
        listen(inner).await;
    }
    let (looks, lines) = look(inner, &mut cases, heard).await?;
    let mut standings = Vec::with_capacity(cases.len());
    for case in &cases {
        let Some(record) = &case.record else {
            standings.push(out(inner, &case.renewal.key.name).await?);
            continue;
        };
        let heartbeat = Heartbeat { inner, renewal: case.renewal, kept: &kept, sent };
        let look = case.look.and_then(|at| looks.get(at).copied());
        let line = lines.get(&record.name);
        let source = match case.is_known {
            true => Source::Known { seen: look.is_some() },
            false => Source::Found { before: None },
        };
        standings.push(heartbeat.answer((record, source), look, line).await?);
    }
    Ok(standings)
}

/// Finds a claim that another client made. Each client with its handle may renew it.
pub(super) async fn find(inner: &Inner, key: &ClaimKey) -> Result<Option<Record>> {
    let ClaimKey { name, token } = key;
    let lineup = lineup::read_all_with_values(inner, name).await?;
    let Some(own) = lineup.own(token) else { return Ok(None) };
    let range: RangeResponse =
        inner.links.ask("/etcdserverpb.KV/Range", &RangeRequest::one(&own.key)).await?;
    let Some(kv) = range.kvs.into_iter().next() else { return Ok(None) };
    let mode = own.owner.mode();
    // The line was read for the claim's place at that time. It may have another one by now.
    let is_there = kv.create_revision == own.created;
    Ok(Some(Record {
        name: name.clone(),
        mode,
        detail: Detail::decode(&kv.value),
        created: kv.create_revision,
        modified: kv.mod_revision,
        lease: kv.lease,
        held: is_there && holds(modes(lineup.ahead(own.created)), mode),
        until: Moment::NEVER,
        seen: kv.mod_revision,
        key: kv.key,
        own: false,
    }))
}

/// The spans for which leases were kept, and those leases.
type Kept = HashMap<Duration, Granted>;

async fn keep(inner: &Inner, cases: &[Case<'_>]) -> Result<Kept> {
    let mut kept = Kept::new();
    for Case { renewal, record, .. } in cases {
        let Some(record) = record else { continue };
        let span = if record.held { renewal.ttl } else { renewal.patience };
        if let std::collections::hash_map::Entry::Vacant(entry) = kept.entry(span) {
            entry.insert(inner.leases.term(span).obtain(&inner.links, span).await?);
        }
    }
    Ok(kept)
}

/// A key as it was found.
#[derive(Clone, Copy)]
struct Look {
    created: i64,
    modified: i64,
    lease: i64,
}

/// What was looked at, in order; `None` for what is gone.
type Looks = Vec<Option<Look>>;

/// Hears of claims that go, from now on: not all of so many are looked at each time.
async fn listen(inner: &Arc<Inner>) {
    if let Err(error) = mailbox::ensure(inner).await {
        tracing::debug!(%error, "all claims are looked at, because none is heard to go");
    }
}

/// Looks at claims: at all of them, unless they are many and it would have been `heard` that one
/// went.
async fn look(
    inner: &Inner,
    cases: &mut [Case<'_>],
    heard: bool,
) -> Result<(Looks, HashMap<Name, Lineup>)> {
    let always = !heard || cases.len() <= LOOK_ALWAYS_MAX;
    let mut reads: Vec<RequestOp> = Vec::new();
    let mut names: Vec<Name> = Vec::new();
    for case in cases.iter_mut() {
        let Some(record) = &case.record else { continue };
        let claim = &case.renewal.key;
        if always || !record.held || inner.book.is_to_be_seen(claim, record.created) {
            case.look = Some(reads.len());
            reads.push(RangeRequest::one(&record.key).without_values().op());
        }
    }
    let keys = reads.len();
    for case in cases.iter() {
        if let Some(record) = case.record.as_ref().filter(|record| !record.held)
            && !names.contains(&record.name)
        {
            names.push(record.name.clone());
            reads.push(lineup::head(&inner.layout, &record.name).op());
        }
    }
    let mut found = read_many(inner, reads).await?.into_iter();
    let own = |(range, _): (RangeResponse, i64)| {
        let kv = range.kvs.into_iter().next();
        kv.map(|kv| Look {
            created: kv.create_revision,
            modified: kv.mod_revision,
            lease: kv.lease,
        })
    };
    let looks = found.by_ref().take(keys).map(own).collect();
    let line = |(name, (range, revision)): (Name, (RangeResponse, i64))| {
        let lineup = Lineup::read(&inner.layout, &name, range, revision);
        (name, lineup)
    };
    Ok((looks, names.into_iter().zip(found).map(line).collect()))
}

/// The renewal of one claim.
struct Heartbeat<'a> {
    inner: &'a Inner,
    renewal: &'a Renewal,
    kept: &'a Kept,
    sent: Moment,
}

impl Heartbeat<'_> {
    /// The claim's answer. `look` is what was found at its key, if that was looked at.
    async fn answer(
        &self,
        (record, source): (&Record, Source<'_>),
        look: Option<Option<Look>>,
        line: Option<&Lineup>,
    ) -> Result<Standing> {
        let Self { inner, renewal, .. } = self;
        let ClaimKey { name, token } = &renewal.key;
        let mut there = record.clone();
        let is_there = match look {
            Some(Some(look)) if look.created == record.created => {
                (there.modified, there.lease) = (look.modified, look.lease);
                true
            }
            Some(_) => false,
            None => true,
        };
        if is_there && let Some(standing) = self.judge(there, source, line).await? {
            return Ok(standing);
        }
        // Gone; or gone and back: its waiter asked again, or another client has its token.
        inner.book.remove(&renewal.key, record.created);
        inner.queue.lost(name, token, record.created);
        let standing = match find(inner, &renewal.key).await? {
            Some(found) => {
                // The line was read before the claim came back, and does not know who came first.
                let line = line.filter(|_| seeded(Seeded::LineFromBefore));
                self.judge(found, Source::Found { before: None }, line).await?
            }
            None => None,
        };
        match standing {
            Some(standing) => Ok(standing),
            None => out(inner, name).await,
        }
    }

    /// How a claim stands; `None` if it is not at that place any more.
    async fn judge(
        &self,
        mut record: Record,
        source: Source<'_>,
        line: Option<&Lineup>,
    ) -> Result<Option<Standing>> {
        let Self { inner, renewal, kept, sent } = *self;
        let mut count = 0;
        let waited = !record.held;
        if waited {
            let read;
            let line = match line {
                Some(line) => line,
                None => {
                    read = lineup::read_all(inner, &record.name).await?;
                    &read
                }
            };
            let ahead = inner.ahead(line, &record.name, record.mode, record.created).await?;
            record.held = ahead.whole && holds(modes(&ahead.entries), record.mode);
            count = ahead.count;
            if !record.held {
                let number = inner.fence(record.created).await?;
                stand_again(inner, (renewal, number), &record, &ahead, line.revision);
            }
        }
        let Some((lease, span)) = rest_on(inner, renewal, &mut record, kept).await? else {
            return Ok(None);
        };
        record.until = SystemClock.now() + span;
        let (fence, held) = (inner.fence(record.created).await?, record.held);
        if !enter(inner, &renewal.key, &mut record, source, lease.id).await? {
            return Ok(None);
        }
        if waited && held {
            // The waiter need not ask: the connection that did not report that departure may be of
            // no use for asking either.
            inner.bell_registry.ring(&renewal.key.token, Wake::holds_at(fence));
        }
        Ok(Some(match held {
            true => Standing::Held { fence, remaining: lease.left(sent, span) },
            false => {
                let place = Place::new(fence);
                Standing::Queued { place, ahead: count, retry_in: RETRY_IN }
            }
        }))
    }
}

/// Notes what a renewal found. False if the sweep deleted the claim meanwhile, or it was given
/// back, or it has another place.
async fn enter(
    inner: &Inner,
    claim: &ClaimKey,
    record: &mut Record,
    source: Source<'_>,
    lease: i64,
) -> Result<bool> {
    loop {
        match inner.book.take_in(claim, record, source) {
            Entered::Done => return Ok(true),
            Entered::Elsewhere => return Ok(false),
            Entered::Ending => {}
        }
        // The sweep may delete it at any time, unless it is written first.
        let written = inner.rehang(record, lease).await;
        if !written.map_err(|status| inner.links.translate(&status))? {
            return Ok(false);
        }
    }
}

/// Sees to it that a claim is on the lease that it needs, which lives for the span returned; `None`
/// if it is gone.
///
/// A claim that holds never ends sooner by this: with a shorter ttl it stays for as long as it
/// would have lasted anyway. Another client with its handle may have prolonged it meanwhile, so
/// what others wrote is judged again.
async fn rest_on(
    inner: &Inner,
    renewal: &Renewal,
    record: &mut Record,
    kept: &Kept,
) -> Result<Option<(Granted, Duration)>> {
    let asked = if record.held { renewal.ttl } else { renewal.patience };
    for _ in 0..ROUNDS_MAX {
        let span = match record.held {
            true => asked.max(lasts_anyway(inner, asked, record).await?),
            false => asked,
        };
        if span > asked
            && let Some(lease) = inner.leases.granted(record.lease)
            && lease.covers(SystemClock.now(), span)
        {
            return Ok(Some((lease, span)));
        }
        let lease = match kept.get(&span) {
            Some(lease) => *lease,
            None => inner.leases.term(span).obtain(&inner.links, span).await?,
        };
        let ttl = if span > asked { span } else { renewal.ttl };
        if record.lease == lease.id && record.detail.ttl == ttl {
            return Ok(Some((lease, span)));
        }
        record.detail.ttl = ttl;
        match inner.rehang_unless_written(record, lease.id).await {
            Ok(Rehung::Done) => return Ok(Some((lease, span))),
            Ok(Rehung::Gone) => return Ok(None),
            Ok(Rehung::Written(kv)) => {
                record.detail = Detail::decode(&kv.value);
                (record.modified, record.seen) = (kv.mod_revision, kv.mod_revision);
                (record.lease, record.until) = (kv.lease, Moment::NEVER);
            }
            Err(status) => {
                // A full store writes nothing, but keeps what there is: where the claim is, it
                // lives for as long as a waiting one.
                let span = renewal.patience.min(renewal.ttl);
                let term = inner.leases.term(span);
                if failure::is_out_of_space(&status) {
                    let lease = term.obtain(&inner.links, span).await?;
                    if lease.id == record.lease {
                        return Ok(Some((lease, span)));
                    }
                }
                return Err(inner.links.translate(&status));
            }
        }
    }
    Err(inner.links.translate(&written_again()))
}

/// How long a claim lasts if nobody renews it: until its time is up by this client's clock, or, if
/// another client made it, for no longer than its lease has left.
async fn lasts_anyway(inner: &Inner, asked: Duration, record: &Record) -> Result<Duration> {
    if record.until != Moment::NEVER {
        return Ok(record.until.since(SystemClock.now()));
    }
    if asked >= record.detail.ttl {
        return Ok(Duration::ZERO);
    }
    let path = "/etcdserverpb.Lease/LeaseTimeToLive";
    let left: TimeToLive = inner.links.ask(path, &LeaseRequest::of(record.lease)).await?;
    // The server says it in whole seconds, rounded down.
    let left = u64::try_from(left.ttl).map_or(0, |seconds| seconds + 1);
    Ok(Duration::from_secs(left).min(record.detail.ttl))
}

/// What a heartbeat read of the line repairs whatever the watch missed.
fn stand_again(
    inner: &Inner,
    (renewal, number): (&Renewal, u64),
    record: &Record,
    ahead: &Ahead,
    revision: i64,
) {
    let token = renewal.key.token;
    let who = (&*ahead.entries, ahead.whole);
    let Record { key, created, mode, .. } = record.clone();
    let own = Own { key, created, fence: number, mode };
    if let Some((token, wake)) = inner.queue.reads(&record.name, token, own, who, revision) {
        inner.bell_registry.ring(&token, wake);
    }
}

/// The answer for a claim that is not in its line.
pub(super) async fn out(inner: &Inner, name: &Name) -> Result<Standing> {
    let reads =
        vec![lineup::head(&inner.layout, name).op(), first_with_value(&inner.layout, name).op()];
    let mut found = read_many(inner, reads).await?.into_iter();
    let (Some((line, revision)), Some((first, _))) = (found.next(), found.next()) else {
        return Err(inner.odd());
    };
    let lineup = Lineup::read(&inner.layout, name, line, revision);
    let by = match (inner.first_holder(name, &first), lineup.count) {
        (None, 1..) => inner.holder_of_first(name, &lineup).await?,
        (by, _) => by,
    };
    Ok(Standing::Out { ahead: lineup.count, retry_in: Duration::ZERO, by })
}

impl Inner {
    /// An answer that etcd never gives.
    pub(super) fn odd(&self) -> Error {
        Error::Store {
            store: self.links.store.clone(),
            cause: "it does not answer as an etcd server does".into(),
            transient: false,
        }
    }
}
