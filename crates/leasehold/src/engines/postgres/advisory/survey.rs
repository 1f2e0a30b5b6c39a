//! What a session that takes locks says about itself, for `doctor`: how long it lives in silence,
//! and whether it is the server's own.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::rule::claim::Ttl;

use super::super::{failure, link};
use super::session::Shared;
use super::{Inner, book};

/// What was found out about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Survey {
    /// The server process that answers is the one that was told when the session began.
    pub(super) own: bool,
    /// After how long a silence the server ends it; zero for never.
    pub(super) idle: Duration,
    /// How often the server looks whether the client is still there while it waits; zero for never.
    pub(super) check: Duration,
    /// `None` over a socket file, which the system closes with either process.
    pub(super) keepalive: Option<Keepalive>,
}

/// How the server finds out that the other end is gone without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keepalive {
    pub(super) idle: Duration,
    interval: Duration,
    count: u32,
    user_timeout: Duration,
}

impl Keepalive {
    pub(super) fn new(idle: Duration, interval: Duration, count: u32, timeout: Duration) -> Self {
        Self { idle, interval, count, user_timeout: timeout }
    }

    /// After how long a silence the connection is given up. Where there is a limit for what was
    /// sent, it is in force for probes too, and the number of probes is not.
    pub(super) fn gives_up(&self) -> Duration {
        match self.user_timeout.is_zero() {
            true => self.idle + self.interval * self.count,
            false => self.user_timeout.max(self.idle),
        }
    }
}

/// A session that is asked. One that nobody uses is kept from being waited on meanwhile.
struct Asked<'a> {
    inner: &'a Inner,
    session: Shared,
    taken: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut book = self.inner.book();
        if let Some(seat) = book.seats.get_mut(&self.session.id).filter(|_| self.taken) {
            seat.blocked = false;
        }
    }
}

impl Inner {
    /// Asks a session that has locks, or else one that could take some.
    pub(super) async fn survey(self: &Arc<Self>) -> Result<Survey> {
        let asked = match self.to_ask() {
            Some(asked) => asked,
            None => {
                self.open_session(book::timeout_ms(Ttl::DEFAULT.get())).await?;
                let gone = || failure::broken(&self.settings.store, "no session to ask");
                self.to_ask().ok_or_else(gone)?
            }
        };
        let answer = asked.session.ask(include_str!("survey.sql")).await?;
        let rows = answer.map_err(|error| self.said(error))?;
        let row = link::one(&self.settings.store, rows)?;
        let millis = |column: usize| Duration::from_millis(row.get::<_, i64>(column).max(0) as u64);
        let count = u32::try_from(row.get::<_, i64>(6)).unwrap_or_default();
        let keepalive = Keepalive::new(millis(4), millis(5), count, millis(7));
        Ok(Survey {
            own: asked.session.process_told().await == Some(row.get(0)),
            idle: millis(2),
            check: millis(3),
            keepalive: row.get::<_, bool>(1).then_some(keepalive),
        })
    }

    fn to_ask(&self) -> Option<Asked<'_>> {
        let mut book = self.book();
        let usable = || book.seats.values().filter(|seat| !seat.blocked && !seat.session.is_over());
        let seat = usable().find(|seat| !seat.is_idle()).or_else(|| usable().next())?;
        let (session, taken) = (Arc::clone(&seat.session), seat.is_idle());
        if let Some(seat) = book.seats.get_mut(&session.id) {
            seat.blocked = taken;
        }
        Some(Asked { inner: self, session, taken })
    }
}
