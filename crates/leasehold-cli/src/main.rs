//! The command `leasehold`: locks for scripts and for people at a terminal.
//!
//! Reads the command line and passes it to the command's own file. Only this file ends the
//! process. The contract with scripts, options and exit statuses, is in `args.rs` and `exit.rs`.
//! The library implements the locks.

mod acquire;
mod admin;
mod args;
mod child;
mod completions;
mod doctor;
mod duration;
mod elect;
mod environment;
mod exit;
mod filter;
mod force_release;
mod guard;
mod handles;
mod help;
mod lines;
mod log;
mod manual;
mod on_lost;
mod once;
mod out;
mod outer;
mod platform;
mod rate;
mod record;
mod revoke;
mod run;
mod signals;
mod steal;
mod store;
mod supervise;
mod system;
mod table;
mod take;
mod terminal;
mod text;
mod top;
mod view;
mod waiting;
mod waits;
mod watch;

use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::exit::{Failure, Outcome};
use crate::out::Voice;
use crate::store::Purpose;
use crate::take::Wait;

fn main() {
    // Answers a shell that completes a command line, and ends the process then.
    completions::answer_shell();
    signals::ignore_largest_file();
    let outcome = match Cli::read() {
        Ok(cli) => start(cli),
        Err(error) => explain(&error),
    };
    let status = outcome.unwrap_or_else(|failure| {
        failure.report();
        failure.status
    });
    // Threads of the library may still sleep. They have nothing left to lose.
    std::process::exit(i32::from(status));
}

fn start(cli: Cli) -> Outcome {
    if cli.globals.json {
        exit::tell_failures_as_json();
    }
    // Lines on standard error would disturb the screen of `top`.
    let draws = matches!(&cli.command, Command::Top(top) if !top.once && !cli.globals.json);
    if !draws {
        log::install(cli.globals.verbose);
    }
    match &cli.command {
        Command::Completions(completions) => return completions::print(completions),
        Command::Man(man) => return manual::write(man),
        _ => {}
    }
    // One thread is enough, because this process waits for one thing at a time. It must also start
    // a child from the thread that lives as long as the process. To the child, the end of the
    // thread that started it is the death of its parent.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli)),
        Err(error) => Err(Failure::new(exit::UNREACHABLE, format!("cannot start: {error}"))),
    }
}

async fn dispatch(cli: Cli) -> Outcome {
    let Cli { globals, command } = cli;
    let purpose = purpose(&command);
    let open = || store::open(&globals, purpose);
    match command {
        // These check their options before they open a store, and `run` also blocks signals.
        Command::Run(run) => run::run(run, open).await,
        Command::Acquire(acquire) => acquire::acquire(acquire.take, open).await,
        Command::Renew(renew) => handles::renew(renew, open).await,
        Command::Release(release) => handles::release(release, open).await,
        Command::Check(check) => handles::check(check, open).await,
        Command::List(list) => view::list(&open().await?, list).await,
        Command::Show(show) => view::show(show, open).await,
        Command::Stats => admin::stats(&open().await?).await,
        Command::Watch(watch) => watch::watch(watch, open).await,
        Command::Top(top) => top::top(top, globals.json, open).await,
        Command::ForceRelease(order) => force_release::force_release(order, open).await,
        Command::Steal(order) => steal::steal(order, open).await,
        Command::Revoke(order) => revoke::revoke(order, open).await,
        Command::Resize(order) => admin::resize(order, open).await,
        Command::BumpEpoch(order) => admin::bump_epoch(order, open).await,
        Command::Elect(elect) => elect::elect(elect, open).await,
        Command::Leader(leader) => elect::leader(leader, open).await,
        Command::Once(once) => once::once(once, open).await,
        Command::Rate(rate) => rate::rate(rate, open).await,
        Command::Doctor => doctor::doctor(&open().await?).await,
        Command::Init(init) if init.system => {
            system::make()?;
            Voice::new(&globals).tell(&system::ready());
            Ok(exit::DONE)
        }
        Command::Init(init) if init.print => {
            admin::init(&store::open_to_look(&globals).await?, &init).await
        }
        Command::Init(init) => admin::init(&open().await?, &init).await,
        Command::Completions(completions) => completions::print(&completions),
        Command::Man(man) => manual::write(&man),
    }
}

/// The purpose for which a command opens the store.
fn purpose(command: &Command) -> Purpose {
    let (takes, wait) = match command {
        Command::Run(run) => (true, Wait::of(&run.take, Wait::ForEver)),
        Command::Acquire(acquire) => (true, Wait::of(&acquire.take, Wait::No)),
        Command::Rate(rate) => (true, rate.wait.map_or(Wait::No, Wait::Within)),
        Command::Steal(_) => (true, Wait::No),
        Command::Elect(_) => (true, Wait::ForEver),
        Command::Once(once) => (!once.list, Wait::No),
        _ => (false, Wait::No),
    };
    Purpose { takes, wait }
}

/// Prints clap's message: help and version are answers, everything else is wrong usage.
fn explain(error: &clap::Error) -> Outcome {
    let text = text::escape_lines(&text::redact(&error.to_string()));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            out::print(&text)?;
            Ok(exit::DONE)
        }
        _ => {
            // Begins with the program's name, as every message does: for the mail of a cron job.
            exit::say_all(&format!("leasehold: {text}"));
            Ok(exit::USAGE)
        }
    }
}
