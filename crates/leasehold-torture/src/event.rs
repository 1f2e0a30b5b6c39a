//! One line of a history: who saw what at which instant.
//!
//! A line is one JSON object, so that a history can be read with `jq`. All instants are nanoseconds
//! of the machine's boot clock. Every process of a run reads the same one, so that their order is
//! exact, and it is the clock on which the library counts its deadlines.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use leasehold::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

/// An instant of the boot clock, in nanoseconds.
pub type Instant = u64;

/// The number that stands for the run itself where a worker's is expected.
pub const RUN: u32 = 0;

/// How an attempt asks that takes several names together. It may have one while it waits for
/// another.
pub const SEVERAL: &str = "several";

/// The kind of a fault that no run makes: the sentinels chose another master by themselves.
pub const MASTER_CHANGED: &str = "master-changed";

/// Reads the clock.
pub fn now() -> Instant {
    SystemClock.now().as_nanos()
}

/// So many nanoseconds.
pub const fn ms(count: u64) -> Instant {
    count * 1_000_000
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// The worker, counted from 1, or [`RUN`].
    pub worker: u32,
    /// Which of the worker's attempts; 0 if it is about none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a claim asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// Nobody beside it.
    Exclusive,
    /// The leadership of an election: nobody beside it either.
    Leader,
    /// Readers beside it.
    Shared,
    /// Some of a number of permits.
    Permits {
        /// How many.
        take: u32,
        /// Of how many.
        of: u32,
    },
    /// A unit of a rate.
    Unit {
        /// So many in a period.
        units: u32,
        /// The period, in milliseconds.
        period_ms: u64,
    },
    /// A run, once in a period.
    Once {
        /// The period, in milliseconds.
        period_ms: u64,
    },
}

impl Want {
    /// Whether it is a lock that only one has at a time.
    pub fn is_mutex(self) -> bool {
        matches!(self, Want::Exclusive | Want::Leader)
    }

    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Want::Exclusive => "exclusive",
            Want::Leader => "leader",
            Want::Shared => "shared",
            Want::Permits { .. } => "permit",
            Want::Unit { .. } => "unit",
            Want::Once { .. } => "run",
        }
    }
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A worker runs.
    Started,
    /// A worker has closed its client and ends.
    Closed,
    /// Threads of the worker did not run since this instant, or its heartbeats were not answered,
    /// so its claims may have lost places.
    Stalled {
        /// Since when.
        since: Instant,
    },
    /// An attempt begins.
    Asks {
        /// The name.
        name: String,
        /// As what.
        want: Want,
        /// The ttl in milliseconds.
        ttl_ms: u64,
        /// How it asks: `lock`, `within`, `try`, `cancelled`, or `several` names together.
        how: String,
        /// If the name must stay closed for so long after the grant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed_ms: Option<u64>,
    },
    /// The store answered that the claim stands in line.
    Queued,
    /// The claim holds.
    Granted {
        /// Its number.
        fence: u64,
        /// Its safe end.
        until: Instant,
    },
    /// The lease said that it is held.
    Held {
        /// Its safe end.
        until: Instant,
    },
    /// The lease said that it is lost.
    Lost {
        /// Why.
        cause: String,
    },
    /// The lease becomes a handle.
    Detached,
    /// The handle was taken up.
    Adopted {
        /// The safe end.
        until: Instant,
    },
    /// The lease is given back; the answer is not there yet.
    Releases,
    /// The store answered that it was given back.
    Released {
        /// `released`, `expired`, `taken`, `dropped`.
        answer: String,
    },
    /// The attempt ends without a lease, as it may.
    Refused,
    /// A call failed.
    Failed {
        /// Which call.
        call: String,
        /// The kind of error, as the library names it.
        kind: String,
        /// Its message.
        text: String,
    },
    /// A handle was used after its lease was given back, or a lease after it was lost.
    Stale {
        /// Which call.
        call: String,
        /// Whether the store took it for a lease that holds.
        worked: bool,
    },
    /// The register refused an access of this attempt.
    Turned {
        /// With which fence.
        fence: u64,
        /// The greatest that the register has seen.
        seen: u64,
    },
    /// The register's own record of an access.
    Access {
        /// The name.
        name: String,
        /// Who asked: the worker.
        by: u32,
        /// Who asked: its attempt.
        of: u64,
        /// The fence.
        fence: u64,
        /// Whether it was let in.
        accepted: bool,
        /// What was written; reads have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wrote: Option<u64>,
    },
    /// A thread of the run was ready, and waited for a processor.
    Delayed {
        /// From when on it was looked.
        since: Instant,
        /// How long it waited of the time since then.
        by: Instant,
    },
    /// A fault begins.
    Fault {
        /// Its number.
        number: u32,
        /// Its kind.
        kind: String,
        /// The worker it is about; [`RUN`] if it is about all.
        target: u32,
        /// Whether the store may forget leases, or end them early, by it.
        forgets: bool,
    },
    /// A fault is over.
    Healed {
        /// Its number.
        number: u32,
    },
    /// A fault could not be made, or not as it should be.
    Skipped {
        /// Its kind.
        kind: String,
        /// Why.
        why: String,
    },
    /// An observer of the election sees a leader.
    Leads {
        /// The term.
        term: u64,
    },
    /// A worker has ended, by a kill or by itself.
    Ended {
        /// Which.
        target: u32,
    },
    /// All faults are over for good.
    Calm,
    /// The workers are asked to end.
    Stops,
    /// A worker did not end in time.
    Stuck {
        /// Which.
        target: u32,
        /// What it said last.
        said: String,
    },
    /// Something is in the store after everybody has ended, as its own tools show it.
    Rest {
        /// What.
        found: String,
    },
    /// The line of a name in the store while a worker does not end.
    Line {
        /// The name.
        name: String,
        /// The claims that hold, in order.
        held: Vec<String>,
        /// The claims that wait, in order.
        waiting: Vec<String>,
    },
    /// Claims are left in the store after everybody has ended.
    Left {
        /// The name.
        name: String,
        /// How many hold.
        held: usize,
        /// How many wait.
        waiting: usize,
    },
}

/// A file to which one process adds events.
///
/// Each event is written by one call of the system, so that a process that is killed loses none.
#[derive(Debug)]
pub struct Recorder {
    worker: u32,
    file: Mutex<File>,
}

impl Recorder {
    /// Opens the file, and keeps what is in it.
    pub fn open(path: &Path, worker: u32) -> io::Result<Recorder> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Recorder { worker, file: Mutex::new(file) })
    }

    /// Writes an event that happens now.
    pub fn record(&self, attempt: u64, what: What) {
        self.record_at(now(), attempt, what);
    }

    /// Writes an event that happened at an instant that the caller has read.
    ///
    /// Ends the process when the file cannot be written: a history with holes proves nothing.
    pub fn record_at(&self, at: Instant, attempt: u64, what: What) {
        let event = Event { at, worker: self.worker, attempt, what };
        let mut line = serde_json::to_vec(&event).expect("an event is plain data");
        line.push(b'\n');
        let mut file = self.file.lock().expect("no thread panics while it writes");
        if let Err(error) = file.write_all(&line) {
            eprintln!("torture: cannot write the history: {error}");
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_reads_back_as_it_was_written() {
        let want = Want::Permits { take: 1, of: 3 };
        let (name, how) = ("a".to_owned(), "lock".to_owned());
        let what = What::Asks { name, want, ttl_ms: 2_000, how, closed_ms: None };
        let event = Event { at: 7, worker: 2, attempt: 3, what };
        let line = serde_json::to_string(&event).expect("plain data");
        assert_eq!(serde_json::from_str::<Event>(&line).expect("the same"), event);
        assert!(line.starts_with(r#"{"at":7,"worker":2,"attempt":3,"what":"asks""#), "{line}");
    }
}
