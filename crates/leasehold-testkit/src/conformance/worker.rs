//! A process of its own that holds or waits for a name, so that crash cases kill a real one.
//!
//! It takes orders on standard input, a line each, and answers on standard output:
//! `claim NAME MODE TTL_MS` is answered by `held FENCE` when it is granted, `state` by
//! `state STATE`, `release` by `released OUTCOME` and `detach` by `handle TEXT`. It closes its
//! client and ends with its standard input.

use std::env;
use std::io::Write;
use std::time::Duration;

use leasehold::claim::Mode;
use leasehold::{Client, Lease, connect};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::support::Failure;

/// Set for a worker only: the address of its store.
pub(super) const URL_VARIABLE: &str = "LEASEHOLD_WORKER_URL";

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
    while let Some(order) = orders.recv().await {
        let words: Vec<&str> = order.split(' ').collect();
        match (words.as_slice(), held.take()) {
            (["claim", name, mode, ttl], _) => {
                let lease = acquire(&client, name, mode, ttl).await?;
                say(&format!("held {}", lease.fence()));
                held = Some(lease);
            }
            (["state"], Some(lease)) => {
                say(&format!("state {:?}", lease.state()));
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

async fn acquire(client: &Client, name: &str, mode: &str, ttl: &str) -> Result<Lease, Failure> {
    let mode = match mode.split(':').collect::<Vec<_>>().as_slice() {
        ["exclusive"] => Mode::Exclusive,
        ["shared"] => Mode::Shared,
        ["permits", take, of] => Mode::Permits { take: take.parse()?, of: of.parse()? },
        _ => return Err(Failure::new(format!("no such mode: {mode}"))),
    };
    let ttl = Duration::from_millis(ttl.parse()?);
    Ok(client.claim(name).mode(mode).ttl(ttl).acquire().await?)
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Without a reader the parent is gone, and so is this process in a moment.
    let _unheard = writeln!(output, "{line}").and_then(|()| output.flush());
}
