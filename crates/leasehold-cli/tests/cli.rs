//! The command as users run it: the real binary, real files, real signals, real terminals.
//!
//! One test binary, so that it links once; the modules hold the cases by subject. No test sleeps
//! for an event that it can await: a test that reaches a time limit fails.

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
#[path = "cli/others.rs"]
mod others;
#[path = "cli/postgres.rs"]
mod postgres;
#[path = "cli/rate.rs"]
mod rate;
#[path = "cli/redis.rs"]
mod redis;
#[path = "cli/rights.rs"]
mod rights;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/steal.rs"]
mod steal;
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
