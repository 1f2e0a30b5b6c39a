//! The table of a client's claims, for the keeper: one slab for each group of threads.
//!
//! Adding and removing a claim takes one short lock each. The keeper walks the whole table when it
//! wakes, which it does for many claims at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use crate::engine::kit::thread_shard::{CachePadded, THREAD_SHARDS, thread_shard};
use crate::error::{Error, Result};
use crate::runtime::claim_state::ClaimState;

/// The most claims of one client in one group of threads. On every engine, renewals of all of
/// them fit well into a tenth of the default ttl.
pub(crate) const CLAIMS_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Registry {
    shards: [CachePadded<Mutex<RegistryShard>>; THREAD_SHARDS],
}

/// The claims of one group of threads.
#[derive(Debug, Default)]
struct RegistryShard {
    claim_states: Slab<Arc<ClaimState>>,
    local_counts: LocalCounts,
}

/// How many leases came and went. The registry counts them under locks that it takes anyway.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LocalCounts {
    /// Claims that held when they were added.
    pub(crate) acquired: u64,
    /// Claims that were given back before they were removed.
    pub(crate) released: u64,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| CachePadded::default()) }
    }

    /// Adds a claim; `held` counts it as an acquired lease.
    pub(crate) fn enter(&self, claim_state: &Arc<ClaimState>, held: bool) -> Result<()> {
        let number = thread_shard();
        let mut shard = self.shard(number);
        if shard.claim_states.len() >= CLAIMS_MAX {
            return Err(Error::Limit {
                what: "claims of one client in one thread",
                limit: CLAIMS_MAX,
            });
        }
        let index = shard.claim_states.insert(Arc::clone(claim_state));
        shard.local_counts.acquired += u64::from(held);
        claim_state.slot.store(index * THREAD_SHARDS + number, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a claim; `released` counts it as a lease that was given back.
    pub(crate) fn leave(&self, claim_state: &ClaimState, released: bool) {
        let slot = claim_state.slot.load(Ordering::Relaxed);
        if slot == usize::MAX && !released {
            return;
        }
        // Several threads may try to remove it. The one that gets the lock first does.
        let mut shard = self.shard(slot % THREAD_SHARDS);
        shard.local_counts.released += u64::from(released);
        if slot != usize::MAX && claim_state.slot.load(Ordering::Relaxed) == slot {
            claim_state.slot.store(usize::MAX, Ordering::Relaxed);
            let left = shard.claim_states.try_remove(slot / THREAD_SHARDS);
            drop(shard);
            drop(left);
        }
    }

    /// The counts of all groups.
    pub(crate) fn local_counts(&self) -> LocalCounts {
        let mut sum = LocalCounts::default();
        for number in 0..THREAD_SHARDS {
            let LocalCounts { acquired, released } = self.shard(number).local_counts;
            sum.acquired += acquired;
            sum.released += released;
        }
        sum
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<ClaimState>)) {
        for number in 0..THREAD_SHARDS {
            for (_, claim_state) in self.shard(number).claim_states.iter() {
                visit(claim_state);
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<ClaimState>> {
        let mut all = Vec::new();
        self.for_each(|claim_state| all.push(Arc::clone(claim_state)));
        all
    }

    fn shard(&self, number: usize) -> MutexGuard<'_, RegistryShard> {
        self.shards[number].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
