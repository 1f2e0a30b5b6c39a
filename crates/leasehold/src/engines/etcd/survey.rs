//! Reading many lines: finding their names, and viewing them in batches.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::kit::epochs::Epochs;
use crate::engine::{BrokenLine, LineView, Page, Query, Select, Totals};
use crate::error::Result;
use crate::rule::claim::{Token, Ttl};
use crate::rule::line::{Entry, Line};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::epoch::fence;
use super::keys::{Owner, is_session};
use super::lineup::{holds, read_many, token_of};
use super::wire::{KeyValue, LeaseRequest, RangeRequest, RangeResponse, Span, TimeToLive};

/// Keys looked at in one exchange of a scan.
const SCAN_KEYS: i64 = 5_000;
/// Claims of one line read together with others; longer lines are read alone.
const LINE_KEYS: i64 = 200;
/// Leases asked for at a time.
const LEASES_AT_ONCE: usize = 32;

/// What is wrong with a line that cannot be read.
const BROKEN: &str = "a key of it holds something that leasehold never writes";

/// A page of the lines asked for.
pub(super) async fn inspect(inner: &Inner, query: &Query) -> Result<Page> {
    let mut page = Page::default();
    let mut after = query.after.clone();
    loop {
        let wanted = query.page_lines() - page.lines.len();
        let by_holder = matches!(query.select, Select::Holder(_));
        let names = names(inner, query, after.as_ref(), wanted + 1).await?;
        let more = names.len() > wanted;
        let names: Vec<Name> = names.into_iter().take(wanted).collect();
        for (view, line, broken) in views(inner, &names).await? {
            if broken && !by_holder {
                let (name, cause) = (view.name.clone(), BROKEN.into());
                page.broken.push(BrokenLine { name, cause });
            }
            let admitted = match &query.select {
                Select::Holder(holder) => line.has_claim_of(*holder),
                _ => true,
            };
            if admitted {
                page.lines.push(view);
            }
        }
        after = names.last().cloned();
        if !more {
            return Ok(page);
        }
        if page.lines.len() == query.page_lines() {
            page.next = after;
            return Ok(page);
        }
    }
}

/// What is in all lines.
pub(super) async fn count(inner: &Inner, totals: &mut Totals) -> Result<()> {
    let mut lines: HashMap<Name, Vec<(i64, Owner)>> = HashMap::new();
    scan(inner, &inner.layout.all(), false, |kv| {
        if let Some((name, owner)) = listed(inner, &kv) {
            lines.entry(name).or_default().push((kv.create_revision, owner));
        }
    })
    .await?;
    for claims in lines.values_mut() {
        claims.sort_by_key(|(created, _)| *created);
        let modes: Vec<_> = claims.iter().map(|(_, owner)| owner.mode()).collect();
        let held = (0..modes.len()).take_while(|at| holds(modes[..*at].to_vec(), modes[*at]));
        let held = held.count();
        totals.active += held as u64;
        totals.waiting += (modes.len() - held) as u64;
    }
    Ok(())
}

/// The name of a key that is surely a claim: in a store that others use as well, not every key
/// with a slash is one.
fn listed(inner: &Inner, kv: &KeyValue) -> Option<(Name, Owner)> {
    let (name, owner) = inner.layout.read(&kv.key)?;
    (owner != Owner::Foreign || is_session(&kv.key, kv.lease)).then_some((name, owner))
}

/// Visits every key of a span, as of one revision, which it returns.
pub(super) async fn scan(
    inner: &Inner,
    span: &Span,
    values: bool,
    mut visit: impl FnMut(KeyValue),
) -> Result<i64> {
    let mut request = RangeRequest::span(span);
    request.keys_only = !values;
    request.limit = if values { LINE_KEYS } else { SCAN_KEYS };
    loop {
        let page: RangeResponse = inner.links.ask("/etcdserverpb.KV/Range", &request).await?;
        if request.revision == 0 {
            request.revision = page.header.as_ref().map_or(0, |header| header.revision);
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        page.kvs.into_iter().for_each(&mut visit);
        match last {
            Some(mut last) if page.more => {
                last.push(0);
                request.key = last;
            }
            _ => return Ok(request.revision),
        }
    }
}

/// Where the keys of a query are.
pub(super) fn span_of(inner: &Inner, select: &Select) -> Span {
    match select {
        Select::Name(name) => inner.layout.line(name),
        Select::Prefix(begin) => inner.layout.names(begin),
        _ => inner.layout.all(),
    }
}

/// The first `count` names asked for that come behind `after`.
async fn names(
    inner: &Inner,
    query: &Query,
    after: Option<&Name>,
    count: usize,
) -> Result<BTreeSet<Name>> {
    let wanted = |name: &Name| query.admits(name) && after.is_none_or(|after| name > after);
    if let Select::Name(name) = &query.select {
        return Ok(Some(name.clone()).filter(wanted).into_iter().collect());
    }
    let mut names = BTreeSet::new();
    scan(inner, &span_of(inner, &query.select), false, |kv| {
        if let Some((name, _)) = listed(inner, &kv).filter(|(name, _)| wanted(name)) {
            names.insert(name);
            if names.len() > count {
                names.pop_last();
            }
        }
    })
    .await?;
    Ok(names)
}

/// Views of those lines that somebody is in, and whether a claim of ours in it cannot be read.
async fn views(inner: &Inner, names: &[Name]) -> Result<Vec<(LineView, Line<()>, bool)>> {
    let reads = names.iter().map(|name| {
        let mut range = RangeRequest::span(&inner.layout.line(name));
        range.limit = LINE_KEYS;
        range.op()
    });
    let reads = std::iter::once(inner.epoch_request().op()).chain(reads);
    let mut found = read_many(inner, reads.collect()).await?.into_iter();
    if let Some((record, revision)) = found.next() {
        inner.learn_epochs(record.kvs.first(), revision)?;
    }
    let mut lines = Vec::with_capacity(names.len());
    for (name, (range, _)) in names.iter().zip(found) {
        let mut claims = range.kvs;
        if range.more {
            claims.clear();
            scan(inner, &inner.layout.line(name), true, |kv| claims.push(kv)).await?;
        }
        claims.retain(|kv| inner.layout.owner(name, &kv.key).is_some());
        claims.sort_by_key(|kv| kv.create_revision);
        lines.push((name, claims));
    }
    let newest = lines.iter().flat_map(|(_, claims)| claims).map(|kv| kv.create_revision).max();
    let epochs = inner.epochs(newest.unwrap_or(0)).await?;
    let leases = lives(inner, lines.iter().flat_map(|(_, claims)| claims)).await?;
    let now = SystemClock.now();
    let views = lines.into_iter().filter_map(|(name, claims)| {
        let is_ours =
            |kv: &KeyValue| matches!(inner.layout.owner(name, &kv.key), Some(Owner::Ours { .. }));
        let mut ours = claims.iter().filter(|kv| is_ours(kv));
        let broken = ours.any(|kv| Detail::read(&kv.value).is_none());
        let line = line(inner, name, claims, (&leases, &epochs), now);
        line.view(name, now).map(|view| (view, line, broken))
    });
    Ok(views.collect())
}

/// How long each lease was granted for, and how much of that is left.
type Lives = HashMap<i64, (Duration, Duration)>;

async fn lives(inner: &Inner, claims: impl Iterator<Item = &KeyValue>) -> Result<Lives> {
    let ids: BTreeSet<i64> = claims.map(|kv| kv.lease).filter(|lease| *lease != 0).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let mut lives = Lives::with_capacity(ids.len());
    for some in ids.chunks(LEASES_AT_ONCE) {
        let asked = some.iter().map(|id| async move {
            let request = LeaseRequest::of(*id);
            inner.links.ask::<_, TimeToLive>("/etcdserverpb.Lease/LeaseTimeToLive", &request).await
        });
        for answer in join_all(asked).await {
            let TimeToLive { id, ttl, granted, .. } = answer?;
            let seconds = |count: i64| Duration::from_secs(u64::try_from(count).unwrap_or(0));
            lives.insert(id, (seconds(granted), seconds(ttl)));
        }
    }
    Ok(lives)
}

fn line(
    inner: &Inner,
    name: &Name,
    claims: Vec<KeyValue>,
    (leases, epochs): (&Lives, &Epochs),
    now: Moment,
) -> Line<()> {
    let owners = claims.iter().filter_map(|kv| inner.layout.owner(name, &kv.key));
    let modes: Vec<_> = owners.clone().map(Owner::mode).collect();
    let owners: Vec<Owner> = owners.collect();
    let entries = claims.iter().zip(owners).enumerate().map(|(at, (kv, owner))| {
        let (token, detail) = match owner {
            Owner::Ours { .. } => {
                // A shared claim that stays closed has another token in its value than in its key.
                let closed = Detail::token(&kv.value).filter(Token::is_retired);
                let detail = Detail::read(&kv.value).unwrap_or_else(Detail::unreadable);
                (closed.or(token_of(owner, &kv.value)), detail)
            }
            Owner::Foreign => (None, Detail::foreign()),
        };
        let holds = holds(modes[..at].to_vec(), modes[at]);
        let joined = now - detail.age();
        Entry {
            fence: fence(epochs, kv.create_revision),
            token: token.unwrap_or(Token::from_bytes([0; 16])),
            mode: owner.mode(),
            joined,
            granted: holds.then_some(joined),
            expires: now + remaining(&detail, holds, leases.get(&kv.lease)),
            holder: detail.holder,
            note: detail.note,
            bell: (),
        }
    });
    Line::from_iter(entries)
}

/// How long a claim has without another word, as far as its lease tells: that was last kept alive
/// as long ago as it lacks of what it was granted.
fn remaining(detail: &Detail, holds: bool, lease: Option<&(Duration, Duration)>) -> Duration {
    let Some((granted, left)) = lease else { return Ttl::MAX };
    let whole = match (holds, Ttl::new(detail.ttl)) {
        (false, Ok(ttl)) => ttl.patience(),
        _ => detail.ttl,
    };
    whole.saturating_sub(granted.saturating_sub(*left)).min(*left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::{Holder, Note};

    #[test]
    fn a_claim_has_left_what_its_lease_was_not_used_of() {
        let secs = Duration::from_secs;
        let (holder, note) = (Holder::fresh(), Note::default());
        let token = Token::random();
        let mut detail = Detail { token, holder, note, ttl: secs(30), joined_ms: 0 };
        assert_eq!(remaining(&detail, true, Some(&(secs(31), secs(31)))), secs(30));
        assert_eq!(remaining(&detail, true, Some(&(secs(31), secs(20)))), secs(19));
        assert_eq!(remaining(&detail, false, Some(&(secs(11), secs(10)))), secs(9));
        detail.ttl = Duration::MAX;
        assert_eq!(remaining(&detail, true, Some(&(secs(10), secs(4)))), secs(4), "a stranger's");
        assert_eq!(remaining(&detail, true, None), Ttl::MAX);
    }
}
