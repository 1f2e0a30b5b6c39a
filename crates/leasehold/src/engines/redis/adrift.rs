//! Claims whose answer nobody waits for any more, although they may still be carried out.
//!
//! A caller may drop a claim at any point; the library then releases it, over another connection,
//! and so maybe before the claim itself gets its turn. It would hold until its ttl then, for
//! nobody. So its exchange goes on without the caller, and a release waits for its end.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::Result;
use crate::rule::claim::{ClaimKey, Token};

use super::link::InUse;

/// How long an exchange goes on without the caller. A server that is well has carried the claim
/// out by then, and one that is not is found out otherwise.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The exchange of one claim, or of several that are made together.
pub(super) type Exchange = BoxFuture<'static, Result<Value>>;

/// The claims that are adrift. What is watched never changes; it ends.
#[derive(Debug, Default)]
pub(super) struct Adrift {
    claims: Mutex<HashMap<Token, watch::Receiver<()>>>,
}

impl Adrift {
    /// Awaits the answer to claims. If this is dropped before it comes, they are adrift.
    pub(super) async fn answer(
        self: &Arc<Self>,
        tokens: Vec<Token>,
        connection: Option<InUse>,
        exchange: Exchange,
    ) -> Result<Value> {
        let (adrift, runtime, since) = (Arc::clone(self), Handle::current(), Instant::now());
        Voyage { adrift, tokens, connection, runtime, since, exchange: Some(exchange) }.await
    }

    /// Whether a claim is adrift.
    pub(super) fn has(&self, token: &Token) -> bool {
        self.claims().contains_key(token)
    }

    /// Ends when none of these claims is adrift.
    pub(super) async fn settled(&self, keys: &[ClaimKey]) {
        let found: Vec<_> = {
            let claims = self.claims();
            keys.iter().filter_map(|key| claims.get(&key.token).cloned()).collect()
        };
        let all = join_all(found.into_iter().map(ended));
        if tokio::time::timeout(WAIT_MAX, all).await.is_err() {
            // The runtime that it was sent on stands still, for instance.
            tracing::debug!("a claim that was given up is not answered; releasing it anyway");
        }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<Token, watch::Receiver<()>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ended(mut exchange: watch::Receiver<()>) {
    // Nothing is ever told: it ends with whoever could have.
    while exchange.changed().await.is_ok() {}
}

/// Claims on their way.
struct Voyage {
    adrift: Arc<Adrift>,
    tokens: Vec<Token>,
    connection: Option<InUse>,
    runtime: Handle,
    since: Instant,
    /// `None` once it was answered.
    exchange: Option<Exchange>,
}

impl Future for Voyage {
    type Output = Result<Value>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Value>> {
        let Some(exchange) = &mut self.exchange else { return Poll::Pending };
        let answer = std::task::ready!(exchange.as_mut().poll(context));
        self.exchange = None;
        Poll::Ready(answer)
    }
}

impl Drop for Voyage {
    fn drop(&mut self) {
        let Some(exchange) = self.exchange.take() else { return };
        if let Some(connection) = &self.connection {
            connection.given_up_after(self.since.elapsed());
        }
        let (ends, ended) = watch::channel(());
        let (adrift, tokens) = (Arc::clone(&self.adrift), std::mem::take(&mut self.tokens));
        adrift.claims().extend(tokens.iter().map(|token| (*token, ended.clone())));
        let mark = Mark { adrift, tokens, _ends: ends };
        self.runtime.spawn(async move {
            // Whatever the answer is, a release follows.
            let _answer = tokio::time::timeout(WAIT_MAX, exchange).await;
            drop(mark);
        });
    }
}

/// Claims that are adrift for as long as this exists, also where its runtime ends first.
struct Mark {
    adrift: Arc<Adrift>,
    tokens: Vec<Token>,
    _ends: watch::Sender<()>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut claims = self.adrift.claims();
        for token in &self.tokens {
            claims.remove(token);
        }
    }
}
