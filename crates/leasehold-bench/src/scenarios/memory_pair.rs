//! The keyed pair in memory: lock a free name and give it back, on one thread and on two, beside
//! the crate `lockable` and a bare mutex without names.
//!
//! A pair takes less time than the clock can resolve, so this times pairs in batches.

use std::sync::{Arc, Barrier};

use leasehold::memory::Memory;
use lockable::LockPool;
use tokio::sync::Mutex;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, digits, span, times};
use crate::scenarios::Setting;
use crate::stats::{Samples, median, ratio_of_rounds};

/// How many pairs make a batch.
const BATCH: usize = 64;
/// How many names each thread uses in turn.
const NAMES: usize = 16;
const THREADS: [usize; 2] = [1, 2];

const DROPPED: &str = "leasehold, lock + drop";
const RELEASED: &str = "leasehold, lock + release";
const NAMED: &str = "leasehold, mutex(name).lock + drop";
const LOCKABLE: &str = "lockable, async_lock + drop";
const BARE: &str = "one tokio mutex a thread, no names";

struct Round {
    /// Nanoseconds a pair, averaged over each batch.
    pairs: Samples,
    pairs_per_second: f64,
}

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let batches = setting.either(100, 400);
    let names: Vec<String> =
        (0..NAMES * THREADS[1]).map(|number| format!("order:{number}")).collect();
    let client = Memory::new().client()?;
    let mutexes: Vec<leasehold::Mutex> = names.iter().map(|name| client.mutex(name)).collect();
    let pool: LockPool<String> = LockPool::new();
    let bare: Vec<Arc<Mutex<()>>> = names.iter().map(|_| Arc::default()).collect();
    let (client, mutexes, names, pool, bare) = (&client, &mutexes, &names, &pool, &bare);
    let mut contenders = Vec::new();
    for threads in THREADS {
        contenders.extend([
            Contender::new(Role::Ours, DROPPED, move || {
                round(threads, batches, async |key| {
                    drop(mutexes[key].lock().await?);
                    Ok(())
                })
            }),
            Contender::new(Role::Ours, RELEASED, move || {
                round(threads, batches, async |key| {
                    mutexes[key].lock().await?.release().await?;
                    Ok(())
                })
            }),
            Contender::new(Role::Ours, NAMED, move || {
                round(threads, batches, async |key| {
                    drop(client.mutex(&names[key]).lock().await?);
                    Ok(())
                })
            }),
            Contender::new(Role::Rival, LOCKABLE, move || {
                round(threads, batches, async |key| {
                    drop(pool.async_lock(names[key].clone()).await);
                    Ok(())
                })
            }),
            Contender::new(Role::Limit, BARE, move || {
                round(threads, batches, async |key| {
                    drop(bare[key - key % NAMES].lock().await);
                    Ok(())
                })
            }),
        ]);
    }
    let outcomes = take_turns(contenders, setting.either(10, 40), progress)?;
    Ok(report(&outcomes))
}

/// Lets each thread lock its own names in turn.
fn round(
    threads: usize,
    batches: usize,
    pair: impl AsyncFn(usize) -> Result<()> + Sync,
) -> Result<Round> {
    let (pair, together) = (&pair, &Barrier::new(threads));
    let work = |thread: usize| -> Result<(Vec<u64>, u64)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // By default the scheduler keeps two new threads on one core for longer than a round.
        let mut core = rustix::thread::CpuSet::new();
        core.set(thread);
        rustix::thread::sched_setaffinity(None, &core)?;
        together.wait();
        let begun = now();
        let means = runtime?.block_on(async {
            let mut means = Vec::with_capacity(batches);
            for _ in 0..batches {
                let begun = now();
                for step in 0..BATCH {
                    pair(thread * NAMES + step % NAMES).await?;
                }
                means.push((now() - begun) / BATCH as u64);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(means)
        })?;
        Ok((means, now() - begun))
    };
    let results: Vec<Result<(Vec<u64>, u64)>> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let lost = |_| Err("a thread panicked".into());
        running.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    let (mut means, mut longest) = (Vec::new(), 0);
    for result in results {
        let (seen, took) = result?;
        means.extend(seen);
        longest = longest.max(took);
    }
    let pairs_per_second = (threads * batches * BATCH) as f64 / longest.max(1) as f64 * 1e9;
    Ok(Round { pairs: Samples::new(means), pairs_per_second })
}

fn report(outcomes: &[Outcome<Round>]) -> Report {
    let (one, two) = outcomes.split_at(outcomes.len() / 2);
    let mut report = Report::default();
    let head = ["pair", "role", "threads", "p50", "p99", "to lockable", "M pairs/s", "2 threads"];
    let mut table = Table::new(head);
    for (threads, group) in [(1, one), (2, two)] {
        for (index, outcome) in group.iter().enumerate() {
            let all = Samples::pooled(outcome.rounds.iter().map(|round| &round.pairs));
            let growth = growth(&one[index], &two[index]).filter(|_| threads == 2);
            table.row([
                outcome.name.clone(),
                outcome.role.word().into(),
                threads.to_string(),
                span(all.p50()),
                span(all.p99()),
                times(ratio(group, index)),
                speed(outcome).map_or_else(String::new, |speed| digits(speed / 1e6)),
                growth.map_or_else(String::new, |growth| times(Some(growth))),
            ]);
        }
    }
    report.table(table);
    report.note(
        "The column `2 threads` is the number of pairs a second on two threads over that on one.",
    );
    for (index, what) in [(0, "memory pair, drop"), (1, "memory pair, release")] {
        let ratio = ratio(one, index);
        let met = ratio.is_some_and(|ratio| ratio <= 2.0);
        report.target(what, "at most 2 × lockable", times(ratio), met);
    }
    let (ours, theirs) = (growth(&one[0], &two[0]), growth(&one[3], &two[3]));
    let met = ours.is_some_and(|growth| growth > 1.0);
    let measured = format!("{}, lockable {}", times(ours), times(theirs));
    report.target("memory pairs a second, 2 threads over 1", "grows", measured, met);
    report
}

fn ratio(group: &[Outcome<Round>], index: usize) -> Option<f64> {
    let base = group.iter().find(|outcome| outcome.name == LOCKABLE)?;
    let pairs = |outcome: &Outcome<Round>| -> Vec<Samples> {
        outcome.rounds.iter().map(|round| round.pairs.clone()).collect()
    };
    ratio_of_rounds(&pairs(&group[index]), &pairs(base))
}

fn speed(outcome: &Outcome<Round>) -> Option<f64> {
    median(outcome.rounds.iter().map(|round| round.pairs_per_second))
}

fn growth(one: &Outcome<Round>, two: &Outcome<Round>) -> Option<f64> {
    Some(speed(two)? / speed(one)?)
}
