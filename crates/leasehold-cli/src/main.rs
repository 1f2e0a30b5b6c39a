//! The command `leasehold`: locks for scripts and for people at a terminal.
//!
//! Reads the command line, hands it to the command's own file, and is the only place that ends
//! the process. The contract with scripts, options and exit statuses, is in `args.rs` and
//! `exit.rs`; what locks are is the library's business.

mod acquire;
mod admin;
mod args;
mod child;
mod completions;
mod doctor;
mod duration;
mod elect;
mod exit;
mod guard;
mod handles;
mod help;
mod log;
mod once;
mod out;
mod outer;
mod rate;
mod run;
mod signals;
mod store;
mod supervise;
mod take;
mod terminal;
mod text;
mod top;
mod view;
mod waiting;
mod waits;
mod watch;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::exit::{Failure, Outcome};

fn main() {
    let outcome = match Cli::try_parse() {
        Ok(cli) => start(cli),
        Err(error) => explain(&error),
    };
    let status = outcome.unwrap_or_else(|failure| {
        failure.report();
        failure.status
    });
    // Threads of the library may still sleep; there is nothing left that they could lose.
    std::process::exit(i32::from(status));
}

fn start(cli: Cli) -> Outcome {
    // Lines on standard error would be written across the screen of `top`.
    let draws = matches!(&cli.command, Command::Top(top) if !top.once && !cli.globals.json);
    if cli.globals.verbose && !draws {
        log::install();
    }
    if let Command::Completions(completions) = &cli.command {
        return completions::print(completions);
    }
    // One thread: this process waits for one thing at a time, and a child that is to hear of its
    // parent's death must be started from the thread that lives as long as the process.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli)),
        Err(error) => Err(Failure::new(exit::UNREACHABLE, format!("cannot start: {error}"))),
    }
}

async fn dispatch(cli: Cli) -> Outcome {
    let Cli { globals, store_prefix, command } = cli;
    let prefix = store_prefix.as_deref();
    let open = || store::open(&globals, prefix);
    match command {
        // These check their options, and `run` blocks signals, before a store is touched.
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
        Command::ForceRelease(order) => admin::force_release(order, open).await,
        Command::Resize(order) => admin::resize(order, open).await,
        Command::BumpEpoch(order) => admin::bump_epoch(order, open).await,
        Command::Elect(elect) => elect::elect(elect, open).await,
        Command::Leader(leader) => elect::leader(leader, open).await,
        Command::Once(once) => once::once(once, open).await,
        Command::Rate(rate) => rate::rate(rate, open).await,
        Command::Doctor => doctor::doctor(&open().await?).await,
        Command::Init(init) if init.print => {
            admin::init(&store::open_to_look(&globals, prefix).await?, &init).await
        }
        Command::Init(init) => admin::init(&open().await?, &init).await,
        Command::Completions(completions) => completions::print(&completions),
    }
}

/// What clap has to say: help and version are answers, everything else is wrong usage.
fn explain(error: &clap::Error) -> Outcome {
    let text = text::escape_lines(&text::redact(&error.to_string()));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            out::print(&text)?;
            Ok(exit::DONE)
        }
        _ => {
            exit::say_all(&text);
            Ok(exit::USAGE)
        }
    }
}
