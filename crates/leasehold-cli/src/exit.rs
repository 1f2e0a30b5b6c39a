//! Exit statuses, and how a failure becomes one: the part of the contract that scripts read.
//!
//! Commands return an [`Outcome`]; only `main.rs` ends the process.

use std::io;

use leasehold::Error;
use leasehold::error::Config;

use crate::text;

/// All went well.
pub(crate) const DONE: u8 = 0;
/// Wrong usage.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached, or failed.
pub(crate) const UNREACHABLE: u8 = 69;
/// Standard output cannot be written.
pub(crate) const OUTPUT: u8 = 74;
/// Somebody else holds the lock.
pub(crate) const CONFLICT: u8 = 75;
/// Acquired, then lost while the child ran.
pub(crate) const LOST: u8 = 76;
/// A handle that is not, or no longer, the holder's.
pub(crate) const NOT_HOLDER: u8 = 77;
/// Configuration.
pub(crate) const CONFIG: u8 = 78;
/// The command is there, and cannot be run.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command is not there.
pub(crate) const NOT_FOUND: u8 = 127;

/// What a command ends with: a status, or a failure that has one.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why a command failed, what to do next, and the status that says so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    /// Empty where there is nothing to say.
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

    /// Ends with a status and no word.
    pub(crate) fn silent(status: u8) -> Self {
        Self::new(status, "")
    }

    /// What to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says it on standard error, without secrets and without control characters.
    pub(crate) fn report(&self) {
        if self.message.is_empty() {
            return;
        }
        say(&format!("error: {}", text::escape(&self.message)));
        if let Some(hint) = &self.hint {
            say(&format!("hint: {}", text::escape(hint)));
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), error.to_string())
    }
}

impl From<io::Error> for Failure {
    /// For writing to standard output only: whoever read it may have had enough.
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
        Error::Config(_) | Error::Mismatch { .. } | Error::SetBack { .. } => CONFIG,
        Error::Deadlock { .. } | Error::InUse { .. } => CONFLICT,
        Error::Lost { .. } => LOST,
        // Unreachable, Store, Replaced, TooSlow, Limit, Closed, and whatever a later library
        // adds: the store could not do it.
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

/// Text on standard error, as it is. That it cannot be written is no reason to stop.
pub(crate) fn say_all(text: &str) {
    use io::Write as _;
    let _unheard = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::error::{Cycle, Invalid, Kind, TooMany};
    use leasehold::{LostCause, Name};
    use std::time::Duration;

    #[test]
    fn every_failure_of_the_library_has_its_status() {
        let name = Name::new("n").expect("a good name");
        let store = || "sqlite:x".to_owned();
        let cause = || "it burns".to_owned();
        let known = vec!["memory:"];
        let scheme = || "x".to_owned();
        let table = [
            (Error::Invalid(Invalid::NameEmpty), 64),
            (Error::Invalid(Invalid::Handle { reason: "cut" }), 64),
            (Error::Config(Config::UnknownScheme { scheme: scheme(), known }), 78),
            (Error::Config(Config::NotBuilt { scheme: scheme(), advice: "build it" }), 78),
            (Error::Config(Config::OtherStore), 77),
            (Error::Stale { name: name.clone(), by: None }, 77),
            (Error::Unreachable { store: store(), cause: cause() }, 69),
            (Error::Store { store: store(), cause: cause(), transient: false }, 69),
            (Error::Replaced { store: store() }, 69),
            (Error::SetBack { store: store(), given: 3, known: 7 }, 78),
            (Error::TooSlow { name: name.clone(), took: Duration::from_secs(1) }, 69),
            (Error::Limit { what: "claims", limit: 1 }, 69),
            (Error::Closed, 69),
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
