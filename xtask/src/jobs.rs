//! Programs that run side by side: test programs, and cargo's own.
//!
//! Each job takes some of a fixed number of places, so that the machine does as much at once as it
//! can. The output of a job goes into a file of its own. The commands decide what runs and what
//! they report.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::family::{self, Process};
use crate::test_lines::Seen;

/// The pause between two looks at the running jobs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long to wait for the rest of a job's output after its end. An orphan of the job may keep the
/// pipe open for ever.
const REST_MAX: Duration = Duration::from_secs(1);

/// A job that runs longer hangs. The longest takes a few minutes, and three times as long beside
/// busy loops.
const JOB_MAX: Duration = Duration::from_secs(30 * 60);

/// How often the running jobs are listed when nothing else is printed.
const NEWS_EVERY: Duration = Duration::from_secs(30);

/// A program to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) title: String,
    pub(crate) command: Command,
    /// How many places it takes.
    pub(crate) places: usize,
    /// How many tests it runs at once.
    pub(crate) tests_at_once: usize,
    /// Whether it is cargo, which locks the folder that it writes to. Such jobs run one after the
    /// other.
    pub(crate) is_cargo: bool,
    /// The words that make `cargo test` run this test program alone.
    pub(crate) target: String,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) title: String,
    pub(crate) target: String,
    pub(crate) passed: bool,
    /// Why it failed, when the failed tests do not show it.
    pub(crate) reason: Option<String>,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) tests_at_once: usize,
    pub(crate) seen: Seen,
    pub(crate) log: PathBuf,
}

#[derive(Debug)]
struct Running {
    title: String,
    target: String,
    places: usize,
    tests_at_once: usize,
    is_cargo: bool,
    child: Child,
    begun: Instant,
    log: PathBuf,
    seen: Arc<Mutex<Seen>>,
    /// Ends when the output has ended.
    output: Receiver<()>,
}

/// Runs all jobs with at most `places` taken at once, and calls `done` at the end of each. A job
/// that comes first in the list starts first. The files with the output are in `folder`.
pub(crate) fn run_all(
    mut waiting: Vec<Job>,
    places: usize,
    folder: &Path,
    mut done: impl FnMut(&Done),
) -> io::Result<Vec<Done>> {
    fs::create_dir_all(folder)?;
    let (mut running, mut ended): (Vec<Running>, Vec<Done>) = (Vec::new(), Vec::new());
    let mut news_due = Instant::now() + NEWS_EVERY;
    while !waiting.is_empty() || !running.is_empty() {
        let mut free = places.saturating_sub(running.iter().map(|one| one.places).sum());
        let mut index = 0;
        while index < waiting.len() {
            let job = &waiting[index];
            let is_locked = job.is_cargo && running.iter().any(|one| one.is_cargo);
            if !is_locked && (job.places <= free || running.is_empty()) {
                let started = Running::start(waiting.remove(index), folder)?;
                free = free.saturating_sub(started.places);
                running.push(started);
            } else {
                index += 1;
            }
        }
        std::thread::sleep(LOOK_EVERY);
        let mut index = 0;
        while index < running.len() {
            match running[index].status()? {
                Some((status, cpu)) => {
                    let one = running.remove(index).ended(status, cpu);
                    done(&one);
                    ended.push(one);
                    news_due = Instant::now() + NEWS_EVERY;
                }
                None => index += 1,
            }
        }
        if Instant::now() >= news_due {
            println!("   …       {}", news(&running));
            news_due = Instant::now() + NEWS_EVERY;
        }
    }
    Ok(ended)
}

/// The jobs that still run, in one line.
fn news(running: &[Running]) -> String {
    let one = |one: &Running| {
        let seen = one.seen();
        match seen.announced {
            0 => one.title.clone(),
            announced => format!("{} {}/{announced}", one.title, seen.ended.len()),
        }
    };
    running.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Running {
    fn start(job: Job, folder: &Path) -> io::Result<Running> {
        let Job { title, mut command, places, tests_at_once, is_cargo, target } = job;
        let log = folder.join(format!("{}.log", title.replace([' ', '/'], "-")));
        let file = File::create(&log)?;
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        command.stdin(Stdio::null()).process_group(0);
        let begun = Instant::now();
        let child = family::spawn(&mut command)?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (sender, output) = channel();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            // Without its file the output is lost, but the result is not.
            let _ = keep(reader, file, begun, &shared);
            drop(sender);
        });
        Ok(Running {
            title,
            target,
            places,
            tests_at_once,
            is_cargo,
            child,
            begun,
            log,
            seen,
            output,
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status and the processor time when it has ended.
    fn status(&mut self) -> io::Result<Option<(Result<ExitStatus, String>, Duration)>> {
        // Read before the process is collected, because its numbers go with it.
        let cpu = Process::read(self.child.id()).map_or(Duration::ZERO, |process| process.cpu);
        if let Some(status) = self.child.try_wait()? {
            family::forget(self.child.id());
            return Ok(Some((Ok(status), cpu)));
        }
        if self.begun.elapsed() < JOB_MAX {
            return Ok(None);
        }
        self.child.kill()?;
        self.child.wait()?;
        family::forget(self.child.id());
        Ok(Some((Err(format!("it was killed after {} s", JOB_MAX.as_secs())), cpu)))
    }

    fn ended(self, status: Result<ExitStatus, String>, cpu: Duration) -> Done {
        let wall = self.begun.elapsed();
        let whole = self.output.recv_timeout(REST_MAX);
        debug_assert_ne!(whole, Ok(()), "nothing is sent");
        let cut = whole == Err(RecvTimeoutError::Timeout);
        let seen = std::mem::take(&mut *self.seen());
        let failed = seen.failed().next().is_some();
        let reason = match status {
            Err(reason) => Some(reason),
            Ok(status) if status.success() => None,
            Ok(_) if failed => None,
            Ok(status) if cut => Some(format!("{status}; a process that it left has its output")),
            Ok(status) => Some(status.to_string()),
        };
        let passed = reason.is_none() && !failed;
        let Running { title, target, tests_at_once, log, .. } = self;
        Done { title, target, passed, reason, wall, cpu, tests_at_once, seen, log }
    }
}

/// Copies the output into the file and reads its lines as they come.
fn keep(output: PipeReader, mut file: File, begun: Instant, seen: &Mutex<Seen>) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        if output.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        file.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.line(text.trim_end(), begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("leasehold-xtask-{name}-{}", std::process::id()))
    }

    fn shell(title: &str, places: usize, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (title, target) = (title.to_owned(), String::new());
        Job { title, command, places, tests_at_once: 1, is_cargo: false, target }
    }

    fn run(name: &str, jobs: Vec<Job>, places: usize) -> Vec<Done> {
        let folder = folder(name);
        let done = run_all(jobs, places, &folder, |_| ()).expect("they run");
        let _ = fs::remove_dir_all(folder);
        done
    }

    #[test]
    fn failed_test_and_failed_status_are_distinguished() {
        let failing = "echo 'running 1 test'; echo 'test a ... FAILED'; exit 101";
        let jobs = vec![shell("tests", 1, failing), shell("other", 1, "exit 3")];
        let mut done = run("status", jobs, 1);
        done.sort_by(|left, right| left.title.cmp(&right.title));
        assert!(!done[0].passed && !done[1].passed);
        assert_eq!(done[0].reason.as_deref(), Some("exit status: 3"));
        assert_eq!(done[1].reason, None);
        assert_eq!(done[1].seen.failed().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn job_that_needs_more_than_all_places_runs_alone() {
        let done = run("places", vec![shell("big", 9, "true"), shell("small", 1, "true")], 2);
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|one| one.passed));
    }

    #[test]
    fn jobs_of_cargo_run_one_after_the_other() {
        let place = folder("cargo").with_extension("alone");
        let place = place.display();
        let script = format!("mkdir {place} && sleep 0.1 && rmdir {place}");
        let cargo = |title| Job { is_cargo: true, ..shell(title, 0, &script) };
        let done = run("one-by-one", vec![cargo("a"), cargo("b"), cargo("c")], 2);
        assert!(done.len() == 3 && done.iter().all(|one| one.passed), "{done:?}");
    }

    #[test]
    fn output_that_an_orphan_keeps_open_is_not_awaited() {
        let done = run("orphan", vec![shell("parent", 1, "echo said; sleep 20 &")], 1);
        assert!(done[0].passed);
        assert!(done[0].wall < JOB_MAX);
    }

    #[test]
    fn jobs_side_by_side_wait_for_each_other() {
        let path = folder("meeting").with_extension("fifo");
        let path = path.display();
        let writes = format!("until [ -e {path} ]; do sleep 0.01; done; echo met > {path}");
        let reads = format!("mkfifo {path} && read word < {path}; rm {path}");
        let done = run("side", vec![shell("w", 1, &writes), shell("r", 1, &reads)], 2);
        assert!(done.iter().all(|one| one.passed), "{done:?}");
    }
}
