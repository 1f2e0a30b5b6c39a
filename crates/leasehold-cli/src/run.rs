//! `run`: takes locks, runs a command under them, gives them back, and ends as the command did.
//!
//! How locks are taken is in `take.rs`, how the command is looked after in `supervise.rs`.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::error::Held as Refusal;
use leasehold::{Lease, Released};
use nix::sys::signal::Signal;

use crate::acquire::Refused;
use crate::args;
use crate::child::{Child, Ended};
use crate::duration;
use crate::environment;
use crate::exit::{self, Failure, Outcome};
use crate::guard::{self, Terms, Why};
use crate::on_lost::{self, Loss};
use crate::outer::Outer;
use crate::record::{self, Record};
use crate::signals::Signals;
use crate::store::Store;
use crate::supervise::{Subject, Supervision};
use crate::take::{self, Plan, Taken, Wait};
use crate::terminal::Terminal;

/// Between TERM and KILL where `--grace` does not say it.
const GRACE: Duration = Duration::from_secs(10);

/// Takes the locks and runs the command.
pub(crate) async fn run(
    run: args::Run,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    check_command(&run.command, "run NAME")?;
    let mut plan = Plan::new(run.take, Wait::ForEver)?;
    plan.lock_delay = run.lock_delay;
    plan.program = program_name(&run.command);
    // Before the store is opened: its threads must inherit what is blocked here, or a signal
    // could end the process without a word to the command.
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    environment::check(&plan.names, &plan.outer, store.client.holder())?;
    let leases = match take::take(&store, &plan, Some(&mut signals)).await {
        Ok(Taken::All(leases)) => leases,
        Ok(Taken::Refused(refusal)) => return refused(&store, &plan, &refusal).await,
        Ok(Taken::Interrupted(signal)) => return take::interrupted(&store, signal).await,
        Err(failure) => {
            take::farewell(&store).await;
            return Err(failure);
        }
    };
    let hold_until = plan.hold_at_most.map(|span| SystemClock.now() + span);
    let terms = Terms::new(plan.ttl, grace(&store, run.grace, plan.ttl), hold_until);
    let work = Work {
        store: &store,
        outer: &plan.outer,
        hold_at_most: plan.hold_at_most,
        command: &run.command,
        pass_url: run.pass_url,
        on_revoke: run.on_revoke,
    };
    match work.supervise(&leases, terms, &mut signals).await {
        Ok(Course { mut child, why: None, .. }) => {
            work.look_behind(&mut child);
            let gone = work.give_back(leases).await;
            let on_lost = gone.as_ref().map(|gone| &gone.loss);
            let on_lost = on_lost.and_then(|loss| work.start_on_lost(loss, &run.on_lost, &signals));
            take::farewell(&store).await;
            on_lost::wait(on_lost, &mut signals).await;
            gone.map_or(Ok(status_of(&child)), |gone| Err(Failure::new(exit::LOST, gone.message)))
        }
        Ok(Course { why: Some(why), fate, .. }) => {
            let taken = work.taken(&why, &leases).await;
            let failure = work.made_to_end(&why, fate, &leases, taken.as_ref());
            let loss = Loss::of(&why, &leases).map(|loss| loss.explained(taken));
            drop(leases);
            // Before the farewell, which may wait for a store that does not answer.
            let on_lost = loss.and_then(|loss| work.start_on_lost(&loss, &run.on_lost, &signals));
            take::farewell(&store).await;
            on_lost::wait(on_lost, &mut signals).await;
            Err(failure)
        }
        Err(failure) => {
            drop(leases);
            take::farewell(&store).await;
            Err(failure)
        }
    }
}

/// Says who holds the name. Standard output is the command's, also if it does not run.
async fn refused(store: &Store, plan: &Plan, refusal: &Refusal) -> Outcome {
    if store.voice.json {
        exit::say_json(&Refused::of(refusal));
    }
    let refused = take::refused(store, plan, refusal);
    take::farewell(store).await;
    refused
}

/// The time between TERM and KILL. Says so if a lost lock will not leave that much of it.
pub(crate) fn grace(store: &Store, asked: Option<Duration>, ttl: Duration) -> Duration {
    let most = guard::grace_max(ttl);
    if let Some(asked) = asked.filter(|asked| *asked > most) {
        let (asked, most) = (duration::human(asked), duration::human(most));
        store.voice.tell(&format!(
            "--grace {asked} is {most} when the lock is lost: a third of the ttl is the most"
        ));
    }
    asked.unwrap_or(GRACE)
}

/// A command and what it is to know.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) store: &'a Store,
    pub(crate) outer: &'a Outer,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) command: &'a [OsString],
    pub(crate) pass_url: bool,
    /// The signal for the command when somebody asks for a lock.
    pub(crate) on_revoke: Signal,
}

/// A lease that was gone before its command ended.
#[derive(Debug)]
pub(crate) struct Gone {
    /// For the user.
    pub(crate) message: String,
    loss: Loss,
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) child: Child,
    /// Why it was made to end, if it was.
    pub(crate) why: Option<Why>,
    /// What became of it then.
    pub(crate) fate: Fate,
    /// The signal that asked this process, or the command at the terminal, to end meanwhile.
    pub(crate) asked: Option<Signal>,
}

/// The end of a command that was to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Ended,
    /// It has other rights than this process, could not be ended, and ended by itself.
    EndedByItself,
    /// It has other rights than this process, and still runs.
    Runs,
}

impl Fate {
    fn of(child: &Child, out_of_reach: bool) -> Self {
        match (out_of_reach, child.ended.is_some() && child.group_is_empty()) {
            (false, _) => Fate::Ended,
            (true, true) => Fate::EndedByItself,
            (true, false) => Fate::Runs,
        }
    }
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
        let tell = |child: &mut Command| {
            environment::tell(child, self.store, self.outer, leases, self.pass_url);
        };
        let mask = signals.mask_before();
        let begun = SystemClock.now();
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
        let (voice, on_revoke) = (self.store.voice, self.on_revoke);
        let subject = Subject { voice, program: self.program(), on_revoke };
        let mut supervision = Supervision::new(subject, (child, terminal), leases, terms);
        let why = supervision.watch(signals, begun).await;
        let Supervision { child, mut terminal, asked, out_of_reach, .. } = supervision;
        let fate = Fate::of(&child, out_of_reach);
        // A key at the terminal reaches the command's group only. A command that ended by it tells
        // that it was pressed.
        let pressed = child.ended.and_then(Ended::key).filter(|_| terminal.was_the_commands());
        let asked = asked.or(pressed);
        match child.ended {
            Some(Ended::Exited(_)) => {
                terminal.take_back();
            }
            _ => terminal.restore(),
        }
        Ok(Course { child, why, fate, asked })
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

    /// The record of who took the lock, if it was force-released.
    pub(crate) async fn taken(&self, why: &Why, leases: &[Lease]) -> Option<Record> {
        let Why::Lost(index, _) = why else { return None };
        let lease = leases.get(*index).filter(|_| record::may_explain(why))?;
        record::of_lease(&self.store.client, lease.name(), lease.fence()).await
    }

    /// The command was ended because of its locks: status 76, whatever its own was.
    pub(crate) fn made_to_end(
        &self,
        why: &Why,
        fate: Fate,
        leases: &[Lease],
        taken: Option<&Record>,
    ) -> Failure {
        let program = self.program();
        let name = |index: usize| {
            leases.get(index).map(|l| l.name().as_str().to_owned()).unwrap_or_default()
        };
        let reason = match why {
            Why::Lost(index, cause) => {
                let cause = taken.map_or_else(|| cause.to_string(), Record::words);
                format!("the lease on `{}` was lost: {cause}", name(*index))
            }
            Why::Unkept(index) => {
                let trouble = leases.get(*index).and_then(Lease::last_failure);
                let trouble = trouble.map(|error| error.to_string());
                let trouble = trouble.as_deref().unwrap_or("the store did not answer in time");
                format!("the lease on `{}` could not be kept: {trouble}", name(*index))
            }
            Why::Stopped(index, _) => {
                format!("the lease on `{}` could not be kept: {why}", name(*index))
            }
            Why::HeldLongest => {
                let span = self.hold_at_most.map(duration::human).unwrap_or_default();
                format!("the lock was held for {span}, as long as --hold-at-most allows")
            }
        };
        let fate = match fate {
            Fate::Ended => "was ended",
            Fate::EndedByItself => "could not be ended, and has ended by itself",
            Fate::Runs => "cannot be ended, and still runs",
        };
        Failure::new(exit::LOST, format!("{reason}; `{program}` {fate}"))
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

    /// Starts what the user wants to be run for a lost lock, if anything.
    fn start_on_lost(
        &self,
        loss: &Loss,
        command: &Option<OsString>,
        signals: &Signals,
    ) -> Option<Child> {
        let command = command.as_deref()?;
        let tell_store =
            |child: &mut Command| environment::tell_store(child, self.store, self.pass_url);
        match on_lost::start(command, loss, tell_store, signals.mask_before()) {
            Ok(child) => Some(child),
            Err(error) => {
                self.store.voice.warn(&format!("cannot run the command of --on-lost: {error}"));
                None
            }
        }
    }

    /// Gives the leases back; says so if one of them had been gone before the command ended.
    pub(crate) async fn give_back(&self, leases: Vec<Lease>) -> Option<Gone> {
        let mut gone = None;
        for lease in leases {
            let (name, fence) = (lease.name().clone(), lease.fence());
            match lease.release().await {
                Ok(Released::Released | Released::StillEntered) => {}
                Ok(other) => {
                    let taken = match record::may_explain_end(&other) {
                        true => record::of_lease(&self.store.client, &name, fence).await,
                        false => None,
                    };
                    let (who, cause) = match (&taken, other) {
                        (Some(taken), _) => (format!(": {}", taken.words()), on_lost::REMOVED),
                        (None, Released::TakenBy(holder)) => {
                            (format!(" (`{}` has it)", holder.label()), on_lost::TAKEN)
                        }
                        (None, _) => (String::new(), on_lost::REMOVED),
                    };
                    let program = self.program();
                    let message =
                        format!("the lease on `{name}` was gone before `{program}` ended{who}");
                    let loss = Loss { name, fence, cause, reason: None }.explained(taken);
                    gone.get_or_insert(Gone { message, loss });
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

/// The part of a command that others see: its program without folders and arguments.
pub(crate) fn program_name(command: &[OsString]) -> Option<String> {
    let program = Path::new(command.first()?).file_name()?;
    Some(program.to_string_lossy().into_owned())
}

/// Refuses a command line without a command.
pub(crate) fn check_command(command: &[OsString], usage: &str) -> Result<(), Failure> {
    match command {
        [] => Err(Failure::usage("there is no command to run")
            .hint(format!("put it after `--`, as in `leasehold {usage} -- CMD ARG`"))),
        _ => Ok(()),
    }
}
