//! How long the machine keeps the threads of a run waiting that are ready to run.
//!
//! A bound on time that a check has is a bound on what the library takes. On a busy machine the
//! scheduler takes its time beside that. Linux counts that time for each thread. The run looks at
//! it twice a second and writes it down, and the checks take it off.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::event::{Instant, Recorder, What, ms, now};

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Less is not worth a line of the history.
const DELAY_MIN: Instant = ms(20);

/// The delays of the processes of a run.
#[derive(Debug, Default)]
pub struct Delays {
    /// The processes that count.
    processes: Mutex<Vec<u32>>,
    /// The sum so far, in nanoseconds.
    sum: AtomicU64,
}

impl Delays {
    /// Counts the delays of this process too from now on.
    pub fn add(&self, process: u32) {
        self.processes.lock().expect("nothing panics under the lock").push(process);
    }

    /// The sum of all delays so far: in each span that of the thread that was delayed most.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Ordering::SeqCst))
    }

    /// Writes the delays down until it is dropped.
    pub async fn watch(&self, recorder: &Recorder) {
        let mut last = (now(), self.read());
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (since, before) = last;
            last = (now(), self.read());
            let (at, present) = &last;
            let most = present.iter().map(|(thread, delay)| {
                delay.saturating_sub(before.get(thread).copied().unwrap_or_default())
            });
            let by = most.max().unwrap_or_default().min(at - since);
            if by >= DELAY_MIN {
                self.sum.fetch_add(by, Ordering::SeqCst);
                recorder.record_at(*at, 0, What::Delayed { since, by });
            }
        }
    }

    /// The delay of each thread since it began. A process that has ended has none.
    fn read(&self) -> HashMap<String, Instant> {
        let processes = self.processes.lock().expect("nothing panics under the lock").clone();
        let folders = processes.iter().map(|process| format!("/proc/{process}/task"));
        let threads = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let delays = threads.filter_map(|thread| {
            let file = thread.path().join("schedstat");
            let text = fs::read_to_string(&file).ok()?;
            let delay = text.split(' ').nth(1)?.parse().ok()?;
            Some((file.to_string_lossy().into_owned(), delay))
        });
        delays.collect()
    }
}
