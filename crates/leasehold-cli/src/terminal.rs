//! Lends the terminal to the command and takes it back.
//!
//! The command has a process group of its own, and a terminal serves only one group. So the
//! command gets the terminal at its start, if this process has it and standard input and output are
//! on it. If the output goes into a pipe, another process of the pipe may need the terminal. Then
//! the command gets it only when it stops because it lacks it. `signals.rs` blocks SIGTTOU:
//! otherwise this process would stop when it hands over the terminal from the background.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal of this process, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// `/dev/tty`, opened at first need if standard input is not the terminal.
    device: Option<File>,
    lent: bool,
    /// Whether the command has had it, and gets it again after a stop.
    wanted: bool,
    /// The terminal's settings when it was lent.
    settings: Option<Termios>,
}

impl Terminal {
    /// Whether a command should get the terminal at its start. Saves the settings before the
    /// command can change them.
    pub(crate) fn is_for_the_command(&mut self) -> bool {
        let wanted = io::stdin().is_terminal()
            && io::stdout().is_terminal()
            && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
        if wanted {
            self.settings = tcgetattr(io::stdin()).ok();
        }
        wanted
    }

    /// Whether the command has had it. Then keys that send signals reach only the command.
    pub(crate) fn was_the_commands(&self) -> bool {
        self.wanted
    }

    /// Records that the command took it before its first instruction.
    pub(crate) fn was_lent(&mut self) {
        (self.lent, self.wanted) = (true, true);
    }

    /// Lends it to the command's group, if this process has it in its foreground.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let lent = self.with(|terminal| {
            let ours = tcgetpgrp(terminal).is_ok_and(|foreground| foreground == getpgrp());
            let settings = tcgetattr(terminal).ok();
            (ours && tcsetpgrp(terminal, group).is_ok()).then_some(settings)
        });
        match lent {
            Some(settings) => {
                self.settings = settings;
                (self.lent, self.wanted) = (true, true);
                true
            }
            None => false,
        }
    }

    /// Lends it to a command that goes on and had it before.
    pub(crate) fn lend_again(&mut self, group: Pid) {
        if self.wanted {
            self.lend(group);
        }
    }

    /// Takes it back if it was lent. Returns whether it was.
    pub(crate) fn take_back(&mut self) -> bool {
        if !std::mem::take(&mut self.lent) {
            return false;
        }
        // Fails only if the terminal is gone, and then there is nothing to take.
        self.with(|terminal| tcsetpgrp(terminal, getpgrp()).ok());
        true
    }

    /// Takes it back and restores its settings: for a command that could not tidy up itself.
    pub(crate) fn restore(&mut self) {
        if self.take_back()
            && let Some(settings) = self.settings.take()
        {
            self.with(|terminal| tcsetattr(terminal, OptionalActions::Now, &settings).ok());
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
        if io::stdin().is_terminal() {
            return act(io::stdin().as_fd());
        }
        if self.device.is_none() {
            self.device = File::options().read(true).write(true).open("/dev/tty").ok();
        }
        act(self.device.as_ref()?.as_fd())
    }
}
