//! Waiting: a statement that the server answers when the lock is there, on a session of its own.
//!
//! The engine's thread carries a wait through, whatever becomes of the caller's runtime. Whoever
//! waits for it carries it as well, so that a grant reaches him without a detour over that thread.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};

use crate::bell::Bell;
use crate::claim::{ClaimKey, Standing, Token};
use crate::engine::Wake;
use crate::error::{Cycle, Error, Result};

use super::super::failure;
use super::book::{Entry, Place, Written, timeout_ms};
use super::keys::AdvisoryKey;
use super::session::Shared;
use super::take::Lock;
use super::{Inner, RETRY_IN};

/// How long a claim that waits is given to be granted before it is answered that it waits.
const GRACE: Duration = Duration::from_millis(2);

/// A wait, kept alive by those who carry it: it keeps the engine alive.
type Wait = WeakShared<BoxFuture<'static, ()>>;

/// The waits that are under way.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<HashMap<Token, Wait>>);

impl Waits {
    fn list(&self) -> MutexGuard<'_, HashMap<Token, Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a wait.
    fn begin(
        &self,
        inner: &Arc<Inner>,
        token: Token,
        wait: impl Future<Output = ()> + Send + 'static,
    ) {
        let wait = wait.boxed().shared();
        if let Some(known) = wait.downgrade() {
            self.list().insert(token, known);
        }
        let carrier = Arc::clone(inner);
        inner.deck.run(async move {
            wait.await;
            carrier.waits.list().remove(&token);
        });
    }

    /// Hears a claim's bell, and carries its wait meanwhile, which rings it.
    pub(super) async fn hear(&self, token: &Token, bell: &Bell) -> Wake {
        let wait = self.list().get(token).and_then(WeakShared::upgrade);
        let carried = async {
            if let Some(wait) = wait {
                wait.await;
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            wake = bell.heard() => wake,
            never = carried => match never {},
        }
    }
}

impl Inner {
    /// Waits on a session of its own. Answers a grant that comes at once, else that it waits.
    pub(super) async fn wait_for(self: &Arc<Self>, lock: Lock<'_>) -> Result<Standing> {
        let Lock { claim, on, shared } = lock;
        let (timeout_ms, token) = (timeout_ms(claim.ttl), claim.key.token);
        let now = self.now();
        let choose = |book: &mut super::book::Book, most| {
            book.seat_to_wait(Entry::new(claim, on, shared, now), timeout_ms, most)
        };
        let (session, set) = self.seated(timeout_ms, choose, true).await?;
        if let Some(guarded) = self.guard(claim, &session) {
            return Ok(guarded);
        }
        self.belfry.expect(token);
        self.scribe.notice();
        session.settle_here();
        self.waits.begin(self, token, {
            Arc::clone(self).wait_on(claim.key.clone(), session, (on, shared), set)
        });
        let Some(bell) = self.belfry.bell(&token) else {
            return Ok(Standing::Queued { ahead: 1, retry_in: RETRY_IN });
        };
        match tokio::time::timeout(GRACE, self.waits.hear(&token, &bell)).await {
            Ok(Wake::Holds { .. } | Wake::Ask) => {
                let standing = self.known(lock).await?;
                Ok(standing.unwrap_or(Standing::Queued { ahead: 1, retry_in: Duration::ZERO }))
            }
            Err(_) => Ok(Standing::Queued { ahead: 1, retry_in: RETRY_IN }),
        }
    }

    /// The wait itself.
    async fn wait_on(
        self: Arc<Self>,
        key: ClaimKey,
        session: Shared,
        (on, shared): (AdvisoryKey, bool),
        set: Option<u64>,
    ) {
        let answer = session.wait(on, shared, set).await;
        let granted = self.now();
        match answer {
            Ok(Ok(Some(fence))) if self.hold(&key, session.id, fence, granted) => {
                self.belfry.ring(&key.token, fence);
            }
            Ok(Err(error)) if failure::ends_connection(&error) => self.condemn(&session),
            Err(error) => {
                self.end_wait(&key, &session, Some(error));
                self.condemn(&session);
            }
            answer => {
                // Cancelled, given up, or failed with or without the lock: give it back.
                let Some((row, leaving)) = self.ending(&key, &session) else { return };
                let forget = row.map(|row| (self.statements.forget.as_str(), row));
                if !matches!(session.drop_lock(on, shared, forget).await, Ok(Ok(_))) {
                    self.condemn(&session);
                }
                let error = match answer {
                    Ok(Err(error)) if !leaving => Some(self.refusal(&key, &error)),
                    _ => None,
                };
                self.end_wait(&key, &session, error);
            }
        }
    }

    /// The row about a wait that ends, and whether it was given up; `None` if its session is
    /// over, and it was told.
    fn ending(&self, key: &ClaimKey, session: &Shared) -> Option<(Option<i64>, bool)> {
        let mut book = self.book();
        let entry = book.entry(key).filter(|entry| entry.session() == Some(session.id))?;
        let Place::Waiting { leaving, .. } = &entry.place else { return None };
        Some(((entry.written != Written::Nothing).then_some(entry.row), *leaving))
    }

    /// A wait ended without a lock.
    fn end_wait(&self, key: &ClaimKey, session: &Shared, error: Option<Error>) {
        let mut book = self.book();
        if book.entry(key).is_none_or(|entry| entry.session() != Some(session.id)) {
            return;
        }
        let Some(mut entry) = book.remove(&key.token) else { return };
        if let Place::Waiting { ended, .. } = &entry.place {
            ended.notify_waiters();
        }
        if let Some(error) = error {
            entry.place = Place::Failed(error);
            book.claims.insert(key.token, entry);
        }
        drop(book);
        self.belfry.ring(&key.token, 0);
    }

    fn refusal(&self, key: &ClaimKey, error: &tokio_postgres::Error) -> Error {
        match failure::code(error) {
            Some("40P01") => Error::Deadlock { name: key.name.clone(), cycle: Cycle(Vec::new()) },
            _ => self.said(error),
        }
    }
}
