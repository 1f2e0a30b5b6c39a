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
    /// The fence of the claim's place in line, as the store last told it; 0 if it did not.
    place: AtomicU64,
}

impl Bell {
    /// Says that the claim holds with this fence; 0 that it is worth asking.
    pub(crate) fn ring(&self, fence: u64) {
        self.fence.store(fence, Ordering::Release);
        self.rung.notify_one();
    }

    /// Ends when the bell rings. One that was long under way may be that of a place in line which
    /// was lost since, by a pause for instance; the claim has another now, and holds nothing.
    pub(crate) async fn heard(&self) -> Wake {
        self.rung.notified().await;
        match (self.fence.load(Ordering::Acquire), self.place.load(Ordering::Acquire)) {
            (0, _) => Wake::Ask,
            (fence, place) if place == 0 || place == fence => Wake::Holds { fence },
            _ => Wake::Ask,
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

    /// A claim that is expected is in line with this fence.
    pub(crate) fn place(&self, token: &Token, fence: u64) {
        if let Some(bell) = self.waiting().get(token) {
            bell.place.store(fence, Ordering::Release);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bell_of_another_place_in_line_is_worth_asking_and_no_grant() {
        let (belfry, token) = (Belfry::default(), Token::random());
        belfry.expect(token);
        let bell = belfry.bell(&token).expect("it is expected");
        belfry.place(&token, 7);
        // It was rung for a place that the claim had before.
        belfry.ring(&token, 5);
        assert_eq!(bell.heard().await, Wake::Ask);
        belfry.ring(&token, 7);
        assert_eq!(bell.heard().await, Wake::Holds { fence: 7 });
    }

    #[tokio::test]
    async fn a_bell_is_kept_until_somebody_hears_it_wherever_its_place_is() {
        let (belfry, token) = (Belfry::default(), Token::random());
        belfry.expect(token);
        belfry.ring(&token, 3);
        let bell = belfry.bell(&token).expect("it is expected");
        assert_eq!(bell.heard().await, Wake::Holds { fence: 3 });
    }
}
