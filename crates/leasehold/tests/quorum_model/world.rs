//! The world of the model: nodes, clients that run the library's own ballot, and a wire that may
//! delay, reorder and lose everything.
//!
//! A packet that is never delivered is a lost packet. A client whose packets are never delivered
//! has crashed. Neither needs a step of its own, because the model only checks safety.

use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::error::NodeReason;
use leasehold::internal::quorum::ballot::{Answer, Ballot, Order, Step, Terms, majority};
use leasehold::internal::quorum::node_line::Position;
use leasehold::internal::quorum::tally::{RenewalTally, Renewed};

use crate::node::{Node, Rejoin};

/// All instants are the same: nothing here depends on time.
pub(crate) const NOW: Moment = Moment::from_nanos(1_000_000_000);
const KEPT_UNTIL: Moment = Moment::from_nanos(u64::MAX / 2);

/// A claim's id: the client's number in tens, its attempt in ones.
pub(crate) type Id = u8;

/// The offset of the id of a claim whose lease keeps the name closed: no client ever has such an
/// id.
pub(crate) const RETIRED: Id = 5;

/// The real protocol, and wrong ways to build it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    /// The protocol as it is.
    Built,
    /// The highest vote of a majority is the fence; votes are not raised to it.
    NoConfirm,
    /// A node raises its counter for every client that asks.
    UnconditionalConfirm,
    /// A node raises it for the claim that holds, whichever vote the claim has by now.
    ConfirmWithoutVote,
    /// A claim gets its vote when it joins the line.
    VoteAtJoin,
    /// All attempts of a client have one id.
    ReusedId,
    /// A renewal claims again at a node that lost the claim, and counts that node.
    RepairCounted,
}

/// The bounds of a search.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) nodes: usize,
    /// How many attempts each client makes.
    pub(crate) attempts: &'static [u8],
    /// The counters to begin with; one search covers all of them.
    pub(crate) counters: &'static [&'static [u64]],
    pub(crate) join: bool,
    /// The suggestion to the nodes with each question, and with each raise.
    pub(crate) hint: u64,
    pub(crate) raise_hint: u64,
    /// Whether answers, too, are in flight for any time.
    pub(crate) slow_answers: bool,
    /// How many claims lose a node: expiry, eviction, a step of the clock.
    pub(crate) losses: u8,
    /// For how many answers the clients stop waiting.
    pub(crate) silences: u8,
    /// How often clients' timers fire.
    pub(crate) timers: u8,
    /// Whether only the first client meets silence and timers.
    pub(crate) one_troubled: bool,
    pub(crate) renewals: u8,
    /// How many leases are given back so that their name stays closed.
    pub(crate) closings: u8,
    /// How many attempts clients give up before they end.
    pub(crate) abandons: u8,
    /// How many heartbeats the waiters send, each to all nodes.
    pub(crate) beats: u8,
    /// How a node that forgot everything comes back, if one does.
    pub(crate) rejoin: Option<Rejoin>,
    /// Whether claims outlive the attempts and leases that count on them, and probation outlives
    /// the same attempts and leases.
    pub(crate) timed: bool,
}

/// Violations that must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// Two leases with one fence.
    Duplicate,
    /// A lease was returned before another was asked for, and its fence is not smaller.
    RealTime,
    /// A lease that a majority keeps does not have the greatest fence of all so far.
    HolderBehind,
    /// A renewal succeeded that began after another client was granted a greater fence.
    Revived,
    /// Two leases at one time, although no node lost a claim before its time.
    Overlap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Enter { join: bool, hint: u64 },
    Raise { fence: u64 },
    GiveWay { up_to: u64 },
    Leave { hint: u64 },
    KeepClosed,
    Renew,
    Repair { fence: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Load {
    /// To the node. No client waits for the answer to a request that was given up.
    Request { verb: Verb, awaited: bool },
    /// To the client.
    Answer { position: Option<Position<Id>>, beat: bool },
    /// To the client.
    Bell { vote: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Packet {
    pub(crate) node: usize,
    pub(crate) id: Id,
    pub(crate) load: Load,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Asking(Ballot),
    Holding {
        fence: u64,
    },
    Renewing {
        fence: u64,
        tally: RenewalTally,
        /// The greatest fence of all when it began.
        others: u64,
        /// Whether a node had forgotten everything when it began.
        after_forgetting: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) id: Id,
    pub(crate) phase: Phase,
    pub(crate) attempts_left: u8,
    /// The greatest fence that any client had before this attempt began.
    floor: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    pub(crate) wire: Vec<Packet>,
    /// The fences of granted leases, sorted.
    pub(crate) won: Vec<u64>,
    pub(crate) losses_left: u8,
    pub(crate) silences_left: u8,
    pub(crate) timers_left: u8,
    pub(crate) renewals_left: u8,
    pub(crate) closings_left: u8,
    pub(crate) abandons_left: u8,
    pub(crate) beats_left: u8,
    /// Whether a node lost a claim on which a client counted.
    pub(crate) lost: bool,
    pub(crate) forgot: bool,
    pub(crate) fault: Option<Fault>,
}

impl World {
    pub(crate) fn new(bounds: &Bounds, counters: &[u64]) -> Self {
        let client = |(index, attempts): (usize, &u8)| Client {
            id: 10 * index as u8,
            phase: Phase::Idle,
            attempts_left: *attempts,
            floor: 0,
        };
        Self {
            nodes: counters.iter().map(|counter| Node::new(*counter)).collect(),
            clients: bounds.attempts.iter().enumerate().map(client).collect(),
            wire: Vec::new(),
            won: Vec::new(),
            losses_left: bounds.losses,
            silences_left: bounds.silences,
            timers_left: bounds.timers,
            renewals_left: bounds.renewals,
            closings_left: bounds.closings,
            abandons_left: bounds.abandons,
            beats_left: bounds.beats,
            lost: false,
            forgot: false,
            fault: None,
        }
    }

    fn greatest(&self) -> u64 {
        self.won.last().copied().unwrap_or(0)
    }

    /// Whether an attempt or a lease with this id is going on.
    pub(crate) fn is_active(&self, id: Id) -> bool {
        let client = &self.clients[usize::from(id / 10)];
        client.id == id && client.phase != Phase::Idle
    }

    pub(crate) fn send(&mut self, packet: Packet) {
        let at = self.wire.partition_point(|other| *other < packet);
        self.wire.insert(at, packet);
    }

    fn request(&mut self, client: usize, node: usize, verb: Verb, awaited: bool) {
        let load = Load::Request { verb, awaited };
        self.send(Packet { node, id: self.clients[client].id, load });
    }

    pub(crate) fn begin(&mut self, bounds: &Bounds, variant: Variant, index: usize) {
        let floor = self.greatest();
        let client = &mut self.clients[index];
        client.attempts_left -= 1;
        if variant != Variant::ReusedId {
            client.id += 1;
        }
        client.floor = floor;
        let (nodes, join) = (bounds.nodes, bounds.join);
        let terms = Terms { nodes, join, round: 0, margin: Duration::ZERO };
        client.phase = Phase::Asking(Ballot::new(terms));
        self.drive(bounds, variant, index, NOW);
    }

    /// Lets a client follow its ballot until it waits.
    pub(crate) fn drive(&mut self, bounds: &Bounds, variant: Variant, index: usize, now: Moment) {
        loop {
            let Phase::Asking(ballot) = &mut self.clients[index].phase else { return };
            if variant == Variant::NoConfirm {
                let votes: Vec<u64> = ballot.votes().flatten().collect();
                if votes.len() >= majority(bounds.nodes) {
                    let fence = votes.into_iter().max().expect("a majority is somebody");
                    return self.win(bounds, index, fence);
                }
            }
            match ballot.next(now, bounds.raise_hint, 0) {
                Step::Send { node, order } => {
                    let verb = match order {
                        Order::Ask => Verb::Enter { join: bounds.join, hint: bounds.hint },
                        Order::Raise { fence } => Verb::Raise { fence },
                        Order::GiveWay { up_to } => Verb::GiveWay { up_to },
                    };
                    self.request(index, node, verb, true);
                }
                Step::Wait { .. } => return,
                Step::Won { fence, .. } => return self.win(bounds, index, fence),
                Step::Taken { .. } | Step::Again { .. } | Step::Failed => {
                    return self.end(index, 0);
                }
            }
        }
    }

    fn win(&mut self, bounds: &Bounds, index: usize, fence: u64) {
        let Phase::Asking(ballot) = &self.clients[index].phase else { return };
        let id = self.clients[index].id;
        let kept = ballot.votes().zip(&self.nodes).all(|(vote, node)| {
            let counted = vote == Some(fence);
            let holds = Position::Holds { vote: fence };
            !counted || node.line.position(id) == holds
        });
        let holding = |client: &Client| {
            matches!(client.phase, Phase::Holding { .. } | Phase::Renewing { .. })
        };
        let excluded = bounds.timed || !(self.lost || self.forgot);
        let fault = if self.won.contains(&fence) {
            Some(Fault::Duplicate)
        } else if fence <= self.clients[index].floor {
            Some(Fault::RealTime)
        } else if kept && !self.forgot && fence < self.greatest() {
            Some(Fault::HolderBehind)
        } else if excluded && self.clients.iter().any(holding) {
            Some(Fault::Overlap)
        } else {
            None
        };
        self.fault = self.fault.or(fault);
        let at = self.won.partition_point(|other| *other < fence);
        self.won.insert(at, fence);
        self.clients[index].phase = Phase::Holding { fence };
        self.stop_waiting(id);
    }

    /// Gives the claim back at all nodes, also at those that gave no answer.
    pub(crate) fn end(&mut self, index: usize, hint: u64) {
        for node in 0..self.nodes.len() {
            self.request(index, node, Verb::Leave { hint }, false);
        }
        self.lapse(index);
    }

    /// Gives a lease back, and lets its name stay closed until the nodes lose the claim.
    pub(crate) fn keep_closed(&mut self, index: usize) {
        for node in 0..self.nodes.len() {
            self.request(index, node, Verb::KeepClosed, false);
        }
        self.lapse(index);
    }

    /// Ends an attempt or a lease without a message to the nodes.
    pub(crate) fn lapse(&mut self, index: usize) {
        self.clients[index].phase = Phase::Idle;
        self.stop_waiting(self.clients[index].id);
    }

    /// No client listens for answers that are still in flight to this id; nodes still execute its
    /// requests.
    fn stop_waiting(&mut self, id: Id) {
        self.wire.retain(|packet| packet.id != id || !matches!(packet.load, Load::Answer { .. }));
        for packet in &mut self.wire {
            if let Load::Request { awaited, .. } = &mut packet.load
                && packet.id == id
            {
                *awaited = false;
            }
        }
        self.wire.sort_unstable();
    }

    /// Drops packets that can have no effect any more, so that states that differ in nothing else
    /// become one.
    pub(crate) fn sweep(&mut self, variant: Variant) {
        let wire = std::mem::take(&mut self.wire);
        let enters = |node: usize, id: Id| {
            wire.iter().any(|packet| {
                let load = packet.load;
                let enter = matches!(
                    load,
                    Load::Request { verb: Verb::Enter { .. } | Verb::Repair { .. }, .. }
                );
                enter && packet.node == node && packet.id == id
            })
        };
        let may_matter = |packet: &&Packet| match packet.load {
            Load::Answer { .. } | Load::Request { awaited: true, .. } => true,
            Load::Request { verb: Verb::Enter { .. } | Verb::Repair { .. }, .. } => true,
            Load::Request { .. } => {
                let line = &self.nodes[packet.node].line;
                let is_out = matches!(line.position(packet.id), Position::Out { .. });
                let comes_back = variant == Variant::ReusedId && self.may_begin(packet.id);
                !is_out || comes_back || enters(packet.node, packet.id)
            }
            Load::Bell { vote } => {
                let client = &self.clients[usize::from(packet.id / 10)];
                match &client.phase {
                    Phase::Asking(ballot) if client.id == packet.id => {
                        ballot.votes().nth(packet.node).flatten().is_none_or(|known| known < vote)
                    }
                    _ => variant == Variant::ReusedId && self.may_begin(packet.id),
                }
            }
        };
        self.wire = wire.iter().filter(may_matter).copied().collect();
    }

    fn may_begin(&self, id: Id) -> bool {
        self.clients[usize::from(id / 10)].attempts_left > 0
    }

    /// Whether no client can be granted or renewed any more.
    pub(crate) fn is_over(&self) -> bool {
        self.clients.iter().all(|client| match client.phase {
            Phase::Idle => client.attempts_left == 0,
            Phase::Holding { .. } => client.attempts_left == 0 && self.renewals_left == 0,
            Phase::Asking(_) | Phase::Renewing { .. } => false,
        })
    }

    /// A packet arrives at its node.
    pub(crate) fn execute(&mut self, bounds: &Bounds, variant: Variant, packet: Packet) {
        let Load::Request { verb, awaited } = packet.load else { return };
        let rank = u64::from(packet.id / 10);
        let node = &mut self.nodes[packet.node];
        let (position, rung) = node.execute(variant, packet.id, rank, verb);
        if let Some(next) = rung {
            let load = Load::Bell { vote: next.vote };
            self.send(Packet { node: packet.node, id: next.claim.id, load });
        }
        if awaited {
            let beat = verb == Verb::Renew;
            let answer = Packet { load: Load::Answer { position, beat }, ..packet };
            if bounds.slow_answers {
                self.send(answer);
            } else {
                self.deliver(bounds, variant, answer);
            }
        }
    }

    /// A packet arrives at its client.
    pub(crate) fn deliver(&mut self, bounds: &Bounds, variant: Variant, packet: Packet) {
        let index = usize::from(packet.id / 10);
        let client = &mut self.clients[index];
        if client.id != packet.id {
            return;
        }
        match (&mut client.phase, packet.load) {
            (Phase::Asking(ballot), Load::Answer { position, beat: true }) => {
                ballot.beaten(packet.node, answer(position));
            }
            (Phase::Asking(ballot), Load::Answer { position, beat: false }) => {
                ballot.answered(packet.node, answer(position), NOW, Duration::ZERO);
            }
            (Phase::Asking(ballot), Load::Bell { vote }) => {
                // The node keeps waiting claims, so a place that is known to wait is kept.
                let _known = ballot.rung(packet.node, vote);
            }
            (Phase::Renewing { tally, .. }, Load::Answer { position, .. }) => {
                tally.answered(packet.node, answer(position));
                return self.settle_renewal(index);
            }
            _ => return,
        }
        self.drive(bounds, variant, index, NOW);
    }

    /// A client that waits sends its heartbeat.
    pub(crate) fn beat(&mut self, index: usize) {
        self.beats_left -= 1;
        if let Phase::Asking(ballot) = &mut self.clients[index].phase {
            ballot.beat_begins();
            for node in 0..self.nodes.len() {
                self.request(index, node, Verb::Renew, true);
            }
        }
    }

    pub(crate) fn renew(&mut self, index: usize) {
        let (nodes, others, after_forgetting) = (self.nodes.len(), self.greatest(), self.forgot);
        let client = &mut self.clients[index];
        if let Phase::Holding { fence } = client.phase {
            let tally = RenewalTally::new(nodes, fence);
            client.phase = Phase::Renewing { fence, tally, others, after_forgetting };
            self.renewals_left -= 1;
            for node in 0..nodes {
                self.request(index, node, Verb::Renew, true);
            }
        }
    }

    fn settle_renewal(&mut self, index: usize) {
        let Phase::Renewing { fence, tally, others, after_forgetting } = &self.clients[index].phase
        else {
            return;
        };
        let (fence, others, after_forgetting) = (*fence, *others, *after_forgetting);
        match tally.verdict() {
            Renewed::Kept { .. } => {
                let lost = tally.to_repair();
                if others > fence {
                    self.fault = self.fault.or(Some(Fault::Revived));
                }
                self.clients[index].phase = Phase::Holding { fence };
                self.stop_waiting(self.clients[index].id);
                if after_forgetting {
                    // A majority without the memory of that node keeps the lease: its wait is over
                    // as far as this lease matters.
                    let id = self.clients[index].id;
                    self.nodes.iter_mut().for_each(|node| node.wait_no_more_for(id));
                }
                for node in lost {
                    self.request(index, node, Verb::Repair { fence }, false);
                }
            }
            Renewed::Lost { .. } => self.end(index, 0),
            Renewed::Pending | Renewed::Unsure => {}
        }
    }

    /// A client stops waiting for a node's answer.
    pub(crate) fn silence(&mut self, bounds: &Bounds, variant: Variant, index: usize, at: usize) {
        let id = self.clients[index].id;
        let Phase::Asking(ballot) = &mut self.clients[index].phase else { return };
        ballot.answered(at, Answer::Failed(NodeReason::Silent), NOW, Duration::ZERO);
        self.silences_left -= 1;
        let is_awaited = |packet: &Packet| {
            packet.node == at
                && packet.id == id
                && match packet.load {
                    Load::Request { verb, awaited } => awaited && verb != Verb::Renew,
                    Load::Answer { beat, .. } => !beat,
                    Load::Bell { .. } => false,
                }
        };
        if let Some(found) = self.wire.iter().position(is_awaited) {
            let packet = self.wire.remove(found);
            if let Load::Request { verb, .. } = packet.load {
                self.send(Packet { load: Load::Request { verb, awaited: false }, ..packet });
            }
        }
        self.drive(bounds, variant, index, NOW);
    }
}

fn answer(position: Option<Position<Id>>) -> Answer {
    match position {
        Some(Position::Holds { vote }) => Answer::Holds { vote, kept_until: KEPT_UNTIL },
        Some(Position::Waits { better, .. }) => {
            Answer::Waits { ahead: 0, better: better > 0, kept_until: KEPT_UNTIL }
        }
        Some(Position::Out { .. }) => Answer::Out { by: None },
        None => Answer::Failed(NodeReason::Probation),
    }
}
