//! The scenarios: each measures something, compares it, and checks its promises.
//!
//! A new engine adds a module here and a line in [`SCENARIOS`]. It uses the present code for turns,
//! statistics and tables.

mod advisory_contend;
mod advisory_pair;
mod command_start;
mod etcd_handoff;
mod etcd_pair;
mod hand_off;
mod hand_off_table;
mod memory_handoff;
mod memory_pair;
mod pair;
mod postgres_handoff;
mod postgres_pair;
mod redis_handoff;
mod redis_line;
mod redis_pair;
mod redlock_handoff;
mod sqlite_handoff;
mod sqlite_idle_waiters;
mod sqlite_pair;
mod ten_thousand_leases;
mod zookeeper_handoff;
mod zookeeper_pair;

pub(crate) use hand_off::PROCESSES;

use crate::Result;
use crate::progress::Progress;
use crate::report::Report;
use crate::scratch::Scratch;

/// The setting that a run gives its scenarios.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Fewer rounds and shorter waits, only to check that all of it works.
    pub(crate) quick: bool,
    pub(crate) scratch: Scratch,
}

impl Setting {
    /// The first number in a quick run, else the second.
    pub(crate) fn either<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Something to measure.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Setting, &mut Progress) -> Result<Report>,
}

/// All scenarios, in the order of the page.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "memory_pair",
        about: "lock and give back in one process, nobody else wants the name",
        run: memory_pair::run,
    },
    Scenario {
        name: "memory_handoff",
        about: "from one task to the next on a runtime of two threads",
        run: memory_handoff::run,
    },
    Scenario {
        name: "sqlite_pair",
        about: "lock and give back in a file, nobody else wants the name",
        run: sqlite_pair::run,
    },
    Scenario {
        name: "sqlite_handoff",
        about: "from one process to the next through a file",
        run: sqlite_handoff::run,
    },
    Scenario {
        name: "sqlite_idle_waiters",
        about: "what processes cost that only wait",
        run: sqlite_idle_waiters::run,
    },
    Scenario {
        name: "redis_pair",
        about: "lock and give back in Redis, nobody else wants the name",
        run: redis_pair::run,
    },
    Scenario {
        name: "redis_handoff",
        about: "from one process to the next through Redis",
        run: redis_handoff::run,
    },
    Scenario { name: "redis_line", about: "what a long line costs", run: redis_line::run },
    Scenario {
        name: "redlock_handoff",
        about: "from one process to the next through three Redis servers",
        run: redlock_handoff::run,
    },
    Scenario {
        name: "postgres_pair",
        about: "lock and give back in PostgreSQL, nobody else wants the name",
        run: postgres_pair::run,
    },
    Scenario {
        name: "postgres_handoff",
        about: "from one process to the next through PostgreSQL",
        run: postgres_handoff::run,
    },
    Scenario {
        name: "advisory_pair",
        about: "lock and give back with PostgreSQL's advisory locks",
        run: advisory_pair::run,
    },
    Scenario {
        name: "advisory_contend",
        about: "from one process to the next with PostgreSQL's advisory locks",
        run: advisory_contend::run,
    },
    Scenario {
        name: "etcd_pair",
        about: "lock and give back in etcd, nobody else wants the name",
        run: etcd_pair::run,
    },
    Scenario {
        name: "etcd_handoff",
        about: "from one process to the next through etcd",
        run: etcd_handoff::run,
    },
    Scenario {
        name: "zookeeper_pair",
        about: "lock and give back in ZooKeeper, nobody else wants the name",
        run: zookeeper_pair::run,
    },
    Scenario {
        name: "zookeeper_handoff",
        about: "from one process to the next through ZooKeeper",
        run: zookeeper_handoff::run,
    },
    Scenario {
        name: "command_start",
        about: "a command under a lock, start-up included",
        run: command_start::run,
    },
    Scenario {
        name: "ten_thousand_leases",
        about: "one client that holds 10,000 leases",
        run: ten_thousand_leases::run,
    },
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_has_a_place_for_each_scenario_in_their_order() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/benchmarks.md")).unwrap();
        let mut rest = page.as_str();
        for Scenario { name, .. } in SCENARIOS {
            for marker in [format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n")] {
                let found = rest.split_once(&marker);
                rest = found.unwrap_or_else(|| panic!("`{}` is missing", marker.trim())).1;
            }
        }
    }
}
