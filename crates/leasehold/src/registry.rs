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
    lanes: [Lane<Mutex<Slab<Arc<Tenure>>>>; LANES],
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { lanes: std::array::from_fn(|_| Lane::default()) }
    }

    pub(crate) fn enter(&self, tenure: &Arc<Tenure>) -> Result<()> {
        let lane = lane();
        let mut slab = self.slab(lane);
        if slab.len() >= TENURES_MAX {
            return Err(Error::Limit {
                what: "claims of one client in one thread",
                limit: TENURES_MAX,
            });
        }
        let index = slab.insert(Arc::clone(tenure));
        tenure.slot.store(index * LANES + lane, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn leave(&self, tenure: &Tenure) {
        let slot = tenure.slot.load(Ordering::Relaxed);
        if slot == usize::MAX {
            return;
        }
        // Its slab's lock says who takes it out, if several want to.
        let mut slab = self.slab(slot % LANES);
        if tenure.slot.load(Ordering::Relaxed) == slot {
            tenure.slot.store(usize::MAX, Ordering::Relaxed);
            slab.try_remove(slot / LANES);
        }
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Tenure>)) {
        for lane in 0..LANES {
            for (_, tenure) in self.slab(lane).iter() {
                visit(tenure);
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Tenure>> {
        let mut all = Vec::new();
        self.for_each(|tenure| all.push(Arc::clone(tenure)));
        all
    }

    fn slab(&self, lane: usize) -> MutexGuard<'_, Slab<Arc<Tenure>>> {
        self.lanes[lane].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
