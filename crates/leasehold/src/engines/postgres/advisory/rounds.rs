//! Looking after those who wait, should their own runtimes not.
//!
//! Whoever waits for a lock reads the grant himself, and no other thread is woken for it. But his
//! runtime may be blocked when it comes, and the server's patience with the session begins with
//! the grant. So the engine's thread looks, from time to time, what the sessions that wait were
//! told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Inner;
use super::session::Shared;

/// How often it looks. A lease that begins later by this still ends before its session: the
/// server waits longer than the ttl, by twice this and more.
const EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Rounds {
    under_way: AtomicBool,
    begin: Notify,
}

impl Rounds {
    /// Somebody waits.
    pub(super) fn begin(&self) {
        if !self.under_way.swap(true, Ordering::AcqRel) {
            self.begin.notify_one();
        }
    }
}

/// Looks as long as the engine runs and anybody waits.
pub(super) async fn go(inner: Arc<Inner>) {
    loop {
        inner.rounds.begin.notified().await;
        loop {
            tokio::time::sleep(EVERY).await;
            // Whoever begins to wait from here on begins the next rounds, or is seen in these.
            inner.rounds.under_way.swap(false, Ordering::AcqRel);
            let waiting = inner.waiting();
            if waiting.is_empty() {
                break;
            }
            inner.rounds.under_way.store(true, Ordering::Release);
            waiting.iter().for_each(|session| session.look());
        }
    }
}

impl Inner {
    /// The session that waits for a claim.
    pub(super) fn waits_on(&self, key: &crate::rule::claim::ClaimKey) -> Option<Shared> {
        let mut book = self.book();
        let session = book.entry(key)?.session()?;
        book.seats.get(&session).map(|seat| Arc::clone(&seat.session))
    }

    fn waiting(&self) -> Vec<Shared> {
        let book = self.book();
        let blocked = book.seats.values().filter(|seat| seat.blocked);
        blocked.map(|seat| Arc::clone(&seat.session)).collect()
    }
}
