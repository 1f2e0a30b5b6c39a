//! The report of a run: each step and program as it ends, and the summary.
//!
//! The commands run everything, `totals` counts, and `test_lines` has the durations.

use std::fs;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::jobs::Done;
use crate::totals::Totals;

/// How many of the slowest tests and programs the summary lists.
const SLOWEST: usize = 10;

/// The events of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) totals: Totals,
    steps: usize,
    failed_steps: Vec<String>,
    failed_tests: Vec<String>,
    programs: Vec<Slow>,
    tests: Vec<Slow>,
}

/// A slow test or program.
#[derive(Debug)]
struct Slow {
    what: String,
    wall: Duration,
    /// Processor time, where it is known.
    cpu: Option<Duration>,
}

impl Report {
    /// Runs one step; prints its failure, and then returns `None`.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Option<T> {
        println!("\n== {name}");
        let started = Instant::now();
        let result = work();
        if let Err(Failure::Message(message)) = &result {
            eprintln!("xtask: {message}");
        }
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("== {name}: {verdict} in {:.1} s", started.elapsed().as_secs_f64());
        self.count(name, result.is_ok(), Totals::default());
        result.ok()
    }

    /// Counts a step. One that fails without a failed test (it did not compile, a test program
    /// crashed) counts as one failure. So the closing line never reads like success.
    fn count(&mut self, name: &str, passed: bool, mut totals: Totals) {
        self.steps += 1;
        if !passed {
            self.failed_steps.push(name.to_owned());
            totals.failed = totals.failed.max(1);
        }
        self.totals += totals;
    }

    /// Prints how a job ended, and shows the output of one that failed.
    pub(crate) fn job(&mut self, done: &Done) {
        self.count(&done.title, done.passed, done.seen.totals);
        self.programs.push(Slow { what: done.title.clone(), wall: done.wall, cpu: Some(done.cpu) });
        // One job runs the documentation's examples of several crates, one crate after the other.
        let durations = match done.target.as_str() {
            "--doc" => Vec::new(),
            _ => done.seen.durations(done.tests_at_once),
        };
        let tests = durations.into_iter().map(|(name, wall)| Slow {
            what: format!("{}  {name}", done.title),
            wall,
            cpu: None,
        });
        self.tests.extend(tests);
        let verdict = if done.passed { "ok    " } else { "FAILED" };
        let Totals { passed, failed, .. } = done.seen.totals;
        let tests = match passed + failed {
            0 => String::new(),
            count => format!("{count} tests"),
        };
        let (title, wall) = (&done.title, done.wall.as_secs_f64());
        println!("   {verdict}  {title:<28} {tests:>11} {wall:>7.1} s");
        if !done.passed {
            self.explain(done);
        }
    }

    fn explain(&mut self, done: &Done) {
        let text = fs::read(&done.log).unwrap_or_default();
        println!("\n-- the output of `{}` without the tests that passed", done.title);
        let text = String::from_utf8_lossy(&text);
        for line in text.lines().filter(|line| !line.ends_with(" ... ok")) {
            println!("{line}");
        }
        if let Some(reason) = &done.reason {
            println!("-- `{}` ended with {reason}", done.title);
        }
        for name in done.seen.failed() {
            let command = repeat_command(&done.target, name);
            println!("-- to repeat it alone: {command}");
            self.failed_tests.push(command);
        }
        println!("-- the whole output is in {}\n", done.log.display());
    }

    /// Whether the run was good: one with an ignored test, or without tests, is not.
    pub(crate) fn is_good(&self) -> bool {
        self.failed_steps.is_empty()
            && self.totals.failed == 0
            && self.totals.ignored == 0
            && self.totals.passed > 0
    }

    /// Prints the summary at the end.
    pub(crate) fn print_summary(&mut self, took: Duration) {
        print_slowest("tests", &mut self.tests);
        print_slowest("programs", &mut self.programs);
        if !self.failed_tests.is_empty() {
            println!("\nto repeat the tests that failed:");
            self.failed_tests.iter().for_each(|command| println!("   {command}"));
        }
        println!("\n{}", self.verdict(took));
        println!("{}", self.closing_line());
    }

    fn verdict(&self, took: Duration) -> String {
        let verdict = if !self.failed_steps.is_empty() {
            format!("failed: {}", self.failed_steps.join(", "))
        } else if self.totals.ignored > 0 {
            "failed: no test may be ignored".to_owned()
        } else if self.totals.passed == 0 {
            "failed: no test ran".to_owned()
        } else {
            "all passed".to_owned()
        };
        format!("{} steps in {:.1} s; {verdict}", self.steps, took.as_secs_f64())
    }

    fn closing_line(&self) -> String {
        let Totals { passed, failed, ignored } = self.totals;
        format!("{passed} passed, {failed} failed, {ignored} skipped")
    }
}

/// The command that runs a test by itself until it fails.
fn repeat_command(target: &str, name: &str) -> String {
    format!("cargo test --workspace --all-features {target} -- --exact '{name}'")
}

fn print_slowest(what: &str, all: &mut [Slow]) {
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|slow| std::cmp::Reverse(slow.wall));
    println!("\nthe slowest {what}:");
    for Slow { what, wall, cpu } in all.iter().take(SLOWEST) {
        let cpu = cpu.map(|cpu| format!(" ({:.1} s of a processor)", cpu.as_secs_f64()));
        println!("   {:>6.1} s  {what}{}", wall.as_secs_f64(), cpu.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(passed: u64, failed: u64, ignored: u64) -> Report {
        Report { totals: Totals { passed, failed, ignored }, ..Report::default() }
    }

    #[test]
    fn passed_tests_alone_are_good() {
        assert!(report(3, 0, 0).is_good());
        assert_eq!(report(3, 0, 0).closing_line(), "3 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn failed_ignored_or_absent_tests_are_not_good() {
        assert!(!report(3, 1, 0).is_good());
        assert!(!report(3, 0, 1).is_good());
        assert!(!report(0, 0, 0).is_good());
    }

    #[test]
    fn step_that_fails_without_a_failed_test_counts_as_one_failure() {
        let mut report = report(3, 0, 0);
        assert!(report.step("compile", || Err::<(), _>(Failure::Reported)).is_none());
        assert_eq!(report.closing_line(), "3 passed, 1 failed, 0 skipped");
        assert!(!report.is_good());
    }

    #[test]
    fn failed_tests_of_a_failed_step_are_not_counted_twice() {
        let mut report = Report::default();
        report.count("tests", false, Totals { passed: 5, failed: 2, ignored: 0 });
        assert_eq!(report.closing_line(), "5 passed, 2 failed, 0 skipped");
    }
}
