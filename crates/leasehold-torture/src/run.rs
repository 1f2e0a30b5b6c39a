//! One run: servers, a register and workers are started, faults happen by the plan, everything is
//! healed, the workers end, and what is left in the store is looked at.
//!
//! Afterwards `checks` judges the history.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::{ClaimView, Query};
use leasehold_testkit::Worker;
use rustix::process::Signal;

use crate::attempt::CLOSED_MS;
use crate::delays::Delays;
use crate::event::{MASTER_CHANGED, RUN, Recorder, What, ms, now};
use crate::faults::{Kind, LINK, Plan, Planned};
use crate::history::{Terms, forgotten_after};
use crate::mutant::Mutant;
use crate::register;
use crate::rests;
use crate::setup::{Servers, SetUp, Store};
use crate::strike;
use crate::worker::{Orders, VARIABLE};

/// Names the fault of a process to the library.
const SEEDED: &str = "LEASEHOLD_SEEDED";

/// How many workers there are, and how many tasks each has.
const WORKERS: usize = 4;
const TASKS: u32 = 6;

/// How many of a thousand leases are held for about a ttl or two.
const LONG: u64 = 5;

/// With a fault in the library more are, so that it shows in seconds.
const LONG_WITH_FAULT: u64 = 100;

/// A wrong engine that blocks a name is found sooner.
const PROGRESS_WITH_MUTANT: u64 = ms(10_000);

/// How long a run goes on without faults before the workers are asked to end.
const CALM: Duration = Duration::from_secs(8);

/// How often is looked whether something is left in the store.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A change of the master is seen at most so long after it began.
const NOTICED_AFTER: u64 = ms(3_000);

/// More that is left in a store says the same.
const RESTS_MAX: usize = 20;

/// The entries that the store's own tools show have at least so long to end. ZooKeeper keeps the
/// node of an observer that died for 20 s. A server that restarts counts that time again.
const RESTS_END: Duration = Duration::from_secs(30);

/// How long the store has to say what it has of each name.
const LINES_MAX: Duration = Duration::from_secs(10);

/// How many claims of a line are written down.
const CLAIMS_MAX: usize = 20;

/// How much of what a stuck worker wrote goes into the history.
const SAID_MAX: usize = 400;

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long faults happen.
    pub span: Duration,
    /// How long the run goes on without faults.
    pub calm: Duration,
    /// What all choices follow from.
    pub seed: u64,
    /// The kinds of faults; all that the set-up has if `None`.
    pub faults: Option<Vec<Kind>>,
    /// A fault in the engine, for tests of the checker.
    pub mutant: Option<Mutant>,
    /// A fault in the library, for the same tests.
    pub seeded: Option<String>,
}

impl Options {
    /// A run of so many seconds in all.
    pub fn new(seconds: u64, seed: u64) -> Options {
        let whole = Duration::from_secs(seconds);
        let calm = CALM.min(whole / 4);
        Options { span: whole - calm, calm, seed, faults: None, mutant: None, seeded: None }
    }

    /// What the checks must know.
    pub fn terms(&self, setup: &SetUp) -> Terms {
        let mut terms = setup.terms();
        if self.mutant.is_some() {
            terms.progress = PROGRESS_WITH_MUTANT;
        }
        terms
    }
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The servers.
    #[error(transparent)]
    Start(#[from] crate::setup::CannotStart),
    /// Files and processes.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The harness.
    #[error(transparent)]
    Harness(#[from] leasehold_testkit::Error),
    /// The store.
    #[error("the store cannot be used: {0}")]
    Store(#[from] leasehold::Error),
}

/// A worker's place: workers that are killed are followed by others in the same place.
struct Place {
    index: usize,
    worker: Worker,
    number: u32,
}

/// What all parts of a run share.
struct Run {
    setup: &'static SetUp,
    options: Options,
    store: Store,
    folder: PathBuf,
    recorder: Recorder,
    register: std::net::SocketAddr,
    workers: AtomicU32,
    faults: AtomicU32,
    delays: Delays,
}

/// A limit of time that does not count what the machine delays.
struct Limit<'a> {
    span: Duration,
    begun: Instant,
    before: Duration,
    delays: &'a Delays,
}

impl Limit<'_> {
    fn is_over(&self) -> bool {
        self.begun.elapsed() > self.span + (self.delays.sum() - self.before)
    }
}

/// Makes a run; its history is in `folder` afterwards.
pub async fn run(setup: &'static SetUp, options: &Options, folder: &Path) -> Result<(), Error> {
    let in_folder = |doing: &str| {
        let doing = format!("{doing} {}", folder.display());
        move |source| Error::Io { doing, source }
    };
    std::fs::create_dir_all(folder).map_err(in_folder("make the folder"))?;
    let recorder = Recorder::open(&folder.join("run.jsonl"), RUN);
    let recorder = recorder.map_err(in_folder("write to"))?;
    let register = register::start(&folder.join("register.jsonl")).await;
    let register = register.map_err(in_folder("start a register that writes to"))?;
    let store = setup.start(WORKERS, folder).await?;
    // Before the workers, so that nothing is installed by several at once.
    let client = leasehold::connect(&store.url).await?;
    let run = Arc::new(Run {
        setup,
        options: options.clone(),
        store,
        folder: folder.to_owned(),
        recorder,
        register,
        workers: AtomicU32::new(0),
        faults: AtomicU32::new(0),
        delays: Delays::default(),
    });
    run.delays.add(std::process::id());
    let all = async {
        run.torment().await?;
        // Its connection was there all the time, as that of an operator; it held nothing.
        client.close().await?;
        run.look_for_rests().await
    };
    tokio::select! {
        done = all => done,
        () = run.delays.watch(&run.recorder) => Ok(()),
    }
}

impl Run {
    async fn torment(self: &Arc<Self>) -> Result<(), Error> {
        let span = self.options.span.as_millis() as u64;
        let only = self.options.faults.as_deref();
        let plan = Plan::new(self.setup, self.options.seed, span, WORKERS, only);
        let started = Instant::now();
        let masters = tokio::spawn(Arc::clone(self).watch_masters());
        let mut rows = Vec::new();
        for (index, row) in plan.workers.into_iter().enumerate() {
            let place = self.place(index)?;
            rows.push(tokio::spawn(Arc::clone(self).torment_worker(place, row, started)));
        }
        self.torment_store(plan.store, started).await;
        let mut places = Vec::new();
        for row in rows {
            places.push(row.await.expect("no row panics")?);
        }
        tokio::time::sleep(self.options.span.saturating_sub(started.elapsed())).await;
        self.store.heal().await?;
        self.recorder.record(0, What::Calm);
        tokio::time::sleep(self.options.calm).await;
        self.end(places).await;
        masters.abort();
        Ok(())
    }

    /// A limit that begins now.
    fn limit(&self, span: Duration) -> Limit<'_> {
        let delays = &self.delays;
        Limit { span, begun: Instant::now(), before: delays.sum(), delays }
    }

    fn terms(&self) -> Terms {
        self.options.terms(self.setup)
    }

    /// Starts a worker in its place.
    fn place(&self, index: usize) -> Result<Place, Error> {
        let number = self.workers.fetch_add(1, Ordering::SeqCst) + 1;
        let orders = Orders {
            number,
            url: self.store.url.clone(),
            register: self.register,
            history: self.folder.join(format!("worker-{number}.jsonl")),
            seed: self.options.seed,
            tasks: TASKS,
            ttls_ms: self.setup.ttls_ms.to_vec(),
            long: match (self.options.mutant, &self.options.seeded) {
                (Some(mutant), _) => mutant.long(),
                (None, Some(_)) => LONG_WITH_FAULT,
                (None, None) => LONG,
            },
            visit_ttl_ms: self.setup.visit_ttl_ms,
            too_long_ms: self.setup.too_long_ms,
            mutant: self.options.mutant,
        };
        let doing = || "start a worker".to_owned();
        let program = std::env::current_exe();
        let program = program.map_err(|source| Error::Io { doing: doing(), source })?;
        let mut command = Command::new(program);
        command.env(VARIABLE, serde_json::to_string(&orders).expect("orders are plain data"));
        command.envs(self.store.ways_of(index));
        if let Some(seeded) = &self.options.seeded {
            command.env(SEEDED, seeded);
        }
        let worker = Worker::spawn(command)?;
        self.delays.add(worker.pid());
        Ok(Place { index, worker, number })
    }

    /// The faults of one worker and its link.
    async fn torment_worker(
        self: Arc<Self>,
        mut place: Place,
        row: Vec<Planned>,
        started: Instant,
    ) -> Result<Place, Error> {
        for planned in row {
            until(started, planned.at_ms).await;
            if place.worker.wait_exit(Duration::ZERO).await.is_ok() {
                self.fell(&place);
                place = self.place(place.index)?;
            }
            let number = self.begin(planned.kind, place.number);
            let done = match planned.kind {
                Kind::WorkerKill => {
                    // Until here it may have acted on a lease.
                    let before = now();
                    let status = place.worker.kill()?;
                    if status.signal() != Some(Signal::KILL.as_raw()) {
                        self.fell(&place);
                    }
                    self.recorder.record_at(before, 0, What::Ended { target: place.number });
                    tokio::time::sleep(Duration::from_millis(planned.lasts_ms)).await;
                    place = self.place(place.index)?;
                    Ok(())
                }
                kind if LINK.iter().any(|(link, _)| *link == kind) => {
                    strike::link(&self.store.links[place.index], &planned).await
                }
                _ => strike::worker(&mut place.worker, &self.store, &planned).await,
            };
            self.finish(number, planned.kind, done);
        }
        Ok(place)
    }

    /// Writes down that a worker ended by itself in the middle of the run.
    fn fell(&self, place: &Place) {
        let (target, said) = (place.number, said_by(place));
        self.recorder.record(0, What::Stuck { target, said });
        self.recorder.record(0, What::Ended { target });
    }

    async fn torment_store(&self, row: Vec<Planned>, started: Instant) {
        for planned in row {
            until(started, planned.at_ms).await;
            let number = self.begin(planned.kind, RUN);
            let done = strike::store(&self.store, &planned).await;
            if done.is_err() {
                // A server that did not come back in time is started again at the end too.
                let _later = self.store.heal().await;
            }
            self.finish(number, planned.kind, done);
        }
    }

    fn begin(&self, kind: Kind, target: u32) -> u32 {
        self.begin_at(now(), kind.name(), target, self.setup.forgets_by(kind))
    }

    fn begin_at(&self, at: u64, kind: &str, target: u32, forgets: bool) -> u32 {
        let number = self.faults.fetch_add(1, Ordering::SeqCst) + 1;
        let kind = kind.to_owned();
        self.recorder.record_at(at, 0, What::Fault { number, kind, target, forgets });
        number
    }

    /// Writes down that the sentinels chose another master, also when no fault made them: they take
    /// a busy machine for a dead one.
    async fn watch_masters(self: Arc<Self>) {
        let Servers::Sentinel(group) = &self.store.servers else { return };
        let mut last = None;
        loop {
            let port = group.current_master().map(|master| master.port()).ok();
            if port.is_some() && last.is_some() && port != last {
                let since = now().saturating_sub(NOTICED_AFTER);
                let number = self.begin_at(since, MASTER_CHANGED, RUN, true);
                self.recorder.record(0, What::Healed { number });
            }
            last = port.or(last);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn finish(&self, number: u32, kind: Kind, done: Result<(), strike::Missed>) {
        self.recorder.record(0, What::Healed { number });
        if let Err(missed) = done {
            let (kind, why) = (kind.name().to_owned(), missed.to_string());
            self.recorder.record(0, What::Skipped { kind, why });
        }
    }

    /// Asks the workers to end, and kills those that do not.
    async fn end(&self, mut places: Vec<Place>) {
        self.recorder.record(0, What::Stops);
        for place in &mut places {
            place.worker.close_input();
        }
        let terms = self.terms();
        // All of them may wait for the name that stays closed.
        let closed = (ms(CLOSED_MS) + terms.opens_late) * WORKERS as u64 * u64::from(TASKS);
        let limit = Duration::from_nanos(terms.progress + closed);
        let limit = self.limit(limit);
        let mut are_written = false;
        for mut place in places {
            let mut ended = place.worker.wait_exit(LOOK_EVERY).await;
            while ended.is_err() && !limit.is_over() {
                ended = place.worker.wait_exit(LOOK_EVERY).await;
            }
            let target = place.number;
            if !ended.is_ok_and(|status| status.success()) {
                if !are_written {
                    // With a worker that is killed its claims go.
                    self.write_lines().await;
                    are_written = true;
                }
                let said = said_by(&place);
                self.recorder.record(0, What::Stuck { target, said });
            }
            self.recorder.record(0, What::Ended { target });
        }
    }

    /// Writes down what the store has of each name. A store that cannot be read says nothing.
    async fn write_lines(&self) {
        let read = async {
            let client = leasehold::connect(&self.store.url).await?;
            client.admin().inspect(&Query::all()).await
        };
        let Ok(Ok(page)) = tokio::time::timeout(LINES_MAX, read).await else { return };
        for line in page.lines {
            let name = line.name.as_str().to_owned();
            let [held, waiting] = [line.held, line.waiting]
                .map(|claims| claims.iter().take(CLAIMS_MAX).map(in_words).collect());
            self.recorder.record(0, What::Line { name, held, waiting });
        }
    }

    /// Nobody uses the store any more: everything in it ends by itself in time.
    async fn look_for_rests(&self) -> Result<(), Error> {
        let client = leasehold::connect(&self.store.url).await?;
        let longest = self.setup.ttls_ms.iter().chain(&self.setup.visit_ttl_ms).max();
        let ends = forgotten_after(ms(longest.copied().unwrap_or_default())) * 2;
        let ends = Duration::from_nanos(ends);
        let limit = self.limit(ends);
        loop {
            match client.admin().inspect(&Query::all()).await {
                Ok(page) if page.lines.is_empty() => break,
                Ok(page) if limit.is_over() => {
                    for line in page.lines {
                        let (held, waiting) = (line.held.len(), line.waiting.len());
                        let name = line.name.as_str().to_owned();
                        self.recorder.record(0, What::Left { name, held, waiting });
                    }
                    break;
                }
                Err(error) if limit.is_over() || !error.is_transient() => return Err(error.into()),
                Ok(_) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
        client.close().await?;
        self.look_at_the_store(self.limit(ends.max(RESTS_END))).await;
        Ok(())
    }

    /// The entries that the store's own tools show must end as well.
    async fn look_at_the_store(&self, limit: Limit<'_>) {
        loop {
            let found = rests::find(&self.store).await;
            let found = found.unwrap_or_else(|error| vec![format!("no answer: {error}")]);
            if found.is_empty() {
                return;
            }
            if limit.is_over() {
                for found in found.into_iter().take(RESTS_MAX) {
                    self.recorder.record(0, What::Rest { found });
                }
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn said_by(place: &Place) -> String {
    place.worker.stderr().chars().take(SAID_MAX).collect()
}

/// A claim as the store shows it. No worker knows the fence of a claim that nobody owns.
fn in_words(claim: &ClaimView) -> String {
    let (mode, fence, label) = (claim.mode, claim.fence, claim.holder.label());
    let (age, left) = (claim.age.as_millis(), claim.remaining.as_millis());
    format!("{mode:?} of {label} with fence {fence}, {age} ms old, {left} ms left")
}

/// Waits until so many milliseconds after the start.
async fn until(started: Instant, at_ms: u64) {
    tokio::time::sleep(Duration::from_millis(at_ms).saturating_sub(started.elapsed())).await;
}
