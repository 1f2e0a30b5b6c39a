//! The waiting loop: one for every primitive and every engine.
//!
//! Ask; if the claim holds, done; if it stands in line, wait for its bell, its retry time or the
//! caller's deadline, whichever comes first, and ask again. Whatever way this ends without a
//! lease, being dropped among them, the claim leaves the line.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::client::Client;
use crate::clock::{ClockReading, Moment};
use crate::engine::{Query, Wake, unsupported};
use crate::error::{Cycle, Error, Held, Result, TryLockError};
use crate::lease::Lease;
use crate::observe::Measure;
use crate::options::LockOptions;
use crate::rule::claim::{
    Claim, ClaimKey, ClaimRef, Holder, HolderId, Mode, Note, Standing, Token, Ttl,
};
use crate::rule::name::Name;
use crate::runtime::claim_state::{ClaimState, HoldLimits, LeaseTerms};
use crate::runtime::facts;
use crate::runtime::keeper::Keeper;
use crate::runtime::refusal::explained;
use crate::runtime::search::{Found, Search};

/// The longest a waiter sleeps without asking, whatever the store said.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// How long the store has for an answer, however little time the caller has: what is free must be
/// granted to a caller that does not wait.
pub(crate) const FIRST_ANSWER: Duration = Duration::from_millis(250);

/// The pause before asking again when no bell can be waited for.
pub(crate) const BELL_RETRY: Duration = Duration::from_millis(250);

/// The first pause of a waiting claim that the store failed, less a random part; each further one
/// is twice as long, up to some seconds.
const DISTURBED_PAUSE: Duration = Duration::from_millis(100);
const DISTURBED_DOUBLINGS_MAX: u32 = 5;

/// The deadline of a caller that does not wait.
pub(crate) const NO_WAIT: Moment = Moment::from_nanos(0);

/// A claim to be made: its options, and the ways to wait for it.
///
/// Made by [`Client::request`]; [`Mutex`](crate::Mutex) is this with exclusive mode. It can be used
/// any number of times; each use is a claim of its own.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Request {
    client: Client,
    name: std::result::Result<Name, crate::error::Invalid>,
    mode: Mode,
    options: LockOptions,
}

impl Request {
    pub(crate) fn new(client: Client, name: impl AsRef<str>) -> Self {
        let name = Name::new(name).map_err(|error| match error {
            Error::Invalid(invalid) => invalid,
            _ => crate::error::Invalid::NameEmpty,
        });
        Self { client, name, mode: Mode::Exclusive, options: LockOptions::new() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The name, if it is one.
    pub(crate) fn name(&self) -> std::result::Result<Name, crate::error::Invalid> {
        self.name.clone()
    }

    /// The mode to ask for; by default exclusive.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How long the lease lasts without renewal; see [`LockOptions::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.options(LockOptions::new().ttl(ttl))
    }

    /// Text for others to read; see [`LockOptions::note`].
    pub fn note(self, note: impl Into<String>) -> Self {
        self.options(LockOptions::new().note(note))
    }

    /// Sets options. Other options stay as they are.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Waits for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    /// The claim leaves in the background, which the client's next [`try_acquire`] or
    /// [`acquire_within`] on the name awaits.
    ///
    /// [`try_acquire`]: Self::try_acquire
    /// [`acquire_within`]: Self::acquire_within
    pub async fn acquire(&self) -> Result<Lease> {
        if let Some(lease) = self.try_local() {
            return Ok(lease);
        }
        // Without a deadline the loop ends with a lease or a failure.
        Ok(Box::pin(self.acquire_until(None)).await?)
    }

    /// Takes the lease if it is free now, and never stands in line. A refusal says who holds the
    /// name, for which the store has two seconds more.
    ///
    /// Claims of this client that were given up on the name leave first, for which the store has
    /// 250 ms. So this is not refused because of the client's own wait that ended or was dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Lease, TryLockError> {
        if let Some(lease) = self.try_local() {
            return Ok(lease);
        }
        let asked = Box::pin(self.acquire_until(Some(NO_WAIT))).await;
        explained(&self.client.inner.keeper, asked).await
    }

    /// Waits for at most `span`. If it was not granted by then, says who holds the name. The claim
    /// has left the line before this ends, if the store answers within 250 ms. [`Error::Timeout`]
    /// if the store failed the claim last; it says how.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Lease, TryLockError> {
        if let Some(lease) = self.try_local() {
            return Ok(lease);
        }
        let keeper = &self.client.inner.keeper;
        let asked = Box::pin(self.acquire_until(Some(keeper.clock.now() + span))).await;
        explained(keeper, asked).await
    }

    /// Takes the lease by `deadline`. A refusal says only what the store answered to the claim.
    pub(crate) async fn ask_until(&self, deadline: Option<Moment>) -> Result<Lease, TryLockError> {
        match self.try_local() {
            Some(lease) => Ok(lease),
            None => Box::pin(self.acquire_until(deadline)).await,
        }
    }

    /// Takes a free name where the store answers on the spot. `None` if it takes more than that, or
    /// fails: the longer way then fails too, and says why.
    fn try_local(&self) -> Option<Lease> {
        let keeper = &self.client.inner.keeper;
        let part = keeper.claim_now.as_ref()?;
        if self.is_reentrant() || tracing::enabled!(tracing::Level::DEBUG) {
            return None;
        }
        let (name, mode, note, terms) = self.checked().ok()?;
        let token = Token::random();
        let claim = ClaimRef {
            name,
            token,
            mode,
            holder: &self.client.client_ref().0.holder,
            note: &note,
            ttl: terms.kept(),
            patience: terms.ttl.patience(),
            join: false,
        };
        let reading = ClockReading::of(&keeper.clock);
        let (fence, remaining) = part.claim_now(claim, reading)?;
        let key = ClaimKey { name: name.clone(), token };
        let (claim_state, due) = ClaimState::held(key, terms, fence, (reading.at, remaining));
        self.client.put_in_scope(&claim_state);
        if keeper.enter_held(&claim_state).is_err() {
            drop(keeper.parts.release_now.as_ref()?.release_now(&claim_state.key));
            return None;
        }
        keeper.wake_by(due);
        // A close that came in between may have gone through the list before this was on it.
        if keeper.is_closed() {
            drop(Lease::new(&self.client, claim_state, fence));
            return None;
        }
        Some(Lease::new(&self.client, claim_state, fence))
    }

    pub(crate) async fn acquire_until(
        &self,
        deadline: Option<Moment>,
    ) -> Result<Lease, TryLockError> {
        let (claim, terms) = self.claim(deadline != Some(NO_WAIT))?;
        let keeper = &self.client.inner.keeper;
        keeper.refuse_fork()?;
        if deadline.is_some() {
            keeper.own_releases_done(&claim.key.name).await;
        }
        let begun = keeper.clock.now();
        if let Some(span) = self.unrenewed() {
            self.check_unrenewed(span, deadline, begun).await?;
        }
        let client = &self.client;
        let (request, claim) = (self, &claim);
        let alone = self.options.detects_self_deadlock();
        let acquiring = Acquiring { client, request, claim, alone, deadline, begun };
        let acquired = if self.is_reentrant() {
            acquiring.again(terms).await
        } else if tracing::enabled!(tracing::Level::DEBUG) {
            acquiring.traced(terms).await
        } else {
            acquiring.run(terms).await
        };
        match acquired {
            Err(TryLockError::Failed(error @ Error::Mismatch { .. })) => {
                Err(self.told_apart(error).await.into())
            }
            acquired => acquired,
        }
    }

    /// The same mismatch with what the notes tell: to an engine a rate is a semaphore, and a job
    /// of `once` a lock.
    pub(crate) async fn told_apart(&self, error: Error) -> Error {
        let Error::Mismatch { name, mut in_force, mut asked } = error else { return error };
        match self.client.line(name.as_str()).await {
            Ok(Some(line)) => {
                if let Some(first) = line.held.first().or(line.waiting.first()) {
                    in_force = facts::kind_of(first.mode, &first.note);
                }
            }
            Ok(None) => {}
            // The engine's words are right too.
            Err(error) => tracing::debug!(%error, %name, "a mismatch is not looked into"),
        }
        if let Ok(note) = Note::new(self.options.note_text()) {
            asked = facts::kind_of(self.mode, &note);
        }
        Error::Mismatch { name, in_force, asked }
    }

    /// How long the store must keep the lease although no client renews it.
    pub(crate) fn unrenewed(&self) -> Option<Duration> {
        let limits = self.options.limits();
        let delay = limits.as_ref().map_or(Duration::ZERO, |limits| limits.delay);
        // Nobody renews a lost lease, and its name must stay closed for the delay.
        let is_whole = !self.options.renews() || !delay.is_zero();
        let whole = is_whole.then_some(self.options.ttl_or_default() + delay);
        whole.max(limits.and_then(|limits| limits.hold_at_least))
    }

    /// Refuses what the store would not keep, within the caller's time.
    async fn check_unrenewed(
        &self,
        span: Duration,
        deadline: Option<Moment>,
        begun: Moment,
    ) -> Result<()> {
        let keeper = &self.client.inner.keeper;
        let until = deadline.unwrap_or(Moment::NEVER).max(begun + FIRST_ANSWER);
        let is_bounded = deadline.is_some_and(|deadline| deadline != NO_WAIT);
        tokio::select! {
            biased;
            checked = self.client.inner.check_unrenewed(span) => checked,
            () = keeper.clock.sleep_until(until), if is_bounded => Err(keeper.silent(begun)),
        }
    }

    /// A claim of this request and its terms, if the options keep to the rules.
    pub(crate) fn claim(&self, join: bool) -> Result<(Claim, LeaseTerms)> {
        let (name, mode, note, terms) = self.checked()?;
        let claim = Claim {
            key: ClaimKey { name: name.clone(), token: Token::random() },
            mode,
            holder: self.client.client_ref().0.holder.clone(),
            note,
            ttl: terms.kept(),
            patience: terms.ttl.patience(),
            join,
        };
        Ok((claim, terms))
    }

    /// The contents of a claim, if the options keep to the rules.
    #[inline(always)]
    fn checked(&self) -> Result<(&Name, Mode, Note, LeaseTerms)> {
        let name = match &self.name {
            Ok(name) => name,
            Err(invalid) => return Err(invalid.clone().into()),
        };
        let ttl = Ttl::new(self.options.ttl_or_default())?;
        let mode = self.mode.checked()?;
        self.check_mode(mode)?;
        if self.is_reentrant() && mode != Mode::Exclusive {
            let (what, rule) = ("reentrant", "only for exclusive locks");
            return Err(Error::Invalid(crate::error::Invalid::Setting { what, rule }));
        }
        let note = Note::new(self.options.note_text())?;
        let limits = self.options.limits();
        self.check_limits(limits.as_ref())?;
        let terms = LeaseTerms {
            ttl,
            renew: self.options.renews(),
            renew_at_percent: self.client.inner.renew_at_percent,
            bounds: limits.map(Box::new),
        };
        Ok((name, mode, note, terms))
    }

    /// Refuses a mode that the store does not promise.
    fn check_mode(&self, mode: Mode) -> Result<()> {
        let info = self.client.info();
        let advice = "use an exclusive lock, or another store";
        match mode {
            Mode::Shared if !info.can.shared => Err(unsupported(info, "share a name", advice)),
            Mode::Permits { .. } if !info.can.permits => {
                Err(unsupported(info, "count permits", advice))
            }
            _ => Ok(()),
        }
    }

    /// Whether this is about the same client, name and mode as another request.
    pub(crate) fn is_like(&self, other: &Request) -> bool {
        self.name == other.name && self.mode == other.mode && self.client.is_same(&other.client)
    }

    pub(crate) fn is_reentrant(&self) -> bool {
        self.options.is_reentrant()
    }

    fn check_limits(&self, limits: Option<&HoldLimits>) -> Result<()> {
        let Some(bounds) = limits else { return Ok(()) };
        for span in [bounds.hold_at_least, bounds.hold_at_most].into_iter().flatten() {
            if span.is_zero() || span > Ttl::MAX {
                return Err(Error::Invalid(crate::error::Invalid::Setting {
                    what: "hold_at_least and hold_at_most",
                    rule: "longer than nothing and at most 24 h",
                }));
            }
        }
        if self.options.ttl_or_default().saturating_add(bounds.delay) > Ttl::MAX {
            let (what, rule) = ("ttl and lock delay", "together at most 24 h");
            return Err(Error::Invalid(crate::error::Invalid::Setting { what, rule }));
        }
        let keeper = &self.client.inner.keeper;
        if bounds.hold_at_least.is_some() {
            keeper.need(&keeper.parts.unattended)?;
        }
        Ok(())
    }
}

/// One run of the loop.
#[derive(Clone, Copy)]
struct Acquiring<'a> {
    client: &'a Client,
    request: &'a Request,
    claim: &'a Claim,
    alone: bool,
    deadline: Option<Moment>,
    begun: Moment,
}

impl Acquiring<'_> {
    /// Enters a name that this client holds already, or runs the loop for it.
    async fn again(&self, terms: LeaseTerms) -> Result<Lease, TryLockError> {
        let keeper = &self.client.inner.keeper;
        let entry_lock = self.client.inner.reentry.entry_lock(&self.claim.key.name);
        let mut inside = tokio::select! {
            biased;
            inside = entry_lock.lock() => inside,
            // Somebody of this client waits in line already, and this one's time is up.
            () = keeper.clock.sleep_until(self.deadline.unwrap_or(Moment::NEVER)),
                if self.deadline.is_some() =>
            {
                keeper.counters.contended();
                let held = Held::new(&self.claim.key.name, None, 1, Duration::ZERO);
                return Err(TryLockError::Held(Box::new(held)));
            }
        };
        let claim_state = inside.upgrade();
        let lease =
            claim_state.and_then(|claim_state| Lease::enter_again(self.client, claim_state));
        if let Some(lease) = lease {
            return Ok(lease);
        }
        // The time spent at the entry lock is not the store's: its answer is counted from now on.
        let begun = keeper.clock.now();
        let lease = Acquiring { begun, ..*self }.traced(terms).await?;
        *inside = lease.downgrade();
        Ok(lease)
    }

    /// The loop in a span of its own, for tools that show spans.
    async fn traced(&self, terms: LeaseTerms) -> Result<Lease, TryLockError> {
        let (name, mode) = (&self.claim.key.name, self.claim.mode);
        let span = tracing::debug_span!("leasehold.acquire", %name, ?mode);
        self.run(terms).instrument(span).await
    }

    async fn run(&self, terms: LeaseTerms) -> Result<Lease, TryLockError> {
        let keeper = &self.client.inner.keeper;
        let mut guard = ClaimGuard::begin(self.client, self.claim, terms, self.begun)?;
        let mut search = None;
        let mut disturbed = Disturbed::default();
        let mut sent = self.begun;
        loop {
            match self.round(sent, &mut guard, &mut search).await {
                Ok(Round::Again) => disturbed = Disturbed::default(),
                Ok(Round::Granted { fence, now, due }) => {
                    let times = (self.begun, now, due);
                    return Ok(guard.granted(self.client, self.claim, fence, times));
                }
                Ok(Round::Unanswered) => match disturbed.last {
                    Some(last) => return Err(self.timeout(last).into()),
                    None => return Err(self.refused(guard).await),
                },
                Ok(Round::Refused) => return Err(self.refused(guard).await),
                // The claim keeps its place, or gets another one when the store is back. A lease
                // that ended before its grant arrived is asked for again, if the caller has time.
                Err(error) if self.may_ask_again(&error, &guard) => {
                    self.pause(&guard, error, &mut disturbed).await?;
                }
                Err(error) => return Err(error.into()),
            }
            sent = keeper.clock.now();
        }
    }

    /// Asks the store once and, if the claim is in line, waits until it is worth asking again.
    async fn round<'s>(
        &'s self,
        sent: Moment,
        guard: &mut ClaimGuard<'_>,
        search: &mut Option<BoxFuture<'s, Found>>,
    ) -> Result<Round> {
        let claim = self.claim;
        let keeper = &self.client.inner.keeper;
        let standing = match self.deadline {
            // Trying without waiting in line still waits for the answer.
            Some(deadline) if claim.join => match self.answer_until(deadline, sent).await? {
                Some(standing) => standing,
                None if guard.waiting => return Ok(Round::Unanswered),
                None => return Err(keeper.silent(self.begun)),
            },
            _ => keeper.engine.claim(claim).await?,
        };
        if keeper.is_closed() {
            return Err(Error::Closed);
        }
        let (place, retry_in) = match standing {
            Standing::Held { fence, remaining } => {
                guard.check(fence)?;
                // A store that cannot fail cannot be late.
                let slow = keeper.engine.info().can_fail || guard.waiting;
                let now = if slow { keeper.clock.now() } else { sent };
                return match guard.claim_state.hold(fence, sent, remaining, now) {
                    Some(due) => Ok(Round::Granted { fence, now, due }),
                    None => {
                        let took = now.since(sent);
                        Err(Error::TooSlow { name: claim.key.name.clone(), took })
                    }
                };
            }
            Standing::Queued { place, ahead, retry_in } => {
                guard.in_the_way = InTheWay { by: None, ahead, retry_in };
                (place, retry_in)
            }
            Standing::Out { ahead, retry_in, by } => {
                guard.in_the_way = InTheWay { by, ahead, retry_in };
                keeper.counters.contended();
                return Ok(Round::Refused);
            }
        };
        guard.wait_begins();
        if self.alone {
            self.refuse_own_name(claim).await?;
        }
        if let Some(due) = guard.claim_state.queue(place, sent) {
            keeper.wake_by(due);
        }
        if search.is_none() {
            *search = self.search(&guard.claim_state);
        }
        match self.wait(&guard.claim_state, &claim.key, retry_in, search).await? {
            None => return Ok(Round::Refused),
            Some(Wake::Ask) => {}
            Some(Wake::Holds { place, fence }) => {
                guard.check(fence)?;
                let now = keeper.clock.now();
                if let Some(due) = guard.claim_state.hold_by_bell(place, fence, now) {
                    return Ok(Round::Granted { fence, now, due });
                }
            }
        }
        Ok(Round::Again)
    }

    /// Whether the claim outlives this error.
    fn may_ask_again(&self, error: &Error, guard: &ClaimGuard<'_>) -> bool {
        match error {
            Error::TooSlow { .. } => self.claim.join,
            // The line filled up while the claim had no place in it.
            Error::Limit { .. } => guard.waiting,
            error => guard.waiting && error.is_transient(),
        }
    }

    /// The store failed a claim that may wait: reports that, and pauses a little before the claim
    /// asks again. An error is returned if the caller's time is up or the client was closed.
    async fn pause(
        &self,
        guard: &ClaimGuard<'_>,
        error: Error,
        disturbed: &mut Disturbed,
    ) -> Result<()> {
        let (keeper, name) = (&self.client.inner.keeper, &self.claim.key.name);
        tracing::debug!(%error, %name, "the store failed a claim that waits; it asks again");
        keeper.observe(Measure::WaitDisturbed { name, error: &error });
        let now = keeper.clock.now();
        let again = now + disturbed.next_pause();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(self.timeout(error));
        }
        disturbed.last = Some(error);
        let until = self.deadline.map_or(again, |deadline| deadline.min(again));
        tokio::select! {
            biased;
            // Also rung when the client is closed.
            () = guard.claim_state.bell.notified() => {}
            () = keeper.clock.sleep_until(until) => {}
        }
        if keeper.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// One answer of the store; `None` if none came within the caller's time.
    ///
    /// However little of that is left, the store has a moment: a request whose answer nobody awaits
    /// could reach the store after the claim has left, and make it again.
    async fn answer_until(&self, deadline: Moment, sent: Moment) -> Result<Option<Standing>> {
        let keeper = &self.client.inner.keeper;
        tokio::select! {
            biased;
            standing = keeper.engine.claim(self.claim) => standing.map(Some),
            () = keeper.clock.sleep_until(deadline.max(sent + FIRST_ANSWER)) => Ok(None),
        }
    }

    /// Waits until the claim holds or it is worth asking again; `None` when the caller's time is
    /// up.
    async fn wait(
        &self,
        claim_state: &ClaimState,
        key: &ClaimKey,
        retry_in: Duration,
        search: &mut Option<BoxFuture<'_, Found>>,
    ) -> Result<Option<Wake>> {
        let keeper = &self.client.inner.keeper;
        let now = keeper.clock.now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Ok(None);
        }
        let retry_at = now + retry_in.min(RETRY_MAX);
        let until = self.deadline.map_or(retry_at, |deadline| deadline.min(retry_at));
        let wake = tokio::select! {
            biased;
            rung = self.bell(key) => rung?,
            () = claim_state.bell.notified() => Wake::Ask,
            found = ended(search) => {
                *search = None;
                match found {
                    Found::Deadlock(error) => return Err(error),
                    Found::Ask => Wake::Ask,
                }
            }
            () = keeper.clock.sleep_until(until) => Wake::Ask,
        };
        if keeper.is_closed() {
            return Err(Error::Closed);
        }
        Ok(Some(wake))
    }

    /// The search for deadlocks while this claim waits; `None` if nobody wants or has it.
    fn search(&self, claim_state: &Arc<ClaimState>) -> Option<BoxFuture<'_, Found>> {
        let inner = &self.client.inner;
        let able =
            inner.keeper.parts.wait_notices.is_some() && self.request.options.detects_deadlocks();
        let period = inner.deadlock_period.filter(|_| able)?;
        let (keeper, claim, alone) = (&inner.keeper, self.claim, self.alone);
        let (claim_state, holding) = (Arc::clone(claim_state), self.request.options.held_names());
        let search = Search { keeper, claim, claim_state, period, alone, holding };
        Some(Box::pin(search.run()))
    }

    /// Waits for the bell. A bell that is out of order is as good as one that does not ring: the
    /// claim is in line, so the store is asked again after a while.
    async fn bell(&self, key: &ClaimKey) -> Result<Wake> {
        match self.client.inner.keeper.engine.wait(key).await {
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "waiting for a bell failed");
                let clock = &self.client.inner.keeper.clock;
                clock.sleep_until(clock.now() + BELL_RETRY).await;
                Ok(Wake::Ask)
            }
            woken => woken,
        }
    }

    /// The claim is not granted. One that stood in line has left it before this ends, if the store
    /// answers in time.
    async fn refused(&self, mut guard: ClaimGuard<'_>) -> TryLockError {
        let keeper = &self.client.inner.keeper;
        let name = &self.claim.key.name;
        let InTheWay { by, ahead, retry_in } = std::mem::take(&mut guard.in_the_way);
        let waited_in_line = guard.waiting;
        let waited = keeper.clock.now().since(self.begun);
        keeper.observe(Measure::Refused { name, waited });
        if self.claim.join {
            // The engine answers at once, or the keeper takes the claim over.
            drop(guard);
            keeper.own_releases_done(name).await;
        } else {
            guard.forget();
        }
        let held = Held { waited: waited_in_line, ..Held::new(name, by, ahead, retry_in) };
        TryLockError::Held(Box::new(held))
    }

    /// The caller's time is up, and the store failed the claim last.
    fn timeout(&self, last: Error) -> Error {
        let waited = self.client.inner.keeper.clock.now().since(self.begun);
        Error::Timeout { name: self.claim.key.name.clone(), waited, last: Box::new(last) }
    }

    async fn refuse_own_name(&self, claim: &Claim) -> Result<()> {
        let query = Query::name(claim.key.name.clone());
        let engine = &self.client.inner.keeper.engine;
        let page = engine.inspect(&query).await?;
        let own = self.client.inner.holder.id();
        let held = page.lines.iter().flat_map(|line| &line.held);
        let Some(holder) = held.map(|held| &held.holder).find(|holder| holder.id() == own) else {
            return Ok(());
        };
        // It may have been this very claim, granted since it was last asked about. One that still
        // waits did not hold then.
        if !matches!(engine.claim(claim).await?, Standing::Queued { .. }) {
            return Ok(());
        }
        Err(Error::Deadlock {
            name: claim.key.name.clone(),
            cycle: Cycle(vec![(claim.key.name.clone(), holder.clone())]),
        })
    }
}

/// The end of one round of asking and waiting.
enum Round {
    /// It is worth asking again.
    Again,
    /// The claim holds since `now`; its first renewal is due then.
    Granted { fence: u64, now: Moment, due: Moment },
    /// Others hold the name, and the claim does not wait, or the caller's time is up.
    Refused,
    /// The caller's time is up while the claim is in line, and the store has not answered the last
    /// request.
    Unanswered,
}

/// The failures of the store since a waiting claim last heard of it.
#[derive(Default)]
struct Disturbed {
    last: Option<Error>,
    failures: u32,
}

impl Disturbed {
    fn next_pause(&mut self) -> Duration {
        let doublings = self.failures.min(DISTURBED_DOUBLINGS_MAX);
        self.failures += 1;
        (DISTURBED_PAUSE * 2_u32.pow(doublings)).mul_f64(rand::random_range(0.5..1.0))
    }
}

/// Ends when a search does; never, if there is none.
async fn ended(search: &mut Option<BoxFuture<'_, Found>>) -> Found {
    match search {
        Some(search) => search.await,
        None => std::future::pending().await,
    }
}

/// Makes sure that a claim which does not become a lease leaves nothing behind.
pub(crate) struct ClaimGuard<'a> {
    keeper: &'a Arc<Keeper>,
    pub(crate) claim_state: Arc<ClaimState>,
    holder: HolderId,
    /// The greatest fence that was known before the claim was sent.
    known: u64,
    waiting: bool,
    settled: bool,
    in_the_way: InTheWay,
}

/// The claims before one that does not hold, by the store's last answer.
#[derive(Debug, Default)]
struct InTheWay {
    by: Option<Holder>,
    ahead: usize,
    retry_in: Duration,
}

impl<'a> ClaimGuard<'a> {
    /// Takes a claim into care before it is sent.
    pub(crate) fn begin(
        client: &'a Client,
        claim: &Claim,
        terms: LeaseTerms,
        now: Moment,
    ) -> Result<Self> {
        let (keeper, holder) = (&client.inner.keeper, claim.holder.id());
        let claim_state = Arc::new(ClaimState::new(claim.key.clone(), terms, now));
        client.put_in_scope(&claim_state);
        keeper.enter(&claim_state)?;
        let known = keeper.fence_watermark.known();
        let (waiting, settled, in_the_way) = (false, false, InTheWay::default());
        Ok(Self { keeper, claim_state, holder, known, waiting, settled, in_the_way })
    }

    /// Refuses a fence that only a store which was set back can give.
    pub(crate) fn check(&self, fence: u64) -> Result<()> {
        self.keeper.fence_watermark.check(self.keeper.engine.info(), self.known, fence)
    }

    /// The claim holds since `now`, having been asked for at `begun`; it is renewed from `due` on.
    pub(crate) fn granted(
        mut self,
        client: &Client,
        claim: &Claim,
        fence: u64,
        (begun, now, due): (Moment, Moment, Moment),
    ) -> Lease {
        self.settled = true;
        self.keeper.wake_by(due);
        self.keeper.counters.acquired();
        let (name, mode, waited) = (&claim.key.name, claim.mode, now.since(begun));
        tracing::debug!(%name, fence, ?waited, "granted");
        self.keeper.observe(Measure::Granted { name, mode, waited });
        Lease::new(client, Arc::clone(&self.claim_state), fence)
    }

    fn wait_begins(&mut self) {
        if !self.waiting {
            self.waiting = true;
            self.keeper.counters.contended();
            self.keeper.counters.wait_began();
            self.keeper.observe(Measure::WaitBegan { name: &self.claim_state.key.name });
        }
    }

    /// The claim never entered the line.
    pub(crate) fn forget(mut self) {
        self.keeper.forget(&self.claim_state);
        self.settled = true;
    }
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        let over = self.settled && !self.waiting;
        if over || self.keeper.is_forked() {
            return;
        }
        if self.waiting {
            self.keeper.counters.wait_ended();
            self.keeper.wait_ended(self.holder, &self.claim_state.key.token);
            self.keeper.observe(Measure::WaitEnded { name: &self.claim_state.key.name });
        }
        if !self.settled {
            self.keeper.cancel(&self.claim_state);
        }
    }
}
