//! Hand-off in memory: tasks on a runtime of two threads want one name.
//!
//! The raw limit is one tokio mutex, which has no names, no fences and no time. A holder yields
//! until its time is over, so that the other tasks come and wait. Tasks that keep their thread busy
//! would never meet another one.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold::memory::Memory;
use lockable::LockPool;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::Result;
use crate::contender::{Contender, Role, take_turns};
use crate::contest::Round;
use crate::machine::{now, own_cpu};
use crate::progress::Progress;
use crate::report::{Report, span};
use crate::scenarios::Setting;
use crate::scenarios::hand_off_table::{HandOffTable, exclusion_target};
use crate::stats::{Grant, HandOffs};
use crate::worker::NAME;

const WORKERS: [usize; 2] = [2, 8];
/// Long enough that all other tasks are in line when it ends.
const HOLD: Duration = Duration::from_micros(10);
const BARE: &str = "one tokio mutex";
const P50_MAX_NS: u64 = 5_000;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let window = Duration::from_millis(setting.either(50, 200));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut report, mut table) = (Report::default(), HandOffTable::new("hand-off", BARE, "tokio"));
    let mut overlaps = 0;
    let mut lines = Vec::new();
    for workers in WORKERS {
        let contenders = contenders(&runtime, workers, window)?;
        let outcomes = take_turns(contenders, setting.either(5, 20), progress)?;
        let seen = table.add(&outcomes, workers, HOLD.as_nanos() as u64);
        overlaps += seen[0].overlaps;
        lines.push((workers, seen[0].spans.p50(), seen[0].given_back));
    }
    table.finish(&mut report);
    for (workers, p50, given_back) in lines {
        let met = p50.is_some_and(|p50| p50 <= P50_MAX_NS);
        let what = format!("memory, {workers} tasks: hand-off p50");
        report.target(what, "at most 5 µs", span(p50), met);
        let what = format!("memory, {workers} tasks: given back while others wait");
        report.target(what, "0", given_back.to_string(), given_back == 0);
    }
    exclusion_target(&mut report, "memory", overlaps);
    Ok(report)
}

fn contenders(
    runtime: &Runtime,
    workers: usize,
    window: Duration,
) -> Result<Vec<Contender<'_, Round>>> {
    let client = Memory::new().client()?;
    let pool: Arc<LockPool<String>> = Arc::default();
    let bare: Arc<Mutex<()>> = Arc::default();
    Ok(vec![
        Contender::new(Role::Ours, "leasehold", move || {
            round(runtime, window, workers, |worker, stop| {
                leasehold_worker(client.clone(), worker, stop)
            })
        }),
        Contender::new(Role::Rival, "lockable", move || {
            let turn = Arc::new(AtomicU64::new(0));
            round(runtime, window, workers, |worker, stop| {
                lockable_worker(Arc::clone(&pool), Arc::clone(&turn), worker, stop)
            })
        }),
        Contender::new(Role::Limit, BARE, move || {
            let turn = Arc::new(AtomicU64::new(0));
            round(runtime, window, workers, |worker, stop| {
                bare_worker(Arc::clone(&bare), Arc::clone(&turn), worker, stop)
            })
        }),
    ])
}

/// Runs the workers as tasks until the window ends.
fn round<F>(
    runtime: &Runtime,
    window: Duration,
    workers: usize,
    work: impl Fn(usize, u64) -> F,
) -> Result<Round>
where
    F: Future<Output = Result<Vec<Grant>>> + Send + 'static,
{
    let (cpu, begun) = (own_cpu(), now());
    let stop = begun + window.as_nanos() as u64;
    let tasks: Vec<_> = (0..workers).map(|worker| runtime.spawn(work(worker, stop))).collect();
    let mut grants = Vec::new();
    for task in tasks {
        grants.extend(runtime.block_on(task)??);
    }
    let cores = (own_cpu() - cpu).as_nanos() as f64 / (now() - begun) as f64;
    let (cycles, overrun_ns) = (grants.len(), now().saturating_sub(stop));
    let hand_offs = HandOffs::of(grants, workers, window.as_nanos() as u64);
    Ok(Round { hand_offs, cores, cycles, overrun_ns })
}

async fn leasehold_worker(
    client: leasehold::Client,
    worker: usize,
    stop: u64,
) -> Result<Vec<Grant>> {
    let mutex = client.mutex(NAME);
    let mut seen = Vec::with_capacity(room(stop));
    while now() < stop {
        let (queued, lease) = noting_the_wait(mutex.lock()).await;
        let lease = lease?;
        let (granted, released) = hold().await;
        let order = lease.fence();
        lease.release().await?;
        seen.push(Grant { worker, order: order.as_u64(), queued, granted, released });
    }
    Ok(seen)
}

async fn lockable_worker(
    pool: Arc<LockPool<String>>,
    turn: Arc<AtomicU64>,
    worker: usize,
    stop: u64,
) -> Result<Vec<Grant>> {
    let mut seen = Vec::with_capacity(room(stop));
    while now() < stop {
        let (queued, guard) = noting_the_wait(pool.async_lock(NAME.to_owned())).await;
        let order = turn.fetch_add(1, Ordering::Relaxed);
        let (granted, released) = hold().await;
        drop(guard);
        seen.push(Grant { worker, order, queued, granted, released });
    }
    Ok(seen)
}

async fn bare_worker(
    mutex: Arc<Mutex<()>>,
    turn: Arc<AtomicU64>,
    worker: usize,
    stop: u64,
) -> Result<Vec<Grant>> {
    let mut seen = Vec::with_capacity(room(stop));
    while now() < stop {
        let (queued, guard) = noting_the_wait(mutex.lock()).await;
        let order = turn.fetch_add(1, Ordering::Relaxed);
        let (granted, released) = hold().await;
        drop(guard);
        seen.push(Grant { worker, order, queued, granted, released });
    }
    Ok(seen)
}

/// How many grants fit into the remaining time, so that no list grows during the measurement.
fn room(stop: u64) -> usize {
    (stop.saturating_sub(now()) / HOLD.as_nanos() as u64) as usize + 1
}

/// Keeps the lock for a while; returns when it was granted, and when it is given back.
async fn hold() -> (u64, u64) {
    let granted = now();
    loop {
        tokio::task::yield_now().await;
        let released = now();
        if released >= granted + HOLD.as_nanos() as u64 {
            return (granted, released);
        }
    }
}

/// Runs a future; also returns when it first had to wait, if it had to.
async fn noting_the_wait<F: Future>(future: F) -> (Option<u64>, F::Output) {
    let mut future = pin!(future);
    let mut queued = None;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready((queued, value)),
        Poll::Pending => {
            queued.get_or_insert_with(now);
            Poll::Pending
        }
    })
    .await
}
