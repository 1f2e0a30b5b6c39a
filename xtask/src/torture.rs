//! `cargo xtask torture`: builds the torture test and runs it.
//!
//! `leasehold-torture` defines the runs, the faults and the report, and also reads the arguments.
//! All processes of a run end with this one.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::command::{cargo, finished, passes, target_folder};
use crate::programs::EVERYTHING;
use crate::{Failure, family};

/// The program, and the package that has it.
const PROGRAM: &str = "leasehold-torture";

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    family::guarded(|| {
        // As people build it: the promises are to hold when the code is fast.
        let mut build = cargo(["build", "--quiet", "--release", "--bin", PROGRAM]);
        finished(passes(build.args(EVERYTHING)))?;
        let mut torture = Command::new(program());
        torture.args(arguments).env("CARGO_TARGET_DIR", target_folder()).stdin(Stdio::null());
        let ran = passes(&mut torture);
        match ran {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Reported),
            Err(error) => Err(Failure::Message(format!("cannot run `{PROGRAM}`: {error}"))),
        }
    })
}

/// The program that was built.
fn program() -> PathBuf {
    target_folder().join("release").join(PROGRAM)
}
