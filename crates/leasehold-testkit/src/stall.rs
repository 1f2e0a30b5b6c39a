//! A disk that stalls under one process: what it flushes does not return until the stall ends.
//!
//! `strace` holds up the process's calls of `fsync` and `fdatasync` as they are made. This works
//! for servers that make these calls without the C library, which a preloaded library cannot reach.
//! Everything else of the process goes on, only slower: each of its system calls takes a detour.
//!
//! Reads, and writes that nobody waits for, do not stall. Nor do processes that the process had
//! started before.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::process::{POLL, Process};
use crate::programs;

/// How long a flush takes: longer than any test, so that a stall ends when it is told to.
const STALL: Duration = Duration::from_secs(3600);

/// Attaching and detaching take milliseconds; more than this is a broken machine.
const LIMIT: Duration = Duration::from_secs(10);

/// A stall of the disk for one process, which ends when this is dropped.
///
/// Also ends with the test process, however that ends.
#[derive(Debug)]
pub struct StalledDisk {
    pid: u32,
    strace: Process,
    folder: Folder,
}

impl StalledDisk {
    /// Stalls the disk for a process with all its threads.
    ///
    /// Returns when every flush that begins from now on waits.
    pub fn of(pid: u32) -> Result<StalledDisk> {
        let program = programs::find("strace", "strace")?;
        let folder = Folder::new()?;
        let messages = File::create(folder.path().join("messages"));
        let messages = messages.doing(|| "make a file for the messages of `strace`".to_owned())?;
        let mut command = Command::new(program);
        command
            .args(["--follow-forks", "--trace=fsync,fdatasync", "--signal=none"])
            .arg(format!("--inject=fsync,fdatasync:delay_enter={}", STALL.as_micros()))
            .arg(format!("--attach={pid}"))
            .arg("--output")
            .arg(folder.path().join("calls"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages);
        let strace = Process::spawn(command).doing(|| "start `strace`".to_owned())?;
        let mut stalled = StalledDisk { pid, strace, folder };
        stalled.wait_attached()?;
        Ok(stalled)
    }

    /// Whether a flush waits, or has waited, because of the stall.
    pub fn is_felt(&self) -> bool {
        !self.read("calls").is_empty()
    }

    /// Ends the stall; flushes that wait are made now.
    ///
    /// Returns when nothing of the stall is left.
    pub fn heal(mut self) -> Result<()> {
        self.end()
    }

    /// Waits until `strace` says that it is attached, and the kernel says so of each thread.
    fn wait_attached(&mut self) -> Result<()> {
        let said = format!("Process {} attached", self.pid);
        let started = Instant::now();
        loop {
            let ended = self.strace.try_wait().doing(|| "look after `strace`".to_owned())?;
            let messages = self.read("messages");
            if ended.is_some() && tracers(self.pid).is_empty() {
                return Err(Error::NotRunning { name: format!("process {}", self.pid) });
            }
            if ended.is_some() {
                let reason = messages.trim().to_owned();
                return Err(Error::MayNotTrace { pid: self.pid, reason });
            }
            if messages.contains(&said) && self.has_all_threads() {
                return Ok(());
            }
            let waited = started.elapsed();
            if waited >= LIMIT {
                let what = format!("`strace` to attach to process {}", self.pid);
                return Err(Error::TimedOut { what, waited, seen: messages });
            }
            std::thread::sleep(POLL);
        }
    }

    fn has_all_threads(&self) -> bool {
        let tracers = tracers(self.pid);
        !tracers.is_empty() && tracers.iter().all(|tracer| *tracer == self.strace.id())
    }

    fn end(&mut self) -> Result<()> {
        // It lets go of the process when it is asked to end; when it is killed, the kernel does
        // that for it.
        let asked = self.strace.signal(Signal::TERM).and_then(|_| self.strace.wait(LIMIT));
        if !matches!(asked, Ok(Some(_))) {
            self.strace.kill_group();
        }
        asked.map(drop).doing(|| "end `strace`".to_owned())
    }

    fn read(&self, file: &str) -> String {
        let path: PathBuf = self.folder.path().join(file);
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }
}

impl Drop for StalledDisk {
    fn drop(&mut self) {
        // Nothing can be done about an error here; the death signal is the second net.
        let _ = self.end();
    }
}

/// Who traces each thread of a process; 0 is nobody.
fn tracers(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
        .filter_map(|text| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::is_alive;
    use crate::worker::Worker;

    const EVENT_MAX: Duration = Duration::from_secs(30);

    /// A program of two threads; one flushes a file when it is told to, the other only answers.
    const PROGRAM: &str = "
import os, sys, tempfile, threading
file = tempfile.TemporaryFile()
go = threading.Event()
def flush():
    go.wait()
    os.fsync(file.fileno())
    print('flushed', flush=True)
threading.Thread(target=flush).start()
print('ready', flush=True)
for line in sys.stdin:
    if line.strip() == 'flush':
        go.set()
    else:
        print('here', flush=True)
";

    async fn program() -> Worker {
        let mut command = Command::new(programs::find("python3", "python3").unwrap());
        command.args(["-c", PROGRAM]);
        let mut worker = Worker::spawn(command).unwrap();
        worker.wait_for_line("ready", EVENT_MAX).await.unwrap();
        worker
    }

    async fn felt(stalled: &StalledDisk) {
        let started = Instant::now();
        while !stalled.is_felt() {
            assert!(started.elapsed() < EVENT_MAX, "waited {EVENT_MAX:?} in vain");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stalls the disk while a thread flushes; what the program says then is that it is there,
    /// and that it has flushed only after the stall has ended.
    async fn stalls(end: impl FnOnce(StalledDisk)) {
        let mut worker = program().await;
        let stalled = StalledDisk::of(worker.pid()).unwrap();
        let strace = stalled.strace.id();
        assert_eq!(tracers(worker.pid()), [strace; 2]);
        assert!(!stalled.is_felt());
        worker.send_line("flush").unwrap();
        felt(&stalled).await;
        worker.send_line("are you there?").unwrap();
        let said = worker.next_line(EVENT_MAX).await.unwrap();
        assert_eq!(said.as_deref(), Some("here"), "its disk alone stalls");
        end(stalled);
        assert!(!is_alive(strace));
        let said = worker.next_line(EVENT_MAX).await.unwrap();
        assert_eq!(said.as_deref(), Some("flushed"));
        assert!(tracers(worker.pid()).iter().all(|tracer| *tracer == 0));
    }

    #[tokio::test]
    async fn flush_waits_until_the_disk_heals_while_the_program_goes_on() {
        stalls(|stalled| stalled.heal().unwrap()).await;
    }

    #[tokio::test]
    async fn stall_ends_when_it_is_dropped() {
        stalls(drop).await;
    }

    #[tokio::test]
    async fn stall_ends_when_its_tool_is_killed() {
        stalls(|mut stalled| stalled.strace.kill_group()).await;
    }

    #[tokio::test]
    async fn process_that_may_not_be_traced_is_an_error_with_advice() {
        let worker = program().await;
        let _first = StalledDisk::of(worker.pid()).unwrap();
        // A process has one tracer.
        let error = StalledDisk::of(worker.pid()).unwrap_err();
        assert!(matches!(&error, Error::MayNotTrace { pid, .. } if *pid == worker.pid()));
        let text = error.to_string();
        assert!(text.contains("not permitted") && text.contains("ptrace_scope"), "{text}");
    }

    #[tokio::test]
    async fn process_that_has_ended_has_no_disk_to_stall() {
        let mut worker = program().await;
        worker.kill().unwrap();
        let error = StalledDisk::of(worker.pid()).unwrap_err();
        assert!(matches!(error, Error::NotRunning { .. }), "{error}");
    }
}
