//! `elect` and `leader`: runs a command while this process leads, and prints the leader.
//!
//! The leader holds a lock whose note is the payload. `run.rs` supervises the command.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use leasehold::{Fence, Leader, Name};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::args;
use crate::child::Ended;
use crate::exit::{self, Failure, Outcome};
use crate::guard::Terms;
use crate::out;
use crate::run::{Course, Fate, Work, check_command, grace, program_name, status_of};
use crate::signals::Signals;
use crate::store::Store;
use crate::take::{self, Plan, Taken, Wait};
use crate::text::{escape, wall_clock_ago};
use crate::watch::reader_gone;

/// The least time from one campaign to the next: a command that ends at once must not keep the
/// store and the other candidates busy.
const CAMPAIGN_EVERY: Duration = Duration::from_secs(1);

/// Campaigns, runs the command while it leads, and campaigns again.
pub(crate) async fn elect(
    elect: args::Elect,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    check_command(&elect.command, "elect NAME")?;
    let take = args::Take::exclusive(elect.name.clone(), elect.ttl, elect.payload.clone());
    let mut plan = Plan::new(take, Wait::ForEver)?;
    plan.program = program_name(&elect.command);
    // Before the store is opened, as in `run`.
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    let grace = grace(&store, elect.grace, plan.ttl);
    let mut candidate =
        Candidate { store: &store, plan: &plan, elect: &elect, grace, has_led: false };
    let ended = loop {
        let begun = Instant::now();
        match candidate.term(&mut signals).await {
            Ok(None) => {}
            Ok(Some(status)) => break Ok(status),
            Err(failure) => break Err(failure),
        }
        if let Some(signal) = pause(begun, &mut signals).await {
            break Ok(exit::of_signal(signal as i32));
        }
    };
    take::farewell(&store).await;
    ended
}

/// Waits until it is time for the next campaign. Returns the signal if one ended the wait.
async fn pause(begun: Instant, signals: &mut Signals) -> Option<Signal> {
    let rest = CAMPAIGN_EVERY.saturating_sub(begun.elapsed());
    tokio::select! {
        biased;
        signal = signals.ending(|| {}) => Some(signal),
        () = tokio::time::sleep(rest) => None,
    }
}

struct Candidate<'a> {
    store: &'a Store,
    plan: &'a Plan,
    elect: &'a args::Elect,
    grace: Duration,
    has_led: bool,
}

impl Candidate<'_> {
    /// One campaign, and the term that follows. Returns a status if that was the last one.
    async fn term(&mut self, signals: &mut Signals) -> Result<Option<u8>, Failure> {
        let (store, name) = (self.store, &self.elect.name);
        let leases = match take::take(store, self.plan, Some(signals)).await {
            Ok(Taken::All(leases)) => leases,
            Ok(Taken::Interrupted(signal)) => return Ok(Some(exit::of_signal(signal as i32))),
            // Cannot happen: this command waits, and only one that does not wait is refused.
            Ok(Taken::Refused(_)) => return Ok(None),
            // A candidate that has led goes on trying: that is its purpose.
            Err(failure) if self.has_led && failure.status == exit::UNREACHABLE => {
                failure.report();
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        self.has_led = true;
        let term = leases.first().map_or(Fence::from(0), leasehold::Lease::fence);
        store.voice.tell(&format!("leads `{name}`, term {term}"));
        let terms = Terms::new(self.plan.ttl, self.grace, None);
        let work = Work {
            store,
            outer: &self.plan.outer,
            hold_at_most: None,
            command: &self.elect.command,
            pass_url: self.elect.pass_url,
            on_revoke: Signal::SIGTERM,
        };
        let course = work.supervise(&leases, terms, signals).await?;
        let Course { mut child, why, fate, asked } = course;
        match why {
            // Another command beside it would be one leader too many.
            Some(why) if fate == Fate::Runs => {
                let taken = work.taken(&why, &leases).await;
                return Err(work.made_to_end(&why, fate, &leases, taken.as_ref()));
            }
            Some(why) => {
                let taken = work.taken(&why, &leases).await;
                work.made_to_end(&why, fate, &leases, taken.as_ref()).report()
            }
            None => {
                work.look_behind(&mut child);
                if let Some(gone) = work.give_back(leases).await {
                    store.voice.warn(&gone.message);
                }
            }
        }
        let status = status_of(&child);
        // A command that goes on after HUP has read its settings again. HUP did not ask it to end.
        let hung_up = child.ended == Some(Ended::Signalled(Signal::SIGHUP as i32));
        if asked.is_some_and(|signal| signal != Signal::SIGHUP || hung_up) {
            return Ok(Some(status));
        }
        let program = work.program();
        store.voice.tell(&format!("`{program}` ended with status {status}; campaigns again"));
        Ok(None)
    }
}

/// The leader, as one JSON document.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    name: &'a str,
    leader: Option<Who<'a>>,
}

#[derive(Debug, Serialize)]
struct Who<'a> {
    holder: &'a str,
    /// A decimal string, as fences are.
    term: String,
    payload: &'a str,
}

impl<'a> Line<'a> {
    fn of(name: &'a Name, leader: Option<&'a Leader>, now: bool) -> Self {
        let who = |leader: &'a Leader| Who {
            holder: leader.holder.label(),
            term: leader.term.to_string(),
            payload: &leader.payload,
        };
        let at = now.then(|| wall_clock_ago(Duration::ZERO));
        Self { at, name: name.as_str(), leader: leader.map(who) }
    }

    fn text(&self) -> String {
        let mut words: Vec<String> = self.at.iter().cloned().collect();
        match &self.leader {
            Some(who) => {
                words.extend([escape(who.holder), format!("term {}", who.term)]);
                if !who.payload.is_empty() {
                    words.push(escape(who.payload));
                }
            }
            None => words.push("nobody".to_owned()),
        }
        words.join("  ") + "\n"
    }
}

/// Prints the leader, once or at every change.
pub(crate) async fn leader(
    leader: args::Leader,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&leader.name)?;
    if leader.watch {
        return watch(&name, open).await;
    }
    let store = open().await?;
    let found = store.client.election(&name).leader().await?;
    if store.voice.json {
        out::print_json(&Line::of(&name, found.as_ref(), false))?;
    } else if found.is_some() {
        out::print(&Line::of(&name, found.as_ref(), false).text())?;
    } else {
        store.voice.tell(&format!("nobody leads `{name}`"));
    }
    Ok(if found.is_some() { exit::DONE } else { exit::CONFLICT })
}

async fn watch(name: &Name, open: impl AsyncFnOnce() -> Result<Store, Failure>) -> Outcome {
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    let mut leaders = store.client.election(name).observe().await?;
    let mut reader_gone = std::pin::pin!(reader_gone());
    let outcome = loop {
        let leader = tokio::select! {
            biased;
            signal = signals.ending(|| {}) => break Ok(exit::of_signal(signal as i32)),
            () = &mut reader_gone => break Ok(exit::DONE),
            leader = leaders.next() => leader,
        };
        let printed = match leader {
            Some(Ok(leader)) => {
                let line = Line::of(name, leader.as_ref(), true);
                if store.voice.json { out::print_json(&line) } else { out::print(&line.text()) }
            }
            // The next item comes when the store answers again.
            Some(Err(error)) if error.is_transient() => {
                store.voice.warn(&error.with_sources());
                Ok(())
            }
            Some(Err(error)) => break Err(error.into()),
            None => break Ok(exit::DONE),
        };
        if let Err(error) = printed {
            break Err(error.into());
        }
    };
    drop(leaders);
    take::farewell(&store).await;
    outcome
}
