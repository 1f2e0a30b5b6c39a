//! Hand-off through Redis: 16 workers in 4 processes that each keep the lock for a millisecond,
//! and 200 waiters who want it once.
//!
//! The measure is W, the time this Redis takes to wake one subscriber in another process: no lock
//! that is woken by Redis can be quicker.

use std::time::Duration;

use leasehold::engine::Query;
use leasehold_testkit::servers::{Redis, Server};

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::contest::{Contest, Round, Worker};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, digits, span, times};
use crate::scenarios::Setting;
use crate::scenarios::hand_off_table::exclusion_target;
use crate::stats::{Samples, median, ratio_of_rounds};
use crate::worker::{NAME, Way};

const PROCESSES: usize = 4;
const TASKS: usize = 4;
const HOLD: Duration = Duration::from_millis(1);
/// Waiters that want the lock once.
const QUEUE: usize = 200;
const CHANNEL: &str = "bench:wake";

/// What one turn gave.
enum Turn {
    Wake(Samples),
    Contest { round: Round, commands: f64 },
    Queue { took: f64, commands: f64 },
}

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Redis::new().start_blocking()?;
    let server = &server;
    let window = Duration::from_millis(setting.either(300, 600));
    let contest = Contest {
        way: Way::Line,
        target: server.url().to_owned(),
        workers: PROCESSES,
        tasks: TASKS,
        hold: HOLD,
        window,
    };
    let poll = Contest {
        way: Way::Poll,
        target: format!("{}?prefix=poll:", server.url()),
        ..contest.clone()
    };
    let contenders = vec![
        Contender::new(Role::Limit, "one wake-up (W)", move || wake(server).map(Turn::Wake)),
        Contender::new(Role::Ours, "leasehold", move || contend(server, &contest)),
        Contender::new(Role::Ours, "leasehold, 200 waiters", move || queue(server)),
        Contender::new(Role::Rival, "asking every 10 ms", move || contend(server, &poll)),
    ];
    let outcomes = take_turns(contenders, setting.either(3, 12), progress)?;
    Ok(report(&outcomes))
}

/// How long it takes from a PUBLISH to a subscriber in another process.
fn wake(server: &Server) -> Result<Samples> {
    let mut subscriber = Worker::start(&["subscribe", server.url(), CHANNEL])?;
    subscriber.ready()?;
    let mut publisher = redis::Client::open(server.url())?.get_connection()?;
    let mut sent = Vec::new();
    for _ in 0..200 {
        let until = now() + HOLD.as_nanos() as u64;
        while now() < until {
            std::hint::spin_loop();
        }
        sent.push(now());
        redis::cmd("PUBLISH").arg(CHANNEL).arg("wake").exec(&mut publisher)?;
    }
    redis::cmd("PUBLISH").arg(CHANNEL).arg("end").exec(&mut publisher)?;
    let came = subscriber.finish()?;
    let came = came.lines().map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
    if came.len() != sent.len() {
        return Err("a message was lost".into());
    }
    Ok(Samples::new(came.iter().zip(&sent).map(|(came, sent)| came - sent).collect()))
}

fn contend(server: &Server, contest: &Contest) -> Result<Turn> {
    let before = scripts_run(server)?;
    let round = contest.round()?;
    let commands = (scripts_run(server)? - before) as f64 / round.hand_offs.grants.max(1) as f64;
    Ok(Turn::Contest { round, commands })
}

/// From the release that lets the first of 200 waiters in until the last one has the lock.
fn queue(server: &Server) -> Result<Turn> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = scripts_run(server)?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let lease = runtime.block_on(client.mutex(NAME).lock())?;
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        let tasks = (QUEUE / PROCESSES).to_string();
        workers.push(Worker::start(&["queue", server.url(), &tasks])?);
    }
    for worker in &mut workers {
        worker.ready()?;
    }
    let (begun, looks) = runtime.block_on(async {
        let query = Query::name(leasehold::Name::new(NAME)?);
        let mut looks = 1;
        while client.inspect(&query).await?.lines.iter().all(|line| line.waiting.len() < QUEUE) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            looks += 1;
        }
        let begun = now();
        lease.release().await?;
        Ok::<(u64, u64), leasehold::Error>((begun, looks))
    })?;
    let mut last = begun;
    for worker in workers {
        last = last.max(worker.finish()?.trim().parse()?);
    }
    let commands = (scripts_run(server)? - before - looks) as f64 / QUEUE as f64;
    Ok(Turn::Queue { took: (last - begun) as f64, commands })
}

/// How many scripts the server has run.
fn scripts_run(server: &Server) -> Result<u64> {
    let stats = server.redis(&["INFO", "commandstats"])?;
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(command));
        let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(calls("cmdstat_evalsha:") + calls("cmdstat_eval:"))
}

fn report(outcomes: &[Outcome<Turn>]) -> Report {
    let mut report = Report::default();
    let wakes: Vec<Samples> = outcomes[0]
        .rounds
        .iter()
        .filter_map(|turn| match turn {
            Turn::Wake(samples) => Some(samples.clone()),
            _ => None,
        })
        .collect();
    let wake = Samples::pooled(&wakes);
    let mut table = Table::new([
        "hand-off",
        "role",
        "p50",
        "p99",
        "p50 to W",
        "p99 to W",
        "commands a cycle",
        "given back",
        "Jain",
        "held",
    ]);
    let blank = String::new;
    table.row([
        outcomes[0].name.clone(),
        outcomes[0].role.word().into(),
        span(wake.p50()),
        span(wake.p99()),
        blank(),
        blank(),
        blank(),
        blank(),
        blank(),
        blank(),
    ]);
    for outcome in [&outcomes[1], &outcomes[3]] {
        contest_row(&mut table, &mut report, outcome, &wakes, &wake);
    }
    report.table(table);
    queue_targets(&mut report, &outcomes[2], &wake);
    report
}

fn contest_row(
    table: &mut Table,
    report: &mut Report,
    outcome: &Outcome<Turn>,
    wakes: &[Samples],
    wake: &Samples,
) {
    let rounds: Vec<(&Round, f64)> = outcome
        .rounds
        .iter()
        .filter_map(|turn| match turn {
            Turn::Contest { round, commands } => Some((round, *commands)),
            _ => None,
        })
        .collect();
    let spans: Vec<Samples> =
        rounds.iter().map(|(round, _)| round.hand_offs.spans.clone()).collect();
    let all = Samples::pooled(&spans);
    let p50 = ratio_of_rounds(&spans, wakes);
    let p99 = match (all.p99(), wake.p50()) {
        (Some(p99), Some(wake)) => Some(p99 as f64 / wake as f64),
        _ => None,
    };
    let commands = median(rounds.iter().map(|(_, commands)| *commands));
    let given_back: usize = rounds.iter().map(|(round, _)| round.hand_offs.given_back).sum();
    let grants: usize = rounds.iter().map(|(round, _)| round.hand_offs.grants).sum();
    let overlaps: usize = rounds.iter().map(|(round, _)| round.hand_offs.overlaps).sum();
    let jain = median(rounds.iter().filter_map(|(round, _)| round.hand_offs.jain));
    let held = median(rounds.iter().map(|(round, _)| round.hand_offs.held_share));
    let three = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    let percent = held.map_or_else(String::new, |held| format!("{:.1} %", held * 100.0));
    table.row([
        outcome.name.clone(),
        outcome.role.word().into(),
        span(all.p50()),
        span(all.p99()),
        times(p50),
        times(p99),
        commands.map_or_else(String::new, digits),
        format!("{given_back} of {grants}"),
        three(jain),
        percent.clone(),
    ]);
    if outcome.role != Role::Ours {
        return;
    }
    let at_most = |value: Option<f64>, most: f64| value.is_some_and(|value| value <= most);
    let at_least = |value: Option<f64>, least: f64| value.is_some_and(|value| value >= least);
    let what = |what: &str| format!("Redis, 16 workers: {what}");
    report.target(what("hand-off p50"), "at most 1.5 × W", times(p50), at_most(p50, 1.5));
    report.target(what("hand-off p99"), "at most 4 × W", times(p99), at_most(p99, 4.0));
    let shown = commands.map_or_else(String::new, digits);
    report.target(what("commands a cycle"), "at most 3", shown, at_most(commands, 3.05));
    report.target(what("Jain"), "at least 0.999", three(jain), at_least(jain, 0.999));
    let shown = format!("{given_back} of {grants}");
    report.target(what("given back while others wait"), "0", shown, given_back == 0);
    report.target(what("held share"), "at least 95 %", percent, at_least(held, 0.95));
    exclusion_target(report, "Redis", overlaps);
}

fn queue_targets(report: &mut Report, outcome: &Outcome<Turn>, wake: &Samples) {
    let turns = || {
        outcome.rounds.iter().filter_map(|turn| match turn {
            Turn::Queue { took, commands } => Some((*took, *commands)),
            _ => None,
        })
    };
    let took = median(turns().map(|(took, _)| took));
    let commands = median(turns().map(|(_, commands)| commands));
    let limit = wake.p50().map(|wake| wake as f64 * QUEUE as f64);
    let ratio = took.zip(limit).map(|(took, limit)| took / limit);
    let shown = format!("{}, {}", span(took.map(|took| took as u64)), times(ratio));
    let met = ratio.is_some_and(|ratio| ratio <= 3.0);
    report.target("Redis, 200 waiters served", "within 3 × 200 W", shown, met);
    let shown = commands.map_or_else(String::new, digits);
    let met = commands.is_some_and(|commands| commands <= 3.1);
    report.target("Redis, 200 waiters: commands a grant", "at most 3", shown, met);
}
