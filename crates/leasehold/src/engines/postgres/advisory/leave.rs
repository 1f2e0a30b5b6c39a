//! Giving back what is held, and leaving a wait.
//!
//! A lock is given back exactly once: a second statement could hit a later claim on the same
//! session. So whoever comes second waits for what was sent before.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio_postgres::types::Type;

use crate::error::Result;
use crate::rule::claim::{ClaimKey, Released};

use super::Inner;
use super::book::{Leave, Place, Written};
use super::keys::AdvisoryKey;
use super::session::Shared;

/// How long one cancellation is given. It may come before the statement that it is to cancel.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

/// How often it is tried before the session is ended instead.
const CANCEL_TIMES: usize = 50;

/// What there is to do about a claim.
enum Step {
    Drop {
        session: Shared,
        on: AdvisoryKey,
        shared: bool,
        row: Option<i64>,
    },
    /// What was sent before is still under way.
    Settle {
        session: Shared,
        why: Leave,
    },
    Cancel {
        session: Shared,
        ended: Arc<Notify>,
    },
    /// It is not there.
    Look,
}

impl Inner {
    pub(super) async fn release(self: &Arc<Self>, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.leave(keys, Leave::Asked).await
    }

    pub(super) async fn leave(
        self: &Arc<Self>,
        keys: &[ClaimKey],
        why: Leave,
    ) -> Result<Vec<Released>> {
        match keys {
            [key] => Ok(vec![self.part(key, why).await?]),
            keys => {
                join_all(keys.iter().map(|key| self.part(key, why))).await.into_iter().collect()
            }
        }
    }

    async fn part(self: &Arc<Self>, key: &ClaimKey, why: Leave) -> Result<Released> {
        self.bell_registry.forget(&key.token);
        match self.step(key, why) {
            Step::Drop { session, on, shared, row } => {
                let forget = row.map(|row| (self.statements.forget.as_str(), row));
                let was_open = !session.is_over();
                let dropped = session.drop_lock(on, shared, forget).await;
                match dropped {
                    Ok(Ok(dropped)) => {
                        self.book().remove(&key.token);
                        Ok(if dropped { Released::Released } else { self.taken(key).await })
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "giving back failed; its session ends");
                        self.condemn(&session);
                        self.book().remove(&key.token);
                        // The connection broke, and the answer is lost with it: the lock was given
                        // back by the statement, or by the end of the session.
                        if was_open && error.as_db_error().is_none() {
                            return Ok(Released::Released);
                        }
                        Ok(self.taken(key).await)
                    }
                    Err(error) => {
                        self.suspect(&session);
                        Err(error)
                    }
                }
            }
            Step::Settle { session, why } => {
                let settled = session.beat(None).await;
                self.heard(&session, settled)?;
                self.book().remove(&key.token);
                Ok(match why {
                    Leave::Asked => Released::Released,
                    Leave::Expired => self.taken(key).await,
                })
            }
            Step::Cancel { session, ended } => {
                self.cancel(&session, &ended).await;
                let mut book = self.book();
                if book.entry(key).is_some_and(|entry| matches!(entry.place, Place::Gone)) {
                    book.remove(&key.token);
                }
                Ok(Released::Released)
            }
            Step::Look => Ok(self.taken(key).await),
        }
    }

    fn step(&self, key: &ClaimKey, why: Leave) -> Step {
        let mut book = self.book();
        let Some(entry) = book.entry(key) else { return Step::Look };
        let (on, shared, row) = (entry.on, entry.shared, entry.row);
        let row = (entry.written != Written::Nothing).then_some(row);
        let found = match &mut entry.place {
            Place::Taking { session } | Place::Held { session, .. } => {
                let id = *session;
                entry.place = Place::Leaving { session: id, why };
                let seat = book.seats.get(&id);
                seat.map(|seat| Step::Drop { session: Arc::clone(&seat.session), on, shared, row })
            }
            Place::Leaving { session, why } => {
                let (id, why) = (*session, *why);
                let seat = book.seats.get(&id);
                seat.map(|seat| Step::Settle { session: Arc::clone(&seat.session), why })
            }
            Place::Waiting { session, ended, leaving } => {
                *leaving = true;
                let (id, ended) = (*session, Arc::clone(ended));
                let seat = book.seats.get(&id);
                seat.map(|seat| Step::Cancel { session: Arc::clone(&seat.session), ended })
            }
            Place::Failed(_) | Place::Gone => None,
        };
        found.unwrap_or_else(|| {
            book.remove(&key.token);
            Step::Look
        })
    }

    /// Ends a wait. Its task gives back what it may have been granted meanwhile.
    async fn cancel(self: &Arc<Self>, session: &Shared, ended: &Notify) {
        let waits = || {
            let book = self.book();
            book.seats.get(&session.id).is_some_and(|seat| seat.blocked)
        };
        for _ in 0..CANCEL_TIMES {
            let over = ended.notified();
            if !waits() {
                return;
            }
            let cancelled =
                self.ask("SELECT pg_cancel_backend($1)", &[(&session.pid, Type::INT4)]).await;
            if let Err(error) = cancelled {
                tracing::debug!(%error, "a wait cannot be cancelled; its session ends");
                break;
            }
            let over = session.meanwhile(over);
            if tokio::time::timeout(CANCEL_AGAIN, over).await.is_ok() {
                return;
            }
        }
        self.condemn(session);
    }

    /// What became of a claim that is not there.
    async fn taken(&self, key: &ClaimKey) -> Released {
        match self.holder_of(&key.name).await {
            Some(holder) => Released::TakenBy(holder),
            None => Released::AlreadyExpired,
        }
    }
}
