//! Claims whose answer nobody waits for any more, although they may still be carried out.
//!
//! A caller may drop a claim at any point; the library then releases it, over another connection
//! perhaps, and so maybe before the claim itself gets its turn. Then it would stay in line until
//! its time runs out. So a release first waits until the connection that the claim went out on has
//! answered everything that was sent before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rule::claim::Token;

use super::super::link::Link;

/// How long a release waits for a claim. A server that is well has carried it out by then: longer
/// than `lock_timeout` in `verbs.sql`, it does not wait for a line.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The claims that are adrift, and on which connection.
#[derive(Debug, Default)]
pub(super) struct Adrift {
    claims: Mutex<HashMap<Token, (Instant, Arc<Link>)>>,
}

impl Adrift {
    /// A claim goes out on a connection. If its answer does not arrive before the result is
    /// dropped, it is adrift.
    pub(super) fn setting_out(&self, token: Token, link: Arc<Link>) -> Voyage<'_> {
        Voyage { adrift: self, token, link: Some(link) }
    }

    /// Ends when a claim that is adrift has been carried out, or is not going to be.
    pub(super) async fn settled(&self, token: &Token) {
        let found = self.claims().remove(token);
        let Some((since, link)) = found else { return };
        let left = WAIT_MAX.saturating_sub(since.elapsed());
        // Put back while waiting: this future, too, may be dropped.
        self.claims().insert(*token, (since, Arc::clone(&link)));
        let settled = tokio::time::timeout(left, link.settled()).await;
        if settled.is_err() {
            tracing::debug!("a claim that was given up is not answered; releasing it anyway");
        }
        self.claims().remove(token);
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<Token, (Instant, Arc<Link>)>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim on its way.
pub(super) struct Voyage<'a> {
    adrift: &'a Adrift,
    token: Token,
    link: Option<Arc<Link>>,
}

impl Voyage<'_> {
    /// Its answer has arrived.
    pub(super) fn arrived(mut self) {
        self.link = None;
    }
}

impl Drop for Voyage<'_> {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        let mut claims = self.adrift.claims();
        // Most are released soon, and leave; the others are of no interest for long.
        claims.retain(|_, (since, _)| since.elapsed() < WAIT_MAX);
        claims.insert(self.token, (Instant::now(), link));
    }
}
