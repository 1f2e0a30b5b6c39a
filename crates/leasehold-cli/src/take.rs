//! Taking locks: what was asked for, checked before a store is touched, and then all or none.
//!
//! Several names are taken at once if all are free, else in sorted order, so that two commands
//! that want the same names never wait for each other. What the locks are for is left to `run.rs`
//! and `acquire.rs`.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use leasehold::claim::Note;
use leasehold::engine::ClaimView;
use leasehold::{Client, Error, Lease, LostCause, Mode, Name, Request};
use nix::sys::signal::Signal;

use crate::args;
use crate::exit::{Failure, Outcome};
use crate::outer::Outer;
use crate::signals::Signals;
use crate::store::Store;
use crate::waiting::Waiting;
use crate::{duration, exit};

/// How long to go on telling the store before the process ends without. What is left then ends
/// by its ttl.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// What to take, and how long to wait for it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Sorted, each once.
    pub(crate) names: Vec<Name>,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) note: String,
    pub(crate) hold_at_least: Option<Duration>,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) wait: Wait,
    pub(crate) conflict_status: u8,
    pub(crate) outer: Outer,
}

/// How long to wait for a lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    Within(Duration),
    ForEver,
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A lease on every name, in their order.
    All(Vec<Lease>),
    /// This name is held by others; nothing was kept.
    Refused { name: Name, by: Vec<ClaimView> },
    /// A signal came while waiting; nothing was kept.
    Interrupted(Signal),
}

impl Plan {
    /// Checks the options. `unless_said` is how long to wait when no option says it.
    pub(crate) fn new(take: args::Take, unless_said: Wait) -> Result<Self, Failure> {
        let names = take.names.iter().map(Name::new).collect::<Result<BTreeSet<_>, _>>()?;
        Note::new(&take.note)?;
        if let (Some(least), Some(most)) = (take.hold_at_least, take.hold_at_most)
            && least > most
        {
            return Err(Failure::usage(format!(
                "--hold-at-least {} is longer than --hold-at-most {}",
                duration::human(least),
                duration::human(most)
            )));
        }
        let mode = match (take.shared, take.permits) {
            (true, _) => Mode::Shared,
            (false, Some(permits)) => Mode::Permits { take: permits.take, of: permits.of },
            (false, None) => Mode::Exclusive,
        };
        let wait = match (take.no_wait, take.wait) {
            (true, _) => Wait::No,
            (false, Some(span)) => Wait::Within(span),
            (false, None) => unless_said,
        };
        Ok(Self {
            names: names.into_iter().collect(),
            mode,
            ttl: take.ttl,
            note: take.note,
            hold_at_least: take.hold_at_least,
            hold_at_most: take.hold_at_most,
            lock_delay: Duration::ZERO,
            wait,
            conflict_status: take.conflict_exit_code,
            outer: Outer::read(),
        })
    }

    fn request(&self, client: &Client, name: &Name) -> Request {
        let mut request = client.claim(name).mode(self.mode).ttl(self.ttl).note(&self.note);
        request = request.lock_delay(self.lock_delay);
        if let Some(span) = self.hold_at_least {
            request = request.hold_at_least(span);
        }
        // Not `max_hold`: that gives the lock back while a command may still be at work under
        // it. Whoever holds it longest decides in `guard.rs` when the work has to end.
        request = request.holding(self.outer.names());
        if self.outer.waits_for_itself(name, self.mode) {
            request = request.one_at_a_time();
        }
        request
    }
}

/// Takes what is planned, and shows on the terminal what it waits for. Where nothing is waited
/// for, there need be no signals.
pub(crate) async fn take(
    store: &Store,
    plan: &Plan,
    signals: Option<&mut Signals>,
) -> Result<Taken, Failure> {
    let waiting = Waiting::new(store.voice);
    let ending = async {
        match signals {
            Some(signals) => signals.ending(|| waiting.clear()).await,
            None => std::future::pending().await,
        }
    };
    let taken = tokio::select! {
        biased;
        signal = ending => Ok(Taken::Interrupted(signal)),
        taken = take_all(&store.client, plan, &waiting) => taken,
        never = waiting.show(&store.client) => match never {},
    };
    waiting.clear();
    Ok(taken?)
}

async fn take_all(client: &Client, plan: &Plan, waiting: &Waiting) -> Result<Taken, Error> {
    let begun = Instant::now();
    if plan.names.len() > 1 {
        // Most of the time all are free, and then a store may need one exchange for all of them.
        let requests = plan.names.iter().map(|name| plan.request(client, name));
        if let Some(leases) = client.all(requests).try_lock().await? {
            return Ok(Taken::All(leases.into_vec()));
        }
    }
    // Whoever waits long for the last name may lose the first one on the way. Nothing has been
    // done under it yet, so it is enough to begin again, within the same deadline.
    loop {
        let mut leases = Vec::with_capacity(plan.names.len());
        for name in &plan.names {
            waiting.turn_to(name);
            let lease = tokio::select! {
                biased;
                _lost = any_lost(&leases) => break,
                lease = ask(plan.request(client, name), plan.wait, begun) => lease?,
            };
            let Some(lease) = lease else {
                // Before anybody is asked who holds it: those who wait need not wait for that.
                drop(leases);
                let line = client.show(name).await?;
                let by = line.map(|line| line.held).unwrap_or_default();
                return Ok(Taken::Refused { name: name.clone(), by });
            };
            leases.push(lease);
        }
        if leases.len() == plan.names.len() && leases.iter().all(Lease::is_held) {
            return Ok(Taken::All(leases));
        }
        tracing::info!("a lease was lost before the last one was granted; beginning again");
    }
}

async fn ask(request: Request, wait: Wait, begun: Instant) -> Result<Option<Lease>, Error> {
    match wait {
        Wait::No => request.try_acquire().await,
        Wait::Within(span) => request.acquire_within(span.saturating_sub(begun.elapsed())).await,
        Wait::ForEver => request.acquire().await.map(Some),
    }
}

/// Ends when one of the leases is lost; says which, and why.
pub(crate) fn any_lost(leases: &[Lease]) -> impl Future<Output = (usize, LostCause)> {
    let watches: Vec<_> = leases.iter().map(|lease| Box::pin(lease.lost())).collect();
    async move {
        if watches.is_empty() {
            return std::future::pending().await;
        }
        let (cause, index, _others) = select_all(watches).await;
        (index, cause)
    }
}

/// Tells who holds a name, and ends with the status for it.
pub(crate) fn refused(store: &Store, plan: &Plan, name: &Name, by: &[ClaimView]) -> Outcome {
    store.voice.tell(&describe(name, by));
    Ok(plan.conflict_status)
}

fn describe(name: &Name, by: &[ClaimView]) -> String {
    let Some(first) = by.first() else {
        return format!("`{name}` was held a moment ago, or others are in line; try again");
    };
    let others = match by.len() - 1 {
        0 => String::new(),
        1 => " and one other".to_owned(),
        more => format!(" and {more} others"),
    };
    let note = match first.note.as_str() {
        "" => String::new(),
        note => format!(": {note}"),
    };
    format!(
        "`{name}` is held by `{}`{others} for {}, {} left unless renewed{note}",
        first.holder.label(),
        duration::human(first.age),
        duration::human(first.remaining),
    )
}

/// Gives back whatever is left, and lets the store's counts know.
pub(crate) async fn farewell(store: &Store) {
    match tokio::time::timeout(FAREWELL_MAX, store.client.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => store.voice.detail(&format!("closing failed: {error}")),
        Err(_) => store.voice.warn("the store does not answer; what is left ends by its ttl"),
    }
}

/// The end of a command that a signal ended while it waited.
pub(crate) async fn interrupted(store: &Store, signal: Signal) -> Outcome {
    farewell(store).await;
    Ok(exit::of_signal(signal as i32))
}
