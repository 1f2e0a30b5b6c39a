//! The rule: one line per name, and which of its claims hold.
//!
//! A claim holds when the units of all live claims up to and including it do not exceed the
//! line's capacity. Mutex, read/write lock and semaphore are this rule with other units. The
//! arrival number is the fence, because no claim overtakes another.
//!
//! Pure: the present instant and the next number are arguments, and bells are return values.
//! The memory and SQLite engines run this code. Other engines translate it, and the model test
//! compares every answer of theirs with it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::{ClaimView, LineView, Resize, Resized};
use crate::error::{Error, Kind};
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimRef, Holder, HolderId, Mode, Note, Place, Released, Renewal,
    Standing, Token,
};
use crate::rule::name::Name;

/// The most claims one line takes. A longer line is a backlog, and belongs in a queue.
pub const CLAIMS_MAX: usize = 10_000;

/// A claim as the line keeps it. With a `B` the engine rings the claim's owner.
#[derive(Debug, Clone)]
pub struct Entry<B> {
    /// Its arrival number.
    pub fence: u64,
    /// Its secret.
    pub token: Token,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// The holder.
    pub holder: Holder,
    /// Text for others to read.
    pub note: Note,
    /// When it joined the line.
    pub joined: Moment,
    /// Since when it holds.
    pub granted: Option<Moment>,
    /// When it expires without a renewal or heartbeat.
    pub expires: Moment,
    /// How to reach its owner.
    pub bell: B,
}

/// Why the line does not take a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The line is in use as another kind.
    Mismatch(Kind),
    /// [`CLAIMS_MAX`] claims are in line.
    Full,
}

impl Refusal {
    /// The error for the client that made the claim.
    pub fn into_error(self, claim: &Claim) -> Error {
        match self {
            Refusal::Mismatch(in_force) => Error::Mismatch {
                name: claim.key.name.clone(),
                in_force,
                asked: Kind::from(claim.mode),
            },
            Refusal::Full => Error::Limit { what: "claims in one line", limit: CLAIMS_MAX },
        }
    }

    /// The error for the administrator who ordered another limit.
    pub fn into_resize_error(self, order: &Resize) -> Error {
        match self {
            Refusal::Mismatch(in_force) => Error::Mismatch {
                name: order.name.clone(),
                in_force,
                asked: Kind::Permits { of: order.of },
            },
            Refusal::Full => Error::Limit { what: "claims in one line", limit: CLAIMS_MAX },
        }
    }
}

/// The outcome of an order to steal a name.
#[derive(Debug)]
pub struct Stolen<B> {
    /// How the new claim stands: it holds, or the order did not name every claim that holds.
    pub standing: Standing,
    /// The claims that lost the name.
    pub evicted: Vec<Entry<B>>,
}

/// The claims on one name, in order of arrival.
#[derive(Debug, Clone)]
pub struct Line<B> {
    entries: VecDeque<Entry<B>>,
}

impl<B> Default for Line<B> {
    fn default() -> Self {
        Self { entries: VecDeque::new() }
    }
}

impl<B> FromIterator<Entry<B>> for Line<B> {
    /// Makes a line of entries that come in order of their fences.
    fn from_iter<I: IntoIterator<Item = Entry<B>>>(entries: I) -> Self {
        let line = Self { entries: entries.into_iter().collect() };
        debug_assert!(line.entries.iter().is_sorted_by_key(|entry| entry.fence));
        line
    }
}

impl<B> Line<B> {
    /// The claims in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry<B>> {
        self.entries.iter()
    }

    /// Whether no claim is in line.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The claim with this token.
    pub fn get(&self, token: &Token) -> Option<&Entry<B>> {
        self.entries.iter().find(|entry| entry.token == *token)
    }

    /// How many claims hold: always the first ones.
    pub fn holding(&self) -> usize {
        let Some(first) = self.entries.front() else { return 0 };
        let capacity = u64::from(first.mode.capacity());
        let mut units = 0;
        let fits = |entry: &&Entry<B>| {
            units += u64::from(entry.mode.units());
            units <= capacity
        };
        self.entries.iter().take_while(fits).count()
    }

    /// The holder of the first claim, which always holds.
    pub fn held_by(&self) -> Option<&Holder> {
        self.entries.front().map(|entry| &entry.holder)
    }

    /// The line as others may see it; `None` if it is empty.
    pub fn view(&self, name: &Name, now: Moment) -> Option<LineView> {
        let kind = Kind::from(self.entries.front()?.mode);
        let view = |entry: &Entry<B>| ClaimView {
            holder: entry.holder.clone(),
            fence: entry.fence.into(),
            mode: entry.mode,
            age: now.since(entry.granted.unwrap_or(entry.joined)),
            remaining: entry.expires.since(now),
            note: entry.note.clone(),
            closed: entry.token.is_retired(),
        };
        let mut held: Vec<ClaimView> = self.entries.iter().map(view).collect();
        let waiting = held.split_off(self.holding());
        Some(LineView { name: name.clone(), kind, held, waiting })
    }

    /// Whether `holder` has a claim in this line.
    pub fn has_claim_of(&self, holder: HolderId) -> bool {
        self.entries.iter().any(|entry| entry.holder.id() == holder)
    }

    /// Whether the time of some claim has run out.
    #[inline]
    pub fn has_expired(&self, now: Moment) -> bool {
        self.entries.iter().any(|entry| entry.expires <= now)
    }

    /// Takes out every claim whose time has run out.
    pub fn expire(&mut self, now: Moment) -> Vec<Entry<B>> {
        if !self.has_expired(now) {
            return Vec::new();
        }
        let (live, dead) = self.entries.drain(..).partition(|entry| entry.expires > now);
        self.entries = live;
        let dead: VecDeque<Entry<B>> = dead;
        dead.into()
    }

    /// Marks the claims that begin to hold, and returns them so that the engine can ring them.
    pub fn settle(&mut self, now: Moment) -> Vec<&Entry<B>> {
        let holding = self.holding();
        let mut fresh = Vec::new();
        for entry in self.entries.iter_mut().take(holding) {
            if entry.granted.is_none() {
                entry.granted = Some(now);
                fresh.push(&*entry);
            }
        }
        fresh
    }

    /// Puts a claim in line, or says again how it stands. Either way its time starts again; one
    /// that holds never ends sooner by that.
    ///
    /// The caller takes expired claims out first. This calls `fence` and `bell` only for a claim
    /// that enters. The argument of `bell` is whether the claim holds at once; then it never rings.
    pub fn claim<'a>(
        &mut self,
        now: Moment,
        claim: impl Into<ClaimRef<'a>>,
        bell: impl FnOnce(bool) -> B,
        fence: impl FnOnce() -> u64,
    ) -> Result<Standing, Refusal> {
        let claim = claim.into();
        if let Some(index) = self.index(&claim.token) {
            return Ok(self.refresh(now, index, claim.ttl, claim.patience));
        }
        if let Some(first) = self.entries.front()
            && first.mode.capacity() != claim.mode.capacity()
        {
            return Err(Refusal::Mismatch(Kind::from(first.mode)));
        }
        let ahead = self.entries.len();
        let holds = self.fits_behind(claim.mode);
        if !holds && !claim.join {
            let retry_in = self.retry_in(now, ahead, claim.mode);
            return Ok(Standing::Out { ahead, retry_in, by: self.held_by().cloned() });
        }
        if ahead >= CLAIMS_MAX {
            return Err(Refusal::Full);
        }
        let fence = fence();
        debug_assert!(self.entries.back().is_none_or(|last| last.fence < fence));
        if self.entries.capacity() == 0 {
            // Most lines never have a second claim, and a client may hold very many lines.
            self.entries.reserve_exact(1);
        }
        self.entries.push_back(Entry {
            fence,
            token: claim.token,
            mode: claim.mode,
            holder: claim.holder.clone(),
            note: claim.note.clone(),
            joined: now,
            granted: holds.then_some(now),
            expires: now + if holds { claim.ttl } else { claim.patience },
            bell: bell(holds),
        });
        Ok(match holds {
            true => Standing::Held { fence, remaining: claim.ttl },
            false => self.standing(now, ahead),
        })
    }

    /// Keeps a claim alive. It is never put back: a claim that is not in line stays out. One that
    /// holds never ends sooner by this.
    pub fn renew(&mut self, now: Moment, renewal: &Renewal) -> Standing {
        match self.index(&renewal.key.token) {
            Some(index) => self.refresh(now, index, renewal.ttl, renewal.patience),
            None => Standing::Out {
                ahead: self.entries.len(),
                retry_in: Duration::ZERO,
                by: self.held_by().cloned(),
            },
        }
    }

    /// Takes a claim out of the line.
    pub fn release(&mut self, token: &Token) -> Released {
        match self.index(token) {
            Some(_) if self.entries.len() == 1 => self.entries.clear(),
            Some(index) => drop(self.entries.remove(index)),
            None => return self.not_there(),
        }
        Released::Released
    }

    /// Gives a lease back, but keeps its claim in line for `stay`, under the token `retired`, which
    /// no client knows.
    pub fn keep_closed(
        &mut self,
        now: Moment,
        token: &Token,
        (stay, retired): (Duration, Token),
    ) -> Released {
        let holding = self.holding();
        let mut held = self.entries.iter_mut().take(holding);
        let Some(entry) = held.find(|entry| entry.token == *token) else { return self.not_there() };
        entry.token = retired;
        entry.granted.get_or_insert(now);
        entry.expires = now + stay;
        Released::Released
    }

    /// The answer for a claim that is not in line.
    fn not_there(&self) -> Released {
        let taken_by = |holder: &Holder| Released::TakenBy(holder.clone());
        self.held_by().map_or(Released::AlreadyExpired, taken_by)
    }

    /// Changes a claim that holds. Its place, its number and its time stay as they are. Then
    /// [`settle`](Self::settle) finds the claims that hold now.
    pub fn amend(&mut self, token: &Token, amendment: &Amendment) -> Amended {
        let holding = self.holding();
        let Some(index) = self.index(token).filter(|index| *index < holding) else {
            return Amended::Out { by: self.held_by().cloned() };
        };
        let entry = &mut self.entries[index];
        if amendment.mode.is_some_and(|mode| !may_become(entry.mode, mode, holding == 1)) {
            return Amended::Refused;
        }
        entry.mode = amendment.mode.unwrap_or(entry.mode);
        if let Some(note) = &amendment.note {
            entry.note = note.clone();
        }
        Amended::Done
    }

    /// Gives a semaphore another limit, for all claims in line.
    pub fn resize(&mut self, of: u32) -> Result<Resized, Refusal> {
        let Some(first) = self.entries.front() else { return Ok(Resized::Unused) };
        let Mode::Permits { of: before, .. } = first.mode else {
            return Err(Refusal::Mismatch(Kind::from(first.mode)));
        };
        let holding = self.holding();
        let held: u32 = self.entries.iter().take(holding).map(|entry| entry.mode.units()).sum();
        if held > of {
            return Ok(Resized::Held { units: held });
        }
        let most = self.entries.iter().map(|entry| entry.mode.units()).max().unwrap_or(0);
        if most > of {
            return Ok(Resized::Wanted { units: most });
        }
        for entry in &mut self.entries {
            entry.mode = Mode::Permits { take: entry.mode.units(), of };
        }
        Ok(Resized::Done { before })
    }

    /// Takes out the claims that hold and whose fence is `wanted`, without regard to their owners.
    pub fn evict(&mut self, wanted: impl Fn(u64) -> bool) -> Vec<Entry<B>> {
        let mut evicted = Vec::new();
        for index in (0..self.holding()).rev() {
            if wanted(self.entries[index].fence) {
                evicted.extend(self.entries.remove(index));
            }
        }
        evicted.reverse();
        evicted
    }

    /// Takes out the claims that hold and gives the name to `claim`, before those that wait. Each
    /// of these gets a new place behind it, in their order, so that fences go on to rise. If a
    /// claim holds whose fence is not `wanted`, nothing changes.
    ///
    /// A claim that is in line already is asked about as by [`claim`](Self::claim).
    pub fn steal<'a>(
        &mut self,
        now: Moment,
        claim: impl Into<ClaimRef<'a>>,
        wanted: impl Fn(u64) -> bool,
        bell: B,
        mut fence: impl FnMut() -> u64,
    ) -> Result<Stolen<B>, Refusal> {
        let claim = claim.into();
        let (mut evicted, mut waiting) = (VecDeque::new(), VecDeque::new());
        if let Some(first) = self.entries.front()
            && self.index(&claim.token).is_none()
        {
            if first.mode.capacity() != claim.mode.capacity() {
                return Err(Refusal::Mismatch(Kind::from(first.mode)));
            }
            let holding = self.holding();
            if !self.entries.iter().take(holding).all(|entry| wanted(entry.fence)) {
                let (ahead, by) = (self.entries.len(), self.held_by().cloned());
                let standing = Standing::Out { ahead, retry_in: Duration::ZERO, by };
                return Ok(Stolen { standing, evicted: Vec::new() });
            }
            evicted = std::mem::take(&mut self.entries);
            waiting = evicted.split_off(holding);
        }
        let standing = self.claim(now, claim, |_| bell, &mut fence)?;
        for mut entry in waiting {
            entry.fence = fence();
            self.entries.push_back(entry);
        }
        Ok(Stolen { standing, evicted: evicted.into() })
    }

    fn index(&self, token: &Token) -> Option<usize> {
        self.entries.iter().position(|entry| entry.token == *token)
    }

    /// Whether a claim holds, or would hold if it joined now.
    pub fn would_hold(&self, claim: &Claim) -> bool {
        if let Some(index) = self.index(&claim.key.token) {
            return index < self.holding();
        }
        let kind = self.entries.front().map(|first| first.mode.capacity());
        kind.is_none_or(|capacity| capacity == claim.mode.capacity())
            && self.entries.len() < CLAIMS_MAX
            && self.fits_behind(claim.mode)
    }

    fn fits_behind(&self, mode: Mode) -> bool {
        let before: u64 = self.entries.iter().map(|entry| u64::from(entry.mode.units())).sum();
        before + u64::from(mode.units()) <= u64::from(mode.capacity())
    }

    fn refresh(
        &mut self,
        now: Moment,
        index: usize,
        ttl: Duration,
        patience: Duration,
    ) -> Standing {
        let holds = index < self.holding();
        if let Some(entry) = self.entries.get_mut(index) {
            if holds {
                entry.granted.get_or_insert(now);
                // Never sooner: another client may count on the end that it heard of.
                entry.expires = entry.expires.max(now + ttl);
            } else {
                entry.expires = now + patience;
            }
        }
        self.standing(now, index)
    }

    fn standing(&self, now: Moment, index: usize) -> Standing {
        let entry = &self.entries[index];
        if index < self.holding() {
            let remaining = entry.expires.since(now);
            Standing::Held { fence: entry.fence, remaining }
        } else {
            let retry_in = self.retry_in(now, index, entry.mode);
            let place = Place::new(entry.fence);
            Standing::Queued { place, ahead: index, retry_in }
        }
    }

    /// How long until the claim behind the first `ahead` would hold, if they only expire. That is
    /// when the claims that are left leave it enough room. So each waiter asks again only at an
    /// expiry that lets it in, and a holder's death does not wake all waiters.
    fn retry_in(&self, now: Moment, ahead: usize, mode: Mode) -> Duration {
        let room = u64::from(mode.capacity() - mode.units());
        let mut before: Vec<(Moment, u64)> = self
            .entries
            .iter()
            .take(ahead)
            .map(|entry| (entry.expires, u64::from(entry.mode.units())))
            .collect();
        before.sort_unstable_by_key(|(expires, _)| std::cmp::Reverse(*expires));
        let mut units = 0;
        for (expires, taken) in before {
            units += taken;
            if units > room {
                return expires.since(now);
            }
        }
        Duration::ZERO
    }
}

/// Whether a claim that holds may change its mode this way. No other holder may lose its lease by
/// it. So a claim gets no more units than it has, unless it is the only one that holds.
fn may_become(from: Mode, to: Mode, sole: bool) -> bool {
    match (from, to) {
        (Mode::Shared, Mode::Exclusive) => sole,
        _ => {
            let (least, most) = (1, from.units());
            from.capacity() == to.capacity() && (least..=most).contains(&to.units())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::ClaimKey;

    const NOW: Moment = Moment::from_nanos(1_000_000_000);

    struct Desk {
        line: Line<()>,
        next: u64,
    }

    impl Desk {
        fn new() -> Self {
            Self { line: Line::default(), next: 0 }
        }

        fn ask(&mut self, mode: Mode, join: bool) -> (Token, Result<Standing, Refusal>) {
            let token = Token::random();
            let standing = self.ask_as(token, mode, join);
            (token, standing)
        }

        fn enter(&mut self, mode: Mode) {
            let (_, standing) = self.ask(mode, true);
            assert!(!matches!(standing, Ok(Standing::Out { .. }) | Err(_)), "{standing:?}");
        }

        fn ask_as(&mut self, token: Token, mode: Mode, join: bool) -> Result<Standing, Refusal> {
            let claim = claim(token, mode, join);
            self.line.claim(
                NOW,
                &claim,
                |_| (),
                || {
                    self.next += 1;
                    self.next
                },
            )
        }

        fn steal(&mut self, fences: &[u64]) -> (Token, Result<Stolen<()>, Refusal>) {
            let token = Token::random();
            let stolen = self.steal_as(token, fences);
            (token, stolen)
        }

        fn steal_as(&mut self, token: Token, fences: &[u64]) -> Result<Stolen<()>, Refusal> {
            let claim = claim(token, Mode::Exclusive, false);
            let next = || {
                self.next += 1;
                self.next
            };
            self.line.steal(NOW, &claim, |fence| fences.contains(&fence), (), next)
        }
    }

    fn claim(token: Token, mode: Mode, join: bool) -> Claim {
        Claim {
            key: ClaimKey { name: Name::new("n").expect("a good name"), token },
            mode,
            holder: Holder::fresh(),
            note: Note::default(),
            ttl: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            join,
        }
    }

    fn held(standing: &Result<Standing, Refusal>) -> bool {
        matches!(standing, Ok(Standing::Held { .. }))
    }

    #[test]
    fn the_first_exclusive_claim_holds_and_the_second_waits() {
        let mut desk = Desk::new();
        assert!(held(&desk.ask(Mode::Exclusive, true).1));
        let (_, second) = desk.ask(Mode::Exclusive, true);
        let retry_in = Duration::from_secs(30);
        let place = Place::new(2);
        assert_eq!(second, Ok(Standing::Queued { place, ahead: 1, retry_in }));
    }

    #[test]
    fn queued_writer_stops_later_readers() {
        let mut desk = Desk::new();
        let (reader, standing) = desk.ask(Mode::Shared, true);
        assert!(held(&standing));
        assert!(held(&desk.ask(Mode::Shared, true).1));
        assert!(!held(&desk.ask(Mode::Exclusive, true).1));
        assert!(!held(&desk.ask(Mode::Shared, true).1));
        desk.line.release(&reader);
        assert!(desk.line.settle(NOW).is_empty(), "one reader still holds");
    }

    #[test]
    fn a_release_settles_everybody_who_fits_now() {
        let mut desk = Desk::new();
        let (writer, _) = desk.ask(Mode::Exclusive, true);
        for _ in 0..3 {
            desk.enter(Mode::Shared);
        }
        desk.enter(Mode::Exclusive);
        desk.line.release(&writer);
        assert_eq!(desk.line.settle(NOW).len(), 3);
        assert!(desk.line.settle(NOW).is_empty(), "a bell rings once");
    }

    #[test]
    fn a_large_request_for_permits_is_not_overtaken_by_small_ones() {
        let mut desk = Desk::new();
        let (first, _) = desk.ask(Mode::Permits { take: 3, of: 4 }, true);
        assert!(!held(&desk.ask(Mode::Permits { take: 3, of: 4 }, true).1));
        assert!(!held(&desk.ask(Mode::Permits { take: 1, of: 4 }, true).1));
        desk.line.release(&first);
        assert_eq!(desk.line.settle(NOW).len(), 2);
    }

    #[test]
    fn another_limit_on_the_same_name_is_refused_and_changes_nothing() {
        let mut desk = Desk::new();
        desk.enter(Mode::Permits { take: 1, of: 4 });
        let (_, refused) = desk.ask(Mode::Permits { take: 1, of: 5 }, true);
        assert_eq!(refused, Err(Refusal::Mismatch(Kind::Permits { of: 4 })));
        let (_, refused) = desk.ask(Mode::Exclusive, true);
        assert_eq!(refused, Err(Refusal::Mismatch(Kind::Permits { of: 4 })));
        assert_eq!(desk.line.entries().len(), 1);
    }

    #[test]
    fn a_claim_that_does_not_join_leaves_no_trace() {
        let mut desk = Desk::new();
        desk.enter(Mode::Exclusive);
        let (_, out) = desk.ask(Mode::Exclusive, false);
        assert!(matches!(out, Ok(Standing::Out { ahead: 1, by: Some(_), .. })));
        assert_eq!(desk.line.entries().len(), 1);
        assert_eq!(desk.next, 1, "no number was used up");
    }

    #[test]
    fn asking_again_with_the_same_token_is_the_same_claim() {
        let mut desk = Desk::new();
        let (token, first) = desk.ask(Mode::Exclusive, true);
        assert_eq!(desk.ask_as(token, Mode::Exclusive, true), first);
        assert_eq!(desk.line.entries().len(), 1);
    }

    #[test]
    fn a_writer_that_becomes_a_reader_lets_the_readers_behind_it_in() {
        let mut desk = Desk::new();
        let (writer, _) = desk.ask(Mode::Exclusive, true);
        desk.enter(Mode::Shared);
        desk.enter(Mode::Shared);
        desk.enter(Mode::Exclusive);
        desk.enter(Mode::Shared);
        let amendment = Amendment::mode(Mode::Shared);
        assert_eq!(desk.line.amend(&writer, &amendment), Amended::Done);
        assert_eq!(desk.line.settle(NOW).len(), 2, "up to the next writer");
        assert_eq!(desk.line.amend(&writer, &amendment), Amended::Done, "again is the same");
    }

    #[test]
    fn only_a_sole_reader_becomes_a_writer() {
        let mut desk = Desk::new();
        let (one, _) = desk.ask(Mode::Shared, true);
        let (two, _) = desk.ask(Mode::Shared, true);
        let (queued, _) = desk.ask(Mode::Exclusive, true);
        let amendment = Amendment::mode(Mode::Exclusive);
        assert_eq!(desk.line.amend(&one, &amendment), Amended::Refused);
        assert!(matches!(desk.line.amend(&queued, &amendment), Amended::Out { by: Some(_) }));
        desk.line.release(&one);
        assert_eq!(desk.line.amend(&two, &amendment), Amended::Done);
        assert_eq!(desk.line.holding(), 1);
        assert!(!held(&desk.ask(Mode::Shared, false).1));
    }

    #[test]
    fn permits_are_given_back_in_part_and_never_added() {
        let mut desk = Desk::new();
        let (large, _) = desk.ask(Mode::Permits { take: 3, of: 4 }, true);
        desk.enter(Mode::Permits { take: 2, of: 4 });
        for mode in [
            Mode::Permits { take: 4, of: 4 },
            Mode::Permits { take: 0, of: 4 },
            Mode::Permits { take: 2, of: 5 },
            Mode::Shared,
            Mode::Exclusive,
        ] {
            let amendment = Amendment { mode: Some(mode), note: Note::new("new").ok() };
            assert_eq!(desk.line.amend(&large, &amendment), Amended::Refused, "{mode:?}");
        }
        assert_eq!(desk.line.get(&large).map(|entry| entry.note.as_str()), Some(""));
        let fewer = Amendment::mode(Mode::Permits { take: 2, of: 4 });
        assert_eq!(desk.line.amend(&large, &fewer), Amended::Done);
        assert_eq!(desk.line.settle(NOW).len(), 1);
    }

    #[test]
    fn stolen_name_is_held_before_those_who_wait_and_they_keep_their_order() {
        let mut desk = Desk::new();
        desk.enter(Mode::Shared);
        desk.enter(Mode::Shared);
        let waiting: Vec<Token> = (0..3).map(|_| desk.ask(Mode::Exclusive, true).0).collect();
        let (thief, stolen) = desk.steal(&[1, 2, 3]);
        let stolen = stolen.expect("the kind is right");
        assert_eq!(stolen.evicted.iter().map(|entry| entry.fence).collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(stolen.standing, Standing::Held { fence: 6, .. }));
        let places = |desk: &Desk| -> Vec<(Token, u64)> {
            desk.line.entries().map(|entry| (entry.token, entry.fence)).collect()
        };
        let after = vec![(thief, 6), (waiting[0], 7), (waiting[1], 8), (waiting[2], 9)];
        assert_eq!(places(&desk), after);
        assert!(desk.line.settle(NOW).is_empty(), "only the stolen claim holds");
        let again = desk.steal_as(thief, &[]).expect("it is in line");
        assert!(again.evicted.is_empty());
        assert!(matches!(again.standing, Standing::Held { fence: 6, .. }));
        assert_eq!(places(&desk), after, "a repeated order changes nothing");
    }

    #[test]
    fn order_to_steal_that_does_not_name_a_holder_changes_nothing() {
        let mut desk = Desk::new();
        desk.enter(Mode::Shared);
        desk.enter(Mode::Shared);
        desk.enter(Mode::Exclusive);
        let (_, stolen) = desk.steal(&[1, 3]);
        let stolen = stolen.expect("the kind is right");
        assert!(matches!(stolen.standing, Standing::Out { ahead: 3, by: Some(_), .. }));
        assert!(stolen.evicted.is_empty());
        assert_eq!(desk.line.entries().map(|entry| entry.fence).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(desk.next, 3, "no number was used up");
    }

    #[test]
    fn free_name_is_taken_and_a_semaphore_is_not() {
        let mut desk = Desk::new();
        let (_, stolen) = desk.steal(&[]);
        assert!(matches!(stolen.expect("it is free").standing, Standing::Held { fence: 1, .. }));
        let mut desk = Desk::new();
        desk.enter(Mode::Permits { take: 1, of: 4 });
        let (_, refused) = desk.steal(&[1]);
        assert_eq!(refused.map(|_| ()), Err(Refusal::Mismatch(Kind::Permits { of: 4 })));
        assert_eq!(desk.line.entries().len(), 1);
    }

    #[test]
    fn another_note_is_seen_and_a_claim_that_is_gone_is_out() {
        let mut desk = Desk::new();
        let (token, _) = desk.ask(Mode::Exclusive, true);
        let amendment = Amendment::note(Note::new("later").expect("a good note"));
        assert_eq!(desk.line.amend(&token, &amendment), Amended::Done);
        assert_eq!(desk.line.get(&token).map(|entry| entry.note.as_str()), Some("later"));
        desk.line.release(&token);
        assert_eq!(desk.line.amend(&token, &amendment), Amended::Out { by: None });
    }

    #[test]
    fn a_limit_changes_for_everybody_in_line_or_for_nobody() {
        let mut desk = Desk::new();
        assert_eq!(desk.line.resize(3), Ok(Resized::Unused));
        desk.enter(Mode::Permits { take: 2, of: 3 });
        let (_, waiting) = desk.ask(Mode::Permits { take: 3, of: 3 }, true);
        assert!(!held(&waiting));
        assert_eq!(desk.line.resize(1), Ok(Resized::Held { units: 2 }));
        assert_eq!(desk.line.resize(2), Ok(Resized::Wanted { units: 3 }));
        assert_eq!(desk.line.resize(5), Ok(Resized::Done { before: 3 }));
        assert_eq!(desk.line.settle(NOW).len(), 1);
        let (_, refused) = desk.ask(Mode::Permits { take: 1, of: 3 }, true);
        assert_eq!(refused, Err(Refusal::Mismatch(Kind::Permits { of: 5 })));
        let mut lock = Desk::new();
        lock.enter(Mode::Exclusive);
        assert_eq!(lock.line.resize(5), Err(Refusal::Mismatch(Kind::Lock)));
    }

    #[test]
    fn an_expired_claim_is_not_renewed_back_to_life() {
        let mut desk = Desk::new();
        let (token, _) = desk.ask(Mode::Exclusive, true);
        let later = NOW + Duration::from_secs(30);
        assert_eq!(desk.line.expire(later).len(), 1);
        let key = ClaimKey { name: Name::new("n").expect("a good name"), token };
        let ttl = Duration::from_secs(30);
        let answer = desk.line.renew(later, &Renewal { key, ttl, patience: ttl });
        assert!(matches!(answer, Standing::Out { by: None, .. }));
        assert!(desk.line.is_empty());
    }

    #[test]
    fn closed_lease_keeps_its_fence_and_is_nobodys() {
        let mut desk = Desk::new();
        let (token, _) = desk.ask(Mode::Exclusive, true);
        let (waiting, _) = desk.ask(Mode::Exclusive, true);
        let (stay, retired) = (Duration::from_secs(5), Token::retired());
        let by = desk.line.held_by().cloned().expect("it is held");
        let taken = Released::TakenBy(by);
        assert_eq!(desk.line.keep_closed(NOW, &waiting, (stay, retired)), taken, "it waits");
        assert_eq!(desk.line.keep_closed(NOW, &token, (stay, retired)), Released::Released);
        assert_eq!(desk.line.keep_closed(NOW, &token, (stay, Token::retired())), taken);
        assert_eq!(desk.line.release(&token), taken);
        let name = Name::new("n").expect("a good name");
        let view = desk.line.view(&name, NOW).expect("it is in use");
        let held = view.held.first().expect("it is held");
        assert!(held.closed && held.fence == 1 && held.remaining == stay);
        assert!(!view.waiting[0].closed);
        let key = ClaimKey { name, token: waiting };
        let renewal = Renewal { key, ttl: stay, patience: 2 * stay };
        match desk.line.renew(NOW, &renewal) {
            Standing::Queued { retry_in, .. } => assert_eq!(retry_in, stay),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_whom_an_expiry_concerns_comes_back_at_it() {
        let mut desk = Desk::new();
        desk.enter(Mode::Exclusive);
        desk.enter(Mode::Exclusive);
        let (_, third) = desk.ask(Mode::Exclusive, true);
        let Ok(Standing::Queued { retry_in, .. }) = third else { panic!("queued") };
        assert_eq!(retry_in, Duration::from_secs(30), "when the last before it would be gone");
    }
}
