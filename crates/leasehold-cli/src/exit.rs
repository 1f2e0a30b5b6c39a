//! Exit statuses, and how a failure becomes one: the part of the contract that scripts read.
//!
//! Commands return an [`Outcome`]; only `main.rs` ends the process.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::Error;
use leasehold::error::Config;
use serde::Serialize;

use crate::text;

/// All went well.
pub(crate) const DONE: u8 = 0;
/// The user was asked, and declined.
pub(crate) const DECLINED: u8 = 1;
/// Wrong usage.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached, or failed.
pub(crate) const UNREACHABLE: u8 = 69;
/// Standard output cannot be written.
pub(crate) const OUTPUT: u8 = 74;
/// Another holder has the lock.
pub(crate) const CONFLICT: u8 = 75;
/// Acquired, then lost while the child ran.
pub(crate) const LOST: u8 = 76;
/// A handle that is not, or no longer, the holder's.
pub(crate) const NOT_HOLDER: u8 = 77;
/// Configuration.
pub(crate) const CONFIG: u8 = 78;
/// The command exists, but cannot be run.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// The result of a command: a status, or a failure that has one.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why a command failed, a hint for the user, and the exit status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    /// Empty for a failure without a message.
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, message)
    }

    /// Ends with a status and no message.
    pub(crate) fn silent(status: u8) -> Self {
        Self::new(status, "")
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints it on standard error, without secrets and without control characters.
    pub(crate) fn report(&self) {
        if self.message.is_empty() {
            return;
        }
        if JSON.load(Ordering::Relaxed) {
            let (error, hint) = (text::redact(&self.message), self.hint.as_deref());
            return say_json(&Told { error: &error, hint, status: self.status });
        }
        say(&format!("error: {}", text::escape(&self.message)));
        if let Some(hint) = &self.hint {
            say(&format!("hint: {}", text::escape(hint)));
        }
    }
}

/// Whether failures are printed as JSON; set once, when the command line is read.
static JSON: AtomicBool = AtomicBool::new(false);

/// Prints failures as JSON from now on.
pub(crate) fn tell_failures_as_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// A failure as one JSON document.
#[derive(Debug, Serialize)]
struct Told<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    status: u8,
}

/// One JSON document on standard error.
pub(crate) fn say_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(line) => say_all(&(line + "\n")),
        Err(error) => say(&format!("error: {error}")),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.with_sources())
    }
}

impl From<io::Error> for Failure {
    /// For standard output only: the program that reads it may have closed the pipe.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(DONE),
            _ => Self::new(OUTPUT, format!("cannot write to standard output: {error}")),
        }
    }
}

/// The status of each failure of the library.
pub(crate) fn status_of(error: &Error) -> u8 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::Config(Config::OtherStore) | Error::Stale { .. } => NOT_HOLDER,
        Error::Config(_)
        | Error::Unsupported { .. }
        | Error::Mismatch { .. }
        | Error::SetBack { .. } => CONFIG,
        Error::Deadlock { .. } | Error::InUse { .. } | Error::Held(_) => CONFLICT,
        Error::Lost { .. } => LOST,
        // Unreachable, Store, Replaced, TooSlow, Timeout, Limit, Closed, and whatever a later
        // library adds: the store could not do it.
        _ => UNREACHABLE,
    }
}

/// The status of a child that a signal ended.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// One line on standard error.
pub(crate) fn say(line: &str) {
    say_all(&format!("leasehold: {}\n", text::redact(line)));
}

/// Text on standard error, as it is. A failure to write it does not stop the command.
pub(crate) fn say_all(text: &str) {
    use io::Write as _;
    let _unheard = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::error::{Cycle, Invalid, Kind, TooMany, UnreachableReason};
    use leasehold::{LostCause, Name};
    use std::time::Duration;

    #[test]
    fn every_failure_of_the_library_has_its_status() {
        let name = Name::new("n").expect("a good name");
        let store = || "sqlite:x".to_owned();
        let cause = || "it burns".to_owned();
        let known = vec!["memory:"];
        let scheme = || "x".to_owned();
        let ttl = Duration::from_secs(1);
        let table = [
            (Error::Invalid(Invalid::NameEmpty), 64),
            (Error::Invalid(Invalid::Handle { reason: "cut" }), 64),
            (Error::Config(Config::UnknownScheme { scheme: scheme(), known }), 78),
            (Error::Config(Config::NotBuilt { scheme: scheme(), advice: "build it" }), 78),
            (Error::Config(Config::OtherStore), 77),
            (Error::Stale { name: name.clone(), by: None }, 77),
            (Error::unreachable(store(), UnreachableReason::Refused, cause()), 69),
            (Error::TaskEnded { store: store() }, 69),
            (Error::Unsupported { engine: "toy", what: "do it", advice: "use another" }, 78),
            (Error::Store { store: store(), cause: cause(), transient: false }, 69),
            (Error::Replaced { store: store() }, 69),
            (Error::SetBack { store: store(), given: 3_u64.into(), known: 7_u64.into() }, 78),
            (Error::TooSlow { name: name.clone(), took: ttl }, 69),
            (Error::Limit { what: "claims", limit: 1 }, 69),
            (Error::Closed, 69),
            (Error::Timeout { name: name.clone(), waited: ttl, last: Box::new(Error::Closed) }, 69),
            (Error::Deadlock { name: name.clone(), cycle: Cycle(Vec::new()) }, 75),
            (Error::InUse { name: name.clone(), of: 1, why: TooMany::Held(2) }, 75),
            (Error::Lost { name: name.clone(), cause: LostCause::Expired }, 76),
            (
                Error::Mismatch {
                    name: name.clone(),
                    in_force: Kind::Lock,
                    asked: Kind::Permits { of: 3 },
                },
                78,
            ),
        ];
        for (error, status) in table {
            assert_eq!(status_of(&error), status, "{error}");
        }
    }

    #[test]
    fn a_reader_that_had_enough_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure, Failure::silent(DONE));
    }

    #[test]
    fn a_signal_is_128_and_its_number() {
        assert_eq!((of_signal(15), of_signal(9), of_signal(2)), (143, 137, 130));
    }
}
