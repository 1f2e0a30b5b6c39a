//! The command as a process: starts it in a group of its own, signals it, and waits for it.
//!
//! This process also adopts processes that the command leaves behind. So it can see that they still
//! run, and end them when it must. `guard.rs` decides when to end them.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    test_kill_process_group, wait, waitpid,
};

use crate::{platform, signals};

/// How many rounds the search for processes outside the group has. Each round kills the processes
/// that the last one left behind, and a killed process cannot fork.
const HUNT_ROUNDS_MAX: usize = 64;

/// The command, its group, and its end.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    /// How it ended, once it did.
    pub(crate) ended: Option<Ended>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(u8),
    Signalled(i32),
}

impl Ended {
    /// The signal that ended it, if a key of the terminal sends that signal.
    pub(crate) fn key(self) -> Option<nix::sys::signal::Signal> {
        use nix::sys::signal::Signal::{SIGINT, SIGQUIT};
        [SIGINT, SIGQUIT].into_iter().find(|key| self == Ended::Signalled(*key as i32))
    }
}

/// The result of a check of the children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// The command was stopped by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command with these signals blocked, and gives it the terminal if `with_terminal`.
    ///
    /// Call it from the thread that lives as long as this process: the kernel ties the parent-death
    /// signal to the thread.
    pub(crate) fn start(
        command: &[OsString],
        environment: impl FnOnce(&mut Command),
        with_terminal: bool,
        mask: SigSet,
    ) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        environment(&mut command);
        // Orphans of the command come to this process instead of to `init`. If the kernel cannot
        // do that, this process only does not report them.
        let _adopting = platform::adopt_orphans();
        let parent = getpid();
        // SAFETY: between fork and exec the code only makes system calls. It allocates nothing and
        // takes no lock. The captured values are plain data made before the fork.
        unsafe {
            command.pre_exec(move || {
                platform::end_with_parent()?;
                // If the parent died before the line above, the kernel sends no signal. std would
                // abort over an error, because the parent cannot read it.
                if getppid() != Some(parent) {
                    nix::libc::_exit(1);
                }
                if with_terminal {
                    // This group is still in the background, and SIGTTOU is still blocked. Without
                    // a terminal the command runs all the same.
                    let _taken = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), getpid());
                }
                signals::restore_largest_file()?;
                mask.thread_set_mask()?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a child has a process id above zero");
        Ok(Self { pid, ended: None })
    }

    /// The group: the command leads it, so it has the command's id.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the whole group. Fails if this process may not signal any process in it,
    /// for example because the command runs as another user.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.pid, signal) {
            // The group is empty.
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Asks the group to end, and continues it, because a stopped group could not end.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)
    }

    /// Reaps the command and its orphans, and returns a stop of the command.
    pub(crate) fn look(&mut self) -> News {
        let mut news = News::Nothing;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid == self.pid {
                match ended(status) {
                    Some(ended) => self.ended = Some(ended),
                    None => news = status.stopping_signal().map_or(news, News::Stopped),
                }
            }
        }
        news
    }

    /// Whether the group has no process left.
    pub(crate) fn group_is_empty(&self) -> bool {
        self.ended.is_some() && test_kill_process_group(self.pid) == Err(Errno::SRCH)
    }

    /// How many processes of the command still run, in its group or out of it.
    pub(crate) fn left_behind(&mut self) -> usize {
        self.look();
        // Only orphans of the command can be children of this process now.
        match wait(WaitOptions::NOHANG) {
            Err(_nobody) => 0,
            Ok(_) => children().len().max(1),
        }
    }

    /// Kills the group. Fails as `signal` does.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        let killed = self.signal(Signal::KILL);
        self.look();
        killed
    }

    /// Kills the processes that left the group and came to this process as orphans. Fails if some
    /// of them cannot be killed. Call it after all work on the command itself.
    pub(crate) fn kill_escaped(&mut self) -> io::Result<()> {
        let mut all = Ok(());
        for _ in 0..HUNT_ROUNDS_MAX {
            let mut killed_some = false;
            for pid in children() {
                if kill_process(pid, Signal::KILL) == Err(Errno::PERM) {
                    all = Err(Errno::PERM.into());
                    continue;
                }
                killed_some = true;
                // Waits at once, so that the next round finds its children here.
                let reaped = waitpid(Some(pid), WaitOptions::empty());
                if let Ok(Some((_, status))) = reaped
                    && pid == self.pid
                {
                    self.ended = ended(status);
                }
            }
            if !killed_some {
                break;
            }
        }
        all
    }
}

fn ended(status: WaitStatus) -> Option<Ended> {
    if let Some(code) = status.exit_status() {
        return Some(Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    }
    status.terminating_signal().map(Ended::Signalled)
}

/// The children of this process, as far as the kernel reports them.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let ids = lists.iter().flat_map(|list| list.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).filter_map(Pid::from_raw).collect()
}
