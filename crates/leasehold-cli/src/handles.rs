//! `renew`, `release` and `check`: leases that live on between processes, by their handles.
//!
//! A lease taken with `--hold-at-least` or `--hold-at-most` carries them behind its handle as
//! `+least=MS` and `+most=MS`: the store does not know them, and the process that knew is gone.
//! How long the lease has been held is the store's answer.

use std::fmt;
use std::io::Read as _;
use std::str::FromStr;
use std::time::Duration;

use leasehold::claim::Ttl;
use leasehold::{Client, Error, Handle, Released};
use serde::Serialize;

use crate::acquire::millis;
use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::store::Store;
use crate::take::{self, Plan};

/// The most that is read from standard input: some thousand handles.
const INPUT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A handle, and what `acquire` was told about how long to hold.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) handle: Handle,
    least: Option<Duration>,
    most: Option<Duration>,
}

/// What is said about a lease.
#[derive(Debug, Serialize)]
struct Standing {
    held: bool,
    #[serde(skip)]
    name: String,
    fence: String,
    remaining_ms: u64,
}

/// What is said about a lease that was given back.
#[derive(Debug, Serialize)]
struct GivenBack {
    released: bool,
    name: String,
    fence: String,
}

impl Ticket {
    pub(crate) fn new(handle: Handle, plan: &Plan) -> Self {
        Self { handle, least: plan.hold_at_least, most: plan.hold_at_most }
    }

    /// How long the lease has been held, by the store's clock.
    async fn age(&self, client: &Client) -> Result<Duration, Error> {
        let line = client.show(self.handle.name()).await?;
        let mut held = line.into_iter().flat_map(|line| line.held);
        let own = held.find(|claim| claim.fence == self.handle.fence());
        let stale = || Error::Stale { name: self.handle.name().clone(), by: None };
        own.map(|claim| claim.age).ok_or_else(stale)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)?;
        for (key, span) in [("least", self.least), ("most", self.most)] {
            if let Some(span) = span {
                write!(f, "+{key}={}", millis(span))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Ticket {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let mut parts = text.trim().split('+');
        let handle = parts.next().unwrap_or_default().parse().map_err(|error: Error| {
            Failure::from(error).hint("a handle is the line that `leasehold acquire` prints")
        })?;
        let mut ticket = Ticket { handle, least: None, most: None };
        for part in parts {
            let bad = || Failure::usage("this is not a lease handle: its end is unknown");
            let (key, ms) = part.split_once('=').ok_or_else(bad)?;
            let span = Duration::from_millis(ms.parse().map_err(|_| bad())?);
            match key {
                "least" => ticket.least = Some(span),
                "most" => ticket.most = Some(span),
                _ => return Err(bad()),
            }
        }
        Ok(ticket)
    }
}

/// Extends leases.
pub(crate) async fn renew(
    renew: args::Renew,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let tickets = read(&renew.handles)?;
    let store = open().await?;
    let mut report = Report::default();
    for ticket in &tickets {
        let renewed = renew_one(&store.client, ticket, renew.ttl).await;
        report.add(standing(ticket, renewed.map(Some)));
    }
    report
        .end(&store, |standing| {
            let (name, left) =
                (&standing.name, human(Duration::from_millis(standing.remaining_ms)));
            format!("renewed `{name}`, fence {}, {left} left", standing.fence)
        })
        .await
}

async fn renew_one(
    client: &Client,
    ticket: &Ticket,
    ttl: Option<Duration>,
) -> Result<Duration, Failure> {
    let mut ttl = ttl.unwrap_or_else(|| ticket.handle.ttl());
    if let Some(most) = ticket.most {
        let left = most.saturating_sub(ticket.age(client).await?);
        if left < Ttl::MIN {
            let (name, most) = (ticket.handle.name(), human(most));
            return Err(Failure::new(
                exit::NOT_HOLDER,
                format!("`{name}` was held for {most}, as long as --hold-at-most allows"),
            ));
        }
        ttl = ttl.min(left);
    }
    let lease = client.adopt_with(&ticket.handle, ttl).await?;
    let left = lease.time_left();
    lease.detach().await?;
    Ok(left)
}

/// Gives leases back.
pub(crate) async fn release(
    handles: args::Handles,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let tickets = read(&handles)?;
    let store = open().await?;
    let mut report = Report::default();
    for ticket in &tickets {
        let released = release_one(&store.client, ticket).await;
        report.add(released.map(|()| GivenBack {
            released: true,
            name: ticket.handle.name().as_str().to_owned(),
            fence: ticket.handle.fence().to_string(),
        }));
    }
    report.end(&store, |given| format!("released `{}`, fence {}", given.name, given.fence)).await
}

async fn release_one(client: &Client, ticket: &Ticket) -> Result<(), Failure> {
    if let Some(least) = ticket.least {
        let left = least.saturating_sub(ticket.age(client).await?);
        if left >= Ttl::MIN {
            // Nobody holds it any more, but it stays closed until its least time is over.
            client.adopt_with(&ticket.handle, left).await?.detach().await?;
            return Ok(());
        }
    }
    let name = ticket.handle.name().clone();
    match client.release(&ticket.handle).await? {
        Released::TakenBy(holder) => Err(Error::Stale { name, by: Some(holder) }.into()),
        Released::AlreadyExpired => Err(Error::Stale { name, by: None }.into()),
        _ => Ok(()),
    }
}

/// Says whether leases are still held.
pub(crate) async fn check(
    handles: args::Handles,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let tickets = read(&handles)?;
    let store = open().await?;
    let mut report = Report::default();
    for ticket in &tickets {
        let left = store.client.check(&ticket.handle).await;
        report.add(standing(ticket, left.map_err(Failure::from)));
        if report.done.last().is_some_and(|standing: &Standing| !standing.held) {
            report.fail(exit::NOT_HOLDER);
        }
    }
    report
        .end(&store, |standing| {
            let (name, fence) = (&standing.name, &standing.fence);
            let left = human(Duration::from_millis(standing.remaining_ms));
            match standing.held {
                true => format!("`{name}` is held, fence {fence}, {left} left"),
                false => format!("`{name}` is not held any more with fence {fence}"),
            }
        })
        .await
}

fn standing(ticket: &Ticket, left: Result<Option<Duration>, Failure>) -> Result<Standing, Failure> {
    left.map(|left| Standing {
        held: left.is_some(),
        name: ticket.handle.name().as_str().to_owned(),
        fence: ticket.handle.fence().to_string(),
        remaining_ms: left.map_or(0, millis),
    })
}

/// The handles of the command line, or of standard input where it says `-`.
fn read(handles: &args::Handles) -> Result<Vec<Ticket>, Failure> {
    let mut tickets = Vec::new();
    for text in &handles.handles {
        if text != "-" {
            tickets.push(text.parse()?);
            continue;
        }
        let mut input = String::new();
        std::io::stdin()
            .take(INPUT_BYTES_MAX)
            .read_to_string(&mut input)
            .map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
        let lines = input.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            tickets.push(line.parse()?);
        }
    }
    if tickets.is_empty() {
        return Err(Failure::usage("there is no handle on standard input"));
    }
    Ok(tickets)
}

/// What became of several handles: one that fails does not stop the others.
#[derive(Debug)]
struct Report<T> {
    done: Vec<T>,
    failed: Option<u8>,
}

impl<T> Default for Report<T> {
    fn default() -> Self {
        Self { done: Vec::new(), failed: None }
    }
}

impl<T: Serialize> Report<T> {
    fn add(&mut self, result: Result<T, Failure>) {
        match result {
            Ok(done) => self.done.push(done),
            Err(failure) => {
                failure.report();
                self.fail(failure.status);
            }
        }
    }

    /// The first failure decides the status.
    fn fail(&mut self, status: u8) {
        self.failed.get_or_insert(status);
    }

    async fn end(self, store: &Store, line: impl Fn(&T) -> String) -> Outcome {
        take::farewell(store).await;
        if store.voice.json {
            if !self.done.is_empty() {
                out::print_json_each(&self.done)?;
            }
        } else if !store.voice.quiet {
            let lines = self.done.iter().map(|done| crate::text::escape(&line(done)) + "\n");
            out::print(&lines.collect::<String>())?;
        }
        Ok(self.failed.unwrap_or(exit::DONE))
    }
}
