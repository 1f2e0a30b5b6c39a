//! The torture test of leasehold: worker processes use the library for real while faults happen,
//! everything is written down on one clock, and a checker reads what was written.
//!
//! - [`run`] makes a run on one of the set-ups of [`setup`]; [`worker`] and [`attempt`] are what
//!   the worker processes do, [`register`] is the resource that their locks protect.
//! - [`faults`] plans the faults of a run, [`strike`] makes them, [`mutant`] and [`wrong`] make
//!   engines with a fault. [`rests`] looks at what is left in the store.
//! - [`event`] is one line of the history, [`history`] puts the lines of all processes together.
//! - [`delays`] measures how busy the machine is.
//! - [`checks`] reads a history and names each broken promise; [`report`] shows them.
//!
//! The checks know no process and no store: a history made by hand is as good as a real one, and
//! that is how their tests work.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod attempt;
mod chance;
mod checks;
mod command;
mod delays;
mod disk;
mod event;
mod faults;
mod history;
mod mutant;
mod register;
mod report;
mod rests;
mod run;
mod setup;
mod strike;
mod worker;
mod wrong;

use std::process::ExitCode;

fn main() -> ExitCode {
    worker::run_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    command::main(&arguments)
}
