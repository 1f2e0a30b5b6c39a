//! Tries transient failures again, with exponential backoff and jitter.
//!
//! Repeating a verb with the same token is safe. Renewals and waits pass through: the keeper and
//! the waiting loop know better how long to try again. Parts pass through as well: their callers
//! try again by the client's policy.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::Instant;

use crate::engine::{Engine, Info, Page, Parts, Query, Wake};
use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Released, Renewal, Standing};

/// How often and how soon a transient failure is tried again.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// How many times after the first; 0 turns retrying off.
    pub times: usize,
    /// The first pause; each following one is twice as long. A random part of up to its own length
    /// is added to each.
    pub first: Duration,
    /// The longest pause without that part.
    pub longest: Duration,
    /// No try after the second begins later than this after the first. Pauses alone do not limit
    /// the time, because an unanswered try lasts as long as the engine waits for its answer. The
    /// second try always happens, because a connection may have died in silence.
    pub within: Duration,
}

impl Default for RetryPolicy {
    /// Six times over two to four seconds, where the store refuses at once: longer than the first
    /// hiccup of a fail-over, shorter than anybody's patience. Where it is silent, for as long as
    /// it may take until a connection that died in silence is known to be dead.
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

    /// Calls once, and again after each transient failure as long as the policy allows.
    pub(crate) async fn again<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begun = Instant::now();
        let mut error = match call().await {
            Err(error) if error.is_transient() => error,
            other => return other,
        };
        let pauses = ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(self.longest)
            .with_max_times(self.times)
            .with_jitter()
            .build();
        for (further, pause) in pauses.enumerate() {
            if further > 0 && begun.elapsed() + pause > self.within {
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

/// An engine that repeats another engine's verbs after transient failures.
#[derive(Debug)]
pub struct Retry {
    engine: Arc<dyn Engine>,
    policy: RetryPolicy,
}

impl Retry {
    /// Wraps `engine`, or returns it as it is if there is nothing to repeat.
    pub fn wrap(engine: Arc<dyn Engine>, policy: RetryPolicy) -> Arc<dyn Engine> {
        if policy.times == 0 || !engine.info().can_fail {
            engine
        } else {
            Arc::new(Self { engine, policy })
        }
    }

    async fn again<T, F>(&self, call: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.policy.again(call).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Retry {
    fn info(&self) -> &Info {
        self.engine.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.again(|| self.engine.claim(claim)).await
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

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.again(|| self.engine.inspect(query)).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        Arc::clone(&self.engine).parts()
    }
}
