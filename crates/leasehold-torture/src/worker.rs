//! A worker: a process of its own that uses the library as a service would, from several tasks at
//! once. It writes down its questions and the answers.
//!
//! It ends when its standard input does: every task finishes its attempt, and the client is closed.
//! `attempt` has the steps of one attempt.

use std::env;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, Error};
use serde::{Deserialize, Serialize};

use crate::attempt::{OFFICE, Task};
use crate::event::{Recorder, What, ms, now};
use crate::mutant::{self, Mutant};

/// Set for a worker only: its orders, as JSON.
pub const VARIABLE: &str = "LEASEHOLD_TORTURE_WORKER";

/// A worker looks this often whether its threads run.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Threads that did not run for so long may have lost a place in line: a heartbeat is due each
/// second, and the shortest patience is two.
const STALL: u64 = ms(600);

/// One in so many workers observes the election: a store tells events only while there are
/// observers, and both ways are to be seen.
const OBSERVER_EACH: u32 = 2;

/// The status of a worker that panicked, as of any program in Rust.
const PANICKED: i32 = 101;

/// The pause before a worker tries again to connect.
const RECONNECT: Duration = Duration::from_millis(200);

/// The orders for a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// Its number, from 1.
    pub number: u32,
    /// The store's address.
    pub url: String,
    /// The register's address.
    pub register: SocketAddr,
    /// Where to write.
    pub history: PathBuf,
    /// The seed of its choices.
    pub seed: u64,
    /// How many tasks ask at once.
    pub tasks: u32,
    /// The times to live that it asks for, in milliseconds.
    pub ttls_ms: Vec<u64>,
    /// How many of a thousand leases are held for about a ttl or two.
    pub long: u64,
    /// The ttl that visitors ask for, in milliseconds; if none, one of the others.
    pub visit_ttl_ms: Option<u64>,
    /// A time for which the store keeps no name closed, in milliseconds, if there is one.
    pub too_long_ms: Option<u64>,
    /// A fault to put into the engine, for tests of the checker.
    pub mutant: Option<Mutant>,
}

/// What the tasks of a worker share.
#[derive(Debug)]
pub struct Shared {
    /// The orders.
    pub orders: Orders,
    /// The client.
    pub client: Client,
    /// The history.
    pub recorder: Arc<Recorder>,
    /// Whether to begin no more attempts.
    pub stops: Arc<AtomicBool>,
}

tokio::task_local! {
    /// The attempt that a task makes, for the observer.
    pub static ATTEMPT: u64;
}

/// Writes down which attempt has a place in line, and when places may have been lost.
#[derive(Debug)]
struct Places(Arc<Recorder>);

impl Observer for Places {
    fn observe(&self, measure: &Measure<'_>) {
        let late = |took: u64| {
            let present = now();
            let since = present.saturating_sub(took);
            self.0.record_at(present, 0, What::Stalled { since });
        };
        match measure {
            Measure::WaitBegan { .. } => {
                // Outside of an attempt of one name it is not known which claim is meant.
                let _unknown = ATTEMPT.try_with(|attempt| self.0.record(*attempt, What::Queued));
            }
            // A heartbeat that the store did not answer in time keeps no place for sure.
            Measure::Renewed { took, .. } if took.as_nanos() > u128::from(STALL) => {
                late(took.as_nanos() as u64);
            }
            Measure::RenewalFailed { error, .. } | Measure::WaitDisturbed { error, .. } => {
                late(STALL);
                failed(&self.0, 0, "heartbeat", error);
            }
            _ => {}
        }
    }
}

/// Turns this process into a worker, and does not come back, if a run started it as one.
pub fn run_if_asked() {
    let Ok(orders) = env::var(VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&orders).expect("a run writes orders that read back");
    end_by_panics();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a worker can start a runtime");
    let status = match runtime.block_on(work(orders)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("worker: {error}");
            1
        }
    };
    std::process::exit(status);
}

/// A panic of any task or thread ends the process, so that the run sees it.
fn end_by_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(PANICKED);
    }));
}

async fn work(orders: Orders) -> Result<(), Error> {
    let recorder = Recorder::open(&orders.history, orders.number);
    let recorder = Arc::new(recorder.expect("the folder of the history is there"));
    let stops = Arc::new(AtomicBool::new(false));
    watch_input(Arc::clone(&stops));
    watch_stalls(Arc::clone(&recorder));
    recorder.record(0, What::Started);
    let Some(client) = connected(&orders, &recorder, &stops).await? else {
        recorder.record(0, What::Closed);
        return Ok(());
    };
    let tasks = orders.tasks;
    let shared = Arc::new(Shared { orders, client, recorder, stops });
    let mut tasks: Vec<_> =
        (1..=tasks).map(|index| tokio::spawn(task(Arc::clone(&shared), index))).collect();
    let visitor = shared.orders.tasks + 1;
    tasks.push(tokio::spawn(visits(Arc::clone(&shared), visitor)));
    if shared.orders.number.is_multiple_of(OBSERVER_EACH) {
        tasks.push(tokio::spawn(observe(Arc::clone(&shared))));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    if let Err(error) = shared.client.close().await {
        failed(&shared.recorder, 0, "close", &error);
    }
    shared.recorder.record(0, What::Closed);
    Ok(())
}

/// A client, as soon as the store can be reached; `None` if the run is over before.
pub async fn connected(
    orders: &Orders,
    recorder: &Arc<Recorder>,
    stops: &AtomicBool,
) -> Result<Option<Client>, Error> {
    while !stops.load(Ordering::SeqCst) {
        let places = Places(Arc::clone(recorder));
        let builder = Client::builder().label(format!("w{}", orders.number)).observer(places);
        let client = match orders.mutant {
            Some(mutant) => {
                mutant::open(mutant, &orders.url, orders.number).and_then(|one| builder.engine(one))
            }
            None => builder.connect(&orders.url).await,
        };
        match client {
            Ok(client) => return Ok(Some(client)),
            Err(error) if error.is_transient() => tokio::time::sleep(RECONNECT).await,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

async fn task(shared: Arc<Shared>, index: u32) {
    let mut task = Task::new(Arc::clone(&shared), index).await;
    while !shared.stops.load(Ordering::SeqCst) {
        task.think().await;
        task.attempt().await;
    }
}

async fn visits(shared: Arc<Shared>, index: u32) {
    let mut task = Task::new(Arc::clone(&shared), index).await;
    while !shared.stops.load(Ordering::SeqCst) {
        task.visit().await;
    }
}

/// Observes the election, and writes down who leads.
async fn observe(shared: Arc<Shared>) {
    let election = shared.client.election(OFFICE);
    let stops = || shared.stops.load(Ordering::SeqCst);
    while !stops() {
        let mut leaders = match election.observe().await {
            Ok(leaders) => leaders,
            Err(error) => {
                failed(&shared.recorder, 0, "observe", &error);
                tokio::time::sleep(RECONNECT).await;
                continue;
            }
        };
        while !stops() {
            match tokio::time::timeout(RECONNECT, leaders.next()).await {
                Ok(Some(Ok(Some(leader)))) => {
                    shared.recorder.record(0, What::Leads { term: leader.term.as_u64() });
                }
                Ok(Some(Err(error))) => failed(&shared.recorder, 0, "observe", &error),
                Ok(None) => break,
                Ok(Some(Ok(None))) | Err(_) => {}
            }
        }
    }
}

/// Writes down that a call failed.
pub fn failed(recorder: &Recorder, attempt: u64, call: &str, error: &Error) {
    let kind = match error {
        Error::Invalid(_) => "Invalid",
        Error::Config(_) => "Config",
        Error::Unreachable { .. } => "Unreachable",
        Error::NoMajority { .. } => "NoMajority",
        Error::TaskEnded { .. } => "TaskEnded",
        Error::Unsupported { .. } => "Unsupported",
        Error::Store { transient: true, .. } => "Store (transient)",
        Error::Store { .. } => "Store",
        Error::Replaced { .. } => "Replaced",
        Error::SetBack { .. } => "SetBack",
        Error::Mismatch { .. } => "Mismatch",
        Error::InUse { .. } => "InUse",
        Error::Lost { .. } => "Lost",
        Error::TooSlow { .. } => "TooSlow",
        Error::Deadlock { .. } => "Deadlock",
        Error::Stale { .. } => "Stale",
        Error::Limit { .. } => "Limit",
        Error::Timeout { .. } => "Timeout",
        Error::Closed => "Closed",
        _ => "unknown",
    };
    let (call, kind, text) = (call.to_owned(), kind.to_owned(), error.with_sources());
    recorder.record(attempt, What::Failed { call, kind, text });
}

fn watch_input(stops: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        // Nothing is ever written: a read returns when the run closes the other end, or dies.
        let _ended = std::io::stdin().read(&mut [0]);
        stops.store(true, Ordering::SeqCst);
    });
}

fn watch_stalls(recorder: Arc<Recorder>) {
    std::thread::spawn(move || {
        let mut last = now();
        loop {
            std::thread::sleep(LOOK_EVERY);
            let present = now();
            if present - last > STALL {
                recorder.record_at(present, 0, What::Stalled { since: last });
            }
            last = present;
        }
    });
}
