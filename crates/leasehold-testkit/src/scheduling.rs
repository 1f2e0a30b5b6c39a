//! How long the machine keeps a thread waiting that is ready to run.
//!
//! A test that must bound a time adds this delay, measured while the test runs, to what the
//! protocol allows. So it passes on a busy machine, and fails only when the library is late.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the measuring thread sleeps at a time.
const TICK: Duration = Duration::from_millis(5);

/// Measures the delay until it is dropped.
#[derive(Debug)]
pub struct SchedulerDelay {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    worst_ns: AtomicU64,
    /// When the thread is due to run next.
    due: Mutex<Instant>,
    is_over: AtomicBool,
}

impl SchedulerDelay {
    /// Starts to measure.
    pub fn watch() -> Self {
        let shared = Arc::new(Shared {
            worst_ns: AtomicU64::new(0),
            due: Mutex::new(Instant::now()),
            is_over: AtomicBool::new(false),
        });
        let measured = Arc::clone(&shared);
        std::thread::spawn(move || {
            while !measured.is_over.load(Ordering::Relaxed) {
                measured.note();
                *measured.due.lock().unwrap_or_else(PoisonError::into_inner) =
                    Instant::now() + TICK;
                std::thread::sleep(TICK);
            }
        });
        Self { shared }
    }

    /// The longest delay until now, including that of a thread that still waits.
    pub fn worst(&self) -> Duration {
        self.shared.note();
        Duration::from_nanos(self.shared.worst_ns.load(Ordering::Relaxed))
    }

    /// A bound for work that may take `span` by the protocol and waits for a processor at most
    /// `times` times.
    pub fn bound(&self, span: Duration, times: u32) -> Duration {
        span + self.worst() * times
    }
}

impl Shared {
    fn note(&self) {
        let due = *self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let late = Instant::now().saturating_duration_since(due);
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.worst_ns.fetch_max(nanos, Ordering::Relaxed);
    }
}

impl Drop for SchedulerDelay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_of_a_thread_that_still_waits_is_counted() {
        let delay = SchedulerDelay::watch();
        let late = Duration::from_secs(3);
        // As if the thread had been due three seconds ago.
        delay.shared.is_over.store(true, Ordering::Relaxed);
        *delay.shared.due.lock().expect("nobody panicked") =
            Instant::now().checked_sub(late).expect("the machine runs for longer");
        assert!(delay.worst() >= late);
        assert!(delay.bound(TICK, 2) >= TICK + late * 2);
    }
}
