//! What each verb does to the tables, inside one transaction, and whom to ring after it.
//!
//! Load the line, let `line.rs` decide, write what changed. Nothing here waits, opens a
//! transaction or rings: that is `mod.rs`.

use std::time::Duration;

use rusqlite::Connection;

use crate::clock::Moment;
use crate::engine::{
    BrokenLine, Counts, EventKind, Eviction, LineView, Page, Query, Resize, Resized, Select, Totals,
};
use crate::error::Error;
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, Released, Renewal, Standing, Token,
};
use crate::rule::name::Name;

use super::failure::Failure;
use super::store::{self, FileEntry, FileLine, Head, Mailbox, What};

/// Who must be rung once the transaction is through.
#[derive(Debug, Default)]
pub(super) struct Bellpull {
    /// Claims that hold now.
    pub(super) claims: Vec<(Mailbox, ClaimKey, u64)>,
    /// Mailboxes of those who watch.
    pub(super) watchers: Vec<Mailbox>,
}

/// One verb's view of the transaction it runs in.
pub(super) struct Verb<'c> {
    db: &'c Connection,
    now: Moment,
    head: Head,
    bells: Bellpull,
    recorded: bool,
}

impl<'c> Verb<'c> {
    pub(super) fn begin(db: &'c Connection, now: Moment) -> Result<Self, Failure> {
        let head = store::head(db)?;
        Ok(Self { db, now, head, bells: Bellpull::default(), recorded: false })
    }

    /// Ends the verb: who is to be rung after the commit.
    pub(super) fn end(mut self) -> Result<Bellpull, Failure> {
        if self.recorded {
            self.bells.watchers = store::watchers(self.db, self.now)?;
        }
        Ok(self.bells)
    }

    /// Puts a claim in line or says how it stands. `expect` is called before a claim that waits
    /// becomes visible, so that its bell is heard from the first moment on.
    pub(super) fn claim(
        &mut self,
        claim: &Claim,
        mailbox: Mailbox,
        expect: impl FnOnce(Token, u64) -> Result<(), Error>,
    ) -> Result<Standing, Failure> {
        let name = &claim.key.name;
        let mut line = self.load(name)?;
        let known = line.get(&claim.key.token).is_some();
        let next = self.head.fence + 1;
        let standing = line
            .claim(self.now, claim, |_| mailbox, || next as u64)
            .map_err(|refusal| refusal.into_error(claim))?;
        let Some(entry) = line.get(&claim.key.token) else { return Ok(standing) };
        if matches!(standing, Standing::Queued { .. }) {
            expect(claim.key.token, entry.fence)?;
        }
        if known {
            store::update(self.db, name, entry)?;
            return Ok(standing);
        }
        if next > self.head.fence_mark {
            return Err(Failure::MarkReached(1));
        }
        self.head.fence = next;
        store::set_fence(self.db, next)?;
        store::insert(self.db, name, entry)?;
        let held = entry.granted.is_some();
        self.record(if held { EventKind::Granted } else { EventKind::Queued }, name, entry)?;
        Ok(standing)
    }

    /// Makes claims that all hold; `None` if one would not.
    pub(super) fn claim_all(
        &mut self,
        claims: &[Claim],
        mailbox: Mailbox,
    ) -> Result<Option<Vec<Standing>>, Failure> {
        for claim in claims {
            if !self.load(&claim.key.name)?.would_hold(claim) {
                return Ok(None);
            }
        }
        // None of them waits, so nobody has to expect a bell.
        let make = |claim| self.claim(claim, mailbox, |_, _| Ok(()));
        claims.iter().map(make).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn renew(&mut self, renewal: &Renewal) -> Result<Standing, Failure> {
        let name = &renewal.key.name;
        let mut line = self.load(name)?;
        let standing = line.renew(self.now, renewal);
        if let Some(entry) = line.get(&renewal.key.token) {
            store::update(self.db, name, entry)?;
        }
        Ok(standing)
    }

    pub(super) fn release(&mut self, key: &ClaimKey) -> Result<Released, Failure> {
        let mut line = self.load(&key.name)?;
        if let Some(entry) = line.get(&key.token) {
            store::delete(self.db, &key.name, entry.fence)?;
            let held = entry.granted.is_some();
            let kind = if held { EventKind::Released } else { EventKind::Left };
            self.record(kind, &key.name, entry)?;
        }
        let released = line.release(&key.token);
        if released == Released::Released {
            self.settle(&key.name, &mut line)?;
        }
        Ok(released)
    }

    pub(super) fn keep_closed(
        &mut self,
        key: &ClaimKey,
        stay: Duration,
    ) -> Result<Released, Failure> {
        let mut line = self.load(&key.name)?;
        let retired = Token::retired();
        let released = line.keep_closed(self.now, &key.token, (stay, retired));
        if let Some(entry) = line.get(&retired) {
            store::retire(self.db, &key.name, entry)?;
        }
        Ok(released)
    }

    pub(super) fn amend(
        &mut self,
        key: &ClaimKey,
        amendment: &Amendment,
    ) -> Result<Amended, Failure> {
        let mut line = self.load(&key.name)?;
        let amended = line.amend(&key.token, amendment);
        if amended == Amended::Done {
            if let Some(entry) = line.get(&key.token) {
                store::amend(self.db, &key.name, entry)?;
                self.record(EventKind::Amended, &key.name, entry)?;
            }
            self.settle(&key.name, &mut line)?;
        }
        Ok(amended)
    }

    pub(super) fn resize(&mut self, order: &Resize) -> Result<Resized, Failure> {
        let mut line = self.load(&order.name)?;
        let resized = line.resize(order.of).map_err(|refusal| refusal.into_resize_error(order))?;
        if matches!(resized, Resized::Done { .. }) {
            for entry in line.entries() {
                store::amend(self.db, &order.name, entry)?;
            }
            self.settle(&order.name, &mut line)?;
        }
        Ok(resized)
    }

    pub(super) fn evict(&mut self, order: &Eviction) -> Result<Vec<Holder>, Failure> {
        let (entries, unreadable) = store::readable(self.db, &order.name)?;
        if !unreadable.is_empty() && !order.unreadable {
            return self.evict_beside_unreadable(order, entries);
        }
        // Nobody can say whether they hold, so they go as holders do.
        for fence in &unreadable {
            store::delete_unreadable(self.db, &order.name, fence)?;
        }
        let mut line = self.load(&order.name)?;
        let evicted = line.evict(|fence| order.names(fence));
        self.record_evicted(order, &evicted)?;
        self.settle(&order.name, &mut line)?;
        let unknown = unreadable.iter().map(|_fence| Holder::unreadable());
        Ok(unknown.chain(evicted.into_iter().map(|entry| entry.holder)).collect())
    }

    /// Takes out what the order names and leaves claims that cannot be read. While one is in the
    /// line, nobody can say who is next.
    fn evict_beside_unreadable(
        &mut self,
        order: &Eviction,
        mut entries: Vec<FileEntry>,
    ) -> Result<Vec<Holder>, Failure> {
        entries.retain(|entry| entry.granted.is_some() && order.names(entry.fence));
        self.record_evicted(order, &entries)?;
        Ok(entries.into_iter().map(|entry| entry.holder).collect())
    }

    fn record_evicted(&mut self, order: &Eviction, evicted: &[FileEntry]) -> Result<(), Failure> {
        for entry in evicted {
            store::delete(self.db, &order.name, entry.fence)?;
            let reason = order.reason.clone();
            self.record(EventKind::Evicted { reason }, &order.name, entry)?;
        }
        Ok(())
    }

    /// Takes a name from its holders for a new claim, before those who wait.
    pub(super) fn steal(
        &mut self,
        claim: &Claim,
        order: &Eviction,
        mailbox: Mailbox,
    ) -> Result<Standing, Failure> {
        let name = &claim.key.name;
        let mut line = self.load(name)?;
        let before: Vec<u64> = line.entries().map(|entry| entry.fence).collect();
        let is_known = line.get(&claim.key.token).is_some();
        let mut last = self.head.fence;
        let fence = || {
            last += 1;
            last as u64
        };
        let stolen = line
            .steal(self.now, claim, |fence| order.names(fence), mailbox, fence)
            .map_err(|refusal| refusal.into_error(claim))?;
        let Some(entry) = line.get(&claim.key.token) else { return Ok(stolen.standing) };
        if is_known {
            store::update(self.db, name, entry)?;
            return Ok(stolen.standing);
        }
        if last > self.head.fence_mark {
            return Err(Failure::MarkReached(last - self.head.fence));
        }
        self.head.fence = last;
        store::set_fence(self.db, last)?;
        self.record_evicted(order, &stolen.evicted)?;
        for fence in before {
            store::delete(self.db, name, fence)?;
        }
        for entry in line.entries() {
            store::insert(self.db, name, entry)?;
            let is_held = entry.granted.is_some();
            let kind = if is_held { EventKind::Granted } else { EventKind::Queued };
            self.record(kind, name, entry)?;
        }
        Ok(stolen.standing)
    }

    /// The line as it is now: what has expired is taken out, and those who hold by that are rung.
    fn load(&mut self, name: &Name) -> Result<FileLine, Failure> {
        let mut line = store::line(self.db, name)?;
        let expired = line.expire(self.now);
        if expired.is_empty() {
            return Ok(line);
        }
        let mut counts = Counts::default();
        for entry in &expired {
            store::delete(self.db, name, entry.fence)?;
            counts.expired += u64::from(entry.granted.is_some());
            self.record(EventKind::Expired, name, entry)?;
        }
        store::add_counts(self.db, &counts)?;
        self.settle(name, &mut line)?;
        Ok(line)
    }

    fn settle(&mut self, name: &Name, line: &mut FileLine) -> Result<(), Failure> {
        for entry in line.settle(self.now) {
            store::update(self.db, name, entry)?;
            self.record(EventKind::Granted, name, entry)?;
            let key = ClaimKey { name: name.clone(), token: entry.token };
            self.bells.claims.push((entry.bell, key, entry.fence));
        }
        Ok(())
    }

    fn record(&mut self, kind: EventKind, name: &Name, entry: &FileEntry) -> Result<(), Failure> {
        if self.head.watched_until > store::nanos(self.now) {
            store::record(self.db, &kind, name, entry)?;
            self.recorded = true;
        }
        Ok(())
    }
}

/// Reads lines; nothing is changed, expired claims are merely not shown.
pub(super) fn inspect(db: &Connection, now: Moment, query: &Query) -> Result<Page, Failure> {
    let after = query.after.as_ref().map_or("", Name::as_str);
    let start = match &query.select {
        Select::Name(name) => name.as_str(),
        Select::Prefix(prefix) => prefix.as_str(),
        Select::All | Select::Holder(_) => "",
    };
    let holder = match &query.select {
        Select::Holder(holder) => Some(*holder),
        _ => None,
    };
    let mut page = Page::default();
    // A name may be a line and broken at once.
    let (mut shown, mut last) = (0, None);
    store::lines_from(db, start.max(after), |name, mut line, what| {
        if beyond(&query.select, &name) {
            return false;
        }
        line.expire(now);
        if !query.admits(&name) || holder.is_some_and(|holder| !line.has_claim_of(holder)) {
            return true;
        }
        let view = view(&line, &name, now, what);
        let what = what.filter(|_| holder.is_none());
        if view.is_none() && what.is_none() {
            return true;
        }
        if shown == query.page_lines() {
            page.next = last.take();
            return false;
        }
        shown += 1;
        last = Some(name.clone());
        page.lines.extend(view);
        let cause = what.map(|what| format!("a claim of it has {what}"));
        page.broken.extend(cause.map(|cause| BrokenLine { name, cause }));
        true
    })?;
    Ok(page)
}

/// A line as others may see it.
fn view(line: &FileLine, name: &Name, now: Moment, broken: Option<What>) -> Option<LineView> {
    let mut view = line.view(name, now)?;
    if broken.is_some() {
        let mut claims = std::mem::take(&mut view.held);
        claims.append(&mut view.waiting);
        view.waiting = claims.split_off(holding(line, broken));
        view.held = claims;
    }
    Some(view)
}

/// How many of a line's claims hold. By the rule, those that come first; where one of them cannot
/// be read, those that the file says were granted.
fn holding(line: &FileLine, broken: Option<What>) -> usize {
    match broken {
        None => line.holding(),
        Some(_) => line.entries().filter(|entry| entry.granted.is_some()).count(),
    }
}

/// Whether no name from here on is asked for.
fn beyond(select: &Select, name: &Name) -> bool {
    match select {
        Select::Name(only) => name > only,
        Select::Prefix(prefix) => {
            !name.as_str().starts_with(prefix) && name.as_str() > prefix.as_str()
        }
        Select::All | Select::Holder(_) => false,
    }
}

/// Reads the sums, and counts what is in the lines.
pub(super) fn totals(db: &Connection, now: Moment) -> Result<Totals, Failure> {
    let mut totals = Totals { counts: store::counts(db)?, ..Totals::default() };
    store::lines_from(db, "", |_, mut line, what| {
        line.expire(now);
        let holding = holding(&line, what);
        totals.active += holding as u64;
        totals.waiting += (line.entries().len() - holding) as u64;
        true
    })?;
    Ok(totals)
}
