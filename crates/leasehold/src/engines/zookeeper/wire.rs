//! ZooKeeper's wire format: numbers and texts with their lengths, requests, and what comes back.
//!
//! Written by hand, because it is small, and because a lock needs to know when exactly a request
//! went out and which answer belongs to it.

use std::fmt;

/// The codes of the requests this engine makes.
pub(super) mod op {
    pub(in crate::engines::zookeeper) const CREATE: i32 = 1;
    pub(in crate::engines::zookeeper) const DELETE: i32 = 2;
    pub(in crate::engines::zookeeper) const EXISTS: i32 = 3;
    pub(in crate::engines::zookeeper) const GET_DATA: i32 = 4;
    pub(in crate::engines::zookeeper) const SET_DATA: i32 = 5;
    pub(in crate::engines::zookeeper) const SYNC: i32 = 9;
    pub(in crate::engines::zookeeper) const PING: i32 = 11;
    pub(in crate::engines::zookeeper) const GET_CHILDREN2: i32 = 12;
    pub(in crate::engines::zookeeper) const CHECK: i32 = 13;
    pub(in crate::engines::zookeeper) const MULTI: i32 = 14;
    pub(in crate::engines::zookeeper) const CREATE2: i32 = 15;
    pub(in crate::engines::zookeeper) const CREATE_CONTAINER: i32 = 19;
    pub(in crate::engines::zookeeper) const AUTH: i32 = 100;
    pub(in crate::engines::zookeeper) const ADD_WATCH: i32 = 106;
    pub(in crate::engines::zookeeper) const CLOSE: i32 = -11;
    pub(in crate::engines::zookeeper) const ERROR: i32 = -1;
}

/// Errors that a server answers and the engine tells apart.
pub(super) mod code {
    pub(in crate::engines::zookeeper) const OK: i32 = 0;
    pub(in crate::engines::zookeeper) const UNIMPLEMENTED: i32 = -6;
    pub(in crate::engines::zookeeper) const NO_NODE: i32 = -101;
    pub(in crate::engines::zookeeper) const NO_AUTH: i32 = -102;
    pub(in crate::engines::zookeeper) const BAD_VERSION: i32 = -103;
    pub(in crate::engines::zookeeper) const NODE_EXISTS: i32 = -110;
    pub(in crate::engines::zookeeper) const NOT_EMPTY: i32 = -111;
    pub(in crate::engines::zookeeper) const SESSION_EXPIRED: i32 = -112;
    pub(in crate::engines::zookeeper) const AUTH_FAILED: i32 = -115;
    pub(in crate::engines::zookeeper) const SESSION_MOVED: i32 = -118;
    pub(in crate::engines::zookeeper) const QUOTA: i32 = -125;
    pub(in crate::engines::zookeeper) const THROTTLED: i32 = -127;
}

/// Numbers that stand where a request's own number would.
pub(super) const XID_EVENT: i32 = -1;
pub(super) const XID_PING: i32 = -2;
pub(super) const XID_AUTH: i32 = -4;

/// The largest answer that is read: the names of a million nodes fit.
pub(super) const FRAME_MAX: usize = 256 << 20;

/// An answer that is not what ZooKeeper would say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Odd;

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it does not answer as a ZooKeeper server does")
    }
}

/// Bytes being put together.
#[derive(Debug, Default, Clone)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn flag(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.0.extend(value);
        self
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }
}

/// Bytes being taken apart.
#[derive(Debug)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Odd> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Odd)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn int(&mut self) -> Result<i32, Odd> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into().map_err(|_| Odd)?))
    }

    pub(super) fn long(&mut self) -> Result<i64, Odd> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into().map_err(|_| Odd)?))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Odd> {
        Ok(self.take(1)? != [0])
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Odd> {
        match self.int()? {
            // Nothing at all is written with a length of -1.
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| Odd)?),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Odd> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Odd)
    }

    pub(super) fn stat(&mut self) -> Result<Stat, Odd> {
        let (created, modified) = (self.long()?, self.long()?);
        let (born_ms, written_ms) = (self.long()?, self.long()?);
        let (version, _changes, _acl) = (self.int()?, self.int()?, self.int()?);
        let (_owner, _length) = (self.long()?, self.int()?);
        let (children, _last) = (self.int()?, self.long()?);
        Ok(Stat { created, modified, born_ms, written_ms, version, children })
    }
}

/// What the server knows about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// The transaction that created it.
    pub(super) created: i64,
    /// The transaction that wrote it last.
    pub(super) modified: i64,
    /// When, by the server's wall clock.
    pub(super) born_ms: i64,
    /// When it was last written, likewise.
    pub(super) written_ms: i64,
    /// How often its data was written.
    pub(super) version: i32,
    /// How many nodes are below it.
    pub(super) children: i32,
}

/// How long a node lives, and whether it gets a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
    Container = 4,
}

/// Who may do what with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acl {
    pub(super) rights: i32,
    pub(super) scheme: &'static str,
    pub(super) id: &'static str,
}

pub(super) const RIGHTS_ALL: i32 = 31;
pub(super) const RIGHTS_READ: i32 = 1;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Create {
        path: String,
        data: Vec<u8>,
        acl: Vec<Acl>,
        sort: Sort,
    },
    Delete {
        path: String,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
    },
    SetData {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    Children {
        path: String,
    },
    Sync {
        path: String,
    },
    /// Fails if the node is not there. Only inside `Multi`.
    Check {
        path: String,
    },
    /// Fails if the node was written more or less often. Only inside `Multi`.
    CheckVersion {
        path: String,
        version: i32,
    },
    /// All of them or none.
    Multi(Vec<Request>),
    /// Hears of everything below, for ever.
    WatchBelow {
        path: String,
    },
}

impl Request {
    pub(super) fn code(&self) -> i32 {
        match self {
            Request::Create { sort: Sort::Container, .. } => op::CREATE_CONTAINER,
            Request::Create { .. } => op::CREATE2,
            Request::Delete { .. } => op::DELETE,
            Request::Exists { .. } => op::EXISTS,
            Request::GetData { .. } => op::GET_DATA,
            Request::SetData { .. } => op::SET_DATA,
            Request::Children { .. } => op::GET_CHILDREN2,
            Request::Sync { .. } => op::SYNC,
            Request::Check { .. } | Request::CheckVersion { .. } => op::CHECK,
            Request::Multi(_) => op::MULTI,
            Request::WatchBelow { .. } => op::ADD_WATCH,
        }
    }

    pub(super) fn write(&self, out: &mut Out) {
        match self {
            Request::Create { path, data, acl, sort } => {
                out.text(path).bytes(data);
                out.int(i32::try_from(acl.len()).unwrap_or(i32::MAX));
                for Acl { rights, scheme, id } in acl {
                    out.int(*rights).text(scheme).text(id);
                }
                out.int(*sort as i32);
            }
            Request::Delete { path } | Request::Check { path } => {
                // Whatever its version.
                out.text(path).int(-1);
            }
            Request::CheckVersion { path, version } => {
                out.text(path).int(*version);
            }
            Request::Exists { path, watch } => {
                out.text(path).flag(*watch);
            }
            Request::GetData { path } | Request::Children { path } => {
                out.text(path).flag(false);
            }
            Request::SetData { path, data, version } => {
                out.text(path).bytes(data).int(*version);
            }
            Request::Sync { path } => {
                out.text(path);
            }
            Request::Multi(parts) => {
                parts.iter().for_each(|part| part.write_part(out));
                Self::write_end(out);
            }
            Request::WatchBelow { path } => {
                out.text(path).int(1);
            }
        }
    }

    /// Writes it as one part of a `Multi`.
    fn write_part(&self, out: &mut Out) {
        out.int(self.code()).flag(false).int(-1);
        self.write(out);
    }

    /// Writes its parts, or itself as one, without the end.
    pub(super) fn write_parts(&self, out: &mut Out) {
        match self {
            Request::Multi(parts) => parts.iter().for_each(|part| part.write_part(out)),
            single => single.write_part(out),
        }
    }

    /// Writes the end of a `Multi`.
    pub(super) fn write_end(out: &mut Out) {
        out.int(-1).flag(true).int(-1);
    }

    /// How many parts it has.
    pub(super) fn parts(&self) -> usize {
        match self {
            Request::Multi(parts) => parts.len(),
            _ => 1,
        }
    }

    /// Whether it is about a node, or one below that.
    pub(super) fn is_about(&self, node: &str) -> bool {
        let path = match self {
            Request::Multi(parts) => return parts.iter().any(|part| part.is_about(node)),
            Request::Create { path, .. }
            | Request::Delete { path }
            | Request::Exists { path, .. }
            | Request::GetData { path }
            | Request::SetData { path, .. }
            | Request::Children { path }
            | Request::Sync { path }
            | Request::Check { path }
            | Request::CheckVersion { path, .. }
            | Request::WatchBelow { path } => path,
        };
        path.strip_prefix(node).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether a majority agreed before it was answered.
    pub(super) fn is_agreed(&self) -> bool {
        matches!(
            self,
            Request::Create { .. }
                | Request::Delete { .. }
                | Request::SetData { .. }
                | Request::Multi(_)
        )
    }
}

/// What one part of a `Multi` came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Created(String),
    Written(Stat),
    Done,
    Failed(i32),
}

/// Reads the answer to a `Multi`.
pub(super) fn read_parts(body: &[u8]) -> Result<Vec<Part>, Odd> {
    let (mut body, mut parts) = (In(body), Vec::new());
    while let Some(part) = read_part(&mut body)? {
        parts.push(part);
    }
    Ok(parts)
}

/// Reads the next part, or that there is none.
fn read_part(body: &mut In<'_>) -> Result<Option<Part>, Odd> {
    let (code, done, _error) = (body.int()?, body.flag()?, body.int()?);
    if done {
        return Ok(None);
    }
    Ok(Some(match code {
        op::CREATE => Part::Created(body.text()?),
        op::CREATE2 => {
            let path = body.text()?;
            body.stat()?;
            Part::Created(path)
        }
        op::SET_DATA => Part::Written(body.stat()?),
        op::ERROR => match body.int()? {
            code::OK => Part::Done,
            error => Part::Failed(error),
        },
        _ => Part::Done,
    }))
}

/// Takes the answer to a `Multi` apart into those to several, which have so many parts each. `None`
/// if it failed: then it has done nothing.
pub(super) fn split_parts(body: &[u8], counts: &[usize]) -> Result<Option<Vec<Vec<u8>>>, Odd> {
    let mut rest = In(body);
    let mut bodies = Vec::with_capacity(counts.len());
    for count in counts {
        let begin = rest.0;
        for _ in 0..*count {
            if let Part::Failed(_) = read_part(&mut rest)?.ok_or(Odd)? {
                return Ok(None);
            }
        }
        let mut one = Out(begin[..begin.len() - rest.0.len()].to_vec());
        Request::write_end(&mut one);
        bodies.push(one.0);
    }
    match read_part(&mut rest)? {
        None => Ok(Some(bodies)),
        Some(_) => Err(Odd),
    }
}

/// The names of a node's children.
pub(super) fn read_children(body: &[u8]) -> Result<Vec<String>, Odd> {
    let mut body = In(body);
    let count = usize::try_from(body.int()?.max(0)).map_err(|_| Odd)?;
    (0..count).map(|_| body.text()).collect()
}

/// What is asked at the beginning of a connection.
#[derive(Clone)]
pub(super) struct Hello {
    pub(super) seen: i64,
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

impl Hello {
    pub(super) fn write(&self, out: &mut Out) {
        out.int(0).long(self.seen).int(self.timeout_ms).long(self.session);
        // Only from a server that is part of a majority.
        out.bytes(&self.password).flag(false);
    }

    pub(super) fn read(frame: &[u8]) -> Result<Hello, Odd> {
        let mut frame = In(frame);
        let _version = frame.int()?;
        let (timeout_ms, session) = (frame.int()?, frame.long()?);
        let password = frame.bytes()?.to_vec();
        Ok(Hello { seen: 0, timeout_ms, session, password })
    }
}

/// What happened to a node that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Created,
    Deleted,
    Written,
    Other,
}

/// Reads an event: what, and where.
pub(super) fn read_event(body: &[u8]) -> Result<(Change, String), Odd> {
    let mut body = In(body);
    let (kind, _state) = (body.int()?, body.int()?);
    let change = match kind {
        1 => Change::Created,
        2 => Change::Deleted,
        3 => Change::Written,
        _ => Change::Other,
    };
    Ok((change, body.text()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_written_as_the_protocol_has_it() {
        let mut out = Out::default();
        Request::Multi(vec![Request::Delete { path: "/a".into() }]).write(&mut out);
        let expected = [
            &[0, 0, 0, 2, 0, 255, 255, 255, 255][..],
            &[0, 0, 0, 2, b'/', b'a', 255, 255, 255, 255],
            &[255, 255, 255, 255, 1, 255, 255, 255, 255],
        ];
        assert_eq!(out.0, expected.concat());
    }

    #[test]
    fn what_is_cut_short_is_odd() {
        let mut out = Out::default();
        out.int(2).text("one").text("two");
        assert_eq!(read_children(&out.0), Ok(vec!["one".into(), "two".into()]));
        for end in 0..out.0.len() {
            assert_eq!(read_children(&out.0[..end]), Err(Odd), "{end}");
        }
    }
}
