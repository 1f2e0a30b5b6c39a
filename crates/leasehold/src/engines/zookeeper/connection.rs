//! A connection on which a server accepted a session: what is on its way there, what has come back,
//! and until when the ensemble keeps the session by it.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Result;

use super::session::{Asked, Reply, Trouble};
use super::settings::Servers;
use super::together::Bundle;
use super::wire::{FRAME_MAX, In, Out, XID_AUTH, XID_PING, code, op};

/// How long a server has to say that it ended a session.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// The part of the timeout after which the leader knows of what a server heard.
const RELAY_PART: u32 = 4;
/// The part of the timeout after which an idle session says that it is there.
const PING_PART: u32 = 16;
/// The longest silence, whatever the timeout: what is between may forget idle connections.
const PING_MAX: Duration = Duration::from_secs(10);
/// The part of the timeout that a server has for an answer: another is tried, and whoever holds a
/// lease learns that something is wrong, while there is time.
const ANSWER_PART: u32 = 5;
/// The part of the timeout between two instants that are remembered.
const TOUCH_PART: u32 = 64;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection on which the session was accepted.
pub(super) struct Connection {
    pub(super) stream: Box<dyn Stream>,
    pub(super) input: Vec<u8>,
    /// Requests without an answer, oldest first.
    pub(super) pending: VecDeque<Pending>,
    pub(super) xid: i32,
    /// What the session was taken up with, and what it was granted for.
    pub(super) asked: Duration,
    pub(super) timeout: Duration,
    /// When the session was taken up: the leader knows of that.
    pub(super) begun: Moment,
    /// When something was sent since, spaced out.
    pub(super) touches: VecDeque<Moment>,
    pub(super) last_sent: Moment,
    /// Since when a ping has no answer.
    pub(super) ping: Option<Moment>,
    /// How many transactions that may be several requests are on their way.
    pub(super) together: usize,
}

pub(super) struct Pending {
    pub(super) xid: i32,
    pub(super) sent: Moment,
    pub(super) safe_until: Moment,
    pub(super) by: Asker,
}

/// Who waits for an answer.
pub(super) enum Asker {
    One(oneshot::Sender<Result<Reply, Trouble>>),
    Several(Bundle),
}

impl Asker {
    pub(super) fn fail(self, trouble: &Trouble) {
        match self {
            // Whoever asked may not want to know any more.
            Asker::One(reply) => drop(reply.send(Err(trouble.clone()))),
            Asker::Several(bundle) => bundle.fail(trouble),
        }
    }
}

/// Why a connection is not used any more.
pub(super) enum Stop {
    Cut(String),
    Ended,
    Left,
}

impl Connection {
    pub(super) async fn log_in(&mut self, servers: &Servers, secret: &str) -> io::Result<()> {
        let login = servers.login.as_ref();
        let login = login.map(|login| format!("{}:{}", login.user, login.password.reveal()));
        for identity in login.iter().map(String::as_str).chain([secret]) {
            let mut out = Out::default();
            out.int(XID_AUTH).int(op::AUTH).int(0).text("digest").bytes(identity.as_bytes());
            self.stream.write_all(&framed(&out)).await?;
        }
        Ok(())
    }

    /// Puts a request among those that wait for an answer; returns it as it is sent.
    pub(super) fn frame(&mut self, asked: Asked, now: Moment) -> Vec<u8> {
        self.xid = self.xid.wrapping_add(1).max(1);
        let mut out = Out::default();
        out.int(self.xid).int(asked.request.code());
        asked.request.write(&mut out);
        // What a server says without asking the others proves nothing about them.
        let agreed = asked.request.is_agreed();
        let safe_until = if agreed { self.safe_until(now) } else { Moment::from_nanos(0) };
        let by = Asker::One(asked.reply);
        self.pending.push_back(Pending { xid: self.xid, sent: now, safe_until, by });
        framed(&out)
    }

    /// The same for a transaction of several requests.
    pub(super) fn frame_bundle(&mut self, bundle: Bundle, now: Moment) -> Vec<u8> {
        self.xid = self.xid.wrapping_add(1).max(1);
        let mut out = Out::default();
        out.int(self.xid).int(op::MULTI);
        bundle.write(&mut out);
        self.together += 1;
        let (safe_until, by) = (self.safe_until(now), Asker::Several(bundle));
        self.pending.push_back(Pending { xid: self.xid, sent: now, safe_until, by });
        framed(&out)
    }

    /// Until when the ensemble keeps the session if it agrees on something sent at `now`.
    fn safe_until(&self, now: Moment) -> Moment {
        let relayed = now - self.timeout / RELAY_PART;
        let touch = self.touches.iter().rev().find(|touch| **touch <= relayed);
        touch.copied().unwrap_or(self.begun).max(self.begun) + self.timeout
    }

    pub(super) async fn write(&mut self, out: &[u8], limit: Duration) -> Result<(), Stop> {
        let now = SystemClock.now();
        let spaced = self.timeout / TOUCH_PART;
        if self.touches.back().is_none_or(|last| now.since(*last) >= spaced) {
            self.touches.push_back(now);
        }
        let relayed = now - self.timeout / RELAY_PART;
        while self.touches.get(1).is_some_and(|second| *second <= relayed) {
            self.touches.pop_front();
        }
        self.last_sent = now;
        match timeout(limit, self.stream.write_all(out)).await {
            Ok(Ok(())) => match timeout(limit, self.stream.flush()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(cut(error)),
                Err(_) => Err(Stop::Cut("it does not read".into())),
            },
            Ok(Err(error)) => Err(cut(error)),
            Err(_) => Err(Stop::Cut("it does not read".into())),
        }
    }

    /// How long an answer may take before another server is tried.
    fn answer_limit(&self, answer: Duration) -> Duration {
        answer.min(self.timeout / ANSWER_PART)
    }

    /// How often a session that has nothing to ask says a word.
    fn ping_every(&self) -> Duration {
        (self.timeout / PING_PART).min(PING_MAX)
    }

    /// Since when something has no answer.
    fn silent_since(&self) -> Option<Moment> {
        let oldest = self.pending.front().map(|pending| pending.sent);
        oldest.into_iter().chain(self.ping).min()
    }

    /// When the clock is to be looked at.
    pub(super) fn due(&self, answer: Duration) -> Moment {
        let ping = self.last_sent + self.ping_every();
        match self.silent_since() {
            Some(since) => ping.min(since + self.answer_limit(answer)),
            None => ping,
        }
    }

    pub(super) async fn look_at_clock(&mut self, answer: Duration) -> Result<(), Stop> {
        let now = SystemClock.now();
        if self.silent_since().is_some_and(|since| now >= since + self.answer_limit(answer)) {
            return Err(Stop::Cut("it does not answer".into()));
        }
        if now >= self.last_sent + self.ping_every() {
            self.ping.get_or_insert(now);
            let mut out = Out::default();
            out.int(XID_PING).int(op::PING);
            return self.write(&framed(&out), answer).await;
        }
        Ok(())
    }

    /// Gives an answer to whoever asked. Returns until when the ensemble keeps the session by that,
    /// and what is to be sent again.
    pub(super) fn settle(
        &mut self,
        (xid, zxid): (i32, i64),
        error: i32,
        body: &[u8],
    ) -> Result<(Moment, Vec<Asked>), Stop> {
        let Some(pending) = self.pending.pop_front().filter(|pending| pending.xid == xid) else {
            return Err(Stop::Cut("it answers out of order".into()));
        };
        let ended = error == code::SESSION_EXPIRED;
        // An error may be one server's alone.
        let nothing = Moment::from_nanos(0);
        let proven = if error == code::OK { pending.safe_until } else { nothing };
        self.together -= usize::from(matches!(pending.by, Asker::Several(_)));
        let trouble = match ended {
            true => Some(Trouble::Ended),
            false if error == code::SESSION_MOVED => {
                Some(Trouble::Cut("another server has the session".into()))
            }
            false => None,
        };
        if let Some(trouble) = trouble {
            pending.by.fail(&trouble);
            return if ended { Err(Stop::Ended) } else { Ok((proven, Vec::new())) };
        }
        let safe_until = pending.safe_until;
        let reply = Reply { code: error, zxid, body: body.to_vec(), safe_until };
        let again = match pending.by {
            Asker::One(asker) => {
                // Whoever asked may not want to know any more.
                drop(asker.send(Ok(reply)));
                Vec::new()
            }
            Asker::Several(bundle) => {
                bundle.settle(reply).map_err(|odd| Stop::Cut(odd.to_string()))?
            }
        };
        Ok((proven, again))
    }

    /// Ends the session, and waits until the server hangs up or says that it has.
    pub(super) async fn say_goodbye(&mut self) -> Stop {
        let mut out = Out::default();
        out.int(i32::MAX).int(op::CLOSE);
        let limit = self.timeout / 3;
        if self.write(&framed(&out), limit).await.is_ok() {
            let told = async {
                while !matches!(self.stream.read_buf(&mut self.input).await, Ok(0) | Err(_)) {
                    let last = take_frame(&mut self.input).ok().flatten();
                    if last.is_some_and(|frame| In(&frame).int() == Ok(i32::MAX)) {
                        return;
                    }
                }
            };
            drop(timeout(limit.min(GOODBYE_MAX), told).await);
        }
        Stop::Ended
    }
}

pub(super) fn cut(error: io::Error) -> Stop {
    Stop::Cut(error.to_string())
}

pub(super) fn framed(out: &Out) -> Vec<u8> {
    let mut frame = Out::default();
    frame.bytes(&out.0);
    frame.0
}

/// Takes the first whole frame off what has come.
pub(super) fn take_frame(input: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
    let Some(length) = input.first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > FRAME_MAX {
        return Err("an answer is too long to be one of ZooKeeper".into());
    }
    if input.len() < 4 + length {
        return Ok(None);
    }
    let frame = input[4..4 + length].to_vec();
    input.drain(..4 + length);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(16);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos((1_000 + seconds) * 1_000_000_000)
    }

    fn connection(touches: &[u64]) -> Connection {
        let (stream, _server) = tokio::io::duplex(64);
        Connection {
            stream: Box::new(stream),
            input: Vec::new(),
            pending: VecDeque::new(),
            xid: 0,
            asked: TIMEOUT,
            timeout: TIMEOUT,
            begun: at(0),
            touches: touches.iter().map(|seconds| at(*seconds)).collect(),
            last_sent: at(0),
            ping: None,
            together: 0,
        }
    }

    #[test]
    fn only_what_the_leader_must_have_heard_counts() {
        // A quarter of the timeout is four seconds.
        let regular = connection(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(regular.safe_until(at(10)), at(6) + TIMEOUT);
        let paused = connection(&[1, 2, 12]);
        assert_eq!(paused.safe_until(at(12)), at(2) + TIMEOUT, "it was silent for ten seconds");
        assert_eq!(connection(&[]).safe_until(at(1)), at(0) + TIMEOUT, "it was taken up just now");
    }

    #[test]
    fn a_silent_server_is_left_and_an_idle_session_heard_while_there_is_time() {
        let seconds = Duration::from_secs;
        for (timeout, pings, answers) in [(2, 125, 400), (16, 1_000, 3_000), (400, 10_000, 3_000)] {
            let mut connection = connection(&[]);
            connection.timeout = seconds(timeout);
            let (pings, answers) = (Duration::from_millis(pings), Duration::from_millis(answers));
            assert_eq!(connection.ping_every(), pings);
            assert_eq!(connection.answer_limit(seconds(3)), answers);
            assert_eq!(connection.due(seconds(3)), at(0) + pings);
            connection.ping = Some(at(0));
            assert_eq!(connection.due(seconds(3)), at(0) + pings.min(answers));
            assert!(pings * 4 <= connection.timeout / 4 && answers * 5 <= connection.timeout);
        }
    }

    #[tokio::test]
    async fn instants_that_no_answer_can_need_are_forgotten() {
        let mut connection = connection(&[]);
        let (stream, mut server) = tokio::io::duplex(1 << 20);
        connection.stream = Box::new(stream);
        connection.timeout = Duration::from_millis(64);
        for _ in 0..200 {
            assert!(connection.write(b"x", TIMEOUT).await.is_ok());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let kept = connection.touches.len();
        assert!((2..=40).contains(&kept), "{kept} of 200");
        drop(server.shutdown().await);
    }

    #[test]
    fn frames_are_taken_whole_and_long_ones_refused() {
        let mut input = vec![0, 0, 0, 2, 7];
        assert_eq!(take_frame(&mut input), Ok(None));
        input.extend([8, 9]);
        assert_eq!(take_frame(&mut input), Ok(Some(vec![7, 8])));
        assert_eq!(input, [9]);
        assert!(take_frame(&mut vec![0x7f, 0xff, 0xff, 0xff, 0]).is_err());
    }
}
