//! Supervises the command beside its leases: forwards signals to the group, passes on stops, and
//! ends the command when a lease cannot be kept.
//!
//! `guard.rs` decides what to do and when; `child.rs` and `terminal.rs` do it.

use std::io;
use std::pin::pin;
use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use leasehold::{Lease, LeaseState, LostCause, Name, Revocation};
use nix::sys::signal::Signal;
use rustix::process::Signal as KernelSignal;

use crate::child::{Child, News};
use crate::duration::human;
use crate::guard::{Sight, Step, Terms, Why};
use crate::out::Voice;
use crate::signals::{self, Signals};
use crate::take::{any_lost, any_revoked};
use crate::terminal::Terminal;

/// How long to wait until a killed group is gone. It takes microseconds unless the kernel holds one
/// of its processes. The wait for the command itself has no limit.
const FUNERAL_MAX: Duration = Duration::from_secs(2);

/// How often to check that a killed group is gone, and a group that cannot be killed.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOK_EVERY_IN_VAIN: Duration = Duration::from_millis(100);

/// Signals that ask for an end. This process forwards them, and the command decides what to do.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The command's name, and how to talk to its user.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) voice: Voice,
    pub(crate) program: String,
    /// The signal for the command when somebody asks for a lock.
    pub(crate) on_revoke: Signal,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Supervision<'a> {
    subject: Subject,
    pub(crate) child: Child,
    pub(crate) terminal: Terminal,
    pub(crate) leases: &'a [Lease],
    pub(crate) terms: Terms,
    /// A stop signal came. This process stops once the command has.
    stop_asked: bool,
    /// The signal that asked this process to end, if one did.
    pub(crate) asked: Option<Signal>,
    /// Some of the command's processes have other rights than this one, and cannot be ended.
    pub(crate) out_of_reach: bool,
    /// The library's causes for leases that are lost.
    causes: Vec<Option<LostCause>>,
    /// How much later than planned this process woke the last time.
    late: Duration,
}

/// A command that was asked to end.
#[derive(Debug)]
struct Ending {
    why: Why,
    kill_at: Moment,
    killed: Option<Moment>,
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(
        subject: Subject,
        (child, terminal): (Child, Terminal),
        leases: &'a [Lease],
        terms: Terms,
    ) -> Self {
        let causes = vec![None; leases.len()];
        Self {
            subject,
            child,
            terminal,
            leases,
            terms,
            stop_asked: false,
            asked: None,
            out_of_reach: false,
            causes,
            late: Duration::ZERO,
        }
    }

    /// Waits until the command, which was started at `begun`, has ended. Returns why this process
    /// ended it, if it did.
    pub(crate) async fn watch(&mut self, signals: &mut Signals, begun: Moment) -> Option<Why> {
        self.late = SystemClock.now().since(begun);
        let mut ending: Option<Ending> = None;
        let mut lost = pin!(any_lost(self.leases));
        let mut all_told = false;
        let mut asked_for = pin!(any_revoked(self.leases));
        let mut is_asked = false;
        loop {
            let now = SystemClock.now();
            let rest_until = match self.step(&mut ending, now) {
                Some(until) => until,
                None => break,
            };
            tokio::select! {
                biased;
                signal = signals.next() => self.heed(signal),
                (index, cause) = &mut lost, if !all_told => {
                    // One lost lease ends the command. The guard watches the other safe ends.
                    all_told = true;
                    self.causes[index] = Some(cause);
                }
                (index, revocation) = &mut asked_for, if !is_asked => {
                    is_asked = true;
                    self.revoked(index, &revocation);
                }
                () = SystemClock.alarm(rest_until), if rest_until != Moment::NEVER => {}
            }
            self.late = SystemClock.now().since(rest_until);
        }
        ending.map(|ending| ending.why)
    }

    /// Somebody asks for a lock: the command gets a signal, once, and ends in its own time. If it
    /// does not, the lock is taken away, and the command is ended for that.
    fn revoked(&mut self, index: usize, revocation: &Revocation) {
        let Subject { voice, program, on_revoke } = &self.subject;
        let (by, left, reason) = (&revocation.by, human(revocation.time_left), &revocation.reason);
        let name = self.leases.get(index).map(Lease::name).map(Name::as_str).unwrap_or_default();
        voice.tell(&format!(
            "`{by}` asks for `{name}` within {left}: {reason}; `{program}` gets {on_revoke}"
        ));
        let Some(signal) = KernelSignal::from_named_raw(*on_revoke as i32) else { return };
        if let Err(error) = self.child.signal(signal) {
            self.cannot_end(&error);
        }
    }

    /// Does what is due; returns until when there is nothing to do, or `None` when all is over.
    fn step(&mut self, ending: &mut Option<Ending>, now: Moment) -> Option<Moment> {
        let sights = self.sights();
        let step = match ending {
            None if self.child.ended.is_some() => return None,
            None => self.terms.decide(&sights, now),
            Some(Ending { killed: Some(at), .. }) => return self.bury(*at, now),
            Some(_) if self.child.group_is_empty() => {
                self.kill_escaped();
                return None;
            }
            Some(Ending { why, kill_at, .. }) => {
                self.terms.decide_ending(&sights, *kill_at, why, now)
            }
        };
        match step {
            Step::Rest(until) => Some(until),
            Step::Terminate { kill_at, why } => {
                let why = why.found_late(self.late);
                tracing::debug!(%why, "sending TERM");
                let asked = self.child.terminate();
                self.heard(asked);
                *ending = Some(Ending { why, kill_at, killed: None });
                Some(kill_at)
            }
            Step::Kill(why) => {
                let why = why.found_late(self.late);
                tracing::debug!(%why, "sending KILL");
                let killed = self.child.kill();
                self.heard(killed);
                let why = ending.take().map_or(why, |ending| ending.why);
                *ending = Some(Ending { why, kill_at: now, killed: Some(now) });
                Some(now)
            }
        }
    }

    /// Checks a group that was killed; returns when to check again, or `None` at the end. It also
    /// ends when the command cannot be killed and has lost a lease: the command runs on, and this
    /// process cannot change that.
    fn bury(&mut self, killed: Moment, now: Moment) -> Option<Moment> {
        let gone = self.child.group_is_empty() || now.since(killed) > FUNERAL_MAX;
        if self.child.ended.is_some() && gone {
            self.kill_escaped();
            return None;
        }
        // This process may have no right to signal the processes that are left in the group.
        let killed = self.child.kill();
        self.heard(killed);
        if self.out_of_reach && self.has_lost() {
            self.kill_escaped();
            return None;
        }
        Some(now + if self.out_of_reach { LOOK_EVERY_IN_VAIN } else { LOOK_EVERY })
    }

    fn kill_escaped(&mut self) {
        let killed = self.child.kill_escaped();
        self.heard(killed);
    }

    fn has_lost(&self) -> bool {
        self.leases.iter().any(|lease| lease.state() == LeaseState::Lost)
    }

    /// Reports once, at the first failure, that the command cannot be ended.
    fn heard(&mut self, sent: io::Result<()>) {
        if let Err(error) = sent
            && !std::mem::replace(&mut self.out_of_reach, true)
        {
            self.cannot_end(&error);
        }
    }

    fn cannot_end(&self, error: &io::Error) {
        let Subject { voice, program, .. } = &self.subject;
        voice.warn(&format!("cannot end `{program}`: {error}"));
    }

    fn sights(&self) -> Vec<Sight> {
        let each = self.leases.iter().zip(&self.causes);
        each.map(|(lease, cause)| Sight {
            state: lease.state(),
            safe_until: lease.deadline(),
            cause: cause.clone(),
        })
        .collect()
    }

    fn heed(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {
                if let News::Stopped(by) = self.child.look() {
                    self.command_stopped(by);
                }
            }
            Signal::SIGTSTP => {
                // The command decides whether it stops; if it does, so does this process.
                self.stop_asked = true;
                self.pass_on(KernelSignal::TSTP);
            }
            Signal::SIGCONT => self.go_on(),
            signal => {
                if ENDING.contains(&signal) {
                    self.asked = Some(signal);
                }
                let number = KernelSignal::from_named_raw(signal as i32);
                let Some(number) = number else { return };
                match self.child.signal(number) {
                    Err(error) if ENDING.contains(&signal) => self.cannot_end(&error),
                    _ => {}
                }
            }
        }
    }

    /// Forwards a signal that does not end the command. A failure changes nothing.
    fn pass_on(&self, signal: KernelSignal) {
        let _heard = self.child.signal(signal);
    }

    /// Handles a stop of the command. It wants the terminal, or a person stopped it from the
    /// terminal, or another process stopped it alone. This process ignores the last case.
    fn command_stopped(&mut self, by: i32) {
        let wants_terminal = by == Signal::SIGTTIN as i32 || by == Signal::SIGTTOU as i32;
        if wants_terminal && self.terminal.lend(self.child.group()) {
            self.pass_on(KernelSignal::CONT);
            return;
        }
        let had_terminal = self.terminal.take_back();
        if !had_terminal && !std::mem::take(&mut self.stop_asked) {
            return;
        }
        self.stop_asked = false;
        // So the shell notices that the job has stopped. Nothing renews the lease meanwhile.
        signals::stop_self(had_terminal);
        self.go_on();
    }

    /// Lets the command go on, unless its lease ran out while it was stopped. Then it stays
    /// stopped, and the next check of the leases kills it.
    fn go_on(&mut self) {
        if self.has_lost() {
            return;
        }
        self.stop_asked = false;
        self.terminal.lend_again(self.child.group());
        self.pass_on(KernelSignal::CONT);
    }
}
