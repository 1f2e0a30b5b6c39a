//! The terminal, lent to the command and taken back.
//!
//! The command has a process group of its own, and a terminal reads for and signals one group
//! only. So the group gets it when the command starts, if this process has it and both ends of
//! the command are on it; where the output goes into a pipe, a neighbour in that pipe may want
//! the terminal more, and the command gets it when it stops for the lack of it. `signals.rs` has
//! blocked SIGTTOU, without which handing over from the background would stop this process.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal of this process, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// Opened when first needed where standard input is something else.
    device: Option<File>,
    lent: bool,
    /// The command has had it, and is to have it again after a stop.
    wanted: bool,
    /// The settings it had when it was lent.
    settings: Option<Termios>,
}

impl Terminal {
    /// Whether a command should get the terminal from its first instruction on. Its settings are
    /// remembered before the command can change them.
    pub(crate) fn is_for_the_command(&mut self) -> bool {
        let wanted = io::stdin().is_terminal()
            && io::stdout().is_terminal()
            && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
        if wanted {
            self.settings = tcgetattr(io::stdin()).ok();
        }
        wanted
    }

    /// The command took it on the way to its first instruction.
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
        // It fails only when the terminal went away, and then there is nothing to take.
        self.with(|terminal| tcsetpgrp(terminal, getpgrp()).ok());
        true
    }

    /// Takes it back with the settings it had: for a command that could not tidy up itself.
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
