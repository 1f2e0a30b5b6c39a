//! Pairs through a server, alike for all of them: lock a free name and give it back, beside the
//! same store without a lock on top. Alone, and with 64 tasks on names of their own.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;
use leasehold::{Client, Mutex};
use tokio::runtime::Runtime;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, digits, span, times};
use crate::stats::{Samples, median, ratio_of_rounds};

pub(crate) const RELEASED: &str = "leasehold, lock + release";
pub(crate) const DROPPED: &str = "leasehold, lock + drop";

/// Names that take turns, so that a lease whose release is in flight blocks no other lock.
const NAMES: usize = 64;
pub(crate) const TASKS: usize = 64;

/// Free names, and the runtime that locks them.
pub(crate) struct Ours<'a> {
    pub(crate) runtime: &'a Runtime,
    mutexes: Vec<Mutex>,
    next: AtomicUsize,
}

impl<'a> Ours<'a> {
    pub(crate) fn new(runtime: &'a Runtime, client: &Client) -> Self {
        let mutexes =
            (0..NAMES).map(|number| client.mutex(format!("order:{number}:settle"))).collect();
        Self { runtime, mutexes, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> &Mutex {
        &self.mutexes[self.next.fetch_add(1, Ordering::Relaxed) % NAMES]
    }

    /// Lock and release, and lock and drop, one pair after the other.
    pub(crate) fn alone(&self, pairs: usize) -> Vec<Contender<'_, Samples>> {
        let released = move || {
            self.runtime.block_on(each(pairs, async || {
                self.next().lock().await?.release().await?;
                Ok(())
            }))
        };
        let dropped = move || {
            self.runtime.block_on(each(pairs, async || {
                drop(self.next().lock().await?);
                Ok(())
            }))
        };
        vec![
            Contender::new(Role::Ours, RELEASED, released),
            Contender::new(Role::Ours, DROPPED, dropped),
        ]
    }

    /// Lock and release in all tasks at a time.
    pub(crate) fn together(&self, pairs: usize) -> Contender<'_, f64> {
        Contender::new(Role::Ours, RELEASED, move || {
            self.runtime.block_on(rate(pairs, async |task| {
                self.mutexes[task].lock().await?.release().await?;
                Ok(())
            }))
        })
    }
}

/// The base of the comparison, and the promise.
pub(crate) struct Base {
    /// The store as the targets name it.
    pub(crate) store: &'static str,
    /// The heading of the table.
    pub(crate) heading: &'static str,
    /// The contender that the ratios compare with, and its name in words.
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// The most that a pair of leasehold's may take, as a multiple of the base.
    pub(crate) most: &'static [(&'static str, f64)],
    /// The contender that does the least work that such a lock needs in that store.
    pub(crate) floors: &'static [(&'static str, &'static str)],
}

/// Lets pairs take turns, and puts table and targets into the report.
pub(crate) fn alone(
    contenders: Vec<Contender<'_, Samples>>,
    rounds: usize,
    base: &Base,
    (progress, report): (&mut Progress, &mut Report),
) -> Result<()> {
    let outcomes = take_turns(contenders, rounds, progress)?;
    let base_rounds = rounds_of(&outcomes, base.name);
    let ratio = format!("to {}", base.label);
    let mut table = Table::new([base.heading, "role", "p50", "p99", &ratio]);
    for outcome in &outcomes {
        let all = Samples::pooled(&outcome.rounds);
        table.row([
            outcome.name.clone(),
            outcome.role.word().into(),
            span(all.p50()),
            span(all.p99()),
            times(ratio_of_rounds(&outcome.rounds, base_rounds)),
        ]);
    }
    report.table(table);
    for (name, most) in base.most {
        let ratio = ratio_of_rounds(rounds_of(&outcomes, name), base_rounds);
        let met = ratio.is_some_and(|ratio| ratio <= *most);
        let target = format!("at most {most} × {}", base.label);
        let mut measured = times(ratio);
        if let Some((_, floor)) = base.floors.iter().find(|(pair, _)| pair == name) {
            let floor = ratio_of_rounds(rounds_of(&outcomes, floor), base_rounds);
            measured = format!("{measured} (floor: {})", times(floor));
        }
        report.target(format!("{} pair: {name}", base.store), target, measured, met);
    }
    Ok(())
}

/// Lets 64 tasks of each contender take turns. The first one, leasehold, should make at least
/// `least` times as many pairs as the last one, the store alone.
pub(crate) fn together(
    contenders: Vec<Contender<'_, f64>>,
    rounds: usize,
    (store, least): (&str, f64),
    (progress, report): (&mut Progress, &mut Report),
) -> Result<()> {
    let outcomes = take_turns(contenders, rounds, progress)?;
    let raw = outcomes.last().map(|outcome| outcome.rounds.as_slice()).unwrap_or_default();
    let share = |outcome: &Outcome<f64>| {
        median(outcome.rounds.iter().zip(raw).map(|(pairs, raw)| pairs / raw))
    };
    let mut table = Table::new(["64 tasks, names of their own", "role", "pairs/s", "to raw"]);
    for outcome in &outcomes {
        let rate = median(outcome.rounds.iter().copied()).map_or_else(String::new, digits);
        table.row([outcome.name.clone(), outcome.role.word().into(), rate, times(share(outcome))]);
    }
    report.table(table);
    let ratio = outcomes.first().and_then(share);
    let met = ratio.is_some_and(|ratio| ratio >= least);
    let what = format!("{store}, {TASKS} tasks on distinct names");
    report.target(what, format!("at least {least} × raw"), times(ratio), met);
    Ok(())
}

fn rounds_of<'a>(outcomes: &'a [Outcome<Samples>], name: &str) -> &'a [Samples] {
    let found = outcomes.iter().find(|outcome| outcome.name == name);
    found.map(|outcome| outcome.rounds.as_slice()).unwrap_or_default()
}

/// Times each of `pairs` pairs.
pub(crate) async fn each(pairs: usize, pair: impl AsyncFn() -> Result<()>) -> Result<Samples> {
    let mut spans = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let begun = now();
        pair().await?;
        spans.push(now() - begun);
    }
    Ok(Samples::new(spans))
}

/// Pairs a second when all tasks make pairs side by side.
pub(crate) async fn rate(pairs: usize, pair: impl AsyncFn(usize) -> Result<()>) -> Result<f64> {
    let begun = now();
    let pair = &pair;
    try_join_all((0..TASKS).map(|task| async move {
        for _ in 0..pairs {
            pair(task).await?;
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    }))
    .await?;
    Ok((TASKS * pairs) as f64 / ((now() - begun) as f64 / 1e9))
}
