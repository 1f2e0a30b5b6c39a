//! Searches for deadlocks while a claim waits: announces the wait, follows the edges, and ends when
//! this claim has to give up.
//!
//! A claim sends nothing before it has waited for the detection period. It never sends anything if
//! its owner keeps no lease meanwhile, because then no other claim waits for it. Each member of a
//! deadlock searches on its own, so it matters little if one dies or is cut off. `deadlock.rs`
//! defines a knot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use crate::engine::{Engine, Kept, Notice, Query, Wait};
use crate::error::{Error, Result};
use crate::rule::claim::{Claim, HolderId, Standing};
use crate::rule::deadlock::{Knot, Picture, WaitId, find};
use crate::rule::name::Name;
use crate::runtime::claim_state::ClaimState;
use crate::runtime::keeper::Keeper;
use crate::runtime::scope::{Scope, WaitBegan};

/// How long a claim waits before its first search, and between searches.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The bounds of the period. With a shorter one, a client would only search.
pub(crate) const PERIOD_MIN: Duration = Duration::from_millis(10);
pub(crate) const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// The most holders and lines that one search follows. Only the time limits of its members end a
/// longer cycle.
const HOLDERS_MAX: usize = 64;
const LINES_MAX: usize = 64;

/// How often in a row the search finds the same other victim. After that it counts as unable to
/// give up, and the next one has to.
const TURNS_MAX: u32 = 3;

/// How long the store keeps a wait that the client does not announce again.
fn keep_for(period: Duration) -> Duration {
    (period * 4).max(Duration::from_secs(10))
}

/// The end of a search. For a claim that is no victim it never ends.
pub(crate) enum Found {
    /// This claim gives up.
    Deadlock(Error),
    /// This claim waits no more; its owner should ask.
    Ask,
}

/// The search of one waiting claim.
pub(crate) struct Search<'a> {
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) claim: &'a Claim,
    pub(crate) claim_state: Arc<ClaimState>,
    pub(crate) period: Duration,
    /// Whether the holder does one thing at a time, so that it keeps all that it has.
    pub(crate) alone: bool,
    /// Names that the same holder keeps through other clients.
    pub(crate) holding: &'a [Name],
}

impl Search<'_> {
    pub(crate) async fn run(self) -> Found {
        let clock = &self.keeper.clock;
        let (waiting, began) = (self.claim_state.usage.scope(), WaitBegan::now());
        let mut turns = Turns::default();
        let mut next = clock.now() + self.period;
        loop {
            clock.sleep_until(next).await;
            next = clock.now() + self.period;
            let keeps = self.keeps(waiting, began);
            if keeps.is_empty() {
                continue;
            }
            match self.look(keeps, &mut turns).await {
                Ok(Some(found)) => return found,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "could not look for a deadlock"),
            }
        }
    }

    /// The leases that the owner keeps until this wait has ended.
    fn keeps(&self, waiting: Scope, began: WaitBegan) -> Vec<Kept> {
        let name = &self.claim.key.name;
        let others = self.holding.iter().filter(|other| *other != name);
        let mut keeps: Vec<Kept> =
            others.map(|other| Kept { name: other.clone(), fence: 0 }).collect();
        self.keeper.for_each_lasting_lease(|claim_state, fence| {
            let scope = claim_state.usage.scope();
            let all = self.alone && !scope.is_alone() && !waiting.is_alone();
            let own = scope.is_kept_by(waiting)
                && (waiting.is_alone() || !claim_state.usage.is_used_since(began));
            let kept = all || own;
            if kept && claim_state.key.name != *name && keeps.len() < Notice::KEPT_MAX {
                keeps.push(Kept { name: claim_state.key.name.clone(), fence });
            }
        });
        keeps
    }

    async fn look(&self, keeps: Vec<Kept>, turns: &mut Turns) -> Result<Option<Found>> {
        let (keeper, name) = (&**self.keeper, &self.claim.key.name);
        let holder = self.claim.holder.id();
        let mut own = Picture::default();
        read_lines(&*keeper.engine, &mut own, vec![name.clone()]).await?;
        let Some(fence) = own.only_wait(name, holder) else { return Ok(None) };
        let wait = Wait { name: name.clone(), fence, keeps };
        let token = self.claim.key.token;
        if !self.keeper.announce(holder, token, wait, keep_for(self.period)).await {
            return Ok(None);
        }
        let from = WaitId { name: name.clone(), fence };
        let first = read(keeper, name).await?;
        if find(&first, &from, &turns.excused).is_none() {
            *turns = Turns::default();
            return Ok(None);
        }
        let second = read(keeper, name).await?;
        match find(&first.confirmed_by(&second), &from, &turns.excused) {
            Some(knot) if knot.victim == from => self.give_up(knot).await.map(Some),
            Some(knot) => {
                tracing::debug!(cycle = %knot.cycle, "a deadlock that somebody else ends");
                turns.seen(knot.victim);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    async fn give_up(&self, Knot { cycle, .. }: Knot) -> Result<Found> {
        // The store may have granted it since the last read.
        if !matches!(self.keeper.engine.claim(self.claim).await?, Standing::Queued { .. }) {
            return Ok(Found::Ask);
        }
        let name = self.claim.key.name.clone();
        tracing::warn!(%name, %cycle, "deadlock: this claim gives up");
        Ok(Found::Deadlock(Error::Deadlock { name, cycle }))
    }
}

/// The victims that did not give up: perhaps they are cut off, though their claims live.
#[derive(Default)]
struct Turns {
    last: Option<WaitId>,
    times: u32,
    excused: BTreeSet<WaitId>,
}

impl Turns {
    fn seen(&mut self, victim: WaitId) {
        if self.last.as_ref() != Some(&victim) {
            self.times = 0;
        }
        self.times += 1;
        if self.times >= TURNS_MAX {
            self.excused.insert(victim.clone());
        }
        self.last = Some(victim);
    }
}

/// Follows the edges from a name: its holders, the names that they wait for, the holders of those.
pub(crate) async fn read(keeper: &Keeper, from: &Name) -> Result<Picture> {
    let part = keeper.need(&keeper.parts.wait_notices)?;
    let waits_of = |id: HolderId| keeper.retry.again(move || part.waits_of(id));
    let mut picture = Picture::default();
    let mut names = vec![from.clone()];
    let (mut lines, mut holders) = (0, 0);
    while !names.is_empty() {
        names.truncate(LINES_MAX - lines);
        lines += names.len();
        read_lines(&*keeper.engine, &mut picture, names).await?;
        let mut ids: Vec<HolderId> =
            picture.holders().filter(|id| !picture.has_waits_of(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(HOLDERS_MAX - holders);
        holders += ids.len();
        let waits = try_join_all(ids.iter().map(|id| waits_of(*id))).await?;
        for (id, waits) in ids.into_iter().zip(waits) {
            picture.add_waits(id, waits);
        }
        names = picture.awaited().into_iter().filter(|name| !picture.has_line(name)).collect();
        if lines == LINES_MAX || holders == HOLDERS_MAX {
            break;
        }
    }
    Ok(picture)
}

async fn read_lines(engine: &dyn Engine, picture: &mut Picture, names: Vec<Name>) -> Result<()> {
    let queries: Vec<Query> = names.into_iter().map(Query::name).collect();
    let pages = try_join_all(queries.iter().map(|query| engine.inspect(query))).await?;
    for line in pages.iter().flat_map(|page| &page.lines) {
        picture.add_line(line);
    }
    Ok(())
}
