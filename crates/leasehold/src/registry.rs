//! Where a client keeps its tenures so that the keeper finds them: a slab for each lane of threads.
//!
//! Entering and leaving are one short lock each; the keeper walks all of it when it wakes, which
//! it does for many tenures at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use crate::error::{Error, Result};
use crate::lane::{LANES, Lane, lane};
use crate::tenure::Tenure;

/// The most claims of one client that the threads of one lane keep alive: renewals for all of
/// them still fit well into a tenth of the default ttl on every engine.
pub(crate) const TENURES_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Registry {
    lanes: [Lane<Mutex<Ward>>; LANES],
}

/// What the threads of one lane entered.
#[derive(Debug, Default)]
struct Ward {
    tenures: Slab<Arc<Tenure>>,
    turnover: Turnover,
}

/// How many leases came and went on the spot: counted under locks that are taken anyway.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turnover {
    /// They held when they were entered.
    pub(crate) acquired: u64,
    /// They were given back before they left.
    pub(crate) released: u64,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { lanes: std::array::from_fn(|_| Lane::default()) }
    }

    /// Takes a tenure in; `held` counts it as a lease that was acquired.
    pub(crate) fn enter(&self, tenure: &Arc<Tenure>, held: bool) -> Result<()> {
        let lane = lane();
        let mut ward = self.ward(lane);
        if ward.tenures.len() >= TENURES_MAX {
            return Err(Error::Limit {
                what: "claims of one client in one thread",
                limit: TENURES_MAX,
            });
        }
        let index = ward.tenures.insert(Arc::clone(tenure));
        ward.turnover.acquired += u64::from(held);
        tenure.slot.store(index * LANES + lane, Ordering::Relaxed);
        Ok(())
    }

    /// Lets a tenure go; `released` counts it as a lease that was given back.
    pub(crate) fn leave(&self, tenure: &Tenure, released: bool) {
        let slot = tenure.slot.load(Ordering::Relaxed);
        if slot == usize::MAX && !released {
            return;
        }
        // The lock says who takes it out, if several want to.
        let mut ward = self.ward(slot % LANES);
        ward.turnover.released += u64::from(released);
        if slot != usize::MAX && tenure.slot.load(Ordering::Relaxed) == slot {
            tenure.slot.store(usize::MAX, Ordering::Relaxed);
            let left = ward.tenures.try_remove(slot / LANES);
            drop(ward);
            drop(left);
        }
    }

    /// What came and went in all lanes.
    pub(crate) fn turnover(&self) -> Turnover {
        let mut sum = Turnover::default();
        for lane in 0..LANES {
            let Turnover { acquired, released } = self.ward(lane).turnover;
            sum.acquired += acquired;
            sum.released += released;
        }
        sum
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Tenure>)) {
        for lane in 0..LANES {
            for (_, tenure) in self.ward(lane).tenures.iter() {
                visit(tenure);
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Tenure>> {
        let mut all = Vec::new();
        self.for_each(|tenure| all.push(Arc::clone(tenure)));
        all
    }

    fn ward(&self, lane: usize) -> MutexGuard<'_, Ward> {
        self.lanes[lane].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
