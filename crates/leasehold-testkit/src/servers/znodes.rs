//! Reads a ZooKeeper ensemble node by node, without the library under test.
//!
//! It speaks only the requests that this takes: opening a session, reading the children of nodes,
//! and closing the session. [`litter`] knows which nodes a store keeps. [`make_znode`] makes one
//! that no client would.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Doing, Result};

/// A server answers in milliseconds; the rest is for a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const SESSION_MS: i32 = 10_000;
/// The names of all nodes of a test fit.
const ANSWER_BYTES_MAX: usize = 16 << 20;

const SYNC: i32 = 9;
const CREATE: i32 = 1;
const GET_CHILDREN2: i32 = 12;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;
const XID_AUTH: i32 = -4;
const NO_NODE: i32 = -101;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// The path of the node.
    pub path: String,
    /// The session with which it ends. Servers do not tell whether they remove an empty node.
    pub session: Option<i64>,
}

/// All nodes from `root` down, parents first, as the leader knew them. `login` is `USER:PASSWORD`.
pub async fn znodes(server: SocketAddr, root: &str, login: Option<&str>) -> Result<Vec<Znode>> {
    let read = timeout(ANSWER_LIMIT, read(server, root, login)).await;
    let read = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    read.doing(|| format!("read the nodes of {server}"))
}

async fn read(server: SocketAddr, root: &str, login: Option<&str>) -> io::Result<Vec<Znode>> {
    let mut reader = Reader::connect(server, login).await?;
    reader.ask(SYNC, &text(root)).await?;
    let (mut nodes, mut paths) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = paths.pop() {
        let request = [text(&path), vec![0]].concat();
        let Some(answer) = reader.ask(GET_CHILDREN2, &request).await? else { continue };
        let (children, owner) = read_children(&answer).ok_or_else(odd)?;
        let above = path.trim_end_matches('/').to_owned();
        paths.extend(children.iter().map(|child| format!("{above}/{child}")));
        nodes.push(Znode { path, session: Some(owner).filter(|owner| *owner != 0) });
    }
    reader.ask(CLOSE, &[]).await?;
    Ok(nodes)
}

/// Makes a permanent node that everybody may change.
pub async fn make_znode(server: SocketAddr, path: &str, data: &str) -> Result<()> {
    let made = timeout(ANSWER_LIMIT, make(server, path, data)).await;
    let made = made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    made.doing(|| format!("make `{path}` of {server}"))
}

async fn make(server: SocketAddr, path: &str, data: &str) -> io::Result<()> {
    let mut session = Reader::connect(server, None).await?;
    // One rule, with all rights for everybody; and no flags.
    let (rules, rights, flags) = (1_i32.to_be_bytes(), 31_i32.to_be_bytes(), [0; 4]);
    let everybody = [text("world"), text("anyone")].concat();
    let parts = [&text(path), &text(data), &rules[..], &rights, &everybody, &flags];
    let answer = session.ask(CREATE, &parts.concat()).await?;
    session.ask(CLOSE, &[]).await?;
    answer.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The nodes that a store should no longer have once all its clients are closed. These are the
/// nodes that end with a session, and those in a line or a notice. The servers remove the nodes of
/// empty lines. Some nodes of the store's own stay for ever.
pub fn litter(nodes: &[Znode], root: &str) -> Vec<Znode> {
    let root = root.trim_end_matches('/');
    let is_litter = |node: &&Znode| {
        let Some(below) = node.path.strip_prefix(root) else { return true };
        // The link of a session that no client closed ends with the session, and keeps no name
        // closed.
        if node.session.is_some() && below.starts_with("/%leasehold/link-") {
            return false;
        }
        let stays = match below.split('/').skip(1).collect::<Vec<_>>()[..] {
            [] | [_] => true,
            // The nodes of the servers themselves.
            ["zookeeper", ..] => root.is_empty(),
            ["%leasehold", own] => is_own(own),
            _ => false,
        };
        node.session.is_some() || !stays
    };
    nodes.iter().filter(is_litter).cloned().collect()
}

/// Whether a node is one that a store keeps, or that the servers remove.
fn is_own(node: &str) -> bool {
    matches!(node, "moment" | "epoch" | "watchers" | "farewells" | "holders")
        || ["totals-", "waits-"].iter().any(|begin| node.starts_with(begin))
}

fn odd() -> io::Error {
    io::Error::other("it does not answer as a ZooKeeper server does")
}

/// A text or bytes with their length.
fn text(value: &str) -> Vec<u8> {
    let length = i32::try_from(value.len()).expect("paths are short");
    [&length.to_be_bytes(), value.as_bytes()].concat()
}

/// The names of a node's children, and the session that owns the node.
fn read_children(mut body: &[u8]) -> Option<(Vec<String>, i64)> {
    let count = take_int(&mut body)?;
    let mut children = Vec::new();
    for _ in 0..count {
        let length = usize::try_from(take_int(&mut body)?).ok()?;
        let (name, rest) = body.split_at_checked(length)?;
        children.push(String::from_utf8(name.to_vec()).ok()?);
        body = rest;
    }
    // Four numbers of eight bytes and three of four come before the owner.
    let owner = body.get(4 * 8 + 3 * 4..)?.first_chunk()?;
    Some((children, i64::from_be_bytes(*owner)))
}

fn take_int(body: &mut &[u8]) -> Option<i32> {
    let (number, rest) = body.split_first_chunk()?;
    *body = rest;
    Some(i32::from_be_bytes(*number))
}

/// A session.
struct Reader {
    stream: TcpStream,
    xid: i32,
}

impl Reader {
    async fn connect(server: SocketAddr, login: Option<&str>) -> io::Result<Reader> {
        let mut reader = Reader { stream: TcpStream::connect(server).await?, xid: 0 };
        // A protocol of version 0, no transaction seen, and neither a session nor its password.
        let mut hello = vec![0; 4 + 8];
        hello.extend(SESSION_MS.to_be_bytes());
        hello.extend([0; 8]);
        hello.extend([&16_i32.to_be_bytes()[..], &[0; 16], &[0]].concat());
        reader.send(&hello).await?;
        reader.receive().await?;
        if let Some(login) = login {
            let request = [vec![0; 4], text("digest"), text(login)].concat();
            reader.send_request(XID_AUTH, AUTH, &request).await?;
            let answer = reader.receive().await?;
            let error = answer.get(12..16).and_then(<[u8]>::first_chunk).ok_or_else(odd)?;
            if i32::from_be_bytes(*error) != 0 {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        Ok(reader)
    }

    /// The answer; `None` if the node does not exist.
    async fn ask(&mut self, operation: i32, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.xid += 1;
        self.send_request(self.xid, operation, body).await?;
        let mut answer = self.receive().await?;
        let error = answer.get(12..16).and_then(<[u8]>::first_chunk).ok_or_else(odd)?;
        match i32::from_be_bytes(*error) {
            0 => Ok(Some(answer.split_off(16))),
            NO_NODE => Ok(None),
            error => Err(io::Error::other(format!("it answered with error {error}"))),
        }
    }

    async fn send_request(&mut self, xid: i32, operation: i32, body: &[u8]) -> io::Result<()> {
        let request = [&xid.to_be_bytes(), &operation.to_be_bytes(), body].concat();
        self.send(&request).await
    }

    async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = i32::try_from(frame.len()).map_err(|_| odd())?;
        self.stream.write_all(&[&length.to_be_bytes(), frame].concat()).await
    }

    async fn receive(&mut self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.stream.read_i32().await?).map_err(|_| odd())?;
        if length > ANSWER_BYTES_MAX {
            return Err(odd());
        }
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame).await?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn litter_is_every_node_that_a_store_does_not_keep() {
        let node = |path: String, session| Znode { path, session };
        for root in ["", "/locks", "/my/app"] {
            let at = |below: &str| format!("{root}{below}");
            let top = if root.is_empty() { "/".to_owned() } else { root.to_owned() };
            let own = ["/report", "/%leasehold", "/%leasehold/moment", "/%leasehold/waits-0a"];
            let kept: Vec<_> =
                own.into_iter().map(at).chain([top]).map(|path| node(path, None)).collect();
            assert_eq!(litter(&kept, root), []);
            let mut left: Vec<_> = kept.into_iter().map(|kept| node(kept.path, Some(7))).collect();
            let others = ["/report/lh-1", "/%leasehold/session-1", "/%leasehold/waits-0a/1"];
            left.extend(others.into_iter().map(|path| node(at(path), None)));
            left.push(node("/elsewhere/report/lh-1".into(), None));
            assert_eq!(litter(&left, root), left);
        }
    }
}
