//! Measurements for the monitoring you run: an observer is one `match`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use leasehold::memory::Memory;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, Result, UnlessHeld};

/// Stands for the counters and gauges of a metrics library.
#[derive(Debug, Default)]
struct Metrics {
    waiting: AtomicI64,
    granted: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    wait_micros: AtomicU64,
    hold_micros: AtomicU64,
}

/// It is called on the path of what it measures: count, and come back.
#[derive(Debug)]
struct Meter(Arc<Metrics>);

impl Observer for Meter {
    fn observe(&self, measure: &Measure<'_>) {
        let micros = |span: &Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let metrics = &self.0;
        match measure {
            Measure::WaitBegan { .. } => {
                metrics.waiting.fetch_add(1, Relaxed);
            }
            Measure::WaitEnded { .. } => {
                metrics.waiting.fetch_sub(1, Relaxed);
            }
            Measure::Granted { waited, .. } => {
                metrics.granted.fetch_add(1, Relaxed);
                metrics.wait_micros.fetch_add(micros(waited), Relaxed);
            }
            Measure::Refused { .. } => {
                metrics.refused.fetch_add(1, Relaxed);
            }
            Measure::Released { held, .. } => {
                metrics.hold_micros.fetch_add(micros(held), Relaxed);
            }
            Measure::Lost { name, cause, .. } => {
                eprintln!("lost {name}: {cause}");
                metrics.lost.fetch_add(1, Relaxed);
            }
            Measure::ClockStep { server, by } => eprintln!("clock of {server} set {by}"),
            Measure::ClockFrozen { server, .. } => eprintln!("clock of {server} stands still"),
            Measure::MayEvict { server, policy } => eprintln!("{server} evicts: {policy}"),
            // Renewals, and whatever a later version measures.
            _ => {}
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let metrics = Arc::new(Metrics::default());
    let builder = Client::builder().observer(Meter(Arc::clone(&metrics)));
    let client = builder.engine(Memory::new())?;

    let lock = client.mutex("report");
    let first = lock.lock().await?;
    assert!(lock.try_lock().await.unless_held()?.is_none());
    let second = async {
        let lease = lock.lock().await?;
        lease.release().await
    };
    let give_back = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        println!("locks_waiting {}", metrics.waiting.load(Relaxed));
        first.release().await
    };
    tokio::try_join!(second, give_back)?;

    println!("locks_waiting {}", metrics.waiting.load(Relaxed));
    println!("locks_granted_total {}", metrics.granted.load(Relaxed));
    println!("locks_refused_total {}", metrics.refused.load(Relaxed));
    println!("locks_lost_total {}", metrics.lost.load(Relaxed));
    println!("locks_wait_microseconds_total {}", metrics.wait_micros.load(Relaxed));
    println!("locks_hold_microseconds_total {}", metrics.hold_micros.load(Relaxed));
    println!("and without an observer: {:?}", client.stats());
    client.close().await
}
