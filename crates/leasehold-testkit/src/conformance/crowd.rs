//! Several processes with several tasks each, which take one name in turns.

use std::time::Duration;

use super::grants::Grant;
use super::harness::Harness;
use super::support::{EVENT_MAX, Failure, Outcome, ended, soon};
use crate::Worker;

/// How often the case looks at what the processes wrote.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The number of processes, and of tasks in each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) processes: usize,
    /// In each process.
    pub(super) tasks: usize,
}

#[derive(Debug)]
pub(super) struct Crowd {
    workers: Vec<Worker>,
    grants: Vec<Grant>,
}

impl Crowd {
    pub(super) fn start(
        lab: &dyn Harness,
        name: &str,
        size: Size,
        ttl: Duration,
    ) -> Result<Self, Failure> {
        let mut workers = Vec::new();
        for _ in 0..size.processes {
            let mut worker = lab.worker_process()?;
            worker.send_line(&format!("crowd {name} {} {}", size.tasks, ttl.as_millis()))?;
            workers.push(worker);
        }
        Ok(Self { workers, grants: Vec::new() })
    }

    pub(super) fn stop_processes(&mut self) -> Outcome {
        Ok(self.workers.iter_mut().try_for_each(Worker::stop_process)?)
    }

    pub(super) fn continue_processes(&mut self) -> Outcome {
        Ok(self.workers.iter_mut().try_for_each(Worker::continue_process)?)
    }

    /// Waits until `count` more leases were granted and given back.
    pub(super) async fn granted(&mut self, count: usize) -> Outcome {
        self.read().await?;
        let wanted = self.grants.len() + count;
        let more = soon("more grants", async {
            while self.grants.len() < wanted {
                tokio::time::sleep(LOOK_EVERY).await;
                self.read().await?;
            }
            Ok::<(), Failure>(())
        });
        let more = more.await.and_then(|more| more);
        more.map_err(|failure| {
            let errors: Vec<String> = self.workers.iter().map(Worker::stderr).collect();
            Failure::new(format!("{failure}; the processes say {errors:?}"))
        })
    }

    /// Lets each task be granted once more and end; returns all grants.
    pub(super) async fn end(mut self) -> Result<Vec<Grant>, Failure> {
        for worker in &mut self.workers {
            worker.send_line("last")?;
        }
        for worker in &mut self.workers {
            loop {
                match worker.next_line(EVENT_MAX).await? {
                    Some(line) if line == "over" => break,
                    Some(line) => self.grants.push(grant(&line)?),
                    None => return Err(gone(worker)),
                }
            }
            ended(worker).await?;
        }
        Ok(self.grants)
    }

    /// Reads what the processes wrote since the last look.
    async fn read(&mut self) -> Outcome {
        for worker in &mut self.workers {
            while let Ok(line) = worker.next_line(Duration::ZERO).await {
                let line = line.ok_or_else(|| gone(worker))?;
                self.grants.push(grant(&line)?);
            }
        }
        Ok(())
    }
}

fn grant(line: &str) -> Result<Grant, Failure> {
    match line.strip_prefix("grant ") {
        Some(text) => text.parse(),
        None => Err(Failure::new(format!("a process says {line}"))),
    }
}

fn gone(worker: &Worker) -> Failure {
    Failure::new(format!("a process ended: {}", worker.stderr()))
}
