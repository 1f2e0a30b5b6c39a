//! The kinds of faults, and the plan of a run: which fault happens when, to whom, for how long.
//!
//! A plan follows from the seed, the set-up and the time alone, so the same seed makes the same
//! faults. Each worker with its link has a row of its own, and so has the store; the faults of one
//! row do not overlap. How a fault is made is left to `strike`.

use crate::chance::Chance;
use crate::setup::SetUp;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    WorkerKill,
    WorkerPauseShort,
    WorkerPauseLong,
    WorkerDiskStall,
    LinkCut,
    LinkCutToServer,
    LinkCutToClient,
    LinkDelay,
    LinkReset,
    LinkLostReply,
    LinkLateThenCut,
    ServerPauseShort,
    ServerPauseLong,
    ServerKill,
    ServerRestart,
    ServerEmpty,
    LeaderKill,
    LeaderPause,
    LeaderMove,
    MemberCut,
    MemberReplaced,
    NodeEmpty,
    FailOver,
    HandOver,
    SlotMove,
    ScriptFlush,
    Compaction,
    SessionsKilled,
    PoolerRestart,
    ClockAhead,
    ClockBack,
    FileLocked,
    FileFull,
    BellsRemoved,
}

use Kind::*;

/// All kinds with their names.
const NAMES: [(Kind, &str); 34] = [
    (WorkerKill, "worker-kill"),
    (WorkerPauseShort, "worker-pause-short"),
    (WorkerPauseLong, "worker-pause-long"),
    (WorkerDiskStall, "worker-disk-stall"),
    (LinkCut, "link-cut"),
    (LinkCutToServer, "link-cut-to-server"),
    (LinkCutToClient, "link-cut-to-client"),
    (LinkDelay, "link-delay"),
    (LinkReset, "link-reset"),
    (LinkLostReply, "link-lost-reply"),
    (LinkLateThenCut, "link-late-then-cut"),
    (ServerPauseShort, "server-pause-short"),
    (ServerPauseLong, "server-pause-long"),
    (ServerKill, "server-kill"),
    (ServerRestart, "server-restart"),
    (ServerEmpty, "server-empty"),
    (LeaderKill, "leader-kill"),
    (LeaderPause, "leader-pause"),
    (LeaderMove, "leader-move"),
    (MemberCut, "member-cut"),
    (MemberReplaced, "member-replace"),
    (NodeEmpty, "node-empty"),
    (FailOver, "fail-over"),
    (HandOver, "hand-over"),
    (SlotMove, "slot-move"),
    (ScriptFlush, "script-flush"),
    (Compaction, "compaction"),
    (SessionsKilled, "sessions-killed"),
    (PoolerRestart, "pooler-restart"),
    (ClockAhead, "clock-ahead"),
    (ClockBack, "clock-back"),
    (FileLocked, "file-locked"),
    (FileFull, "file-full"),
    (BellsRemoved, "bells-removed"),
];

/// The faults of each worker, and how often each happens beside the others.
pub const WORKER: &[(Kind, u64)] = &[(WorkerKill, 2), (WorkerPauseShort, 3), (WorkerPauseLong, 2)];

/// The faults of a link with a proxy.
pub const LINK: &[(Kind, u64)] = &[
    (LinkCut, 2),
    (LinkCutToServer, 1),
    (LinkCutToClient, 1),
    (LinkDelay, 2),
    (LinkReset, 4),
    (LinkLostReply, 6),
    (LinkLateThenCut, 2),
];

impl Kind {
    /// The name, as `--faults` takes it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, _)| *kind == self).map_or("unknown", |(_, name)| name)
    }

    /// The kinds whose names begin like this: `link` is all about links.
    pub fn named(start: &str) -> Vec<Kind> {
        let fits = |name: &str| {
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        NAMES.iter().filter(|(_, name)| fits(name)).map(|(kind, _)| *kind).collect()
    }

    /// All names, for messages.
    pub fn names() -> String {
        NAMES.map(|(_, name)| name).join(", ")
    }

    /// How long it lasts, in milliseconds, with leases of this ttl.
    fn lasts_ms(self, chance: &mut Chance, ttl: u64) -> u64 {
        match self {
            WorkerPauseShort | ServerPauseShort => chance.within(50..ttl / 4),
            WorkerPauseLong | ServerPauseLong | LeaderPause => chance.within(ttl..ttl * 2),
            LinkCut | LinkCutToServer | LinkCutToClient => chance.within(ttl / 10..ttl * 2),
            MemberCut => chance.within(ttl / 2..ttl * 2),
            LinkDelay => chance.within(ttl / 2..ttl * 2),
            LinkLateThenCut => chance.within(ttl * 3 / 2..ttl * 2),
            WorkerDiskStall | FileLocked | FileFull => chance.within(ttl / 4..ttl + ttl / 2),
            ServerKill | LeaderKill | ServerRestart | NodeEmpty => chance.within(50..ttl + ttl / 4),
            ClockAhead | ClockBack => chance.within(200..ttl),
            WorkerKill | LinkLostReply => chance.within(10..300),
            SlotMove => chance.within(10..ttl / 4),
            _ => 0,
        }
    }
}

/// A fault that will happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// When, in milliseconds from the start.
    pub at_ms: u64,
    /// For how long, in milliseconds.
    pub lasts_ms: u64,
    /// What.
    pub kind: Kind,
    /// A number for what else is to choose: which server, how far.
    pub number: u64,
}

/// A plan: a row for each worker, then one for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The rows for workers and their links.
    pub workers: Vec<Vec<Planned>>,
    /// The row for the store.
    pub store: Vec<Planned>,
}

impl Plan {
    /// Makes the plan of a run in which faults happen for `ms`.
    pub fn new(setup: &SetUp, seed: u64, ms: u64, workers: usize, only: Option<&[Kind]>) -> Plan {
        let chosen = |kinds: &[(Kind, u64)]| -> Vec<(Kind, u64)> {
            let wanted = |kind: &Kind| only.is_none_or(|only| only.contains(kind));
            kinds.iter().copied().filter(|(kind, _)| wanted(kind)).collect()
        };
        let mut own = setup.worker.to_vec();
        own.extend(WORKER);
        if setup.has_links {
            own.extend(LINK);
        }
        let (own, store) = (chosen(&own), chosen(setup.store));
        let name =
            setup.name.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
        let row = |index: usize, kinds: &[(Kind, u64)], pauses| {
            row(&mut Chance::new(name, index as u64 + 1), kinds, setup.ttls_ms[0], ms, pauses)
        };
        let workers = (1..=workers).map(|index| row(index, &own, 400..4_500)).collect();
        Plan { workers, store: row(0, &store, 600..5_000) }
    }
}

/// Faults of these kinds one after the other, with pauses between them. In the middle of a long row
/// nothing happens for a while, so that the checks of what needs quiet have some.
fn row(
    chance: &mut Chance,
    kinds: &[(Kind, u64)],
    ttl: u64,
    ms: u64,
    pauses: std::ops::Range<u64>,
) -> Vec<Planned> {
    const QUIET_FROM_MS: u64 = 60_000;
    let quiet = ms / 2..ms / 2 + ttl * 8;
    let mut row = Vec::new();
    let Some(total) = kinds.iter().map(|(_, weight)| weight).sum::<u64>().checked_sub(1) else {
        return row;
    };
    let mut at_ms = chance.within(100..1_000);
    loop {
        let mut pick = chance.within(0..total + 1);
        let (kind, _) = kinds
            .iter()
            .find(|(_, weight)| {
                let found = pick < *weight;
                pick = pick.saturating_sub(*weight);
                found
            })
            .expect("the weights add up");
        let lasts_ms = kind.lasts_ms(chance, ttl);
        let number = chance.next();
        let in_quiet = ms >= QUIET_FROM_MS && at_ms < quiet.end && at_ms + lasts_ms > quiet.start;
        if in_quiet {
            at_ms = quiet.end;
        }
        if at_ms + lasts_ms >= ms {
            return row;
        }
        row.push(Planned { at_ms, lasts_ms, kind: *kind, number });
        at_ms += lasts_ms + chance.within(pauses.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::SETUPS;

    #[test]
    fn same_seed_makes_the_same_plan_and_another_one_does_not() {
        let plan = |seed| Plan::new(&SETUPS[0], seed, 60_000, 4, None);
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
    }

    #[test]
    fn plan_of_two_minutes_has_a_hundred_faults_of_eight_kinds_in_each_set_up() {
        for setup in SETUPS {
            let plan = Plan::new(setup, 1, 100_000, 4, None);
            let all: Vec<Kind> =
                plan.workers.iter().chain([&plan.store]).flatten().map(|one| one.kind).collect();
            let mut kinds = all.clone();
            kinds.sort_unstable();
            kinds.dedup();
            assert!(all.len() >= 100, "{}: {} faults", setup.name, all.len());
            assert!(kinds.len() >= 8, "{}: {kinds:?}", setup.name);
        }
    }

    /// `tests/kinds.rs` names those that the rounds of ten seconds do not have.
    #[test]
    fn each_kind_is_in_a_short_round_or_has_a_run_of_its_own() {
        let runs = include_str!("../tests/kinds.rs");
        let plans = SETUPS.iter().map(|setup| Plan::new(setup, 7, 7_500, 4, None));
        let planned: Vec<Kind> = plans
            .flat_map(|plan| plan.workers.into_iter().chain([plan.store]).flatten())
            .map(|one| one.kind)
            .collect();
        let is_made =
            |kind: &Kind| planned.contains(kind) || runs.contains(&format!("\"{}\"", kind.name()));
        let (_, missing): (Vec<Kind>, Vec<Kind>) =
            NAMES.into_iter().map(|(kind, _)| kind).partition(is_made);
        assert_eq!(missing, []);
    }

    #[test]
    fn row_has_no_overlap_and_ends_in_time() {
        let plan = Plan::new(&SETUPS[1], 3, 20_000, 2, None);
        for row in plan.workers.iter().chain([&plan.store]) {
            assert!(row.windows(2).all(|two| two[0].at_ms + two[0].lasts_ms <= two[1].at_ms));
            assert!(row.iter().all(|one| one.at_ms + one.lasts_ms < 20_000));
        }
    }

    #[test]
    fn start_of_a_name_chooses_all_that_begin_so() {
        assert_eq!(Kind::named("link").len(), LINK.len());
        assert_eq!(Kind::named("link-cut"), [LinkCut, LinkCutToServer, LinkCutToClient]);
        assert_eq!(Kind::named("li"), []);
        assert_eq!(Kind::named("clock-back"), [ClockBack]);
    }
}
