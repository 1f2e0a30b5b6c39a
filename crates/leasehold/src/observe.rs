//! Measurements for a team's monitoring, and the counters behind `stats`.
//!
//! It is a typed hook, not a metrics facade. It needs no global recorder, and costs nothing without
//! an observer. A test can assert on it, and an adapter for a metrics library is one `match`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::remote::Shift;
use crate::engine::Counts;
use crate::engine::kit::thread_shard::{CachePadded, THREAD_SHARDS, thread_shard};
use crate::error::{Error, LostCause};
use crate::rule::claim::Mode;
use crate::rule::name::Name;
use crate::runtime::registry::LocalCounts;

/// Receives measurements. The client calls it in the middle of its work: be quick, do not block.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Receives a measurement.
    fn observe(&self, measure: &Measure<'_>);
}

/// One measurement.
#[derive(Debug)]
#[non_exhaustive]
pub enum Measure<'a> {
    /// A claim began to wait in line: a gauge of waiters goes up.
    WaitBegan {
        /// The name.
        name: &'a Name,
    },
    /// A claim stopped waiting, however it ended: a gauge of waiters goes down.
    WaitEnded {
        /// The name.
        name: &'a Name,
    },
    /// The store failed a claim that waits in line, or its heartbeat. The claim asks again, and
    /// joins the line again if its place is gone.
    WaitDisturbed {
        /// The name.
        name: &'a Name,
        /// The store's failure.
        error: &'a Error,
    },
    /// A lease was granted.
    Granted {
        /// The name.
        name: &'a Name,
        /// Its mode.
        mode: Mode,
        /// From the call to the lease.
        waited: Duration,
    },
    /// A claim ended without a lease because another holder had the name.
    Refused {
        /// The name.
        name: &'a Name,
        /// From the call to the refusal.
        waited: Duration,
    },
    /// A lease was given back.
    Released {
        /// The name.
        name: &'a Name,
        /// How long it was held.
        held: Duration,
    },
    /// The store answered renewals.
    Renewed {
        /// How many claims in this exchange.
        claims: usize,
        /// How long the exchange took.
        took: Duration,
    },
    /// Renewals failed. The client tries again until the leases' deadlines.
    RenewalFailed {
        /// How many claims in this exchange.
        claims: usize,
        /// Why.
        error: &'a Error,
    },
    /// A lease was lost.
    Lost {
        /// The name.
        name: &'a Name,
        /// Why.
        cause: &'a LostCause,
        /// How long it was held.
        held: Duration,
    },
    /// The wall clock by which a server ends claims was set. If it was set ahead, two clients may
    /// hold at a time. Fences stay in order.
    ///
    /// The client compares the server's time in answers to renewals and heartbeats with this
    /// machine's boot clock. A clock that stops shows as a step back first.
    ClockStep {
        /// The server.
        server: &'a str,
        /// By how much, at least.
        by: Shift,
    },
    /// The wall clock by which a server ends claims stands still: the leases of dead holders never
    /// expire. Reported once, until it runs again.
    ClockFrozen {
        /// The server.
        server: &'a str,
        /// For how long already, at least.
        stood: Duration,
    },
    /// A server's settings changed while this client was connected, and it may evict locks that are
    /// held. At connect the client would have refused it. Reported once, until it may not.
    MayEvict {
        /// The server.
        server: &'a str,
        /// Its eviction policy, in its own words.
        policy: &'a str,
    },
}

/// A client's counts since it connected, and its present leases and waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Leases granted.
    pub acquired: u64,
    /// Leases given back.
    pub released: u64,
    /// Claims that had to wait or were refused because the name was held.
    pub contended: u64,
    /// Leases whose time ran out before they were given back.
    pub expired: u64,
    /// Leases lost, expired ones among them.
    pub lost: u64,
    /// Leases held now.
    pub active: u64,
    /// Claims waiting now.
    pub waiting: u64,
}

/// A client's counters, spread over cache lines so that grants on many threads do not contend.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    shards: [CachePadded<Tallies>; THREAD_SHARDS],
}

#[derive(Debug, Default)]
struct Tallies {
    acquired: AtomicU64,
    released: AtomicU64,
    contended: AtomicU64,
    expired: AtomicU64,
    lost: AtomicU64,
    detached: AtomicU64,
    adopted: AtomicU64,
    wait_began: AtomicU64,
    wait_ended: AtomicU64,
}

impl Counters {
    pub(crate) fn acquired(&self) {
        self.add(|tallies| &tallies.acquired);
    }

    pub(crate) fn released(&self) {
        self.add(|tallies| &tallies.released);
    }

    pub(crate) fn contended(&self) {
        self.add(|tallies| &tallies.contended);
    }

    pub(crate) fn lost(&self, cause: &LostCause) {
        self.add(|tallies| &tallies.lost);
        if matches!(cause, LostCause::Expired | LostCause::Unreachable) {
            self.add(|tallies| &tallies.expired);
        }
    }

    pub(crate) fn detached(&self) {
        self.add(|tallies| &tallies.detached);
    }

    /// A lease that another client counted as acquired.
    pub(crate) fn adopted(&self) {
        self.add(|tallies| &tallies.adopted);
    }

    pub(crate) fn wait_began(&self) {
        self.add(|tallies| &tallies.wait_began);
    }

    pub(crate) fn wait_ended(&self) {
        self.add(|tallies| &tallies.wait_ended);
    }

    fn add(&self, which: impl FnOnce(&Tallies) -> &AtomicU64) {
        which(&self.shards[thread_shard()].0).fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, which: impl Fn(&Tallies) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| which(&shard.0).load(Ordering::Relaxed)).sum()
    }

    /// The sums, together with the registry's own counts.
    pub(crate) fn stats(&self, local_counts: impl FnOnce() -> LocalCounts) -> Stats {
        // Reads the ends before the beginnings, so that no difference falls below zero.
        let (released, lost) = (self.sum(|of| &of.released), self.sum(|of| &of.lost));
        let (detached, wait_ended) = (self.sum(|of| &of.detached), self.sum(|of| &of.wait_ended));
        let local_counts = local_counts();
        let (acquired, adopted) = (self.sum(|of| &of.acquired), self.sum(|of| &of.adopted));
        let (acquired, released) =
            (acquired + local_counts.acquired, released + local_counts.released);
        Stats {
            acquired,
            released,
            contended: self.sum(|of| &of.contended),
            expired: self.sum(|of| &of.expired),
            lost,
            active: (acquired + adopted).saturating_sub(released + lost + detached),
            waiting: self.sum(|of| &of.wait_began).saturating_sub(wait_ended),
        }
    }

    /// The counts since `told`, for the store. Expiries are left out: the store sees those itself,
    /// including those of dead holders.
    pub(crate) fn untold(now: &Stats, told: &Counts) -> Counts {
        Counts {
            acquired: now.acquired - told.acquired,
            released: now.released - told.released,
            contended: now.contended - told.contended,
            expired: 0,
            lost: now.lost - told.lost,
        }
    }
}
