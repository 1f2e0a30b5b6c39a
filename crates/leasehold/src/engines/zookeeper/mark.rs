//! The mark of a session: a node of its own, in which its client says what others must know of it.
//!
//! A session that is taken up lasts for as long as whoever took it up asked for, from then on, and
//! with it every lease that is on it. So nobody asks for less than the others count on. What its
//! client counted on when it made a claim stands with the claim; if that grew since, it stands here
//! before anybody counts on it. Only what was left for one claim alone may be made shorter.
//!
//! It is written with each renewal, too: by that others see when it was.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;

use super::Inner;
use super::read::make;
use super::session::{Reply, Sent, Session};
use super::wire::{Request, Sort, code};

/// What a mark begins with if nobody is on the session any more, and if it grew.
const LEFT: &str = "left ";
const GREW: &str = "grew ";
/// Up to how many claims of a session that somebody is on are counted.
const COUNTED_MAX: usize = 2;
/// How often a mark is made that others take away.
const ROUNDS_MAX: usize = 16;

/// What stands in a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    state: State,
    /// How many claims are on it: all, if it was left; two if there are more, if it was not.
    claims: usize,
    /// What its leases count on.
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its client is on it, and it is as long as it was at first.
    Lives,
    /// The same, but it is longer: claims of before know that from here alone.
    Grew,
    /// Its client is gone, and left it to its timeout.
    Left,
}

/// A mark as it was read.
#[derive(Debug)]
pub(super) struct Seen {
    mark: Mark,
    version: i32,
}

pub(super) fn path(inner: &Inner, session: i64) -> String {
    inner.layout.own(&format!("session-{session:016x}"))
}

impl Mark {
    fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            State::Lives => "",
            State::Grew => GREW,
            State::Left => LEFT,
        };
        format!("{state}{} {}", self.claims, self.timeout.as_millis()).into_bytes()
    }

    /// What is not a mark says nothing.
    fn decode(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let (state, rest) = match (text.strip_prefix(LEFT), text.strip_prefix(GREW)) {
            (Some(rest), _) => (State::Left, rest),
            (_, Some(rest)) => (State::Grew, rest),
            (None, None) => (State::Lives, text),
        };
        let (claims, timeout) = rest.split_once(' ')?;
        let timeout = Duration::from_millis(timeout.parse().ok()?);
        Some(Self { state, claims: claims.parse().ok()?, timeout })
    }

    /// Of a session that its client is on.
    fn lived_on(inner: &Inner, session: &Session) -> Self {
        let claims = inner.book.claims_on(session.id(), COUNTED_MAX);
        let state = if session.has_grown() { State::Grew } else { State::Lives };
        Self { state, claims, timeout: session.timeout() }
    }

    /// Whether nobody else minds what becomes of the session.
    fn is_of_one_alone(&self) -> bool {
        self.state == State::Left && self.claims <= 1
    }

    /// Whether nobody needs it when claims end whose clients counted on these timeouts. A client
    /// that lives counts no further than two; and what it counted may be another claim than one
    /// that ends, which then was made since, and knows by itself how long the session is.
    fn goes_with(&self, ended: &[Duration]) -> bool {
        match self.state {
            State::Left => self.claims <= ended.len(),
            State::Lives => self.claims <= 1,
            State::Grew => self.claims <= 1 && ended.iter().any(|known| *known < self.timeout),
        }
    }
}

impl Seen {
    /// What is written by whoever takes up a session that was left: the next one must know for how
    /// long that was. `None` if it says so already.
    pub(super) fn retimed(&self, inner: &Inner, session: &Session) -> Option<Request> {
        let mark = Mark { timeout: session.timeout(), ..self.mark.clone() };
        let differs = self.mark.state == State::Left && mark != self.mark;
        let (path, data) = (path(inner, session.id()), mark.encode());
        differs.then_some(Request::SetData { path, data, version: self.version })
    }
}

/// For how long a session is to be taken up by whoever wants it to last for so long, or as it is,
/// when the client that made the claim counted on `timeout`.
pub(super) fn span(seen: Option<&Seen>, timeout: Duration, wanted: Option<Duration>) -> Duration {
    match seen.map(|seen| &seen.mark) {
        Some(mark) if mark.is_of_one_alone() => wanted.unwrap_or(mark.timeout),
        Some(mark) => wanted.unwrap_or_default().max(timeout).max(mark.timeout),
        None => wanted.unwrap_or_default().max(timeout),
    }
}

pub(super) async fn read(inner: &Inner, reader: &Session, session: i64) -> Result<Option<Seen>> {
    read_answer(inner, &ask(inner, reader, session).await?.answer().await?)
}

/// Asks for a mark, so that something else can be on its way meanwhile.
pub(super) async fn ask<'a>(inner: &Inner, reader: &'a Session, session: i64) -> Result<Sent<'a>> {
    reader.send(Request::GetData { path: path(inner, session) }).await
}

pub(super) fn read_answer(inner: &Inner, reply: &Reply) -> Result<Option<Seen>> {
    let read = inner.data_of(reply)?;
    Ok(read
        .and_then(|(data, stat)| Some(Seen { mark: Mark::decode(&data)?, version: stat.version })))
}

/// What a client writes with a renewal, if the mark is there.
pub(super) fn written(inner: &Inner, session: &Session) -> Request {
    let (path, data) = (path(inner, session.id()), Mark::lived_on(inner, session).encode());
    Request::SetData { path, data, version: -1 }
}

/// Makes the mark of a session that this client is on.
pub(super) async fn begin(inner: &Inner, session: &Session) -> Result<()> {
    let (login, store) = (inner.has_login(), &inner.info.store);
    let (path, data) = (path(inner, session.id()), Mark::lived_on(inner, session).encode());
    make(session, path, Sort::Ephemeral, data, login, store).await
}

/// Writes a mark, which is made if it is not there.
async fn write(inner: &Inner, session: &Session, written: impl Fn() -> Request) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        match session.ask(written()).await?.code {
            code::OK => return Ok(()),
            code::NO_NODE => begin(inner, session).await?,
            error => return Err(inner.refusal(error)),
        }
    }
    Err(inner.busy())
}

/// Says how long a session lasts by now, if that was not said, before anybody counts on it.
pub(super) async fn tell_longer(inner: &Inner, session: &Session) -> Result<()> {
    let timeout = session.timeout();
    if !session.has_told(timeout) {
        write(inner, session, || written(inner, session)).await?;
        session.note_told(timeout);
    }
    Ok(())
}

/// Says that a session is left with what is on it.
pub(super) async fn leave(inner: &Inner, session: &Session) -> Result<()> {
    let claims = inner.book.claims_on(session.id(), usize::MAX);
    let mark = Mark { state: State::Left, claims, timeout: session.timeout() };
    let path = path(inner, session.id());
    let written = || Request::SetData { path: path.clone(), data: mark.encode(), version: -1 };
    write(inner, session, written).await
}

/// What is done to the mark of a session when others end claims of it, whose clients counted on
/// these timeouts: with the last one it goes.
pub(super) async fn without(
    inner: &Inner,
    reader: &Session,
    session: i64,
    ended: &[Duration],
) -> Result<Vec<Request>> {
    let Some(Seen { mark, version }) = read(inner, reader, session).await? else {
        return Ok(Vec::new());
    };
    let path = path(inner, session);
    Ok(match mark.state {
        _ if mark.goes_with(ended) => {
            vec![Request::CheckVersion { path: path.clone(), version }, Request::Delete { path }]
        }
        State::Left => {
            let data = Mark { claims: mark.claims - ended.len(), ..mark }.encode();
            vec![Request::SetData { path, data, version }]
        }
        State::Lives | State::Grew => Vec::new(),
    })
}

impl Inner {
    /// The session for claims that live for `ttl`. Others know how long it lasts.
    pub(super) async fn session(&self, ttl: Duration) -> Result<Arc<Session>> {
        let session = self.pool.session(ttl).await?;
        tell_longer(self, &session).await?;
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const SECOND: Duration = Duration::from_secs(1);

    fn seen(left: bool, claims: usize, timeout: Duration) -> Seen {
        let state = if left { State::Left } else { State::Lives };
        Seen { mark: Mark { state, claims, timeout }, version: 0 }
    }

    #[test]
    fn a_mark_survives_the_store_and_nothing_else_is_one() {
        for state in [State::Lives, State::Grew, State::Left] {
            let mark = Mark { state, claims: 3, timeout: HOUR };
            assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        }
        for data in [&b""[..], b"one", b"left", b"left 1", b"1 x", b"x 1", b"\xff 1"] {
            assert_eq!(Mark::decode(data), None, "{data:?}");
        }
    }

    #[test]
    fn a_session_is_made_shorter_only_if_it_was_left_for_one_claim() {
        let free = seen(true, 1, HOUR);
        assert_eq!(span(Some(&free), HOUR, Some(SECOND)), SECOND);
        for bound in [seen(true, 2, HOUR), seen(false, 1, HOUR), seen(false, 2, HOUR)] {
            assert_eq!(span(Some(&bound), SECOND, Some(SECOND)), HOUR, "{bound:?}");
            assert_eq!(span(Some(&bound), HOUR * 2, Some(SECOND)), HOUR * 2, "{bound:?}");
            let longer = Some(HOUR * 2);
            assert_eq!(span(Some(&bound), SECOND, longer), HOUR * 2, "{bound:?}");
        }
        assert_eq!(span(None, HOUR, Some(SECOND)), HOUR);
        assert_eq!(span(None, SECOND, Some(HOUR)), HOUR);
    }

    #[test]
    fn a_mark_goes_with_the_last_claim_that_needs_it() {
        let mark = |state, claims| Mark { state, claims, timeout: HOUR };
        assert!(mark(State::Left, 2).goes_with(&[HOUR, HOUR]));
        assert!(!mark(State::Left, 2).goes_with(&[HOUR]));
        assert!(mark(State::Lives, 1).goes_with(&[HOUR]));
        assert!(!mark(State::Lives, 2).goes_with(&[HOUR, HOUR]), "there may be more");
        assert!(mark(State::Grew, 1).goes_with(&[SECOND]), "it was what was counted");
        assert!(!mark(State::Grew, 1).goes_with(&[HOUR]), "it was made since");
        assert!(!mark(State::Grew, 2).goes_with(&[SECOND, HOUR]));
    }

    #[test]
    fn whoever_wants_no_other_ttl_leaves_the_session_as_long_as_it_is() {
        assert_eq!(span(Some(&seen(true, 1, SECOND)), HOUR, None), SECOND);
        assert_eq!(span(Some(&seen(true, 2, HOUR)), SECOND, None), HOUR);
        assert_eq!(span(Some(&seen(false, 1, SECOND)), HOUR, None), HOUR);
        assert_eq!(span(None, HOUR, None), HOUR);
    }
}
