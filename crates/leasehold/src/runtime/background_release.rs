//! The names on which claims of this client still leave the store.
//!
//! A claim that its caller gave up leaves its line in the background. A new claim of the same
//! client that does not wait would be refused because of the client's own old claim. It therefore
//! waits first until the old claim has left.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::rule::name::Name;

/// The claims of one client that leave now, counted by name.
#[derive(Debug, Default)]
pub(crate) struct BackgroundReleases {
    /// Their number on all names. Mostly zero, and then callers take no lock.
    claims: AtomicUsize,
    names: Mutex<HashMap<Name, usize>>,
    left: Notify,
}

impl BackgroundReleases {
    /// Counts a claim on `name` until the returned guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, name: &Name) -> BackgroundRelease {
        self.claims.fetch_add(1, Ordering::SeqCst);
        *self.names().entry(name.clone()).or_default() += 1;
        BackgroundRelease { background_releases: Arc::clone(self), name: name.clone() }
    }

    /// Ends when no claim on `name` leaves any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub(crate) async fn ended(&self, name: &Name) {
        loop {
            let left = self.left.notified();
            if !self.has(name) {
                return;
            }
            left.await;
        }
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        self.claims.load(Ordering::SeqCst) > 0 && self.names().contains_key(name)
    }

    fn end(&self, name: &Name) {
        let mut names = self.names();
        if let Some(count) = names.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                names.remove(name);
            }
        }
        drop(names);
        self.claims.fetch_sub(1, Ordering::SeqCst);
        self.left.notify_waiters();
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that leaves the store. Dropping it means that it has left, or that it ends by its ttl.
#[derive(Debug)]
pub(crate) struct BackgroundRelease {
    background_releases: Arc<BackgroundReleases>,
    name: Name,
}

impl Drop for BackgroundRelease {
    fn drop(&mut self) {
        self.background_releases.end(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn name_is_free_of_leaving_claims_when_the_last_one_left() {
        let background_releases = Arc::new(BackgroundReleases::default());
        let (name, other) = (Name::new("n").expect("a name"), Name::new("m").expect("a name"));
        let first = background_releases.begin(&name);
        let second = background_releases.begin(&name);
        assert!(background_releases.ended(&other).now_or_never().is_some());
        let mut ended = Box::pin(background_releases.ended(&name));
        assert!((&mut ended).now_or_never().is_none());
        drop(first);
        assert!((&mut ended).now_or_never().is_none(), "one claim has not left");
        drop(second);
        assert!(ended.now_or_never().is_some() && !background_releases.has(&name));
    }
}
