//! Parts of the command that need Linux, and their replacements on other systems.
//!
//! Elsewhere a thread collects the signals. A command does not hear when this process is killed,
//! and its orphans are not found. Nothing of that was run on another system.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::signal::SigSet;

#[cfg(target_os = "linux")]
pub(crate) use linux::{RECORD_BYTES, adopt_orphans, end_with_parent, signal_file};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{RECORD_BYTES, adopt_orphans, end_with_parent, signal_file};

#[cfg(target_os = "linux")]
mod linux {
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use rustix::process::{Signal, getpid, set_child_subreaper, set_parent_process_death_signal};

    use super::*;

    /// The length of a record of [`signal_file`], which begins with the number of the signal.
    pub(crate) const RECORD_BYTES: usize = size_of::<nix::libc::signalfd_siginfo>();

    /// A file that has a record for each of these signals, which the caller has blocked. Reading
    /// it never waits.
    pub(crate) fn signal_file(caught: &SigSet) -> io::Result<OwnedFd> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(SignalFd::with_flags(caught, flags)?.into())
    }

    /// Makes orphans of the command children of this process instead of `init`.
    pub(crate) fn adopt_orphans() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// Lets this process end when its parent dies. It is one system call, for use between fork
    /// and exec.
    pub(crate) fn end_with_parent() -> io::Result<()> {
        Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io::Write as _;

    use super::*;

    /// The length of a record of [`signal_file`], which begins with the number of the signal.
    pub(crate) const RECORD_BYTES: usize = 4;

    /// A file that has a record for each of these signals, which the caller has blocked. Reading
    /// it never waits.
    pub(crate) fn signal_file(caught: &SigSet) -> io::Result<OwnedFd> {
        let (reader, mut writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        let caught = *caught;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = caught.wait() {
                if writer.write_all(&(signal as i32).to_ne_bytes()).is_err() {
                    return;
                }
            }
        })?;
        Ok(reader.into())
    }

    /// Orphans of the command stay with `init` here.
    pub(crate) fn adopt_orphans() -> io::Result<()> {
        Ok(())
    }

    /// The command outlives its parent here.
    pub(crate) fn end_with_parent() -> io::Result<()> {
        Ok(())
    }
}
