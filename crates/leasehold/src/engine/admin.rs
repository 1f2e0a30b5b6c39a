//! An administrator's orders and questions, and their answers.

use crate::clock::remote::ClockTrouble;
use crate::engine::{AlertKind, BrokenLine, Info, ServerAlert, unsupported};
use crate::error::{Error, Result};
use crate::rule::claim::Holder;
use crate::rule::fence::Fence;
use crate::rule::name::Name;

/// An administrator's order to take a name from claims that hold it.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// The name.
    pub name: Name,
    /// The fences of the claims to take out: those that the administrator saw. Other claims stay,
    /// so a repeated or late order does not hit the next claim. 0 stands for locks of other
    /// libraries on stores where these have no fence. There a repeated order can hit the next lock.
    pub fences: Vec<u64>,
    /// The client could not read the record. An engine that can read it takes out all claims that
    /// hold.
    pub unreadable: bool,
    /// The administrator.
    pub by: Holder,
    /// The administrator's reason, for the record.
    pub reason: String,
}

impl Eviction {
    /// Whether the order is about the claim that holds with this fence.
    pub fn names(&self, fence: u64) -> bool {
        self.fences.contains(&fence)
    }
}

/// An administrator's order to give a semaphore another limit.
#[derive(Debug, Clone)]
pub struct Resize {
    /// The name.
    pub name: Name,
    /// The limit from now on.
    pub of: u32,
    /// The administrator.
    pub by: Holder,
}

/// The outcome of a [`Resize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resized {
    /// The limit is as ordered.
    Done {
        /// The limit before.
        before: u32,
    },
    /// Nobody is in line, so there is no limit to change: the next claim sets it.
    Unused,
    /// More permits are held than the new limit has. Nothing was changed.
    Held {
        /// How many.
        units: u32,
    },
    /// A waiting claim asks for more permits than the new limit has. Nothing was changed.
    Wanted {
        /// How many.
        units: u32,
    },
}

/// An administrator's order to let fences go on above all that were ever given out.
///
/// A restored backup resets the store's count, and the store's memory of earlier orders. So the new
/// fences begin at the wall clock, which no backup resets. A store gives out fences more slowly
/// than the clock runs. So each order is above all earlier fences.
#[derive(Debug, Clone)]
pub struct Bump {
    /// A fence that the administrator saw, which the new ones must exceed too; 0 if there is none.
    pub above: u64,
    /// The wall clock, in microseconds since 1970.
    pub now_us: u64,
    /// The administrator.
    pub by: Holder,
}

impl Bump {
    /// The greatest fence that can be exceeded: far above the clock, and with room above it in the
    /// stores' signed numbers.
    pub const ABOVE_MAX: u64 = 1 << 62;

    /// A clock that shows less is wrong: 1 November 2026. Each release sets it to its own month.
    pub(crate) const NOW_US_MIN: u64 = 1_793_491_200_000_000;

    /// The least value of the next fence. `last` is the greatest fence that the store knows of. The
    /// store gives out at most one fence per microsecond.
    pub fn floor(&self, last: u64) -> u64 {
        last.max(self.above).saturating_add(1).max(self.now_us)
    }

    /// The answer of a store whose fences are above the clock anyway.
    pub(crate) fn by_the_clock(&self, info: &Info) -> Result<Bumped> {
        if self.above < self.now_us {
            return Ok(Bumped::Unneeded);
        }
        let what = "begin above that fence";
        let advice = "its fences follow the clock, which is below that: see where it came from";
        Err(unsupported(info, what, advice))
    }
}

/// The outcome of a [`Bump`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bumped {
    /// From now on fences are at least `from`.
    Raised {
        /// The least next fence before the order.
        before: Fence,
        /// The least next fence now.
        from: Fence,
    },
    /// There is nothing to do: fences begin at the clock by themselves, or end with the store.
    Unneeded,
}

/// A client's counts since its last report to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases granted.
    pub acquired: u64,
    /// Leases given back.
    pub released: u64,
    /// Claims that had to wait or were refused because the name was held.
    pub contended: u64,
    /// Leases whose time ran out in the store.
    pub expired: u64,
    /// Leases that their holder lost.
    pub lost: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.acquired += other.acquired;
        self.released += other.released;
        self.contended += other.contended;
        self.expired += other.expired;
        self.lost += other.lost;
    }
}

/// The counts of all clients of a store, and what is in its lines now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The counts that clients reported.
    pub counts: Counts,
    /// Leases held now.
    pub active: u64,
    /// Claims waiting now.
    pub waiting: u64,
}

/// The subject of a [`Finding`] about locks that the client's prefix does not reach.
pub const OTHER_LOCKS: &str = "other locks";

/// One thing that `examine` checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// The thing that was checked.
    pub subject: &'static str,
    /// The result.
    pub found: String,
    /// Advice; empty if there is nothing to change.
    pub advice: String,
}

impl Finding {
    /// A record that cannot be read.
    pub(crate) fn of_broken(line: &BrokenLine) -> Self {
        let BrokenLine { name, cause } = line;
        Self {
            level: Level::Bad,
            subject: "record",
            found: format!("`{name}` cannot be read: {cause}"),
            advice: format!("see what else writes to the store; `leasehold force-release {name}`"),
        }
    }

    /// Records that were not looked at.
    pub(crate) fn of_unread(error: &Error) -> Self {
        Self {
            level: Level::Bad,
            subject: "record",
            found: format!("not all can be looked at: {error}"),
            advice: "see to that first, and look again".into(),
        }
    }

    /// A finding of a client about a server while it used the store.
    pub fn of_server_alert(alert: &ServerAlert) -> Self {
        let ServerAlert { server, trouble } = alert;
        let (subject, advice) = match trouble {
            AlertKind::Clock(ClockTrouble::Step { .. }) => {
                ("clock", "two may hold after a step ahead: let NTP slew it, and check fences")
            }
            AlertKind::Clock(ClockTrouble::Frozen { .. }) => {
                ("clock", "locks of clients that died never expire: see to its clock")
            }
            AlertKind::Eviction { .. } => {
                ("eviction", "locks that are held may be evicted: set `noeviction` again")
            }
        };
        Self {
            level: Level::Bad,
            subject,
            found: format!("{server}: {trouble} while this client looked"),
            advice: advice.into(),
        }
    }
}

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is broken.
    Bad,
}
