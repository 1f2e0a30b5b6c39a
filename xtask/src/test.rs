//! `cargo xtask test`: everything a change must pass, in one command.
//!
//! Runs the steps one after the other, goes on after a failed one, and sums up at the end. What
//! is tested is left to the crates; counting is left to `totals`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::command::{cargo, passes, passes_with_lines, workspace_root};
use crate::totals::Totals;
use crate::{Failure, no_arguments, setup};

/// The package whose examples are run, and their folder in the workspace.
const EXAMPLES_PACKAGE: &str = "leasehold";
const EXAMPLES_FOLDER: &str = "crates/leasehold/examples";

/// What happened so far.
#[derive(Debug, Default)]
struct Report {
    totals: Totals,
    steps: usize,
    failed_steps: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    no_arguments("test", arguments)?;
    let started = Instant::now();
    let mut report = Report::default();
    if report.step("setup", |_| Ok(reported(setup::run(&[])))) {
        run_steps(&mut report);
    }
    println!("\n{}", report.summary(started.elapsed()));
    println!("{}", report.closing_line());
    if report.is_good() { Ok(()) } else { Err(Failure::Reported) }
}

fn run_steps(report: &mut Report) {
    report.step("format", |_| passes(&mut cargo(["fmt", "--all", "--check"])));
    report.step("clippy", |_| {
        let what = ["clippy", "--workspace", "--all-targets", "--all-features"];
        passes(cargo(what).args(["--", "-D", "warnings"]))
    });
    // Without a choice of targets cargo runs unit, integration and documentation tests, and
    // builds the examples.
    report.step("tests", |totals| {
        let what = ["test", "--workspace", "--all-features", "--no-fail-fast"];
        passes_with_lines(&mut cargo(what), |line| {
            *totals += Totals::from_line(line).unwrap_or_default();
        })
    });
    report.step("documentation", |_| {
        let what = ["doc", "--workspace", "--all-features", "--no-deps"];
        passes(cargo(what).env("RUSTDOCFLAGS", "-D warnings"))
    });
    match example_names(&workspace_root().join(EXAMPLES_FOLDER)) {
        Ok(names) => {
            for name in names {
                let title = format!("example {name}");
                report.step(&title, |_| passes(&mut run_example(&name)));
            }
        }
        Err(error) => {
            report.step("examples", |_| Err(error));
        }
    }
}

fn run_example(name: &str) -> std::process::Command {
    cargo(["run", "--quiet", "--package", EXAMPLES_PACKAGE, "--all-features", "--example", name])
}

/// The examples in a folder, by cargo's rules: `NAME.rs`, or `NAME/main.rs`. No folder, no names.
fn example_names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        let is_file = path.extension().is_some_and(|extension| extension == "rs");
        if (is_file || path.join("main.rs").is_file())
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// Prints what a command had to say, and turns its result into that of a step.
fn reported(result: Result<(), Failure>) -> bool {
    if let Err(Failure::Message(message)) = &result {
        eprintln!("xtask: {message}");
    }
    result.is_ok()
}

impl Report {
    /// Runs one step, and says whether it passed.
    ///
    /// A step that fails without a failed test (it did not compile, a test program crashed) counts
    /// as one failure, so that the closing line never reads like success.
    fn step(&mut self, name: &str, work: impl FnOnce(&mut Totals) -> io::Result<bool>) -> bool {
        println!("\n== {name}");
        let started = Instant::now();
        let mut totals = Totals::default();
        let result = work(&mut totals);
        if let Err(error) = &result {
            eprintln!("xtask: step `{name}` could not run: {error}");
        }
        let passed = result.unwrap_or(false);
        if !passed {
            self.failed_steps.push(name.to_owned());
            totals.failed = totals.failed.max(1);
        }
        self.steps += 1;
        self.totals += totals;
        let verdict = if passed { "ok" } else { "FAILED" };
        println!("== {name}: {verdict} in {:.1} s", started.elapsed().as_secs_f64());
        passed
    }

    /// Whether the project may be called good: an ignored test, or none at all, is not.
    fn is_good(&self) -> bool {
        self.failed_steps.is_empty()
            && self.totals.failed == 0
            && self.totals.ignored == 0
            && self.totals.passed > 0
    }

    fn summary(&self, took: Duration) -> String {
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
        assert!(!report.step("compile", |_| Ok(false)));
        assert_eq!(report.closing_line(), "3 passed, 1 failed, 0 skipped");
        assert!(!report.is_good());
    }

    #[test]
    fn failed_tests_of_a_failed_step_are_not_counted_twice() {
        let mut report = Report::default();
        report.step("tests", |totals| {
            *totals += Totals { passed: 5, failed: 2, ignored: 0 };
            Ok(false)
        });
        assert_eq!(report.closing_line(), "5 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn folder_without_examples_has_no_names() {
        assert!(example_names(Path::new("/no/such/folder")).unwrap().is_empty());
    }

    #[test]
    fn examples_are_found_as_files() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert!(example_names(&source).unwrap().contains("totals"));
    }
}
