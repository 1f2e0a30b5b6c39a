//! A simulated contest on a virtual clock: clients run the library's ballot, nodes run its rule,
//! and the network takes its time.
//!
//! Everything follows from the seed. The contest counts commands and virtual time, so the results
//! describe the protocol and not the machine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::error::NodeReason;
use leasehold::internal::quorum::ballot::{Answer, Ballot, Order, Step, Terms};
use leasehold::internal::quorum::clocks::NodeClocks;
use leasehold::internal::quorum::node_line::{NodeLine, Position, Seed, Waiting};

/// The start of the nodes' clocks, in microseconds: some day in 2026.
const EPOCH: u64 = 1_790_000_000_000_000;

/// How long a node keeps a claim without a renewal or heartbeat.
const TTL: Duration = Duration::from_secs(10);

/// How long a client waits for a node's answer.
const NODE_TIMEOUT: Duration = Duration::from_millis(200);

/// When a contest counts as one that never ends, in nanoseconds.
const TOO_LATE: u64 = 120_000_000_000;

type Id = u32;

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// How many leases each client takes.
    pub(crate) leases: u32,
    /// How long each lease is held.
    pub(crate) hold: Duration,
    /// The clients come within this time.
    pub(crate) spread: Duration,
    /// How long a packet is in flight: at least, and as much again by chance.
    pub(crate) way: Duration,
    /// How long a node works on a command.
    pub(crate) work: Duration,
    /// By how much the nodes' clocks differ from each other.
    pub(crate) skew: Duration,
    /// How many of a hundred bells are lost.
    pub(crate) bells_lost: u32,
    /// These nodes never answer.
    pub(crate) dead: Vec<usize>,
    /// Whether clients stand in line.
    pub(crate) join: bool,
    /// After this number of grants, and each multiple of it, the granted client dies; 0 for never.
    pub(crate) dies_every: usize,
    /// Whether each node orders its line by arrival, instead of all by one rank.
    pub(crate) own_orders: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 3,
            clients: 200,
            leases: 1,
            hold: Duration::ZERO,
            spread: Duration::ZERO,
            way: Duration::from_micros(50),
            work: Duration::from_micros(10),
            skew: Duration::from_millis(2),
            bells_lost: 0,
            dead: Vec::new(),
            join: true,
            dies_every: 0,
            own_orders: false,
        }
    }
}

/// The outcome of a contest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Whether every client had all its leases before it was too late.
    pub(crate) ended: bool,
    pub(crate) grants: usize,
    /// All commands to nodes, without heartbeats.
    pub(crate) commands: usize,
    pub(crate) raises: usize,
    pub(crate) ways_given: usize,
    pub(crate) deaths: usize,
    /// From the first question to the last lease.
    pub(crate) took: Duration,
    /// The longest time without a holder while a client wanted the name.
    pub(crate) longest_gap: Duration,
    /// Grants to a client while one that came earlier was still waiting.
    pub(crate) overtakes: usize,
    pub(crate) fences: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Enter { rank: u64 },
    Raise { fence: u64 },
    GiveWay { up_to: u64 },
    Leave,
    Renew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begin,
    Arrive { node: usize, verb: Verb, hint: u64, sent: u64 },
    Answer { node: usize, verb: Verb, position: Position<Id>, time: u64, sent: u64 },
    Silent { node: usize, number: u64 },
    Bell { node: usize, vote: u64 },
    Timer,
    Beat,
    Done,
    Expire { node: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    order: u64,
    id: Id,
    what: What,
}

#[derive(Debug, Default)]
struct Server {
    line: NodeLine<Id>,
    counter: u64,
    skew: u64,
    busy_until: u64,
    expires: HashMap<Id, u64>,
}

#[derive(Debug)]
struct Client {
    id: Id,
    rank: u64,
    leases_left: u32,
    ballot: Option<Ballot>,
    round: u32,
    clocks: NodeClocks,
    fence: u64,
    asked_at: u64,
    /// Numbers the commands to each node, to tell a late silence from one that matters.
    sent: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Arena {
    setup: Setup,
    events: BinaryHeap<Reverse<Event>>,
    now: u64,
    order: u64,
    dice: u64,
    servers: Vec<Server>,
    clients: Vec<Client>,
    outcome: Outcome,
    free_since: Option<u64>,
    holder: Option<usize>,
}

impl Arena {
    pub(crate) fn run(setup: Setup) -> Outcome {
        let mut arena = Self::new(setup);
        while let Some(Reverse(event)) = arena.events.pop()
            && event.at < TOO_LATE
        {
            arena.now = event.at;
            arena.happen(event);
            if arena.clients.iter().all(|client| client.leases_left == 0) {
                arena.outcome.ended = true;
                break;
            }
        }
        let fences = &arena.outcome.fences;
        assert!(fences.is_sorted_by(|one, next| one < next), "fences rise with the grants");
        arena.outcome
    }

    fn new(setup: Setup) -> Self {
        let mut arena = Self {
            events: BinaryHeap::new(),
            now: 1_000_000_000,
            order: 0,
            dice: setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            servers: Vec::new(),
            clients: Vec::new(),
            outcome: Outcome::default(),
            free_since: Some(1_000_000_000),
            holder: None,
            setup,
        };
        for _ in 0..arena.setup.nodes {
            let skew = arena.chance(arena.setup.skew.as_micros() as u64 + 1);
            arena.servers.push(Server { skew, ..Server::default() });
        }
        for index in 0..arena.setup.clients {
            let mut clocks = NodeClocks::new(arena.setup.nodes);
            let at = Moment::from_nanos(arena.now);
            for (node, server) in arena.servers.iter().enumerate() {
                if !arena.setup.dead.contains(&node) {
                    // The reading of the clock when the client connected.
                    clocks.read(node, server.time(arena.now), at, at + 2 * arena.setup.way);
                }
            }
            arena.clients.push(Client {
                id: index as Id,
                rank: 0,
                leases_left: arena.setup.leases,
                ballot: None,
                round: 0,
                clocks,
                fence: 0,
                asked_at: 0,
                sent: vec![0; arena.setup.nodes],
            });
            let delay = arena.chance(arena.setup.spread.as_nanos() as u64 + 1);
            arena.later(delay, index as Id, What::Begin);
        }
        arena
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % below.max(1)
    }

    fn later(&mut self, delay: u64, id: Id, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at: self.now + delay, order: self.order, id, what }));
    }

    fn travel(&mut self) -> u64 {
        let way = self.setup.way.as_nanos() as u64;
        way + self.chance(way)
    }

    /// The client that has this id now; the attempts of one client have increasing ids.
    fn owner(&self, id: Id) -> usize {
        id as usize % self.setup.clients
    }

    fn happen(&mut self, event: Event) {
        let Event { id, what, .. } = event;
        let owner = self.owner(id);
        let current = self.clients[owner].id == id;
        match what {
            What::Begin => self.begin(owner),
            What::Arrive { node, verb, hint, sent } => self.arrive(node, id, verb, hint, sent),
            What::Expire { node } => self.expire(node, id),
            _ if !current => {}
            What::Answer { node, verb, position, time, sent } => {
                self.answered(owner, node, verb, position, (time, sent));
            }
            What::Silent { node, number } => {
                let now = Moment::from_nanos(self.now);
                let client = &mut self.clients[owner];
                if let Some(ballot) = &mut client.ballot
                    && client.sent[node] == number
                {
                    ballot.answered(node, Answer::Failed(NodeReason::Silent), now, NODE_TIMEOUT);
                    self.drive(owner);
                }
            }
            What::Bell { node, vote } => {
                if let Some(ballot) = &mut self.clients[owner].ballot {
                    ballot.rung(node, vote);
                    self.drive(owner);
                }
            }
            What::Timer => self.drive(owner),
            What::Beat => self.beat(owner),
            What::Done => self.done(owner),
        }
    }

    fn begin(&mut self, index: usize) {
        let now = Moment::from_nanos(self.now);
        let (nodes, join, count) = (self.setup.nodes, self.setup.join, self.setup.clients);
        let client = &mut self.clients[index];
        client.id += count as Id;
        if client.round == 0 {
            client.rank = client.clocks.time_at(now);
            client.asked_at = self.now;
        }
        let margin = Duration::from_millis(102);
        client.ballot = Some(Ballot::new(Terms { nodes, join, round: client.round, margin }));
        let id = client.id;
        self.later(900_000_000, id, What::Beat);
        self.drive(index);
    }

    fn send(&mut self, index: usize, node: usize, verb: Verb) {
        let now = Moment::from_nanos(self.now);
        let client = &mut self.clients[index];
        client.sent[node] += 1;
        let (id, number) = (client.id, client.sent[node]);
        let hint = client.clocks.hint(now, client.fence);
        self.outcome.commands += usize::from(verb != Verb::Renew);
        match verb {
            Verb::Raise { .. } => self.outcome.raises += 1,
            Verb::GiveWay { .. } => self.outcome.ways_given += 1,
            _ => {}
        }
        if matches!(verb, Verb::Enter { .. } | Verb::Raise { .. } | Verb::GiveWay { .. }) {
            self.later(NODE_TIMEOUT.as_nanos() as u64, id, What::Silent { node, number });
        }
        if !self.setup.dead.contains(&node) {
            let (delay, sent) = (self.travel(), self.now);
            self.later(delay, id, What::Arrive { node, verb, hint, sent });
        }
    }

    fn drive(&mut self, index: usize) {
        loop {
            let (now, dice) = (Moment::from_nanos(self.now), self.chance(1 << 32) as u32);
            let client = &mut self.clients[index];
            let hint = client.clocks.hint(now, client.fence);
            let Some(ballot) = &mut client.ballot else { return };
            match ballot.next(now, hint, dice) {
                Step::Send { node, order } => {
                    let verb = match order {
                        Order::Ask => Verb::Enter { rank: client.rank },
                        Order::Raise { fence } => Verb::Raise { fence },
                        Order::GiveWay { up_to } => Verb::GiveWay { up_to },
                    };
                    self.send(index, node, verb);
                }
                Step::Wait { until, .. } => {
                    if until < Moment::NEVER {
                        let delay = until.as_nanos().saturating_sub(self.now);
                        let id = client.id;
                        self.later(delay.max(1), id, What::Timer);
                    }
                    return;
                }
                Step::Won { fence, .. } => return self.won(index, fence),
                Step::Again { at } => {
                    let delay = at.as_nanos().saturating_sub(self.now);
                    client.round += 1;
                    self.release(index);
                    let id = self.clients[index].id;
                    return self.later(delay, id, What::Begin);
                }
                Step::Taken { .. } | Step::Failed => {
                    client.round = 0;
                    self.release(index);
                    let delay = 1_000_000 + self.chance(9_000_000);
                    let id = self.clients[index].id;
                    return self.later(delay, id, What::Begin);
                }
            }
        }
    }

    fn won(&mut self, index: usize, fence: u64) {
        assert_eq!(self.holder, None, "one lease at a time");
        let asked_at = self.clients[index].asked_at;
        let passed = |client: &Client| client.ballot.is_some() && client.asked_at < asked_at;
        self.outcome.overtakes += usize::from(self.clients.iter().any(passed));
        if let Some(since) = self.free_since.take() {
            let gap = Duration::from_nanos(self.now - since.max(1_000_000_000));
            self.outcome.longest_gap = self.outcome.longest_gap.max(gap);
        }
        self.outcome.grants += 1;
        self.outcome.fences.push(fence);
        self.outcome.took = Duration::from_nanos(self.now - 1_000_000_000);
        let client = &mut self.clients[index];
        client.ballot = None;
        client.fence = fence;
        client.round = 0;
        client.leases_left -= 1;
        let every = self.setup.dies_every;
        if every > 0 && self.outcome.grants.is_multiple_of(every) {
            // The client sends nothing more; the nodes keep its claim until its time runs out.
            self.outcome.deaths += 1;
            client.leases_left = 0;
            client.id = Id::MAX - client.id % self.setup.clients as Id;
            self.free_since = Some(self.now);
            return;
        }
        self.holder = Some(index);
        let (id, hold) = (client.id, self.setup.hold.as_nanos() as u64);
        self.later(hold, id, What::Done);
    }

    fn done(&mut self, index: usize) {
        self.holder = None;
        self.free_since = Some(self.now);
        self.release(index);
        if self.clients[index].leases_left > 0 {
            let id = self.clients[index].id;
            self.later(1, id, What::Begin);
        }
    }

    fn release(&mut self, index: usize) {
        self.clients[index].ballot = None;
        for node in 0..self.setup.nodes {
            self.send(index, node, Verb::Leave);
        }
    }

    fn beat(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(ballot) = &mut client.ballot else { return };
        ballot.beat_begins();
        let id = client.id;
        for node in 0..self.setup.nodes {
            self.send(index, node, Verb::Renew);
        }
        self.later(900_000_000, id, What::Beat);
    }

    fn answered(
        &mut self,
        index: usize,
        node: usize,
        verb: Verb,
        position: Position<Id>,
        (time, sent): (u64, u64),
    ) {
        let (sent, now) = (Moment::from_nanos(sent), Moment::from_nanos(self.now));
        let client = &mut self.clients[index];
        client.clocks.read(node, time, sent, now);
        let Some(ballot) = &mut client.ballot else { return };
        let kept_until = sent + TTL;
        let answer = match position {
            Position::Holds { vote } => Answer::Holds { vote, kept_until },
            Position::Waits { ahead, better } => {
                Answer::Waits { ahead, better: better > 0, kept_until }
            }
            Position::Out { .. } => Answer::Out { by: None },
        };
        match verb {
            Verb::Renew => ballot.beaten(node, answer),
            _ => ballot.answered(node, answer, now, now.since(sent)),
        }
        self.drive(index);
    }

    fn arrive(&mut self, node: usize, id: Id, verb: Verb, hint: u64, sent: u64) {
        let (now, work, join) = (self.now, self.setup.work.as_nanos() as u64, self.setup.join);
        let own_orders = self.setup.own_orders;
        let server = &mut self.servers[node];
        let done = server.busy_until.max(now) + work;
        server.busy_until = done;
        let time = server.time(done);
        let seed = Seed { time, hint };
        let Server { line, counter, .. } = server;
        let (position, rung) = match verb {
            Verb::Enter { rank } => {
                let rank = if own_orders { done } else { rank };
                (line.enter(counter, Waiting { rank, id }, join, seed), None)
            }
            Verb::Raise { fence } => (line.raise(counter, id, fence), None),
            Verb::GiveWay { up_to } => line.give_way(counter, id, up_to, seed),
            Verb::Leave => {
                let (_, rung) = line.leave(counter, id, seed);
                (line.position(id), rung)
            }
            Verb::Renew => (line.position(id), None),
        };
        if !matches!(position, Position::Out { .. }) {
            let expires = done + TTL.as_nanos() as u64;
            if server.expires.insert(id, expires).is_none() {
                self.later(expires - now, id, What::Expire { node });
            }
        } else {
            server.expires.remove(&id);
        }
        let back = self.travel() + (done - now);
        self.later(back, id, What::Answer { node, verb, position, time, sent });
        if let Some(next) = rung {
            self.ring(node, next.claim.id, next.vote, done - now);
        }
    }

    fn ring(&mut self, node: usize, id: Id, vote: u64, after: u64) {
        if self.chance(100) >= u64::from(self.setup.bells_lost) {
            let delay = self.travel() + after;
            self.later(delay, id, What::Bell { node, vote });
        }
    }

    fn expire(&mut self, node: usize, id: Id) {
        let now = self.now;
        let server = &mut self.servers[node];
        match server.expires.get(&id).copied() {
            Some(at) if at > now => self.later(at - now, id, What::Expire { node }),
            Some(_) => {
                server.expires.remove(&id);
                let seed = Seed { time: server.time(now), hint: 0 };
                let Server { line, counter, .. } = server;
                if let (_, Some(next)) = line.leave(counter, id, seed) {
                    self.ring(node, next.claim.id, next.vote, 0);
                }
            }
            None => {}
        }
    }
}

impl Server {
    fn time(&self, now: u64) -> u64 {
        EPOCH + self.skew + now / 1_000
    }
}
