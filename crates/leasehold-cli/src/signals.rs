//! Signals as values to await instead of interruptions.
//!
//! They are blocked and read from a file, so that no handler runs at an odd moment and every
//! thread that starts later inherits the block. A child would inherit it too, so it is given the
//! mask that was there before. What a signal means is decided in `supervise.rs`.

use std::io;

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process;
use tokio::net::unix::pipe::Receiver;

use crate::exit::{self, Failure};

/// Signals that a child must hear of when this process gets them.
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

/// Signals about going on, and about children.
const MANAGED: [Signal; 2] = [Signal::SIGCONT, Signal::SIGCHLD];

/// The signals of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    file: Receiver,
    /// What was blocked before, for the child.
    before: SigSet,
}

impl Signals {
    /// Blocks the signals and starts to collect them. Call it before any thread is started.
    pub(crate) fn catch() -> Result<Self, Failure> {
        Self::try_catch().map_err(|error| {
            Failure::new(exit::UNREACHABLE, format!("cannot watch for signals: {error}"))
        })
    }

    fn try_catch() -> io::Result<Self> {
        let mut caught = SigSet::empty();
        // A signal that was ignored when this process started, as by `nohup` or for a job in the
        // background of a script, stays ignored, here and in the child.
        FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)).for_each(|s| caught.add(s));
        MANAGED.into_iter().for_each(|signal| caught.add(signal));
        if is_ignored(Signal::SIGCHLD) {
            // With it ignored the kernel would throw the child's exit status away.
            // SAFETY: setting the default action installs no code, and no other thread runs yet.
            unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
        }
        let mut blocked = caught;
        // Blocked and never read: then handing the terminal over from the background just works
        // instead of stopping this process.
        blocked.add(Signal::SIGTTOU);
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let file = SignalFd::with_flags(&caught, flags)?.into();
        // To the reactor it is one more file that turns readable.
        Ok(Self { file: Receiver::from_owned_fd_unchecked(file)?, before })
    }

    /// The mask that this process was started with.
    pub(crate) fn mask_before(&self) -> SigSet {
        self.before
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost by dropping it.
    pub(crate) async fn next(&mut self) -> Signal {
        loop {
            let mut record = [0; size_of::<libc::signalfd_siginfo>()];
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
                        // Only where the runtime shuts down, and nobody awaits it then.
                        return std::future::pending().await;
                    }
                }
            }
        }
    }

    /// The next signal that ends a process which only waits. A stop is obeyed on the way:
    /// `before_stop` tidies up the terminal first.
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

/// Stops this process, all its threads, and with `whole_group` its neighbours in a pipe or script
/// too, as ^Z would have; returns when somebody lets it go on.
///
/// It is the default action of SIGTSTP, so the kernel does not do it where nobody could ever let
/// this process go on.
pub(crate) fn stop_self(whole_group: bool) {
    // Neither of these can fail for this process itself; if they did, going on is what is left.
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
    // SAFETY: without a new action the call only writes the present one to `action`, which is
    // large enough and, being all zero, valid even if the call fails.
    let action = unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
