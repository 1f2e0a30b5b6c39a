//! A claim's bell inside one process: an engine rings it, and the claim's waiter hears it.
//!
//! Each engine decides how a bell gets from one process to another. A ring that grants the claim
//! names the place in line for which the engine rang it. The bell does not check the place: the
//! waiter knows its present place and compares.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::engine::Wake;
use crate::rule::claim::Token;

/// The engine rings it, and the claim's waiter hears it. It keeps a ring until the waiter listens.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    /// The news of the last ring.
    last: Mutex<Wake>,
}

impl Bell {
    /// Wakes the waiter with this news.
    pub(crate) fn ring(&self, wake: Wake) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = wake;
        self.rung.notify_one();
    }

    /// Ends when the bell rings. The news may be about a place that the claim has lost since.
    pub(crate) async fn heard(&self) -> Wake {
        self.rung.notified().await;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bells of a client's waiting claims. The memory engine has them in its lines.
#[allow(dead_code, reason = "the engines of the build decide which methods are used")]
#[derive(Debug, Default)]
pub(crate) struct BellRegistry {
    waiting: Mutex<HashMap<Token, Arc<Bell>>>,
    /// How many there are; readable without the lock.
    count: AtomicUsize,
}

#[allow(dead_code, reason = "the engines of the build decide which methods are used")]
impl BellRegistry {
    /// Adds a claim's bell. The engine calls this before others can see the claim.
    pub(crate) fn register(&self, token: Token) {
        let mut waiting = self.waiting();
        waiting.entry(token).or_default();
        self.count.store(waiting.len(), Ordering::Release);
    }

    /// Removes the bell of a claim that waits no more.
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

    /// Rings a claim's bell if the claim waits here.
    pub(crate) fn ring(&self, token: &Token, wake: Wake) {
        if let Some(bell) = self.waiting().get(token) {
            bell.ring(wake);
        }
    }

    /// Rings all bells, so that all waiters ask again.
    pub(crate) fn ring_all(&self) {
        for bell in self.waiting().values() {
            bell.ring(Wake::Ask);
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
    async fn bell_is_kept_until_a_waiter_hears_it_and_names_its_place() {
        let (bell_registry, token) = (BellRegistry::default(), Token::random());
        bell_registry.register(token);
        bell_registry.ring(&token, Wake::holds_at(3));
        let bell = bell_registry.bell(&token).expect("it is expected");
        assert_eq!(bell.heard().await, Wake::holds_at(3));
    }

    #[tokio::test]
    async fn waiter_hears_the_latest_of_several_rings() {
        let (bell_registry, token) = (BellRegistry::default(), Token::random());
        bell_registry.register(token);
        bell_registry.ring(&token, Wake::holds_at(3));
        bell_registry.ring_all();
        let bell = bell_registry.bell(&token).expect("it is expected");
        assert_eq!(bell.heard().await, Wake::Ask);
    }
}
