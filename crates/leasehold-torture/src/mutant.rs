//! Wrong engines: each is a real one around which a single fault is put, so that the checker is
//! itself tested. No production code is changed.
//!
//! The faults that were once found in the library are among them, as they looked from above the
//! engine. `tests/mutants.rs` says which check must find each.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use leasehold::claim::{Claim, ClaimKey, Mode, Place, Released, Renewal, Standing, Token};
use leasehold::engine::{Engine, Eviction, LineView, Page, Query, Unattended, Wake, need};
use leasehold::sqlite::Sqlite;
use leasehold::{Error, Holder, Name, Result};
use serde::{Deserialize, Serialize};

use crate::attempt::OFFICE;
use crate::wrong::Wrong;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mutant {
    /// A release by somebody who owns nothing takes the name from its holder.
    ReleaseWithoutOwnerCheck,
    /// A renewal that finds nothing makes the claim again.
    RenewalMakesTheClaimAgain,
    /// Fences begin at one in each process.
    FenceRestarts,
    /// Fences are given out with a number that was drawn later, as for a second node.
    FenceOfALaterPlace,
    /// A bell grants every claim of the process on that name.
    BellForEverybody,
    /// A bell of a lost place grants the next one.
    BellOfALostPlace,
    /// A claim that came back is judged by a line from before it came back.
    LineFromBeforeItCameBack,
    /// A sweep takes a waiting claim out, and its waiter believes to be in line.
    SweptWhileItWaits,
    /// A second claim is made for a waiter, and left in the line.
    SecondClaimLeftBehind,
    /// No bell rings, and no heartbeat repairs it.
    WakeUpDropped,
    /// A keeper goes on renewing what was released.
    RenewedAfterRelease,
    /// The safe end counts from the answer, not from the request.
    DeadlineFromTheAnswer,
    /// A claim that does not wait is granted what is held.
    TryGrantsWhatIsHeld,
    /// Each heartbeat leaves the line and joins it again.
    PlaceLostAtEachHeartbeat,
    /// Some answers say that a script failed.
    ScriptFails,
    /// There is one permit more than there should be.
    OnePermitTooMany,
    /// Writers ask as readers do.
    WriterAsReader,
    /// Units of a rate end before their period.
    UnitEndsEarly,
    /// What was done once is forgotten.
    RunIsForgotten,
    /// A name that stays closed still belongs to its last owner.
    ClosedNameIsOwned,
    /// A name that must stay closed opens at once.
    ClosedNameOpens,
    /// How long a name stays closed counts from when its claim joined the line.
    ClosedFromTheQueue,
    /// A name stays closed for as long as a session lasts, not for as long as it was asked.
    ClosedForASession,
    /// The answer to a release is lost, and the one to its repetition is passed on.
    ReleaseAnswerLost,
    /// Some claims are never answered.
    AnswerNeverComes,
    /// Some readings of an election are old.
    OldLeaderIsShown,
}

/// The engine of a file, with a fault.
///
/// Some faults show only beside clients that are right: workers with even numbers are.
pub fn open(mutant: Mutant, url: &str, worker: u32) -> Result<Wrong> {
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    let (claims, bells, shown, count) = Default::default();
    Ok(Wrong::new(
        Arc::new(Sqlite::open(path)?),
        Faulty { mutant, is_odd: worker % 2 == 1, claims, bells, shown, count },
    ))
}

/// How long an answer is under way where that matters: less than a renewal may take.
const SLOW: Duration = Duration::from_millis(400);

/// Each answer of this many fails where that is the fault.
const FAILS_EACH: u64 = 50;

/// The fault, and what it needs to remember.
#[derive(Debug)]
pub struct Faulty {
    mutant: Mutant,
    is_odd: bool,
    claims: Mutex<HashMap<Token, Known>>,
    /// The last bell of each name.
    bells: Mutex<HashMap<String, u64>>,
    /// The first reading that showed a leader.
    shown: Mutex<Option<Page>>,
    count: AtomicU64,
}

/// A claim that went through.
#[derive(Debug, Clone)]
struct Known {
    claim: Claim,
    /// When it was first asked for.
    asked: Instant,
    place: Option<Place>,
    /// Whether it had another place before.
    came_back: bool,
    /// The fence that was given out.
    fence: Option<u64>,
    /// Whom it would have to outlive; it is not in the line any more.
    swept: Option<Vec<u64>>,
}

impl Mutant {
    /// How many of a thousand leases are held for about a ttl or two, so that the fault shows in
    /// seconds.
    pub fn long(self) -> u64 {
        if self == Mutant::DeadlineFromTheAnswer { 300 } else { 50 }
    }
}

impl Faulty {
    fn claims(&self) -> MutexGuard<'_, HashMap<Token, Known>> {
        self.claims.lock().expect("nothing panics under the lock")
    }

    fn known(&self, token: &Token) -> Option<Known> {
        self.claims().get(token).cloned()
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The claim as the fault lets it be asked for.
    fn asked(&self, claim: &Claim) -> Claim {
        let mut asked = claim.clone();
        let name = claim.key.name.as_str();
        match (self.mutant, claim.mode) {
            (Mutant::OnePermitTooMany, Mode::Permits { take, of }) if name == "sem" => {
                asked.mode = Mode::Permits { take, of: of + 1 };
            }
            (Mutant::WriterAsReader, Mode::Exclusive) if name == "rw" => asked.mode = Mode::Shared,
            (Mutant::UnitEndsEarly, _) if name == "rate" => asked.ttl = claim.ttl / 4,
            _ => {}
        }
        asked
    }

    /// Remembers how a claim stands, and returns it.
    fn remember(&self, claim: &Claim, standing: &Standing) -> Known {
        let mut claims = self.claims();
        let known = claims.entry(claim.key.token).or_insert_with(|| {
            let (place, fence, swept) = (None, None, None);
            let (claim, asked) = (claim.clone(), Instant::now());
            Known { claim, asked, place, came_back: false, fence, swept }
        });
        if let Standing::Queued { place, .. } = standing {
            known.came_back |= known.place.is_some_and(|before| before != *place);
            known.place = Some(*place);
        }
        known.clone()
    }

    /// The fence that the fault gives out for a claim that holds.
    async fn fence(&self, engine: &Arc<dyn Engine>, claim: &Claim, fence: u64) -> Result<u64> {
        let given = self.known(&claim.key.token).and_then(|known| known.fence);
        let given = match (self.mutant, given) {
            (_, Some(given)) => given,
            (Mutant::FenceRestarts, None) => self.next(),
            (Mutant::FenceOfALaterPlace, None) if self.is_odd => {
                later_fence(engine, claim).await?.unwrap_or(fence)
            }
            _ => fence,
        };
        if let Some(known) = self.claims().get_mut(&claim.key.token) {
            known.fence = Some(given);
        }
        Ok(given)
    }
}

/// Draws a number of the line by a claim that leaves again.
async fn later_fence(engine: &Arc<dyn Engine>, claim: &Claim) -> Result<Option<u64>> {
    let mut other = claim.clone();
    (other.key.token, other.join) = (Token::random(), true);
    let standing = engine.claim(&other).await?;
    engine.release(&[other.key]).await?;
    Ok(match standing {
        Standing::Queued { place, .. } => Some(place.number()),
        _ => None,
    })
}

/// The numbers of all claims of a name.
async fn numbers(engine: &Arc<dyn Engine>, key: &ClaimKey) -> Result<Vec<u64>> {
    let page = engine.inspect(&Query::name(key.name.clone())).await?;
    let all = page.lines.into_iter().flat_map(|line| line.held.into_iter().chain(line.waiting));
    Ok(all.map(|view| view.fence.as_u64()).collect())
}

impl Faulty {
    /// Makes a claim with the fault.
    pub async fn claim(&self, engine: &Arc<dyn Engine>, claim: &Claim) -> Result<Standing> {
        let before = self.known(&claim.key.token);
        if let Some(Known { swept: Some(_), place: Some(place), .. }) = before {
            let retry_in = Duration::from_secs(1);
            return Ok(Standing::Queued { place, ahead: 1, retry_in });
        }
        if self.mutant == Mutant::ScriptFails && self.next().is_multiple_of(FAILS_EACH) {
            let cause = "ERR Error running script".to_owned();
            let store = engine.info().store.clone();
            return Err(Error::Store { store, cause, transient: false });
        }
        if self.mutant == Mutant::AnswerNeverComes && self.next().is_multiple_of(FAILS_EACH) {
            pending::<()>().await;
        }
        let asked = self.asked(claim);
        // A claim that waits counts from here.
        self.remember(claim, &Standing::Out { ahead: 0, retry_in: Duration::ZERO, by: None });
        let sent = Instant::now();
        let mut standing = engine.claim(&asked).await?;
        let known = self.remember(claim, &standing);
        match (self.mutant, &mut standing) {
            (Mutant::DeadlineFromTheAnswer, Standing::Held { remaining, .. }) if self.is_odd => {
                tokio::time::sleep(SLOW).await;
                *remaining += sent.elapsed();
            }
            (Mutant::TryGrantsWhatIsHeld, Standing::Out { .. }) if !claim.join => {
                let fence = later_fence(engine, claim).await?.unwrap_or(u64::MAX / 2);
                standing = Standing::Held { fence, remaining: claim.ttl };
            }
            (Mutant::SecondClaimLeftBehind, Standing::Queued { .. }) if before.is_none() => {
                let mut second = claim.clone();
                second.key.token = Token::random();
                (second.patience, second.ttl) = (claim.ttl * 20, claim.ttl * 20);
                engine.claim(&second).await?;
            }
            (Mutant::WakeUpDropped, Standing::Queued { retry_in, .. }) => {
                *retry_in = Duration::from_secs(3_600);
            }
            (Mutant::SweptWhileItWaits, Standing::Queued { place, .. })
                if self.next().is_multiple_of(5) =>
            {
                let all = numbers(engine, &claim.key).await?;
                let ahead = all.into_iter().filter(|number| *number < place.number()).collect();
                engine.release(std::slice::from_ref(&claim.key)).await?;
                if let Some(known) = self.claims().get_mut(&claim.key.token) {
                    known.swept = Some(ahead);
                }
            }
            (_, Standing::Held { fence, .. }) => {
                *fence = self.fence(engine, &known.claim, *fence).await?
            }
            _ => {}
        }
        Ok(standing)
    }

    /// Waits for the bell with the fault.
    pub async fn wait(&self, engine: &Arc<dyn Engine>, key: &ClaimKey) -> Result<Wake> {
        let known = self.known(&key.token);
        let place = known.as_ref().and_then(|known| known.place);
        let name = key.name.as_str().to_owned();
        let came_back = known.as_ref().is_some_and(|known| known.came_back);
        match (self.mutant, place) {
            (Mutant::WakeUpDropped, _) => pending().await,
            // The fault is in the answer to a claim.
            (
                Mutant::FenceRestarts | Mutant::FenceOfALaterPlace | Mutant::DeadlineFromTheAnswer,
                _,
            ) => return engine.wait(key).await.map(|_| Wake::Ask),
            (Mutant::BellOfALostPlace, Some(place)) if came_back => {
                return Ok(Wake::Holds { place, fence: place.number() - 1 });
            }
            (Mutant::LineFromBeforeItCameBack, Some(place)) if came_back => {
                return Ok(Wake::Holds { place, fence: place.number() });
            }
            (Mutant::BellForEverybody, Some(place)) => {
                let heard = || {
                    self.bells.lock().expect("nothing panics under the lock").get(&name).copied()
                };
                let before = heard();
                loop {
                    tokio::select! {
                        wake = engine.wait(key) => {
                            if let Ok(Wake::Holds { fence, .. }) = wake {
                                self.bells.lock().expect("as above").insert(name, fence);
                            }
                            return wake;
                        }
                        () = tokio::time::sleep(Duration::from_millis(5)) => {}
                    }
                    if heard() != before {
                        return Ok(Wake::Holds { place, fence: place.number() });
                    }
                }
            }
            _ => {}
        }
        if let (Some(Known { swept: Some(ahead), .. }), Some(place)) = (known, place) {
            while numbers(engine, key).await?.iter().any(|number| ahead.contains(number)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return Ok(Wake::Holds { place, fence: place.number() });
        }
        engine.wait(key).await
    }

    /// Renews with the fault.
    pub async fn renew(
        &self,
        engine: &Arc<dyn Engine>,
        renewals: &[Renewal],
    ) -> Result<Vec<Result<Standing>>> {
        let mut renewals = renewals.to_vec();
        for renewal in &mut renewals {
            if self.mutant == Mutant::UnitEndsEarly && renewal.key.name.as_str() == "rate" {
                renewal.ttl /= 4;
            }
        }
        let mut answers = engine.renew(&renewals).await?;
        let late = self.mutant == Mutant::DeadlineFromTheAnswer && self.is_odd;
        if late {
            tokio::time::sleep(SLOW).await;
        }
        for (renewal, answer) in renewals.iter().zip(&mut answers) {
            let (Some(known), Ok(standing)) = (self.known(&renewal.key.token), answer) else {
                continue;
            };
            if let (true, Standing::Held { remaining, .. }) = (late, &mut *standing) {
                *remaining += SLOW;
            }
            self.renewed(engine, renewal, known, standing).await?;
        }
        Ok(answers)
    }

    /// Releases with the fault.
    pub async fn release(
        &self,
        engine: &Arc<dyn Engine>,
        keys: &[ClaimKey],
    ) -> Result<Vec<Released>> {
        if self.mutant == Mutant::RenewedAfterRelease {
            return Ok(keys.iter().map(|_| Released::Released).collect());
        }
        let mut answers = engine.release(keys).await?;
        if self.mutant == Mutant::ReleaseAnswerLost {
            answers = engine.release(keys).await?;
        }
        if self.mutant == Mutant::ReleaseWithoutOwnerCheck {
            for (key, answer) in keys.iter().zip(&mut answers) {
                if *answer != Released::Released {
                    take_from_holders(engine, &key.name).await?;
                    *answer = Released::Released;
                }
            }
        }
        Ok(answers)
    }

    /// Closes a name with the fault.
    pub async fn keep_closed(
        &self,
        (engine, part): (&Arc<dyn Engine>, &dyn Unattended),
        key: &ClaimKey,
        stay: Duration,
    ) -> Result<Released> {
        let is_closed = key.name.as_str() == "closed";
        let forgets = self.mutant == Mutant::RunIsForgotten && key.name.as_str() == "once";
        if forgets || (self.mutant == Mutant::ClosedNameOpens && is_closed) {
            let answers = engine.release(std::slice::from_ref(key)).await?;
            return Ok(answers.into_iter().next().unwrap_or(Released::AlreadyExpired));
        }
        if self.mutant == Mutant::ClosedNameIsOwned && is_closed {
            engine.renew(&[Renewal { key: key.clone(), ttl: stay, patience: stay }]).await?;
            return Ok(Released::Released);
        }
        let known = self.known(&key.token).filter(|_| is_closed);
        let stay = match (self.mutant, known) {
            (Mutant::ClosedFromTheQueue, Some(known)) => {
                // The caller has taken off the time since the grant.
                stay.saturating_sub(known.asked.elapsed()).max(Duration::from_millis(1))
            }
            (Mutant::ClosedForASession, Some(known)) => known.claim.ttl * 3,
            _ => stay,
        };
        part.keep_closed(key, stay).await
    }

    /// Reads with the fault.
    pub async fn inspect(&self, engine: &dyn Engine, query: &Query) -> Result<Page> {
        let page = engine.inspect(query).await?;
        let leads = |line: &LineView| line.name.as_str() == OFFICE && !line.held.is_empty();
        if self.mutant != Mutant::OldLeaderIsShown || !page.lines.iter().any(leads) {
            return Ok(page);
        }
        let mut shown = self.shown.lock().expect("nothing panics under the lock");
        let first = shown.get_or_insert_with(|| page.clone()).clone();
        Ok(if self.next().is_multiple_of(5) { first } else { page })
    }
}

impl Faulty {
    /// What becomes of the answer to a renewal.
    async fn renewed(
        &self,
        engine: &Arc<dyn Engine>,
        renewal: &Renewal,
        known: Known,
        standing: &mut Standing,
    ) -> Result<()> {
        let retry_in = Duration::from_secs(1);
        if let (Some(place), Some(_)) = (known.place, &known.swept) {
            *standing = match known.fence {
                Some(fence) => Standing::Held { fence, remaining: renewal.ttl },
                None => Standing::Queued { place, ahead: 1, retry_in },
            };
            return Ok(());
        }
        match (self.mutant, standing, known.place) {
            (Mutant::WakeUpDropped, standing @ Standing::Held { .. }, Some(place))
                if known.fence.is_none() =>
            {
                *standing = Standing::Queued { place, ahead: 1, retry_in };
            }
            (Mutant::PlaceLostAtEachHeartbeat, standing @ Standing::Queued { .. }, _) => {
                engine.release(std::slice::from_ref(&renewal.key)).await?;
                *standing = engine.claim(&known.claim).await?;
            }
            (Mutant::RenewalMakesTheClaimAgain, standing @ Standing::Out { .. }, _) => {
                *standing = engine.claim(&known.claim).await?;
            }
            (_, Standing::Held { fence, .. }, _) => *fence = known.fence.unwrap_or(*fence),
            _ => {}
        }
        Ok(())
    }
}

/// Takes a name from all who hold it.
async fn take_from_holders(engine: &Arc<dyn Engine>, name: &Name) -> Result<()> {
    let page = engine.inspect(&Query::name(name.clone())).await?;
    let held = page.lines.iter().flat_map(|line| &line.held);
    let fences = held.map(|claim| claim.fence.as_u64()).collect();
    let (by, reason) = (Holder::fresh(), "mutant".to_owned());
    let order = Eviction { name: name.clone(), fences, unreadable: false, by, reason };
    let admin = Arc::clone(engine).parts().admin;
    need(&admin, engine.info())?.evict(&order).await.map(drop)
}
