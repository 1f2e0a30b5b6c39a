//! Hand-off through a majority of three Redis servers: 16 workers in 4 processes that each keep
//! the lock for a millisecond, and 200 waiters that want it once.
//!
//! The measure is W, the time one of these servers takes to wake one subscriber in another
//! process. A hand-off by majority needs more than that, and has no target.

use std::time::Duration;

use leasehold_testkit::servers::Redis;

use crate::Result;
use crate::progress::Progress;
use crate::raw::redis::{scripts_run, wake};
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::hand_off::{self, Counter, HandOff, Limit, Served, Targets};

const SERVERS: usize = 3;

/// A tenth of the ttl that the workers ask for: "never a stall of ttl length", with room.
const STALL_MAX: Duration = Duration::from_secs(3);

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let group = Redis::new().start_many_blocking(SERVERS)?;
    let group = &group;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wake = move |work| runtime.block_on(wake(group.servers()[0].url(), work));
    let count = Box::new(move || group.servers().iter().map(scripts_run).sum());
    let hand_off = HandOff {
        store: "Redlock on 3",
        url: group.url().to_owned(),
        poll_url: format!("{}?prefix=poll:", group.url()),
        limits: vec![Limit::new("one wake-up by one server (W)", wake)],
        measure: "W",
        floor: None,
        counter: Counter { what: "commands", count, look: SERVERS as u64 },
        targets: Targets {
            cycle_max: 9,
            held_min: Some(0.85),
            stall_max: Some(STALL_MAX),
            queue: Some(Served::Within(Duration::from_millis(150))),
            ..Targets::default()
        },
    };
    hand_off::run(setting, progress, hand_off)
}
