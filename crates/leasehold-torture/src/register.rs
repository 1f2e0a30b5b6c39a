//! The fenced register: the resource that the locks protect.
//!
//! It refuses every access with a fence that is smaller than the greatest one of an exclusive
//! lease that it has seen, and writes down what it did. Workers reach it by a connection of their
//! own, on which no fault is made. A request is a line, `VERB NAME WORKER ATTEMPT FENCE [VALUE]`;
//! the answer is `ok VALUE` or `no SEEN`.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use crate::event::{RUN, Recorder, What};

/// What one name's register holds.
#[derive(Debug, Default, Clone, Copy)]
struct Cell {
    seen: u64,
    value: u64,
}

#[derive(Debug)]
struct Register {
    cells: Mutex<HashMap<String, Cell>>,
    recorder: Recorder,
}

/// What the register says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It let the access in; this is the value.
    Ok(u64),
    /// It has seen this greater fence.
    No(u64),
}

/// Who asks, and with what.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// The name.
    pub name: &'a str,
    /// The worker.
    pub worker: u32,
    /// Its attempt.
    pub attempt: u64,
    /// Its fence.
    pub fence: u64,
}

/// Starts a register, which lives as long as the runtime.
pub async fn start(history: &Path) -> io::Result<SocketAddr> {
    let recorder = Recorder::open(history, RUN)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let register = Arc::new(Register { cells: Mutex::default(), recorder });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&register)));
        }
    });
    Ok(address)
}

/// Answers one worker until it hangs up, or dies.
async fn serve(stream: TcpStream, register: Arc<Register>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match register.access(&line) {
            Some(Answer::Ok(value)) => format!("ok {value}\n"),
            Some(Answer::No(seen)) => format!("no {seen}\n"),
            None => return Err(io::ErrorKind::InvalidData.into()),
        };
        output.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

impl Register {
    /// Carries out a request; `None` if it is no request.
    fn access(&self, line: &str) -> Option<Answer> {
        let words: Vec<&str> = line.split(' ').collect();
        let [verb, name, by, of, fence, ref value @ ..] = words[..] else { return None };
        let (by, of, fence) = (by.parse().ok()?, of.parse().ok()?, fence.parse().ok()?);
        let wrote: Option<u64> = value.first().and_then(|value| value.parse().ok());
        // Written down under the lock, so that the order of the events is that of the accesses.
        let mut cells = self.cells.lock().expect("nothing panics under the lock");
        let cell = cells.entry(name.to_owned()).or_default();
        let accepted = fence >= cell.seen;
        if accepted && verb != "share" {
            cell.seen = fence;
            cell.value = wrote.unwrap_or(cell.value);
        }
        // A reader's fence is compared, but does not turn other readers away.
        if verb != "share" {
            let name = name.to_owned();
            self.recorder.record(0, What::Access { name, by, of, fence, accepted, wrote });
        }
        Some(if accepted { Answer::Ok(cell.value) } else { Answer::No(cell.seen) })
    }
}

/// A worker's connection to the register.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Reads under an exclusive lease.
    pub async fn read(&mut self, access: &Access<'_>) -> io::Result<Answer> {
        self.ask("read", access, None).await
    }

    /// Writes under an exclusive lease.
    pub async fn write(&mut self, access: &Access<'_>, value: u64) -> io::Result<Answer> {
        self.ask("write", access, Some(value)).await
    }

    /// Reads under a shared lease.
    pub async fn share(&mut self, access: &Access<'_>) -> io::Result<Answer> {
        self.ask("share", access, None).await
    }

    async fn ask(
        &mut self,
        verb: &str,
        access: &Access<'_>,
        value: Option<u64>,
    ) -> io::Result<Answer> {
        let Access { name, worker, attempt, fence } = access;
        let value = value.map(|value| format!(" {value}")).unwrap_or_default();
        let line = format!("{verb} {name} {worker} {attempt} {fence}{value}\n");
        self.stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        let number = |text: &str| text.trim().parse().map_err(|_| io::ErrorKind::InvalidData);
        match answer.split_once(' ') {
            Some(("ok", value)) => Ok(Answer::Ok(number(value)?)),
            Some(("no", seen)) => Ok(Answer::No(number(seen)?)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn smaller_fence_is_refused_and_a_reader_turns_nobody_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("register.jsonl");
        let address = start(&file).await.expect("it listens");
        let mut one = Connection::open(address).await.expect("it is there");
        let access = |fence| Access { name: "n", worker: 1, attempt: fence, fence };
        assert_eq!(one.read(&access(5)).await.expect("an answer"), Answer::Ok(0));
        assert_eq!(one.write(&access(5), 1).await.expect("an answer"), Answer::Ok(1));
        assert_eq!(one.share(&access(9)).await.expect("an answer"), Answer::Ok(1));
        assert_eq!(one.share(&access(8)).await.expect("an answer"), Answer::Ok(1));
        assert_eq!(one.write(&access(4), 7).await.expect("an answer"), Answer::No(5));
        let text = std::fs::read_to_string(file).expect("it was written");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
