//! A claim's bell inside one process: what an engine rings and a waiter hears.
//!
//! How a bell gets from one process to another is the engine's business.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::claim::Token;
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
    /// Says that the claim holds with this fence; 0 that it is worth asking.
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

/// The bells of a client's waiting claims. The memory engine has them in its lines.
#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
#[derive(Debug, Default)]
pub(crate) struct Belfry {
    waiting: Mutex<HashMap<Token, Arc<Bell>>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
}

#[allow(dead_code, reason = "what is used of it depends on the engines of the build")]
impl Belfry {
    /// Hangs up a claim's bell. To be called before others can see the claim.
    pub(crate) fn expect(&self, token: Token) {
        let mut waiting = self.waiting();
        waiting.entry(token).or_default();
        self.count.store(waiting.len(), Ordering::Release);
    }

    /// A claim does not wait any more.
    pub(crate) fn forget(&self, token: &Token) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut waiting = self.waiting();
            waiting.remove(token);
            self.count.store(waiting.len(), Ordering::Release);
        }
    }

    /// The bell of a claim, if it is expected.
    pub(crate) fn bell(&self, token: &Token) -> Option<Arc<Bell>> {
        self.waiting().get(token).cloned()
    }

    /// Rings a claim's bell if it waits here.
    pub(crate) fn ring(&self, token: &Token, fence: u64) {
        if let Some(bell) = self.waiting().get(token) {
            bell.ring(fence);
        }
    }

    /// Lets everybody who waits ask again.
    pub(crate) fn ring_all(&self) {
        for bell in self.waiting().values() {
            bell.ring(0);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Token, Arc<Bell>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
