//! The benchmarks of leasehold; `cargo xtask bench` builds and runs this.
//!
//! This file reads the command line and runs the scenarios one after the other. Tables go to
//! standard output, messages to standard error. Only this program checks promises about time, and
//! no test does: a busy machine must not fail a change.

#![forbid(unsafe_code)]

mod contender;
mod contest;
mod machine;
mod progress;
mod raw;
mod report;
mod scenarios;
mod scratch;
mod stats;
mod work;
mod worker;

use std::process::ExitCode;

use progress::Progress;
use report::Target;
use scenarios::{SCENARIOS, Scenario, Setting};
use scratch::Scratch;

/// Any error ends the run with its message.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The order on the command line.
#[derive(Debug)]
struct Order {
    chosen: Vec<&'static Scenario>,
    quick: bool,
    /// The command that makes the same tables.
    command: String,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((first, rest)) if first == worker::ARGUMENT => worker::run(rest),
        _ => parse(&arguments).and_then(|order| run(&order)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Order> {
    let mut order = Order { chosen: Vec::new(), quick: false, command: "cargo xtask bench".into() };
    for argument in arguments {
        match SCENARIOS.iter().find(|scenario| scenario.name == argument) {
            Some(scenario) => order.chosen.push(scenario),
            None if argument == "--quick" => order.quick = true,
            None => {
                let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
                let known = known.join(", ");
                return Err(format!("unknown scenario `{argument}`; known are: {known}").into());
            }
        }
        order.command.extend([" ", argument]);
    }
    if order.chosen.is_empty() {
        order.chosen.extend(SCENARIOS);
    }
    Ok(order)
}

fn run(order: &Order) -> Result<()> {
    let setting = Setting { quick: order.quick, scratch: Scratch::new()? };
    let mut targets: Vec<Target> = Vec::new();
    for scenario in &order.chosen {
        let facts = machine::facts(setting.scratch.path());
        let mut progress = Progress::begin(scenario.name);
        let report = (scenario.run)(&setting, &mut progress)
            .map_err(|error| format!("scenario `{}`: {error}", scenario.name))?;
        println!("## {}: {}\n", scenario.name, scenario.about);
        print!("{report}");
        println!("Made by `{}` on {facts}\n", order.command);
        targets.extend_from_slice(report.targets());
    }
    let met = targets.iter().filter(|target| target.met).count();
    println!("## targets: {met} of {} met\n", targets.len());
    println!("{}", report::targets(&targets));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn chosen_scenarios_run_and_the_command_is_told() {
        let order = parse(&words("sqlite_pair --quick")).unwrap();
        assert_eq!(order.chosen.len(), 1);
        assert!(order.quick);
        assert_eq!(order.command, "cargo xtask bench sqlite_pair --quick");
        assert_eq!(parse(&[]).unwrap().chosen.len(), SCENARIOS.len());
    }

    #[test]
    fn unknown_scenario_lists_the_known_ones() {
        let message = parse(&words("sqlite_pear")).unwrap_err().to_string();
        assert!(message.starts_with("unknown scenario `sqlite_pear`; known are: memory_pair, "));
    }
}
