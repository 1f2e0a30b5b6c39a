//! Worker processes as their parent sees them, and contests between them for one lock.
//!
//! Dropping a worker's value always ends its process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Result;
use crate::machine::now;
use crate::stats::{Grant, HandOffs};
use crate::work::Work;
use crate::worker::{ARGUMENT, Way};

/// The time between the order to start and the start, in which all workers must read the order.
const START_DELAY: Duration = Duration::from_millis(20);

/// A worker process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this program again as a worker.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ARGUMENT).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a worker has no pipes".into());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the worker says that it is ready.
    pub(crate) fn ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line == "ready\n" { Ok(()) } else { Err("a worker ended before it was ready".into()) }
    }

    /// Reads what the worker found, until it ends.
    pub(crate) fn finish(mut self) -> Result<String> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if status.success() { Ok(text) } else { Err(format!("a worker failed: {status}").into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Several processes that want one lock.
#[derive(Debug, Clone)]
pub(crate) struct Contest {
    pub(crate) way: Way,
    /// The store's URL, or the file's path.
    pub(crate) target: String,
    /// Processes, and tasks in each of them.
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    /// How long each task keeps the lock, and its work meanwhile.
    pub(crate) hold: Duration,
    pub(crate) work: Work,
    pub(crate) window: Duration,
}

/// The results of one round of a contest.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) hand_offs: HandOffs,
    /// CPU time of all workers together, in cores.
    pub(crate) cores: f64,
    /// How often workers took the lock and gave it back, also after the window.
    pub(crate) cycles: usize,
    /// How long after the window the last worker was done. A stall at the end shows only here.
    pub(crate) overrun_ns: u64,
}

impl Contest {
    /// Starts the workers, lets them contend for the window, and collects their results.
    pub(crate) fn round(&self) -> Result<Round> {
        let hold_ns = self.hold.as_nanos().to_string();
        let tasks = self.tasks.to_string();
        let (way, work) = (self.way.word(), self.work.word());
        let arguments = ["contend", way, &self.target, work, &hold_ns, &tasks];
        let mut workers = Vec::new();
        for _ in 0..self.workers {
            workers.push(Worker::start(&arguments)?);
        }
        for worker in &mut workers {
            worker.ready()?;
        }
        let start = now() + START_DELAY.as_nanos() as u64;
        let stop = start + self.window.as_nanos() as u64;
        for worker in &mut workers {
            writeln!(worker.input, "{start} {stop}")?;
        }
        let (mut grants, mut cpu, mut cycles) = (Vec::new(), 0, 0);
        for (number, worker) in workers.into_iter().enumerate() {
            let text = worker.finish()?;
            let (first, rest) = text.split_once('\n').ok_or("a worker found nothing")?;
            let (cpu_ns, had) = first.split_once(' ').ok_or("a worker counted nothing")?;
            cpu += cpu_ns.parse::<u64>()?;
            cycles += had.parse::<usize>()?;
            for line in rest.lines() {
                grants.push(grant(number * self.tasks, line)?);
            }
        }
        let overrun_ns = now().saturating_sub(stop);
        let window = stop - start;
        let hand_offs = HandOffs::of(grants, self.workers * self.tasks, window);
        Ok(Round { hand_offs, cores: cpu as f64 / window as f64, cycles, overrun_ns })
    }
}

/// Reads a line of a worker; `first` is the number of its first task.
fn grant(first: usize, line: &str) -> Result<Grant> {
    let numbers: std::result::Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
    let numbers = numbers?;
    let [task, order, queued, granted, released] = numbers[..] else {
        return Err(format!("a worker wrote `{line}`").into());
    };
    let queued = (queued > 0).then_some(queued);
    let worker = first + task as usize;
    Ok(Grant { worker, order, queued, granted, released })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read_as_workers_write_them() {
        let read = grant(2, "1 17 0 200 300").unwrap();
        let (queued, granted, released) = (None, 200, 300);
        assert_eq!(read, Grant { worker: 3, order: 17, queued, granted, released });
        assert!(grant(3, "0 17 0 200").is_err());
    }
}
