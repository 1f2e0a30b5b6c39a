//! All that is in a ZooKeeper ensemble, read node by node without the library under test.
//!
//! Only what that takes: a session, reading the children of nodes, and closing the session. What
//! the nodes mean is left to [`litter`], which knows where a store keeps what.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Doing, Result};

/// A server answers in milliseconds; this is for a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const SESSION_MS: i32 = 10_000;
/// The names of all nodes of a test fit.
const ANSWER_BYTES_MAX: usize = 16 << 20;

const SYNC: i32 = 9;
const GET_CHILDREN2: i32 = 12;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;
const XID_AUTH: i32 = -4;
const NO_NODE: i32 = -101;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// Where it is.
    pub path: String,
    /// The session with which it ends. Servers do not tell whether they remove it when it is empty.
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

/// What should not be in a store any more, once all its clients are closed: whatever ends with a
/// session, and whatever is in a line or a notice. The nodes of lines that are empty are the
/// servers' to remove, and some nodes of the store's own stay for ever.
pub fn litter(nodes: &[Znode], root: &str) -> Vec<Znode> {
    let root = root.trim_end_matches('/');
    let is_litter = |node: &&Znode| {
        let Some(below) = node.path.strip_prefix(root) else { return true };
        let stays = match below.split('/').skip(1).collect::<Vec<_>>()[..] {
            [] | [_] => true,
            // The servers' own.
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
    matches!(node, "moment" | "epoch" | "watchers" | "farewells")
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

/// The names of a node's children, and to whom it belongs.
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

/// A session that only reads.
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

    /// What is answered; `None` if the node is not there.
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
    fn what_a_store_keeps_is_no_litter_and_all_else_is() {
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
