//! `acquire`: takes locks for a script that gives them back itself, and prints their handles.

use std::time::Duration;

use leasehold::error::Held as Refusal;
use leasehold::{Handle, Lease};
use serde::Serialize;

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::handles::Ticket;
use crate::lines::Held;
use crate::out;
use crate::signals::Signals;
use crate::store::Store;
use crate::take::{self, Plan, Taken, Wait};

/// A lock that was taken.
#[derive(Debug, Serialize)]
struct Acquired<'a> {
    handle: String,
    name: &'a str,
    fence: String,
    holder: &'a str,
    ttl_ms: u64,
    remaining_ms: u64,
}

/// A lock that was not.
#[derive(Debug, Serialize)]
pub(crate) struct Refused<'a> {
    acquired: bool,
    held_by: Vec<HeldBy<'a>>,
}

#[derive(Debug, Serialize)]
struct HeldBy<'a> {
    name: &'a str,
    #[serde(flatten)]
    held: Held<'a>,
}

impl<'a> Refused<'a> {
    pub(crate) fn of(refusal: &'a Refusal) -> Self {
        let name = refusal.name.as_str();
        let held_by = refusal.claims.iter().map(|claim| HeldBy { name, held: Held::of(claim) });
        Self { acquired: false, held_by: held_by.collect() }
    }
}

/// Takes the locks, and detaches the leases without giving them back.
pub(crate) async fn acquire(
    take: args::Take,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let mut plan = Plan::new(take, Wait::No)?;
    if let Some(most) = plan.hold_at_most {
        plan.ttl = plan.ttl.min(most);
    }
    // A command that waits in line must leave it when a signal comes. Without a wait it is quick.
    let mut signals = match plan.wait {
        Wait::No => None,
        _ => Some(Signals::catch()?),
    };
    let store = match &mut signals {
        Some(signals) => signals.opened(open).await?,
        None => open().await?,
    };
    let taken = match check(&store, &plan).await {
        Ok(()) => take::take(&store, &plan, signals.as_mut()).await,
        Err(failure) => Err(failure),
    };
    let outcome = match taken {
        Ok(Taken::All(leases)) => hand_over(&store, &plan, leases).await,
        Ok(Taken::Refused(refusal)) => refuse(&store, &plan, &refusal),
        Ok(Taken::Interrupted(signal)) => return take::interrupted(&store, signal).await,
        Err(failure) => Err(failure),
    };
    take::farewell(&store).await;
    outcome
}

/// Refuses a store whose locks do not outlive this process for as long as the plan says.
pub(crate) async fn check(store: &Store, plan: &Plan) -> Result<(), Failure> {
    let info = store.client.info();
    if store.client.parts().unattended.is_none() || !info.can.across_processes {
        return Err(Failure::config(format!(
            "a lock in `{}` ends with the process that took it, so its handle would be worthless",
            info.engine
        ))
        .hint(match info.engine {
            "postgres+advisory" => {
                "use `leasehold run`, or the lease table: `postgres://` instead of \
                 `postgres+advisory://`"
            }
            _ => "use `leasehold run`, or another store such as `sqlite:PATH`",
        }));
    }
    // No process renews it from here on.
    store.client.check_unrenewed(plan.ttl).await.map_err(Failure::from)
}

/// Detaches the leases and prints their handles. If it cannot print them, gives the locks back.
pub(crate) async fn hand_over(store: &Store, plan: &Plan, leases: Vec<Lease>) -> Outcome {
    let mut handles = Vec::with_capacity(leases.len());
    let mut failed = None;
    for lease in leases {
        match lease.detach().await {
            Ok(handle) => handles.push(handle),
            Err(error) => failed = Some(Failure::from(error)),
        }
    }
    let printed = match failed {
        Some(failure) => Err(failure),
        None => print(store, plan, &handles).await,
    };
    if let Err(failure) = printed {
        for handle in &handles {
            if let Ok(lease) = store.client.adopt(handle).await {
                drop(lease);
            }
        }
        return Err(failure);
    }
    Ok(exit::DONE)
}

async fn print(store: &Store, plan: &Plan, handles: &[Handle]) -> Result<(), Failure> {
    let mut tickets = Vec::with_capacity(handles.len());
    for handle in handles {
        tickets.push(Ticket::new(&store.client, handle.clone(), plan).await?);
    }
    if !store.voice.json {
        let lines = tickets.iter().map(|ticket| format!("{ticket}\n"));
        return Ok(out::print(&lines.collect::<String>())?);
    }
    let mut taken = Vec::with_capacity(tickets.len());
    for ticket in &tickets {
        let handle = &ticket.handle;
        let remaining = store.client.check(handle).await?.unwrap_or_default();
        taken.push(Acquired {
            handle: ticket.to_string(),
            name: handle.name().as_str(),
            fence: handle.fence().to_string(),
            holder: handle.holder().label(),
            ttl_ms: millis(handle.ttl()),
            remaining_ms: millis(remaining),
        });
    }
    Ok(out::print_json_each(&taken)?)
}

fn refuse(store: &Store, plan: &Plan, refusal: &Refusal) -> Outcome {
    if store.voice.json {
        out::print_json(&Refused::of(refusal))?;
    }
    take::refused(store, plan, refusal)
}

/// Whole milliseconds, rounded down: never more than there is.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
