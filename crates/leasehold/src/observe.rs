//! Measurements for whatever monitoring a team runs, and the counters behind `stats`.
//!
//! A typed hook rather than a metrics facade: it needs no global recorder, costs nothing when
//! nobody listens, a test can assert on it, and an adapter for any metrics library is one `match`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::claim::Mode;
use crate::clock::remote::Shift;
use crate::engine::Counts;
use crate::error::{Error, LostCause};
use crate::lane::{LANES, Lane, lane};
use crate::name::Name;
use crate::registry::Turnover;

/// Receives measurements. Called on the path of the measured thing: be quick, do not block.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Something was measured.
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
    /// A lease was granted.
    Granted {
        /// The name.
        name: &'a Name,
        /// As what.
        mode: Mode,
        /// From the call to the lease.
        waited: Duration,
    },
    /// A claim ended without a lease because somebody else held the name.
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
    /// Renewals were answered.
    Renewed {
        /// How many claims in this exchange.
        claims: usize,
        /// How long the exchange took.
        took: Duration,
    },
    /// Renewals failed; they are tried again until the leases' deadlines.
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
    /// The wall clock by which a server ends claims was set: two may hold at a time if it was set
    /// ahead. Fences stay in order.
    ///
    /// Found by comparing what the server shows in its answers to renewals, which waiting claims
    /// have too, with this machine's boot clock. A clock that stops shows as a step back first.
    ClockStep {
        /// Which server.
        server: &'a str,
        /// By how much, at least.
        by: Shift,
    },
    /// The wall clock by which a server ends claims stands still: what a holder that died had
    /// never expires. Told once, until it runs again.
    ClockFrozen {
        /// Which server.
        server: &'a str,
        /// For how long already, at least.
        stood: Duration,
    },
    /// A server's settings were changed while this client was connected, so that it may evict
    /// locks that are held. It would have been refused at the start. Told once, until it may not.
    MayEvict {
        /// Which server.
        server: &'a str,
        /// Its eviction policy, in its own words.
        policy: &'a str,
    },
}

/// What this client did since it connected, and has now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Leases granted.
    pub acquired: u64,
    /// Leases given back.
    pub released: u64,
    /// Claims that had to wait or were refused because somebody held the name.
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

/// What a client counts, spread over lanes: grants of different threads must not meet here.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lanes: [Lane<Tallies>; LANES],
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
        which(&self.lanes[lane()].0).fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, which: impl Fn(&Tallies) -> &AtomicU64) -> u64 {
        self.lanes.iter().map(|lane| which(&lane.0).load(Ordering::Relaxed)).sum()
    }

    /// The sums, together with what came and went elsewhere.
    pub(crate) fn stats(&self, turnover: impl FnOnce() -> Turnover) -> Stats {
        // The ends are read before the beginnings, so that nothing falls below zero.
        let (released, lost) = (self.sum(|of| &of.released), self.sum(|of| &of.lost));
        let (detached, wait_ended) = (self.sum(|of| &of.detached), self.sum(|of| &of.wait_ended));
        let turnover = turnover();
        let (acquired, adopted) = (self.sum(|of| &of.acquired), self.sum(|of| &of.adopted));
        let (acquired, released) = (acquired + turnover.acquired, released + turnover.released);
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

    /// What was counted since `told`, for the store. Expiries are not in it: the store sees those
    /// itself, also of holders that died.
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
