//! `once`: runs a command at most once in each period over all machines, and remembers how it went.
//!
//! When a run may start is the library's business; how the command is looked after is in `run.rs`.

use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use leasehold::engine::Query;
use leasehold::{Error, LastRun, Name, Run, RunState};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::acquire::millis;
use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::guard::{Terms, Why};
use crate::lines::run_word;
use crate::out;
use crate::outer::Outer;
use crate::run::{Course, Work, check_command, grace, status_of};
use crate::signals::Signals;
use crate::store::Store;
use crate::table::align;
use crate::take;
use crate::text::{escape, wall_clock_ago};

/// A run that did not start, as one JSON document.
#[derive(Debug, Serialize)]
struct Skipped<'a> {
    name: &'a str,
    ran: bool,
    last: Option<Last<'a>>,
}

/// A name and its run, as `--list` writes it.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    #[serde(flatten)]
    last: Last<'a>,
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
    if once.list {
        return list(&open().await?).await;
    }
    check_command(&once.command, "once NAME --every 1h")?;
    let (Some(name), Some(every)) = (&once.name, once.every) else {
        return Err(Failure::usage("a name and --every are needed"));
    };
    let name = Name::new(name)?;
    // Before the store is opened, as in `run`.
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    let mut job = store.client.once(&name, every).ttl(once.ttl);
    if once.retry_failed {
        job = job.retry_failed();
    }
    if once.again {
        job = job.again();
    }
    let ended = match job.start().await {
        Ok(Ok(run)) => {
            let ttl = once.ttl.min(every);
            let hold_until = once.hold_at_most.map(|span| SystemClock.now() + span);
            let terms = Terms::new(ttl, grace(&store, once.grace, ttl), hold_until);
            let outer = Outer::read();
            let work = Work {
                store: &store,
                outer: &outer,
                hold_at_most: once.hold_at_most,
                command: &once.command,
                pass_url: once.pass_url,
                on_revoke: Signal::SIGTERM,
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
    // A command that cannot be started, or lost its lock, has not run. The next process may run it.
    let Course { mut child, why, fate, .. } = work.supervise(leases, terms, signals).await?;
    let (ended, failed) = match why {
        None => {
            work.look_behind(&mut child);
            let status = status_of(&child);
            (Ok(status), (status != 0).then(|| format!("status {status}")))
        }
        // One that ran for too long has run.
        Some(Why::HeldLongest) => {
            let failure = work.made_to_end(&Why::HeldLongest, fate, leases, None);
            (Err(failure), Some("it ran for as long as --hold-at-most allows".to_owned()))
        }
        Some(why) => {
            let taken = work.taken(&why, leases).await;
            return Err(work.made_to_end(&why, fate, leases, taken.as_ref()));
        }
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

/// Shows what ran in the periods that are not over.
async fn list(store: &Store) -> Outcome {
    let mut query = Query::all();
    let mut runs: Vec<(Name, LastRun)> = Vec::new();
    loop {
        let page = store.client.admin().inspect(&query).await?;
        for line in page.lines {
            let run = line.held.into_iter().find_map(LastRun::of);
            runs.extend(run.map(|run| (line.name, run)));
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    if store.voice.json {
        let listed = |(name, run): &(Name, LastRun)| {
            serde_json::to_value(Listed { name: name.as_str(), last: Last::of(run) })
        };
        let listed = runs.iter().map(listed).collect::<Result<Vec<_>, _>>();
        out::print_json(&listed.map_err(std::io::Error::from)?)?;
    } else if runs.is_empty() {
        store.voice.tell("nothing runs here, and no period is open");
    } else {
        out::print(&align(&table(&runs)))?;
    }
    Ok(exit::DONE)
}

fn table(runs: &[(Name, LastRun)]) -> Vec<[String; 7]> {
    let header = ["NAME", "STATE", "BY", "STARTED", "TOOK", "NEXT IN", "WHY"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(runs.iter().map(|(name, run)| {
        let (took, why) = match &run.state {
            RunState::Done { took } => (human(*took), String::new()),
            RunState::Failed { took, why } => (human(*took), escape(why)),
            _ => (String::new(), String::new()),
        };
        [
            escape(name.as_str()),
            run_word(&run.state).to_owned(),
            escape(run.by.label()),
            wall_clock_ago(run.started),
            took,
            human(run.next_in),
            why,
        ]
    }));
    rows
}

fn skipped(store: &Store, name: &Name, last: Option<&LastRun>) -> Outcome {
    if store.voice.json {
        let last = last.map(Last::of);
        out::print_json(&Skipped { name: name.as_str(), ran: false, last })?;
    } else {
        store.voice.tell(&describe(name, last));
    }
    // Whether the work ran is not known without its record.
    Ok(if last.is_some() { exit::DONE } else { exit::CONFLICT })
}

fn describe(name: &Name, last: Option<&LastRun>) -> String {
    let Some(last) = last else {
        return format!("`{name}` was in use for a moment at each try; try again");
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
