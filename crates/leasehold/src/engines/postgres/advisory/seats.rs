//! Opening sessions and ending them, and the guard after the server forgot its locks.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::clock::Moment;
use crate::engine::Wake;
use crate::error::{Error, Result};
use crate::rule::claim::ClaimKey;

use super::book::{Book, Leave, Pick, Place, Seat};
use super::keys::Keys;
use super::session::{Begun, Session, Shared};
use super::{GUARD_MAX, Inner};

/// What there are too many of when no session is left.
const TOO_MANY: &str = "sessions of this client, one for each claim that waits (raise \
                        `connections` in the store's url, or use the lease table, `postgres://`)";

/// How long a server process of ours that ended is looked for among those that hold locks.
const GHOST_FOR: Duration = Duration::from_secs(5);

impl Inner {
    /// Opens one more session. It goes on even if the caller does not wait for it.
    pub(super) async fn open_session(self: &Arc<Self>, timeout_ms: u64) -> Result<()> {
        self.book().opening += 1;
        let inner = Arc::clone(self);
        let opened = self.deck.run(async move {
            let opened = inner.connect(timeout_ms).await;
            let mut book = inner.book();
            book.opening -= 1;
            let (session, begun) = opened?;
            let id = session.id;
            let over = session.is_over();
            book.seats.insert(id, Seat::new(session, timeout_ms));
            drop(book);
            if over {
                inner.session_over(id);
            }
            inner.begun(begun)
        });
        opened.await.map_err(|_| Error::task_ended(&self.settings.store))?
    }

    async fn connect(self: &Arc<Self>, timeout_ms: u64) -> Result<(Session, Begun)> {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let pair = matches!(
            self.keys,
            Keys::Pair | Keys::WithAdvisoryLock | Keys::Tooz | Keys::DistributedLock
        );
        let inner = Arc::clone(self);
        let ended = move || inner.session_over(id);
        Session::open(&self.settings, &self.statements, (id, timeout_ms, pair), ended).await
    }

    /// Learns what a new session's server says about itself.
    fn begun(&self, begun: Begun) -> Result<()> {
        self.know(begun.store_id)?;
        self.ttl_known_ms.fetch_max(begun.ttl.as_millis() as u64, Ordering::AcqRel);
        // Where nothing was granted before, nobody can still believe to hold it.
        let guard = match begun.guard.is_zero() {
            true => Duration::ZERO,
            false => self.guard.unwrap_or(begun.guard.min(GUARD_MAX)),
        };
        let until = self.now() + guard.saturating_sub(begun.age);
        self.guarded_until.fetch_max(until.as_nanos(), Ordering::AcqRel);
        Ok(())
    }

    /// Writes down a ttl that the guard has to know before a lock is granted for it.
    pub(super) async fn note_ttl(&self, ttl: Duration) -> Result<()> {
        let ms = guarded_ms(ttl);
        let argument = i64::try_from(ms).unwrap_or(i64::MAX);
        self.ask(&self.statements.guard, &[(&argument, Type::INT8)]).await?;
        self.ttl_known_ms.fetch_max(ms, Ordering::AcqRel);
        Ok(())
    }

    /// Whether the guard knows a ttl that is as long.
    pub(super) fn is_ttl_known(&self, ttl: Duration) -> bool {
        self.ttl_known_ms.load(Ordering::Acquire) >= guarded_ms(ttl)
    }

    /// A session for a claim, opened if need be. `choose` puts the claim on it.
    pub(super) async fn seated(
        self: &Arc<Self>,
        timeout_ms: u64,
        mut choose: impl FnMut(&mut Book, usize) -> Pick,
        alone: bool,
    ) -> Result<(Shared, Option<u64>)> {
        let most = self.settings.connections;
        loop {
            match choose(&mut self.book(), most) {
                Pick::Seat(session, set) => return Ok((session, set)),
                Pick::Full => return Err(Error::Limit { what: TOO_MANY, limit: most }),
                Pick::Open => {}
            }
            if alone {
                self.open_session(timeout_ms).await?;
                continue;
            }
            // One opens, the others wait for what comes of it: a session takes many locks.
            let first = self.opening.try_lock().is_ok();
            let mut failed = self.opening.lock().await;
            match choose(&mut self.book(), most) {
                Pick::Seat(session, set) => return Ok((session, set)),
                Pick::Full => return Err(Error::Limit { what: TOO_MANY, limit: most }),
                Pick::Open => {}
            }
            if let Some(error) = failed.take().filter(|_| !first) {
                return Err(error);
            }
            if let Err(error) = self.open_session(timeout_ms).await {
                *failed = copy(&error);
                return Err(error);
            }
        }
    }

    /// A session's connection ended: what was on it is lost, and whoever waited asks again.
    pub(super) fn session_over(&self, id: u64) {
        let mut book = self.book();
        let held = book.seats.get(&id).filter(|seat| !seat.is_idle());
        let pid = held.map(|seat| seat.session.pid);
        let rung = book.lose_session(id);
        drop(book);
        if let Some(pid) = pid {
            let until = self.now() + GHOST_FOR;
            let mut ghosts = self.ghosts.lock().unwrap_or_else(PoisonError::into_inner);
            ghosts.retain(|(_, until)| *until > self.now());
            ghosts.push((pid, until));
        }
        rung.iter().for_each(|token| self.bell_registry.ring(token, Wake::Ask));
        self.lost.notify_one();
    }

    /// Ends a session from this side, and sees to it that the server ends it, too: it may not
    /// hear of it otherwise for a ttl.
    pub(super) fn condemn(self: &Arc<Self>, session: &Shared) {
        session.end();
        self.session_over(session.id);
        let (inner, pid, backend) = (Arc::clone(self), session.pid, session.backend);
        self.deck.run(async move {
            let statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 \
                             AND floor(extract(epoch FROM backend_start) * 1000000)::bigint = $2";
            let ended = inner.ask(statement, &[(&pid, Type::INT4), (&backend, Type::INT8)]).await;
            if let Err(error) = ended {
                tracing::debug!(%error, pid, "a session is left for the server to end");
            }
        });
    }

    /// The server processes of sessions of ours that ended a moment ago.
    pub(super) fn ghosts(&self) -> Vec<i32> {
        let now: Moment = self.now();
        let ghosts = self.ghosts.lock().unwrap_or_else(PoisonError::into_inner);
        ghosts.iter().filter(|(_, until)| *until > now).map(|(pid, _)| *pid).collect()
    }

    /// Ends a claim whose statement failed. It may have left the session with the lock, which a
    /// failure does not undo, so it is given back, or the session ends.
    pub(super) fn scrub(self: &Arc<Self>, key: &ClaimKey, session: &Shared) {
        let mut book = self.book();
        let Some(entry) = book.entry(key) else { return };
        let (on, shared, token) = (entry.on, entry.shared, entry.key.token);
        entry.place = Place::Leaving { session: session.id, why: Leave::Asked };
        let alone = book.claims.get(&token).is_none_or(|entry| book.sharers(entry) == 0);
        if session.is_over() || !alone {
            book.remove(&token);
            drop(book);
            return self.condemn(session);
        }
        drop(book);
        let (inner, session) = (Arc::clone(self), Arc::clone(session));
        self.deck.run(async move {
            let dropped = session.drop_lock(on, shared, None).await;
            inner.book().remove(&token);
            if !matches!(dropped, Ok(Ok(_))) {
                inner.condemn(&session);
            }
        });
    }
}

/// What a guard has to know of a ttl.
fn guarded_ms(ttl: Duration) -> u64 {
    ttl.min(GUARD_MAX).as_millis() as u64
}

/// The same error for somebody else who waited for the same attempt.
fn copy(error: &Error) -> Option<Error> {
    match error {
        Error::Store { .. }
        | Error::Unreachable { .. }
        | Error::Unsupported { .. }
        | Error::Config(_)
        | Error::Replaced { .. } => Some(error.clone()),
        _ => None,
    }
}
