//! Takes locks: checks the options before it opens a store, and then takes all or none.
//!
//! If all names are free, it takes them at once, else in sorted order. So two commands that want
//! the same names never wait for each other. `run.rs` and `acquire.rs` use the locks.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use leasehold::claim::Note;
use leasehold::error::Held;
use leasehold::{
    Client, Error, Lease, LockOptions, LostCause, Mode, Name, Request, Revocation, TryLockError,
};
use nix::sys::signal::Signal;

use crate::args;
use crate::exit::{Failure, Outcome};
use crate::outer::Outer;
use crate::signals::Signals;
use crate::store::{self, Store};
use crate::text::time_ago;
use crate::waiting::Waiting;
use crate::{duration, exit, lines};

/// How long to try to close the client before the process ends. Claims that are left then end by
/// their ttl.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// The locks to take, and how long to wait for them.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Sorted, each once.
    pub(crate) names: Vec<Name>,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) note: String,
    /// The program that runs under the lock, for others to read. Its arguments may have secrets, so
    /// they are left out.
    pub(crate) program: Option<String>,
    pub(crate) hold_at_least: Option<Duration>,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) wait: Wait,
    /// When the wait began, which includes connecting.
    pub(crate) begun: Instant,
    pub(crate) conflict_status: u8,
    pub(crate) outer: Outer,
}

/// How long to wait for a lock that is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    #[default]
    No,
    Within(Duration),
    ForEver,
}

impl Wait {
    /// The wait that the options ask for; `unless_said` without such an option.
    pub(crate) fn of(take: &args::Take, unless_said: Wait) -> Self {
        match (take.no_wait, take.wait) {
            (true, _) => Wait::No,
            (false, Some(span)) => Wait::Within(span),
            (false, None) => unless_said,
        }
    }

    /// Whether a store that answers, but cannot serve now, is asked again. Without a time limit a
    /// file is not: its own limit, `busy_timeout_ms`, is over, or this process may open too few
    /// files.
    pub(crate) fn goes_on(self, begun: Instant, is_file: bool) -> bool {
        match self {
            Wait::No => false,
            Wait::Within(span) => begun.elapsed() < span,
            Wait::ForEver => !is_file,
        }
    }
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum Taken {
    /// A lease on every name, in their order.
    All(Vec<Lease>),
    /// Others hold a name; the command kept no lock.
    Refused(Box<Held>),
    /// A signal came during the wait; the command kept no lock.
    Interrupted(Signal),
}

impl Plan {
    /// Checks the options. `unless_said` is the wait without an option.
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
        let wait = Wait::of(&take, unless_said);
        Ok(Self {
            names: names.into_iter().collect(),
            mode,
            ttl: take.ttl,
            note: take.note,
            program: None,
            hold_at_least: take.hold_at_least,
            hold_at_most: take.hold_at_most,
            lock_delay: Duration::ZERO,
            wait,
            begun: Instant::now(),
            conflict_status: take.conflict_exit_code,
            outer: Outer::read(),
        })
    }

    /// The note with the facts about this process behind it.
    fn note(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let pid = std::process::id().to_string();
        let mut facts = vec![(lines::HOST, &*host)];
        // The process of `acquire` is gone when somebody reads this.
        if let Some(program) = &self.program {
            facts.extend([(lines::PID, &*pid), (lines::PROGRAM, &**program)]);
        }
        Note::with_facts(&self.note, &facts)
    }

    /// The options of each lock.
    pub(crate) fn options(&self) -> LockOptions {
        let options =
            LockOptions::new().ttl(self.ttl).note(self.note()).lock_delay(self.lock_delay);
        options.holding(self.outer.names())
    }

    fn request(&self, client: &Client, name: &Name) -> Request {
        let mut options = self.options();
        if let Some(span) = self.hold_at_least {
            options = options.hold_at_least(span);
        }
        // Not `hold_at_most`: that gives the lock back while a command may still run under it.
        // Instead `guard.rs` decides when the command has to end.
        if self.outer.waits_for_itself(name, self.mode) {
            options = options.detect_self_deadlock();
        }
        client.request(name).mode(self.mode).options(options)
    }
}

/// Takes the locks of the plan, and shows its waits on the terminal. Without a wait it needs no
/// `signals`.
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
    taken.map_err(Failure::from)
}

async fn take_all(client: &Client, plan: &Plan, waiting: &Waiting) -> Result<Taken, Error> {
    if plan.names.len() > 1 {
        // Mostly all are free, and then a store may need only one exchange for all of them.
        let requests = plan.names.iter().map(|name| plan.request(client, name));
        match client.all(requests).try_lock().await {
            Ok(leases) => return Ok(Taken::All(leases.into_vec())),
            Err(TryLockError::Held(held)) if plan.wait == Wait::No => {
                return Ok(Taken::Refused(held));
            }
            Err(TryLockError::Failed(error))
                if !store::is_passing(&error) || plan.wait == Wait::No =>
            {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    // A long wait for the last name may outlast the lease on the first one. No work has used that
    // lease yet, so it is enough to begin again, with the same deadline.
    loop {
        let mut leases = Vec::with_capacity(plan.names.len());
        for name in &plan.names {
            waiting.turn_to(name);
            let lease = tokio::select! {
                biased;
                _lost = any_lost(&leases) => break,
                lease = ask(client, plan, name, waiting) => lease,
            };
            match lease {
                Ok(lease) => leases.push(lease),
                Err(TryLockError::Held(held)) => return Ok(Taken::Refused(held)),
                Err(error) => return Err(error.into()),
            }
        }
        if leases.len() == plan.names.len() && leases.iter().all(Lease::is_held) {
            return Ok(Taken::All(leases));
        }
        tracing::info!("a lease was lost before the last one was granted; beginning again");
    }
}

/// Asks for one name. If the store answers that it cannot serve now, asks again until the wait is
/// over.
async fn ask(
    client: &Client,
    plan: &Plan,
    name: &Name,
    waiting: &Waiting,
) -> Result<Lease, TryLockError> {
    let is_file = client.info().engine == "sqlite";
    loop {
        let request = plan.request(client, name);
        let asked = match plan.wait {
            Wait::No => request.try_acquire().await,
            Wait::ForEver => request.acquire().await.map_err(TryLockError::from),
            Wait::Within(span) => {
                request.acquire_within(span.saturating_sub(plan.begun.elapsed())).await
            }
        };
        match asked {
            Err(TryLockError::Failed(error))
                if store::is_passing(&error) && plan.wait.goes_on(plan.begun, is_file) =>
            {
                tracing::debug!(%error, "asking again");
                waiting.failed(&error);
                tokio::time::sleep(store::PAUSE).await;
            }
            asked => return asked,
        }
    }
}

/// Ends when one of the leases is lost; returns its index and the cause.
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

/// Ends when somebody asks for one of the leases; says which, and who.
pub(crate) fn any_revoked(leases: &[Lease]) -> impl Future<Output = (usize, Revocation)> {
    let watches: Vec<_> = leases.iter().map(|lease| Box::pin(lease.revoke_requested())).collect();
    async move {
        if watches.is_empty() {
            return std::future::pending().await;
        }
        let (revocation, index, _others) = select_all(watches).await;
        (index, revocation)
    }
}

/// Tells who holds a name, and ends with the status for it.
pub(crate) fn refused(store: &Store, plan: &Plan, held: &Held) -> Outcome {
    // With `--json` the caller has printed it.
    if !store.voice.json {
        store.voice.tell(&describe(held));
    }
    Ok(plan.conflict_status)
}

fn describe(held: &Held) -> String {
    let (name, by) = (&held.name, &held.claims);
    let Some(first) = by.first() else {
        return match held.by {
            Some(_) => held.to_string(),
            None => format!("`{name}` was held a moment ago, or others are in line; try again"),
        };
    };
    let others = match by.len() - 1 {
        0 => String::new(),
        1 => " and one other".to_owned(),
        more => format!(" and {more} others"),
    };
    if let Some(past) = lines::past_words(name, by) {
        return past;
    }
    let note = match first.note.text() {
        "" => String::new(),
        note => format!(": {note}"),
    };
    let since = match first.is_foreign() {
        true => String::new(),
        false => format!(" since {} ({})", time_ago(first.age), duration::human(first.age)),
    };
    format!(
        "`{name}` is held by `{}`{others}{}{since}, free in {} unless it is renewed{note}",
        first.holder.label(),
        lines::purpose_words(first),
        duration::human(first.remaining),
    )
}

/// Closes the client: gives back all locks that are left, and reports its counts to the store.
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
