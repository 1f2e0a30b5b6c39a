//! Claiming: trying on a session with other locks, or waiting on one of its own.
//!
//! A lock that is free costs one exchange. Whoever may wait and meets somebody sends the
//! statement that waits; where somebody met somebody within the last second, it is sent at once.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::Wake;
use crate::error::{Cycle, Error, Result};
use crate::rule::claim::{self, Claim, ClaimKey, Holder, Mode, Standing};

use super::super::failure;
use super::age::Age;
use super::book::{Entry, Leave, Pick, Place, Written, timeout_ms};
use super::keys::AdvisoryKey;
use super::session::{Answer, Grant, Shared};
use super::{Inner, RETRY_IN};

/// How long a claim that waits is given to be granted before it is answered that it waits.
const GRACE: Duration = Duration::from_millis(2);

/// How often a claim is put on another session because the one it was on ended.
const TIMES: usize = 4;

/// A lock that was waited for, as it counts.
#[derive(Clone, Copy)]
struct Dated {
    fence: u64,
    /// Since when the server keeps it.
    since: Moment,
    /// It counts from its reading, so that whoever waits need not be told since when.
    fresh: bool,
}

/// A lock that a session waits for.
struct Asked {
    place: claim::Place,
    on: AdvisoryKey,
    shared: bool,
    ttl: Duration,
}

/// A claim in PostgreSQL's words.
#[derive(Clone, Copy)]
struct Lock<'a> {
    claim: &'a Claim,
    on: AdvisoryKey,
    shared: bool,
}

impl Inner {
    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let on = self.keys.key(&claim.key.name)?;
        let shared = claim.mode == Mode::Shared;
        let lock = Lock { claim, on, shared };
        // What is seldom is in boxes: a future is moved about with all that it may ever need.
        let is_known = self.book().claims.contains_key(&claim.key.token);
        if is_known && let Some(standing) = Box::pin(self.known(lock)).await? {
            return Ok(standing);
        }
        if self.found.get().is_none() {
            // It could not be had when the store was opened.
            Box::pin(self.find()).await?;
        }
        if !self.is_ttl_known(claim.ttl) {
            Box::pin(self.note_ttl(claim.ttl)).await?;
        }
        let is_met = self.book().obstacle(on, shared).is_some();
        let by = if is_met { Box::pin(self.obstacle(lock)).await? } else { None };
        let contended = self.book().is_contended(on, self.now());
        if by.is_none() && !(claim.join && contended) {
            if let Some(held) = self.try_take(lock).await? {
                return Ok(held);
            }
            let now = self.now();
            self.book().contend(on, now);
        }
        match claim.join {
            true => Box::pin(self.wait_for(lock)).await,
            false => Ok(Standing::Out { ahead: 1, retry_in: RETRY_IN, by }),
        }
    }

    /// Takes a claim off its session again while no lock counts. Asked once there is a session:
    /// what a server says about its life is said to each.
    fn guard(&self, claim: &Claim, session: &Shared) -> Option<Standing> {
        let retry_in = self.guarded()? + Duration::from_millis(1);
        let mut book = self.book();
        book.remove(&claim.key.token);
        if let Some(seat) = book.seats.get_mut(&session.id) {
            // What it was to be set to was not sent.
            seat.timeout_ms = 0;
        }
        drop(book);
        Some(match claim.join {
            true => Standing::Queued { place: claim::Place::NONE, ahead: 0, retry_in },
            false => Standing::Out { ahead: 0, retry_in, by: None },
        })
    }

    /// Who of this client's own is in the way. Whoever is refused for it can rely on it: its
    /// session was just heard from.
    async fn obstacle(self: &Arc<Self>, lock: Lock<'_>) -> Result<Option<Holder>> {
        for _ in 0..TIMES {
            let (by, session) = {
                let book = self.book();
                let Some(entry) = book.obstacle(lock.on, lock.shared) else { return Ok(None) };
                let seat = entry.session().and_then(|session| book.seats.get(&session));
                (entry.holder.clone(), seat.map(|seat| Arc::clone(&seat.session)))
            };
            let Some(session) = session.filter(|_| !lock.claim.join) else { return Ok(Some(by)) };
            match session.beat(None).await? {
                Ok(()) => return Ok(Some(by)),
                Err(error) => {
                    tracing::debug!(%error, "a lock session ended");
                    self.condemn(&session);
                }
            }
        }
        Ok(None)
    }

    /// How a claim stands that was made before.
    async fn known(self: &Arc<Self>, lock: Lock<'_>) -> Result<Option<Standing>> {
        let key = &lock.claim.key;
        let (session, sent, on, shared) = {
            let mut book = self.book();
            let Some(entry) = book.entry(key) else { return Ok(None) };
            match &entry.place {
                Place::Held { fence, kept_until, .. } => {
                    let (fence, remaining) = (*fence, kept_until.since(self.now()));
                    self.bell_registry.forget(&key.token);
                    return Ok(Some(Standing::Held { fence, remaining }));
                }
                Place::Waiting { .. } => {
                    let place = entry.in_line();
                    return Ok(Some(Standing::Queued { place, ahead: 1, retry_in: RETRY_IN }));
                }
                Place::Failed(_) | Place::Gone => {
                    let entry = book.remove(&key.token);
                    self.bell_registry.forget(&key.token);
                    return match entry.map(|entry| entry.place) {
                        Some(Place::Failed(error)) => Err(error),
                        _ => Ok(None),
                    };
                }
                Place::Taking { session } | Place::Leaving { session, .. } => {
                    let (session, on, shared) = (*session, entry.on, entry.shared);
                    let sent = matches!(entry.place, Place::Leaving { .. });
                    entry.place = Place::Leaving { session, why: Leave::Asked };
                    let seat = book.seats.get(&session);
                    (seat.map(|seat| Arc::clone(&seat.session)), sent, on, shared)
                }
            }
        };
        // Its answer was not read. Whatever it was, it is undone, and the claim made anew.
        if let Some(session) = session {
            let settled = match sent {
                true => session.beat(None).await,
                false => session.drop_lock(on, shared, None).await.map(|said| said.map(|_| ())),
            };
            self.heard(&session, settled)?;
        }
        self.book().remove(&key.token);
        Ok(None)
    }

    /// Takes the lock if it is free; `None` if it is not.
    async fn try_take(self: &Arc<Self>, lock: Lock<'_>) -> Result<Option<Standing>> {
        let Lock { claim, on, shared } = lock;
        let timeout_ms = timeout_ms(claim.ttl);
        let mut last = None;
        for _ in 0..TIMES {
            let now = self.now();
            let choose = |book: &mut super::book::Book, most| {
                book.seat_for(Entry::new(claim, on, shared, now), timeout_ms, most)
            };
            let picked = choose(&mut self.book(), self.settings.connections);
            let (session, set) = match picked {
                Pick::Seat(session, set) => (session, set),
                _ => Box::pin(self.seated(timeout_ms, choose, false)).await?,
            };
            if let Some(guarded) = self.guard(claim, &session) {
                return Ok(Some(guarded));
            }
            session.attend();
            let sent = self.now();
            match session.take(on, shared, set).await {
                Ok(Ok(Some(fence))) => {
                    if self.hold(&claim.key, session.id, fence, sent) {
                        return Ok(Some(Standing::Held { fence, remaining: claim.ttl }));
                    }
                    let mut book = self.book();
                    let entry = book.entry(&claim.key);
                    if entry.is_none_or(|entry| !matches!(entry.place, Place::Gone)) {
                        // It was given back before its answer came.
                        let retry_in = RETRY_IN;
                        return Ok(Some(Standing::Out { ahead: 0, retry_in, by: None }));
                    }
                    book.remove(&claim.key.token);
                }
                Ok(Ok(None)) => {
                    self.book().remove(&claim.key.token);
                    return Ok(None);
                }
                Ok(Err(error)) if failure::ends_connection(&error) => {
                    // Nothing is left of it, so nothing is in the way of another session.
                    self.condemn(&session);
                    self.book().remove(&claim.key.token);
                    last = Some(self.said(error));
                }
                Ok(Err(error)) => {
                    self.scrub(&claim.key, &session);
                    return Err(self.said(error));
                }
                Err(error) => {
                    self.suspect(&session);
                    return Err(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::task_ended(&self.settings.store)))
    }

    /// A session did not answer. If nothing else is on it, it ends; else its leases have their
    /// time, and what was sent is carried out when it is heard from again.
    pub(super) fn suspect(self: &Arc<Self>, session: &Shared) {
        let alone = {
            let book = self.book();
            let mut on = book.claims.values().filter(|e| e.session() == Some(session.id));
            !on.any(|entry| matches!(entry.place, Place::Held { .. }))
        };
        if alone {
            self.condemn(session);
        }
    }

    /// Reads the answer to giving back. A session that cannot do it ends, which does it.
    pub(super) fn heard(self: &Arc<Self>, session: &Shared, settled: Answer<()>) -> Result<()> {
        match settled {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "giving back failed; its session ends");
                self.condemn(session);
                Ok(())
            }
            Err(error) => {
                self.suspect(session);
                Err(error)
            }
        }
    }

    /// Enters a grant that the server keeps since then; `false` if the claim was given up in the
    /// meantime, or its session ended.
    fn hold(&self, key: &ClaimKey, session: u64, fence: u64, since: Moment) -> bool {
        let now = self.now();
        let mut book = self.book();
        let Some(entry) = book.entry(key).filter(|entry| entry.session() == Some(session)) else {
            return false;
        };
        let waited = match entry.place {
            Place::Taking { .. } => false,
            Place::Waiting { leaving: false, .. } => true,
            _ => return false,
        };
        entry.since = now;
        let kept_until = since + entry.ttl;
        // A wait may be read of so late that the server would end its session before.
        let expires = if waited { kept_until } else { now + entry.ttl };
        entry.place = Place::Held { session, fence, kept_until, expires };
        if let Some(seat) = book.seats.get_mut(&session).filter(|_| waited) {
            seat.blocked = false;
        }
        drop(book);
        self.lapse.expect(expires);
        self.scribe.notice();
        true
    }

    /// Waits on a session of its own. Answers a grant that comes at once, else that it waits.
    async fn wait_for(self: &Arc<Self>, lock: Lock<'_>) -> Result<Standing> {
        let Lock { claim, on, shared } = lock;
        let (timeout_ms, token) = (timeout_ms(claim.ttl), claim.key.token);
        let now = self.now();
        let choose = |book: &mut super::book::Book, most| {
            book.seat_to_wait(Entry::new(claim, on, shared, now), timeout_ms, most)
        };
        let (session, set) = self.seated(timeout_ms, choose, true).await?;
        let place = self.book().entry(&claim.key).map_or(claim::Place::NONE, |e| e.in_line());
        let queued = |retry_in| Standing::Queued { place, ahead: 1, retry_in };
        if let Some(guarded) = self.guard(claim, &session) {
            return Ok(guarded);
        }
        self.bell_registry.register(token);
        self.scribe.notice();
        self.rounds.begin();
        session.attend();
        let waited = Arc::clone(&session);
        // Its statement is sent right here, so that nobody who asks later comes before it.
        let asked = Asked { place, on, shared, ttl: claim.ttl };
        session.along(Arc::clone(self).wait_on(claim.key.clone(), waited, asked, set));
        let Some(bell) = self.bell_registry.bell(&token) else {
            return Ok(queued(RETRY_IN));
        };
        match tokio::time::timeout(GRACE, session.meanwhile(bell.heard())).await {
            Ok(Wake::Holds { .. } | Wake::Ask) => {
                let standing = self.known(lock).await?;
                Ok(standing.unwrap_or(queued(Duration::ZERO)))
            }
            Err(_) => Ok(queued(RETRY_IN)),
        }
    }

    /// The wait itself, along with its session's connection.
    async fn wait_on(
        self: Arc<Self>,
        key: ClaimKey,
        session: Shared,
        Asked { place, on, shared, ttl }: Asked,
        set: Option<u64>,
    ) {
        let sent = self.now();
        let answer = session.wait(on, shared, set).await;
        let answer = match answer {
            Ok(Ok(Some(grant))) => self.dated(&session, sent, grant, ttl).await,
            answer => answer.map(|said| said.map(|_| None)),
        };
        match answer {
            Ok(Ok(Some(Dated { fence, since, fresh })))
                if self.hold(&key, session.id, fence, since) =>
            {
                // A bell does not say since when, so the waiter asks about an older grant.
                let wake = if fresh { Wake::Holds { place, fence } } else { Wake::Ask };
                self.bell_registry.ring(&key.token, wake);
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
                    Ok(Err(error)) if !leaving => Some(self.refusal(&key, error)),
                    _ => None,
                };
                self.end_wait(&key, &session, error);
            }
        }
    }

    /// Since when a grant counts that was just read. If only its session can tell, that is asked,
    /// which lets the server's patience begin anew.
    async fn dated(
        &self,
        session: &Shared,
        sent: Moment,
        Grant { fence, waited }: Grant,
        ttl: Duration,
    ) -> Answer<Option<Dated>> {
        let read = self.now();
        let (since, fresh) = match Age::of(sent, waited, read, ttl) {
            Age::Fresh => (read, true),
            Age::Since(granted) => (granted, false),
            Age::Doubtful => {
                tracing::debug!(?waited, "a grant looks old; its session is asked");
                match Box::pin(session.beat(None)).await? {
                    Ok(()) => (read, false),
                    Err(error) => return Ok(Err(error)),
                }
            }
        };
        Ok(Ok(Some(Dated { fence, since, fresh })))
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
        self.bell_registry.ring(&key.token, Wake::Ask);
    }

    fn refusal(&self, key: &ClaimKey, error: tokio_postgres::Error) -> Error {
        match failure::code(&error) {
            Some("40P01") => Error::Deadlock { name: key.name.clone(), cycle: Cycle(Vec::new()) },
            _ => self.said(error),
        }
    }
}
