//! The work of a holder while it has the lock.
//!
//! The workers of a contest are tasks, several to a thread. Most such tasks wait for something
//! elsewhere, such as another server or a disk. A task that computes holds up the others of its
//! thread, and takes a core from the store. On a machine with two cores that is half of it.

use std::time::Duration;

use crate::Result;
use crate::machine::now;

/// How a holder passes the time with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The task waits, and its thread goes on with others.
    Awaited,
    /// The task keeps its thread busy.
    Computed,
}

impl Work {
    const ALL: [Work; 2] = [Work::Awaited, Work::Computed];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Work::Awaited => "awaited",
            Work::Computed => "computed",
        }
    }

    pub(crate) fn of(word: &str) -> Result<Self> {
        let work = Self::ALL.into_iter().find(|work| work.word() == word);
        work.ok_or_else(|| format!("no work is called `{word}`").into())
    }

    /// Works for `span`.
    pub(crate) async fn run(self, span: Duration) -> Result<()> {
        match self {
            // The runtime's own timers count whole milliseconds, and may take one too many.
            Work::Awaited => tokio::task::spawn_blocking(move || std::thread::sleep(span)).await?,
            Work::Computed => {
                let until = now() + span.as_nanos() as u64;
                while now() < until {
                    std::hint::spin_loop();
                }
            }
        }
        Ok(())
    }
}
