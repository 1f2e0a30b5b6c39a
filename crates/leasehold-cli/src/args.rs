//! The command line as data: every command, option and default of the contract.
//!
//! It only reads what was written. What an option means is decided by the command that has it;
//! examples for the help texts are in `help.rs`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::duration;
use crate::help;

/// Locks with a fair line, leases and fences, on the store you already run.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = help::TOP)]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What the store's keys begin with, on stores that have keys.
    #[arg(long = "prefix", id = "store_prefix", value_name = "TEXT")]
    pub(crate) store_prefix: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Globals {
    /// The store; else LEASEHOLD_URL, else an SQLite file in the user's state folder.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the store's url in it, readable by its owner only.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "url")]
    pub(crate) url_file: Option<PathBuf>,
    /// What others see as the holder [default: HOST:PID:RANDOM].
    #[arg(long, global = true, value_name = "LABEL")]
    pub(crate) holder: Option<String>,
    /// Prints JSON: one document, or one line per event.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Says only what went wrong.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Says what happens on the way.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Takes locks, runs a command, gives the locks back.
    #[command(after_help = help::RUN)]
    Run(Run),
    /// Takes locks and prints their handles, for scripts that cannot use `run`.
    #[command(after_help = help::ACQUIRE)]
    Acquire(Acquire),
    /// Extends the lease of a handle.
    #[command(after_help = help::RENEW)]
    Renew(Renew),
    /// Gives the lease of a handle back.
    #[command(after_help = help::RELEASE)]
    Release(Handles),
    /// Says whether the lease of a handle is still held.
    #[command(after_help = help::CHECK)]
    Check(Handles),
    /// Shows all locks: who holds, who waits.
    #[command(after_help = help::LIST)]
    List(List),
    /// Shows one lock: who holds it, who waits for it, in order.
    #[command(after_help = help::SHOW)]
    Show(Show),
    /// Counts what all clients of the store did.
    #[command(after_help = help::STATS)]
    Stats,
    /// Prints events as they happen.
    #[command(after_help = help::WATCH)]
    Watch(Watch),
    /// Shows names by contention, who holds them and who waits, live on the whole screen.
    #[command(after_help = help::LIVE)]
    Top(Top),
    /// Takes a lock from whoever holds it.
    #[command(after_help = help::FORCE_RELEASE)]
    ForceRelease(ForceRelease),
    /// Gives a semaphore that is in use another limit.
    #[command(after_help = help::RESIZE)]
    Resize(Resize),
    /// Lets fences go on above all given out, after the store was restored from a backup.
    #[command(after_help = help::BUMP_EPOCH)]
    BumpEpoch(BumpEpoch),
    /// Campaigns, and runs a command while it leads.
    #[command(after_help = help::ELECT)]
    Elect(Elect),
    /// Says who leads.
    #[command(after_help = help::LEADER)]
    Leader(Leader),
    /// Runs a command at most once in each period, over all machines.
    #[command(after_help = help::ONCE)]
    Once(Once),
    /// Takes one unit of a rate limit, or says when the next is due.
    #[command(after_help = help::RATE)]
    Rate(Rate),
    /// Says what this store really promises, and what to change.
    #[command(after_help = help::DOCTOR)]
    Doctor,
    /// Installs what the store needs; harmless when it is there.
    #[command(after_help = help::INIT)]
    Init(Init),
    /// Prints completions for a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions(Completions),
}

/// What `run` and `acquire` have in common.
#[derive(Debug, Args)]
pub(crate) struct Take {
    /// The locks: 1 to 512 bytes each. Several are taken all or none, in sorted order.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// How long a lock outlives a holder that died: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Gives up at once if a lock is held.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Waits at most this long, for all the locks together.
    #[arg(short, long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Shares the locks with others that do, and excludes those that do not.
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Takes K of N permits; all who use a name must say the same N.
    #[arg(long, value_name = "K/N", allow_hyphen_values = true, value_parser = parse_permits)]
    pub(crate) permits: Option<Permits>,
    /// Text for others to read, up to 4 KiB.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) note: String,
    /// Keeps the locks at least this long, even when given back earlier.
    #[arg(long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_hold)]
    pub(crate) hold_at_least: Option<Duration>,
    /// Ends the work when the locks were held this long.
    #[arg(long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_hold)]
    pub(crate) hold_at_most: Option<Duration>,
    /// The exit status when a lock is held by someone else.
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) take: Take,
    /// Between TERM and KILL when the lock is lost; at most a third of the ttl.
    #[arg(long, value_name = "D", default_value = "10s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// Keeps the locks closed this long after they were lost (not when they are given back), for
    /// what cannot check fences.
    #[arg(long, value_name = "D", default_value = "0s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) lock_delay: Duration,
    /// Lets the command see LEASEHOLD_URL, so that a `leasehold` inside it finds the store.
    #[arg(long)]
    pub(crate) pass_url: bool,
    /// The command and its arguments, after `--`; it runs without a shell.
    // Not required for clap, whose message would not say that the `--` is missing.
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `acquire`.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) take: Take,
}

/// Commands about handles.
#[derive(Debug, Args)]
pub(crate) struct Handles {
    /// What `acquire` printed; `-` reads them from standard input, one a line.
    #[arg(required = true, value_name = "HANDLE")]
    pub(crate) handles: Vec<String>,
}

/// `renew`.
#[derive(Debug, Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) handles: Handles,
    /// The new time to live [default: the one it was taken with].
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only names that begin with this.
    #[arg(long, value_name = "P")]
    pub(crate) prefix: Option<String>,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The lock.
    pub(crate) name: String,
}

/// `watch`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The lock; all of them unless said.
    pub(crate) name: Option<String>,
}

/// `top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// How long between two readings: 100ms to 1h.
    #[arg(long, value_name = "D", default_value = "1s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_interval)]
    pub(crate) interval: Duration,
    /// Only names that begin with this.
    #[arg(long, value_name = "P")]
    pub(crate) prefix: Option<String>,
    /// Prints one picture as plain text and ends; needs no terminal.
    #[arg(long)]
    pub(crate) once: bool,
}

/// `force-release`.
#[derive(Debug, Args)]
pub(crate) struct ForceRelease {
    /// The lock.
    pub(crate) name: String,
    /// Why, for the record.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Does not ask first.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `resize`.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The semaphore.
    pub(crate) name: String,
    /// The limit from now on.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_limit)]
    pub(crate) permits: u32,
}

/// `bump-epoch`.
#[derive(Debug, Args)]
pub(crate) struct BumpEpoch {
    /// A fence that was seen somewhere and must be exceeded too.
    #[arg(long, value_name = "FENCE", allow_hyphen_values = true, value_parser = parse_fence)]
    pub(crate) above: Option<u64>,
}

/// `elect`.
#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The office: 1 to 512 bytes.
    pub(crate) name: String,
    /// What `leader` shows, such as an address: up to 4 KiB.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) payload: String,
    /// How long leadership outlives a leader that died: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Between TERM and KILL when leadership is lost; at most a third of the ttl.
    #[arg(long, value_name = "D", default_value = "10s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// Lets the command see LEASEHOLD_URL, so that a `leasehold` inside it finds the store.
    #[arg(long)]
    pub(crate) pass_url: bool,
    /// The command and its arguments, after `--`; it runs without a shell.
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `leader`.
#[derive(Debug, Args)]
pub(crate) struct Leader {
    /// The office.
    pub(crate) name: String,
    /// Goes on, and prints every change.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `once`.
#[derive(Debug, Args)]
pub(crate) struct Once {
    /// The work: 1 to 512 bytes.
    pub(crate) name: String,
    /// The period, which begins with a run: 100ms to 24h.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// How long after its death a run is taken over by whoever asks next: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Ends the command when it ran this long; it counts as one that failed.
    #[arg(long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_hold)]
    pub(crate) hold_at_most: Option<Duration>,
    /// Does not count a run that failed: whoever asks next runs again.
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Between TERM and KILL when the lock is lost; at most a third of the ttl.
    #[arg(long, value_name = "D", default_value = "10s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// Lets the command see LEASEHOLD_URL, so that a `leasehold` inside it finds the store.
    #[arg(long)]
    pub(crate) pass_url: bool,
    /// The command and its arguments, after `--`; it runs without a shell.
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `rate`.
#[derive(Debug, Args)]
pub(crate) struct Rate {
    /// What is limited: 1 to 512 bytes.
    pub(crate) name: String,
    /// How many units there are in any stretch of the period; all must say the same.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_limit)]
    pub(crate) limit: u32,
    /// The period: 100ms to 24h.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) per: Duration,
    /// Gives up at once if no unit is left, as it does unless -w says otherwise.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Waits at most this long for a unit.
    #[arg(short, long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// The exit status when no unit is left.
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Prints the statements instead of running them.
    #[arg(long)]
    pub(crate) print: bool,
}

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// `--permits K/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) of: u32,
}

impl Take {
    /// One name, exclusive, with the defaults.
    pub(crate) fn exclusive(name: String, ttl: Duration, note: String) -> Self {
        Self {
            names: vec![name],
            ttl,
            no_wait: false,
            wait: None,
            shared: false,
            permits: None,
            note,
            hold_at_least: None,
            hold_at_most: None,
            conflict_exit_code: crate::exit::CONFLICT,
        }
    }
}

fn parse_limit(text: &str) -> Result<u32, String> {
    // The library reserves the largest number for locks.
    match text.parse() {
        Ok(limit) if (1..u32::MAX).contains(&limit) => Ok(limit),
        _ => Err("a limit is a whole number of at least 1".to_owned()),
    }
}

fn parse_fence(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(fence) if fence <= leasehold::engine::Bump::ABOVE_MAX => Ok(fence),
        _ => Err("a fence is a whole number of at most 2^62".to_owned()),
    }
}

fn parse_permits(text: &str) -> Result<Permits, String> {
    let numbers = text
        .split_once('/')
        .and_then(|(take, of)| Some(Permits { take: take.parse().ok()?, of: of.parse().ok()? }));
    let Some(permits) = numbers else {
        return Err("write it as two numbers, like `1/3` for one permit of three".to_owned());
    };
    let Permits { take, of } = permits;
    // The library reserves the largest number for locks.
    if take == 0 || take > of || of == u32::MAX {
        return Err(format!("cannot take {take} of {of}: take at least 1 and at most the limit"));
    }
    Ok(permits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            assert!(help.contains(&format!("leasehold {}", command.get_name())), "{help}");
        }
    }

    #[test]
    fn permits_are_a_share_of_a_limit() {
        assert_eq!(parse_permits("2/3"), Ok(Permits { take: 2, of: 3 }));
        for bad in ["0/3", "4/3", "x/y", "3", "", "/", "1/0", "-1/3", "1/4294967295", "1/2/3"] {
            assert!(parse_permits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_commands_flags_are_its_own() {
        let line = ["leasehold", "run", "a", "b", "--", "cmd", "-n", "--ttl", "--", "x"];
        let Command::Run(run) = Cli::try_parse_from(line).expect("good").command else {
            panic!("it is `run`");
        };
        assert_eq!(run.take.names, ["a", "b"]);
        assert_eq!(run.command, ["cmd", "-n", "--ttl", "--", "x"]);
        assert!(!run.take.no_wait);
    }
}
