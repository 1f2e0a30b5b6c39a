//! The packages of other languages that the tests use: a Python environment and a `node_modules`.
//!
//! Both are in `target/interop`, made from the pinned versions beside the testkit's drivers. A
//! stamp holds those versions, so that a second run does nothing. The testkit has the drivers, and
//! checks that the packages are the pinned ones.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::command::{passes, workspace_root};

/// The pinned versions, and the drivers that use them.
const SOURCE: &str = "crates/leasehold-testkit/interop";

/// Where the packages go; the testkit looks there.
const TARGET: &str = "target/interop";

/// The files with the versions. The stamp is their text, one after the other in this order; the
/// testkit compares it too.
const PINS: [&str; 3] = ["requirements.txt", "package.json", "package-lock.json"];

const STAMP: &str = "stamp";

/// Installs the packages unless they are there already.
pub(crate) fn install() -> Result<(), Failure> {
    let (source, target) = (workspace_root().join(SOURCE), workspace_root().join(TARGET));
    let doing = |error: io::Error| Failure::Message(format!("cannot make `{TARGET}`: {error}"));
    fs::create_dir_all(&target).map_err(doing)?;
    // Two installations at once would overwrite each other.
    let guard = File::create(target.join("lock")).map_err(doing)?;
    guard.lock().map_err(doing)?;
    let wanted = stamp_of(&source).map_err(doing)?;
    if is_installed(&target, &wanted) {
        println!("setup: the packages of other languages are installed");
        return Ok(());
    }
    println!("setup: installing packages of Python and Node.js into {TARGET}");
    // No stamp until all is done: an interrupted installation counts for nothing.
    remove_stamp(&target).map_err(doing)?;
    for pins in PINS {
        fs::copy(source.join(pins), target.join(pins)).map_err(doing)?;
    }
    for mut command in commands(&target) {
        run(&mut command)?;
    }
    fs::write(target.join(STAMP), wanted).map_err(doing)
}

fn stamp_of(source: &Path) -> io::Result<String> {
    PINS.iter().map(|pins| fs::read_to_string(source.join(pins))).collect()
}

/// Checks the programs too: a Python that was removed leaves a dangling link.
fn is_installed(target: &Path, wanted: &str) -> bool {
    fs::read_to_string(target.join(STAMP)).is_ok_and(|stamp| stamp == wanted)
        && python(target).exists()
        && target.join("node_modules").exists()
}

fn remove_stamp(target: &Path) -> io::Result<()> {
    match fs::remove_file(target.join(STAMP)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn python(target: &Path) -> PathBuf {
    target.join("venv/bin/python")
}

/// Nothing is compiled and no script of a package runs.
fn commands(target: &Path) -> [Command; 3] {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear", "venv"]);
    let mut pip = Command::new(python(target));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--only-binary", ":all:", "--requirement", PINS[0]]);
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]);
    [venv, pip, npm].map(|mut command| {
        command.current_dir(target);
        command
    })
}

fn run(command: &mut Command) -> Result<(), Failure> {
    match passes(command) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Message(format!("{} failed", by_hand(command)))),
        Err(error) => Err(Failure::Message(format!("{}: {error}", by_hand(command)))),
    }
}

/// The command as a user would type it.
fn by_hand(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    format!("`cd {TARGET} && {}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_pinned_exactly() {
        let text = stamp_of(&workspace_root().join(SOURCE)).unwrap();
        let (python, node) = text.split_once("\n{").expect("requirements, then two JSON files");
        let lines = python.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (_, version) = line.split_once("==").expect(line);
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
        }
        assert!(node.contains("\"lockfileVersion\""));
        assert!(!node.contains("\"resolved\""), "the lock file names a registry");
    }

    #[test]
    fn command_that_fails_is_named_with_its_folder() {
        let mut command = Command::new("false");
        command.arg("--now");
        let Err(Failure::Message(message)) = run(&mut command) else { panic!("it must fail") };
        assert_eq!(message, "`cd target/interop && false --now` failed");
    }

    #[test]
    fn folder_without_its_stamp_counts_as_not_installed() {
        assert!(!is_installed(Path::new("/no/such/folder"), ""));
    }
}
