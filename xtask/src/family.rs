//! The processes of a run, and their end.
//!
//! A command that starts many processes runs in a second process, the inner one. The outer process
//! waits and holds one end of a pipe. When the outer process ends, by Ctrl-C or by a kill, the pipe
//! closes. Then the inner process kills everything that the run started. Both processes adopt
//! orphans, so a process of the run stays below them even when its parent ends. The commands decide
//! what a run does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

use crate::Failure;

/// The first argument of the inner process.
pub(crate) const INNER: &str = "--inner";

/// The pause between two looks at the family while it ends.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// `SIGKILL` takes effect within milliseconds. A process that is still there after this long
/// hangs in the kernel, and waiting does not help.
const LOOKS_MAX: usize = 1_000;

/// The pause between two collections of ended orphans.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// The status of a program that Ctrl-C ended, by the convention of shells.
const INTERRUPTED: i32 = 130;

static IS_INNER: OnceLock<()> = OnceLock::new();

/// The children that this process started itself. The code that waits for a child collects its
/// status.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn own() -> MutexGuard<'static, BTreeSet<u32>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program whose status the caller collects; then the caller calls [`forget`].
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    // Locked before the start, so that no child is taken for an orphan.
    let mut own = own();
    let child = command.spawn()?;
    own.insert(child.id());
    Ok(child)
}

/// Forgets a child of [`spawn`], whose status the caller has collected.
pub(crate) fn forget(id: u32) {
    own().remove(&id);
}

/// Runs `work` in an inner process, which is this program again with the same arguments.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    if IS_INNER.get().is_some() {
        return work();
    }
    let arguments = std::env::args_os().skip(1);
    let program = std::env::current_exe().map_err(cannot_guard)?;
    let mut command = Command::new(program);
    command.arg(INNER).args(arguments);
    let passed = wait_for_inner(&mut command).map_err(cannot_guard)?;
    if passed { Ok(()) } else { Err(Failure::Reported) }
}

fn cannot_guard(error: io::Error) -> Failure {
    Failure::Message(format!("cannot run the command in a process of its own: {error}"))
}

fn wait_for_inner(command: &mut Command) -> io::Result<bool> {
    adopt_orphans()?;
    // A process group of its own, because Ctrl-C goes to the whole group of the outer process.
    let mut inner = command.process_group(0).stdin(Stdio::piped()).spawn()?;
    // Taken out, because waiting would close it.
    let lifeline = inner.stdin.take();
    let status = inner.wait();
    end_family();
    drop(lifeline);
    Ok(status?.success())
}

/// Makes this process the inner one; to be called before it starts a thread or a process.
pub(crate) fn become_inner() -> io::Result<()> {
    adopt_orphans()?;
    let _ = IS_INNER.set(());
    std::thread::Builder::new().name("lifeline".to_owned()).spawn(|| {
        // The outer process never writes: a read returns when it has ended.
        let _ = io::stdin().read(&mut [0]);
        end_family();
        std::process::exit(INTERRUPTED);
    })?;
    std::thread::Builder::new().name("orphans".to_owned()).spawn(|| {
        loop {
            std::thread::sleep(COLLECT_EVERY);
            collect_orphans();
        }
    })?;
    Ok(())
}

/// Makes Linux give this process every orphan below it.
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Kills every process below this one, and waits until all have ended.
pub(crate) fn end_family() {
    for _ in 0..LOOKS_MAX {
        let family = below(own_id());
        if family.is_empty() {
            return;
        }
        for id in family {
            if let Some(pid) = pid(id) {
                // An error means that the process has ended meanwhile.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Collects orphans that have ended, as the first process of the machine would.
fn collect_orphans() {
    let (own, parent) = (own(), own_id());
    for process in everybody() {
        let is_orphan = process.parent == parent && !own.contains(&process.id);
        if let Some(pid) = pid(process.id).filter(|_| is_orphan && process.has_ended) {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// The kernel's account of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    id: u32,
    parent: u32,
    has_ended: bool,
    /// Processor time of the process and of the children that it has collected.
    pub(crate) cpu: Duration,
}

impl Process {
    /// Reads a process; `None` when there is none with this number.
    pub(crate) fn read(id: u32) -> Option<Process> {
        Process::from_line(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// Reads a `stat` line: `PID (NAME) STATE PARENT …`, where NAME may hold any character.
    fn from_line(id: u32, line: &str) -> Option<Process> {
        /// Linux counts processor time for programs in this unit, whatever it uses itself.
        const TICK: Duration = Duration::from_millis(10);
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u32>().ok();
        let ticks = (11..=14).map(number).sum::<Option<u32>>()?;
        let has_ended = matches!(*fields.first()?, "Z" | "X");
        Some(Process { id, parent: number(1)?, has_ended, cpu: TICK * ticks })
    }
}

fn everybody() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(Process::read).collect()
}

/// The living children of a process, their children, and so on.
fn below(root: u32) -> BTreeSet<u32> {
    let everybody = everybody();
    let mut family = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in everybody.iter().filter(|process| process.parent == parent) {
            if !process.has_ended && family.insert(process.id) {
                parents.push(process.id);
            }
        }
    }
    family
}

fn own_id() -> u32 {
    std::process::id()
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::ChildStdout;

    /// Which process of a run this test program is.
    const RUN: &str = "XTASK_TEST_RUN";

    #[test]
    fn line_of_a_process_is_read_after_a_strange_name() {
        let line = "12 (a) b) Z 34 12 12 0 -1 4 0 0 0 0 10 20 30 40 20 0";
        let process = Process::from_line(12, line).expect("a process");
        let cpu = Duration::from_secs(1);
        assert_eq!(process, Process { id: 12, parent: 34, has_ended: true, cpu });
    }

    /// This test program again, with the test below alone.
    fn program(role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a file"));
        command.args(["--exact", "family::tests::program_of_a_run", "--nocapture"]);
        command.env(RUN, role);
        command
    }

    /// The program of a run. It does nothing when all tests run.
    #[test]
    fn program_of_a_run() {
        match std::env::var(RUN).as_deref() {
            Ok("outer") => {
                wait_for_inner(&mut program("inner")).expect("it runs");
            }
            Ok("inner") => {
                become_inner().expect("a process may adopt orphans");
                println!("inner {}", own_id());
                let mut shell = Command::new("sh");
                shell.args(["-c", "sleep 1000 & echo orphan $!"]);
                assert!(shell.status().expect("it starts").success());
                println!("both run");
                std::thread::sleep(Duration::from_secs(1_000));
            }
            _ => {}
        }
    }

    /// Starts a run with an orphan. Returns the outer process, and the ids of the other two.
    fn run() -> (Child, BufReader<ChildStdout>, u32, u32) {
        let mut outer = program("outer");
        let mut outer = outer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a run");
        let mut output = BufReader::new(outer.stdout.take().expect("piped"));
        let mut word_after = |start: &str| loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).expect("text"), 0, "no line `{start}…`");
            if let Some((_, word)) = line.trim().split_once(start) {
                return word.to_owned();
            }
        };
        let inner = word_after("inner ").parse().expect("a number");
        let orphan = word_after("orphan ").parse().expect("a number");
        word_after("both run");
        (outer, output, inner, orphan)
    }

    fn await_end(id: u32) {
        for _ in 0..LOOKS_MAX * 4 {
            if Process::read(id).is_none_or(|process| process.has_ended) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        panic!("process {id} is still there");
    }

    #[test]
    fn killed_outer_process_takes_the_run_with_it() {
        let (mut outer, _output, inner, orphan) = run();
        outer.kill().expect("it runs");
        outer.wait().expect("it ends");
        await_end(inner);
        await_end(orphan);
    }

    #[test]
    fn outer_process_ends_what_a_killed_inner_process_left() {
        let (mut outer, _output, inner, orphan) = run();
        let inner = pid(inner).expect("a process id");
        rustix::process::kill_process(inner, Signal::KILL).expect("it runs");
        assert!(outer.wait().expect("it ends").success());
        await_end(orphan);
    }
}
