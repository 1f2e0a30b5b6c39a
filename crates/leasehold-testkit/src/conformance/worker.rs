//! A process of its own that holds or waits for a name, so that crash cases kill a real one.
//!
//! It takes orders on standard input, one in each line, and answers on standard output:
//!
//! - `claim NAME MODE TTL_MS` is answered by `held FENCE` when it is granted.
//! - `state` is answered by `state STATE`, `release` by `released OUTCOME`, `detach` by
//!   `handle TEXT`.
//! - `fork` is answered by `forked STATUS`. A forked child uses and drops its copy of the lease;
//!   the answer comes when it has ended. Its status is 0 if all was as it should be.
//!
//! The worker closes its client and ends when its standard input ends.
//!
//! `crowd NAME TASKS TTL_MS` lets that many tasks take a name in turns. The worker writes a line
//! `grant` when a lease has ended. After `last` each task ends when it was granted once more. The
//! worker writes `over` when all have ended.

use std::env;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::claim::Mode;
use leasehold::{Client, Error, Lease, LeaseState, LostCause, Request, connect};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

use super::grants::Holding;
use super::support::Failure;
use crate::fork;

/// Set for a worker only: the address of its store.
pub(super) const URL_VARIABLE: &str = "LEASEHOLD_WORKER_URL";

/// How long each of many tasks keeps its lease. Long enough for a second holder to be seen.
const HOLD: Duration = Duration::from_millis(50);

/// Turns this process into a worker, and does not come back, if a case started it as one.
pub fn run_if_asked() {
    let Ok(url) = env::var(URL_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a worker can start a runtime");
    let worked = runtime.block_on(work(&url, orders()));
    if let Err(failure) = worked {
        eprintln!("worker: {failure}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Reads orders on a thread of its own; the end of input ends the receiver.
fn orders() -> UnboundedReceiver<String> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for order in std::io::stdin().lines() {
            let Ok(order) = order else { return };
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    orders
}

async fn work(url: &str, mut orders: UnboundedReceiver<String>) -> Result<(), Failure> {
    let client = connect(url).await?;
    let mut held: Option<Lease> = None;
    let (mut crowd, last) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        match (words.as_slice(), held.take()) {
            (["claim", name, mode, ttl], _) => {
                let lease = acquire(&client, name, mode, ttl).await?;
                say(&format!("held {}", lease.fence()));
                held = Some(lease);
            }
            (["crowd", name, tasks, ttl], None) => {
                for _ in 0..tasks.parse::<usize>()? {
                    let request = client.request(name).ttl(Duration::from_millis(ttl.parse()?));
                    crowd.spawn(take_turns(request, Arc::clone(&last)));
                }
            }
            (["last"], None) => {
                last.store(true, Ordering::SeqCst);
                while let Some(ended) = crowd.join_next().await {
                    ended??;
                }
                say("over");
            }
            (["state"], Some(lease)) => {
                say(&format!("state {:?}", lease.state()));
                held = Some(lease);
            }
            (["fork"], Some(lease)) => {
                let copy = (client.clone(), lease);
                let ((_, lease), status) = fork::in_child(copy, |(client, lease)| {
                    child_of_a_fork(client, lease).map_or_else(
                        |wrong| {
                            eprintln!("child of a fork: {wrong}");
                            1
                        },
                        |()| 0,
                    )
                })?;
                say(&format!("forked {}", status.unwrap_or(-1)));
                held = Some(lease);
            }
            (["detach"], Some(lease)) => {
                say(&format!("handle {}", lease.detach().await?));
            }
            (["release"], Some(lease)) => {
                say(&format!("released {:?}", lease.release().await?));
            }
            _ => return Err(Failure::new(format!("no such order now: {order}"))),
        }
    }
    Ok(client.close().await?)
}

/// Checks the copies in a forked child. Every answer must come at once: anything that could answer
/// later runs in the parent.
fn child_of_a_fork(client: Client, lease: Lease) -> Result<(), &'static str> {
    let check = |holds: bool, wrong| if holds { Ok(()) } else { Err(wrong) };
    check(lease.state() == LeaseState::Lost && !lease.is_held(), "the lease is held")?;
    check(lease.time_left().is_zero(), "the lease has time left")?;
    check(lease.lost().now_or_never() == Some(LostCause::Forked), "the cause of the loss")?;
    let forked = |answer: Option<Result<(), Error>>| matches!(answer, Some(Err(Error::Forked)));
    let extended = lease.extend(Duration::from_secs(1)).now_or_never();
    check(forked(extended), "extend")?;
    let noted = lease.set_note("child").now_or_never();
    check(forked(noted), "set_note")?;
    let mutex = client.mutex("fork:other");
    check(forked(mutex.lock().now_or_never().map(|answer| answer.map(drop))), "lock")?;
    let tried = mutex.try_lock().now_or_never();
    check(forked(tried.map(|answer| answer.map(drop).map_err(Error::from))), "try_lock")?;
    let name = lease.name().clone();
    let shown = client.line(&name).now_or_never();
    check(forked(shown.map(|answer| answer.map(drop))), "show")?;
    let handle = lease.handle();
    let released = client.release(&handle).now_or_never();
    check(forked(released.map(|answer| answer.map(drop))), "release by handle")?;
    let all = client.release_all().now_or_never();
    check(forked(all.map(|answer| answer.map(drop))), "release_all")?;
    check(forked(client.close().now_or_never()), "close")?;
    drop(lease);
    drop(client);
    Ok(())
}

async fn acquire(client: &Client, name: &str, mode: &str, ttl: &str) -> Result<Lease, Failure> {
    let mode = match mode.split(':').collect::<Vec<_>>().as_slice() {
        ["exclusive"] => Mode::Exclusive,
        ["shared"] => Mode::Shared,
        ["permits", take, of] => Mode::Permits { take: take.parse()?, of: of.parse()? },
        _ => return Err(Failure::new(format!("no such mode: {mode}"))),
    };
    let ttl = Duration::from_millis(ttl.parse()?);
    Ok(client.request(name).mode(mode).ttl(ttl).acquire().await?)
}

/// Takes the name and gives it back until it was granted for the last time.
async fn take_turns(request: Request, last: Arc<AtomicBool>) -> Result<(), Failure> {
    loop {
        let holding = Holding::take(&request).await?;
        holding.keep(HOLD).await;
        let (grant, released) = holding.give_back().await;
        say(&format!("grant {grant}"));
        if let Err(error) = released
            && !error.is_transient()
        {
            return Err(error.into());
        }
        if last.load(Ordering::SeqCst) {
            return Ok(());
        }
    }
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Without a reader the parent is gone, and so is this process in a moment.
    let _unheard = writeln!(output, "{line}").and_then(|()| output.flush());
}
