//! Hand-off through PostgreSQL's lease table. 16 workers in 4 processes each keep the lock for a
//! millisecond, 200 waiters want it once, and 1,000 tasks of one process wait.
//!
//! The measure is a sum of three: a NOTIFY to a listener in another process, a flush of a page, and
//! a statement that changes a row without a flush. A lock that outlives
//! the server, and whose waiters the server wakes, needs all of them. Commits wait for the disk.

use std::time::Duration;

use leasehold_testkit::Server;
use leasehold_testkit::servers::Postgres;
use tokio::runtime::Runtime;

use crate::Result;
use crate::contest::Worker;
use crate::progress::Progress;
use crate::raw::disk::flush;
use crate::raw::postgres::{connections, flushes, statement, wake};
use crate::raw::relay;
use crate::report::{Report, Table};
use crate::scenarios::Setting;
use crate::scenarios::hand_off::{
    self, Counter, Floor, HandOff, Limit, Served, Targets, until_waiting,
};
use crate::worker::{NAME, Way};

/// The tasks of one process that wait at a time.
const WAITING: usize = 1_000;
/// "A handful" as a number: three connections and one that listens, for the caller's runtime and
/// for that of the keeper.
const HANDFUL: u64 = 8;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Postgres::new().fsync(true).setting("synchronous_commit", "on");
    let server = server.start_blocking()?;
    let (server, url) = (&server, server.url());
    server.sql(relay::TABLES)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let runtime = &runtime;
    let page = setting.scratch.file("log");
    let count = Box::new(move || flushes(server));
    let hand_off = HandOff {
        store: "PostgreSQL",
        url: url.to_owned(),
        poll_url: format!("{url}?schema=poll"),
        limits: vec![
            Limit::new("one NOTIFY wake-up", move |work| runtime.block_on(wake(url, work))),
            Limit::new("one flush", move |work| runtime.block_on(flush(&page, work))),
            Limit::new("one statement", move |work| runtime.block_on(statement(url, work))),
        ],
        measure: "the sum",
        floor: Some(Floor { name: "passed round by hand", way: Way::Relay, url: url.to_owned() }),
        counter: Counter { what: "flushes", count, look: 0 },
        targets: Targets {
            p50_max: Some(1.0),
            cycle_max: 1,
            is_fair: true,
            queue: Some(Served::Within(Duration::from_millis(150))),
            ..Targets::default()
        },
    };
    let mut report = hand_off::run(setting, progress, hand_off)?;
    report.note(
        "`the sum` is one NOTIFY that wakes a listener in another process, one page flushed on \
         the same disk, and one statement that changes a row without a flush. \
         Flushes are those of the whole server, by `pg_stat_wal`: also those of its log writer, \
         which follow what was committed without one.",
    );
    waiting_tasks(&mut report, runtime, server)?;
    Ok(report)
}

/// Counts the connections of many waiting tasks of one process.
fn waiting_tasks(report: &mut Report, runtime: &Runtime, server: &Server) -> Result<()> {
    let url = format!("{}?schema=waiting", server.url());
    let client = runtime.block_on(leasehold::connect(&url))?;
    let lease = runtime.block_on(client.mutex(NAME).lock())?;
    let before = connections(server)?;
    let mut worker = Worker::start(&["queue", &url, &WAITING.to_string()])?;
    worker.ready()?;
    runtime.block_on(until_waiting(&client, WAITING))?;
    let used = connections(server)?.saturating_sub(before);
    drop((worker, lease));
    let mut table = Table::new(["waiting", "connections"]);
    table.row([format!("{WAITING} tasks of one process"), used.to_string()]);
    report.table(table);
    let what = format!("PostgreSQL, {WAITING} waiting tasks of one process: connections");
    let target = format!("a handful: at most {HANDFUL}");
    report.target(what, target, used.to_string(), used <= HANDFUL);
    Ok(())
}
