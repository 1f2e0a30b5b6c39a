//! Hand-off through etcd: 16 workers in 4 processes that each keep the lock for a millisecond.
//!
//! The measure is W, the time from a put in this etcd until a watcher in another process hears of
//! it. No lock that etcd wakes can be quicker. Changes wait for the disk, as they do in production.

use leasehold_testkit::servers::Etcd;

use crate::Result;
use crate::progress::Progress;
use crate::raw::etcd::{proposals, wake};
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::hand_off::{self, Counter, HandOff, Limit, Targets};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Etcd::new().fsync(true).start_blocking()?;
    let server = &server;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wake = move |work| runtime.block_on(wake(server.url(), work));
    let count = Box::new(move || proposals(server));
    let hand_off = HandOff {
        store: "etcd",
        url: server.url().to_owned(),
        poll_url: format!("{}?prefix=poll/", server.url()),
        limits: vec![Limit::new("one wake-up (W)", wake)],
        measure: "W",
        floor: None,
        counter: Counter { what: "proposals", count, look: 0 },
        targets: Targets {
            p50_max: Some(1.5),
            p99_max: Some(5.0),
            cycle_max: 2,
            ..Targets::default()
        },
    };
    hand_off::run(setting, progress, hand_off)
}
