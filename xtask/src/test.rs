//! `cargo xtask test`: everything a change must pass, in one command.
//!
//! Checks the needs of the run and builds everything. Then it runs all test programs and examples
//! side by side, and clippy and the documentation beside them. It goes on after a failure and sums
//! up at the end. The crates define the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::command::{cargo, finished, passes, target_folder};
use crate::family::Process;
use crate::jobs::{Job, run_all};
use crate::load::Load;
use crate::programs::{EVERYTHING, Program, build};
use crate::report::Report;
use crate::{Failure, family, load, needs, setup};

/// How many tests run at once, in all programs together: enough to keep two processors busy. With
/// more, each test only waits longer for its turn.
const PLACES: usize = 10;

/// The priority of cargo beside the tests, from 0 to 19. It gets the processor time that the tests
/// leave: their leases are short, and most of the time they wait.
const CARGO_NICE: &str = "10";

/// How many examples in the documentation run at once. Each is a program that cargo compiles.
const DOCUMENTED_AT_ONCE: usize = 8;

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let (load, rest) = load::parsed(arguments)?;
    if let Some(surplus) = rest.first() {
        return Err(Failure::Message(format!("`test` takes only `--load`, but got `{surplus}`")));
    }
    family::guarded(|| {
        let started = Instant::now();
        let mut report = Report::default();
        let busy = load.is_some();
        let _load = load.map(Load::start);
        if let Some(programs) = prepared(&mut report) {
            run_programs(&mut report, programs, busy);
        }
        report.print_summary(started.elapsed());
        if report.is_good() { Ok(()) } else { Err(Failure::Reported) }
    })
}

/// Makes all checks that need no build, then builds everything.
fn prepared(report: &mut Report) -> Option<Vec<Program>> {
    report.step("needs", needs::check)?;
    report.step("setup", || setup::run(&[]))?;
    report.step("format", || finished(passes(&mut cargo(["fmt", "--all", "--check"]))))?;
    report.step("build", || build(&[]))
}

fn run_programs(report: &mut Report, mut programs: Vec<Program>, busy: bool) {
    programs.sort_by_key(|program| (program.turn(), program.title()));
    let mut jobs: Vec<Job> = programs.iter().map(|program| program.job(&[])).collect();
    jobs.extend(cargo_jobs(busy));
    println!("\n== programs: {} of them, {PLACES} tests at once", jobs.len());
    let ran = run_all(jobs, PLACES, &log_folder(), |done| report.job(done));
    if let Err(error) = ran {
        report.step("programs", || Err::<(), _>(Failure::Message(format!("cannot run: {error}"))));
    }
}

/// The folder for the output of the programs. Each run has its own, because two runs may share the
/// target folder. The function removes the folders of runs that are over.
pub(crate) fn log_folder() -> PathBuf {
    let all = target_folder().join("xtask");
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("run-")?.parse().ok();
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        if number(&entry.path()).is_some_and(|id| Process::read(id).is_none()) {
            // A folder that cannot be removed only takes room.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    all.join(format!("run-{}", std::process::id()))
}

/// Cargo's own jobs. They run beside the tests with a low priority. On a machine that other
/// programs keep busy they would never end like that, so they run alone after the tests.
fn cargo_jobs(busy: bool) -> [Job; 4] {
    let job = |title: &str, command: Command, target: &str| Job {
        title: title.to_owned(),
        command: if busy { command } else { with_low_priority(&command) },
        places: if busy { PLACES } else { 0 },
        tests_at_once: 1,
        is_cargo: true,
        target: target.to_owned(),
    };
    let mut clippy = cargo(["clippy", "--all-targets"]);
    clippy.args(EVERYTHING).args(["--", "-D", "warnings"]);
    let mut documentation = cargo(["doc", "--no-deps"]);
    documentation.args(EVERYTHING).env("RUSTDOCFLAGS", "-D warnings");
    let mut examples = cargo(["test", "--doc"]);
    examples.args(EVERYTHING).args(["--", "--test-threads", &DOCUMENTED_AT_ONCE.to_string()]);
    let api = cargo(["xtask", "api"]);
    [
        job("clippy", clippy, ""),
        job("documentation tests", examples, "--doc"),
        job("documentation", documentation, ""),
        job("public API", api, ""),
    ]
}

/// The same command with a low priority.
fn with_low_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", CARGO_NICE]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}
