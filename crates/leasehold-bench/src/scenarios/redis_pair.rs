//! The pair in Redis: lock a name nobody else wants and give it back, beside two bare round trips
//! over the same kind of connection, and beside what people type by hand.
//!
//! Also with 64 tasks at a time on names of their own: there the server's one thread and the
//! client's are the limit, not the way between them.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;
use leasehold::Mutex;
use leasehold_testkit::servers::Redis;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, digits, span, times};
use crate::scenarios::Setting;
use crate::stats::{Samples, median, ratio_of_rounds};

const RELEASED: &str = "leasehold, lock + release";
const DROPPED: &str = "leasehold, lock + drop";
const BARE: &str = "two bare round trips (PING)";
const RAW: &str = "SET NX PX + DEL";
const BY_HAND: &str = "SET NX PX + script that compares and deletes";

/// Names that take turns, so that a lease which is still being given back is in nobody's way.
const NAMES: usize = 64;
const TASKS: usize = 64;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Redis::new().start_blocking()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let bare = redis::Client::open(server.url())?;
    let bare = runtime.block_on(bare.get_multiplexed_async_connection())?;
    let mutexes: Vec<Mutex> =
        (0..NAMES).map(|number| client.mutex(format!("order:{number}:settle"))).collect();
    let mut report = Report::default();
    alone(setting, progress, &mut report, (&runtime, &mutexes, &bare))?;
    together(setting, progress, &mut report, (&runtime, &mutexes, &bare))?;
    Ok(report)
}

type Ground<'a> = (&'a Runtime, &'a [Mutex], &'a MultiplexedConnection);

fn alone(
    setting: &Setting,
    progress: &mut Progress,
    report: &mut Report,
    (runtime, mutexes, bare): Ground<'_>,
) -> Result<()> {
    let pairs = setting.either(200, 500);
    let next = AtomicUsize::new(0);
    let mutex = &|| &mutexes[next.fetch_add(1, Ordering::Relaxed) % NAMES];
    let contenders = vec![
        Contender::new(Role::Ours, RELEASED, move || {
            runtime.block_on(each(pairs, async || {
                mutex().lock().await?.release().await?;
                Ok(())
            }))
        }),
        Contender::new(Role::Ours, DROPPED, move || {
            runtime.block_on(each(pairs, async || {
                drop(mutex().lock().await?);
                Ok(())
            }))
        }),
        Contender::new(Role::Limit, BARE, move || {
            runtime.block_on(each(pairs, async || ping_twice(bare.clone()).await))
        }),
        Contender::new(Role::Limit, RAW, move || {
            runtime.block_on(each(pairs, async || set_and_delete(bare.clone(), "raw").await))
        }),
        Contender::new(Role::Rival, BY_HAND, move || {
            runtime.block_on(each(pairs, async || by_hand(bare.clone()).await))
        }),
    ];
    let outcomes = take_turns(contenders, setting.either(10, 40), progress)?;
    let base = rounds(&outcomes, BARE);
    let mut table = Table::new(["pair", "role", "p50", "p99", "to two bare round trips"]);
    for outcome in &outcomes {
        let all = Samples::pooled(&outcome.rounds);
        table.row([
            outcome.name.clone(),
            outcome.role.word().into(),
            span(all.p50()),
            span(all.p99()),
            times(ratio_of_rounds(&outcome.rounds, base)),
        ]);
    }
    report.table(table);
    for (name, most) in [(RELEASED, 1.15), (DROPPED, 0.6)] {
        let ratio = ratio_of_rounds(rounds(&outcomes, name), base);
        let met = ratio.is_some_and(|ratio| ratio <= most);
        let target = format!("at most {most} × two bare round trips");
        report.target(format!("Redis pair: {name}"), target, times(ratio), met);
    }
    Ok(())
}

fn rounds<'a>(outcomes: &'a [Outcome<Samples>], name: &str) -> &'a [Samples] {
    let found = outcomes.iter().find(|outcome| outcome.name == name);
    found.map(|outcome| outcome.rounds.as_slice()).unwrap_or_default()
}

fn together(
    setting: &Setting,
    progress: &mut Progress,
    report: &mut Report,
    (runtime, mutexes, bare): Ground<'_>,
) -> Result<()> {
    let pairs = setting.either(20, 100);
    let contenders = vec![
        Contender::new(Role::Ours, RELEASED, move || {
            runtime.block_on(rate(pairs, async |task| {
                mutexes[task].lock().await?.release().await?;
                Ok(())
            }))
        }),
        Contender::new(Role::Limit, RAW, move || {
            let keys: Vec<String> = (0..TASKS).map(|task| format!("raw:{task}")).collect();
            runtime
                .block_on(rate(pairs, async |task| set_and_delete(bare.clone(), &keys[task]).await))
        }),
    ];
    let outcomes = take_turns(contenders, setting.either(10, 30), progress)?;
    let mut table = Table::new(["64 tasks, names of their own", "role", "pairs/s"]);
    for outcome in &outcomes {
        let rate = median(outcome.rounds.iter().copied()).map_or_else(String::new, digits);
        table.row([outcome.name.clone(), outcome.role.word().into(), rate]);
    }
    report.table(table);
    let ratios = outcomes[0].rounds.iter().zip(&outcomes[1].rounds).map(|(ours, raw)| ours / raw);
    let ratio = median(ratios);
    let met = ratio.is_some_and(|ratio| ratio >= 0.9);
    report.target("Redis, 64 tasks on distinct names", "at least 0.9 × raw", times(ratio), met);
    Ok(())
}

/// Times each of so many pairs.
async fn each(pairs: usize, pair: impl AsyncFn() -> Result<()>) -> Result<Samples> {
    let mut spans = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let begun = now();
        pair().await?;
        spans.push(now() - begun);
    }
    Ok(Samples::new(spans))
}

/// Pairs a second when all tasks do so many of them side by side.
async fn rate(pairs: usize, pair: impl AsyncFn(usize) -> Result<()>) -> Result<f64> {
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

async fn ping_twice(mut bare: MultiplexedConnection) -> Result<()> {
    for _ in 0..2 {
        redis::cmd("PING").exec_async(&mut bare).await?;
    }
    Ok(())
}

async fn set_and_delete(mut bare: MultiplexedConnection, key: &str) -> Result<()> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("0123456789abcdef0123456789abcdef").arg("NX").arg("PX").arg(30_000);
    set.exec_async(&mut bare).await?;
    Ok(redis::cmd("DEL").arg(key).exec_async(&mut bare).await?)
}

async fn by_hand(mut bare: MultiplexedConnection) -> Result<()> {
    let (key, token) = ("by hand", "0123456789abcdef0123456789abcdef");
    let mut set = redis::cmd("SET");
    set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000).exec_async(&mut bare).await?;
    let compare = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                   return redis.call('DEL', KEYS[1]) else return 0 end";
    let script = redis::Script::new(compare);
    Ok(script.key(key).arg(token).invoke_async(&mut bare).await?)
}
