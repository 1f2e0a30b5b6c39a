//! The command as a user meets it: the real binary, real files, real signals, real terminals.
//!
//! One test binary, so that it links once; cases are in the modules by subject. Nothing here
//! sleeps for an event that can be awaited: a bound that is reached is a failure.

#[path = "cli/deadlock.rs"]
mod deadlock;
#[path = "cli/elect.rs"]
mod elect;
#[path = "cli/epoch.rs"]
mod epoch;
#[path = "cli/etcd.rs"]
mod etcd;
#[path = "cli/handles.rs"]
mod handles;
#[path = "cli/input.rs"]
mod input;
#[path = "cli/lost.rs"]
mod lost;
#[path = "cli/once.rs"]
mod once;
#[path = "cli/postgres.rs"]
mod postgres;
#[path = "cli/rate.rs"]
mod rate;
#[path = "cli/redis.rs"]
mod redis;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/stores.rs"]
mod stores;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/terminal.rs"]
mod terminal;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/views.rs"]
mod views;
#[path = "cli/zookeeper.rs"]
mod zookeeper;
