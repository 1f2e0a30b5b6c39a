//! PostgreSQL's advisory locks under contention: 16 workers in 4 processes that each keep the lock
//! for a millisecond, beside as many sessions that call `pg_advisory_lock` themselves.
//!
//! Ours has a fence on every grant, and a time to live. Both are compared by their hand-offs and
//! by how often the lock went round in the same time.

use leasehold_testkit::servers::Postgres;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::contest::{Contest, Round};
use crate::progress::Progress;
use crate::raw::HOLD;
use crate::report::{Report, times};
use crate::scenarios::Setting;
use crate::scenarios::advisory_pair::advisory_url;
use crate::scenarios::hand_off::{PROCESSES, TASKS, window};
use crate::scenarios::hand_off_table::{HandOffTable, exclusion_target};
use crate::stats::{Samples, median, ratio_of_rounds};
use crate::work::Work;
use crate::worker::Way;

const RAW: &str = "pg_advisory_lock + unlock";
/// The most that leasehold may take, as a multiple of the raw lock.
const MOST: f64 = 1.1;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Postgres::new().fsync(true).start_blocking()?;
    let mut contenders = Vec::new();
    for work in [Work::Awaited, Work::Computed] {
        let ours = Contest {
            way: Way::Line,
            target: advisory_url(server.url()),
            workers: PROCESSES,
            tasks: TASKS,
            hold: HOLD,
            work,
            window: window(setting),
        };
        let raw = Contest { way: Way::Advisory, target: server.url().to_owned(), ..ours.clone() };
        contenders.push(Contender::new(Role::Ours, "leasehold", move || ours.round()));
        contenders.push(Contender::new(Role::Limit, RAW, move || raw.round()));
    }
    let outcomes = take_turns(contenders, setting.either(3, 12), progress)?;
    let (awaited, computed) = outcomes.split_at(outcomes.len() / 2);
    let mut report = Report::default();
    let table = |what: &str, outcomes: &[Outcome<Round>]| {
        let mut table = HandOffTable::new(what, RAW, "raw");
        let seen = table.add(outcomes, PROCESSES * TASKS, HOLD.as_nanos() as u64);
        (table, seen)
    };
    let (waiting, seen) = table("hand-off, holders wait", awaited);
    let (computing, seen_computing) = table("hand-off, holders compute", computed);
    waiting.put(&mut report);
    computing.finish(&mut report);
    targets(&mut report, awaited);
    let overlaps = seen[0].overlaps + seen_computing[0].overlaps;
    exclusion_target(&mut report, "advisory locks", overlaps);
    Ok(report)
}

fn targets(report: &mut Report, outcomes: &[Outcome<Round>]) {
    let spans = |at: usize| -> Vec<Samples> {
        outcomes[at].rounds.iter().map(|round| round.hand_offs.spans.clone()).collect()
    };
    let grants = |at: usize| outcomes[at].rounds.iter().map(|round| round.hand_offs.grants as f64);
    let hand_off = ratio_of_rounds(&spans(0), &spans(1));
    let cycle = median(grants(1).zip(grants(0)).map(|(raw, ours)| raw / ours.max(1.0)));
    for (name, ratio) in [("hand-off p50", hand_off), ("time of a cycle", cycle)] {
        let what = format!("advisory locks, {} workers: {name}", PROCESSES * TASKS);
        let met = ratio.is_some_and(|ratio| ratio <= MOST);
        report.target(what, format!("at most {MOST} × raw"), times(ratio), met);
    }
}
