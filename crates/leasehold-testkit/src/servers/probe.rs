//! The ready checks: the question to each server, in its own protocol, and the wanted answer.
//!
//! Each check is one connection with one question. `server` asks again. No check speaks TLS: a
//! server that wants TLS from clients answers the check on another port or socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use super::resp;

/// A server on this machine answers in milliseconds; a stopped one never does.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The answers are a few hundred bytes; more is a broken stream.
const ANSWER_BYTES_MAX: u64 = 1 << 16;

/// How to ask a server whether it is ready.
#[derive(Debug)]
pub(super) enum Probe {
    /// `PING` must give `PONG`, over the socket file where there is one.
    Redis { login: Option<Login>, socket: Option<PathBuf> },
    /// The server must let a client in, ask it for a password, or turn it away by its rules.
    Postgres,
    /// `srvr` must name the server's mode, which a server has only as part of a quorum.
    Zookeeper { plain: Option<SocketAddr> },
    /// `GET /health` must say healthy, which needs a leader.
    Etcd { plain: Option<SocketAddr> },
}

/// A user and password of Redis.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

impl Login {
    /// The user that Redis assumes when a client gives only a password.
    pub(super) fn of_default_user(password: &str) -> Login {
        Login { user: "default".to_owned(), password: password.to_owned() }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Probe {
    /// Asks once; the error holds the answer that came instead.
    pub(super) fn check(&self, address: SocketAddr) -> io::Result<()> {
        match self {
            Probe::Redis { .. } => expect("PONG", &self.call_redis(address, &["PING"])?),
            Probe::Postgres => check_postgres(address),
            Probe::Zookeeper { plain } => {
                expect("Mode: ", &ask(plain.unwrap_or(address), b"srvr")?)
            }
            Probe::Etcd { plain } => {
                let request = b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
                expect("\"health\":\"true\"", &ask(plain.unwrap_or(address), request)?)
            }
        }
    }

    /// Where a server that speaks TLS with its clients also listens without TLS.
    pub(super) fn plain(&self) -> Option<SocketAddr> {
        match self {
            Probe::Zookeeper { plain } | Probe::Etcd { plain } => *plain,
            Probe::Redis { .. } | Probe::Postgres => None,
        }
    }

    /// Gives a Redis server one command, logged in as the harness.
    pub(super) fn call_redis(&self, address: SocketAddr, command: &[&str]) -> io::Result<String> {
        let Probe::Redis { login, socket } = self else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "not a Redis server"));
        };
        let login = login.as_ref().map(|login| (login.user.as_str(), login.password.as_str()));
        match socket {
            None => resp::call(connect(address)?, login, command),
            Some(socket) => {
                let stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                resp::call(stream, login, command)
            }
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(stream)
}

/// Sends a question, and reads until the server closes the connection.
fn ask(address: SocketAddr, question: &[u8]) -> io::Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(question)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Greets the server as user `postgres`. While PostgreSQL starts up, it answers with an error
/// instead of an authentication message. An error from its rules means that it wants TLS.
/// PostgreSQL reads its rules only once it has started.
fn check_postgres(address: SocketAddr) -> io::Result<()> {
    const PROTOCOL_3_0: u32 = 3 << 16;
    const TERMINATE: &[u8] = b"X\0\0\0\x04";
    const TURNED_AWAY: &str = "C28000\0";
    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(8 + parameters.len()).expect("a greeting is short");
    let mut stream = connect(address)?;
    let greeting = [&length.to_be_bytes(), &PROTOCOL_3_0.to_be_bytes(), &parameters[..]].concat();
    stream.write_all(&greeting)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    if &kind == b"E" {
        let mut fields = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut fields)?;
        return expect(TURNED_AWAY, &String::from_utf8_lossy(&fields));
    }
    let _ = stream.write_all(TERMINATE);
    expect("R", &String::from_utf8_lossy(&kind))
}

fn expect(wanted: &str, answer: &str) -> io::Result<()> {
    if answer.contains(wanted) {
        return Ok(());
    }
    Err(io::Error::other(format!("expected `{wanted}`, got `{}`", answer.trim_end())))
}
