//! One attempt of a worker's task: it takes a name in one of many ways, uses the register under
//! the lease, and gives it back in one of several ways. A visitor does so with a client for
//! each attempt.

use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::Mode;
use leasehold::error::Config;
use leasehold::{Error, Handle, Lease, LockOptions, Released, Request, Unit, UnlessHeld};
use leasehold_testkit::conformance::Can;

use crate::chance::Chance;
use crate::event::{Instant, SEVERAL, Want, What, now};
use crate::register::{Access, Answer, Connection};
use crate::worker::{ATTEMPT, Shared, connected, failed};

/// A lease is looked at this often while it is held.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The office that an election is about.
pub const OFFICE: &str = "office";

/// How long a name stays closed that must, from its grant on.
pub const CLOSED_MS: u64 = 400;

/// How long most tasks wait for it.
const CLOSED_WAIT: Duration = Duration::from_millis(600);

/// A rate limiter's number and period, and the period of what is done once.
const UNITS: u32 = 3;
const PERIOD_MS: u64 = 1_000;

/// The permits of the semaphore.
const PERMITS: u32 = 3;

/// The mutexes; the first one is contended more than the others.
const MUTEXES: [&str; 10] = ["m0", "m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];

/// A call that must fail is not awaited for longer.
const STALE_MAX: Duration = Duration::from_secs(3);

/// One task.
#[derive(Debug)]
pub struct Task {
    shared: Arc<Shared>,
    chance: Chance,
    register: Connection,
    /// Whether it is the first one of its worker.
    is_first: bool,
    /// The number of the present attempt.
    number: u64,
}

/// How an attempt asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Lock,
    Within(Duration),
    Try,
    /// For what the store must refuse.
    TryTooLong,
    Cancelled(Duration),
}

impl How {
    fn word(self) -> &'static str {
        match self {
            How::Lock => "lock",
            How::Within(_) => "within",
            How::Try | How::TryTooLong => "try",
            How::Cancelled(_) => "cancelled",
        }
    }
}

impl Task {
    /// A task with a connection to the register.
    pub async fn new(shared: Arc<Shared>, index: u32) -> Task {
        let purpose = u64::from(shared.orders.number) << 16 | u64::from(index);
        let chance = Chance::new(shared.orders.seed, purpose);
        let register = Connection::open(shared.orders.register).await;
        let register = register.expect("the register is there as long as the run");
        let (is_first, number) = (index == 1, u64::from(index) * 1_000_000);
        Task { shared, chance, register, is_first, number }
    }

    /// Waits for a while, so that names are sometimes free.
    pub async fn think(&mut self) {
        let span = self.chance.within(1..80);
        tokio::time::sleep(Duration::from_millis(span)).await;
    }

    /// Makes one attempt, from the choice of a name to its end.
    pub async fn attempt(&mut self) {
        let can = Can::of(self.shared.client.info(), self.shared.client.parts());
        match self.chance.within(0..100) {
            0..=49 => {
                let name = self.chance.one_of(&MUTEXES);
                self.claim(name, Want::Exclusive).await;
            }
            50..=57 if can.shared => self.claim("rw", Want::Shared).await,
            58..=62 if can.shared => self.claim("rw", Want::Exclusive).await,
            63..=75 if can.permits => {
                let take = 1 + self.chance.within(0..2) as u32;
                self.claim("sem", Want::Permits { take, of: PERMITS }).await;
            }
            76..=80 => self.lead().await,
            81..=85 if can.permits && can.detach => self.unit().await,
            86..=90 if can.amend => self.once().await,
            91..=93 if can.detach => self.closed().await,
            _ => self.several().await,
        }
    }

    fn record(&self, what: What) {
        self.shared.recorder.record(self.number, what);
    }

    fn failed(&self, call: &str, error: &Error) {
        failed(&self.shared.recorder, self.number, call, error);
    }

    fn ttl(&mut self) -> Duration {
        Duration::from_millis(self.chance.one_of(&self.shared.orders.ttls_ms))
    }

    fn how(&mut self) -> How {
        let span = Duration::from_millis(self.chance.within(1..600));
        match self.chance.within(0..100) {
            0..=64 => How::Lock,
            65..=79 => How::Within(span),
            80..=89 => How::Try,
            _ => How::Cancelled(span),
        }
    }

    /// Begins an attempt.
    fn asks(&mut self, name: &str, want: Want, ttl: Duration, how: &str, closed: Option<u64>) {
        self.number += 1;
        let ttl_ms = ttl.as_millis() as u64;
        let (name, how) = (name.to_owned(), how.to_owned());
        self.record(What::Asks { name, want, ttl_ms, how, closed_ms: closed });
    }

    /// A claim of any mode on one name.
    async fn claim(&mut self, name: &'static str, want: Want) {
        let mode = match want {
            Want::Shared => Mode::Shared,
            Want::Permits { take, of } => Mode::Permits { take, of },
            _ => Mode::Exclusive,
        };
        let (ttl, how) = (self.ttl(), self.how());
        let request = self.shared.client.request(name).mode(mode).ttl(ttl);
        self.asks(name, want, ttl, how.word(), None);
        if let Some(lease) = self.ask(&request, how).await {
            self.hold(name, want, ttl, lease).await;
        }
    }

    /// A name that must stay closed after it is given back. One task of a worker waits for it as
    /// for any other; some stores open it only after seconds, so all would end in this line.
    async fn closed(&mut self) {
        let ttl = self.ttl();
        let how = match self.how() {
            How::Lock if !self.is_first => How::Within(CLOSED_WAIT),
            how => how,
        };
        let least = Duration::from_millis(CLOSED_MS);
        let request = self
            .shared
            .client
            .request("closed")
            .ttl(ttl)
            .options(LockOptions::new().hold_at_least(least));
        self.asks("closed", Want::Exclusive, ttl, how.word(), Some(CLOSED_MS));
        if let Some(lease) = self.ask(&request, how).await {
            let handle = lease.handle();
            self.granted(&lease);
            self.access("closed", Want::Exclusive, &lease).await;
            self.look(&lease);
            if self.give_back(lease).await {
                self.use_stale(&handle).await;
            }
        }
    }

    /// Visits after a while.
    pub async fn visit(&mut self) {
        let span = self.chance.within(200..1_200);
        tokio::time::sleep(Duration::from_millis(span)).await;
        if Can::of(self.shared.client.info(), self.shared.client.parts()).detach {
            self.closed_by_a_visitor().await;
        }
    }

    /// A name that must stay closed although the client that had it is closed right after, as that
    /// of a command is. Some stores can do that only for a limited time, and must refuse more.
    async fn closed_by_a_visitor(&mut self) {
        let orders = &self.shared.orders;
        let (visit_ttl_ms, too_long_ms) = (orders.visit_ttl_ms, orders.too_long_ms);
        let (name, closed_ms, how) = match too_long_ms.filter(|_| self.chance.percent(50)) {
            Some(too_long_ms) => ("long", too_long_ms, How::TryTooLong),
            None => ("visited", CLOSED_MS, self.how()),
        };
        let ttl = visit_ttl_ms.map_or_else(|| self.ttl(), Duration::from_millis);
        let shared = Arc::clone(&self.shared);
        let client = match connected(&shared.orders, &shared.recorder, &shared.stops).await {
            Ok(Some(client)) => client,
            Ok(None) => return,
            Err(error) => return self.failed("connect", &error),
        };
        let options = LockOptions::new().hold_at_least(Duration::from_millis(closed_ms));
        let request = client.request(name).ttl(ttl).options(options);
        self.asks(name, Want::Exclusive, ttl, how.word(), Some(closed_ms));
        if let Some(lease) = self.ask(&request, how).await {
            self.granted(&lease);
            self.give_back(lease).await;
        }
        if let Err(error) = client.close().await {
            self.failed("close", &error);
        }
    }

    /// Makes the claim; the end without a lease is written down.
    async fn ask(&mut self, request: &Request, how: How) -> Option<Lease> {
        let asked = ATTEMPT.scope(self.number, async {
            match how {
                How::Lock => request.acquire().await.map(Some),
                How::Within(span) => request.acquire_within(span).await.unless_held(),
                How::Try | How::TryTooLong => request.try_acquire().await.unless_held(),
                How::Cancelled(span) => match tokio::time::timeout(span, request.acquire()).await {
                    Ok(answer) => answer.map(Some),
                    Err(_cancelled) => Ok(None),
                },
            }
        });
        match asked.await {
            Ok(Some(lease)) => return Some(lease),
            Ok(None) => self.record(What::Refused),
            Err(Error::Config(Config::NotKept { .. })) if how == How::TryTooLong => {
                self.record(What::Refused);
            }
            Err(error) => self.failed("claim", &error),
        }
        None
    }

    /// A candidate of an election, whose leadership is an exclusive lease.
    async fn lead(&mut self) {
        let ttl = self.ttl();
        let within = Duration::from_millis(self.chance.within(1..1_000));
        self.asks(OFFICE, Want::Leader, ttl, How::Within(within).word(), None);
        let election = self.shared.client.election(OFFICE).ttl(ttl);
        let campaign = election.campaign_within(within, "here");
        match ATTEMPT.scope(self.number, campaign).await.unless_held() {
            Ok(Some(leadership)) => {
                self.hold(OFFICE, Want::Leader, ttl, leadership.into_lease()).await;
            }
            Ok(None) => self.record(What::Refused),
            Err(error) => self.failed("campaign", &error),
        }
    }

    /// A unit of a rate.
    async fn unit(&mut self) {
        let period = Duration::from_millis(PERIOD_MS);
        let want = Want::Unit { units: UNITS, period_ms: PERIOD_MS };
        self.asks("rate", want, period, How::Try.word(), None);
        match self.shared.client.rate_limiter("rate", UNITS, period).try_acquire().await {
            Ok(Unit::Taken) => self.record(What::Granted { fence: 0, until: now() }),
            Ok(Unit::DueIn(_)) => self.record(What::Refused),
            Err(error) => self.failed("unit", &error),
        }
    }

    /// Work that is done once in a period.
    async fn once(&mut self) {
        let (ttl, period) = (self.ttl(), Duration::from_millis(PERIOD_MS));
        self.asks("once", Want::Once { period_ms: PERIOD_MS }, ttl, How::Try.word(), None);
        match self.shared.client.once("once", period).ttl(ttl).start().await {
            Ok(Ok(run)) => {
                self.granted(run.lease());
                self.access("once", Want::Exclusive, run.lease()).await;
                let span = self.chance.within(1..30);
                tokio::time::sleep(Duration::from_millis(span)).await;
                self.record(What::Releases);
                match run.end(None).await {
                    Ok(()) => self.record(What::Released { answer: "released".to_owned() }),
                    Err(error) => self.failed("end", &error),
                }
            }
            Ok(Err(_last)) => self.record(What::Refused),
            Err(error) => self.failed("start", &error),
        }
    }

    /// Two names together. Each is an attempt of its own, in which nothing is known of the line.
    async fn several(&mut self) {
        let (ttl, span) = (self.ttl(), Duration::from_millis(self.chance.within(50..1_500)));
        let names = ["m1", "m2"];
        let first = self.number + 1;
        for name in names {
            self.asks(name, Want::Exclusive, ttl, SEVERAL, None);
        }
        let client = self.shared.client.clone();
        let requests = names.map(|name| client.request(name).ttl(ttl));
        let answer = client.all(requests).lock_within(span).await.unless_held();
        for (number, name) in (first..).zip(names) {
            self.number = number;
            match &answer {
                Ok(Some(leases)) => {
                    if let Some(lease) = leases.get(name) {
                        self.granted(lease);
                    }
                }
                Ok(None) => self.record(What::Refused),
                Err(error) => self.failed("claim of several", error),
            }
        }
        let Ok(Some(leases)) = answer else { return };
        for ((number, name), lease) in (first..).zip(names).zip(leases.into_vec()) {
            self.number = number;
            self.access(name, Want::Exclusive, &lease).await;
            self.look(&lease);
            self.give_back(lease).await;
        }
    }

    fn granted(&self, lease: &Lease) {
        let until = lease.deadline().as_nanos();
        self.record(What::Granted { fence: lease.fence().into(), until });
    }

    /// Uses a lease and ends it.
    async fn hold(&mut self, name: &'static str, want: Want, ttl: Duration, lease: Lease) {
        self.granted(&lease);
        self.access(name, want, &lease).await;
        let whole = ttl.as_millis() as u64;
        let long = self.shared.orders.long;
        let span = match self.chance.within(0..1_000) {
            pick if pick < long => self.chance.within(whole / 2..whole * 5 / 2),
            pick if pick < 900 => self.chance.within(0..8),
            _ => self.chance.within(8..60),
        };
        if !self.keep(&lease, Duration::from_millis(span)).await {
            self.after_loss(lease, ttl).await;
            return;
        }
        // The last word of a tenure: a pause before it makes it a late one.
        self.access(name, want, &lease).await;
        let can_detach = self.shared.client.parts().unattended.is_some();
        let lease = match can_detach && self.chance.percent(3) {
            true => self.through_a_handle(lease).await,
            false => Some(lease),
        };
        let Some(lease) = lease else { return };
        let handle = (can_detach && self.chance.percent(10)).then(|| lease.handle());
        if self.give_back(lease).await
            && let Some(handle) = handle
        {
            self.use_stale(&handle).await;
        }
    }

    /// Reads and writes the register, as the work that the lock protects.
    async fn access(&mut self, name: &'static str, want: Want, lease: &Lease) {
        let (worker, attempt) = (self.shared.orders.number, self.number);
        let access = Access { name, worker, attempt, fence: lease.fence().into() };
        let answer = match want {
            Want::Exclusive | Want::Leader => match self.register.read(&access).await {
                Ok(Answer::Ok(value)) => self.register.write(&access, value + 1).await,
                refused => refused,
            },
            Want::Shared => self.register.share(&access).await,
            _ => return,
        };
        // Without a register the run is over.
        if let Ok(Answer::No(seen)) = answer {
            self.record(What::Turned { fence: access.fence, seen });
            self.look(lease);
        }
    }

    /// Asks the lease whether it is held, and writes it down.
    fn look(&self, lease: &Lease) -> bool {
        let at: Instant = now();
        let until = lease.deadline().as_nanos();
        let held = lease.is_held();
        if held {
            self.shared.recorder.record_at(at, self.number, What::Held { until });
        }
        held
    }

    /// Keeps the lease for a while; false if it was lost.
    async fn keep(&self, lease: &Lease, span: Duration) -> bool {
        let begun = std::time::Instant::now();
        loop {
            let left = span.saturating_sub(begun.elapsed());
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
            if !self.look(lease) {
                let cause = lease.lost().await.to_string();
                self.record(What::Lost { cause });
                return false;
            }
            if left <= LOOK_EVERY {
                return true;
            }
        }
    }

    /// A lease that was lost cannot be renewed.
    async fn after_loss(&self, lease: Lease, ttl: Duration) {
        if let Ok(Ok(())) = tokio::time::timeout(STALE_MAX, lease.extend(ttl)).await {
            self.record(What::Stale { call: "extend".to_owned(), worked: true });
        }
    }

    /// Makes a handle of the lease, and a lease of the handle.
    async fn through_a_handle(&self, lease: Lease) -> Option<Lease> {
        self.record(What::Detached);
        let handle = match lease.detach().await {
            Ok(handle) => handle,
            Err(error) => {
                self.failed("detach", &error);
                return None;
            }
        };
        match self.shared.client.adopt(&handle).await {
            Ok(lease) => {
                let until = lease.deadline().as_nanos();
                self.record(What::Adopted { until });
                Some(lease)
            }
            Err(Error::Stale { .. }) => {
                self.record(What::Lost { cause: "stale".to_owned() });
                None
            }
            Err(error) => {
                self.failed("adopt", &error);
                None
            }
        }
    }

    /// Gives the lease back; true if the store answered.
    async fn give_back(&mut self, lease: Lease) -> bool {
        self.record(What::Releases);
        if self.chance.percent(5) {
            drop(lease);
            self.record(What::Released { answer: "dropped".to_owned() });
            return false;
        }
        match lease.release().await {
            Ok(released) => {
                let answer = match released {
                    Released::Released => "released",
                    Released::AlreadyExpired => "expired",
                    Released::TakenBy(_) => "taken",
                    _ => "other",
                };
                self.record(What::Released { answer: answer.to_owned() });
                true
            }
            Err(error) => {
                self.failed("release", &error);
                false
            }
        }
    }

    /// The handle of a lease that was given back is of no use to anybody.
    async fn use_stale(&mut self, handle: &Handle) {
        let client = self.shared.client.clone();
        let (call, worked) = match self.chance.within(0..3) {
            0 => ("check", matches!(client.check(handle).await, Ok(Some(_)))),
            1 => ("adopt", client.adopt(handle).await.is_ok()),
            _ => ("release", matches!(client.release(handle).await, Ok(Released::Released))),
        };
        self.record(What::Stale { call: call.to_owned(), worked });
    }
}
