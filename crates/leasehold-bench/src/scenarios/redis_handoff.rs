//! Hand-off through Redis: 16 workers in 4 processes that each keep the lock for a millisecond,
//! and 200 waiters that want it once.
//!
//! The measure is W, the time this Redis takes to wake one subscriber in another process. No lock
//! that Redis wakes can be quicker.

use leasehold_testkit::servers::Redis;

use crate::Result;
use crate::progress::Progress;
use crate::raw::redis::{scripts_run, wake};
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::hand_off::{self, Counter, HandOff, Limit, Served, Targets};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Redis::new().start_blocking()?;
    let server = &server;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wake = move |work| runtime.block_on(wake(server.url(), work));
    let count = Box::new(move || scripts_run(server));
    let hand_off = HandOff {
        store: "Redis",
        url: server.url().to_owned(),
        poll_url: format!("{}?prefix=poll:", server.url()),
        limits: vec![Limit::new("one wake-up (W)", wake)],
        measure: "W",
        floor: None,
        counter: Counter { what: "commands", count, look: 1 },
        targets: Targets {
            p50_max: Some(1.5),
            p99_max: Some(4.0),
            cycle_max: 3,
            is_fair: true,
            held_min: Some(0.95),
            queue: Some(Served::Measures(3.0)),
            grant_max: Some(3),
            ..Targets::default()
        },
    };
    hand_off::run(setting, progress, hand_off)
}
