//! A claim's bell inside one process: what an engine rings and a waiter hears.
//!
//! How a bell gets from one process to another is the engine's business.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::engine::Wake;

/// Rung by whoever made the claim hold, heard by whoever waits for it. Rings before the first
/// hearing are kept.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    /// The fence of the claim once it holds; 0 before.
    fence: AtomicU64,
}

impl Bell {
    /// Says that the claim holds with this fence.
    pub(crate) fn ring(&self, fence: u64) {
        self.fence.store(fence, Ordering::Release);
        self.rung.notify_one();
    }

    /// Ends when the bell rings.
    pub(crate) async fn heard(&self) -> Wake {
        self.rung.notified().await;
        match self.fence.load(Ordering::Acquire) {
            0 => Wake::Ask,
            fence => Wake::Holds { fence },
        }
    }
}
