//! Signals as values to await instead of interruptions.
//!
//! This process blocks the signals and reads them from a file, so no handler runs at an odd moment.
//! Each thread that starts later inherits the block. A child would inherit it too, so it gets the
//! mask from before. `supervise.rs` decides what a signal means.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use rustix::process;
use tokio::net::unix::pipe::Receiver;

use crate::exit::{self, Failure};
use crate::platform;
use crate::store::Store;

/// Signals that this process forwards to its child.
const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

/// Signals that continue this process, or report about children.
const MANAGED: [Signal; 2] = [Signal::SIGCONT, Signal::SIGCHLD];

/// Whether the signal about the largest file was ignored when this process started.
static LARGEST_FILE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores the signal for a write past the limit of file sizes (`ulimit -f`). So the write fails,
/// and this process reports the failure. Call it before any thread starts.
pub(crate) fn ignore_largest_file() {
    LARGEST_FILE_WAS_IGNORED.store(is_ignored(Signal::SIGXFSZ), Ordering::Relaxed);
    // SAFETY: ignoring a signal installs no code, and no other thread runs yet. It cannot fail,
    // because this signal can be ignored.
    let _before = unsafe { nix::sys::signal::signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Restores the action of the signal about the largest file for a child. For use between fork and
/// exec.
pub(crate) fn restore_largest_file() -> io::Result<()> {
    if !LARGEST_FILE_WAS_IGNORED.load(Ordering::Relaxed) {
        // SAFETY: setting the default action installs no code, and is one system call.
        unsafe { nix::sys::signal::signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
    }
    Ok(())
}

/// The signals of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    file: Receiver,
    /// The signals that were blocked before, for the child.
    before: SigSet,
}

impl Signals {
    /// Blocks the signals and starts to collect them. Call it before any thread starts.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::try_catch().map_err(|error| {
            Failure::new(exit::UNREACHABLE, format!("cannot watch for signals: {error}"))
        })
    }

    fn try_catch() -> io::Result<Self> {
        let mut caught = SigSet::empty();
        // A signal that was ignored at the start stays ignored, here and in the child. `nohup`
        // does that, and a script for its background jobs.
        FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)).for_each(|s| caught.add(s));
        MANAGED.into_iter().for_each(|signal| caught.add(signal));
        if is_ignored(Signal::SIGCHLD) {
            // If it stayed ignored, the kernel would discard the child's exit status.
            // SAFETY: setting the default action installs no code, and no other thread runs yet.
            unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
        }
        let mut blocked = caught;
        // Blocked and never read. Otherwise this process would stop when it hands over the
        // terminal from the background.
        blocked.add(Signal::SIGTTOU);
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let file = platform::signal_file(&caught)?;
        // For the reactor it is a file that turns readable.
        Ok(Self { file: Receiver::from_owned_fd_unchecked(file)?, before })
    }

    /// The mask of this process at its start.
    pub(crate) fn mask_before(&self) -> SigSet {
        self.before
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            let mut record = [0; platform::RECORD_BYTES];
            match self.file.try_read(&mut record) {
                Ok(_whole_record) => {
                    // Its first field is the number.
                    let [a, b, c, d, ..] = record;
                    if let Ok(signal) = Signal::try_from(i32::from_ne_bytes([a, b, c, d])) {
                        return signal;
                    }
                }
                Err(_empty) => {
                    if self.file.readable().await.is_err() {
                        // Happens only while the runtime shuts down, when no task awaits this.
                        return std::future::pending().await;
                    }
                }
            }
        }
    }

    /// Opens the store, unless a signal ends the command before that.
    pub(crate) async fn opened(
        &mut self,
        open: impl AsyncFnOnce() -> Result<Store, Failure>,
    ) -> Result<Store, Failure> {
        tokio::select! {
            biased;
            signal = self.ending(|| {}) => Err(Failure::silent(exit::of_signal(signal as i32))),
            store = open() => store,
        }
    }

    /// The next signal that ends a process which only waits. Until then it obeys stops, and calls
    /// `before_stop` before each to tidy up the terminal.
    pub(crate) async fn ending(&mut self, mut before_stop: impl FnMut()) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP => {
                    before_stop();
                    stop_self(false);
                }
                Signal::SIGCONT | Signal::SIGCHLD | Signal::SIGWINCH => {}
                signal => return signal,
            }
        }
    }
}

/// Stops this process with all its threads; with `whole_group` also the other processes of a pipe
/// or script, as ^Z does. Returns when this process continues.
///
/// It uses the default action of SIGTSTP. So the kernel ignores it if no shell could continue this
/// process.
pub(crate) fn stop_self(whole_group: bool) {
    // Neither can fail for this process itself. If it did, this process would just go on.
    let _sent = match whole_group {
        true => process::kill_process_group(process::getpgrp(), process::Signal::TSTP),
        false => process::kill_process(process::getpid(), process::Signal::TSTP),
    };
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    // The signal is pending; it stops this process here.
    let _unblocked = stop.thread_unblock();
    let _blocked = stop.thread_block();
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one to `action`. That is large
    // enough, and all zero, which is valid even if the call fails.
    let action = unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
