//! The command as a process: started in a group of its own, signalled, stopped, and waited for.
//!
//! This process also adopts what the command leaves behind, so that it can tell when something
//! still runs, and end it when it must. When to end it is decided in `guard.rs`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::SigSet;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, test_kill_process_group, wait,
};

/// How often the processes that escaped from the group are looked for before it is given up: each
/// round kills what the one before left behind, and a process cannot fork once it is killed.
const HUNT_ROUNDS_MAX: usize = 64;

/// The command, its group, and what became of it.
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

/// What a look at the children found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Nothing,
    /// The command was stopped by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command, with the terminal if it is to have it, and with these signals blocked.
    ///
    /// Must be called from the thread that lives as long as this process: the kernel ties the
    /// parent-death signal to the thread.
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
        // Orphans of the command come to this process instead of to `init`. Where the kernel
        // cannot, they are merely not reported.
        let _adopting = set_child_subreaper(Some(getpid()));
        let parent = getpid();
        // SAFETY: between fork and exec only system calls are made, nothing is allocated, and no
        // lock is taken; the captured values are plain data made before the fork.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::TERM))?;
                // If the parent died before the line above, nobody would ever tell. An error would
                // have nobody to be reported to, and std would abort over that.
                if getppid() != Some(parent) {
                    nix::libc::_exit(1);
                }
                if with_terminal {
                    // This group is still in the background, and SIGTTOU is still blocked. Without
                    // a terminal the command runs all the same.
                    let _taken = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), getpid());
                }
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

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // It fails only when nobody is left to hear it.
        let _heard = kill_process_group(self.pid, signal);
    }

    /// Asks the group to end; one that is stopped is let go on, so that it can.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Looks at what became of the command and of its orphans.
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

    /// Whether nobody is left in the group.
    pub(crate) fn group_is_empty(&self) -> bool {
        self.ended.is_some() && test_kill_process_group(self.pid).is_err()
    }

    /// Whether processes that the command started still run, in its group or out of it.
    pub(crate) fn left_behind(&mut self) -> usize {
        self.look();
        // Only orphans of the command can be children of this process now.
        match wait(WaitOptions::NOHANG) {
            Err(_nobody) => 0,
            Ok(_) => children().len().max(1),
        }
    }

    /// Kills the group, and then whoever escaped from it and came to this process as an orphan.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.look();
    }

    /// Kills those that left the group. Call it when the command itself has ended.
    pub(crate) fn kill_escaped(&mut self) {
        for _ in 0..HUNT_ROUNDS_MAX {
            let escaped = children();
            if escaped.is_empty() {
                return;
            }
            for pid in escaped {
                let _gone = kill_process(pid, Signal::KILL);
                // Waited for at once, so that its own children are here in the next round.
                let _reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            }
        }
    }
}

fn ended(status: WaitStatus) -> Option<Ended> {
    if let Some(code) = status.exit_status() {
        return Some(Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    }
    status.terminating_signal().map(Ended::Signalled)
}

/// The children of this process, as far as the kernel tells.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let ids = lists.iter().flat_map(|list| list.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).filter_map(Pid::from_raw).collect()
}
