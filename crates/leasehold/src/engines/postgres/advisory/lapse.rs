//! The end of claims by their ttl. Sessions are shared, so that one claim on a session ends is the
//! client's business; the server ends a session whose client is frozen or gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::Counts;
use crate::rule::claim::ClaimKey;

use super::Inner;
use super::book::{Leave, Place};

/// How long counting an expiry may hold up the next in line.
const COUNT_MAX: Duration = Duration::from_millis(500);

/// When a claim ends that is being ended. A renewal that comes first sets it anew.
const BEING_ENDED: Moment = Moment::NEVER;

#[derive(Debug)]
pub(super) struct Lapse {
    /// When the task looks next, in nanoseconds.
    next: AtomicU64,
    sooner: Notify,
}

impl Default for Lapse {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX), sooner: Notify::new() }
    }
}

impl Lapse {
    /// Something ends at `at`.
    pub(super) fn expect(&self, at: Moment) {
        if at.as_nanos() < self.next.load(Ordering::Acquire) {
            self.sooner.notify_one();
        }
    }
}

/// Ends claims whose time has come. Runs as long as the engine.
pub(super) async fn watch(inner: Arc<Inner>) {
    loop {
        let (next, over) = look(&inner);
        if !over.is_empty() {
            // Apart, because a session may be slow to answer.
            inner.deck.run(end(Arc::clone(&inner), over));
        }
        tokio::select! {
            () = inner.lapse.sooner.notified() => {}
            () = SystemClock.alarm(next), if next != Moment::NEVER => {}
        }
    }
}

/// When the next claim ends, and those whose time has come.
fn look(inner: &Inner) -> (Moment, Vec<ClaimKey>) {
    // Whoever comes while this looks is not overlooked: he finds a time that is later than his.
    inner.lapse.next.store(u64::MAX, Ordering::Release);
    let now = inner.now();
    let (mut next, mut over) = (Moment::NEVER, Vec::new());
    for entry in inner.book().claims.values_mut() {
        if let Place::Held { expires, .. } = &mut entry.place {
            if *expires <= now {
                over.push(entry.key.clone());
                *expires = BEING_ENDED;
            } else {
                next = next.min(*expires);
            }
        }
    }
    inner.lapse.next.store(next.as_nanos(), Ordering::Release);
    (next, over)
}

async fn end(inner: Arc<Inner>, over: Vec<ClaimKey>) {
    // Counted first: whoever is next may look at once.
    let counts = Counts { expired: over.len() as u64, ..Counts::default() };
    match tokio::time::timeout(COUNT_MAX, inner.tally(&counts)).await {
        Ok(Ok(())) => {}
        _ => tracing::debug!(?counts, "expiries were not added to the store's counts"),
    }
    let due: Vec<ClaimKey> = {
        // One of them may have been renewed since.
        let mut book = inner.book();
        let is_over = |key: &ClaimKey| {
            let entry = book.entry(key);
            entry.is_some_and(
                |e| matches!(e.place, Place::Held { expires, .. } if expires == BEING_ENDED),
            )
        };
        over.into_iter().filter(is_over).collect()
    };
    if let Err(error) = inner.leave(&due, Leave::Expired).await {
        tracing::debug!(%error, "what expired is left for the server to end");
        // Its session is silent: the server has ended it by now, or is about to.
        for key in due {
            let session = {
                let mut book = inner.book();
                let id = book.remove(&key.token).and_then(|entry| entry.session());
                id.and_then(|id| book.seats.get(&id)).map(|seat| Arc::clone(&seat.session))
            };
            if let Some(session) = session {
                inner.suspect(&session);
            }
        }
    }
}
