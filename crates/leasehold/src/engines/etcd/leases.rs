//! etcd's leases: one for each length of life that a client's claims need, shared by all of them.
//!
//! Ten thousand locks of one ttl cost one keep-alive. A lease lives a little longer than the claims
//! on it ask for, so that a claim made a moment after a keep-alive still gets its whole ttl without
//! another. How long it lives is what the server granted, counted from before it was asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tonic::Status;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Result;

use super::failure;
use super::link::{Links, lock};
use super::wire::{Empty, GrantRequest, LeaseRequest, LeaseResponse};

/// The least that a lease lives longer than what is asked for, and the part of it.
const SLACK_MIN: Duration = Duration::from_millis(500);
const SLACK_PART: u32 = 32;
/// Up to this many seconds a lease has exactly as many as needed; above, lengths are rounded up by
/// at most a 32nd, so that a client with many different ttls has few leases.
const EXACT_SECONDS_MAX: u64 = 64;

/// All leases of a client.
#[derive(Debug, Default)]
pub(super) struct Leases {
    terms: Mutex<HashMap<u64, Arc<Term>>>,
}

/// The lease of one length.
#[derive(Debug, Default)]
pub(super) struct Term {
    seconds: u64,
    granted: Mutex<Option<Granted>>,
    /// A lease that was asked for without an answer: it may have been granted, or yet be.
    unanswered: Mutex<Option<i64>>,
    /// Held by whoever asks the server, so that the others wait for the same answer.
    turn: tokio::sync::Mutex<()>,
}

/// A lease that the server granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) id: i64,
    /// Not before this instant does the server drop it.
    until: Moment,
}

impl Granted {
    /// How long it lives from `now` on, and never more than `span`.
    pub(super) fn left(&self, now: Moment, span: Duration) -> Duration {
        self.until.since(now).min(span)
    }

    /// Whether it lives for `span` from `now` on.
    pub(super) fn covers(&self, now: Moment, span: Duration) -> bool {
        self.until >= now + span
    }
}

/// How many seconds a lease must have for claims that live for `span`.
fn seconds(span: Duration) -> u64 {
    let needed = span + (span / SLACK_PART).max(SLACK_MIN);
    let exact = needed.as_secs() + u64::from(needed.subsec_nanos() > 0);
    if exact <= EXACT_SECONDS_MAX {
        return exact;
    }
    let step = 1 << (exact.ilog2() - 5);
    exact.div_ceil(step) * step
}

impl Leases {
    /// The lease for claims that live for `span`.
    pub(super) fn term(&self, span: Duration) -> Arc<Term> {
        let seconds = seconds(span);
        let mut terms = lock(&self.terms);
        let term = terms.entry(seconds);
        Arc::clone(term.or_insert_with(|| Arc::new(Term { seconds, ..Term::default() })))
    }

    /// Whether a lease is this client's.
    pub(super) fn has(&self, id: i64) -> bool {
        let is_it = |term: &Arc<Term>| lock(&term.granted).is_some_and(|granted| granted.id == id);
        lock(&self.terms).values().any(is_it)
    }

    /// A lease of this client's, as it was granted last.
    pub(super) fn granted(&self, id: i64) -> Option<Granted> {
        let terms = lock(&self.terms);
        terms.values().filter_map(|term| *lock(&term.granted)).find(|granted| granted.id == id)
    }

    /// Takes all of them out, also those that may have been granted without an answer.
    pub(super) fn take_all(&self) -> BTreeSet<i64> {
        let terms: Vec<Arc<Term>> = lock(&self.terms).drain().map(|(_, term)| term).collect();
        let both = terms.iter().flat_map(|term| {
            let granted = lock(&term.granted).take().map(|granted| granted.id);
            granted.into_iter().chain(lock(&term.unanswered).take())
        });
        both.collect()
    }
}

/// An id for a lease that no other lease has.
pub(super) fn fresh_id() -> i64 {
    rand::random_range(1..i64::MAX)
}

/// Grants a lease that no keeper keeps alive: it ends by itself, not before `span` is over.
pub(super) async fn grant_once(links: &Links, id: i64, span: Duration) -> Result<()> {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    let ttl = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
    let request = GrantRequest { ttl, id };
    let granted = links.try_ask::<_, LeaseResponse>("/etcdserverpb.Lease/LeaseGrant", &request);
    match granted.await {
        Ok(_) => Ok(()),
        // The request was repeated, and the first one was heard.
        Err(status) if failure::has_lease(&status) => Ok(()),
        Err(status) => Err(links.translate(&status)),
    }
}

/// Ends a lease, and returns whether it has ended. One that cannot be revoked ends by itself.
pub(super) async fn revoke(links: &Links, id: i64) -> bool {
    let path = "/etcdserverpb.Lease/LeaseRevoke";
    match links.try_ask::<_, Empty>(path, &LeaseRequest::of(id)).await {
        Ok(_) => true,
        Err(status) => {
            tracing::debug!(code = ?status.code(), "a lease was not revoked");
            failure::is_lease_gone(&status)
        }
    }
}

impl Term {
    /// The lease, if it outlives `span` without another word to the server.
    pub(super) fn ready(&self, now: Moment, span: Duration) -> Option<Granted> {
        lock(&self.granted).filter(|granted| granted.covers(now, span))
    }

    /// The lease, if it is alive as far as is known.
    pub(super) fn alive(&self, now: Moment) -> Option<Granted> {
        lock(&self.granted).filter(|granted| granted.covers(now, Duration::from_millis(100)))
    }

    /// The lease, kept alive or granted anew if it does not outlive `span`.
    pub(super) async fn obtain(&self, links: &Links, span: Duration) -> Result<Granted> {
        if let Some(granted) = self.ready(SystemClock.now(), span) {
            return Ok(granted);
        }
        let _turn = self.turn.lock().await;
        if let Some(granted) = self.ready(SystemClock.now(), span) {
            return Ok(granted);
        }
        let sent = SystemClock.now();
        if let Some(granted) = self.alive(sent) {
            let ttl = links.keep_alive(granted.id).await;
            let ttl = ttl.map_err(|status| links.translate(&status))?;
            if let Some(granted) = self.confirmed(granted.id, sent, ttl) {
                return Ok(granted);
            }
        }
        self.grant(links).await
    }

    async fn grant(&self, links: &Links) -> Result<Granted> {
        // The id is ours, so that a lost answer, asked for again, makes no second lease.
        let id = lock(&self.unanswered).unwrap_or_else(|| rand::random_range(1..i64::MAX));
        *lock(&self.unanswered) = Some(id);
        let ttl = i64::try_from(self.seconds).unwrap_or(i64::MAX);
        let sent = SystemClock.now();
        let request = GrantRequest { ttl, id };
        let granted = links.try_ask("/etcdserverpb.Lease/LeaseGrant", &request).await;
        let ttl = match granted {
            Ok(LeaseResponse { ttl, .. }) => ttl,
            Err(status) if failure::has_lease(&status) => {
                links.keep_alive(id).await.map_err(|status| links.translate(&status))?
            }
            Err(status) => return Err(links.translate(&status)),
        };
        *lock(&self.unanswered) = None;
        if ttl <= 0 {
            // It was granted, and has run out since.
            return Err(links.translate(&Status::unavailable("etcdserver: the lease ran out")));
        }
        let granted = Granted { id, until: sent + whole_seconds(ttl) };
        *lock(&self.granted) = Some(granted);
        Ok(granted)
    }

    /// Takes in what the server said of a lease.
    fn confirmed(&self, id: i64, sent: Moment, ttl: i64) -> Option<Granted> {
        let mut current = lock(&self.granted);
        let granted = current.as_mut().filter(|granted| granted.id == id)?;
        if ttl <= 0 {
            *current = None;
            return None;
        }
        granted.until = granted.until.max(sent + whole_seconds(ttl));
        Some(*granted)
    }

    /// The server does not know this lease any more.
    pub(super) fn forget(&self, id: i64) {
        let mut granted = lock(&self.granted);
        if granted.is_some_and(|granted| granted.id == id) {
            *granted = None;
        }
    }
}

fn whole_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_outlives_what_it_is_for_by_a_little() {
        for millis in [100, 300, 999, 1_500, 2_000, 10_000, 30_000, 90_000, 300_000, 86_400_000] {
            let span = Duration::from_millis(millis);
            let life = Duration::from_secs(seconds(span));
            assert!(life >= span + SLACK_MIN, "{span:?}: {life:?}");
            let most = span + span / 14 + Duration::from_millis(1_500);
            assert!(life <= most, "{span:?}: {life:?}");
        }
    }

    #[test]
    fn a_client_has_few_leases_whatever_its_ttls() {
        let spans = (1..=86_400_u64).map(|secs| seconds(Duration::from_secs(secs)));
        let lengths: std::collections::BTreeSet<u64> = spans.collect();
        assert!(lengths.len() < 450, "{}", lengths.len());
    }

    #[test]
    fn what_the_server_says_counts_from_before_it_was_asked() {
        let term = Term::default();
        let sent = Moment::from_nanos(1_000_000_000);
        *lock(&term.granted) = Some(Granted { id: 7, until: sent });
        assert!(term.confirmed(8, sent, 5).is_none(), "another lease");
        let granted = term.confirmed(7, sent, 5).expect("kept alive");
        let now = sent + Duration::from_secs(2);
        assert_eq!(granted.left(now, Duration::from_secs(60)), Duration::from_secs(3));
        assert!(term.confirmed(7, sent, 0).is_none() && term.alive(sent).is_none());
    }
}
