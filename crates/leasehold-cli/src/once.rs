//! `once`: runs a command at most once in each period over all machines, and remembers how it went.
//!
//! When a run may start is the library's business; how the command is looked after is in `run.rs`.

use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::{Error, LastRun, Name, Run, RunState};
use serde::Serialize;

use crate::acquire::millis;
use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::guard::{Terms, Why};
use crate::out;
use crate::outer::Outer;
use crate::run::{Course, Work, check_command, status_of};
use crate::signals::Signals;
use crate::store::Store;
use crate::take;
use crate::text::wall_clock_ago;

/// A run that did not start, as one JSON document.
#[derive(Debug, Serialize)]
struct Skipped<'a> {
    name: &'a str,
    ran: bool,
    last: Option<Last<'a>>,
}

#[derive(Debug, Serialize)]
struct Last<'a> {
    state: &'static str,
    by: &'a str,
    fence: String,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    next_in_ms: u64,
}

impl<'a> Last<'a> {
    fn of(last: &'a LastRun) -> Self {
        let (state, took, why) = match &last.state {
            RunState::Done { took } => ("done", Some(*took), None),
            RunState::Failed { took, why } => ("failed", Some(*took), Some(why.as_str())),
            _ => ("running", None, None),
        };
        Self {
            state,
            by: last.by.label(),
            fence: last.fence.to_string(),
            started_at: wall_clock_ago(last.started),
            took_ms: took.map(millis),
            why,
            next_in_ms: millis(last.next_in),
        }
    }
}

/// Runs the command, if it is its turn.
pub(crate) async fn once(
    once: args::Once,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    check_command(&once.command, "once NAME --every 1h")?;
    let name = Name::new(&once.name)?;
    // Before the store is opened, as in `run`.
    let mut signals = Signals::catch()?;
    let store = open().await?;
    let mut job = store.client.once(&name, once.every).ttl(once.ttl);
    if once.retry_failed {
        job = job.retry_failed();
    }
    let ended = match job.start().await {
        Ok(Ok(run)) => {
            let ttl = once.ttl.min(once.every);
            let hold_until = once.hold_at_most.map(|span| SystemClock.now() + span);
            let terms = Terms::new(ttl, once.grace, hold_until);
            let outer = Outer::read();
            let work = Work {
                store: &store,
                outer: &outer,
                hold_at_most: once.hold_at_most,
                command: &once.command,
                pass_url: once.pass_url,
            };
            go(&work, run, terms, &mut signals).await
        }
        Ok(Err(last)) => skipped(&store, &name, last.as_ref()),
        Err(error) => Err(error.into()),
    };
    take::farewell(&store).await;
    ended
}

async fn go(work: &Work<'_>, run: Run, terms: Terms, signals: &mut Signals) -> Outcome {
    let leases = std::slice::from_ref(run.lease());
    // A command that cannot be started, or lost its lock, has not run: whoever is next may.
    let Course { mut child, why, .. } = work.supervise(leases, terms, signals).await?;
    let (ended, failed) = match why {
        None => {
            work.look_behind(&mut child);
            let status = status_of(&child);
            (Ok(status), (status != 0).then(|| format!("status {status}")))
        }
        // One that ran for too long has run.
        Some(Why::HeldLongest) => {
            let failure = work.made_to_end(&Why::HeldLongest, leases);
            (Err(failure), Some("it ran for as long as --hold-at-most allows".to_owned()))
        }
        Some(why) => return Err(work.made_to_end(&why, leases)),
    };
    let program = work.program();
    match run.end(failed).await {
        Ok(()) => ended,
        Err(Error::Lost { name, cause }) => Err(Failure::new(
            exit::LOST,
            format!("the lease on `{name}` was gone before `{program}` ended: {cause}"),
        )),
        // The command has run; the library goes on telling the store for as long as it makes sense.
        Err(error) => {
            let voice = work.store.voice;
            voice.warn(&format!("how `{program}` ended is not remembered: {error}"));
            ended
        }
    }
}

fn skipped(store: &Store, name: &Name, last: Option<&LastRun>) -> Outcome {
    if store.voice.json {
        let last = last.map(Last::of);
        out::print_json(&Skipped { name: name.as_str(), ran: false, last })?;
    } else {
        store.voice.tell(&describe(name, last));
    }
    Ok(exit::DONE)
}

fn describe(name: &Name, last: Option<&LastRun>) -> String {
    let Some(last) = last else {
        return format!("skipped: somebody ran `{name}` a moment ago");
    };
    let (by, started, next) = (last.by.label(), human(last.started), human(last.next_in));
    let took = |took: &Duration| human(*took);
    match &last.state {
        RunState::Done { took: span } => format!(
            "skipped: `{by}` ran `{name}` {started} ago, done in {}; the next may run in {next}",
            took(span)
        ),
        RunState::Failed { took: span, why } => format!(
            "skipped: `{by}` ran `{name}` {started} ago, failed after {} ({why}); the next may \
             run in {next}",
            took(span)
        ),
        _ => format!("skipped: `{by}` runs `{name}` since {started}"),
    }
}
