//! `completions`: what a shell needs to complete the command line.

use clap::CommandFactory as _;

use crate::args::{Cli, Completions};
use crate::exit::{self, Outcome};

/// Prints the completions of a shell.
pub(crate) fn print(completions: &Completions) -> Outcome {
    // Into a buffer first: the generator panics when its reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "leasehold", &mut script);
    crate::out::print(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}
