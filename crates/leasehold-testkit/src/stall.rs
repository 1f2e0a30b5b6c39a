//! A disk that stalls under one process: its writes and flushes do not return until the stall ends.
//!
//! `strace` holds up the process's calls. This also works for servers that make calls without the C
//! library, which a preloaded library cannot reach. The process runs on but is slower: each of its
//! system calls takes a detour.
//!
//! Reads do not stall. Neither do files that the process opens later, or other processes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::process::{POLL, Process};
use crate::programs;

/// The calls that a stalled disk does not finish.
const CALLS: &str = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync";

/// How long a call takes: longer than any test, so that only the test ends a stall.
const STALL: Duration = Duration::from_secs(3600);

/// Attaching and detaching take milliseconds; a machine that needs longer is broken.
const LIMIT: Duration = Duration::from_secs(10);

/// A stall of the disk for one process, which ends when this is dropped.
///
/// It also ends with the test process, however that ends.
#[derive(Debug)]
pub struct StalledDisk {
    pid: u32,
    strace: Process,
    folder: Folder,
}

impl StalledDisk {
    /// Stalls the files that a process has open in a folder or below, for all its threads.
    ///
    /// Returns when every write and flush of them that begins from now on waits.
    pub fn of(pid: u32, folder: &Path) -> Result<StalledDisk> {
        let files = open_files(pid, folder)?;
        let program = programs::find("strace", "strace")?;
        let folder = Folder::new()?;
        let messages = File::create(folder.path().join("messages"));
        let messages = messages.doing(|| "make a file for the messages of `strace`".to_owned())?;
        let mut command = Command::new(program);
        command
            .args(["--follow-forks", "--signal=none"])
            .arg(format!("--trace={CALLS}"))
            .arg(format!("--inject={CALLS}:delay_enter={}", STALL.as_micros()))
            .args(files.iter().flat_map(|file| [OsStr::new("--trace-path"), file.as_os_str()]))
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

    /// Whether a write or flush waits, or has waited, because of the stall.
    pub fn is_felt(&self) -> bool {
        !self.read("calls").is_empty()
    }

    /// Ends the stall; the waiting calls finish now.
    ///
    /// Returns when nothing of the stall is left.
    pub fn heal(mut self) -> Result<()> {
        self.end()
    }

    /// Waits until `strace` reports that it is attached, and the kernel reports it of each thread.
    fn wait_attached(&mut self) -> Result<()> {
        let said = format!("Process {} attached", self.pid);
        let started = Instant::now();
        loop {
            let ended = self.strace.try_wait().doing(|| "look after `strace`".to_owned())?;
            let messages = self.read("messages");
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
        // `strace` detaches when it is asked to end. When it is killed, the kernel detaches it.
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

/// The files that a process has open in a folder or below.
fn open_files(pid: u32, folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let doing = || format!("stall the disk of process {pid}");
    let folder = folder.canonicalize().doing(doing)?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).doing(doing)?.flatten();
    // A file that was closed meanwhile has no path any more.
    let paths = open.filter_map(|file| fs::read_link(file.path()).ok());
    let files: BTreeSet<PathBuf> =
        paths.filter(|path| path.starts_with(&folder) && path.is_file()).collect();
    if files.is_empty() {
        // Without a path, `strace` would hold up every write of the process.
        let source = io::Error::other(format!("it has no file open in {}", folder.display()));
        return Err(Error::Io { doing: doing(), source });
    }
    Ok(files)
}

/// The tracer of each thread of a process; 0 for none.
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
    use tempfile::TempDir;

    const EVENT_MAX: Duration = Duration::from_secs(30);

    /// A program of two threads. On request it writes to a file in one and flushes it in the other.
    /// It answers in between.
    const PROGRAM: &str = "
import os, sys, threading
file, other = [open(name, 'wb', buffering=0) for name in sys.argv[1:]]
def flush():
    os.fsync(file.fileno())
    print('flushed', flush=True)
def write():
    file.write(b'x')
    print('written', flush=True)
threads = {}
def make(name, what):
    go = threading.Event()
    threading.Thread(target=lambda: (go.wait(), what()), daemon=True).start()
    threads[name] = go
make('flush', flush)
make('write', write)
print('ready', flush=True)
for line in sys.stdin:
    if line.strip() in threads:
        threads[line.strip()].set()
    else:
        other.write(b'x')
        os.fsync(other.fileno())
        print('here', flush=True)
";

    /// The program, with one file in each of two folders. The files are in memory, because a real
    /// disk may take long as well.
    async fn program() -> (Worker, [TempDir; 2]) {
        let folders = [(); 2].map(|()| TempDir::new_in("/dev/shm").unwrap());
        let mut command = Command::new(programs::find("python3", "python3").unwrap());
        command.args(["-c", PROGRAM]);
        command.args(folders.iter().map(|folder| folder.path().join("file")));
        let mut worker = Worker::spawn(command).unwrap();
        worker.wait_for_line("ready", EVENT_MAX).await.unwrap();
        (worker, folders)
    }

    async fn felt(stalled: &StalledDisk) {
        let started = Instant::now();
        while !stalled.is_felt() {
            assert!(started.elapsed() < EVENT_MAX, "waited {EVENT_MAX:?} in vain");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stalls the disk while a thread uses it. Meanwhile the program still answers and uses its
    /// other files. It writes `after` only when the stall has ended.
    async fn stalls((order, after): (&str, &str), end: impl FnOnce(StalledDisk)) {
        let (mut worker, [folder, _other]) = program().await;
        let stalled = StalledDisk::of(worker.pid(), folder.path()).unwrap();
        let strace = stalled.strace.id();
        assert_eq!(tracers(worker.pid()), [strace; 3]);
        assert!(!stalled.is_felt());
        worker.send_line(order).unwrap();
        felt(&stalled).await;
        worker.send_line("are you there?").unwrap();
        let said = worker.next_line(EVENT_MAX).await.unwrap();
        assert_eq!(said.as_deref(), Some("here"), "its disk alone stalls");
        end(stalled);
        assert!(!is_alive(strace));
        let said = worker.next_line(EVENT_MAX).await.unwrap();
        assert_eq!(said.as_deref(), Some(after));
        assert!(tracers(worker.pid()).iter().all(|tracer| *tracer == 0));
    }

    const FLUSH: (&str, &str) = ("flush", "flushed");

    #[tokio::test]
    async fn flush_waits_until_the_disk_heals_while_the_program_goes_on() {
        stalls(FLUSH, |stalled| stalled.heal().unwrap()).await;
    }

    #[tokio::test]
    async fn write_waits_until_the_disk_heals_while_the_program_goes_on() {
        stalls(("write", "written"), |stalled| stalled.heal().unwrap()).await;
    }

    #[tokio::test]
    async fn stall_ends_when_it_is_dropped() {
        stalls(FLUSH, drop).await;
    }

    #[tokio::test]
    async fn stall_ends_when_its_tool_is_killed() {
        stalls(FLUSH, |mut stalled| stalled.strace.kill_group()).await;
    }

    #[tokio::test]
    async fn process_that_may_not_be_traced_is_an_error_with_advice() {
        let (worker, [folder, _]) = program().await;
        let _first = StalledDisk::of(worker.pid(), folder.path()).unwrap();
        // A process has one tracer.
        let error = StalledDisk::of(worker.pid(), folder.path()).unwrap_err();
        assert!(matches!(&error, Error::MayNotTrace { pid, .. } if *pid == worker.pid()));
        let text = error.to_string();
        assert!(text.contains("not permitted") && text.contains("ptrace_scope"), "{text}");
    }

    #[tokio::test]
    async fn process_without_a_file_there_has_no_disk_to_stall() {
        let (mut worker, folders) = program().await;
        let elsewhere = Folder::new().unwrap();
        let error = StalledDisk::of(worker.pid(), elsewhere.path()).unwrap_err().to_string();
        assert!(error.contains("it has no file open in"), "{error}");
        worker.kill().unwrap();
        assert!(StalledDisk::of(worker.pid(), folders[0].path()).is_err());
    }
}
