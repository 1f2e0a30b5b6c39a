//! Renewing: one keep-alive for each lease, then a look at whether the claims are still there.
//!
//! The look comes after the keep-alive, because older servers acknowledge the renewal of a lease
//! that is revoked. With very many claims each is looked at every few renewals; the standing watch
//! tells of those that went in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimKey, Renewal, Standing};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, Result};
use crate::name::Name;

use super::Inner;
use super::ask::RETRY_IN;
use super::book::{LOOK_ALWAYS_MAX, Record};
use super::detail::Detail;
use super::failure;
use super::leases::Granted;
use super::lineup::{self, Ahead, Lineup, first_with_value, holds, modes, read_many};
use super::mailbox;
use super::queue::Own;
use super::wire::{RangeRequest, RangeResponse, RequestOp};

/// With more, each claim is looked at with every fourth renewal at the latest.
const UNSEEN_MAX: u8 = 3;

/// A claim that is to be renewed.
struct Case<'a> {
    renewal: &'a Renewal,
    record: Option<Record>,
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
        let record = match inner.book.get(&renewal.key.token) {
            Some(record) if record.name == renewal.key.name => Some(record),
            _ => find(inner, &renewal.key).await?,
        };
        cases.push(Case { renewal, record, look: None });
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
        let seen = case.look.and_then(|at| looks.get(at).copied());
        let line = lines.get(&record.name);
        standings.push(one(inner, case.renewal, record, (seen, line), &kept, sent).await?);
    }
    Ok(standings)
}

/// Finds a claim that another client made: whoever has its handle may keep it.
pub(super) async fn find(inner: &Inner, key: &ClaimKey) -> Result<Option<Record>> {
    let ClaimKey { name, token } = key;
    let lineup = lineup::read_all_with_values(inner, name).await?;
    let Some(own) = lineup.own(token) else { return Ok(None) };
    let range: RangeResponse =
        inner.links.ask("/etcdserverpb.KV/Range", &RangeRequest::one(&own.key)).await?;
    let Some(kv) = range.kvs.into_iter().next() else { return Ok(None) };
    let mode = own.owner.mode();
    Ok(Some(Record {
        name: name.clone(),
        mode,
        detail: Detail::decode(&kv.value),
        created: kv.create_revision,
        modified: kv.mod_revision,
        lease: kv.lease,
        held: holds(modes(lineup.ahead(own.created)), mode),
        until: Moment::NEVER,
        unseen: u8::MAX,
        doubtful: false,
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
        if always || !record.held || record.unseen >= UNSEEN_MAX {
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

/// One claim's answer.
async fn one(
    inner: &Inner,
    renewal: &Renewal,
    record: &Record,
    (seen, line): (Option<Option<Look>>, Option<&Lineup>),
    kept: &Kept,
    sent: Moment,
) -> Result<Standing> {
    let token = renewal.key.token;
    let mut record = record.clone();
    let mut is_adopted = !record.own;
    match seen {
        Some(Some(look)) if look.created == record.created => {
            (record.modified, record.lease, record.unseen) = (look.modified, look.lease, 0);
        }
        Some(_) => {
            // Gone; or gone and back, by another client that has its token.
            inner.book.remove(&token);
            match find(inner, &renewal.key).await? {
                Some(found) => (record, is_adopted) = (found, true),
                None => {
                    inner.queue.forget(&record.name, &token);
                    return out(inner, &record.name).await;
                }
            }
        }
        None => record.unseen = record.unseen.saturating_add(1),
    }
    let mut count = 0;
    let waited = !record.held;
    if waited {
        let line = match line {
            Some(line) => line.clone(),
            None => lineup::read_all(inner, &record.name).await?,
        };
        let ahead = inner.ahead(&line, &record.name, record.mode, record.created).await?;
        record.held = ahead.whole && holds(modes(&ahead.entries), record.mode);
        count = ahead.count;
        if !record.held {
            let number = inner.fence(record.created).await?;
            stand_again(inner, (renewal, number), &record, &ahead, line.revision);
        }
    }
    let Some((lease, span)) = rest_on(inner, renewal, &mut record, kept).await? else {
        inner.book.remove(&token);
        return out(inner, &record.name).await;
    };
    record.until = SystemClock.now() + span;
    let (fence, held) = (inner.fence(record.created).await?, record.held);
    match is_adopted {
        true => inner.book.enter(token, record),
        false => inner.book.enter_again(token, record),
    }
    if waited && held {
        // Who waits need not ask: the connection on which that departure was not told may be of
        // no use for asking either.
        inner.belfry.ring(&token, fence);
    }
    Ok(match held {
        true => Standing::Held { fence, remaining: lease.left(sent, span) },
        false => Standing::Queued { ahead: count, retry_in: RETRY_IN },
    })
}

/// Sees to it that a claim is on the lease that it needs, which lives for the span returned; `None`
/// if it is gone.
async fn rest_on(
    inner: &Inner,
    renewal: &Renewal,
    record: &mut Record,
    kept: &Kept,
) -> Result<Option<(Granted, Duration)>> {
    let span = if record.held { renewal.ttl } else { renewal.patience };
    let lease = match kept.get(&span) {
        Some(lease) => *lease,
        None => inner.leases.term(span).obtain(&inner.links, span).await?,
    };
    if record.lease == lease.id && record.detail.ttl == renewal.ttl {
        return Ok(Some((lease, span)));
    }
    record.detail.ttl = renewal.ttl;
    match inner.rehang(record, lease.id).await {
        Ok(true) => Ok(Some((lease, span))),
        Ok(false) => Ok(None),
        Err(status) => {
            // A full store writes nothing, but keeps what there is: where the claim is, it lives
            // for as long as a waiting one.
            let span = renewal.patience.min(renewal.ttl);
            let term = inner.leases.term(span);
            if failure::is_out_of_space(&status) {
                let lease = term.obtain(&inner.links, span).await?;
                if lease.id == record.lease {
                    return Ok(Some((lease, span)));
                }
            }
            Err(inner.links.translate(&status))
        }
    }
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
    if let Some((token, fence)) = inner.queue.stands(&record.name, token, own, who, revision) {
        inner.belfry.ring(&token, fence);
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
