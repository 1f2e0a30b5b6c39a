//! Measurements for whatever monitoring a team runs, and the counters behind `stats`.
//!
//! A typed hook rather than a metrics facade: it needs no global recorder, costs nothing when
//! nobody listens, a test can assert on it, and an adapter for any metrics library is one `match`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::claim::Mode;
use crate::engine::Counts;
use crate::error::{Error, LostCause};
use crate::name::Name;

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

#[derive(Debug, Default)]
pub(crate) struct Counters {
    acquired: AtomicU64,
    released: AtomicU64,
    contended: AtomicU64,
    expired: AtomicU64,
    lost: AtomicU64,
    detached: AtomicU64,
    adopted: AtomicU64,
    waiting: AtomicU64,
}

impl Counters {
    pub(crate) fn acquired(&self) {
        self.acquired.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn contended(&self) {
        self.contended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, cause: &LostCause) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if matches!(cause, LostCause::Expired | LostCause::Unreachable) {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn detached(&self) {
        self.detached.fetch_add(1, Ordering::Relaxed);
    }

    /// A lease that another client counted as acquired.
    pub(crate) fn adopted(&self) {
        self.adopted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn wait_began(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn wait_ended(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // The ends are read before the beginnings, so that `active` never falls below zero.
        let (released, lost) = (read(&self.released), read(&self.lost));
        let detached = read(&self.detached);
        let acquired = read(&self.acquired);
        let adopted = read(&self.adopted);
        Stats {
            acquired,
            released,
            contended: read(&self.contended),
            expired: read(&self.expired),
            lost,
            active: (acquired + adopted).saturating_sub(released + lost + detached),
            waiting: read(&self.waiting),
        }
    }

    /// What was counted since `told`, for the store. Expiries are not in it: the store sees those
    /// itself, also of holders that died.
    pub(crate) fn untold(&self, told: &Counts) -> Counts {
        let now = self.stats();
        Counts {
            acquired: now.acquired - told.acquired,
            released: now.released - told.released,
            contended: now.contended - told.contended,
            expired: 0,
            lost: now.lost - told.lost,
        }
    }
}
