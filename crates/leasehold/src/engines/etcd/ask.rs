//! Making a claim: into the line and to its answer in one transaction.
//!
//! If nobody is in its way the claim is written on the lease of its ttl, and holds. Else it is
//! written on the lease of its patience, so that a waiter that dies is gone soon, and the line is
//! read in the same transaction. A claim of another kind than the line's writes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tonic::Status;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::kit::epochs::Epochs;
use crate::error::{Error, Kind, Result};
use crate::rule::claim::{Claim, ClaimKey, Mode, Place, Standing};
use crate::rule::line::{CLAIMS_MAX, Refusal};

use super::Inner;
use super::book::{Entered, Record, Source};
use super::detail::Detail;
use super::epoch::fence;
use super::failure;
use super::leases::{Granted, Term};
use super::leave::{self, NEVER_CREATED};
use super::left;
use super::lineup::{self, Ahead, Lineup, first_with_value, holds, modes};
use super::mailbox;
use super::queue::Own;
use super::wire::{Compare, KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use super::wire::{delete, put};

/// How often a claim is tried when the line changes under it.
pub(super) const ROUNDS_MAX: usize = 16;
/// The most operations of a transaction that every server takes unless told otherwise.
const OPERATIONS_MAX: usize = 128;
/// When to ask again although no bell rang; the heartbeat looks sooner.
pub(super) const RETRY_IN: Duration = Duration::from_secs(10);

/// One claim on its way.
struct Asking<'a> {
    inner: &'a Arc<Inner>,
    claim: &'a Claim,
    key: Vec<u8>,
    /// Whether that is this client's, and not that of another client which made the claim.
    own: bool,
    detail: Detail,
    /// The claim as it was known before the request.
    before: Option<Record>,
    /// What is added to revisions, as of the last answer.
    epochs: Arc<Epochs>,
    /// Writes although there is something in the line that may be of another kind.
    anyway: bool,
    /// Whether it is heard who leaves while the request is on its way.
    hears: bool,
    /// Whether it is the only one of this client's on its name.
    only: bool,
    /// Says only what to do if nobody is there, which is likely.
    short: bool,
}

/// What a round came to.
enum Round {
    Done(Standing),
    Again,
}

/// Where the claim was found or put.
struct Found<'a> {
    created: i64,
    modified: i64,
    lease: i64,
    lineup: &'a Lineup,
}

pub(super) async fn claim(inner: &Arc<Inner>, claim: &Claim) -> Result<Standing> {
    inner.book.want(&claim.key);
    let before = inner.links.abandoned();
    let slot = inner.book.slots.take(&claim.key, claim.mode, before);
    let _busy = inner.book.slots.busy(&claim.key);
    let (mut key, mut own) = (inner.layout.key(&claim.key.name, slot, claim.mode), true);
    let mut detail = Detail::of(claim);
    if let Some(record) = inner.book.get(&claim.key) {
        detail.joined_ms = record.detail.joined_ms;
        if record.mode == claim.mode {
            (key, own) = (record.key, record.own);
        }
    }
    let mut asking = Asking::new(inner, claim, (key, own), detail);
    let mut unanswered = Unanswered { inner, key: &claim.key, answered: false };
    for _ in 0..ROUNDS_MAX {
        if let Round::Done(standing) = asking.round().await? {
            unanswered.end(before);
            if let Standing::Out { .. } = standing
                && inner.book.get(&claim.key).is_none()
            {
                // It was not written.
                inner.book.slots.end(&claim.key, true, inner.links.abandoned());
            }
            drop(unanswered);
            if let Standing::Out { .. } = standing {
                inner.book.not_made(&claim.key, SystemClock.now());
            }
            return Ok(standing);
        }
    }
    Err(Error::Store {
        store: inner.links.store.clone(),
        cause: format!("the line of `{}` changes too fast to join it", claim.key.name),
        transient: true,
    })
}

/// Notes that nobody waited for the answer to a request about a claim: the request may yet take
/// effect.
struct Unanswered<'a> {
    inner: &'a Inner,
    key: &'a ClaimKey,
    answered: bool,
}

impl Unanswered<'_> {
    /// An answer came. `abandoned` is how many requests were given up when the first was sent: one
    /// that was given up since may yet take effect, also when the claim is long over.
    fn end(&mut self, abandoned: u64) {
        self.answered = self.inner.links.abandoned() == abandoned;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.inner.book.gave_up(self.key);
        }
    }
}

/// Makes claims on several names that nobody is in the way of, in one transaction.
pub(super) async fn claim_all(
    inner: &Arc<Inner>,
    claims: &[Claim],
) -> Result<Option<Vec<Standing>>> {
    // Each comparison counts, and a claim needs three at most.
    if claims.len() * 3 > OPERATIONS_MAX {
        return Ok(None);
    }
    let before = inner.links.abandoned();
    let unanswered = |claim| Unanswered { inner, key: claim, answered: false };
    let mut unanswered: Vec<_> = claims.iter().map(|claim| unanswered(&claim.key)).collect();
    let mut all = Vec::with_capacity(claims.len());
    let mut request = TxnRequest::default();
    request.success.push(inner.epoch_request().op());
    for claim in claims {
        let (name, mode) = (&claim.key.name, claim.mode);
        let lease = inner.leases.term(claim.ttl).obtain(&inner.links, claim.ttl).await?;
        let slot = inner.book.slots.take(&claim.key, mode, inner.links.abandoned());
        let key = inner.layout.key(name, slot, mode);
        let asking = Asking::new(inner, claim, (key, true), Detail::of(claim));
        let others = inner.layout.other_kinds(name, mode);
        let spans = inner.layout.in_the_way(name, mode).into_iter().chain(others);
        request.compare.extend(spans.map(|span| Compare::none_in(&span)));
        request.compare.push(Compare::created(&asking.key, 0));
        request.success.push(put(&asking.key, &asking.detail.encode(), lease.id));
        request.failure.push(RangeRequest::one(&asking.key).without_values().op());
        all.push((asking, lease));
    }
    let sent = SystemClock.now();
    let answer = match inner.links.txn(&request).await {
        Ok(answer) => answer,
        Err(status) if failure::is_lease_gone(&status) => {
            for unanswered in &mut unanswered {
                unanswered.end(before);
            }
            for (asking, lease) in &all {
                inner.leases.term(asking.claim.ttl).forget(lease.id);
                inner.book.slots.end(&asking.claim.key, true, inner.links.abandoned());
            }
            return Ok(None);
        }
        Err(status) => return Err(inner.links.translate(&status)),
    };
    for unanswered in &mut unanswered {
        unanswered.end(before);
    }
    if answer.succeeded {
        let revision = answer.revision();
        let epochs = inner.epochs_in(&mut answer.ranges(), revision)?;
        let held = |(mut asking, lease): (Asking<'_>, Granted)| {
            asking.epochs = Arc::clone(&epochs);
            asking.held((revision, revision), lease, sent)
        };
        return Ok(Some(all.into_iter().map(held).collect()));
    }
    if answer.ranges().any(|own| !own.kvs.is_empty()) {
        // They are there, by a request whose answer was lost: one by one they are found again.
        let keys: Vec<ClaimKey> = claims.iter().map(|claim| claim.key.clone()).collect();
        leave::release(inner, &keys).await?;
    }
    for claim in claims {
        // None of them was written, or all were removed.
        inner.book.slots.end(&claim.key, true, inner.links.abandoned());
    }
    Ok(None)
}

impl<'a> Asking<'a> {
    fn new(
        inner: &'a Arc<Inner>,
        claim: &'a Claim,
        (key, own): (Vec<u8>, bool),
        detail: Detail,
    ) -> Self {
        let ClaimKey { name, .. } = &claim.key;
        let only = inner.book.slots.is_only_one(name, claim.mode);
        let short = claim.join && own && only && inner.quiet.is(name);
        let (anyway, hears, epochs, before) = (false, false, Arc::default(), None);
        Self { inner, claim, key, own, detail, before, epochs, anyway, hears, only, short }
    }

    async fn round(&mut self) -> Result<Round> {
        let Inner { links, leases, .. } = &**self.inner;
        let (claim, sent) = (self.claim, SystemClock.now());
        let term = leases.term(claim.ttl);
        let lease = match term.alive(sent) {
            Some(lease) => lease,
            None => term.obtain(links, claim.ttl).await?,
        };
        let later = leases.term(claim.patience);
        // One that ends too soon is kept alive when the claim is in line: on a slow network there
        // is none that is sure to last until an answer.
        let waiting = later.alive(sent);
        let waiting = waiting.filter(|_| claim.join && self.own && !self.short);
        if claim.join {
            self.inner.queue.asks(&claim.key.name, claim.key.token);
            self.hears = mailbox::is_open(self.inner);
        }
        self.before = self.inner.book.get(&claim.key);
        let request = self.request(lease.id, waiting);
        let answer = links.txn_of((&claim.key.name, self.only), request);
        // A lease that ends too soon is kept alive beside the claim, not before it.
        let (answer, kept) = match term.ready(sent, claim.ttl) {
            Some(lease) => (answer.await, lease),
            None => {
                let (answer, kept) = join(answer, term.obtain(links, claim.ttl)).await;
                (answer, kept?)
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => return self.failed(&status, (&term, lease), (&later, waiting)),
        };
        if kept.id != lease.id {
            // The lease had ended, and what was written on it ends with it.
            return Ok(Round::Again);
        }
        let lease = kept;
        self.read(answer, (lease, waiting), sent).await
    }

    /// A lease may have ended without our knowledge; any other failure is the caller's.
    fn failed(
        &self,
        status: &Status,
        (term, lease): (&Term, Granted),
        (later, waiting): (&Term, Option<Granted>),
    ) -> Result<Round> {
        if !failure::is_lease_gone(status) {
            return Err(self.inner.links.translate(status));
        }
        term.forget(lease.id);
        if let Some(waiting) = waiting {
            later.forget(waiting.id);
        }
        Ok(Round::Again)
    }

    fn request(&self, lease: i64, waiting: Option<Granted>) -> TxnRequest {
        let (layout, claim) = (&self.inner.layout, self.claim);
        let name = &claim.key.name;
        let value = self.detail.encode();
        let absent = || Compare::created(&self.key, 0);
        let in_the_way = layout.in_the_way(name, claim.mode);
        let mut compare: Vec<Compare> = in_the_way.iter().map(Compare::none_in).collect();
        if claim.mode == Mode::Shared {
            // For the others the whole line is in the way, and this key is in it.
            compare.push(absent());
        }
        if self.short {
            let success = vec![self.inner.epoch_request().op(), put(&self.key, &value, lease)];
            return TxnRequest { compare, success, failure: Vec::new() };
        }
        let line = lineup::head_with_values(layout, name).op();
        let own = RangeRequest::one(&self.key).op();
        let epochs = self.inner.epoch_request().op();
        if !self.own {
            // Only whose key it is writes there: for him it may be another claim's by now.
            let compare = vec![Compare::created(&self.key, NEVER_CREATED)];
            let failure = vec![epochs, line, own];
            return TxnRequest { compare, success: Vec::new(), failure };
        }
        let failure = match waiting {
            Some(waiting) => {
                let mut compare = vec![absent()];
                if !self.anyway {
                    let others = layout.other_kinds(name, claim.mode);
                    compare.extend(others.iter().map(Compare::none_in));
                }
                let put = put(&self.key, &value, waiting.id);
                let success = vec![epochs.clone(), put, line.clone()];
                let failure = vec![epochs.clone(), line, own];
                vec![TxnRequest { compare, success, failure }.op()]
            }
            // Who does not join is told who is first.
            None if !claim.join => {
                vec![epochs.clone(), line, own, first_with_value(layout, name).op()]
            }
            None => vec![epochs.clone(), line, own],
        };
        TxnRequest { compare, success: vec![epochs, put(&self.key, &value, lease)], failure }
    }

    async fn read(
        &mut self,
        answer: TxnResponse,
        (lease, waiting): (Granted, Option<Granted>),
        sent: Moment,
    ) -> Result<Round> {
        let (claim, revision) = (self.claim, answer.revision());
        if answer.succeeded {
            self.epochs = self.inner.epochs_in(&mut answer.ranges(), revision)?;
            let standing = self.held((revision, revision), lease, sent);
            if self.only {
                self.inner.quiet.met_nobody(&claim.key.name);
            }
            return Ok(Round::Done(standing));
        }
        self.inner.quiet.met_somebody(&claim.key.name);
        if self.short {
            self.short = false;
            return Ok(Round::Again);
        }
        let (answer, joined) = match waiting {
            None => (answer, false),
            Some(_) => match answer.inner() {
                Some(inner) => (inner.clone(), inner.succeeded),
                None => return Err(self.inner.odd()),
            },
        };
        let mut ranges = answer.ranges();
        self.epochs = self.inner.epochs_in(&mut ranges, revision)?;
        let (Some(line), own, first) = (ranges.next(), ranges.next(), ranges.next()) else {
            return Err(self.inner.odd());
        };
        let lineup = Lineup::read(&self.inner.layout, &claim.key.name, line, revision);
        let own = own.and_then(|own| own.kvs.into_iter().next());
        let token = Some(claim.key.token);
        let is_somebodys = own.is_some();
        let own = own.filter(|own| self.inner.token_at(&claim.key.name, own) == token);
        let elsewhere = lineup.own_but_at(&claim.key.token, &self.key).cloned();
        if own.is_none() && elsewhere.is_none() && (is_somebodys || !self.own) {
            self.change_key();
            return Ok(Round::Again);
        }
        if joined && elsewhere.is_some() {
            // Another client made it already; there is one claim for a token.
            self.undo(revision).await?;
        }
        let found = match (joined, waiting, own, elsewhere) {
            (_, _, None, Some(other)) => {
                (self.key, self.own) = (other.key, false);
                (other.created, other.modified, other.lease)
            }
            (true, Some(waiting), _, _) => (revision, revision, waiting.id),
            (_, _, Some(own), _) => (own.create_revision, own.mod_revision, own.lease),
            _ => return self.not_in_line((&lineup, first), lease, sent).await,
        };
        let joined = joined && self.own;
        let (created, modified, on) = found;
        if joined && let Some(refusal) = self.refusal(&lineup) {
            self.undo(created).await?;
            return Err(refusal.into_error(claim));
        }
        let found = Found { created, modified, lease: on, lineup: &lineup };
        self.settle(found, lease, sent).await
    }

    /// The claim is not where it was thought to be, and must not be written there.
    fn change_key(&mut self) {
        let (slots, claim) = (&self.inner.book.slots, self.claim);
        if self.own {
            slots.replace(&claim.key);
        }
        let slot = slots.take(&claim.key, claim.mode, self.inner.links.abandoned());
        (self.key, self.own) = (self.inner.layout.key(&claim.key.name, slot, claim.mode), true);
    }

    /// Why the line does not take this claim.
    fn refusal(&self, lineup: &Lineup) -> Option<Refusal> {
        let kind = Kind::from(self.claim.mode);
        match lineup.kind() {
            Some(in_force) if in_force != kind => Some(Refusal::Mismatch(in_force)),
            _ if lineup.count > CLAIMS_MAX => Some(Refusal::Full),
            _ => None,
        }
    }

    async fn undo(&self, created: i64) -> Result<()> {
        let compare = vec![Compare::created(&self.key, created)];
        let success = vec![delete(&self.key)];
        let request = TxnRequest { compare, success, failure: Vec::new() };
        let undone = self.inner.links.txn(&request).await;
        undone.map(|_| ()).map_err(|status| self.inner.links.translate(&status))
    }

    /// The claim is in nobody's line yet: refused, or to be written with another request.
    async fn not_in_line(
        &mut self,
        (lineup, first): (&Lineup, Option<RangeResponse>),
        lease: Granted,
        sent: Moment,
    ) -> Result<Round> {
        let (inner, claim) = (self.inner, self.claim);
        if let Some(refusal @ Refusal::Mismatch(_)) = self.refusal(lineup) {
            return Err(refusal.into_error(claim));
        }
        if claim.join {
            if lineup.count >= CLAIMS_MAX {
                return Err(Refusal::Full.into_error(claim));
            }
            let later = inner.leases.term(claim.patience);
            match later.alive(SystemClock.now()) {
                Some(_) => self.anyway = true,
                None => drop(later.obtain(&inner.links, claim.patience).await?),
            }
            return Ok(Round::Again);
        }
        let whole = match lineup.whole {
            true => lineup.clone(),
            false => lineup::read_all(inner, &claim.key.name).await?,
        };
        if !holds(modes(&whole.entries), claim.mode) {
            let first = first.and_then(|first| inner.first_holder(&claim.key.name, &first));
            let by = match first {
                Some(holder) => Some(holder),
                None => inner.holder_of_first(&claim.key.name, &whole).await?,
            };
            let ahead = whole.entries.len();
            return Ok(Round::Done(Standing::Out { ahead, retry_in: RETRY_IN, by }));
        }
        // There is room, unless somebody came since the line was read.
        let line = inner.layout.line(&claim.key.name);
        let compare =
            vec![Compare::none_after(&line, whole.revision), Compare::created(&self.key, 0)];
        let put = put(&self.key, &self.detail.encode(), lease.id);
        let success = vec![inner.epoch_request().op(), put];
        let request = TxnRequest { compare, success, failure: Vec::new() };
        match inner.links.txn(&request).await {
            Ok(answer) if answer.succeeded => {
                let revision = answer.revision();
                self.epochs = inner.epochs_in(&mut answer.ranges(), revision)?;
                Ok(Round::Done(self.held((revision, revision), lease, sent)))
            }
            Ok(_) => Ok(Round::Again),
            Err(status) if failure::is_lease_gone(&status) => {
                inner.leases.term(claim.ttl).forget(lease.id);
                Ok(Round::Again)
            }
            Err(status) => Err(inner.links.translate(&status)),
        }
    }

    /// The claim is in line: does it hold?
    async fn settle(&mut self, found: Found<'_>, lease: Granted, sent: Moment) -> Result<Round> {
        let (inner, claim) = (self.inner, self.claim);
        let (name, mode) = (&claim.key.name, claim.mode);
        let ahead = inner.ahead(found.lineup, name, mode, found.created).await?;
        let Ahead { entries, whole, count } = &ahead;
        if *whole && holds(modes(entries), mode) {
            return self.confirm(found, lease, sent).await;
        }
        if claim.join && !self.hears {
            // Nobody told of whoever left since the line was read: it is asked for once more.
            mailbox::ensure(inner).await?;
            return Ok(Round::Again);
        }
        let span = claim.patience;
        let kept = inner.leases.term(span).obtain(&inner.links, span).await?;
        let mut record = self.record(found.created, found.modified, found.lease);
        if found.lease != kept.id {
            match self.rehang(&mut record, kept.id).await? {
                true => {}
                false => return Ok(Round::Again),
            }
        }
        record.until = SystemClock.now() + span;
        if !self.enter(&mut record, kept.id).await? {
            return Ok(Round::Again);
        }
        let fence = fence(&self.epochs, found.created);
        let (token, revision) = (claim.key.token, found.lineup.revision);
        let own = Own { key: self.key.clone(), created: found.created, fence, mode };
        let ring = inner.queue.stands(name, token, own, (entries, *whole), revision);
        if let Some((token, wake)) = ring {
            inner.bell_registry.ring(&token, wake);
        }
        let place = Place::new(fence);
        Ok(Round::Done(Standing::Queued { place, ahead: *count, retry_in: RETRY_IN }))
    }

    /// The claim holds; it gets its whole ttl.
    async fn confirm(&mut self, found: Found<'_>, lease: Granted, sent: Moment) -> Result<Round> {
        let mut record = self.record(found.created, found.modified, found.lease);
        let known = self.inner.book.get(&self.claim.key);
        let same_ttl = known.is_none_or(|known| known.detail.ttl == self.claim.ttl);
        if (found.lease != lease.id || !same_ttl) && !self.rehang(&mut record, lease.id).await? {
            return Ok(Round::Again);
        }
        record.held = true;
        record.until = SystemClock.now() + self.claim.ttl;
        if !self.enter(&mut record, lease.id).await? {
            return Ok(Round::Again);
        }
        Ok(Round::Done(self.told(found.created, lease, sent)))
    }

    /// Notes what was found. False if the claim has another place by now, or none.
    async fn enter(&self, record: &mut Record, lease: i64) -> Result<bool> {
        loop {
            let source = Source::Found { before: self.before.as_ref() };
            match self.inner.book.take_in(&self.claim.key, record, source) {
                Entered::Done => return Ok(true),
                Entered::Elsewhere => return Ok(false),
                // The sweep may delete it at any time, unless it is written first.
                Entered::Ending if self.rehang(record, lease).await? => {}
                Entered::Ending => return Ok(false),
            }
        }
    }

    async fn rehang(&self, record: &mut Record, lease: i64) -> Result<bool> {
        let written = self.inner.rehang(record, lease).await;
        written.map_err(|status| self.inner.links.translate(&status))
    }

    /// The claim was just made, and holds.
    fn held(&self, (created, modified): (i64, i64), lease: Granted, sent: Moment) -> Standing {
        let mut record = self.record(created, modified, lease.id);
        record.held = true;
        record.until = SystemClock.now() + self.claim.ttl;
        self.inner.book.enter(&self.claim.key, record);
        self.told(created, lease, sent)
    }

    fn told(&self, created: i64, lease: Granted, sent: Moment) -> Standing {
        let remaining = lease.left(sent, self.claim.ttl);
        Standing::Held { fence: fence(&self.epochs, created), remaining }
    }

    fn record(&self, created: i64, modified: i64, lease: i64) -> Record {
        let known = self.inner.book.get(&self.claim.key);
        let same = known.as_ref().filter(|known| known.created == created);
        let mut detail = self.detail.clone();
        if let Some(known) = same {
            detail.note = known.detail.note.clone();
        }
        Record {
            name: self.claim.key.name.clone(),
            key: self.key.clone(),
            own: self.own,
            mode: self.claim.mode,
            detail,
            created,
            modified,
            lease,
            held: false,
            until: Moment::NEVER,
            seen: same.map_or(created, |known| known.seen),
        }
    }
}

impl Inner {
    /// Takes in the record of epochs, which is the first of the ranges.
    fn epochs_in(
        &self,
        ranges: &mut impl Iterator<Item = RangeResponse>,
        revision: i64,
    ) -> Result<Arc<Epochs>> {
        match ranges.next() {
            Some(range) => self.learn_epochs(range.kvs.first(), revision),
            None => Err(self.odd()),
        }
    }

    /// Puts a claim on another lease, and its present ttl into its value, if it is still there.
    ///
    /// The value is read again if somebody wrote it since this client did: it may have another
    /// note now.
    pub(super) async fn rehang(&self, record: &mut Record, lease: i64) -> Result<bool, Status> {
        for _ in 0..ROUNDS_MAX {
            match self.rehang_unless_written(record, lease).await? {
                Rehung::Done => return Ok(true),
                Rehung::Gone => return Ok(false),
                Rehung::Written(kv) => {
                    record.detail.note = Detail::decode(&kv.value).note;
                    record.seen = kv.mod_revision;
                }
            }
        }
        Err(written_again())
    }

    /// The same, unless somebody wrote the claim since this client did.
    pub(super) async fn rehang_unless_written(
        &self,
        record: &mut Record,
        lease: i64,
    ) -> Result<Rehung, Status> {
        let compare = vec![
            Compare::created(&record.key, record.created),
            Compare::modified(&record.key, record.seen),
        ];
        let success = vec![put(&record.key, &record.detail.encode(), lease)];
        let failure = vec![RangeRequest::one(&record.key).op()];
        let answer = self.links.txn(&TxnRequest { compare, success, failure }).await?;
        if answer.succeeded {
            let (revision, before) = (answer.revision(), record.lease);
            (record.modified, record.seen, record.lease) = (revision, revision, lease);
            left::end_empty(self, BTreeSet::from([before])).await;
            return Ok(Rehung::Done);
        }
        let found = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        // Another client with its handle may have given it back, and keeps its name closed.
        let is_it = |kv: &KeyValue| {
            let token = Detail::token(&kv.value);
            kv.create_revision == record.created && token == Some(record.detail.token)
        };
        Ok(found.filter(is_it).map_or(Rehung::Gone, Rehung::Written))
    }
}

/// What became of a claim that was to be put on another lease.
pub(super) enum Rehung {
    Done,
    Gone,
    /// Somebody wrote it meanwhile: this is there now.
    Written(KeyValue),
}

pub(super) fn written_again() -> Status {
    Status::aborted("the claim is written by others again and again")
}
