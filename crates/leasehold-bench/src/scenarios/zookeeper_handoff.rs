//! Hand-off through ZooKeeper: 16 workers in 4 processes that each keep the lock for a millisecond.
//!
//! The measure is W, the time from a change of a node in this ZooKeeper until a watcher in another
//! process hears of it. No lock that ZooKeeper wakes can be quicker. Changes wait for the disk, as
//! they do in production.

use leasehold_testkit::servers::Zookeeper;

use crate::Result;
use crate::progress::Progress;
use crate::raw::zookeeper::{requests, wake};
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::hand_off::{self, Counter, HandOff, Limit, Targets};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Zookeeper::new().fsync(true).start_blocking()?;
    let server = &server;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wake = move |work| runtime.block_on(wake(server.url(), work));
    let count = Box::new(move || requests(server));
    let hand_off = HandOff {
        store: "ZooKeeper",
        url: server.url().to_owned(),
        poll_url: format!("{}/poll", server.url()),
        limits: vec![Limit::new("one wake-up (W)", wake)],
        measure: "W",
        floor: None,
        counter: Counter { what: "requests", count, look: 0 },
        targets: Targets { p50_max: Some(1.5), cycle_max: 4, ..Targets::default() },
    };
    hand_off::run(setting, progress, hand_off)
}
