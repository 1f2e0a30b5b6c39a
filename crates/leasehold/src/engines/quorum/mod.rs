//! Redlock: N independent nodes, of which a majority makes a lease, with fences that rise.
//!
//! The pure parts are run by the model checker and the simulated contests as they are. [`Node`] is
//! what one node must be able to do, and [`Quorum`] the engine that drives them.
//!
//! | part | what it decides |
//! |---|---|
//! | [`node_line`] | one node: whose turn it is, and the vote of each tenure |
//! | [`ballot`] | one attempt: whom to ask, when a majority agrees, when to give way |
//! | [`tally`] | what the answers to a renewal or a release mean together |
//! | [`clocks`] | what to suggest as a vote, and where to stand in line |
//! | `engine`, `attempt`, `round` | the verbs: who is asked, in which order, on which task |
//! | `closing` | a lease that is given back, and keeps its name closed |
//! | `leaving`, `owed` | what a node did not answer is said again when it does |
//! | `probation` | when a node that forgot may vote again |
//! | `survey` | what the nodes' lines look like together |
//!
//! The protocol, its proof and its limits are in `docs/engines/redlock.md`.

mod attempt;
pub mod ballot;
pub mod clocks;
mod closing;
mod engine;
mod leaving;
pub mod node_line;
mod owed;
mod probation;
mod round;
mod survey;
pub mod tally;

#[cfg(test)]
mod late_repair_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::engine::{Eviction, Finding, HolderMessage, Query, Wake};
use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Holder, Note, Released, Renewal, Token};
use crate::rule::name::Name;

pub use engine::{Quorum, Settings};

/// One of the stores of a quorum.
///
/// Only exclusive claims. Each verb is atomic for its name at this node, and does to the line what
/// the method of [`NodeLine`](node_line::NodeLine) named in its documentation does, after taking
/// out whatever has expired; whoever holds by that gets a vote from the node's clock and counter
/// alone, and is rung. A key of somebody else's library in the place of the lock counts as a
/// holder without rank: it is waited for and never made to give way.
///
/// **Votes.** A line keeps a vote for whoever holds. It is drawn when the tenure begins
/// ([`Seed::draw`](node_line::Seed::draw)), on entering a free line, at a hand-over and at an
/// expiry alike, never on joining. The counter it is drawn from never expires and never falls; it
/// may be shared by several names. Bells carry the vote: [`bell`](Node::bell) answers
/// [`Wake::Holds`] with it.
///
/// **Order.** Waiting claims stand in order of rank, then of token, not of arrival. The holder's
/// rank is kept too: `better` counts it.
///
/// **Time.** A claim that holds is kept for `ttl` from the last verb on it, one that waits for
/// `patience`; a hand-over changes nothing about that, so a tenure that a bell tells of lasts as
/// long as the claim was kept waiting. Every reply shows the node's clock.
///
/// **Owners.** A claim's attempts have tokens of their own. The token that the claim's owner knows
/// goes along with [`enter`](Node::enter). [`keep`](Node::keep),
/// [`keep_closed`](Node::keep_closed) and [`leave`](Node::leave) find a claim by either, so that
/// another process can take a lease up by its handle.
///
/// **Probation.** A node votes only under a [`Marker`] that names the present run of its process.
/// The connection reads the run's id once, when it is opened (a connection does not survive its
/// server), and every [`enter`](Node::enter) sends it along; the node compares it with the
/// marker. So neither a restart nor the loss of all data can go unnoticed, and no command asks
/// for it separately. The other verbs work on probation too.
///
/// **Sending.** A verb is sent once. A driver must not send it again by itself, and what was not
/// answered in time counts as not answered, whatever comes later.
#[async_trait]
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// Where it is, without credentials.
    fn address(&self) -> &str;

    /// Hangs up an attempt's bell. To be called before it enters.
    fn expect(&self, token: Token);

    /// An attempt is over; its bell rings no more.
    fn forget(&self, token: &Token);

    /// Ends when the node rings the attempt, or it is worth asking again because bells may have
    /// been lost. A bell that rang since the last one was heard counts.
    async fn bell(&self, token: &Token) -> Wake;

    /// Joins the line, or says how the claim stands: [`NodeLine::enter`]. Either way its time
    /// starts anew. The answer on probation is [`Seat::Probation`], and nothing has changed.
    ///
    /// [`NodeLine::enter`]: node_line::NodeLine::enter
    async fn enter(&self, claim: &Claim, owner: &Token, rank: u64, hint: u64) -> Result<Reply>;

    /// Raises the vote of the claim's tenure to `fence`, if the claim holds with a vote up to it:
    /// [`NodeLine::raise`]. Never more than that one condition, and never less: the proof hangs
    /// on it. If it holds, its time starts anew with `ttl`.
    ///
    /// [`NodeLine::raise`]: node_line::NodeLine::raise
    async fn raise(&self, key: &ClaimKey, fence: u64, ttl: Duration) -> Result<Reply>;

    /// Ends the claim's tenure if its vote is at most `up_to`, puts it back in line by its rank,
    /// kept for `patience`, and hands the line to the first: [`NodeLine::give_way`].
    ///
    /// [`NodeLine::give_way`]: node_line::NodeLine::give_way
    async fn give_way(&self, key: &ClaimKey, order: &GiveWay) -> Result<Reply>;

    /// Keeps claims alive, all in one exchange; never puts one back.
    async fn keep(&self, renewals: &[Renewal]) -> Result<Vec<Reply>>;

    /// Puts back the claim of a lease that this node lost, after a renewal that a majority kept:
    /// joins the line like [`enter`](Node::enter), also on probation, with the counter raised to
    /// `fence` before a vote is drawn. So its vote is above the fence, and it never counts for a
    /// renewal; it only keeps others out.
    async fn repair(&self, claim: &Claim, owner: &Token, rank: u64, fence: u64) -> Result<Reply>;

    /// Takes claims out of their lines, all in one exchange, and hands each line to the first who
    /// waits, with `hint`: [`NodeLine::leave`](node_line::NodeLine::leave).
    async fn leave(&self, keys: &[ClaimKey], hint: u64) -> Result<Vec<Released>>;

    /// Lets the claim of a lease stay for `stay` under the token `new`, which no owner knows:
    /// [`NodeLine::keep_closed`](node_line::NodeLine::keep_closed). A claim that waits here is no
    /// part of the lease: it leaves the line, and the answer is that it was not there.
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration, new: &Token) -> Result<Released>;

    /// Takes a name from the claim that holds it here, if its vote is up to a fence of the order,
    /// and returns its holder. A claim that is granted later has a greater vote at a majority.
    /// Where the order says that the record is unreadable, and it is so here, the node removes it.
    async fn evict(&self, order: &Eviction, hint: u64) -> Result<Option<Holder>>;

    /// Hands a message to the clients that listen to this node.
    async fn send(&self, message: &HolderMessage) -> Result<()>;

    /// Messages from the answer on, until one may have been missed.
    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>>;

    /// The lines of the first names asked for, in name order; at most `limit`.
    async fn view(&self, query: &Query, limit: usize) -> Result<Vec<NodeView>>;

    /// What the node says about itself, read on a connection of the present run.
    async fn passport(&self) -> Result<Passport>;

    /// The greatest number any of its counters has reached; 0 if it has none. May be slow.
    async fn ceiling(&self) -> Result<u64>;

    /// Lets the node vote: if its marker still is what `passport` showed and it is still the same
    /// run, every counter of it, those to come among them, is raised to `floor`, and the marker
    /// is written, all at once. Answers whether it was done.
    async fn admit(&self, passport: &Passport, marker: &Marker, floor: u64) -> Result<bool>;

    /// Looks at the node's settings with the eyes of somebody who needs the promises kept.
    async fn examine(&self) -> Result<Vec<Finding>>;

    /// What looks like locks of others that the prefix does not reach; `None` if there are none, or
    /// the node does not say. May be slow.
    async fn strangers(&self) -> Option<Finding>;

    /// Looks at the node's policy of eviction. Answers it if the node may evict by it what is held,
    /// and could not when it was last asked, or met.
    async fn began_to_evict(&self) -> Result<Option<String>>;

    /// Gives up mailboxes and connections.
    fn close(&self);
}

/// One name's line as one node has it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// The name.
    pub name: Name,
    /// How long a key of somebody else's library is still in the place of the lock, if one is.
    pub foreign: Option<Duration>,
    /// The claims, the one that holds first.
    pub claims: Vec<NodeClaim>,
    /// Whether the node's record holds something that leasehold never writes. Then nothing else of
    /// the view is known.
    pub broken: bool,
}

/// A claim as one node has it.
#[derive(Debug, Clone)]
pub struct NodeClaim {
    /// The attempt's token.
    pub token: Token,
    /// Its place in line.
    pub rank: u64,
    /// Who.
    pub holder: Holder,
    /// What its holder wrote.
    pub note: Note,
    /// The number of its tenure, if it holds.
    pub vote: Option<u64>,
    /// Since when it holds, or waits.
    pub age: Duration,
    /// How long without another word.
    pub remaining: Duration,
}

/// An order to give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GiveWay {
    /// The vote that is given up; a later tenure is left alone.
    pub up_to: u64,
    /// What to suggest as a vote to whoever is next.
    pub hint: u64,
    /// How long the claim is kept waiting without another word.
    pub patience: Duration,
}

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// How the claim stands.
    pub seat: Seat,
    /// The node's clock, in microseconds.
    pub time: u64,
}

/// How a claim stands at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seat {
    /// It holds.
    Holds {
        /// The number of its tenure.
        vote: u64,
        /// How long the node keeps it without another word.
        remaining: Duration,
    },
    /// It is in line.
    Waits {
        /// How many claims are before it.
        ahead: usize,
        /// Whether somebody in the line has a better rank, the holder among them.
        better: bool,
        /// When to ask again although no bell rang.
        retry_in: Duration,
    },
    /// It is not in line.
    Out {
        /// How many claims are in line.
        ahead: usize,
        /// When to ask again although no bell rang.
        retry_in: Duration,
        /// Who holds, if anybody of ours does.
        by: Option<Holder>,
    },
    /// The node may not vote yet.
    Probation,
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passport {
    /// The node's clock, in microseconds.
    pub time: u64,
    /// The id of this run of the server's process.
    pub run_id: String,
    /// Whether everything it answers is on disk before it does.
    pub durable: bool,
    /// Under which terms it was last admitted; `None` if it knows of no admission.
    pub marker: Option<Marker>,
}

impl Passport {
    /// Whether the node may vote.
    pub fn is_admitted(&self) -> bool {
        self.marker.as_ref().is_some_and(|marker| marker.run_id == self.run_id)
    }
}

/// Under which terms a node votes. Those of all nodes must agree but for the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The run that was admitted.
    pub run_id: String,
    /// The set of nodes it belongs to: random, made when the set was founded.
    pub set_id: u128,
    /// How many nodes the set has.
    pub nodes: usize,
    /// The longest ttl in the set: what a node that forgot has to wait for.
    pub ttl_max: Duration,
}
