//! Real servers as child processes: one module an engine, one type for what they all can do.
//!
//! [`Redis`], [`Postgres`], [`Zookeeper`] and [`Etcd`] hold the options and start; [`Server`] is
//! what runs; [`Group`], [`SentinelGroup`] and [`SplitCluster`] are several that work together.
//! Every start exists twice: `start` for async tests, `start_blocking` for the rest.
//!
//! Servers listen on 127.0.0.1 only, on ports of their own, and write to folders of their own. A
//! server that ends before it is ready, for example because its port was taken, is started again on
//! other ports.

mod etcd;
mod gate;
mod group;
mod pgbouncer;
mod postgres;
mod probe;
mod redis;
mod redis_groups;
mod resp;
mod server;
mod split;
mod znodes;
mod zookeeper;

use std::time::{Duration, Instant};

pub use etcd::Etcd;
pub use group::{Group, SENTINEL_SERVICE, SentinelGroup};
pub use pgbouncer::Pgbouncer;
pub use postgres::Postgres;
pub use redis::{Redis, UNIX_SOCKET};
pub use server::{Server, set_failed, show_shared_logs};
pub use split::SplitCluster;
pub use znodes::{Znode, litter, make_znode, znodes};
pub use zookeeper::Zookeeper;

use crate::error::{Error, Result};
use crate::process::POLL;

/// How long a server or group may take to become ready; a busy machine needs a few seconds.
pub const READY_LIMIT: Duration = Duration::from_secs(120);

/// How often a start is tried when the server ends early. A taken port is rare. So a third early
/// end in a row has another cause, and the test should show its log.
const START_ATTEMPTS_MAX: usize = 3;

/// Starts a server or group, again on other ports when it ends early.
fn with_retries<T>(start: impl Fn() -> Result<T>) -> Result<T> {
    let mut attempts = 1;
    loop {
        match start() {
            Err(Error::EarlyExit { .. }) if attempts < START_ATTEMPTS_MAX => attempts += 1,
            result => return result,
        }
    }
}

/// Waits until a group as a whole is ready; `check` names what is missing.
fn wait_for_group(
    name: &str,
    servers: &[&Server],
    check: impl Fn() -> Result<(), String>,
) -> Result<()> {
    let started = Instant::now();
    loop {
        let Err(last) = check() else { return Ok(()) };
        for server in servers {
            server.fail_if_ended()?;
        }
        let waited = started.elapsed();
        if waited >= READY_LIMIT {
            let log = servers.iter().map(|server| server.log()).collect();
            return Err(Error::NotReady { server: name.to_owned(), waited, last, log });
        }
        std::thread::sleep(POLL);
    }
}

/// Writes every byte that means something in an address as `%XX`.
fn encoded(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    });
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn early_exit() -> Error {
        let status = ExitStatus::from_raw(0);
        Error::EarlyExit { server: "test".to_owned(), status, log: String::new() }
    }

    #[test]
    fn early_exit_is_tried_again() {
        let calls = Cell::new(0);
        let result = with_retries(|| {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Err(early_exit()) } else { Ok(calls.get()) }
        });
        assert_eq!(result.unwrap(), 3);
    }

    #[test]
    fn early_exit_every_time_is_an_error() {
        let result: Result<()> = with_retries(|| Err(early_exit()));
        assert!(matches!(result, Err(Error::EarlyExit { .. })));
    }

    #[test]
    fn other_errors_are_not_tried_again() {
        let calls = Cell::new(0);
        let result: Result<()> = with_retries(|| {
            calls.set(calls.get() + 1);
            Err(Error::NoFreePort { first: 1, last: 2 })
        });
        assert!(result.is_err());
        assert_eq!(calls.get(), 1);
    }
}
