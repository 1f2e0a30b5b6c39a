//! Lines on standard error while a scenario runs, which show that it does not hang.

use std::time::{Duration, Instant};

/// Short enough to be reassuring, long enough to leave a readable log.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Prints the progress of a scenario now and then.
#[derive(Debug)]
pub(crate) struct Progress {
    scenario: &'static str,
    said: Instant,
}

impl Progress {
    pub(crate) fn begin(scenario: &'static str) -> Self {
        eprintln!("bench: {scenario}");
        Self { scenario, said: Instant::now() }
    }

    /// Prints a line if it printed none for a while.
    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if self.said.elapsed() >= SAY_EVERY {
            eprintln!("bench: {}: {}", self.scenario, what());
            self.said = Instant::now();
        }
    }

    /// Sleeps, and prints now and then how much time is left.
    pub(crate) fn sleep(&mut self, span: Duration) {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.say(|| format!("{} s to go", left.as_secs()));
            std::thread::sleep(left.min(Duration::from_secs(1)));
        }
    }
}
