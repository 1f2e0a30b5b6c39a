//! `cargo xtask`: the development commands of the project.
//!
//! This file picks the command. Each command is a module with a `run` function; what servers and
//! tests do is left to `leasehold-testkit` and to the crates themselves.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]

mod bench;
mod command;
mod interop;
mod setup;
mod test;
mod totals;

use std::process::ExitCode;

/// A command: its name, one line of help, and what it does with the arguments after its name.
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
    /// Everything was said already.
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
        help: "setup, format, clippy, all tests, documentation and examples",
        run: test::run,
    },
    Command {
        name: "bench",
        help: "measure speed beside limits and rivals: [SCENARIO…] [--quick] [--write]",
        run: bench::run,
    },
    Command { name: "help", help: "print this text", run: help },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
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

fn help(_arguments: &[String]) -> Result<(), Failure> {
    print!("{}", help_text());
    Ok(())
}

fn help_text() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for command in COMMANDS {
        text.push_str(&format!("  {:<8} {}\n", command.name, command.help));
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
        assert_eq!(message, "unknown command `tset`; known are: setup, test, bench, help");
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
