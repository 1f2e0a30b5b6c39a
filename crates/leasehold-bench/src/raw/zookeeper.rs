//! ZooKeeper without a lock on top: a few kinds of requests, many of them in flight at a time.
//!
//! The numbers of requests and events are those of ZooKeeper's `ZooDefs.OpCode` and
//! `Watcher.Event`. A session that is idle for a minute ends; none here is.

use std::collections::VecDeque;
use std::io::{Read, Write};

use leasehold_testkit::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::CHANNEL;
use crate::Result;
use crate::machine::now;
use crate::stats::Samples;
use crate::work::Work;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const ADD_WATCH: i32 = 106;

const EVENT: i32 = -1;
const DELETED: i32 = 2;

const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;

const SESSION_MS: i32 = 60_000;
/// More than are ever in flight.
const PENDING_MAX: usize = 1_024;

/// A session. The server answers requests in their order.
pub(crate) struct ZooKeeper {
    /// A sender holds the lock for both steps, so that `pending` has the order of the requests.
    sending: Mutex<OwnedWriteHalf>,
    pending: mpsc::Sender<oneshot::Sender<i32>>,
    events: Mutex<mpsc::Receiver<(u64, i32)>>,
}

/// A request's bytes behind its length.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        Self(vec![0; 4])
    }

    fn request(op: i32, path: &str) -> Self {
        Self::new().number(0).number(op).bytes(path.as_bytes())
    }

    fn number(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.number(bytes.len() as i32);
        self.0.extend(bytes);
        self
    }

    fn done(mut self) -> Vec<u8> {
        let length = self.0.len() as i32 - 4;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

impl ZooKeeper {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let address = url.strip_prefix("zk://").ok_or("not a URL of ZooKeeper")?;
        let stream = TcpStream::connect(address.trim_end_matches('/')).await?;
        stream.set_nodelay(true)?;
        let (mut reading, mut sending) = stream.into_split();
        let hello = Frame::new().number(0).long(0).number(SESSION_MS).long(0).bytes(&[0; 16]);
        // Refuses a server in read-only mode.
        let hello = hello.byte(0);
        sending.write_all(&hello.done()).await?;
        frame(&mut reading).await?;
        let (pending, answers) = mpsc::channel(PENDING_MAX);
        let (heard, events) = mpsc::channel(PENDING_MAX);
        tokio::spawn(read(reading, answers, heard));
        Ok(Self { sending: Mutex::new(sending), pending, events: Mutex::new(events) })
    }

    /// Makes a node that ends with the session, or one that stays.
    pub(crate) async fn create(&self, path: &str, stays: bool) -> Result<()> {
        let request = Frame::request(CREATE, path).bytes(b"0123456789abcdef0123456789abcdef");
        // One access rule: every client may do everything.
        let request = request.number(1).number(31).bytes(b"world").bytes(b"anyone");
        self.ask(request.number(if stays { 0 } else { EPHEMERAL })).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.ask(Frame::request(DELETE, path).number(-1)).await
    }

    async fn ask(&self, request: Frame) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let mut sending = self.sending.lock().await;
        self.pending.send(answer).await?;
        sending.write_all(&request.done()).await?;
        drop(sending);
        match answered.await? {
            0 => Ok(()),
            code => Err(format!("ZooKeeper answers {code}").into()),
        }
    }
}

async fn frame(reading: &mut OwnedReadHalf) -> Result<Vec<u8>> {
    let mut body = vec![0; reading.read_u32().await? as usize];
    reading.read_exact(&mut body).await?;
    Ok(body)
}

fn number(body: &[u8], at: usize) -> Result<i32> {
    let bytes = body.get(at..at + 4).ok_or("an answer is too short")?;
    Ok(i32::from_be_bytes(bytes.try_into()?))
}

/// Passes answers to the tasks that wait for them, and events to the listener.
async fn read(
    mut reading: OwnedReadHalf,
    mut answers: mpsc::Receiver<oneshot::Sender<i32>>,
    heard: mpsc::Sender<(u64, i32)>,
) -> Result<()> {
    let mut waiting = VecDeque::new();
    loop {
        let body = frame(&mut reading).await?;
        let at = now();
        // The number of the request, that of the transaction, and the code.
        let (xid, code) = (number(&body, 0)?, number(&body, 12)?);
        if xid == EVENT {
            heard.send((at, number(&body, 16)?)).await?;
            continue;
        }
        while let Ok(answer) = answers.try_recv() {
            waiting.push_back(answer);
        }
        let next: oneshot::Sender<i32> = waiting.pop_front().ok_or("an answer nobody awaits")?;
        // Fails if the task that asked is gone.
        let _gone = next.send(code);
    }
}

fn channel() -> String {
    format!("/{CHANNEL}")
}

/// The time from a change of a node until a watcher in another process hears of it.
pub(crate) async fn wake(url: &str, work: Work) -> Result<Samples> {
    let zookeeper = ZooKeeper::connect(url).await?;
    let path = channel();
    zookeeper.create(&path, true).await?;
    super::wake(("zookeeper", url), work, async |word| match word {
        super::END => zookeeper.delete(&path).await,
        _ => zookeeper.ask(Frame::request(SET_DATA, &path).bytes(word.as_bytes()).number(-1)).await,
    })
    .await
}

pub(super) async fn listen(url: &str) -> Result<Vec<u64>> {
    let zookeeper = ZooKeeper::connect(url).await?;
    zookeeper.ask(Frame::request(ADD_WATCH, &channel()).number(PERSISTENT)).await?;
    println!("ready");
    let (mut events, mut came) = (zookeeper.events.lock().await, Vec::new());
    while let Some((at, kind)) = events.recv().await {
        if kind == DELETED {
            break;
        }
        came.push(at);
    }
    Ok(came)
}

/// How many requests the server has received.
pub(crate) fn requests(server: &Server) -> Result<u64> {
    let mut stream = std::net::TcpStream::connect(server.address())?;
    stream.write_all(b"mntr")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    Ok(line.ok_or("ZooKeeper does not tell its requests")?.trim().parse::<f64>()? as u64)
}
