//! What drives a session: the connection to one server, then to the next.
//!
//! Everything here runs on the sessions' own thread. What a session is to its users is in
//! `session.rs`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Result;

use super::lock;
use super::session::{Asked, Listener, Reply, Shared, Trouble, Wish};
use super::settings::Servers;
use super::together::{Bundle, Keep, WIDTH};
use super::wire::{FRAME_MAX, Hello, In, Out, XID_AUTH, XID_EVENT, XID_PING};
use super::wire::{code, op, read_event};

/// Requests written at once.
const BATCH_MAX: usize = 256;
/// The pause before a connection that broke is made again: whoever took the session up for a
/// moment is done by then.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest pause between rounds of all servers.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many timeouts a session tries to come back.
const GIVE_UP_AFTER: u32 = 2;
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

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection on which the session was accepted.
struct Connection {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    /// Requests without an answer, oldest first.
    pending: VecDeque<Pending>,
    xid: i32,
    timeout: Duration,
    /// When the session was taken up: the leader knows of that.
    begun: Moment,
    /// When something was sent since, spaced out.
    touches: VecDeque<Moment>,
    last_sent: Moment,
    /// Since when a ping has no answer.
    ping: Option<Moment>,
    /// How many transactions that may be several requests are on their way.
    together: usize,
}

struct Pending {
    xid: i32,
    sent: Moment,
    safe_until: Moment,
    by: Asker,
}

/// Who waits for an answer.
enum Asker {
    One(oneshot::Sender<Result<Reply, Trouble>>),
    Several(Bundle),
}

impl Asker {
    fn fail(self, trouble: &Trouble) {
        match self {
            // Whoever asked may not want to know any more.
            Asker::One(reply) => drop(reply.send(Err(trouble.clone()))),
            Asker::Several(bundle) => bundle.fail(trouble),
        }
    }
}

/// Why a connection is not used any more.
enum Stop {
    Cut(String),
    Ended,
    Left,
}

/// Keeps a session connected.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: mpsc::Receiver<Asked>,
    /// What was taken from it and is not sent yet.
    pub(super) keep: Keep,
    /// An identity of this session's own: only it may write its nodes.
    pub(super) secret: String,
    /// The latest transaction that an answer told of.
    pub(super) seen: i64,
    /// Whether it does not come back after its connection broke.
    pub(super) once: bool,
}

impl Driver {
    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_FIRST;
        let mut closing: Option<Moment> = None;
        let mut cut_since: Option<Moment> = None;
        loop {
            let stop = match self.connect().await {
                Ok(connection) => {
                    (pause, cut_since) = (PAUSE_FIRST, None);
                    self.serve(connection).await
                }
                Err(stop) => stop,
            };
            match self.or_given_up(stop, &mut cut_since) {
                Stop::Cut(cause) => {
                    tracing::debug!(cause, "a ZooKeeper session lost its connection");
                    let ended = self.once;
                    self.shared.status.send_modify(|status| {
                        (status.connected, status.cause) = (false, cause);
                        status.ended |= ended;
                    });
                    if ended {
                        return;
                    }
                }
                Stop::Ended | Stop::Left => {
                    self.shared.status.send_modify(|status| {
                        (status.connected, status.ended) = (false, true);
                        status.cause.clear();
                    });
                    let id = self.shared.status.borrow().id;
                    self.tell(|listener| listener.back(id));
                    return;
                }
            }
            let jittered = pause.mul_f64(rand::random_range(0.5..1.0));
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                () = self.shared.changed.notified() => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
            if lock(&self.shared.control).wish != Wish::Live {
                // Where the ensemble cannot be told, it ends the session by itself.
                let until = *closing
                    .get_or_insert_with(|| SystemClock.now() + self.shared.status.borrow().timeout);
                if !self.can_close() || SystemClock.now() >= until {
                    self.shared.status.send_modify(|status| status.ended = true);
                    return;
                }
            }
        }
    }

    /// A session that was cut off for long enough is over, whatever the ensemble thinks of it: its
    /// leases were lost before. One that was set back would never let it in again, because servers
    /// refuse whoever has seen more than they have.
    fn or_given_up(&self, stop: Stop, cut_since: &mut Option<Moment>) -> Stop {
        let Stop::Cut(_) = &stop else { return stop };
        let now = SystemClock.now();
        let cut_for = now.since(*cut_since.get_or_insert(now));
        let status = self.shared.status.borrow();
        match status.times > 0 && cut_for >= status.timeout * GIVE_UP_AFTER {
            true => Stop::Ended,
            false => stop,
        }
    }

    /// Whether there is still something to tell the ensemble.
    fn can_close(&self) -> bool {
        lock(&self.shared.control).wish == Wish::Close && self.shared.status.borrow().times > 0
    }

    /// Tries every server once.
    async fn connect(&mut self) -> Result<Connection, Stop> {
        let servers = Arc::clone(&self.shared.servers);
        let mut hosts: Vec<_> = servers.hosts.iter().collect();
        hosts.shuffle(&mut rand::rng());
        let mut cause = String::new();
        for host in hosts {
            let attempt = self.connect_to(&servers, &host.name, host.port);
            match timeout(servers.connect, attempt).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(Stop::Cut(why))) => cause = format!("{host}: {why}"),
                Ok(Err(stop)) => return Err(stop),
                Err(_) => cause = format!("{host}: no connection in time"),
            }
        }
        Err(Stop::Cut(cause))
    }

    async fn connect_to(
        &mut self,
        servers: &Servers,
        host: &str,
        port: u16,
    ) -> Result<Connection, Stop> {
        let stream = TcpStream::connect((host, port)).await.map_err(cut)?;
        stream.set_nodelay(true).map_err(cut)?;
        let mut stream: Box<dyn Stream> = match &servers.tls {
            None => Box::new(stream),
            Some(tls) => Box::new(tls.connect(host, stream).await.map_err(cut)?),
        };
        let wanted = lock(&self.shared.control).timeout;
        let timeout_ms = i32::try_from(wanted.as_millis()).unwrap_or(i32::MAX);
        let hello = {
            let status = self.shared.status.borrow();
            let password = status.password.clone();
            Hello { seen: self.seen, timeout_ms, session: status.id, password }
        };
        let mut out = Out::default();
        hello.write(&mut out);
        let begun = SystemClock.now();
        stream.write_all(&framed(&out)).await.map_err(cut)?;
        let mut input = Vec::new();
        let welcome = loop {
            if let Some(frame) = take_frame(&mut input).map_err(Stop::Cut)? {
                break Hello::read(&frame).map_err(|odd| Stop::Cut(odd.to_string()))?;
            }
            if stream.read_buf(&mut input).await.map_err(cut)? == 0 {
                return Err(Stop::Cut("it hung up".into()));
            }
        };
        if welcome.timeout_ms <= 0 || welcome.session == 0 {
            return Err(Stop::Ended);
        }
        let timeout = Duration::from_millis(u64::try_from(welcome.timeout_ms).unwrap_or(0));
        let mut connection = Connection {
            stream,
            input,
            pending: VecDeque::new(),
            xid: 0,
            timeout,
            begun,
            touches: VecDeque::new(),
            last_sent: begun,
            ping: None,
            together: 0,
        };
        connection.log_in(servers, &self.secret).await.map_err(cut)?;
        self.shared.status.send_modify(|status| {
            (status.id, status.password) = (welcome.session, welcome.password.clone());
            (status.timeout, status.connected) = (timeout, true);
            status.times += 1;
            status.cause.clear();
        });
        let id = self.shared.status.borrow().id;
        self.tell(|listener| listener.back(id));
        Ok(connection)
    }

    fn tell(&self, word: impl FnOnce(&dyn Listener)) {
        let listener = lock(&self.shared.listener).as_ref().and_then(std::sync::Weak::upgrade);
        if let Some(listener) = listener {
            word(&*listener);
        }
    }

    async fn serve(&mut self, mut connection: Connection) -> Stop {
        let granted_for = lock(&self.shared.control).timeout;
        let stop = loop {
            let (wish, wanted) = {
                let control = lock(&self.shared.control);
                (control.wish, control.timeout)
            };
            let draining = wanted != granted_for || wish != Wish::Live;
            if draining && connection.pending.is_empty() {
                break match wish {
                    Wish::Live => Stop::Cut("it is taken up anew".into()),
                    Wish::Leave => Stop::Left,
                    Wish::Close => connection.say_goodbye().await,
                };
            }
            // There may be room for what is kept now, or a connection.
            if !draining
                && !self.keep.is_empty()
                && let Err(stop) = self.send_on(&mut connection, None).await
            {
                break stop;
            }
            let due = connection.due(self.shared.servers.answer);
            let Connection { stream, input, .. } = &mut connection;
            tokio::select! {
                biased;
                read = stream.read_buf(input) => match read {
                    Ok(0) => break Stop::Cut("the server hung up".into()),
                    Ok(_) => if let Err(stop) = self.take_in(&mut connection) {
                        break stop;
                    },
                    Err(error) => break cut(error),
                },
                asked = self.queue.recv(), if !draining => {
                    let Some(asked) = asked else {
                        lock(&self.shared.control).wish = Wish::Leave;
                        continue;
                    };
                    if let Err(stop) = self.send_on(&mut connection, Some(asked)).await {
                        break stop;
                    }
                }
                () = self.shared.changed.notified() => {}
                () = SystemClock.sleep_until(due) => {
                    if let Err(stop) = connection.look_at_clock(self.shared.servers.answer).await {
                        break stop;
                    }
                }
            }
        };
        let trouble = match &stop {
            Stop::Cut(cause) => Trouble::Cut(cause.clone()),
            Stop::Ended | Stop::Left => Trouble::Ended,
        };
        connection.pending.into_iter().for_each(|pending| pending.by.fail(&trouble));
        stop
    }

    /// Sends what is kept, and a request with those that wait behind it.
    async fn send_on(
        &mut self,
        connection: &mut Connection,
        first: Option<Asked>,
    ) -> Result<(), Stop> {
        let mut out = Vec::new();
        let now = SystemClock.now();
        let mut next = first;
        let mut room = BATCH_MAX;
        while let Some(asked) = next {
            if let Some(asked) = self.keep.keep(asked) {
                for bundle in self.keep.before(&asked.request) {
                    out.extend(connection.frame_bundle(bundle, now));
                }
                // Whoever gave up must not be served later: nobody would know.
                if !asked.reply.is_closed() {
                    out.extend(connection.frame(asked, now));
                }
            }
            room -= 1;
            next = if room > 0 { self.queue.try_recv().ok() } else { None };
        }
        while let Some(bundle) = self.keep.next(connection.together < WIDTH) {
            out.extend(connection.frame_bundle(bundle, now));
        }
        match out.is_empty() {
            true => Ok(()),
            false => connection.write(&out, self.shared.servers.answer).await,
        }
    }

    /// Reads whatever has come.
    fn take_in(&mut self, connection: &mut Connection) -> Result<(), Stop> {
        while let Some(frame) = take_frame(&mut connection.input).map_err(Stop::Cut)? {
            let odd = |_| Stop::Cut("it does not answer as a ZooKeeper server does".into());
            let mut header = In(&frame);
            let xid = header.int().map_err(odd)?;
            let zxid = header.long().map_err(odd)?;
            let error = header.int().map_err(odd)?;
            let body = header.0;
            self.seen = self.seen.max(zxid);
            match xid {
                XID_PING => connection.ping = None,
                XID_AUTH if error != code::OK => {
                    return Err(Stop::Cut("it refused the user and password".into()));
                }
                XID_AUTH => {}
                XID_EVENT => {
                    let (change, path) = read_event(body).map_err(odd)?;
                    self.tell(|listener| listener.heard(change, &path));
                }
                _ => {
                    let (safe_until, again) = connection.settle((xid, zxid), error, body)?;
                    self.keep.keep_alone(again);
                    self.shared.proven.fetch_max(safe_until.as_nanos(), Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }
}

impl Connection {
    async fn log_in(&mut self, servers: &Servers, secret: &str) -> io::Result<()> {
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
    fn frame(&mut self, asked: Asked, now: Moment) -> Vec<u8> {
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
    fn frame_bundle(&mut self, bundle: Bundle, now: Moment) -> Vec<u8> {
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

    async fn write(&mut self, out: &[u8], limit: Duration) -> Result<(), Stop> {
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
    fn due(&self, answer: Duration) -> Moment {
        let ping = self.last_sent + self.ping_every();
        match self.silent_since() {
            Some(since) => ping.min(since + self.answer_limit(answer)),
            None => ping,
        }
    }

    async fn look_at_clock(&mut self, answer: Duration) -> Result<(), Stop> {
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
    fn settle(
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
    async fn say_goodbye(&mut self) -> Stop {
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
            drop(timeout(limit.min(PAUSE_MAX), told).await);
        }
        Stop::Ended
    }
}

fn cut(error: io::Error) -> Stop {
    Stop::Cut(error.to_string())
}

fn framed(out: &Out) -> Vec<u8> {
    let mut frame = Out::default();
    frame.bytes(&out.0);
    frame.0
}

/// Takes the first whole frame off what has come.
fn take_frame(input: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
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
