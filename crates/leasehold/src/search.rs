//! Looks for deadlocks while a claim waits: tells others of the wait, follows the edges, and says
//! when this claim is the one that has to give up.
//!
//! Nothing is sent before a claim has waited for the detection period, nor ever for one whose
//! owner keeps nothing meanwhile: nobody could wait for it. All members of a deadlock look for
//! themselves, so it matters little who of them dies or is cut off. What a knot is decides
//! `deadlock.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use crate::claim::{Claim, HolderId, Standing};
use crate::deadlock::{Knot, Picture, WaitId, find};
use crate::engine::{Engine, Kept, Notice, Query, Wait};
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::name::Name;
use crate::scope::{Scope, WaitBegan};
use crate::tenure::Tenure;

/// How long a claim waits before a deadlock is looked for, and between looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The bounds of the period: below, looking would be all that a client does.
pub(crate) const PERIOD_MIN: Duration = Duration::from_millis(10);
pub(crate) const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// The most holders and lines that one look follows. A longer cycle is left to the time limits of
/// those in it.
const HOLDERS_MAX: usize = 64;
const LINES_MAX: usize = 64;

/// How often in a row somebody else is seen to have to give up before it is taken for unable to,
/// and the next one does it.
const TURNS_MAX: u32 = 3;

/// How long others remember a wait that is not told of again.
fn keep_for(period: Duration) -> Duration {
    (period * 4).max(Duration::from_secs(10))
}

/// What a search ended with; it never ends for a claim that is no victim.
pub(crate) enum Found {
    /// This claim gives up.
    Deadlock(Error),
    /// It does not wait any more; its owner should ask.
    Ask,
}

/// The search of one waiting claim.
pub(crate) struct Search<'a> {
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) claim: &'a Claim,
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) period: Duration,
    /// Whether the holder does one thing at a time, so that it keeps all that it has.
    pub(crate) alone: bool,
    /// Names that the same holder keeps through other clients.
    pub(crate) holding: &'a [Name],
}

impl Search<'_> {
    pub(crate) async fn run(self) -> Found {
        let clock = &self.keeper.clock;
        let (waiting, began) = (self.tenure.usage.scope(), WaitBegan::now());
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

    /// What will not be given back before this wait has ended.
    fn keeps(&self, waiting: Scope, began: WaitBegan) -> Vec<Kept> {
        let name = &self.claim.key.name;
        let others = self.holding.iter().filter(|other| *other != name);
        let mut keeps: Vec<Kept> =
            others.map(|other| Kept { name: other.clone(), fence: 0 }).collect();
        self.keeper.for_each_lasting_lease(|tenure, fence| {
            let scope = tenure.usage.scope();
            let all = self.alone && !scope.is_alone() && !waiting.is_alone();
            let own = scope.is_kept_by(waiting)
                && (waiting.is_alone() || !tenure.usage.is_used_since(began));
            let kept = all || own;
            if kept && tenure.key.name != *name && keeps.len() < Notice::KEPT_MAX {
                keeps.push(Kept { name: tenure.key.name.clone(), fence });
            }
        });
        keeps
    }

    async fn look(&self, keeps: Vec<Kept>, turns: &mut Turns) -> Result<Option<Found>> {
        let (engine, name) = (&*self.keeper.engine, &self.claim.key.name);
        let holder = self.claim.holder.id();
        let mut own = Picture::default();
        read_lines(engine, &mut own, vec![name.clone()]).await?;
        let Some(fence) = own.only_wait(name, holder) else { return Ok(None) };
        let wait = Wait { name: name.clone(), fence, keeps };
        let token = self.claim.key.token;
        if !self.keeper.announce(holder, token, wait, keep_for(self.period)).await {
            return Ok(None);
        }
        let from = WaitId { name: name.clone(), fence };
        let first = read(engine, name).await?;
        if find(&first, &from, &turns.excused).is_none() {
            *turns = Turns::default();
            return Ok(None);
        }
        let second = read(engine, name).await?;
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
        // It may have been granted since it was last seen waiting.
        if !matches!(self.keeper.engine.claim(self.claim).await?, Standing::Queued { .. }) {
            return Ok(Found::Ask);
        }
        let name = self.claim.key.name.clone();
        tracing::warn!(%name, %cycle, "deadlock: this claim gives up");
        Ok(Found::Deadlock(Error::Deadlock { name, cycle }))
    }
}

/// Whose turn it was to give up, and who let it pass: cut off, perhaps, though its claims live.
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

/// Follows the edges from a name: who holds it, what they wait for, who holds that.
pub(crate) async fn read(engine: &dyn Engine, from: &Name) -> Result<Picture> {
    let mut picture = Picture::default();
    let mut names = vec![from.clone()];
    let (mut lines, mut holders) = (0, 0);
    while !names.is_empty() {
        names.truncate(LINES_MAX - lines);
        lines += names.len();
        read_lines(engine, &mut picture, names).await?;
        let mut ids: Vec<HolderId> =
            picture.holders().filter(|id| !picture.has_waits_of(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(HOLDERS_MAX - holders);
        holders += ids.len();
        let waits = try_join_all(ids.iter().map(|id| engine.waits_of(*id))).await?;
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
