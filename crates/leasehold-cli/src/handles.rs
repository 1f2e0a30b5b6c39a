//! `renew`, `release` and `check`: leases that outlive their process, by their handles.
//!
//! A lease taken with `--hold-at-least` or `--hold-at-most` has them behind its handle as
//! `+least=MS` and `+most=MS`. The store does not know them, and the process that took the lease is
//! gone. The handle also has the clocks' readings at the time when `acquire` printed it: see
//! [`Clocks`].

use std::fmt;
use std::io::Read as _;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// The most bytes to read from standard input: some thousand handles.
const INPUT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A handle, and the bounds of `acquire` on how long to hold.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) handle: Handle,
    least: Option<Duration>,
    most: Option<Duration>,
    /// The clocks' readings when `acquire` printed the handle.
    granted: Clocks,
}

/// Readings of the clocks that show how long a lease has been held. Each clock counts from an
/// instant of its own, so only two readings of the same clock compare.
///
/// Any clock may have been set since, and two machines may differ. So the clock with the least time
/// passed decides how long a name stays closed. The clock with the most decides when a lease ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Clocks {
    /// `age`: the lease's age, by its store. Some stores count it from when the claim joined the
    /// line, and some by the wall clock of the client that asks.
    store: Duration,
    /// `wall`: this machine's wall clock. Older handles have none.
    wall: Option<Duration>,
    /// `boot` and `up`: the id of this machine's boot, and how long the machine has been up. That
    /// clock is never set. Older handles and some systems have none.
    uptime: Option<Uptime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Uptime {
    boot: u64,
    passed: Duration,
}

impl Uptime {
    #[cfg(target_os = "linux")]
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits = text.replace('-', "");
        let boot = u64::from_str_radix(digits.get(..16)?, 16).ok()?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).ok()?;
        let nanos = u32::try_from(now.tv_nsec).ok()?;
        Some(Self { boot, passed: Duration::new(seconds, nanos) })
    }

    #[cfg(not(target_os = "linux"))]
    fn read() -> Option<Self> {
        None
    }
}

impl Clocks {
    /// Reads the clocks for a lease with this age in its store.
    fn read(store: Duration) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        Self { store, wall, uptime: Uptime::read() }
    }

    /// The time passed until `now`, by each clock that both readings have.
    fn passed(&self, now: &Self) -> impl Iterator<Item = Duration> {
        let wall = self.wall.zip(now.wall).map(|(then, now)| now.saturating_sub(then));
        let uptime = self.uptime.zip(now.uptime).filter(|(then, now)| then.boot == now.boot);
        let uptime = uptime.map(|(then, now)| now.passed.saturating_sub(then.passed));
        [Some(now.store.saturating_sub(self.store)), wall, uptime].into_iter().flatten()
    }
}

/// The report about a lease.
#[derive(Debug, Serialize)]
struct Standing {
    held: bool,
    #[serde(skip)]
    name: String,
    fence: String,
    remaining_ms: u64,
}

/// The report about a lease that was given back.
#[derive(Debug, Serialize)]
struct GivenBack {
    released: bool,
    name: String,
    fence: String,
}

impl Ticket {
    /// The ticket of a lease that was just taken.
    pub(crate) async fn new(client: &Client, handle: Handle, plan: &Plan) -> Result<Self, Error> {
        let (least, most) = (plan.hold_at_least, plan.hold_at_most);
        let mut ticket = Self { handle, least, most, granted: Clocks::default() };
        if least.is_some() || most.is_some() {
            ticket.granted = Clocks::read(ticket.age_in_store(client).await?);
        }
        Ok(ticket)
    }

    /// How much of a span is left since the grant, by each clock.
    async fn left_of(&self, span: Duration, client: &Client) -> Result<Vec<Duration>, Error> {
        let now = Clocks::read(self.age_in_store(client).await?);
        let passed = self.granted.passed(&now);
        Ok(passed.map(|passed| span.saturating_sub(passed)).collect())
    }

    async fn age_in_store(&self, client: &Client) -> Result<Duration, Error> {
        let line = client.line(self.handle.name()).await?;
        let mut held = line.into_iter().flat_map(|line| line.held);
        let own = held.find(|claim| claim.fence == self.handle.fence() && !claim.closed);
        let stale = || Error::Stale { name: self.handle.name().clone(), by: None };
        own.map(|claim| claim.age).ok_or_else(stale)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)?;
        let Clocks { store, wall, uptime } = &self.granted;
        let numbers = [
            ("least", self.least.map(millis)),
            ("most", self.most.map(millis)),
            ("age", (!store.is_zero()).then(|| millis(*store))),
            ("wall", wall.map(millis)),
            ("boot", uptime.map(|uptime| uptime.boot)),
            ("up", uptime.map(|uptime| millis(uptime.passed))),
        ];
        for (key, number) in numbers {
            if let Some(number) = number {
                write!(f, "+{key}={number}")?;
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
        let mut ticket = Ticket { handle, least: None, most: None, granted: Clocks::default() };
        let (mut boot, mut up) = (None, None);
        for part in parts {
            let bad = || Failure::usage("this is not a lease handle: its end is unknown");
            let (key, number) = part.split_once('=').ok_or_else(bad)?;
            let number: u64 = number.parse().map_err(|_| bad())?;
            let span = Duration::from_millis(number);
            match key {
                "least" => ticket.least = Some(span),
                "most" => ticket.most = Some(span),
                "age" => ticket.granted.store = span,
                "wall" => ticket.granted.wall = Some(span),
                "boot" => boot = Some(number),
                "up" => up = Some(span),
                _ => return Err(bad()),
            }
        }
        let uptime = boot.zip(up).map(|(boot, passed)| Uptime { boot, passed });
        ticket.granted.uptime = uptime;
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
    // The process that took the lease may still rely on the ttl of the handle.
    let mut ttl = ttl.unwrap_or_default().max(ticket.handle.ttl());
    if let Some(most) = ticket.most {
        let left = ticket.left_of(most, client).await?;
        let left = left.into_iter().min().unwrap_or_default();
        if left < Ttl::MIN {
            let (name, most) = (ticket.handle.name(), human(most));
            return Err(Failure::new(
                exit::NOT_HOLDER,
                format!("`{name}` was held for {most}, as long as --hold-at-most allows"),
            ));
        }
        ttl = ttl.min(left);
    }
    // Checks before it adopts the lease. If the store cannot keep it that long, it stays as it is.
    client.check_unrenewed(ttl).await?;
    let lease = client.adopt_at_most(&ticket.handle, ttl).await?;
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
    let (handle, name) = (&ticket.handle, ticket.handle.name().clone());
    let stay = match ticket.least {
        Some(least) => stay(ticket.left_of(least, client).await?),
        None => None,
    };
    let released = match stay {
        Some(stay) => client.release_keeping(handle, stay).await?,
        None => client.release(handle).await?,
    };
    match released {
        // The holder's own closed lease, which keeps the name closed.
        Released::TakenBy(holder) if holder == *handle.holder() => {
            Err(Error::Stale { name, by: None }.into())
        }
        Released::TakenBy(holder) => Err(Error::Stale { name, by: Some(holder) }.into()),
        Released::AlreadyExpired => Err(Error::Stale { name, by: None }.into()),
        _ => Ok(()),
    }
}

/// How long to keep a name closed: the longest time that is left by any clock. A store keeps no
/// claim for less than the shortest ttl.
fn stay(left: Vec<Duration>) -> Option<Duration> {
    let left = left.into_iter().max().unwrap_or_default();
    (!left.is_zero()).then(|| left.max(Ttl::MIN))
}

/// Reports whether leases are still held.
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

/// The outcomes of several handles. One failure does not stop the others.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stays_closed_until_the_least_time_is_over_however_little_is_left() {
        let ms = Duration::from_millis;
        assert_eq!(stay(vec![ms(400)]), Some(ms(400)));
        assert_eq!(stay(vec![ms(0), ms(1)]), Some(Ttl::MIN));
        assert_eq!(stay(vec![ms(0), ms(0)]), None);
    }

    fn clocks(store: u64, wall: Option<u64>, uptime: Option<(u64, u64)>) -> Clocks {
        let uptime = uptime.map(|(boot, up)| Uptime { boot, passed: Duration::from_secs(up) });
        let wall = wall.map(Duration::from_secs);
        Clocks { store: Duration::from_secs(store), wall, uptime }
    }

    fn passed(then: &Clocks, now: &Clocks) -> Vec<u64> {
        then.passed(now).map(|passed| passed.as_secs()).collect()
    }

    #[test]
    fn time_held_is_told_by_each_clock_that_both_readings_have() {
        let then = clocks(4, Some(1_000), Some((7, 50)));
        assert_eq!(passed(&then, &clocks(9, Some(1_003), Some((7, 52)))), [5, 3, 2]);
        assert_eq!(passed(&then, &clocks(9, Some(1_003), Some((8, 52)))), [5, 3], "rebooted");
        assert_eq!(passed(&then, &clocks(1, Some(900), None)), [0, 0], "both were set back");
        let old = clocks(4, None, None);
        assert_eq!(passed(&old, &clocks(9, Some(1_003), Some((7, 52)))), [5]);
    }
}
