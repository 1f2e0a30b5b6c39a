//! The test programs and examples of the workspace: building them, and how to start them.
//!
//! Cargo reports which programs it built. This module starts them as `cargo test` starts them, but
//! side by side. The commands decide how many run at once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Failure;
use crate::command::cargo;
use crate::family;
use crate::jobs::Job;

/// The selection of every call of cargo, so that all calls share one build.
pub(crate) const EVERYTHING: [&str; 2] = ["--workspace", "--all-features"];

/// A program runs this many tests at once by default; [`WIDE`] lists others. Most tests wait most
/// of the time.
const USUAL_PLACES: usize = 4;

/// The slow programs, the longest first: how many tests of each run at once, and how many places
/// each of these takes. The longest start first, because the last to end decides how long the run
/// takes. A torture test has several processes at work, so it takes more than one place.
const WIDE: &[(&str, usize, usize)] = &[
    ("conformance", 6, 1),
    ("seeded", 2, 2),
    ("model", 4, 1),
    ("zookeeper", 4, 1),
    ("short_round", 2, 2),
    ("etcd", 4, 1),
    ("postgres", 4, 1),
    ("redis", 4, 1),
    ("cli", 4, 1),
    ("mutants", 4, 1),
];

/// A program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    file: PathBuf,
    /// The package's folder, where cargo starts a program.
    pub(crate) folder: PathBuf,
}

/// The kind of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The unit tests of a library.
    Library,
    /// The unit tests of a command.
    Command,
    /// A file of `tests/`.
    Tests,
    /// An example, which passes when it ends with status 0.
    Example,
}

/// Builds the test programs and examples of the workspace; `targets` selects some of them.
pub(crate) fn build(targets: &[&str]) -> Result<Vec<Program>, Failure> {
    let mut command = cargo(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(EVERYTHING).args(targets).stdin(Stdio::null()).stdout(Stdio::piped());
    let cannot = |error| Failure::Message(format!("cannot run cargo: {error}"));
    let mut child = family::spawn(&mut command).map_err(cannot)?;
    let output = child.stdout.take().expect("standard output was piped above");
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let programs = lines.filter_map(|line| Program::from_message(&line)).collect();
    let status = child.wait().map_err(cannot)?;
    family::forget(child.id());
    if status.success() { Ok(programs) } else { Err(Failure::Reported) }
}

impl Program {
    /// Reads a message of cargo; most are not about a program.
    pub(crate) fn from_message(line: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(line).ok()?;
        let file = PathBuf::from(message["executable"].as_str()?);
        let target = &message["target"];
        let kind = match (target["kind"][0].as_str()?, message["profile"]["test"].as_bool()?) {
            ("example", false) => Kind::Example,
            ("bin", true) => Kind::Command,
            ("test", true) => Kind::Tests,
            (_, true) => Kind::Library,
            _ => return None,
        };
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        let package = folder.file_name()?.to_str()?.to_owned();
        Some(Program { package, name: target["name"].as_str()?.to_owned(), kind, file, folder })
    }

    /// The name of the program for people.
    pub(crate) fn title(&self) -> String {
        match self.kind {
            Kind::Library => format!("{} lib", self.package),
            Kind::Command => format!("{} bin", self.package),
            Kind::Tests => format!("{} {}", self.package, self.name),
            Kind::Example => format!("example {}", self.name),
        }
    }

    /// The words that make `cargo test` run this program alone.
    pub(crate) fn target(&self) -> String {
        match self.kind {
            Kind::Library => "--lib".to_owned(),
            Kind::Command => format!("--bin {}", self.name),
            Kind::Tests => format!("--test {}", self.name),
            Kind::Example => format!("--example {}", self.name),
        }
    }

    /// How many tests of it run at once, and how many places all of them take.
    pub(crate) fn width(&self) -> (usize, usize) {
        let wide = WIDE.iter().find(|(name, ..)| self.kind == Kind::Tests && self.name == *name);
        match (self.kind, wide) {
            (Kind::Example, _) => (1, 1),
            (_, Some((_, tests, places))) => (*tests, tests * places),
            (_, None) => (USUAL_PLACES, USUAL_PLACES),
        }
    }

    /// The place in the order of starts.
    pub(crate) fn turn(&self) -> usize {
        let wide = WIDE.iter().position(|(name, ..)| self.name == *name);
        wide.filter(|_| self.kind == Kind::Tests).unwrap_or(WIDE.len())
    }

    /// A command that runs it, in the folder and with the variables that cargo would give it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        command
    }

    /// A job that runs all its tests, or only those that `words` select.
    pub(crate) fn job(&self, words: &[String]) -> Job {
        let (mut command, (tests_at_once, places)) = (self.command(), self.width());
        if self.kind != Kind::Example {
            command.args(["--color", "never", "--test-threads", &tests_at_once.to_string()]);
            command.args(words);
        }
        let (title, target) = (self.title(), self.target());
        Job { title, command, places, tests_at_once, is_cargo: false, target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/box/Cargo.toml",
            "target":{{"kind":["{kind}"],"name":"thing"}},"profile":{{"test":{test}}},
            "executable":"/w/target/debug/deps/thing-1"}}"#
        )
    }

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let title = |kind, test| Some(Program::from_message(&message(kind, test))?.title());
        assert_eq!(title("lib", true).as_deref(), Some("box lib"));
        assert_eq!(title("bin", true).as_deref(), Some("box bin"));
        assert_eq!(title("test", true).as_deref(), Some("box thing"));
        assert_eq!(title("example", false).as_deref(), Some("example thing"));
        assert_eq!(title("bin", false), None);
        assert!(Program::from_message(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
