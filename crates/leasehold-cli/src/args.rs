//! The command line as data: every command, option and default of the contract.
//!
//! It only reads what was written. The command that has an option decides what the option means.
//! Examples for the help texts are in `help.rs`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use nix::sys::signal::Signal;

use crate::completions::lock_names;
use crate::duration;
use crate::help;

/// Locks with a fair queue, leases and fencing tokens, on the store you already run.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, disable_help_flag = true)]
#[command(before_help = help::TOP.examples, after_help = help::TOP.notes)]
#[command(arg_required_else_help = true, max_term_width = 80)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Default, Args)]
pub(crate) struct Globals {
    /// The store; else LEASEHOLD_URL, else that of this machine (see `init --system`), else an
    /// SQLite file of this user.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the store's URL, closed to other users; else LEASEHOLD_URL_FILE.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "url")]
    pub(crate) url_file: Option<PathBuf>,
    /// Tries to reach the store for this long [default: about 2s].
    #[arg(long, global = true, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) connect_wait: Option<Duration>,
    /// What others see as the holder [default: HOST:PID:RANDOM].
    #[arg(long, global = true, value_name = "LABEL")]
    pub(crate) holder: Option<String>,
    /// Prints JSON: one document, or one line per event.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Says only what went wrong.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Reports each step.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// Prints this text.
    #[arg(short, long, global = true, action = ArgAction::Help)]
    help: Option<bool>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Takes locks, runs a command, gives the locks back.
    #[command(before_help = help::RUN.examples, after_help = help::RUN.notes)]
    Run(Run),
    /// Takes locks and prints their handles, for scripts that cannot use `run`.
    #[command(before_help = help::ACQUIRE.examples, after_help = help::ACQUIRE.notes)]
    Acquire(Acquire),
    /// Extends the lease of a handle.
    #[command(before_help = help::RENEW.examples, after_help = help::RENEW.notes)]
    Renew(Renew),
    /// Gives the lease of a handle back.
    #[command(before_help = help::RELEASE.examples, after_help = help::RELEASE.notes)]
    Release(Handles),
    /// Says whether the lease of a handle is still held.
    #[command(before_help = help::CHECK.examples, after_help = help::CHECK.notes)]
    Check(Handles),
    /// Shows all locks and their queues: who holds, who waits.
    #[command(before_help = help::LIST.examples, after_help = help::LIST.notes)]
    List(List),
    /// Shows one lock and its queue: who holds it, who waits for it, in order.
    #[command(before_help = help::SHOW.examples, after_help = help::SHOW.notes)]
    Show(Show),
    /// Counts what all clients of the store did.
    #[command(before_help = help::STATS.examples, after_help = help::STATS.notes)]
    Stats,
    /// Prints events as they happen.
    #[command(before_help = help::WATCH.examples, after_help = help::WATCH.notes)]
    Watch(Watch),
    /// Shows names by contention, who holds them and who waits, live on the whole screen.
    #[command(before_help = help::LIVE.examples, after_help = help::LIVE.notes)]
    Top(Top),
    /// Takes a lock from those who hold it, or from one of them.
    #[command(before_help = help::FORCE_RELEASE.examples, after_help = help::FORCE_RELEASE.notes)]
    ForceRelease(ForceRelease),
    /// Takes a lock from those who hold it, before those who wait, and prints a handle.
    #[command(before_help = help::STEAL.examples, after_help = help::STEAL.notes)]
    Steal(Steal),
    /// Asks the holders of a lock to give it back in time, then takes it away.
    #[command(before_help = help::REVOKE.examples, after_help = help::REVOKE.notes)]
    Revoke(Revoke),
    /// Gives a semaphore that is in use another limit.
    #[command(before_help = help::RESIZE.examples, after_help = help::RESIZE.notes)]
    Resize(Resize),
    /// After restoring a backup: raises the fencing tokens above all used before.
    #[command(before_help = help::BUMP_EPOCH.examples, after_help = help::BUMP_EPOCH.notes)]
    BumpEpoch(BumpEpoch),
    /// Leader election: waits to become leader, then runs a command for as long as it leads.
    #[command(before_help = help::ELECT.examples, after_help = help::ELECT.notes)]
    Elect(Elect),
    /// Says who leads.
    #[command(before_help = help::LEADER.examples, after_help = help::LEADER.notes)]
    Leader(Leader),
    /// Runs a command at most once in each period, over all machines.
    #[command(before_help = help::ONCE.examples, after_help = help::ONCE.notes)]
    Once(Once),
    /// Takes one unit of a rate limit, or says when the next is due.
    #[command(before_help = help::RATE.examples, after_help = help::RATE.notes)]
    Rate(Rate),
    /// Says what this store really promises, and what to change.
    #[command(before_help = help::DOCTOR.examples, after_help = help::DOCTOR.notes)]
    Doctor,
    /// Installs what the store needs; harmless when it is there.
    #[command(before_help = help::INIT.examples, after_help = help::INIT.notes)]
    Init(Init),
    /// Prints completions for a shell.
    #[command(before_help = help::COMPLETIONS.examples, after_help = help::COMPLETIONS.notes)]
    Completions(Completions),
    /// Writes a manual page for each command.
    #[command(before_help = help::MAN.examples, after_help = help::MAN.notes)]
    Man(Man),
}

/// What `run` and `acquire` have in common.
#[derive(Debug, Args)]
pub(crate) struct Take {
    /// The locks: 1 to 512 bytes each. Several are taken all or none, in sorted order.
    #[arg(required = true, value_name = "NAME", add = lock_names())]
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
    /// The name of `--wait` in other tools: the answer to it names ours.
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest_arg("--wait"))]
    pub(crate) timeout: Option<String>,
    /// Takes read locks: many --shared holders at once, and no exclusive one.
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
    /// Between TERM and KILL when the lock is lost; at most a third of the ttl
    /// [default: 10s].
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// After a crash or a timeout, the next holder waits this much longer: for what cannot check
    /// fencing tokens.
    #[arg(long, value_name = "D", default_value = "0s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse)]
    pub(crate) lock_delay: Duration,
    /// The signal for the command when somebody asks for the lock with `revoke`.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) on_revoke: Signal,
    /// Runs CMD with `sh -c` once when a lock is lost, after the command was ended.
    #[arg(long, value_name = "CMD")]
    pub(crate) on_lost: Option<OsString>,
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
    /// The handles that `acquire` printed; `-` reads them from standard input, one a line.
    #[arg(required = true, value_name = "HANDLE")]
    pub(crate) handles: Vec<String>,
}

/// `renew`.
#[derive(Debug, Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) handles: Handles,
    /// A longer time to live than the one it was taken with.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only names that begin with this.
    #[arg(long, value_name = "P")]
    pub(crate) prefix: Option<String>,
    /// Only locks that are held for at least this long.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) held_for: Option<Duration>,
    /// Only claims that wait for at least this long.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) waiting_for: Option<Duration>,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The lock.
    #[arg(add = lock_names())]
    pub(crate) name: String,
}

/// `watch`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The lock; by default all of them.
    #[arg(add = lock_names())]
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
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// Why: the holder reads it, and the store keeps it for an hour.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Takes it only from the claim with this fence: one permit, one reader, or nobody else.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_fence)]
    pub(crate) fence: Option<u64>,
    /// Takes it only from holders with this label, as `list` shows it.
    #[arg(long, value_name = "LABEL")]
    pub(crate) from: Option<String>,
    /// Does not ask first.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `steal`.
#[derive(Debug, Args)]
pub(crate) struct Steal {
    /// The lock.
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// Why: the holder reads it, and the store keeps it for an hour.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// How long the lock lasts without `renew`: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Text for others to read, up to 4 KiB.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) note: String,
    /// Does not ask first.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `revoke`.
#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The lock.
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// How long the holders have.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) within: Duration,
    /// Why: the holders read it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// `resize`.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The semaphore.
    #[arg(add = lock_names())]
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
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// Text that `leader` shows, such as an address: up to 4 KiB.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) payload: String,
    /// How long leadership outlives a leader that died: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Between TERM and KILL when leadership is lost; at most a third of the ttl
    /// [default: 10s].
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
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
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// Goes on, and prints every change.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `once`.
#[derive(Debug, Args)]
pub(crate) struct Once {
    /// The work: 1 to 512 bytes.
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// The period, which begins with a run: 100ms to 366d.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    #[arg(required_unless_present = "list")]
    pub(crate) every: Option<Duration>,
    /// Shows the runs of all names whose period is not over, and runs nothing.
    #[arg(long, conflicts_with_all = ["name", "every", "command", "again"])]
    pub(crate) list: bool,
    /// Runs also if somebody has run in this period, but not beside a run.
    #[arg(long)]
    pub(crate) again: bool,
    /// If the machine that runs the job dies, another may start it after this time: 100ms to 24h.
    #[arg(long, value_name = "D", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Ends the command when it ran this long; it counts as one that failed.
    #[arg(long, value_name = "D", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_hold)]
    pub(crate) hold_at_most: Option<Duration>,
    /// Does not count a run that failed: the next caller runs again.
    #[arg(long)]
    pub(crate) retry_failed: bool,
    /// Between TERM and KILL when the lock is lost; at most a third of the ttl
    /// [default: 10s].
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
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
    #[arg(add = lock_names())]
    pub(crate) name: String,
    /// How many units there are in any window of the period; all must say the same.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_limit)]
    pub(crate) limit: u32,
    /// The period: 100ms to 24h.
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) per: Duration,
    /// Gives up at once if no unit is left: the default.
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
    /// Makes the store of this machine, in /var/lib/leasehold, for the users in the group
    /// `leasehold`. It is their default store from then on.
    #[arg(long, conflicts_with_all = ["print", "url", "url_file"])]
    pub(crate) system: bool,
}

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// `man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, such as /usr/local/share/man/man1; created if it is missing.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// `--permits K/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) of: u32,
}

impl Cli {
    /// Reads the command line of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        Self::read_from(std::env::args_os())
    }

    fn read_from(
        line: impl IntoIterator<Item: Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let matches = Self::definition().try_get_matches_from(line)?;
        Self::from_arg_matches(&matches)
    }

    /// All commands with their options under headings.
    pub(crate) fn definition() -> clap::Command {
        fn under_its_heading(option: Arg) -> Arg {
            let heading = heading(option.get_id().as_str());
            if option.is_positional() { option } else { option.help_heading(heading) }
        }
        let all = Self::command().help_template(help::TEMPLATE).mut_args(under_its_heading);
        all.mut_subcommands(|command| {
            command.help_template(help::TEMPLATE).mut_args(under_its_heading)
        })
    }
}

/// The heading of an option in the help texts; `None` for those that few commands have.
fn heading(option: &str) -> Option<&'static str> {
    match option {
        "ttl" | "shared" | "permits" | "note" | "payload" | "hold_at_least" | "hold_at_most"
        | "grace" | "lock_delay" | "on_lost" | "on_revoke" => Some("Lock"),
        "no_wait" | "wait" | "conflict_exit_code" => Some("Waiting"),
        "url" | "url_file" | "connect_wait" | "pass_url" | "holder" => Some("Store"),
        "json" | "quiet" | "verbose" | "help" => Some("Output"),
        _ => None,
    }
}

impl Take {
    /// One name, exclusive, with the defaults.
    pub(crate) fn exclusive(name: String, ttl: Duration, note: String) -> Self {
        Self {
            names: vec![name],
            ttl,
            no_wait: false,
            wait: None,
            timeout: None,
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

/// Reads a signal, such as `TERM` or `SIGUSR1`.
fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let signal: Option<Signal> = format!("SIG{name}").parse().ok();
    signal.ok_or_else(|| "not the name of a signal, such as TERM or USR1".to_owned())
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

    #[test]
    fn the_definition_is_sound() {
        Cli::definition().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::definition().get_subcommands() {
            let help = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
            assert!(help.contains(&format!("leasehold {}", command.get_name())), "{help}");
        }
    }

    #[test]
    fn help_fits_a_terminal_of_80_columns() {
        let mut all = Cli::definition();
        all.build();
        for command in all.get_subcommands_mut() {
            for line in command.render_long_help().to_string().lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
        assert!(all.render_long_help().to_string().lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn own_options_come_before_those_of_every_command() {
        let mut all = Cli::definition();
        all.build();
        let run = all.find_subcommand_mut("run").expect("it is there");
        let help = run.render_long_help().to_string();
        let headings = ["Examples:", "Arguments:", "Lock:", "Waiting:", "Store:", "Output:"];
        let places: Vec<_> =
            headings.iter().map(|heading| help.find(&format!("\n{heading}"))).collect();
        assert!(places.is_sorted() && places[0].is_some(), "{places:?}: {help}");
        // Each option of `run` has a heading of its own.
        assert!(!help.contains("\nOptions:"), "{help}");
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
        let Command::Run(run) = Cli::read_from(line).expect("good").command else {
            panic!("it is `run`");
        };
        assert_eq!(run.take.names, ["a", "b"]);
        assert_eq!(run.command, ["cmd", "-n", "--ttl", "--", "x"]);
        assert!(!run.take.no_wait);
    }
}
