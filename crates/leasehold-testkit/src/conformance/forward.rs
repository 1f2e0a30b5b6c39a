//! An engine behind a shared pointer, as an engine.
//!
//! A harness hands engines out without saying their type, and clients and layers want a value.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::{Claim, ClaimKey, Place, Released, Renewal, Standing, Token};
use leasehold::engine::{Engine, Info, Page, Parts, Query, Wake};

use super::support::{Outcome, until};

#[derive(Debug)]
pub(super) struct Forward(pub(super) Arc<dyn Engine>, pub(super) Option<Arc<Diary>>);

/// The claims that a client asked for, and the heartbeats whose answers it read.
#[derive(Debug, Default)]
pub(super) struct Diary {
    claims: Mutex<HashMap<Token, Asked>>,
    heartbeats: Mutex<Vec<Heartbeat>>,
    /// How many heartbeats were sent.
    sent: AtomicUsize,
}

#[derive(Debug)]
struct Asked {
    claim: Claim,
    /// The places in answers to the client's own requests.
    places: Vec<Place>,
}

/// An answer to a heartbeat that says that a claim waits.
#[derive(Debug)]
struct Heartbeat {
    sent: Instant,
    read: Instant,
    place: Place,
}

impl Diary {
    pub(super) fn keys(&self) -> Vec<ClaimKey> {
        self.claims().into_iter().map(|claim| claim.key).collect()
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claims = self.claims.lock().expect("nobody panics");
        claims.values().map(|asked| asked.claim.clone()).collect()
    }

    /// Waits until a heartbeat was answered.
    pub(super) async fn until_answered(&self) -> Outcome {
        let is_answered = || !self.heartbeats.lock().expect("nobody panics").is_empty();
        until("an answer to a heartbeat", async || Ok(is_answered())).await
    }

    /// Waits until one more heartbeat was answered.
    pub(super) async fn until_answered_again(&self) -> Outcome {
        let answered = || self.heartbeats.lock().expect("nobody panics").len();
        let before = answered();
        until("an answer to one more heartbeat", async || Ok(answered() > before)).await
    }

    /// Waits until the client sends one more heartbeat.
    pub(super) async fn until_sent(&self) -> Outcome {
        let before = self.sent.load(Ordering::Relaxed);
        let is_sent = || self.sent.load(Ordering::Relaxed) > before;
        until("a heartbeat", async || Ok(is_sent())).await
    }

    /// Waits until a claim of the client stood at so many places, one after the other.
    pub(super) async fn until_placed(&self, count: usize) -> Outcome {
        let is_placed = |asked: &Asked| {
            let mut places = asked.places.clone();
            places.dedup();
            places.len() >= count
        };
        let any = || self.claims.lock().expect("nobody panics").values().any(is_placed);
        until("a place in line", async || Ok(any())).await
    }

    /// Whether the client sent a heartbeat before that instant and read its answer after it. The
    /// answer must say that a claim stands at its first place.
    pub(super) fn read_late(&self, after: Instant) -> bool {
        let heartbeats = self.heartbeats.lock().expect("nobody panics");
        let claims = self.claims.lock().expect("nobody panics");
        let is_first = |place: &Place| claims.values().any(|a| a.places.first() == Some(place));
        heartbeats.iter().any(|h| h.sent < after && h.read > after && is_first(&h.place))
    }

    fn asked(&self, claim: &Claim, answer: Option<&Standing>) {
        let mut claims = self.claims.lock().expect("nobody panics");
        let fresh = || Asked { claim: claim.clone(), places: Vec::new() };
        let asked = claims.entry(claim.key.token).or_insert_with(fresh);
        if let Some(Standing::Queued { place, .. }) = answer {
            asked.places.push(*place);
        }
    }

    fn renewed(&self, sent: Instant, standings: &[Result<Standing>]) {
        let read = Instant::now();
        let mut heartbeats = self.heartbeats.lock().expect("nobody panics");
        for standing in standings {
            if let Ok(Standing::Queued { place, .. }) = standing {
                heartbeats.push(Heartbeat { sent, read, place: *place });
            }
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Forward {
    fn info(&self) -> &Info {
        self.0.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let Some(diary) = &self.1 else { return self.0.claim(claim).await };
        diary.asked(claim, None);
        let standing = self.0.claim(claim).await?;
        diary.asked(claim, Some(&standing));
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.0.wait(key).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let sent = Instant::now();
        if let Some(diary) = &self.1 {
            diary.sent.fetch_add(1, Ordering::Relaxed);
        }
        let standings = self.0.renew(renewals).await?;
        if let Some(diary) = &self.1 {
            diary.renewed(sent, &standings);
        }
        Ok(standings)
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.0.release(keys).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        Arc::clone(&self.0).parts()
    }
}
