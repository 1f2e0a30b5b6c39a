//! `cargo xtask precommit`: the checks before a commit that take less than a minute.
//!
//! Format, the rules of `tidy.rs` and `prose.rs`, clippy, and the unit tests of the packages that
//! changed. `cargo xtask test` runs everything.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::command::{cargo, finished, passes, workspace_root};
use crate::jobs::{Job, run_all};
use crate::programs::{EVERYTHING, Kind, Program, build};
use crate::report::Report;
use crate::test::log_folder;
use crate::{Failure, family, no_arguments};

/// How many tests run at once; unit tests do not wait.
const PLACES: usize = 8;

/// The test programs that read the sources and the pages.
const READERS: [&str; 2] = ["tidy", "prose"];

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    no_arguments("precommit", arguments)?;
    let changed = changed_packages(&changed_files()?);
    family::guarded(|| {
        let started = Instant::now();
        let mut report = Report::default();
        checked(&mut report, &changed);
        report.print_summary(started.elapsed());
        if report.is_good() { Ok(()) } else { Err(Failure::Reported) }
    })
}

fn checked(report: &mut Report, changed: &BTreeSet<String>) -> Option<()> {
    report.step("format", || finished(passes(&mut cargo(["fmt", "--all", "--check"]))))?;
    let targets = ["--lib", "--bins", "--test", READERS[0], "--test", READERS[1]];
    let programs = report.step("build", || build(&targets))?;
    report.step("clippy", || {
        let mut clippy = cargo(["clippy"]);
        clippy.args(EVERYTHING).args(targets).args(["--", "-D", "warnings"]);
        finished(passes(&mut clippy))
    });
    let wanted = |program: &&Program| {
        READERS.contains(&program.name.as_str())
            || (program.kind != Kind::Tests && changed.contains(&program.package))
    };
    let jobs: Vec<Job> = programs.iter().filter(wanted).map(|program| program.job(&[])).collect();
    println!("\n== programs");
    let ran = run_all(jobs, PLACES, &log_folder(), |done| report.job(done));
    report.step("programs", || match ran {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Message(format!("cannot run: {error}"))),
    })
}

/// The files that differ from the last commit, and those that git does not know yet.
fn changed_files() -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    let new = ["ls-files", "--others", "--exclude-standard"];
    for words in [&["diff", "--name-only", "HEAD"][..], &new] {
        let mut git = Command::new("git");
        git.args(words).current_dir(workspace_root()).stdin(Stdio::null());
        let output = git
            .output()
            .map_err(|error| Failure::Message(format!("cannot ask git what changed: {error}")))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Message(format!("git {}: {}", words[0], message.trim())));
        }
        files.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    Ok(files)
}

/// The packages that files belong to: the folder below `crates`, or a folder of the workspace.
fn changed_packages(files: &[String]) -> BTreeSet<String> {
    let package = |file: &String| {
        let path = file.strip_prefix("crates/").unwrap_or(file);
        path.split_once('/').map(|(folder, _)| folder.to_owned())
    };
    files.iter().filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_packages() {
        let files = ["crates/leasehold/src/lease.rs", "xtask/src/main.rs", "README.md"];
        let packages = changed_packages(&files.map(str::to_owned));
        assert_eq!(packages.into_iter().collect::<Vec<_>>(), ["leasehold", "xtask"]);
    }
}
