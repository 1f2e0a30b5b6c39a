//! Where a client keeps its tenures so that the keeper finds them: a sharded slab.
//!
//! Entering and leaving are one short lock each; the keeper walks all of it when it wakes, which
//! it does for many tenures at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use crate::error::{Error, Result};
use crate::tenure::Tenure;

/// The most claims one client keeps alive: a batch of renewals for all of them still fits well
/// into a tenth of the default ttl on every engine.
pub(crate) const TENURES_MAX: usize = 100_000;

/// Enough that the threads of one machine rarely meet.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct Registry {
    shards: [Mutex<Slab<Arc<Tenure>>>; SHARDS],
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(Slab::new())) }
    }

    pub(crate) fn enter(&self, tenure: &Arc<Tenure>) -> Result<()> {
        let shard = usize::from(tenure.key.token.as_bytes()[0]) % SHARDS;
        let mut slab = self.shard(shard);
        if slab.len() >= TENURES_MAX / SHARDS {
            return Err(Error::Limit { what: "claims of one client", limit: TENURES_MAX });
        }
        let index = slab.insert(Arc::clone(tenure));
        tenure.slot.store(index * SHARDS + shard, Ordering::Release);
        Ok(())
    }

    pub(crate) fn leave(&self, tenure: &Tenure) {
        let slot = tenure.slot.swap(usize::MAX, Ordering::AcqRel);
        if slot != usize::MAX {
            self.shard(slot % SHARDS).try_remove(slot / SHARDS);
        }
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Tenure>)) {
        for shard in 0..SHARDS {
            for (_, tenure) in self.shard(shard).iter() {
                visit(tenure);
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Tenure>> {
        let mut all = Vec::new();
        self.for_each(|tenure| all.push(Arc::clone(tenure)));
        all
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, Slab<Arc<Tenure>>> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
