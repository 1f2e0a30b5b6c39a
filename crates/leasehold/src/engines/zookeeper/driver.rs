//! What drives a session: the connection to one server, then to the next.
//!
//! Everything here is one task of the sessions' own thread, which callers push on. What a session
//! is to its users is in `session.rs`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::kit::socket::Socket;
use crate::error::Result;

use super::connection::{Connection, Stop, Stream, cut, framed, take_frame};
use super::lock;
use super::session::{Asked, Listener, Shared, Trouble, Wish};
use super::settings::Servers;
use super::together::{Keep, WIDTH, tell};
use super::wire::{Hello, In, Out, XID_AUTH, XID_EVENT, XID_PING, code, read_event};

/// Requests written at once.
const BATCH_MAX: usize = 256;
/// The pause before a connection that broke is made again: whoever took the session up for a
/// moment is done by then.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// How long a connection must last for the next pause to be the first again. Whoever takes the
/// session up from far away needs longer, and tries again when it was taken back too soon.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// The longest pause of a session whose connections are made, but do not last.
const PAUSE_UNSETTLED_MAX: Duration = Duration::from_millis(500);
/// The part of the timeout that such a pause is at most: what is asked meanwhile waits for longer.
const PAUSE_UNSETTLED_PART: u32 = 12;
/// The longest pause between rounds of all servers.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many timeouts a session tries to come back.
const GIVE_UP_AFTER: u32 = 2;

/// A server that ends a connection before it says anything, as it does beyond its limit.
const HUNG_UP: &str = "it hung up at once; if this machine has many connections to it, raise \
                       `maxClientCnxns` on the servers";

/// The pause after a connection that lasted so long, where `next` would be the one without it.
fn pause_after(lasted: Duration, next: Duration, timeout: Duration) -> Duration {
    match lasted >= SETTLED_AFTER {
        true => PAUSE_FIRST,
        false => next.min(PAUSE_UNSETTLED_MAX).min(timeout / PAUSE_UNSETTLED_PART),
    }
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
                    let begun = SystemClock.now();
                    let stop = self.serve(connection).await;
                    let lasted = SystemClock.now().since(begun);
                    pause = pause_after(lasted, pause, self.shared.status.borrow().timeout);
                    cut_since = None;
                    stop
                }
                Err(stop) => stop,
            };
            match self.or_given_up(stop, &mut cut_since) {
                Stop::Cut(cause) => {
                    tracing::debug!(cause, "a ZooKeeper session lost its connection");
                    let ended = self.once;
                    self.keep.give_up_bound(&Trouble::Cut(cause.clone()));
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
        let gives_up = {
            let status = self.shared.status.borrow();
            status.times > 0 && cut_for >= status.timeout * GIVE_UP_AFTER
        };
        if !gives_up {
            return stop;
        }
        self.shared.status.send_modify(|status| status.given_up = true);
        Stop::Ended
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
        let socket = Socket::connect(host, port).await.map_err(cut)?;
        let watched = socket.watched();
        let mut stream: Box<dyn Stream> = match &servers.tls {
            None => Box::new(socket),
            Some(tls) => Box::new(tls.connect(host, socket).await.map_err(cut)?),
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
        let unheard = |error: std::io::Error| match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Stop::Cut(HUNG_UP.into()),
            _ => cut(error),
        };
        stream.write_all(&framed(&out)).await.map_err(unheard)?;
        let mut input = Vec::new();
        let welcome = loop {
            if let Some(frame) = take_frame(&mut input).map_err(Stop::Cut)? {
                break Hello::read(&frame).map_err(|odd| Stop::Cut(odd.to_string()))?;
            }
            if stream.read_buf(&mut input).await.map_err(unheard)? == 0 {
                return Err(Stop::Cut(HUNG_UP.into()));
            }
        };
        if welcome.timeout_ms <= 0 || welcome.session == 0 {
            return Err(Stop::Ended);
        }
        let timeout = Duration::from_millis(u64::try_from(welcome.timeout_ms).unwrap_or(0));
        servers.longest.see(wanted, timeout);
        let mut connection = Connection {
            stream,
            input,
            pending: VecDeque::new(),
            xid: 0,
            asked: wanted,
            timeout,
            begun,
            touches: VecDeque::new(),
            last_sent: begun,
            ping: None,
            together: 0,
        };
        connection.log_in(servers, &self.secret).await.map_err(cut)?;
        *lock(&self.shared.watched) = watched;
        self.shared.status.send_modify(|status| {
            (status.id, status.password) = (welcome.session, welcome.password.clone());
            (status.asked, status.timeout, status.connected) = (wanted, timeout, true);
            status.times += 1;
            if status.times == 1 {
                (status.first, status.told) = (timeout, timeout);
            }
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
        let stop = loop {
            let (wish, wanted) = {
                let control = lock(&self.shared.control);
                (control.wish, control.timeout)
            };
            let draining = wanted != connection.asked || wish != Wish::Live;
            if draining && connection.pending.is_empty() {
                break match wish {
                    Wish::Live => Stop::Cut("another connection takes it up".into()),
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
                        self.shared.left_to_itself();
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
        let times = self.shared.status.borrow().times;
        while let Some(asked) = next {
            if asked.only_on.is_some_and(|only| only != times) {
                tell(asked, Err(Trouble::Cut("another connection was made since".into())));
            } else if let Some(asked) = self.keep.keep(asked) {
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

#[cfg(test)]
mod tests {
    use super::super::session::MOVING_PART;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_that_did_not_last_makes_the_next_pause_longer_up_to_half_a_second() {
        let mut pause = PAUSE_FIRST;
        for _ in 0..10 {
            let next = pause_after(SETTLED_AFTER / 2, pause * 2, LONG);
            assert!(next > pause || next == PAUSE_UNSETTLED_MAX, "{pause:?}, then {next:?}");
            pause = next;
        }
        assert_eq!(pause, PAUSE_UNSETTLED_MAX);
        assert_eq!(pause_after(SETTLED_AFTER, pause, LONG), PAUSE_FIRST);
    }

    #[test]
    fn what_is_asked_while_a_session_of_any_length_pauses_outlasts_the_pause() {
        for millis in [1_500, 3_000, 6_000, 45_000] {
            let timeout = Duration::from_millis(millis);
            let longest = pause_after(Duration::ZERO, Duration::MAX, timeout);
            assert!(longest < timeout / MOVING_PART, "{longest:?} of {timeout:?}");
        }
    }
}
