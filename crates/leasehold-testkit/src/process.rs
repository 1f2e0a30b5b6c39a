//! Child processes that never outlive the test process, and signals to them.
//!
//! This module knows nothing about servers or workers. Servers such as PostgreSQL work in processes
//! of their own: signals to a whole family are for them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// The pause between two looks at an awaited condition of the operating system.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A signal takes effect within milliseconds; a machine that needs longer is broken.
const SIGNAL_LIMIT: Duration = Duration::from_secs(10);

/// Whether a process exists and has not ended; a process that only waits to be collected has ended.
pub fn is_alive(pid: u32) -> bool {
    status(pid).is_some_and(|status| !status.has_ended())
}

/// A child process in a process group of its own, not collected yet.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a program that gets `SIGKILL` when the test process ends.
    pub(crate) fn spawn(command: Command) -> io::Result<Process> {
        Ok(Process { child: spawn_from_lasting_thread(command)? })
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status when the process has ended.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end, at most for `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            let status = self.try_wait()?;
            if status.is_some() || started.elapsed() >= limit {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal to this process alone; the result is false when it had ended.
    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<bool> {
        // Collecting it first makes sure that the number does not belong to another process.
        if self.try_wait()?.is_some() {
            return Ok(false);
        }
        send(self.id(), signal)?;
        Ok(true)
    }

    /// Stops this process alone, and returns when none of its threads runs any more.
    pub(crate) fn stop(&mut self) -> io::Result<bool> {
        Ok(self.signal(Signal::STOP)? && wait_until_stopped(self.id())?)
    }

    /// Stops this process and all its descendants; the result is false when it had ended.
    pub(crate) fn stop_family(&mut self) -> io::Result<bool> {
        if !self.stop()? {
            return Ok(false);
        }
        // A child may have started another before it was stopped: look again until there is no new
        // one.
        let mut stopped = BTreeSet::new();
        loop {
            let family = descendants(self.id());
            let new: Vec<u32> = family.difference(&stopped).copied().collect();
            if new.is_empty() {
                return Ok(true);
            }
            for pid in &new {
                send(*pid, Signal::STOP)?;
                wait_until_stopped(*pid)?;
            }
            stopped.extend(new);
        }
    }

    /// Continues this process and all its descendants; the result is false when it had ended.
    pub(crate) fn continue_family(&mut self) -> io::Result<bool> {
        if self.try_wait()?.is_some() {
            return Ok(false);
        }
        for pid in descendants(self.id()) {
            send(pid, Signal::CONT)?;
        }
        self.signal(Signal::CONT)
    }

    /// Ends this process and all its descendants with `SIGKILL`, and waits until they are gone.
    pub(crate) fn kill_family(&mut self) -> io::Result<()> {
        // Stopped first, so that none starts a process after the list was made.
        if !self.stop_family()? {
            return Ok(());
        }
        let family = descendants(self.id());
        send(self.id(), Signal::KILL)?;
        for pid in &family {
            send(*pid, Signal::KILL)?;
        }
        self.child.wait()?;
        wait_until("descendants to end", || family.iter().all(|pid| !is_alive(*pid)))
    }

    /// Ends this process and what is left in its process group with `SIGKILL`.
    pub(crate) fn kill_group(&mut self) {
        // The number stays the group's as long as a process is in it; an error means that none is.
        // An empty group's number belongs to another only after all process numbers were handed out
        // once around since then.
        if let Some(group) = pid(self.id()) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Starts a program from the one thread that lives as long as the test process.
///
/// The death signal of a child fires when the *thread* that started it ends, and the threads of
/// tests end early.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, SyncSender<io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        std::thread::Builder::new()
            .name("testkit-spawner".to_owned())
            .spawn(move || {
                for (command, answer) in jobs {
                    let _ = answer.send(spawn_here(command));
                }
            })
            .expect("a test process can start one more thread");
        sender
    });
    let (sender, answer) = sync_channel(1);
    spawner.send((command, sender)).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}

fn spawn_here(mut command: Command) -> io::Result<Child> {
    let parent = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may run. These are two plain
    // system calls, and the error is made without allocating. It runs after a change of user,
    // which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the line above; then nothing would end this process.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
    command.spawn()
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Sends a signal; a process that is already gone is no error.
fn send(number: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = pid(number) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    match rustix::process::kill_process(pid, signal) {
        Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits until no thread of a process runs; the result is false when it ended instead.
fn wait_until_stopped(pid: u32) -> io::Result<bool> {
    wait_until("a process to stop", || {
        thread_statuses(pid).iter().all(|thread| thread.state == 'T' || thread.has_ended())
    })?;
    Ok(is_alive(pid))
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> io::Result<()> {
    let started = Instant::now();
    while !done() {
        if started.elapsed() >= SIGNAL_LIMIT {
            let message = format!("waited {SIGNAL_LIMIT:?} for {what}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The kernel's account of a process or thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    state: char,
    parent: u32,
}

impl Status {
    /// Reads a `stat` line: `PID (NAME) STATE PARENT …`, where NAME may hold any character.
    fn from_line(line: &str) -> Option<Status> {
        let (_, rest) = line.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        Some(Status { state, parent: fields.next()?.parse().ok()? })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

fn status(pid: u32) -> Option<Status> {
    Status::from_line(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn thread_statuses(pid: u32) -> Vec<Status> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok())
        .filter_map(|line| Status::from_line(&line))
        .collect()
}

/// The living children of a process, their children, and so on.
fn descendants(root: u32) -> BTreeSet<u32> {
    let everybody: Vec<(u32, Status)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, status(pid)?)))
        .filter(|(_, status)| !status.has_ended())
        .collect();
    let mut family = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, status) in &everybody {
            if status.parent == parent && family.insert(*pid) {
                parents.push(*pid);
            }
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    /// A shell with a child; both run until they are killed.
    fn family() -> (Process, u32) {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let mut line = String::new();
        let output = process.child().stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        (process, line.trim().parse().unwrap())
    }

    #[test]
    fn name_with_brackets_and_spaces_does_not_confuse() {
        let status = Status::from_line("12 (a) b) S 34 12 12 0").unwrap();
        assert_eq!(status, Status { state: 'S', parent: 34 });
    }

    #[test]
    fn family_stops_continues_and_ends_together() {
        let (mut process, child) = family();
        assert!(process.stop_family().unwrap());
        assert_eq!(status(process.id()).unwrap().state, 'T');
        assert_eq!(status(child).unwrap().state, 'T');
        assert!(process.continue_family().unwrap());
        wait_until("the child to continue", || status(child).unwrap().state != 'T').unwrap();
        process.kill_family().unwrap();
        assert!(!is_alive(process.id()));
        assert!(!is_alive(child));
    }

    #[test]
    fn ended_process_takes_no_signal() {
        let mut process = Process::spawn(Command::new("true")).unwrap();
        process.wait(SIGNAL_LIMIT).unwrap().unwrap();
        assert!(!process.signal(Signal::STOP).unwrap());
        assert!(!process.stop_family().unwrap());
        process.kill_family().unwrap();
    }

    #[test]
    fn child_outlives_the_thread_that_asked_for_it() {
        let started = std::thread::spawn(|| {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped());
            Process::spawn(command).unwrap()
        });
        let mut process = started.join().unwrap();
        assert!(process.stop().unwrap());
        process.kill_group();
        assert!(!is_alive(process.id()));
    }
}
