//! Hand-off between processes through a file, beside `flock(2)` and beside asking every 10 ms.
//!
//! It measures this twice: with holders so quick that the next one is barely in line, and with
//! holders that keep the lock until all others are.

use std::time::Duration;

use crate::Result;
use crate::contender::{Contender, Role, take_turns};
use crate::contest::Contest;
use crate::progress::Progress;
use crate::report::{Report, span};
use crate::scenarios::Setting;
use crate::scenarios::hand_off_table::{HandOffTable, Seen, exclusion_target};
use crate::work::Work;
use crate::worker::Way;

const WORKERS: [usize; 3] = [2, 4, 8];
const HOLDS: [Duration; 2] = [Duration::from_micros(200), Duration::from_micros(10)];
const FLOCK: &str = "flock(2)";
const P50_MAX_NS: u64 = 100_000;
const P99_MAX_NS: u64 = 1_000_000;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let window = Duration::from_millis(setting.either(200, 400));
    let (mut report, mut table) =
        (Report::default(), HandOffTable::new("hand-off", FLOCK, "flock"));
    let mut ours = Vec::new();
    for hold in HOLDS {
        for workers in WORKERS {
            let target = setting.scratch.sqlite("handoff.db");
            let (way, work) = (Way::Line, Work::Computed);
            let line = Contest { way, target, workers, tasks: 1, hold, work, window };
            let poll = Contest {
                way: Way::Poll,
                target: setting.scratch.sqlite("poll.db"),
                ..line.clone()
            };
            let file = setting.scratch.file("handoff.lock").display().to_string();
            let flock = Contest { way: Way::Flock, target: file, ..line.clone() };
            let contenders = vec![
                Contender::new(Role::Ours, "leasehold", move || line.round()),
                Contender::new(Role::Limit, FLOCK, move || flock.round()),
                Contender::new(Role::Rival, "asking every 10 ms", move || poll.round()),
            ];
            let outcomes = take_turns(contenders, setting.either(3, 12), progress)?;
            let mut seen = table.add(&outcomes, workers, hold.as_nanos() as u64);
            ours.push((workers, hold, seen.swap_remove(0)));
        }
    }
    table.finish(&mut report);
    targets(&mut report, &ours);
    Ok(report)
}

fn targets(report: &mut Report, ours: &[(usize, Duration, Seen)]) {
    for (workers, hold, seen) in ours {
        let (p50, p99) = (seen.spans.p50(), seen.spans.p99());
        let met =
            p50.is_some_and(|p50| p50 <= P50_MAX_NS) && p99.is_some_and(|p99| p99 <= P99_MAX_NS);
        let hold = span(Some(hold.as_nanos() as u64));
        let what = format!("SQLite, {workers} processes, held {hold}: hand-off");
        let measured = format!("{}, {}", span(p50), span(p99));
        report.target(what, "p50 at most 100 µs, p99 at most 1 ms", measured, met);
    }
    let given_back: usize = ours.iter().map(|(_, _, seen)| seen.given_back).sum();
    let grants: usize = ours.iter().map(|(_, _, seen)| seen.grants).sum();
    let measured = format!("{given_back} of {grants} grants");
    report.target("SQLite: given back while others wait", "0", measured, given_back == 0);
    let overlaps = ours.iter().map(|(_, _, seen)| seen.overlaps).sum();
    exclusion_target(report, "SQLite", overlaps);
}
