//! The abilities of an engine: its promises and its parts, as the cases name them.

use std::sync::Arc;

use leasehold::engine::{Engine, Info, Parts};

/// What an engine can do. Cases are chosen by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Can {
    /// Waiting claims are granted in order of arrival.
    pub fifo: bool,
    /// Claims may be shared.
    pub shared: bool,
    /// Claims may be permits out of a limit.
    pub permits: bool,
    /// Each claim has a time to live of its own.
    pub ttl_per_claim: bool,
    /// A client sees the claims of other processes.
    pub across_processes: bool,
    /// Every client finds a waiting claim by its token.
    pub waits_by_token: bool,
    /// One exchange can grant several names.
    pub many: bool,
    /// A lease can outlive the client that took it.
    pub detach: bool,
    /// Holders get messages.
    pub messages: bool,
    /// A client can watch events.
    pub watch: bool,
    /// An administrator can take a lease.
    pub evict: bool,
    /// An administrator can take a name before those who wait.
    pub steal: bool,
    /// The store adds up the counts of all clients.
    pub tally: bool,
    /// Clients find deadlocks.
    pub deadlocks: bool,
    /// The note of a lease can be replaced.
    pub amend: bool,
    /// The mode of a lease can be changed.
    pub convert: bool,
    /// The limit of a semaphore in use can be changed.
    pub resize: bool,
    /// Fences are counted over all names, and an administrator can raise them after a restore.
    pub epochs: bool,
}

impl Can {
    /// The capabilities of a client's store.
    pub fn of(info: &Info, parts: &Parts) -> Self {
        let can = info.can;
        Self {
            fifo: can.fifo,
            shared: can.shared,
            permits: can.permits,
            ttl_per_claim: can.ttl_per_claim,
            across_processes: can.across_processes,
            waits_by_token: can.waits_by_token,
            many: parts.claim_many.is_some(),
            detach: parts.unattended.is_some(),
            messages: parts.messages.is_some(),
            watch: parts.watch.is_some(),
            evict: parts.admin.is_some(),
            steal: parts.steal.is_some(),
            tally: parts.counting.is_some(),
            deadlocks: parts.wait_notices.is_some(),
            amend: parts.amend.is_some(),
            convert: parts.convert.is_some(),
            resize: parts.convert.is_some(),
            epochs: parts.raise_fences.is_some(),
        }
    }

    /// The capabilities of an engine.
    pub fn of_engine(engine: &Arc<dyn Engine>) -> Self {
        Self::of(engine.info(), &Arc::clone(engine).parts())
    }
}
