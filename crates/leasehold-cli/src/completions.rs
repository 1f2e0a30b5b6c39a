//! `completions`, and the answers to a shell that completes a command line.
//!
//! The script that a shell loads calls this program for each completion, so that it can offer the
//! names of locks.

use std::ffi::OsStr;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use leasehold::engine::Query;

use crate::args::{Cli, Completions, Globals};
use crate::exit::{self, Failure, Outcome};
use crate::store;

/// The script sets it to the name of the shell.
const VARIABLE: &str = "LEASEHOLD_COMPLETE";

/// The longest time that a person who presses Tab waits for a store.
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Prints the script for a shell.
pub(crate) fn print(completions: &Completions) -> Outcome {
    let shells = Shells::builtins();
    let shell = completions.shell.to_string();
    let mut script = Vec::new();
    if let Some(completer) = shells.completer(&shell) {
        let name = "leasehold";
        completer
            .write_registration(VARIABLE, name, name, name, &mut script)
            .map_err(|error| Failure::new(exit::OUTPUT, format!("no completions: {error}")))?;
    }
    crate::out::print(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}

/// Answers the script, and ends the process, if the script started it.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Cli::definition).var(VARIABLE).complete();
}

/// Completes the names of locks.
pub(crate) fn lock_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let Some(prefix) = typed.to_str().map(str::to_owned) else { return Vec::new() };
        let (sender, names) = channel();
        std::thread::spawn(move || {
            // Fails if the store was too slow: the receiver is gone then.
            let _late = sender.send(read_names(&prefix));
        });
        let names = names.recv_timeout(ANSWER_MAX).unwrap_or_default();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// The first names of the store with this prefix; none if it cannot be read.
fn read_names(prefix: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let read = async || {
        let store = store::open_existing(&Globals::default()).await?;
        store.client.admin().inspect(&Query::prefix(prefix)).await.ok()
    };
    let page = runtime.ok().and_then(|runtime| runtime.block_on(read())).unwrap_or_default();
    page.lines.iter().map(|line| line.name.as_str().to_owned()).collect()
}
