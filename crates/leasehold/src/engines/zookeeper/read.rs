//! Reading lines, and making the nodes that they are below.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::rule::claim::{Holder, Token};
use crate::rule::name::Name;

use super::Inner;
use super::detail::Detail;
use super::failure;
use super::lock;
use super::nodes::{Attempt, Entry, Ours, closed_node, lineup, note_node, read_node, ttl_stem};
use super::session::{Reply, Session};
use super::wire::{Acl, In, Part, RIGHTS_ALL, RIGHTS_READ, Request, Sort, Stat};
use super::wire::{code, read_children, read_parts};

/// The store's node that is written when something is created, to learn in which transaction: where
/// the line's own node is not ours to write.
pub(super) const MOMENT: &str = "moment";
/// What stands in the node of a line that this library made, and may be written again by it.
pub(super) const MARK: &[u8] = b"leasehold";
/// Names whose nodes are remembered to be there. Beyond that all are forgotten, which costs one
/// more request for each.
const KNOWN_MAX: usize = 10_000;

/// Lines whose nodes were there when they were last used.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<Name, Line>>);

/// What is known of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) by: By,
    /// Whether the last claim was alone in it.
    pub(super) alone: bool,
}

/// Who made a line's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// This library: what stands in it is of no use to anybody.
    Us,
    /// Somebody else, who may have something in it.
    Others,
    Unknown,
}

impl Known {
    pub(super) fn get(&self, name: &Name) -> Option<Line> {
        lock(&self.0).get(name).copied()
    }

    pub(super) fn set(&self, name: &Name, line: Line) {
        let mut known = lock(&self.0);
        if let Some(known) = known.get_mut(name) {
            *known = line;
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name.clone(), line);
    }

    pub(super) fn forget(&self, name: &Name) {
        lock(&self.0).remove(name);
    }
}

/// A line as it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Lineup {
    /// The claims in order.
    pub(super) entries: Vec<Entry>,
    /// All nodes.
    children: Vec<String>,
    /// Its rights forbid this client to read it, so nothing in it is known.
    pub(super) forbidden: bool,
}

impl Lineup {
    pub(super) fn new(children: Vec<String>) -> Self {
        Self { entries: lineup(children.clone()), children, forbidden: false }
    }

    pub(super) fn forbidden() -> Self {
        Self { forbidden: true, ..Self::default() }
    }

    pub(super) fn place(&self, ours: Ours) -> Option<usize> {
        self.entries.iter().position(|entry| entry.ours == Some(ours))
    }

    /// Whether a claim with this token was made in another session.
    pub(super) fn made_elsewhere(&self, token: &Token, session: i64) -> bool {
        let attempt = Attempt::of(token);
        let mut ours = self.entries.iter().filter_map(|entry| entry.ours);
        ours.any(|ours| ours.attempt == attempt && ours.session != session)
    }

    /// Whether a claim has other nodes than these.
    pub(super) fn has_others_of(&self, ours: Ours, paths: &[String]) -> bool {
        let leaf = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
        let known: Vec<String> = paths.iter().map(leaf).collect();
        let entry = self.place(ours).map(|at| &self.entries[at]);
        entry.is_some_and(|entry| self.nodes_of(entry).any(|node| !known.iter().any(|k| k == node)))
    }

    /// All nodes of a claim.
    pub(super) fn nodes_of<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = &'a str> {
        let same = |node: &&String| match entry.ours {
            Some(_) => read_node((*node).clone()).is_some_and(|other| other.ours == entry.ours),
            None => **node == entry.node,
        };
        self.children.iter().filter(same).map(String::as_str)
    }

    /// The nodes that tell of other ttls.
    pub(super) fn ttl_nodes(&self, stem: &str) -> impl Iterator<Item = &str> {
        let nodes = self.children.iter().map(String::as_str);
        nodes.filter(move |node| node.starts_with(stem) && node.ends_with("ms"))
    }

    /// Whether a claim was given back and keeps its name closed: nobody owns it.
    pub(super) fn is_closed(&self, ours: Ours) -> bool {
        self.children.contains(&closed_node(ours))
    }

    /// The node that has another note of a claim.
    pub(super) fn note_of(&self, ours: Ours) -> Option<&str> {
        let note = note_node(ours);
        self.children.iter().map(String::as_str).find(|node| *node == note)
    }

    /// All nodes that tell of a claim beside its own.
    pub(super) fn beside(&self, ours: Ours) -> impl Iterator<Item = &str> {
        let stem = ttl_stem(ours);
        let nodes = self.children.iter().map(String::as_str);
        nodes.filter(move |node| node.starts_with(&stem)).chain(self.note_of(ours))
    }
}

/// Who may do what with nodes of the store's own and with lines: everybody, or this user alone.
pub(super) fn shared_acl(inner_login: bool) -> Vec<Acl> {
    match inner_login {
        true => vec![Acl { rights: RIGHTS_ALL, scheme: "auth", id: "" }],
        false => vec![Acl { rights: RIGHTS_ALL, scheme: "world", id: "anyone" }],
    }
}

/// Only its session writes a claim's node: that it was written says that it was given back.
pub(super) fn claim_acl(login: bool) -> Vec<Acl> {
    let own = Acl { rights: RIGHTS_ALL, scheme: "auth", id: "" };
    match login {
        true => vec![own],
        false => vec![own, Acl { rights: RIGHTS_READ, scheme: "world", id: "anyone" }],
    }
}

impl Inner {
    pub(super) fn refusal(&self, error: i32) -> Error {
        failure::refusal(error, &self.info.store)
    }

    pub(super) fn odd(&self, odd: super::wire::Odd) -> Error {
        failure::odd(odd, &self.info.store)
    }

    pub(super) fn has_login(&self) -> bool {
        self.pool.servers().login.is_some()
    }

    pub(super) fn busy(&self) -> Error {
        self.refusal(code::BAD_VERSION)
    }

    /// The children that an answer names; none if the node is not there.
    pub(super) fn children(&self, reply: &Reply) -> Result<Vec<String>> {
        match reply.code {
            code::OK => read_children(&reply.body).map_err(|odd| self.odd(odd)),
            code::NO_NODE => Ok(Vec::new()),
            error => Err(self.refusal(error)),
        }
    }

    pub(super) fn parts(&self, reply: &Reply) -> Result<Vec<Part>> {
        match reply.code {
            code::OK => read_parts(&reply.body).map_err(|odd| self.odd(odd)),
            error => Err(self.refusal(error)),
        }
    }

    /// A line as this session's server knows it.
    pub(super) async fn read_line(&self, session: &Session, name: &Name) -> Result<Lineup> {
        let reply = session.ask(Request::Children { path: self.layout.line(name) }).await?;
        Ok(Lineup::new(self.children(&reply)?))
    }

    /// A line as the leader knew it after it was asked.
    pub(super) async fn read_line_now(&self, session: &Session, name: &Name) -> Result<Lineup> {
        let path = self.layout.line(name);
        let synced = session.send(Request::Sync { path: path.clone() }).await?;
        let read = session.send(Request::Children { path }).await?;
        // Whether the node is there is told by the second answer.
        synced.answer().await?;
        Ok(Lineup::new(self.children(&read.answer().await?)?))
    }

    /// The same on the connection of this number, and on no later one.
    pub(super) async fn read_line_now_on(
        &self,
        times: u64,
        session: &Session,
        name: &Name,
    ) -> Result<Lineup> {
        let path = self.layout.line(name);
        let synced = session.send_on(times, Request::Sync { path: path.clone() }).await?;
        let read = session.send_on(times, Request::Children { path }).await?;
        // Whether the node is there is told by the second answer.
        synced.answer().await?;
        Ok(Lineup::new(self.children(&read.answer().await?)?))
    }

    /// A node's data; `None` if it is not there.
    pub(super) async fn data(
        &self,
        session: &Session,
        path: String,
    ) -> Result<Option<(Vec<u8>, Stat)>> {
        let reply = session.ask(Request::GetData { path }).await?;
        self.data_of(&reply)
    }

    pub(super) fn data_of(&self, reply: &Reply) -> Result<Option<(Vec<u8>, Stat)>> {
        match reply.code {
            code::OK => {
                let mut body = In(&reply.body);
                let data = body.bytes().map_err(|odd| self.odd(odd))?.to_vec();
                Ok(Some((data, body.stat().map_err(|odd| self.odd(odd))?)))
            }
            code::NO_NODE => Ok(None),
            error => Err(self.refusal(error)),
        }
    }

    /// Who is first of these.
    pub(super) async fn holder_of_first(
        &self,
        session: &Session,
        name: &Name,
        lineup: &Lineup,
    ) -> Result<Option<Holder>> {
        let line = self.layout.line(name);
        for entry in &lineup.entries {
            if let Some((data, _)) = self.data(session, format!("{line}/{}", entry.node)).await? {
                let detail = match entry.ours {
                    Some(_) => Detail::decode(&data),
                    None => Detail::foreign(),
                };
                return Ok(Some(detail.holder));
            }
        }
        Ok(None)
    }

    /// Makes a line's node, and those above it.
    pub(super) async fn make_line(&self, session: &Session, name: &Name) -> Result<()> {
        self.make_own(session).await?;
        let (login, store) = (self.has_login(), &self.info.store);
        let line = self.layout.line(name);
        make(session, line, Sort::Container, MARK.to_vec(), login, store).await
    }

    /// Makes the store's own nodes, and those above them.
    pub(super) async fn make_own(&self, session: &Session) -> Result<()> {
        let (login, store) = (self.has_login(), &self.info.store);
        make_root(session, &self.layout.ancestors(), login, store).await?;
        for path in [self.layout.own(""), self.layout.own(MOMENT)] {
            make(session, path, Sort::Persistent, Vec::new(), login, store).await?;
        }
        Ok(())
    }
}

/// Makes the nodes below which lines are.
pub(super) async fn make_root(
    session: &Session,
    ancestors: &[String],
    login: bool,
    store: &str,
) -> Result<()> {
    for path in ancestors {
        make(session, path.clone(), Sort::Container, Vec::new(), login, store).await?;
    }
    Ok(())
}

/// Makes a node, if it is not there.
pub(super) async fn make(
    session: &Session,
    path: String,
    sort: Sort,
    data: Vec<u8>,
    login: bool,
    store: &str,
) -> Result<()> {
    let seen = session.ask(Request::Exists { path: path.clone(), watch: false }).await?;
    if seen.code == code::OK {
        return Ok(());
    }
    let acl = shared_acl(login);
    let made = session.ask(Request::Create { path, data, acl, sort }).await?;
    match made.code {
        code::OK | code::NODE_EXISTS => Ok(()),
        error => Err(failure::refusal(error, store)),
    }
}
