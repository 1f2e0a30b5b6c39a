//! `run`: takes locks, runs a command under them, gives them back, and ends as the command did.
//!
//! How locks are taken is in `take.rs`, how the command is looked after in `supervise.rs`.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Lease, Name, Released};
use nix::sys::signal::Signal;

use crate::args;
use crate::child::{Child, Ended};
use crate::duration;
use crate::exit::{self, Failure, Outcome};
use crate::guard::{Terms, Why};
use crate::outer::{OUTER_VARIABLE, Outer};
use crate::signals::Signals;
use crate::store::{self, Store};
use crate::supervise::Supervision;
use crate::take::{self, Plan, Taken, Wait};
use crate::terminal::Terminal;

/// Takes the locks and runs the command.
pub(crate) async fn run(
    run: args::Run,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    check_command(&run.command, "run NAME")?;
    let mut plan = Plan::new(run.take, Wait::ForEver)?;
    plan.lock_delay = run.lock_delay;
    // Before the store is opened: its threads must inherit what is blocked here, or a signal
    // could end the process without a word to the command.
    let mut signals = Signals::catch()?;
    let store = open().await?;
    let leases = match take::take(&store, &plan, Some(&mut signals)).await {
        Ok(Taken::All(leases)) => leases,
        Ok(Taken::Refused { name, by }) => {
            let refused = take::refused(&store, &plan, &name, &by);
            take::farewell(&store).await;
            return refused;
        }
        Ok(Taken::Interrupted(signal)) => return take::interrupted(&store, signal).await,
        Err(failure) => {
            take::farewell(&store).await;
            return Err(failure);
        }
    };
    let hold_until = plan.hold_at_most.map(|span| SystemClock.now() + span);
    let terms = Terms::new(plan.ttl, run.grace, hold_until);
    let work = Work {
        store: &store,
        outer: &plan.outer,
        hold_at_most: plan.hold_at_most,
        command: &run.command,
        pass_url: run.pass_url,
    };
    match work.supervise(&leases, terms, &mut signals).await {
        Ok(Course { mut child, why: None, .. }) => work.ended_by_itself(&mut child, leases).await,
        Ok(Course { why: Some(why), .. }) => {
            let failure = work.made_to_end(&why, &leases);
            drop(leases);
            take::farewell(&store).await;
            Err(failure)
        }
        Err(failure) => {
            drop(leases);
            take::farewell(&store).await;
            Err(failure)
        }
    }
}

/// A command and what it is to know.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) store: &'a Store,
    pub(crate) outer: &'a Outer,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) command: &'a [OsString],
    pub(crate) pass_url: bool,
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) child: Child,
    /// Why it was made to end, if it was.
    pub(crate) why: Option<Why>,
    /// The signal that asked this process to end meanwhile, if one did.
    pub(crate) asked: Option<Signal>,
}

impl Work<'_> {
    /// Runs the command under these leases until it has ended, and gives the terminal back.
    pub(crate) async fn supervise(
        &self,
        leases: &[Lease],
        terms: Terms,
        signals: &mut Signals,
    ) -> Result<Course, Failure> {
        let mut terminal = Terminal::default();
        let with_terminal = terminal.is_for_the_command();
        let tell = |child: &mut Command| self.tell(child, leases);
        let mask = signals.mask_before();
        let started = Child::start(self.command, tell, with_terminal, mask);
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                // It may have taken the terminal before it failed.
                if with_terminal {
                    terminal.was_lent();
                    terminal.take_back();
                }
                return Err(self.not_started(&error));
            }
        };
        if with_terminal {
            terminal.was_lent();
        }
        let mut supervision = Supervision::new(child, terminal, leases, terms);
        let why = supervision.watch(signals).await;
        let Supervision { child, mut terminal, asked, .. } = supervision;
        match child.ended {
            Some(Ended::Exited(_)) => {
                terminal.take_back();
            }
            _ => terminal.restore(),
        }
        Ok(Course { child, why, asked })
    }

    /// What the command finds in its environment: a line for each lock.
    fn tell(&self, child: &mut Command, leases: &[Lease]) {
        let names: Vec<Name> = leases.iter().map(|lease| lease.name().clone()).collect();
        let lines =
            |value: fn(&Lease) -> String| leases.iter().map(value).collect::<Vec<_>>().join("\n");
        child
            .env("LEASEHOLD_NAME", lines(|lease| lease.name().as_str().to_owned()))
            .env("LEASEHOLD_FENCE", lines(|lease| lease.fence().to_string()))
            .env("LEASEHOLD_HANDLE", lines(|lease| lease.handle().to_string()))
            .env(store::HOLDER_VARIABLE, store::write_holder(self.store.client.holder()))
            .env(OUTER_VARIABLE, self.outer.with(&names));
        match &self.store.url {
            Some(url) if self.pass_url => child.env(store::URL_VARIABLE, url),
            _ => child.env_remove(store::URL_VARIABLE),
        };
    }

    fn not_started(&self, error: &io::Error) -> Failure {
        let program = self.program();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(exit::NOT_FOUND, format!("`{program}` was not found"))
                    .hint("the command runs without a shell; use `sh -c '…'` for a script")
            }
            _ => Failure::new(exit::NOT_EXECUTABLE, format!("cannot run `{program}`: {error}")),
        }
    }

    /// The command was ended because of its locks: status 76, whatever its own was.
    pub(crate) fn made_to_end(&self, why: &Why, leases: &[Lease]) -> Failure {
        let program = self.program();
        let name = |index: usize| {
            leases.get(index).map(|l| l.name().as_str().to_owned()).unwrap_or_default()
        };
        let reason = match why {
            Why::Lost(index, cause) => {
                format!("the lease on `{}` was lost: {cause}", name(*index))
            }
            Why::Unkept(index) => format!(
                "the lease on `{}` could not be kept: the store did not answer in time",
                name(*index)
            ),
            Why::HeldLongest => {
                let span = self.hold_at_most.map(duration::human).unwrap_or_default();
                format!("the lock was held for {span}, as long as --hold-at-most allows")
            }
        };
        Failure::new(exit::LOST, format!("{reason}; `{program}` was ended"))
    }

    /// Warns of processes that the command left behind.
    pub(crate) fn look_behind(&self, child: &mut Child) {
        let left = child.left_behind();
        if left > 0 {
            let program = self.program();
            self.store.voice.warn(&format!(
                "`{program}` has ended, but {left} of its processes still run, without the lock"
            ));
        }
    }

    async fn ended_by_itself(&self, child: &mut Child, leases: Vec<Lease>) -> Outcome {
        self.look_behind(child);
        let gone = self.give_back(leases).await;
        take::farewell(self.store).await;
        if let Some(gone) = gone {
            return Err(Failure::new(exit::LOST, gone));
        }
        Ok(status_of(child))
    }

    /// Gives the leases back; says so if one of them had been gone before the command ended.
    pub(crate) async fn give_back(&self, leases: Vec<Lease>) -> Option<String> {
        let mut gone = None;
        for lease in leases {
            let name = lease.name().clone();
            match lease.release().await {
                Ok(Released::Released | Released::StillEntered) => {}
                Ok(other) => {
                    let who = match other {
                        Released::TakenBy(holder) => format!(" (`{}` has it)", holder.label()),
                        _ => String::new(),
                    };
                    let program = self.program();
                    gone.get_or_insert(format!(
                        "the lease on `{name}` was gone before `{program}` ended{who}"
                    ));
                }
                // The command did its work under the lock; the keeper goes on trying.
                Err(error) => self.store.voice.warn(&format!("giving `{name}` back: {error}")),
            }
        }
        gone
    }

    pub(crate) fn program(&self) -> String {
        self.command.first().map(|program| program.to_string_lossy().into()).unwrap_or_default()
    }
}

/// The exit status of a command that has ended, as a shell would say it.
pub(crate) fn status_of(child: &Child) -> u8 {
    match child.ended {
        Some(Ended::Exited(status)) => status,
        Some(Ended::Signalled(signal)) => exit::of_signal(signal),
        None => unreachable!("the command is waited for before this"),
    }
}

/// Refuses a command line without a command.
pub(crate) fn check_command(command: &[OsString], usage: &str) -> Result<(), Failure> {
    match command {
        [] => Err(Failure::usage("there is no command to run")
            .hint(format!("put it after `--`, as in `leasehold {usage} -- CMD ARG`"))),
        _ => Ok(()),
    }
}
