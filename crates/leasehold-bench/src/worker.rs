//! A worker process of a scenario: this program, started with other arguments.
//!
//! A worker speaks over its standard input and output. It prints `ready`, reads orders, and prints
//! its results. It writes nothing while it measures. `contest.rs` starts workers and reads them.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, Lease, Mutex, UnlessHeld};
use rustix::fs::FlockOperation;
use tokio::runtime::Runtime;

use crate::Result;
use crate::machine::{self, now, own_cpu};
use crate::raw;
use crate::raw::postgres::Session;
use crate::raw::relay::Relay;
use crate::scenarios::PROCESSES;
use crate::work::Work;

/// The first argument of a worker.
pub(crate) const ARGUMENT: &str = "worker";

/// The name that all workers of a contest want.
pub(crate) const NAME: &str = "bench";

/// The rival's pause between two tries.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Room for the grants of one round, so that the list does not grow during the measurement. It is
/// never full: a holder holds for microseconds at least, and a round takes less than a second.
const GRANTS_ROOM: usize = 20_000;

/// How a worker passes the time with the lock, and for how long.
type Hold = (Work, Duration);

/// How a worker gets the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It waits in the line of a store.
    Line,
    /// It asks a store every 10 ms.
    Poll,
    /// It waits in `flock(2)` on a file.
    Flock,
    /// It waits in `pg_advisory_lock`, on a session of its own.
    Advisory,
    /// The worker before it in a fixed order passes the lock to it.
    Relay,
}

impl Way {
    const ALL: [Way; 5] = [Way::Line, Way::Poll, Way::Flock, Way::Advisory, Way::Relay];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Way::Line => "line",
            Way::Poll => "poll",
            Way::Flock => "flock",
            Way::Advisory => "advisory",
            Way::Relay => "relay",
        }
    }
}

/// Runs the task that the arguments after [`ARGUMENT`] name.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["contend", way, target, work, hold_ns, tasks] => {
            let hold = (Work::of(work)?, Duration::from_nanos(hold_ns.parse()?));
            contend(way_of(way)?, target, hold, tasks.parse()?)
        }
        ["queue", url, tasks] => queue(url, tasks.parse()?),
        ["listen", kind, url] => listen(kind, url),
        ["wait", way, target] => wait(way_of(way)?, target),
        ["keep", url, count, seconds] => {
            keep(url, count.parse()?, Duration::from_secs(seconds.parse()?))
        }
        _ => Err(format!("a worker cannot do `{}`", words.join(" ")).into()),
    }
}

fn way_of(word: &str) -> Result<Way> {
    let way = Way::ALL.into_iter().find(|way| way.word() == word);
    way.ok_or_else(|| format!("no way to a lock is called `{word}`").into())
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

tokio::task_local! {
    /// When the claim of this task joined the line.
    static QUEUED: Cell<u64>;
}

/// Remembers when a task's claim joined the line.
#[derive(Debug)]
struct Queued;

impl Observer for Queued {
    fn observe(&self, measure: &Measure<'_>) {
        if matches!(measure, Measure::WaitBegan { .. }) {
            // The waiting task calls this. A call from elsewhere fails and does not count.
            let _elsewhere = QUEUED.try_with(|queued| queued.set(now()));
        }
    }
}

/// A lock of any [`Way`].
enum Lock {
    Store {
        mutex: Mutex,
        poll: bool,
    },
    File(File),
    /// The sessions that no task uses.
    Sessions(RefCell<Vec<Session>>),
    /// The task numbers that no task uses.
    Relay(Box<Relay>, RefCell<Vec<usize>>),
}

/// A lock that is held.
enum Held {
    Lease(Lease),
    File,
    Session(Session),
    Turn(usize),
}

impl Lock {
    /// Opens the lock for `tasks` tasks.
    async fn open(way: Way, target: &str, tasks: usize) -> Result<Self> {
        if way == Way::Advisory {
            let sessions = try_join_all((0..tasks).map(|_| Session::open(target))).await?;
            return Ok(Lock::Sessions(RefCell::new(sessions)));
        }
        if way == Way::Relay {
            let relay = Relay::open(target, PROCESSES, tasks).await?;
            return Ok(Lock::Relay(Box::new(relay), RefCell::new((0..tasks).collect())));
        }
        if way == Way::Flock {
            return Ok(Lock::File(File::create(target)?));
        }
        let client = Client::builder().observer(Queued).connect(target).await?;
        Ok(Lock::Store { mutex: client.mutex(NAME), poll: way == Way::Poll })
    }

    /// Waits for the lock. Also returns since when the worker knew that it has to wait.
    async fn take(&self) -> Result<(Held, Option<u64>)> {
        match self {
            Lock::Store { mutex, poll: false } => {
                let lease = mutex.lock().await?;
                let queued = QUEUED.with(Cell::take);
                Ok((Held::Lease(lease), (queued > 0).then_some(queued)))
            }
            Lock::Store { mutex, poll: true } => {
                let mut queued = None;
                loop {
                    if let Some(lease) = mutex.try_lock().await.unless_held()? {
                        return Ok((Held::Lease(lease), queued));
                    }
                    queued.get_or_insert_with(now);
                    tokio::time::sleep(POLL_EVERY).await;
                }
            }
            Lock::File(file) => {
                if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    return Ok((Held::File, None));
                }
                let queued = now();
                rustix::fs::flock(file, FlockOperation::LockExclusive)?;
                Ok((Held::File, Some(queued)))
            }
            Lock::Sessions(free) => {
                let session = free.borrow_mut().pop().ok_or("more tasks than sessions")?;
                // The server does not report whether the session had to wait.
                let queued = now();
                session.lock().await?;
                Ok((Held::Session(session), Some(queued)))
            }
            Lock::Relay(relay, free) => {
                let task = free.borrow_mut().pop().ok_or("more tasks than turns")?;
                let queued = now();
                relay.take(task).await;
                Ok((Held::Turn(task), Some(queued)))
            }
        }
    }

    async fn give_back(&self, held: Held) -> Result<()> {
        match (self, held) {
            (Lock::File(file), _) => rustix::fs::flock(file, FlockOperation::Unlock)?,
            (Lock::Store { .. }, Held::Lease(lease)) => drop(lease.release().await?),
            (Lock::Sessions(free), Held::Session(session)) => {
                session.unlock().await?;
                free.borrow_mut().push(session);
            }
            (Lock::Relay(relay, free), Held::Turn(task)) => {
                relay.pass(task).await?;
                free.borrow_mut().push(task);
            }
            (Lock::Store { .. } | Lock::Sessions(_) | Lock::Relay(..), _) => {}
        }
        Ok(())
    }
}

/// Takes the lock again and again between two instants that the parent names, in `tasks` tasks of
/// one thread.
fn contend(way: Way, target: &str, hold: Hold, tasks: usize) -> Result<()> {
    runtime()?.block_on(async {
        let lock = Lock::open(way, target, tasks).await?;
        let (start, stop) = rendezvous()?;
        std::thread::sleep(Duration::from_nanos(start.saturating_sub(now())));
        let cpu = own_cpu();
        let contending =
            (0..tasks).map(|_| QUEUED.scope(Cell::default(), grants(&lock, hold, stop)));
        let seen = try_join_all(contending).await?;
        let cycles: usize = seen.iter().map(|(_, cycles)| cycles).sum();
        let mut text = format!("{} {cycles}\n", (own_cpu() - cpu).as_nanos());
        for (task, (seen, _)) in seen.into_iter().enumerate() {
            for [order, queued, granted, released] in seen {
                writeln!(text, "{task} {order} {queued} {granted} {released}")?;
            }
        }
        io::stdout().write_all(text.as_bytes())?;
        Ok(())
    })
}

/// The grants of one task until `stop`: order, queued, granted, released of each. Also returns how
/// often it had the lock, which includes a last time after `stop`.
async fn grants(lock: &Lock, (work, hold): Hold, stop: u64) -> Result<(Vec<[u64; 4]>, usize)> {
    let (mut seen, mut cycles) = (Vec::with_capacity(GRANTS_ROOM), 0);
    while now() < stop {
        let (held, queued) = lock.take().await?;
        let granted = now();
        let order = match &held {
            Held::Lease(lease) => lease.fence().as_u64(),
            Held::File | Held::Session(_) | Held::Turn(_) => granted,
        };
        work.run(hold).await?;
        let released = now();
        lock.give_back(held).await?;
        cycles += 1;
        if granted < stop {
            seen.push([order, queued.unwrap_or(0), granted, released.min(stop)]);
        }
    }
    Ok((seen, cycles))
}

/// Takes the lock once in each of `tasks` tasks, gives it back at once, and prints when the last
/// of them had it.
fn queue(url: &str, tasks: usize) -> Result<()> {
    runtime()?.block_on(async {
        let client = leasehold::connect(url).await?;
        let mutex = client.mutex(NAME);
        println!("ready");
        let once = || async {
            let lease = mutex.lock().await?;
            let granted = now();
            lease.release().await?;
            Ok::<u64, leasehold::Error>(granted)
        };
        let granted = try_join_all((0..tasks).map(|_| once())).await?;
        println!("{}", granted.into_iter().max().unwrap_or(0));
        Ok(())
    })
}

/// Listens at a store until the word that ends it, and prints when each word came.
fn listen(kind: &str, url: &str) -> Result<()> {
    let came = runtime()?.block_on(raw::listen(kind, url))?;
    let mut text = String::new();
    for at in came {
        writeln!(text, "{at}")?;
    }
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Prints that it is ready, and reads when to start and to stop.
fn rendezvous() -> Result<(u64, u64)> {
    println!("ready");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let (start, stop) = line.trim().split_once(' ').ok_or("the parent is gone")?;
    Ok((start.parse()?, stop.parse()?))
}

/// Waits for a lock that it never gets, until the parent kills it.
fn wait(way: Way, target: &str) -> Result<()> {
    runtime()?.block_on(async {
        let lock = Lock::open(way, target, 1).await?;
        println!("ready");
        let (held, _) = QUEUED.scope(Cell::default(), lock.take()).await?;
        lock.give_back(held).await
    })
}

/// Holds many leases for a while, and prints the cost, one number a line.
fn keep(url: &str, count: usize, span: Duration) -> Result<()> {
    runtime()?.block_on(async {
        let client = leasehold::connect(url).await?;
        let mut leases = Vec::with_capacity(count);
        // The first lease also pays for threads, connections and tables.
        leases.push(client.mutex("keep:first").lock().await?);
        let memory_before = machine::own_memory()?;
        for number in 1..count {
            leases.push(client.mutex(format!("keep:{number:05}")).lock().await?);
        }
        let memory_taken = machine::own_memory()?;
        println!("ready");
        let cpu = own_cpu();
        tokio::time::sleep(span).await;
        let cpu = (own_cpu() - cpu).as_nanos();
        let memory = machine::own_memory()?;
        let threads = machine::own_threads()?.join(", ");
        let lost = leases.iter().filter(|lease| !lease.is_held()).count();
        let grown = memory_taken.saturating_sub(memory_before);
        let grown_later = memory.saturating_sub(memory_before);
        println!("{cpu}\n{grown}\n{grown_later}\n{lost}\n{threads}");
        client.close().await?;
        Ok(())
    })
}
