//! Giving back: one transaction for many claims, each removed only if it is the very one that was
//! made. Whoever is next hears of it through the standing watch.
//!
//! Also what a client does about its own claims that nobody renewed, and taking a name by force.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::{Counts, Eviction};
use crate::error::{Error, Result};
use crate::rule::claim::{ClaimKey, Holder, Mode, Released, Token};
use crate::rule::name::Name;

use super::Inner;
use super::book::Record;
use super::detail::Detail;
use super::feed;
use super::left;
use super::lineup::{self, Entry, first_with_value, holds, modes};
use super::slots::Slot;
use super::sums;
use super::wire::{Compare, Done, KeyValue, RangeRequest, RequestOp, TxnRequest, TxnResponse};
use super::wire::{delete, put};

/// Claims in one transaction: a quarter of what a server allows, because each has a read beside it.
const BATCH_MAX: usize = 32;
/// How often something is tried when the line changes under it.
const ROUNDS_MAX: usize = 8;
/// A revision at which no key was created.
pub(super) const NEVER_CREATED: i64 = i64::MAX;
/// The pause before a claim that could not be removed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What became of one claim.
enum Outcome {
    Told(Released),
    /// It is there, but not the one that was meant: it was created then.
    CreatedAt(i64),
}

/// A claim that is to leave: its key and the revision it was created at.
#[derive(Clone)]
struct Leaving<'a> {
    index: usize,
    name: &'a Name,
    token: &'a Token,
    key: Vec<u8>,
    created: i64,
}

pub(super) async fn release(inner: &Inner, keys: &[ClaimKey]) -> Result<Vec<Released>> {
    let busy: Vec<_> = keys.iter().map(|key| inner.book.slots.busy(key)).collect();
    let kept = busy.iter().all(|busy| busy.keeps_key());
    // Whatever becomes of the request: nobody waits for the claims any more.
    for key in keys {
        inner.queue.forget(&key.name, &key.token);
        inner.book.gives_back(key, SystemClock.now());
    }
    let before = inner.links.abandoned();
    let mut released = take_out(inner, keys, kept).await?;
    for (key, released) in keys.iter().zip(&mut released) {
        let now = SystemClock.now();
        let was_known = inner.book.given_back(key, inner.links.abandoned(), now);
        // A member that did not answer may have removed the claim before another was asked.
        if was_known && inner.links.abandoned() != before {
            *released = Released::Released;
        }
    }
    drop(busy);
    Ok(released)
}

/// Forgets claims that are not there any more: whoever took one up by its handle, or took it away,
/// did not tell.
pub(super) async fn forget_gone(inner: &Inner) -> Result<()> {
    let claims = inner.book.all();
    let reads = claims.iter().map(|(_, record)| RangeRequest::one(&record.key));
    let reads = reads.map(|range| range.without_values().op()).collect();
    let found = lineup::read_many(inner, reads).await?;
    for ((claim, record), (range, _)) in claims.iter().zip(found) {
        let is_it =
            |kv: &KeyValue| kv.create_revision == record.created && kv.lease == record.lease;
        if !range.kvs.iter().any(is_it) {
            inner.book.remove(claim, record.created);
        }
    }
    Ok(())
}

/// Removes claims. `kept` says that no other claim gets one of their keys meanwhile.
async fn take_out(inner: &Inner, keys: &[ClaimKey], kept: bool) -> Result<Vec<Released>> {
    let mut released = vec![Released::AlreadyExpired; keys.len()];
    let mut leaving = Vec::with_capacity(keys.len());
    let mut lines: HashMap<&Name, lineup::Lineup> = HashMap::new();
    let mut seen = HashSet::with_capacity(keys.len());
    let (mut own, mut only, mut noted) = (false, false, Vec::new());
    let mut leases = BTreeSet::new();
    for (index, claim @ ClaimKey { name, token }) in keys.iter().enumerate() {
        if !seen.insert(claim) {
            // etcd compares before it removes anything, so the second of two would find itself.
            let key = inner.layout.key(name, Slot::of(token), Mode::Exclusive);
            leaving.push(Leaving { index, name, token, key, created: NEVER_CREATED });
            continue;
        }
        if let Some(record) = inner.book.get(claim) {
            let Record { key, created, .. } = record;
            leaving.push(Leaving { index, name, token, key, created });
            // A shared claim's key is its own for ever.
            own = record.own && (kept || record.mode == Mode::Shared);
            only = inner.book.slots.is_only_one(name, record.mode);
            noted.push(index);
            continue;
        }
        // Somebody else's, by its handle, or one whose answer never came.
        if !lines.contains_key(name) {
            lines.insert(name, lineup::read_all_with_values(inner, name).await?);
        }
        let found = lines.get(name).and_then(|line| line.own(token));
        // One that is not there is asked for all the same: in its turn, who holds is told.
        let (key, created) = match found {
            Some(Entry { key, created, lease, .. }) => {
                leases.insert(*lease);
                (key.clone(), *created)
            }
            None => (inner.layout.key(name, Slot::of(token), Mode::Exclusive), NEVER_CREATED),
        };
        leaving.push(Leaving { index, name, token, key, created });
    }
    if let [one] = leaving.as_slice()
        && own
        && remove_one(inner, (one.name, only), &one.key).await?
    {
        return Ok(vec![Released::Released]);
    }
    for batch in leaving.chunks_mut(BATCH_MAX) {
        remove_batch(inner, batch, &mut released).await?;
    }
    for index in noted {
        if released[index] != Released::Released && take_from_elsewhere(inner, &keys[index]).await?
        {
            released[index] = Released::Released;
            // Those behind it were told of a line that it was in.
            let name = &keys[index].name;
            let behind = leaving.iter().filter(|other| other.index > index && other.name == name);
            for batch in behind.cloned().collect::<Vec<_>>().chunks_mut(BATCH_MAX) {
                remove_batch(inner, batch, &mut released).await?;
            }
        }
    }
    left::end_empty(inner, leases).await;
    Ok(released)
}

/// Removes claims in one transaction, again if one of them left and came back meanwhile.
async fn remove_batch(
    inner: &Inner,
    batch: &mut [Leaving<'_>],
    released: &mut [Released],
) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        let answer = remove(inner, batch).await?;
        let outcomes = outcomes(inner, batch, answer)?;
        let mut moved = false;
        for (leaving, outcome) in batch.iter_mut().zip(outcomes) {
            match outcome {
                Outcome::Told(outcome) if released[leaving.index] != Released::Released => {
                    released[leaving.index] = outcome;
                }
                Outcome::Told(_) => {}
                // It left and came back since this client last heard of it.
                Outcome::CreatedAt(created) => (leaving.created, moved) = (created, true),
            }
        }
        if !moved {
            break;
        }
    }
    Ok(())
}

/// A claim that is not where this client noted it: another that has its token may have given it
/// back and made it anew, with a key of its own.
async fn take_from_elsewhere(inner: &Inner, claim: &ClaimKey) -> Result<bool> {
    let ClaimKey { name, token } = claim;
    let line = lineup::read_all_with_values(inner, name).await?;
    let Some(Entry { key, created, lease, .. }) = line.own(token).cloned() else {
        return Ok(false);
    };
    let answer = remove(inner, &[Leaving { index: 0, name, token, key, created }]).await?;
    left::end_empty(inner, BTreeSet::from([lease])).await;
    let done = answer.responses.into_iter().next().and_then(|response| response.done);
    Ok(matches!(done, Some(Done::Txn(one)) if one.succeeded))
}

/// The usual case. No comparison is needed: this client made the claim, and no other has its key
/// before all requests about it are answered. Half the work of a transaction for the server.
async fn remove_one(inner: &Inner, of: (&Name, bool), key: &[u8]) -> Result<bool> {
    let answer = inner.links.delete_of(of, key.to_vec()).await;
    let answer = answer.map_err(|status| inner.links.translate(&status))?;
    Ok(answer.deleted > 0)
}

async fn remove(inner: &Inner, batch: &[Leaving<'_>]) -> Result<TxnResponse> {
    let removals = batch.iter().map(|leaving| {
        let compare = vec![Compare::created(&leaving.key, leaving.created)];
        let success = vec![delete(&leaving.key)];
        let first = first_with_value(&inner.layout, leaving.name).op();
        let failure = vec![first, RangeRequest::one(&leaving.key).op()];
        TxnRequest { compare, success, failure }.op()
    });
    let request = TxnRequest { success: removals.collect(), ..TxnRequest::default() };
    let answer = inner.links.txn(&request).await;
    answer.map_err(|status| inner.links.translate(&status))
}

fn outcomes(inner: &Inner, batch: &[Leaving<'_>], answer: TxnResponse) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::with_capacity(batch.len());
    for (leaving, response) in batch.iter().zip(answer.responses) {
        let Some(Done::Txn(one)) = response.done else { return Err(inner.odd()) };
        if one.succeeded {
            outcomes.push(Outcome::Told(Released::Released));
            continue;
        }
        let mut ranges = one.ranges();
        let (first, own) = (ranges.next().unwrap_or_default(), ranges.next().unwrap_or_default());
        let own = own.kvs.first().filter(|_| leaving.created != NEVER_CREATED);
        // Its key may be another claim's by now.
        let own = own.filter(|own| inner.token_at(leaving.name, own) == Some(*leaving.token));
        outcomes.push(match (own, inner.first_holder(leaving.name, &first)) {
            (Some(own), _) => Outcome::CreatedAt(own.create_revision),
            (None, Some(holder)) => Outcome::Told(Released::TakenBy(holder)),
            (None, None) => Outcome::Told(Released::AlreadyExpired),
        });
    }
    match outcomes.len() == batch.len() {
        true => Ok(outcomes),
        false => Err(inner.odd()),
    }
}

/// Removes this client's claims whose time is up. Returns when the next one's is.
pub(super) async fn sweep(inner: &Inner) -> Option<Moment> {
    look_for_late(inner).await;
    let (overdue, mut next) = inner.book.overdue(SystemClock.now());
    for (claim, record) in overdue {
        match expire(inner, &claim, &record).await {
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(%error, "a claim whose time is up was not removed yet");
                let again = SystemClock.now() + AGAIN;
                let later = |record: &mut Record| record.until = record.until.max(again);
                inner.book.change_at(&claim, record.created, later);
                next = Some(next.map_or(again, |next| next.min(again)));
            }
        }
    }
    next
}

/// Removes claims that came to be after they were given back. All at once: where nobody answers,
/// one waits no longer than the other.
async fn look_for_late(inner: &Inner) {
    let doubts = inner.book.doubts(SystemClock.now());
    let keys: Vec<ClaimKey> = doubts.iter().map(|doubt| doubt.key.clone()).collect();
    if keys.is_empty() {
        return;
    }
    let looked = take_out(inner, &keys, false).await;
    let is_silent = |looked: &Result<Vec<Released>>| match looked {
        Ok(_) => false,
        Err(error) => {
            tracing::debug!(%error, "claims that may have come late were not looked for");
            error.is_transient()
        }
    };
    let (failed, silent) = (looked.is_err(), is_silent(&looked));
    for doubt in doubts {
        // What is refused for one says nothing of the others.
        let silent = match failed && !silent {
            true => is_silent(&take_out(inner, std::slice::from_ref(&doubt.key), false).await),
            false => silent,
        };
        inner.book.doubt_again(doubt, SystemClock.now(), !silent);
    }
}

/// Ends a claim that was not renewed in time. Leaves it alone if it was renewed since its record
/// was read.
pub(super) async fn expire(inner: &Inner, claim: &ClaimKey, record: &Record) -> Result<()> {
    if !inner.book.end(claim, record) {
        return Ok(());
    }
    delete_expired(inner, claim, record).await
}

/// Deletes the key of a claim, if it was not written since the record was read.
pub(super) async fn delete_expired(inner: &Inner, claim: &ClaimKey, record: &Record) -> Result<()> {
    let counts = Counts { expired: u64::from(record.held), ..Counts::default() };
    for _ in 0..ROUNDS_MAX {
        let sum = sums::read_one(inner).await?;
        let mut compare = vec![Compare::modified(&record.key, record.modified)];
        let word = feed::farewell_expired(record.created);
        let word = put(&inner.layout.own(feed::FAREWELL), word.as_bytes(), 0);
        let mut success = vec![delete(&record.key), word];
        if record.held {
            compare.push(Compare::modified(&sum.key, sum.modified));
            success.push(put(&sum.key, sum.plus(&counts).as_bytes(), 0));
        }
        let failure = vec![RangeRequest::one(&record.key).without_values().op()];
        let request = TxnRequest { compare, success, failure };
        let answer = inner.links.txn(&request).await;
        let answer = answer.map_err(|status| inner.links.translate(&status))?;
        let done = answer.succeeded;
        let current = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        let same = |now: &Record| now.until == record.until;
        if !inner.book.get(claim).is_some_and(|now| same(&now)) {
            // It was renewed meanwhile, and is not overdue.
            return Ok(());
        }
        match current.filter(|_| !done) {
            Some(kv) if kv.mod_revision == record.modified => {}
            Some(kv) if kv.create_revision == record.created && inner.leases.has(kv.lease) => {
                // A request of this client wrote it, and its answer was lost or comes later. This
                // client keeps its lease alive, so nobody else ends it. The next sweep tries again,
                // unless the answer renews the claim before.
                inner.book.was_written(claim, record.created, kv.mod_revision, kv.lease);
                return Err(inner.busy());
            }
            // Gone, or taken up by another client.
            _ => {
                inner.book.remove(claim, record.created);
                return Ok(());
            }
        }
    }
    Err(inner.busy())
}

/// Sweeps for as long as the engine is there.
pub(super) async fn keep_sweeping(inner: std::sync::Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let next = sweep(&strong).await.unwrap_or(Moment::NEVER);
        let book = Arc::clone(&strong.book);
        drop(strong);
        tokio::select! {
            () = book.sooner.notified() => {}
            () = SystemClock.sleep_until(next) => {}
        }
    }
}

/// Takes a name from the claims that the order names.
pub(super) async fn evict(inner: &Inner, order: &Eviction) -> Result<Vec<Holder>> {
    for _ in 0..ROUNDS_MAX {
        let lineup = lineup::read_all(inner, &order.name).await?;
        let mut named = Vec::new();
        for entry in holding(&lineup.entries) {
            if order.names(inner.fence(entry.created).await?) {
                named.push(entry.clone());
            }
        }
        if named.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(evicted) = evict_these(inner, order, &named).await? {
            left::end_empty(inner, named.iter().map(|entry| entry.lease).collect()).await;
            let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
            tracing::warn!(%name, by, reason, "evicted");
            return Ok(evicted);
        }
    }
    Err(inner.busy())
}

/// Those of a line that hold.
pub(super) fn holding(entries: &[Entry]) -> &[Entry] {
    let mut count = 0;
    while count < entries.len() && holds(modes(&entries[..count]), entries[count].owner.mode()) {
        count += 1;
    }
    &entries[..count]
}

/// `None` if one of them left meanwhile.
async fn evict_these(
    inner: &Inner,
    order: &Eviction,
    named: &[Entry],
) -> Result<Option<Vec<Holder>>> {
    let mut evicted = Vec::with_capacity(named.len());
    for batch in named.chunks(BATCH_MAX) {
        let reads = batch.iter().map(|entry| RangeRequest::one(&entry.key).op());
        let mut success: Vec<RequestOp> = reads.collect();
        success.extend(batch.iter().map(|entry| delete(&entry.key)));
        let fences = batch.iter().map(|entry| entry.created);
        let farewell = feed::farewell_evicted(&order.reason, fences);
        let word = put(&inner.layout.own(feed::FAREWELL), farewell.as_bytes(), 0);
        let nobody = vec![Compare::none_in(&feed::watchers(&inner.layout))];
        success.push(TxnRequest { compare: nobody, success: Vec::new(), failure: vec![word] }.op());
        let compare: Vec<Compare> =
            batch.iter().map(|entry| Compare::created(&entry.key, entry.created)).collect();
        let request = TxnRequest { compare, success, failure: Vec::new() };
        let answer = inner.links.txn(&request).await;
        let answer = answer.map_err(|status| inner.links.translate(&status))?;
        if !answer.succeeded {
            return Ok(None);
        }
        let values = answer.ranges().filter_map(|range| range.kvs.into_iter().next());
        evicted.extend(values.map(|kv| Detail::decode(&kv.value).holder));
    }
    Ok(Some(evicted))
}

impl Inner {
    pub(super) fn busy(&self) -> Error {
        Error::Store {
            store: self.links.store.clone(),
            cause: "too many change the same thing at once".into(),
            transient: true,
        }
    }
}
