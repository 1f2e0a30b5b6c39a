//! A program that a crash test talks to by lines, and stops, continues and kills.
//!
//! The tests decide what the program does; this module only handles its process. Signals go to the
//! program alone, not to its children: the test sees whether those survive. The drop also ends the
//! children that stayed in the program's process group.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::process::{POLL, Process};

/// Lines read ahead of the test; a program that writes more has to wait, as with any full pipe.
const LINES_MAX: usize = 1024;

/// A running program with its standard input and output in the test's hands.
///
/// Standard error goes to a file that errors quote. Dropping the worker kills it.
#[derive(Debug)]
pub struct Worker {
    name: String,
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    folder: Folder,
}

impl Worker {
    /// Starts the program; its arguments and environment are set on the command before.
    pub fn spawn(mut command: Command) -> Result<Worker> {
        let name = command.get_program().to_string_lossy().into_owned();
        let folder = Folder::new()?;
        let errors = fs::File::create(folder.path().join("stderr"));
        let errors = errors.doing(|| format!("make a file for the messages of `{name}`"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut process = Process::spawn(command).doing(|| format!("start `{name}`"))?;
        let input = process.child().stdin.take();
        let output = process.child().stdout.take().expect("standard output was piped above");
        let (sender, lines) = channel(LINES_MAX);
        let worker = Worker { name, process, input, lines, folder };
        // A thread of its own, so that no line is lost when a caller gives up a wait.
        std::thread::Builder::new()
            .name("testkit-worker-output".to_owned())
            .spawn(move || read_lines(output, &sender))
            .doing(|| format!("read from `{}`", worker.name))?;
        Ok(worker)
    }

    /// The process number.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The standard error of the program so far.
    pub fn stderr(&self) -> String {
        let bytes = fs::read(self.folder.path().join("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes a line to the program's standard input.
    ///
    /// Blocks when the program has left some 64 KiB unread, for instance because it is stopped.
    pub fn send_line(&mut self, line: &str) -> Result<()> {
        let Some(input) = self.input.as_mut() else {
            return Err(Error::NotRunning { name: format!("{}, its input is closed", self.name) });
        };
        let sent = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        sent.doing(|| format!("write a line to `{}`", self.name))
    }

    /// Closes the program's standard input, which reads as its end.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line of standard output, without its end; `None` when the output is closed.
    ///
    /// # Cancel safety
    ///
    /// No line is lost when the caller stops waiting.
    pub async fn next_line(&mut self, limit: Duration) -> Result<Option<String>> {
        match tokio::time::timeout(limit, self.lines.recv()).await {
            Ok(line) => Ok(line),
            Err(_) => Err(self.timed_out("a line", limit)),
        }
    }

    /// Reads lines until one starts with `start`, and returns what follows in that line.
    ///
    /// # Cancel safety
    ///
    /// Lines that were passed over are gone; a line that starts with `start` is not lost.
    pub async fn wait_for_line(&mut self, start: &str, limit: Duration) -> Result<String> {
        let started = Instant::now();
        loop {
            let left = limit.saturating_sub(started.elapsed());
            let line = tokio::time::timeout(left, self.lines.recv()).await;
            let Ok(Some(line)) = line else {
                let what = format!("a line that starts with `{start}`");
                return Err(self.timed_out(&what, started.elapsed()));
            };
            if let Some(rest) = line.strip_prefix(start) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// Ends the program with `SIGKILL`, and collects it; it may have ended already.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        let killed = self.process.signal(Signal::KILL).and_then(|_| self.process.child().wait());
        killed.doing(|| format!("kill `{}`", self.name))
    }

    /// Asks the program to end with `SIGTERM`.
    pub fn terminate(&mut self) -> Result<()> {
        let sent = self.process.signal(Signal::TERM);
        self.sent("end", sent)
    }

    /// Stops the program with `SIGSTOP`, and returns when no thread of it runs any more.
    pub fn stop_process(&mut self) -> Result<()> {
        let sent = self.process.stop();
        self.sent("stop", sent)
    }

    /// Lets a stopped program go on with `SIGCONT`.
    pub fn continue_process(&mut self) -> Result<()> {
        let sent = self.process.signal(Signal::CONT);
        self.sent("continue", sent)
    }

    /// Waits until the program has ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the caller stops waiting.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            let status = self.process.try_wait();
            if let Some(status) = status.doing(|| format!("look after `{}`", self.name))? {
                return Ok(status);
            }
            if started.elapsed() >= limit {
                return Err(self.timed_out("the end", limit));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn sent(&self, verb: &str, result: std::io::Result<bool>) -> Result<()> {
        if result.doing(|| format!("{verb} `{}`", self.name))? {
            return Ok(());
        }
        Err(Error::NotRunning { name: self.name.clone() })
    }

    fn timed_out(&self, what: &str, waited: Duration) -> Error {
        let what = format!("{what} of `{}`", self.name);
        Error::TimedOut { what, waited, seen: format!("its messages:\n{}", self.stderr()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.kill_group();
    }
}

fn read_lines(output: ChildStdout, lines: &Sender<String>) {
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line).into_owned();
        // The worker was dropped, and nothing reads any more.
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::is_alive;
    use std::os::unix::process::ExitStatusExt;

    const LIMIT: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::spawn(command).unwrap()
    }

    async fn eventually(is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < LIMIT, "waited {LIMIT:?} in vain");
            tokio::time::sleep(POLL).await;
        }
    }

    #[tokio::test]
    async fn lines_go_in_and_come_out() {
        let mut worker = shell("while read line; do echo \"got $line\"; done; echo bye; exit 3");
        worker.send_line("one").unwrap();
        assert_eq!(worker.next_line(LIMIT).await.unwrap().as_deref(), Some("got one"));
        worker.send_line("two").unwrap();
        worker.close_input();
        assert_eq!(worker.wait_for_line("by", LIMIT).await.unwrap(), "e");
        assert_eq!(worker.next_line(LIMIT).await.unwrap(), None);
        assert_eq!(worker.wait_exit(LIMIT).await.unwrap().code(), Some(3));
    }

    #[tokio::test]
    async fn stopped_worker_answers_after_it_continues() {
        let mut worker = shell("while read line; do echo $line; done");
        worker.stop_process().unwrap();
        worker.send_line("held").unwrap();
        let short = Duration::from_millis(20);
        let error = worker.next_line(short).await.unwrap_err().to_string();
        assert!(error.starts_with("waited 20ms for a line of `sh`"), "{error}");
        worker.continue_process().unwrap();
        assert_eq!(worker.next_line(LIMIT).await.unwrap().as_deref(), Some("held"));
    }

    #[tokio::test]
    async fn kill_ends_the_worker_but_not_its_child_and_drop_ends_both() {
        let mut worker = shell("sleep 1000 & echo $!; wait");
        let child: u32 = worker.next_line(LIMIT).await.unwrap().unwrap().parse().unwrap();
        assert_eq!(worker.kill().unwrap().signal(), Some(9));
        assert!(!is_alive(worker.pid()));
        assert!(is_alive(child));
        assert!(matches!(worker.stop_process(), Err(Error::NotRunning { .. })));
        drop(worker);
        // Another process collects the child, so that no event reports its end.
        eventually(|| !is_alive(child)).await;
    }

    #[tokio::test]
    async fn error_quotes_what_the_worker_said() {
        let mut worker = shell("echo broken >&2; read line");
        eventually(|| !worker.stderr().is_empty()).await;
        let error = worker.wait_exit(Duration::ZERO).await.unwrap_err().to_string();
        assert!(error.ends_with("its messages:\nbroken\n"), "{error}");
    }

    #[tokio::test]
    async fn terminated_worker_ends_by_that_signal() {
        let mut worker = shell("read line");
        worker.terminate().unwrap();
        assert_eq!(worker.wait_exit(LIMIT).await.unwrap().signal(), Some(15));
    }
}
