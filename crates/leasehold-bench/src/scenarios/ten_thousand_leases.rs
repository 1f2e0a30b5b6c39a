//! One client that holds ten thousand leases: its threads, its CPU time and its memory.
//!
//! Each engine runs in a process of its own, so that the numbers have nothing else in them. Leases
//! have the default ttl of 30 s, and the client renews them all the time.

use std::time::Duration;

use crate::Result;
use crate::contest::Worker;
use crate::progress::Progress;
use crate::report::{Report, Table, digits};
use crate::scenarios::Setting;

const LEASES: usize = 10_000;
const CPU_PERCENT_MAX: f64 = 2.0;
const BYTES_MAX: u64 = 1_024;

struct Kept {
    engine: &'static str,
    cpu_percent: f64,
    /// After all leases are taken, and at the end: renewals need memory too.
    bytes_per_lease: [u64; 2],
    lost: usize,
    threads: String,
}

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let span = Duration::from_secs(setting.either(20, 60));
    let mut report = Report::default();
    let head = ["10,000 leases", "seconds", "CPU", "memory each", "after renewals", "lost"];
    let mut table = Table::new(head.into_iter().chain(["threads"]));
    let file = setting.scratch.sqlite("keep.db");
    for (engine, url) in [("memory", "memory:"), ("SQLite", &file)] {
        let kept = keep(engine, url, span, progress)?;
        table.row([
            kept.engine.to_owned(),
            span.as_secs().to_string(),
            format!("{} % of a core", digits(kept.cpu_percent)),
            format!("{} B", kept.bytes_per_lease[0]),
            format!("{} B", kept.bytes_per_lease[1]),
            kept.lost.to_string(),
            kept.threads.clone(),
        ]);
        targets(&mut report, &kept);
    }
    report.table(table);
    report.note(
        "`memory each` is what the process grew by when the leases were taken, over their number; \
         in the memory engine that includes the store. `after renewals` is the same at the end.",
    );
    Ok(report)
}

fn keep(engine: &'static str, url: &str, span: Duration, progress: &mut Progress) -> Result<Kept> {
    let (count, seconds) = (LEASES.to_string(), span.as_secs().to_string());
    let mut worker = Worker::start(&["keep", url, &count, &seconds])?;
    worker.ready()?;
    progress.sleep(span);
    let text = worker.finish()?;
    let lines: Vec<&str> = text.lines().collect();
    let [cpu, grown, grown_later, lost, threads] = lines[..] else {
        return Err(format!("the worker wrote `{text}`").into());
    };
    let per_lease =
        |grown: &str| Ok::<_, std::num::ParseIntError>(grown.parse::<u64>()? / LEASES as u64);
    Ok(Kept {
        engine,
        cpu_percent: cpu.parse::<u64>()? as f64 / span.as_nanos() as f64 * 100.0,
        bytes_per_lease: [per_lease(grown)?, per_lease(grown_later)?],
        lost: lost.parse()?,
        threads: threads.to_owned(),
    })
}

fn targets(report: &mut Report, kept: &Kept) {
    let engine = kept.engine;
    // The kernel cuts thread names after 15 bytes.
    let keepers = kept.threads.matches("leasehold-keepe").count();
    let what = format!("{engine}, 10,000 leases: keeper threads");
    report.target(what, "1", keepers.to_string(), keepers == 1);
    let cpu = format!("{} %", digits(kept.cpu_percent));
    let met = kept.cpu_percent < CPU_PERCENT_MAX;
    report.target(format!("{engine}, 10,000 leases: CPU"), "under 2 % of a core", cpu, met);
    let most = kept.bytes_per_lease[0].max(kept.bytes_per_lease[1]);
    let what = format!("{engine}, 10,000 leases: memory of one");
    report.target(what, "under 1 KiB", format!("{most} B"), most < BYTES_MAX);
    let what = format!("{engine}, 10,000 leases: lost");
    report.target(what, "0", kept.lost.to_string(), kept.lost == 0);
}
