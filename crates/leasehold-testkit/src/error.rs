//! Failures of the harness itself.
//!
//! Failures of the code under test are not here: tests state those with assertions.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The result of a harness call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the harness; the message says what to do about it, where possible.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A server is not installed.
    #[error(
        "`{program}` was not found; it is in the Debian package `{package}`, \
         which `cargo xtask setup` installs"
    )]
    MissingProgram {
        /// The program or file that is missing.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },

    /// The packages of other languages are not installed, or not in the versions of this source.
    #[error(
        "the pinned packages of other languages are not in `{}`; `cargo xtask setup` installs them",
        .folder.display()
    )]
    MissingPackages {
        /// Where they belong.
        folder: PathBuf,
    },

    /// A server ended before it was ready, for instance because its port was taken.
    #[error("`{server}` ended before it was ready ({status}); its log:\n{log}")]
    EarlyExit {
        /// The server's name.
        server: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },

    /// A server runs, but did not become ready in time.
    #[error("`{server}` was not ready after {waited:?}: {last}; its log:\n{log}")]
    NotReady {
        /// The server's name.
        server: String,
        /// How long the harness waited.
        waited: Duration,
        /// The answer to the last check.
        last: String,
        /// The end of its log.
        log: String,
    },

    /// A process that should get a signal has ended.
    #[error("`{name}` is not running")]
    NotRunning {
        /// The server or program.
        name: String,
    },

    /// Every port of the harness's range is taken.
    #[error("no free port between {first} and {last}")]
    NoFreePort {
        /// The first port that was tried.
        first: u16,
        /// The last port that was tried.
        last: u16,
    },

    /// A server refused a command that the harness gave it.
    #[error("`{server}` answered `{answer}` to `{request}`")]
    Refused {
        /// The server's name.
        server: String,
        /// The request.
        request: String,
        /// The server's answer.
        answer: String,
    },

    /// An awaited event did not happen.
    #[error("waited {waited:?} for {what}; {seen}")]
    TimedOut {
        /// The awaited event.
        what: String,
        /// How long.
        waited: Duration,
        /// The state at the end of the wait.
        seen: String,
    },

    /// The system does not let a process be traced, which is how the harness stalls its disk.
    #[error(
        "cannot stall the disk of process {pid}: {reason}; run the tests as root, or let users \
         trace their own processes with `sysctl kernel.yama.ptrace_scope=0`; a container also \
         needs the capability SYS_PTRACE"
    )]
    MayNotTrace {
        /// The process.
        pid: u32,
        /// The message of `strace`.
        reason: String,
    },

    /// The operating system refused something.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted action.
        doing: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// Prints the message itself: tests unwrap, so the text they print should be readable, logs above
/// all.
impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Adds the attempted action to a system error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}

/// Runs blocking work for an async caller.
///
/// When the caller stops waiting, the work still runs to its end and its result is dropped.
pub(crate) async fn unblock<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
        Err(failure) => {
            let doing = "run blocking work".to_owned();
            Err(Error::Io { doing, source: io::Error::other(failure) })
        }
    }
}
