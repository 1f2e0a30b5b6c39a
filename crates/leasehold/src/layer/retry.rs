//! Tries transient failures again, with exponential backoff and jitter.
//!
//! Every verb may be repeated with the same token, so repeating is safe. Renewals and waits pass
//! through: the keeper and the waiting loop know better how long trying again makes sense.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::stream::BoxStream;
use tokio::time::Instant;

use crate::claim::{
    Amended, Amendment, Claim, ClaimKey, ClaimRef, Holder, HolderId, Released, Renewal, Standing,
};
use crate::clock::Glance;
use crate::engine::{
    Bump, Bumped, Concern, Counts, Engine, Event, Eviction, Finding, Info, Notice, Page, Query,
    Resize, Resized, Totals, Wait, Wake,
};
use crate::error::Result;

/// How often and how soon a transient failure is tried again.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// How many times after the first; 0 turns retrying off.
    pub times: usize,
    /// The first pause; each following one is twice as long, less a random part.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// No try after the second begins later than this after the first: one that is not answered
    /// takes as long as the engine waits for an answer, which pauses do not count. The second is
    /// always made, because a connection may have died in silence.
    pub within: Duration,
}

impl Default for RetryPolicy {
    /// Six times over about two seconds, where the store refuses at once: longer than a fail-over's
    /// first hiccup, shorter than anybody's patience. Where it is silent, for as long as it may
    /// take until a connection that died in silence is known to be dead.
    fn default() -> Self {
        Self {
            times: 6,
            first: Duration::from_millis(30),
            longest: Duration::from_secs(1),
            within: Duration::from_secs(15),
        }
    }
}

impl RetryPolicy {
    /// Never tries again.
    pub const OFF: RetryPolicy = RetryPolicy {
        times: 0,
        first: Duration::ZERO,
        longest: Duration::ZERO,
        within: Duration::ZERO,
    };
}

/// An engine that tries transient failures of another again.
#[derive(Debug)]
pub struct Retry {
    engine: Arc<dyn Engine>,
    policy: RetryPolicy,
}

impl Retry {
    /// Wraps `engine`, or returns it as it is if nothing is ever to be tried again.
    pub fn wrap(engine: Arc<dyn Engine>, policy: RetryPolicy) -> Arc<dyn Engine> {
        if policy.times == 0 || !engine.info().can_fail {
            engine
        } else {
            Arc::new(Self { engine, policy })
        }
    }

    async fn again<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begun = Instant::now();
        let mut error = match call().await {
            Err(error) if error.is_transient() => error,
            other => return other,
        };
        let pauses = ExponentialBuilder::new()
            .with_min_delay(self.policy.first)
            .with_max_delay(self.policy.longest)
            .with_max_times(self.policy.times)
            .with_jitter()
            .build();
        for (further, pause) in pauses.enumerate() {
            if further > 0 && begun.elapsed() + pause > self.policy.within {
                break;
            }
            tracing::debug!(%error, ?pause, "trying again");
            tokio::time::sleep(pause).await;
            error = match call().await {
                Err(error) if error.is_transient() => error,
                other => return other,
            };
        }
        Err(error)
    }
}

#[async_trait]
impl Engine for Retry {
    fn info(&self) -> &Info {
        self.engine.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.again(|| self.engine.claim(claim)).await
    }

    fn claim_now(&self, claim: ClaimRef<'_>, glance: Glance<'_>) -> Option<(u64, Duration)> {
        self.engine.claim_now(claim, glance)
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.again(|| self.engine.claim_all(claims)).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.engine.wait(key).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.engine.renew(renewals).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.again(|| self.engine.release(keys)).await
    }

    fn release_now(&self, key: &ClaimKey) -> Option<Released> {
        self.engine.release_now(key)
    }

    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
        self.again(|| self.engine.amend(key, amendment)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.again(|| self.engine.resize(order)).await
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        self.engine.losses().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        self.engine.concerns().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.again(|| self.engine.inspect(query)).await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        // The keeper says it again, if it still matters.
        self.engine.announce(notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.again(|| self.engine.waits_of(holder)).await
    }

    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        self.again(|| self.engine.watch(query)).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        self.again(|| self.engine.evict(order)).await
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.again(|| self.engine.bump_epoch(order)).await
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        // Not repeated: sums are the one thing that is not idempotent.
        self.engine.tally(counts).await
    }

    async fn totals(&self) -> Result<Totals> {
        self.again(|| self.engine.totals()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.again(|| self.engine.examine()).await
    }

    async fn install(&self) -> Result<()> {
        self.again(|| self.engine.install()).await
    }

    fn schema(&self) -> &'static str {
        self.engine.schema()
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
