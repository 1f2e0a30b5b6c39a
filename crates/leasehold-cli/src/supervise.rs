//! The command and its leases, side by side: signals go to the group, stops are passed on, and
//! the command ends when a lease cannot be kept.
//!
//! What to do when is decided in `guard.rs`, and done by `child.rs` and `terminal.rs`.

use std::pin::pin;
use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use leasehold::{Lease, LeaseState, LostCause};
use nix::sys::signal::Signal;
use rustix::process::Signal as KernelSignal;

use crate::child::{Child, News};
use crate::guard::{Sight, Step, Terms, Why};
use crate::signals::{self, Signals};
use crate::take::any_lost;
use crate::terminal::Terminal;

/// How long to wait for the last of a killed group to go. It is a matter of microseconds unless
/// the kernel holds one of them; the command itself is waited for without a limit.
const FUNERAL_MAX: Duration = Duration::from_secs(2);

/// Signals that ask for an end. They go to the command, and what it makes of them is its own.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// A command under way.
#[derive(Debug)]
pub(crate) struct Supervision<'a> {
    pub(crate) child: Child,
    pub(crate) terminal: Terminal,
    pub(crate) leases: &'a [Lease],
    pub(crate) terms: Terms,
    /// Somebody asked this process to stop, and it does once the command has.
    stop_asked: bool,
    /// The signal that asked this process to end, if one did.
    pub(crate) asked: Option<Signal>,
    /// What the library said about leases that are lost.
    causes: Vec<Option<LostCause>>,
}

/// A command that was asked to end.
#[derive(Debug)]
struct Ending {
    why: Why,
    kill_at: Moment,
    killed: Option<Moment>,
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(child: Child, terminal: Terminal, leases: &'a [Lease], terms: Terms) -> Self {
        let causes = vec![None; leases.len()];
        Self { child, terminal, leases, terms, stop_asked: false, asked: None, causes }
    }

    /// Waits until the command has ended; says why if it was made to.
    pub(crate) async fn watch(&mut self, signals: &mut Signals) -> Option<Why> {
        let mut ending: Option<Ending> = None;
        let mut lost = pin!(any_lost(self.leases));
        let mut all_told = false;
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
                    // One is enough: the command ends, and the guard watches the others' ends.
                    all_told = true;
                    self.causes[index] = Some(cause);
                }
                () = SystemClock.alarm(rest_until), if rest_until != Moment::NEVER => {}
            }
        }
        ending.map(|ending| ending.why)
    }

    /// Does what is due; returns until when there is nothing to do, or `None` when all is over.
    fn step(&mut self, ending: &mut Option<Ending>, now: Moment) -> Option<Moment> {
        let sights = self.sights();
        let step = match ending {
            None if self.child.ended.is_some() => return None,
            None => self.terms.decide(&sights, now),
            Some(Ending { killed: Some(at), .. }) => {
                let buried = self.child.group_is_empty() || now.since(*at) > FUNERAL_MAX;
                if self.child.ended.is_some() && buried {
                    self.child.kill_escaped();
                    return None;
                }
                return Some(now + Duration::from_millis(10));
            }
            Some(_) if self.child.group_is_empty() => {
                self.child.kill_escaped();
                return None;
            }
            Some(Ending { why, kill_at, .. }) => {
                self.terms.decide_ending(&sights, *kill_at, why, now)
            }
        };
        match step {
            Step::Rest(until) => Some(until),
            Step::Terminate { kill_at, why } => {
                tracing::debug!(?why, "sending TERM");
                self.child.terminate();
                *ending = Some(Ending { why, kill_at, killed: None });
                Some(kill_at)
            }
            Step::Kill(why) => {
                tracing::debug!(?why, "sending KILL");
                self.child.kill();
                let why = ending.take().map_or(why, |ending| ending.why);
                *ending = Some(Ending { why, kill_at: now, killed: Some(now) });
                Some(now)
            }
        }
    }

    fn sights(&self) -> Vec<Sight> {
        let each = self.leases.iter().zip(&self.causes);
        each.map(|(lease, cause)| Sight {
            state: lease.state(),
            safe_until: lease.safe_until(),
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
                self.child.signal(KernelSignal::TSTP);
            }
            Signal::SIGCONT => self.go_on(),
            signal => {
                if ENDING.contains(&signal) {
                    self.asked = Some(signal);
                }
                let number = KernelSignal::from_named_raw(signal as i32);
                if let Some(signal) = number {
                    self.child.signal(signal);
                }
            }
        }
    }

    /// The command stopped: for want of the terminal, because a person said so, or because
    /// somebody stopped it alone, which is none of our business.
    fn command_stopped(&mut self, by: i32) {
        let wants_terminal = by == Signal::SIGTTIN as i32 || by == Signal::SIGTTOU as i32;
        if wants_terminal && self.terminal.lend(self.child.group()) {
            self.child.signal(KernelSignal::CONT);
            return;
        }
        let had_terminal = self.terminal.take_back();
        if !had_terminal && !std::mem::take(&mut self.stop_asked) {
            return;
        }
        self.stop_asked = false;
        // So that the shell notices that the job has stopped. Nobody renews the lease now.
        signals::stop_self(had_terminal);
        self.go_on();
    }

    /// Lets the command go on, unless its lease ran out while it was stopped: then it must not do
    /// another thing, and the next look at the leases kills it.
    fn go_on(&mut self) {
        if self.leases.iter().any(|lease| lease.state() == LeaseState::Lost) {
            return;
        }
        self.stop_asked = false;
        self.terminal.lend_again(self.child.group());
        self.child.signal(KernelSignal::CONT);
    }
}
