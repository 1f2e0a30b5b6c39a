//! The waiting loop: one for every primitive and every engine.
//!
//! Ask; if the claim holds, done; if it stands in line, wait for its bell, its retry time or the
//! caller's deadline, whichever comes first, and ask again. Whatever way this ends without a
//! lease, being dropped among them, the claim leaves the line.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::claim::{Claim, ClaimKey, ClaimRef, HolderId, Mode, Note, Standing, Token, Ttl};
use crate::client::Client;
use crate::clock::{Glance, Moment};
use crate::engine::{Query, Wake};
use crate::error::{Cycle, Error, Result};
use crate::keeper::Keeper;
use crate::lease::Lease;
use crate::name::Name;
use crate::observe::Measure;
use crate::search::{Found, Search};
use crate::tenure::{Bounds, Tenure, Terms};

/// The longest a waiter sleeps without asking, whatever the store said.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// How long the store has for its first answer, however little time the caller has: what is free
/// must be granted to somebody who will not wait.
pub(crate) const FIRST_ANSWER: Duration = Duration::from_millis(250);

/// The pause before asking again when no bell can be waited for.
const BELL_RETRY: Duration = Duration::from_millis(250);

/// The deadline of whoever does not wait.
pub(crate) const AT_ONCE: Moment = Moment::from_nanos(0);

/// A claim to be made: its options, and the ways to wait for it.
///
/// Made by [`Client::claim`]; [`Mutex`](crate::Mutex) is this with exclusive mode. It can be used
/// any number of times; each use is a claim of its own.
#[derive(Debug, Clone)]
pub struct Request {
    client: Client,
    name: std::result::Result<Name, crate::error::Invalid>,
    mode: Mode,
    ttl: Duration,
    note: String,
    renew: bool,
    bounds: Option<Box<Bounds>>,
    reentrant: bool,
    alone: bool,
    detect: bool,
    holding: Vec<Name>,
}

impl Request {
    pub(crate) fn new(client: Client, name: impl AsRef<str>) -> Self {
        let name = Name::new(name).map_err(|error| match error {
            Error::Invalid(invalid) => invalid,
            _ => crate::error::Invalid::NameEmpty,
        });
        Self {
            client,
            name,
            mode: Mode::Exclusive,
            ttl: Ttl::DEFAULT.get(),
            note: String::new(),
            renew: true,
            bounds: None,
            reentrant: false,
            alone: false,
            detect: true,
            holding: Vec::new(),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The name, if it is one.
    pub(crate) fn name(&self) -> std::result::Result<Name, crate::error::Invalid> {
        self.name.clone()
    }

    /// What to ask for; exclusive unless said otherwise.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How long the lease lasts without renewal: 100 ms to 24 h, 30 s unless said otherwise.
    ///
    /// A holder that dies keeps the others waiting for at most this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Text for others to read while the claim is in line: up to 4 KiB.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Whether the lease is renewed until it is given back. Without, it ends after its ttl.
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// Gives the lease back after this long, whatever its holder does: for work that may hang.
    pub fn max_hold(mut self, span: Duration) -> Self {
        self.bounds.get_or_insert_default().hold_at_most = Some(span);
        self
    }

    /// Keeps the name closed for at least this long, even if the lease is given back earlier: for
    /// jobs so short that a second machine would start them again.
    pub fn hold_at_least(mut self, span: Duration) -> Self {
        self.bounds.get_or_insert_default().hold_at_least = Some(span);
        self
    }

    /// Keeps the name closed for this long after the lease was lost, by a crash, a cut or a pause:
    /// for resources that cannot check fences, so that what the old holder still has on its way
    /// arrives before the next one begins. A lease that is given back is free at once.
    ///
    /// Together with the ttl at most 24 h. It makes waiting for the lock one exchange longer.
    pub fn lock_delay(mut self, span: Duration) -> Self {
        self.bounds.get_or_insert_default().delay = span;
        self
    }

    /// Lets the same client enter again while it holds: same fence, counted.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// Says that this holder does one thing at a time: waiting for a name that it holds itself is
    /// then a deadlock, and reported as one instead of waited for. Whatever the client holds, it
    /// keeps while this waits, whichever task took it.
    pub fn one_at_a_time(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Names that the same holder keeps through another client or process while this waits, for
    /// deadlock detection. What this client took in the same task, it knows.
    pub fn holding(mut self, names: impl IntoIterator<Item = Name>) -> Self {
        self.holding = names.into_iter().collect();
        self
    }

    /// Whether to look for deadlocks while this waits; yes unless said otherwise here or for the
    /// whole client. A wait without it is no part of a deadlock for others either.
    pub fn deadlock_detection(mut self, on: bool) -> Self {
        self.detect = on;
        self
    }

    /// Waits for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point takes the claim out of the line; a place in line is lost.
    pub async fn acquire(&self) -> Result<Lease> {
        if let Some(lease) = self.on_the_spot() {
            return Ok(lease);
        }
        match Box::pin(self.acquire_until(None)).await? {
            Some(lease) => Ok(lease),
            // Without a deadline the loop ends with a lease or an error.
            None => Err(Error::Closed),
        }
    }

    /// Takes the lease if it is free now; `None` if it is not. Never stands in line.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        if let Some(lease) = self.on_the_spot() {
            return Ok(Some(lease));
        }
        Box::pin(self.acquire_until(Some(AT_ONCE))).await
    }

    /// Waits for at most `span`; `None` if it was not granted by then.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, span: Duration) -> Result<Option<Lease>> {
        if let Some(lease) = self.on_the_spot() {
            return Ok(Some(lease));
        }
        let deadline = self.client.inner.keeper.clock.now() + span;
        Box::pin(self.acquire_until(Some(deadline))).await
    }

    /// Takes what is free without a detour, where the store answers on the spot; `None` if it takes
    /// more than that, or fails: then the longer way does too, and says why.
    fn on_the_spot(&self) -> Option<Lease> {
        let keeper = &self.client.inner.keeper;
        let plain = keeper.answers_now && !self.reentrant;
        if !plain || tracing::enabled!(tracing::Level::DEBUG) {
            return None;
        }
        let (name, mode, note, terms) = self.checked().ok()?;
        let token = Token::random();
        let claim = ClaimRef {
            name,
            token,
            mode,
            holder: &self.client.anchor().0.holder,
            note: &note,
            ttl: terms.kept(),
            patience: terms.ttl.patience(),
            join: false,
        };
        let glance = Glance::of(&keeper.clock);
        let (fence, remaining) = keeper.direct.claim_now(claim, glance)?;
        let key = ClaimKey { name: name.clone(), token };
        let (tenure, due) = Tenure::held(key, terms, fence, (glance.at, remaining));
        self.client.put_in_scope(&tenure);
        if keeper.enter_held(&tenure).is_err() {
            drop(keeper.direct.release_now(&tenure.key));
            return None;
        }
        keeper.expect_at(due);
        // A close that came in between may have gone through the list before this was on it.
        if keeper.is_closed() {
            drop(Lease::new(&self.client, tenure, fence));
            return None;
        }
        Some(Lease::new(&self.client, tenure, fence))
    }

    pub(crate) async fn acquire_until(&self, deadline: Option<Moment>) -> Result<Option<Lease>> {
        let (claim, terms) = self.claim(deadline != Some(AT_ONCE))?;
        let begun = self.client.inner.keeper.clock.now();
        let client = &self.client;
        let (request, claim) = (self, &claim);
        let acquiring = Acquiring { client, request, claim, alone: self.alone, deadline, begun };
        if self.reentrant {
            acquiring.again(terms).await
        } else if tracing::enabled!(tracing::Level::DEBUG) {
            acquiring.traced(terms).await
        } else {
            acquiring.run(terms).await
        }
    }

    /// A claim of this request and its terms, if the options keep to the rules.
    pub(crate) fn claim(&self, join: bool) -> Result<(Claim, Terms)> {
        let (name, mode, note, terms) = self.checked()?;
        let claim = Claim {
            key: ClaimKey { name: name.clone(), token: Token::random() },
            mode,
            holder: self.client.anchor().0.holder.clone(),
            note,
            ttl: terms.kept(),
            patience: terms.ttl.patience(),
            join,
        };
        Ok((claim, terms))
    }

    /// What a claim is made of, if the options keep to the rules.
    #[inline(always)]
    fn checked(&self) -> Result<(&Name, Mode, Note, Terms)> {
        let name = match &self.name {
            Ok(name) => name,
            Err(invalid) => return Err(invalid.clone().into()),
        };
        let ttl = Ttl::new(self.ttl)?;
        let mode = self.mode.checked()?;
        let note = Note::new(&self.note)?;
        self.check_spans()?;
        let terms = Terms {
            ttl,
            renew: self.renew,
            renew_at_percent: self.client.inner.renew_at_percent,
            bounds: self.bounds.clone(),
        };
        Ok((name, mode, note, terms))
    }

    /// Whether this is about the same client, name and mode as another request.
    pub(crate) fn is_like(&self, other: &Request) -> bool {
        self.name == other.name && self.mode == other.mode && self.client.is_same(&other.client)
    }

    pub(crate) fn is_reentrant(&self) -> bool {
        self.reentrant
    }

    fn check_spans(&self) -> Result<()> {
        let Some(bounds) = &self.bounds else { return Ok(()) };
        for span in [bounds.hold_at_least, bounds.hold_at_most].into_iter().flatten() {
            if span.is_zero() || span > Ttl::MAX {
                return Err(Error::Invalid(crate::error::Invalid::Setting {
                    what: "hold-at-least and max-hold",
                    rule: "longer than nothing and at most 24 h",
                }));
            }
        }
        if self.ttl.saturating_add(bounds.delay) > Ttl::MAX {
            let (what, rule) = ("ttl and lock delay", "together at most 24 h");
            return Err(Error::Invalid(crate::error::Invalid::Setting { what, rule }));
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
    async fn again(&self, terms: Terms) -> Result<Option<Lease>> {
        let keeper = &self.client.inner.keeper;
        let entrance = self.client.inner.reentry.entrance(&self.claim.key.name);
        let mut inside = tokio::select! {
            biased;
            inside = entrance.lock() => inside,
            // Somebody of this client waits in line already, and this one's time is up.
            () = keeper.clock.sleep_until(self.deadline.unwrap_or(Moment::NEVER)),
                if self.deadline.is_some() =>
            {
                keeper.counters.contended();
                return Ok(None);
            }
        };
        let tenure = inside.upgrade();
        let lease = tenure.and_then(|tenure| Lease::enter_again(self.client, tenure));
        if lease.is_some() {
            return Ok(lease);
        }
        // The time spent at the entrance is not the store's: its answer is counted from now on.
        let begun = keeper.clock.now();
        let lease = Acquiring { begun, ..*self }.traced(terms).await?;
        if let Some(lease) = &lease {
            *inside = lease.downgrade();
        }
        Ok(lease)
    }

    /// The loop in a span of its own, for whoever looks at spans.
    async fn traced(&self, terms: Terms) -> Result<Option<Lease>> {
        let (name, mode) = (&self.claim.key.name, self.claim.mode);
        let span = tracing::debug_span!("leasehold.acquire", %name, ?mode);
        self.run(terms).instrument(span).await
    }

    async fn run(&self, terms: Terms) -> Result<Option<Lease>> {
        let claim = self.claim;
        let keeper = &self.client.inner.keeper;
        let mut stay = Stay::begin(self.client, claim, terms, self.begun)?;
        let mut search = None;
        let mut sent = self.begun;
        loop {
            let standing = match self.deadline {
                // Trying without waiting in line still waits for the answer.
                Some(deadline) if claim.join => match self.ask_until(deadline, &stay).await? {
                    Some(standing) => standing,
                    None if stay.waiting => return Ok(self.refused(claim, stay)),
                    None => return Err(keeper.silent(self.begun)),
                },
                _ => keeper.engine.claim(claim).await?,
            };
            if keeper.is_closed() {
                return Err(Error::Closed);
            }
            match standing {
                Standing::Held { fence, remaining } => {
                    stay.check(fence)?;
                    // A store that cannot fail cannot be late.
                    let slow = keeper.engine.info().can_fail || stay.waiting;
                    let now = if slow { keeper.clock.now() } else { sent };
                    let Some(due) = stay.tenure.hold(fence, sent, remaining, now) else {
                        let took = now.since(sent);
                        return Err(Error::TooSlow { name: claim.key.name.clone(), took });
                    };
                    let times = (self.begun, now, due);
                    return Ok(Some(stay.granted(self.client, claim, fence, times)));
                }
                Standing::Queued { retry_in, .. } => {
                    stay.wait_begins();
                    if self.alone {
                        self.refuse_own_name(claim).await?;
                    }
                    if let Some(due) = stay.tenure.queue(sent) {
                        keeper.expect_at(due);
                    }
                    if search.is_none() {
                        search = self.search(&stay.tenure);
                    }
                    match self.wait(&stay.tenure, &claim.key, retry_in, &mut search).await? {
                        None => return Ok(self.refused(claim, stay)),
                        Some(Wake::Ask) => {}
                        Some(Wake::Holds { fence }) => {
                            stay.check(fence)?;
                            let now = keeper.clock.now();
                            if let Some(due) = stay.tenure.hold_by_bell(fence, now) {
                                let times = (self.begun, now, due);
                                return Ok(Some(stay.granted(self.client, claim, fence, times)));
                            }
                        }
                    }
                }
                Standing::Out { .. } => {
                    keeper.counters.contended();
                    return Ok(self.refused(claim, stay));
                }
            }
            sent = keeper.clock.now();
        }
    }

    /// One answer of the store; `None` if none came within the caller's time.
    async fn ask_until(&self, deadline: Moment, stay: &Stay<'_>) -> Result<Option<Standing>> {
        let keeper = &self.client.inner.keeper;
        let deadline = match stay.waiting {
            true => deadline,
            false => deadline.max(self.begun + FIRST_ANSWER),
        };
        tokio::select! {
            biased;
            standing = keeper.engine.claim(self.claim) => standing.map(Some),
            () = keeper.clock.sleep_until(deadline) => Ok(None),
        }
    }

    /// Waits until the claim holds or it is worth asking again; `None` when the caller's time is
    /// up.
    async fn wait(
        &self,
        tenure: &Tenure,
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
            () = tenure.bell.notified() => Wake::Ask,
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
    fn search(&self, tenure: &Arc<Tenure>) -> Option<BoxFuture<'_, Found>> {
        let inner = &self.client.inner;
        let able = inner.keeper.engine.info().can.deadlocks && self.request.detect;
        let period = inner.deadlock_period.filter(|_| able)?;
        let (keeper, claim, alone) = (&inner.keeper, self.claim, self.alone);
        let (tenure, holding) = (Arc::clone(tenure), &self.request.holding);
        let search = Search { keeper, claim, tenure, period, alone, holding };
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

    fn refused(&self, claim: &Claim, stay: Stay<'_>) -> Option<Lease> {
        let keeper = &self.client.inner.keeper;
        let waited = keeper.clock.now().since(self.begun);
        keeper.observe(Measure::Refused { name: &claim.key.name, waited });
        if claim.join {
            // Dropping `stay` hands the claim to the keeper where the engine cannot answer at
            // once; nothing more needs to be awaited for the caller's answer.
            drop(stay);
        } else {
            stay.forget();
        }
        None
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

/// Ends when a search does; never, if there is none.
async fn ended(search: &mut Option<BoxFuture<'_, Found>>) -> Found {
    match search {
        Some(search) => search.await,
        None => std::future::pending().await,
    }
}

/// Makes sure that a claim which does not become a lease leaves nothing behind.
pub(crate) struct Stay<'a> {
    keeper: &'a Arc<Keeper>,
    pub(crate) tenure: Arc<Tenure>,
    holder: HolderId,
    /// The greatest fence that was known before the claim was sent.
    known: u64,
    waiting: bool,
    settled: bool,
}

impl<'a> Stay<'a> {
    /// Takes a claim into care before it is sent.
    pub(crate) fn begin(
        client: &'a Client,
        claim: &Claim,
        terms: Terms,
        now: Moment,
    ) -> Result<Self> {
        let (keeper, holder) = (&client.inner.keeper, claim.holder.id());
        let tenure = Arc::new(Tenure::new(claim.key.clone(), terms, now));
        client.put_in_scope(&tenure);
        keeper.enter(&tenure)?;
        let known = keeper.witness.known();
        Ok(Self { keeper, tenure, holder, known, waiting: false, settled: false })
    }

    /// Refuses a fence that only a store which was set back can give.
    pub(crate) fn check(&self, fence: u64) -> Result<()> {
        self.keeper.witness.see(self.keeper.engine.info(), self.known, fence)
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
        self.keeper.expect_at(due);
        self.keeper.counters.acquired();
        let (name, mode, waited) = (&claim.key.name, claim.mode, now.since(begun));
        self.keeper.observe(Measure::Granted { name, mode, waited });
        Lease::new(client, Arc::clone(&self.tenure), fence)
    }

    fn wait_begins(&mut self) {
        if !self.waiting {
            self.waiting = true;
            self.keeper.counters.contended();
            self.keeper.counters.wait_began();
            self.keeper.observe(Measure::WaitBegan { name: &self.tenure.key.name });
        }
    }

    /// The claim never entered the line.
    pub(crate) fn forget(mut self) {
        self.keeper.forget(&self.tenure);
        self.settled = true;
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.keeper.counters.wait_ended();
            self.keeper.wait_ended(self.holder, &self.tenure.key.token);
            self.keeper.observe(Measure::WaitEnded { name: &self.tenure.key.name });
        }
        if !self.settled {
            self.keeper.withdraw(&self.tenure);
        }
    }
}
