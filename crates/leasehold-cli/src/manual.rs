//! `man`: a manual page for each command, made from the help texts.

use std::io;

use clap::builder::StyledStr;

use crate::args::{Cli, Man};
use crate::exit::{self, Failure, Outcome};

/// Writes the pages into the folder.
pub(crate) fn write(man: &Man) -> Outcome {
    let folder = &man.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(with_examples_last(Cli::definition()), folder));
    written.map_err(|error: io::Error| {
        let folder = folder.display();
        Failure::new(exit::OUTPUT, format!("cannot write manual pages to `{folder}`: {error}"))
    })?;
    Ok(exit::DONE)
}

/// Moves the examples behind the notes, because a page has no text before its options.
fn with_examples_last(command: clap::Command) -> clap::Command {
    let text = |text: Option<&StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let examples = text(command.get_before_help());
    let notes = text(command.get_after_help());
    let command = command.after_help(format!("{notes}\n\n{examples}"));
    command.mut_subcommands(with_examples_last)
}
