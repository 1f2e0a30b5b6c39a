//! A name's line as it was read from the store, and who of it holds.
//!
//! The order is that of creation, which the store decides; every client that reads the same line
//! comes to the same answer, and a claim that holds never ceases to as long as its key is there.

use crate::error::{Kind, Result};
use crate::rule::claim::{Holder, Mode, Token};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::keys::{Layout, Owner};
use super::wire::{KeyValue, Order, RangeRequest, RangeResponse, RequestOp, TxnRequest};

/// Claims read with a request to join: more than wait in nearly all lines, and few kilobytes.
pub(super) const HEAD_MAX: i64 = 128;
/// Keys read in one exchange where all are needed.
const PAGE_KEYS: i64 = 1_000;
/// The same with values, each of which may have a long note.
const PAGE_VALUES: i64 = 200;
/// Keys looked at to find the nearest claim before another: those of names below are passed over.
const NEAREST_MAX: i64 = 16;
/// Claims read to find the holder of the first.
const FIRST_MAX: i64 = 4;
/// Half of etcd's limit of operations in a transaction.
const READS_MAX: usize = 64;

/// One claim of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
    pub(super) owner: Owner,
    /// Whose it is, if it is ours and its value was read.
    pub(super) token: Option<Token>,
}

/// The claims of a line in order, or the first of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Lineup {
    pub(super) entries: Vec<Entry>,
    /// Whether nobody is missing.
    pub(super) whole: bool,
    /// How many there are, names below included.
    pub(super) count: usize,
    /// As of when.
    pub(super) revision: i64,
}

impl Lineup {
    pub(super) fn read(layout: &Layout, name: &Name, range: RangeResponse, revision: i64) -> Self {
        let whole = !range.more && range.count <= range.kvs.len() as i64;
        let count = usize::try_from(range.count).unwrap_or(0);
        let mut entries: Vec<Entry> =
            range.kvs.into_iter().filter_map(|kv| Entry::read(layout, name, kv)).collect();
        entries.sort_by_key(|entry| entry.created);
        let count = if whole { entries.len() } else { count };
        Self { entries, whole, count, revision }
    }

    pub(super) fn own(&self, token: &Token) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.token == Some(*token))
    }

    /// The claim of a token at another key than this.
    pub(super) fn own_but_at(&self, token: &Token, key: &[u8]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.token == Some(*token) && entry.key != key)
    }

    /// Those before a claim.
    pub(super) fn ahead(&self, created: i64) -> &[Entry] {
        let end = self.entries.partition_point(|entry| entry.created < created);
        &self.entries[..end]
    }

    /// What the line is in use as.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.entries.first().map(|first| Kind::from(first.owner.mode()))
    }
}

impl Entry {
    fn read(layout: &Layout, name: &Name, kv: KeyValue) -> Option<Self> {
        let owner = layout.owner(name, &kv.key)?;
        let (created, modified) = (kv.create_revision, kv.mod_revision);
        let token = token_of(owner, &kv.value);
        Some(Self { key: kv.key, created, modified, lease: kv.lease, owner, token })
    }
}

/// Whose claim a key is, if its value was read. Nobody owns a claim that was given back and stays:
/// its value names another token than it had.
pub(super) fn token_of(owner: Owner, value: &[u8]) -> Option<Token> {
    match owner {
        Owner::Ours { slot, mode: Mode::Shared } => {
            let own = slot.token();
            Detail::token(value).is_none_or(|token| token == own).then_some(own)
        }
        Owner::Ours { .. } => Detail::token(value),
        Owner::Foreign => None,
    }
}

/// Whether a claim holds behind those.
pub(super) fn holds(ahead: impl IntoIterator<Item = Mode>, mode: Mode) -> bool {
    let capacity = u64::from(mode.capacity());
    let mut units = u64::from(mode.units());
    for before in ahead {
        if before.capacity() != mode.capacity() {
            return false;
        }
        units += u64::from(before.units());
    }
    units <= capacity
}

pub(super) fn modes(entries: &[Entry]) -> impl Iterator<Item = Mode> + '_ {
    entries.iter().map(|entry| entry.owner.mode())
}

/// Asks for the first claims of a line, without their values.
pub(super) fn head(layout: &Layout, name: &Name) -> RangeRequest {
    head_with_values(layout, name).without_values()
}

/// The same with values, which say whose they are.
pub(super) fn head_with_values(layout: &Layout, name: &Name) -> RangeRequest {
    let range = RangeRequest::span(&layout.line(name));
    range.by_creation(Order::Ascend, HEAD_MAX)
}

/// Reads a whole line, in pages.
pub(super) async fn read_all(inner: &Inner, name: &Name) -> Result<Lineup> {
    let mut request = RangeRequest::span(&inner.layout.line(name)).without_values();
    request.limit = PAGE_KEYS;
    read_pages(inner, name, request).await
}

/// The same with whose its claims are.
pub(super) async fn read_all_with_values(inner: &Inner, name: &Name) -> Result<Lineup> {
    let mut request = RangeRequest::span(&inner.layout.line(name));
    request.limit = PAGE_VALUES;
    read_pages(inner, name, request).await
}

async fn read_pages(inner: &Inner, name: &Name, mut request: RangeRequest) -> Result<Lineup> {
    let mut all = Lineup { whole: true, ..Lineup::default() };
    loop {
        let page: RangeResponse = inner.links.ask("/etcdserverpb.KV/Range", &request).await?;
        let revision = page.header.as_ref().map_or(0, |header| header.revision);
        let last = page.kvs.last().map(|kv| kv.key.clone());
        let more = page.more;
        all.entries.extend(Lineup::read(&inner.layout, name, page, 0).entries);
        if all.revision == 0 {
            all.revision = revision;
        }
        match last {
            Some(mut last) if more => {
                last.push(0);
                request.key = last;
                request.revision = all.revision;
            }
            _ => break,
        }
    }
    all.entries.sort_by_key(|entry| entry.created);
    all.count = all.entries.len();
    Ok(all)
}

/// Whom a claim far back in a long line has to outlive: the nearest one before it that is in its
/// way. `None` if nobody is, and it holds.
pub(super) async fn nearest(
    inner: &Inner,
    name: &Name,
    mode: Mode,
    created: i64,
) -> Result<Option<Entry>> {
    let spans = inner.layout.in_the_way(name, mode);
    let reads = spans.iter().map(|span| {
        let mut range = RangeRequest::span(span).by_creation(Order::Descend, NEAREST_MAX);
        range.max_create_revision = created - 1;
        range.without_values().op()
    });
    let request = TxnRequest::reads(reads.collect());
    let answer = inner.links.txn(&request).await;
    let answer = answer.map_err(|status| inner.links.translate(&status))?;
    let mut found: Option<Entry> = None;
    for range in answer.ranges() {
        let (full, seen) = (range.more, range.kvs.len());
        let nearest =
            range.kvs.into_iter().filter_map(|kv| Entry::read(&inner.layout, name, kv)).next();
        if nearest.is_none() && full && seen > 0 {
            // Nothing but names below: only the whole line tells.
            let all = read_all(inner, name).await?;
            let ahead = all.ahead(created).iter().rev();
            return Ok(ahead.clone().find(|entry| !holds([entry.owner.mode()], mode)).cloned());
        }
        found = match (found, nearest) {
            (Some(one), Some(two)) if one.created >= two.created => Some(one),
            (one, two) => two.or(one),
        };
    }
    Ok(found)
}

/// Whom a claim has to outlive.
pub(super) struct Ahead {
    pub(super) entries: Vec<Entry>,
    /// Whether that is everybody before it.
    pub(super) whole: bool,
    pub(super) count: usize,
}

impl Inner {
    /// Those before a claim; in a long line only the nearest that matters.
    pub(super) async fn ahead(
        &self,
        lineup: &Lineup,
        name: &Name,
        mode: Mode,
        created: i64,
    ) -> Result<Ahead> {
        let last = lineup.entries.last().map_or(0, |last| last.created);
        if lineup.whole || last >= created {
            let entries = lineup.ahead(created).to_vec();
            return Ok(Ahead { count: entries.len(), entries, whole: true });
        }
        if let Mode::Permits { .. } = mode {
            let entries = read_all(self, name).await?.ahead(created).to_vec();
            return Ok(Ahead { count: entries.len(), entries, whole: true });
        }
        let nearest = nearest(self, name, mode, created).await?;
        let whole = nearest.is_none();
        let count = lineup.count.saturating_sub(1);
        Ok(Ahead { entries: nearest.into_iter().collect(), whole, count })
    }

    /// Who is first in a line.
    pub(super) async fn holder_of_first(
        &self,
        name: &Name,
        lineup: &Lineup,
    ) -> Result<Option<Holder>> {
        let Some(first) = lineup.entries.first() else { return Ok(None) };
        let request = RangeRequest::one(&first.key);
        let range: RangeResponse = self.links.ask("/etcdserverpb.KV/Range", &request).await?;
        if let Some(holder) = self.first_holder(name, &range) {
            return Ok(Some(holder));
        }
        // It left meanwhile; whoever is first now will do.
        let request = first_with_value(&self.layout, name);
        let range: RangeResponse = self.links.ask("/etcdserverpb.KV/Range", &request).await?;
        Ok(self.first_holder(name, &range))
    }

    /// Whose claim is at a key, if its value was read.
    pub(super) fn token_at(&self, name: &Name, kv: &KeyValue) -> Option<Token> {
        token_of(self.layout.owner(name, &kv.key)?, &kv.value)
    }

    /// Who the first of these claims belongs to.
    pub(super) fn first_holder(&self, name: &Name, range: &RangeResponse) -> Option<Holder> {
        let direct = |kv: &&KeyValue| self.layout.owner(name, &kv.key).is_some();
        range.kvs.iter().find(direct).map(|kv| Detail::decode(&kv.value).holder)
    }
}

/// Asks for the first claims with their values: several, because names below come in between.
pub(super) fn first_with_value(layout: &Layout, name: &Name) -> RangeRequest {
    RangeRequest::span(&layout.line(name)).by_creation(Order::Ascend, FIRST_MAX)
}

/// Reads in as few transactions as the server's limit allows, each as of one revision.
pub(super) async fn read_many(
    inner: &Inner,
    reads: Vec<RequestOp>,
) -> Result<Vec<(RangeResponse, i64)>> {
    let mut found = Vec::with_capacity(reads.len());
    for reads in reads.chunks(READS_MAX) {
        let request = TxnRequest::reads(reads.to_vec());
        let answer = inner.links.txn(&request).await;
        let answer = answer.map_err(|status| inner.links.translate(&status))?;
        let revision = answer.revision();
        found.extend(answer.ranges().map(|range| (range, revision)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_that_of_the_line() {
        let permits = |take, of| Mode::Permits { take, of };
        assert!(holds([], Mode::Exclusive));
        assert!(!holds([Mode::Shared], Mode::Exclusive));
        assert!(holds([Mode::Shared; 9], Mode::Shared));
        assert!(!holds([Mode::Shared, Mode::Exclusive], Mode::Shared));
        assert!(holds([permits(1, 3), permits(1, 3)], permits(1, 3)));
        assert!(!holds([permits(2, 3)], permits(2, 3)));
        assert!(!holds([permits(1, 4)], permits(1, 3)), "another kind is always in the way");
    }
}
