//! The command of `run --on-lost`: told which lock was lost and why, started once, waited for.
//!
//! It runs after the command was ended, because everything that the command left is killed then.
//! It has no input: at a terminal it would stop for want of it, and nobody would see why.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, Stdio};

use leasehold::{Fence, Lease, LostCause, Name};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Signal as KernelSignal;

use crate::child::Child;
use crate::guard::Why;
use crate::outer::OUTER_VARIABLE;
use crate::record::Record;
use crate::signals::Signals;

const CAUSE_VARIABLE: &str = "LEASEHOLD_LOST_CAUSE";
const REASON_VARIABLE: &str = "LEASEHOLD_LOST_REASON";

/// Somebody else holds the name.
pub(crate) const TAKEN: &str = "taken";
/// It was force-released.
const EVICTED: &str = "evicted";
/// It is gone from the store, and nothing says why.
pub(crate) const REMOVED: &str = "removed";

/// A lost lock, as this process describes it to the command.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) name: Name,
    pub(crate) fence: Fence,
    /// One word.
    pub(crate) cause: &'static str,
    /// What the operator said who took it.
    pub(crate) reason: Option<String>,
}

impl Loss {
    /// The loss for which the command was ended; `None` if it was ended for another reason.
    pub(crate) fn of(why: &Why, leases: &[Lease]) -> Option<Self> {
        let (index, cause) = match why {
            Why::Lost(index, cause) => (*index, word(cause)),
            Why::Unkept(index) => (*index, "unreachable"),
            Why::Stopped(index, _) => (*index, "stopped"),
            Why::HeldLongest => return None,
        };
        let lease = leases.get(index)?;
        let reason = match why {
            Why::Lost(_, LostCause::Evicted { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        Some(Self { name: lease.name().clone(), fence: lease.fence(), cause, reason })
    }
}

impl Loss {
    /// The same, where a record says that the lock was force-released.
    pub(crate) fn explained(self, taken: Option<Record>) -> Self {
        match taken {
            Some(record) => Self { cause: EVICTED, reason: Some(record.reason), ..self },
            None => self,
        }
    }
}

fn word(cause: &LostCause) -> &'static str {
    match cause {
        LostCause::Expired => "expired",
        LostCause::Unreachable => "unreachable",
        LostCause::TakenBy(_) => TAKEN,
        LostCause::Evicted { .. } => EVICTED,
        LostCause::Replaced => "replaced",
        LostCause::Closed => "closed",
        // Whatever a later library adds, the lock is not there any more.
        _ => REMOVED,
    }
}

/// Starts the command with a shell and with these signals blocked. `tell_store` writes into its
/// environment which store the lock was in.
pub(crate) fn start(
    command: &OsStr,
    loss: &Loss,
    tell_store: impl FnOnce(&mut Command),
    mask: SigSet,
) -> io::Result<Child> {
    let command = ["sh".into(), "-c".into(), OsString::from(command)];
    let tell = |child: &mut Command| {
        child
            .stdin(Stdio::null())
            .env("LEASEHOLD_NAME", loss.name.as_str())
            .env("LEASEHOLD_FENCE", loss.fence.to_string())
            .env(CAUSE_VARIABLE, loss.cause)
            .env(REASON_VARIABLE, loss.reason.as_deref().unwrap_or_default().replace('\0', ""))
            .env_remove("LEASEHOLD_HANDLE")
            .env_remove(OUTER_VARIABLE);
        tell_store(child);
    };
    Child::start(&command, tell, false, mask)
}

/// Waits until the command has ended, if there is one. It gets the signals that ask this process
/// to end.
pub(crate) async fn wait(command: Option<Child>, signals: &mut Signals) {
    let Some(mut child) = command else { return };
    loop {
        child.look();
        if child.ended.is_some() {
            return;
        }
        match signals.next().await {
            Signal::SIGCHLD => {}
            signal => {
                if let Some(signal) = KernelSignal::from_named_raw(signal as i32) {
                    // A command that is gone ends the wait in a moment.
                    let _heard = child.signal(signal);
                }
            }
        }
    }
}
