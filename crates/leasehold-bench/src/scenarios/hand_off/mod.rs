//! Hand-off through a server, alike for all of them: 16 workers in 4 processes that each keep the
//! lock for a millisecond, and 200 waiters that want it once.
//!
//! Each run also measures the time that the store needs to wake a waiter, and compares hand-offs
//! with it. Each store's scenario sets its targets. The targets are about workers that wait for
//! something while they hold. The run measures all again with workers that compute, and shows that
//! below.

mod findings;

use std::rc::Rc;
use std::time::Duration;

use leasehold::engine::Query;

use crate::Result;
use crate::contender::{Contender, Role, take_turns};
use crate::contest::{Contest, Round, Worker};
use crate::machine::now;
use crate::progress::Progress;
use crate::raw::HOLD;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::hand_off_table::exclusion_target;
use crate::stats::Samples;
use crate::work::Work;
use crate::worker::{NAME, Way};
use findings::{Findings, overlaps, sums};

pub(crate) const PROCESSES: usize = 4;
/// In each of them.
pub(crate) const TASKS: usize = 4;
/// Waiters that want the lock once.
const QUEUE: usize = 200;

/// How long the workers contend in a round. With fewer than 16 grants each, a difference of one
/// grant between equal shares can move Jain's index below its target.
pub(crate) fn window(setting: &Setting) -> Duration {
    Duration::from_millis(setting.either(600, 1_500))
}

/// The parts that differ from store to store.
pub(crate) struct HandOff<'a> {
    /// The store as the targets name it.
    pub(crate) store: &'static str,
    pub(crate) url: String,
    /// The URL for the workers that ask every 10 ms, apart from all others.
    pub(crate) poll_url: String,
    /// The steps that a hand-off needs at least. It is compared with the sum of their p50s.
    pub(crate) limits: Vec<Limit<'a>>,
    /// The name of that sum.
    pub(crate) measure: &'static str,
    /// The least work that can pass a lock on in this store.
    pub(crate) floor: Option<Floor>,
    pub(crate) counter: Counter<'a>,
    pub(crate) targets: Targets,
}

/// One step that a hand-off needs at least, and its measurement.
pub(crate) struct Limit<'a> {
    name: &'static str,
    round: Rc<dyn Fn(Work) -> Result<Samples> + 'a>,
}

impl<'a> Limit<'a> {
    pub(crate) fn new(name: &'static str, round: impl Fn(Work) -> Result<Samples> + 'a) -> Self {
        Self { name, round: Rc::new(round) }
    }

    /// The contender that measures it, and works like that in between.
    fn contender(&self, work: Work) -> Contender<'a, Turn> {
        let round = Rc::clone(&self.round);
        Contender::new(Role::Limit, self.name, move || round(work).map(Turn::Limit))
    }
}

/// A lock that keeps none of our promises, in the same contest.
pub(crate) struct Floor {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) url: String,
}

/// A count that the server keeps.
pub(crate) struct Counter<'a> {
    pub(crate) what: &'static str,
    pub(crate) count: Box<dyn Fn() -> Result<u64> + 'a>,
    /// How much one read of the line adds to it.
    pub(crate) look: u64,
}

/// The promises. Values without a promise are shown all the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    /// The hand-off, in times of the measure.
    pub(crate) p50_max: Option<f64>,
    pub(crate) p99_max: Option<f64>,
    /// The most counts of the server in a cycle.
    pub(crate) cycle_max: u32,
    /// Jain's index of at least 0.999, and no grant back to the releaser while others wait.
    pub(crate) is_fair: bool,
    pub(crate) held_min: Option<f64>,
    /// The longest time in which the lock was free although a worker wanted it.
    pub(crate) stall_max: Option<Duration>,
    /// The target for 200 waiters, which are left out without it.
    pub(crate) queue: Option<Served>,
    /// The most counts of the server for a grant to one of them.
    pub(crate) grant_max: Option<u32>,
}

/// The target time until the last of 200 waiters has had the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Served {
    /// Within this many times 200 times the measure.
    Measures(f64),
    Within(Duration),
}

/// The result of one turn.
enum Turn {
    Limit(Samples),
    Contest { round: Round, count: f64 },
    Queue { took: f64, count: Option<f64> },
}

/// Measures, and makes a report with tables and targets.
pub(crate) fn run(
    setting: &Setting,
    progress: &mut Progress,
    hand_off: HandOff<'_>,
) -> Result<Report> {
    let HandOff { store, url, poll_url, limits, measure, floor, counter, targets } = hand_off;
    let (url, counter) = (&url, &counter);
    let contest = |way, target: &str, work| Contest {
        way,
        target: target.to_owned(),
        workers: PROCESSES,
        tasks: TASKS,
        hold: HOLD,
        work,
        window: window(setting),
    };
    let ours = |name, work| {
        let contest = contest(Way::Line, url, work);
        Contender::new(Role::Ours, name, move || contend(counter, &contest))
    };
    let [awaited, computed] =
        [Work::Awaited, Work::Computed].map(|work| limits.iter().map(move |l| l.contender(work)));
    let mut contenders: Vec<Contender<'_, Turn>> = awaited.collect();
    contenders.push(ours("leasehold", Work::Awaited));
    if let Some(Floor { name, way, url }) = floor {
        let contest = contest(way, &url, Work::Awaited);
        let round = move || contend(counter, &contest);
        contenders.push(Contender::new(Role::Limit, name, round));
    }
    if targets.queue.is_some() {
        let counter = targets.grant_max.map(|_| counter);
        let round = move || queue(counter, url);
        contenders.push(Contender::new(Role::Ours, "leasehold, 200 waiters", round));
    }
    let poll = contest(Way::Poll, &poll_url, Work::Awaited);
    let round = move || contend(counter, &poll);
    contenders.push(Contender::new(Role::Rival, "asking every 10 ms", round));
    let awaiting = contenders.len();
    contenders.extend(computed);
    contenders.push(ours("leasehold", Work::Computed));

    let outcomes = take_turns(contenders, setting.either(3, 12), progress)?;
    let two_held = overlaps(&outcomes);
    let (awaiting, computing) = outcomes.split_at(awaiting);
    let mut report = Report::default();
    for (holders, outcomes) in [("wait", awaiting), ("compute", computing)] {
        let (limits, others) = outcomes.split_at(limits.len());
        let findings = Findings {
            store,
            measure,
            what: counter.what,
            holders,
            targets: targets.clone(),
            limits: sums(limits),
        };
        findings.table(&mut report, limits, others);
        if holders == "wait" {
            findings.targets(&mut report, limits, others);
        }
    }
    exclusion_target(&mut report, store, two_held);
    Ok(report)
}

/// A round, and the server's count for one of its cycles. A shorter round has the same counts for
/// the workers' start and end. So the difference between the two rounds comes from their cycles.
fn contend(counter: &Counter<'_>, contest: &Contest) -> Result<Turn> {
    let short = Contest { window: contest.window / 4, ..contest.clone() };
    let before = (counter.count)()?;
    let short = short.round()?;
    let between = (counter.count)()?;
    let round = contest.round()?;
    let after = (counter.count)()?;
    let count = (after - between) as f64 - (between - before) as f64;
    let cycles = round.cycles.saturating_sub(short.cycles).max(1);
    Ok(Turn::Contest { count: count / cycles as f64, round })
}

/// Measures from the release that lets in the first of 200 waiters until the last one has the lock.
fn queue(counter: Option<&Counter<'_>>, url: &str) -> Result<Turn> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = counter.map(|counter| (counter.count)()).transpose()?;
    let client = runtime.block_on(leasehold::connect(url))?;
    let lease = runtime.block_on(client.mutex(NAME).lock())?;
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let tasks = (QUEUE / PROCESSES).to_string();
        workers.push(Worker::start(&["queue", url, &tasks])?);
    }
    for worker in &mut workers {
        worker.ready()?;
    }
    let (begun, looks) = runtime.block_on(async {
        let looks = until_waiting(&client, QUEUE).await?;
        let begun = now();
        lease.release().await?;
        Ok::<(u64, u64), leasehold::Error>((begun, looks))
    })?;
    let mut last = begun;
    for worker in workers {
        last = last.max(worker.finish()?.trim().parse()?);
    }
    let count = match (counter, before) {
        (Some(counter), Some(before)) => {
            let own = looks * counter.look;
            Some((((counter.count)()? - before).saturating_sub(own)) as f64 / QUEUE as f64)
        }
        _ => None,
    };
    Ok(Turn::Queue { took: (last - begun) as f64, count })
}

/// Waits until this many claims wait in line; returns how often it read the line.
pub(crate) async fn until_waiting(
    client: &leasehold::Client,
    waiters: usize,
) -> leasehold::Result<u64> {
    let query = Query::name(leasehold::Name::new(NAME)?);
    let mut looks = 1;
    while client
        .admin()
        .inspect(&query)
        .await?
        .lines
        .iter()
        .all(|line| line.waiting.len() < waiters)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
        looks += 1;
    }
    Ok(looks)
}
