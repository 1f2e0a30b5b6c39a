//! `cargo xtask`: the development commands of the project.
//!
//! This file picks the command. Each command is a module with a `run` function. `leasehold-testkit`
//! and the crates themselves define what servers and tests do.

#![forbid(unsafe_code)]

mod api;
mod bench;
mod command;
mod docs;
mod family;
mod interop;
mod jobs;
mod load;
mod measure;
mod needs;
mod precommit;
mod programs;
mod report;
mod setup;
mod stress;
mod test;
mod test_lines;
mod torture;
mod totals;

use std::process::ExitCode;

/// A command: its name, one line of help, and a function of the arguments after its name.
struct Command {
    name: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

/// Why a command ends with a status other than 0.
#[derive(Debug)]
enum Failure {
    /// The message is for the user, on standard error.
    Message(String),
    /// The command has reported everything already.
    Reported,
}

/// All commands, in the order of the help text. A new one is a module and a line here.
const COMMANDS: &[Command] = &[
    Command {
        name: "setup",
        help: "install the servers that the tests start, and packages of other languages",
        run: setup::run,
    },
    Command {
        name: "test",
        help: "setup, format, clippy, all tests, documentation and examples: [--load [N]]",
        run: test::run,
    },
    Command {
        name: "stress",
        help: "repeat tests until they fail: [--rounds N] [--load [N]] TEST…",
        run: stress::run,
    },
    Command {
        name: "precommit",
        help: "format, tidy, clippy and the unit tests of what changed",
        run: precommit::run,
    },
    Command {
        name: "bench",
        help: "measure speed beside limits and rivals: [SCENARIO…] [--quick] [--write]",
        run: bench::run,
    },
    Command {
        name: "torture",
        help: "workers, faults and a checker, on real servers: [--engine NAME]… or --help",
        run: torture::run,
    },
    Command {
        name: "docs",
        help: "make docs/faults.md from its source and the names of tests: [--check]",
        run: docs::run,
    },
    Command {
        name: "api",
        help: "compare the library's public API with its list: [--write]",
        run: api::run,
    },
    Command {
        name: "measure",
        help: "count methods, lines, words and tests: [--at REV] [--json]",
        run: measure::run,
    },
    Command {
        name: "deploy-check",
        help: "build, start and install what deploy/ describes, as root: [PROFILE]",
        run: deploy_check,
    },
    Command { name: "help", help: "print this text", run: help },
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == family::INNER) {
        arguments.remove(0);
        if let Err(error) = family::become_inner() {
            eprintln!("xtask: cannot adopt the processes of the run: {error}");
            return ExitCode::FAILURE;
        }
    }
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::FAILURE,
        Err(Failure::Message(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", help_text());
        return Err(Failure::Reported);
    };
    if matches!(name.as_str(), "-h" | "--help") {
        return help(rest);
    }
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(rest),
        None => {
            let known: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
            let known = known.join(", ");
            Err(Failure::Message(format!("unknown command `{name}`; known are: {known}")))
        }
    }
}

/// Runs a script, which a packager can read and run without this program.
fn deploy_check(arguments: &[String]) -> Result<(), Failure> {
    let mut script = std::process::Command::new("deploy/check.sh");
    script.args(arguments).current_dir(command::workspace_root());
    match command::passes(&mut script) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Reported),
        Err(error) => Err(Failure::Message(format!("cannot run `deploy/check.sh`: {error}"))),
    }
}

fn help(_arguments: &[String]) -> Result<(), Failure> {
    print!("{}", help_text());
    Ok(())
}

fn help_text() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for command in COMMANDS {
        text.push_str(&format!("  {:<12} {}\n", command.name, command.help));
    }
    text
}

/// Refuses arguments, for the commands that take none.
fn no_arguments(command: &str, arguments: &[String]) -> Result<(), Failure> {
    match arguments.first() {
        None => Ok(()),
        Some(first) => {
            Err(Failure::Message(format!("`{command}` takes no arguments, but got `{first}`")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| text.to_string()).collect();
        match dispatch(&arguments) {
            Err(Failure::Message(message)) => message,
            other => panic!("expected a message, got {other:?}"),
        }
    }

    #[test]
    fn unknown_command_names_the_known_ones() {
        let message = message_of(&["tset"]);
        let known = "setup, test, stress, precommit, bench, torture, docs, api, measure, \
                     deploy-check, help";
        assert_eq!(message, format!("unknown command `tset`; known are: {known}"));
    }

    #[test]
    fn surplus_argument_is_refused() {
        assert_eq!(message_of(&["setup", "now"]), "`setup` takes no arguments, but got `now`");
    }

    #[test]
    fn help_lists_every_command() {
        let text = help_text();
        assert!(COMMANDS.iter().all(|command| text.contains(command.help)));
    }
}
