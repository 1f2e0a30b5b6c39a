//! Whether a node's scripts are what the proof is about: random steps on a real server, and the
//! same on [`NodeLine`], must answer alike, to the last digit of a vote.
//!
//! The server's clock stands still between steps, so that expiry is exact. When to ask again is a
//! hint and not compared; neither are keys of other libraries, which [`NodeLine`] does not know.

use std::time::Duration;

use leasehold_testkit::{Clock, Server};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

use super::keys::QuorumLayout;
use super::redlock;
use crate::engine::{Eviction, Query, Wake};
use crate::engines::quorum::node_line::{HINT_AHEAD_MAX, NodeLine, Position, Seed, Waiting};
use crate::engines::quorum::{GiveWay, Marker, Node, Reply, Seat};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Released, Renewal, Token};
use crate::rule::name::Name;

/// Few, so that they meet. Two have one rank.
const RANKS: [u64; 4] = [7, 7, 1_700_000_000_000_000, u64::MAX];

/// The ids of the claims, and as many again of those whose leases keep the name closed: a lease's
/// id and this.
const RETIRED: u8 = RANKS.len() as u8;
const IDS: usize = 2 * RANKS.len();

/// From here on a script's arithmetic is not exact.
const EXACT_MAX: u64 = 1 << 53;

/// How long a bell may take on a busy machine.
const BELL_MAX: Duration = Duration::from_secs(20);

/// A number near one that matters.
#[derive(Debug, Clone, Copy)]
enum Number {
    Zero,
    Clock(i64),
    Counter(i64),
    /// As far ahead of the clock as a hint may be.
    ReachOfClock(i64),
    /// As far ahead of the counter as a hint may be.
    ReachOfCounter(i64),
    Vote(i64),
}

#[derive(Debug, Clone)]
enum Step {
    Advance { us: u64 },
    Enter { id: u8, join: bool, hint: Number, ttl: u64, patience: u64 },
    Raise { id: u8, fence: Number, ttl: u64 },
    GiveWay { id: u8, up_to: Number, hint: Number, patience: u64 },
    Keep { id: u8, by_owner: bool, ttl: u64, patience: u64 },
    Repair { id: u8, fence: Number, ttl: u64, patience: u64 },
    Leave { id: u8, by_owner: bool, hint: Number },
    KeepClosed { id: u8, by_owner: bool, stay: u64 },
    Evict { up_to: Number, hint: Number },
    View,
}

fn number() -> impl Strategy<Value = Number> {
    let near = || -3..4_i64;
    prop_oneof![
        1 => Just(Number::Zero),
        1 => near().prop_map(Number::Clock),
        1 => near().prop_map(Number::Counter),
        1 => near().prop_map(Number::ReachOfClock),
        1 => near().prop_map(Number::ReachOfCounter),
        3 => near().prop_map(Number::Vote),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0..RANKS.len() as u8;
    let millis = || prop_oneof![Just(1_u64), Just(40), Just(90_000)];
    let us = prop_oneof![Just(1_u64), Just(1_000), Just(2_000), Just(40_999), Just(41_000)];
    prop_oneof![
        2 => us.prop_map(|us| Step::Advance { us }),
        6 => (id(), any::<bool>(), number(), millis(), millis()).prop_map(
            |(id, join, hint, ttl, patience)| Step::Enter { id, join, hint, ttl, patience }
        ),
        4 => (id(), number(), millis()).prop_map(|(id, fence, ttl)| Step::Raise { id, fence, ttl }),
        3 => (id(), number(), number(), millis()).prop_map(
            |(id, up_to, hint, patience)| Step::GiveWay { id, up_to, hint, patience }
        ),
        2 => (id(), any::<bool>(), millis(), millis()).prop_map(
            |(id, by_owner, ttl, patience)| Step::Keep { id, by_owner, ttl, patience }
        ),
        1 => (id(), number(), millis(), millis()).prop_map(
            |(id, fence, ttl, patience)| Step::Repair { id, fence, ttl, patience }
        ),
        3 => (id(), any::<bool>(), number())
            .prop_map(|(id, by_owner, hint)| Step::Leave { id, by_owner, hint }),
        2 => (id(), any::<bool>(), millis())
            .prop_map(|(id, by_owner, stay)| Step::KeepClosed { id, by_owner, stay }),
        2 => (number(), number()).prop_map(|(up_to, hint)| Step::Evict { up_to, hint }),
        1 => Just(Step::View),
    ]
}

/// Where the counter begins: nowhere, behind the clock, ahead of it, and where floats round.
fn beginning() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(5), Just(2 * BEGIN_US), Just(EXACT_MAX + 1), Just(1 << 62)]
}

/// When the clock begins to stand still, in microseconds.
const BEGIN_US: u64 = 1_700_000_000_123_456;

/// The line by the rule, and when each claim in it lapses.
struct Model {
    line: NodeLine<u8>,
    counter: u64,
    lapses_ms: [u64; IDS],
    /// Whose claims can be rung.
    mailbox: [bool; IDS],
    now_us: u64,
    /// Who was rung since the last look, and with which vote.
    rung: Vec<(u8, u64)>,
}

impl Model {
    fn new(counter: u64) -> Self {
        let (line, now_us) = (NodeLine::default(), BEGIN_US);
        let (lapses_ms, mailbox) = ([0; IDS], [false; IDS]);
        Self { line, counter, lapses_ms, mailbox, now_us, rung: Vec::new() }
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    fn head(&self) -> Option<u8> {
        self.line.head.map(|head| head.claim.id)
    }

    fn is_alive(&self, id: u8) -> bool {
        self.lapses_ms[usize::from(id)] >= self.now_ms()
    }

    fn contains(&self, id: u8) -> bool {
        !matches!(self.line.position(id), Position::Out { .. })
    }

    fn of(&self, number: Number) -> u64 {
        let vote = self.line.head.map_or(self.counter, |head| head.vote);
        let reach = |from: u64, by: i64| {
            // A script's difference of such numbers is rounded, so where exactly a hint is too far
            // ahead differs; either vote is above the counter.
            let by = if from >= EXACT_MAX { by * 10_000 + 5_000 } else { by };
            (from + HINT_AHEAD_MAX, by)
        };
        let (from, by) = match number {
            Number::Zero => (0, 0),
            Number::Clock(by) => (self.now_us, by),
            Number::Counter(by) => (self.counter, by),
            Number::ReachOfClock(by) => reach(self.now_us, by),
            Number::ReachOfCounter(by) => reach(self.counter + 1, by),
            Number::Vote(by) => (vote, by),
        };
        from.saturating_add_signed(by)
    }

    fn seed(&self, hint: u64) -> Seed {
        Seed { time: self.now_us, hint }
    }

    fn keep_for(&mut self, id: u8, millis: u64) {
        self.lapses_ms[usize::from(id)] = self.now_ms() + millis;
    }

    /// As `keep_for` for a claim that holds, which never ends sooner by a renewal.
    fn keep_on(&mut self, id: u8, millis: u64) {
        let lapses = self.lapses_ms[usize::from(id)];
        self.lapses_ms[usize::from(id)] = lapses.max(self.now_ms() + millis);
    }

    /// Takes out what has lapsed, as every verb does first; `by` needs no bell.
    fn expire(&mut self, by: Option<u8>) {
        let seed = self.seed(0);
        let waiting = self.line.waiting.iter().map(|other| other.id);
        let dead: Vec<u8> = waiting.filter(|id| !self.is_alive(*id)).collect();
        for id in dead {
            self.line.leave(&mut self.counter, id, seed);
        }
        if let Some(id) = self.head().filter(|id| !self.is_alive(*id)) {
            let (_, next) = self.line.leave(&mut self.counter, id, seed);
            let next = next.filter(|next| Some(next.claim.id) != by);
            self.rung.extend(next.map(|next| (next.claim.id, next.vote)));
        }
    }

    fn refresh(&mut self, id: u8, ttl: u64, patience: u64) {
        match self.line.position(id) {
            Position::Holds { .. } => self.keep_on(id, ttl),
            Position::Waits { .. } => self.keep_for(id, patience),
            Position::Out { .. } => {}
        }
    }

    fn enter(&mut self, id: u8, join: bool, mailbox: bool, hint: u64, (ttl, patience): (u64, u64)) {
        self.expire(Some(id));
        if !self.contains(id) {
            self.mailbox[usize::from(id)] = mailbox;
            self.lapses_ms[usize::from(id)] = 0;
        }
        let claim = Waiting { rank: RANKS[usize::from(id)], id };
        let seed = self.seed(hint);
        self.line.enter(&mut self.counter, claim, join, seed);
        self.refresh(id, ttl, patience);
    }

    fn give_way(&mut self, id: u8, up_to: u64, hint: u64, patience: u64) {
        self.expire(Some(id));
        if self.line.head.is_some_and(|head| head.claim.id == id && head.vote <= up_to) {
            self.keep_for(id, patience);
        }
        let seed = self.seed(hint);
        let (_, next) = self.line.give_way(&mut self.counter, id, up_to, seed);
        self.rung.extend(next.map(|next| (next.claim.id, next.vote)));
    }

    fn leave(&mut self, id: u8, hint: u64) -> bool {
        let seed = self.seed(hint);
        let (was_there, next) = self.line.leave(&mut self.counter, id, seed);
        self.rung.extend(next.map(|next| (next.claim.id, next.vote)));
        was_there
    }
}

/// One name on the node, and the model of its line.
struct Run<'a> {
    node: &'a dyn Node,
    server: &'a Server,
    clock: &'a Clock,
    name: Name,
    counter_key: String,
    case: u32,
    holders: Vec<Holder>,
    model: Model,
}

impl<'a> Run<'a> {
    fn begin(lab: &'a Lab, case: u32, counter: u64) -> Self {
        let name = Name::new(format!("case {case}")).expect("a good name");
        let keys = QuorumLayout::new("lock:".into(), 0).keys(&name).expect("keys");
        let counter_key = keys.iter().nth(4).expect("the counter's key").to_owned();
        lab.clock.freeze_at(Duration::from_micros(BEGIN_US));
        told(&lab.server, &["DEL", &counter_key]);
        if counter > 0 {
            told(&lab.server, &["SET", &counter_key, &counter.to_string()]);
        }
        let label = |id: usize| Holder::labelled(format!("claim {id}")).expect("a good label");
        let (node, server, clock) = (&*lab.node, &lab.server, &lab.clock);
        let (holders, model) = ((0..RANKS.len()).map(label).collect(), Model::new(counter));
        let run = Self { node, server, clock, name, counter_key, case, holders, model };
        run.each_token(|token| run.node.expect(token));
        run
    }

    fn each_token(&self, act: impl Fn(Token)) {
        (0..RANKS.len() as u8).for_each(|id| act(self.token(id, false)));
    }

    /// Tokens are in the order of ids. Another case has others.
    fn token(&self, id: u8, of_owner: bool) -> Token {
        let mut bytes = [id; 16];
        bytes[1] = u8::from(of_owner);
        bytes[2..6].copy_from_slice(&self.case.to_be_bytes());
        Token::from_bytes(bytes)
    }

    fn holder(&self, id: u8) -> &Holder {
        &self.holders[usize::from(id) % RANKS.len()]
    }

    fn key(&self, id: u8, by_owner: bool) -> ClaimKey {
        ClaimKey { name: self.name.clone(), token: self.token(id, by_owner) }
    }

    fn claim(&self, id: u8, join: bool, (ttl, patience): (u64, u64)) -> Claim {
        Claim {
            key: self.key(id, false),
            mode: Mode::Exclusive,
            holder: self.holder(id).clone(),
            note: Note::default(),
            ttl: Duration::from_millis(ttl),
            patience: Duration::from_millis(patience),
            join,
        }
    }

    async fn steps(&mut self, steps: &[Step]) -> TestCaseResult {
        for step in steps {
            self.step(step).await?;
            for (id, vote) in std::mem::take(&mut self.model.rung) {
                if self.model.mailbox[usize::from(id)] {
                    let token = self.token(id, false);
                    let heard = tokio::time::timeout(BELL_MAX, self.node.bell(&token)).await;
                    prop_assert_eq!(heard.ok(), Some(Wake::holds_at(vote)), "{:?}", step);
                }
            }
            let counter = told(self.server, &["GET", &self.counter_key]);
            let counter = if counter.is_empty() { "0" } else { counter.as_str() };
            prop_assert_eq!(counter, self.model.counter.to_string(), "after {:?}", step);
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> TestCaseResult {
        match *step {
            Step::Advance { us } => {
                self.model.now_us += us;
                self.clock.advance(Duration::from_micros(us));
                Ok(())
            }
            Step::Enter { id, join, hint, ttl, patience } => {
                let (hint, times) = (self.model.of(hint), (ttl, patience));
                self.model.enter(id, join, join, hint, times);
                let (claim, owner) = (self.claim(id, join, times), self.token(id, true));
                let rank = RANKS[usize::from(id)];
                let reply = self.node.enter(&claim, &owner, rank, hint).await;
                self.stands(id, step, reply.expect("an answer"))
            }
            Step::Raise { id, fence, ttl } => {
                let fence = self.model.of(fence);
                self.model.expire(Some(id));
                self.model.line.raise(&mut self.model.counter, id, fence);
                if self.model.head() == Some(id) {
                    self.model.keep_on(id, ttl);
                }
                let (key, ttl) = (self.key(id, false), Duration::from_millis(ttl));
                let reply = self.node.raise(&key, fence, ttl).await.expect("an answer");
                self.stands(id, step, reply)
            }
            Step::GiveWay { id, up_to, hint, patience } => {
                let (up_to, hint) = (self.model.of(up_to), self.model.of(hint));
                self.model.give_way(id, up_to, hint, patience);
                let patience = Duration::from_millis(patience);
                let order = GiveWay { up_to, hint, patience };
                let reply = self.node.give_way(&self.key(id, false), &order).await;
                self.stands(id, step, reply.expect("an answer"))
            }
            _ => self.rarer_step(step).await,
        }
    }

    async fn rarer_step(&mut self, step: &Step) -> TestCaseResult {
        match *step {
            Step::Keep { id, by_owner, ttl, patience } => {
                self.model.expire(Some(id));
                self.model.refresh(id, ttl, patience);
                let (ttl, patience) = (Duration::from_millis(ttl), Duration::from_millis(patience));
                let renewal = Renewal { key: self.key(id, by_owner), ttl, patience };
                let replies = self.node.keep(&[renewal]).await.expect("an answer");
                let [reply] = <[Reply; 1]>::try_from(replies).expect("one answer");
                self.stands(id, step, reply)
            }
            Step::Repair { id, fence, ttl, patience } => {
                let (fence, times) = (self.model.of(fence), (ttl, patience));
                self.model.counter = self.model.counter.max(fence);
                self.model.enter(id, true, false, 0, times);
                let (claim, owner) = (self.claim(id, true, times), self.token(id, true));
                let rank = RANKS[usize::from(id)];
                let reply = self.node.repair(&claim, &owner, rank, fence).await;
                self.stands(id, step, reply.expect("an answer"))
            }
            Step::Leave { id, by_owner, hint } => {
                let hint = self.model.of(hint);
                self.model.expire(Some(id));
                let by = self.model.head();
                let expected = match (self.model.leave(id, hint), by) {
                    (true, _) => Released::Released,
                    (false, None) => Released::AlreadyExpired,
                    (false, Some(by)) => Released::TakenBy(self.holder(by).clone()),
                };
                let told = self.node.leave(&[self.key(id, by_owner)], hint).await;
                prop_assert_eq!(told.expect("an answer"), [expected], "{:?}", step);
                Ok(())
            }
            Step::KeepClosed { id, by_owner, stay } => {
                let retired = id + RETIRED;
                self.model.expire(Some(id));
                let by = self.model.head();
                let expected = match (self.model.line.keep_closed(id, retired), by) {
                    (true, _) => Released::Released,
                    (false, None) => Released::AlreadyExpired,
                    (false, Some(by)) => Released::TakenBy(self.holder(by).clone()),
                };
                if expected == Released::Released {
                    self.model.keep_for(retired, stay);
                }
                let (key, retired) = (self.key(id, by_owner), self.token(retired, false));
                let told = self.node.keep_closed(&key, Duration::from_millis(stay), &retired);
                prop_assert_eq!(told.await.expect("an answer"), expected, "{:?}", step);
                Ok(())
            }
            Step::Evict { up_to, hint } => {
                let (up_to, hint) = (self.model.of(up_to), self.model.of(hint));
                self.model.expire(None);
                let named = self.model.line.head.filter(|head| head.vote <= up_to);
                let expected = named.map(|head| self.holder(head.claim.id).clone());
                if let Some(head) = named {
                    self.model.leave(head.claim.id, hint);
                }
                let (name, fences) = (self.name.clone(), vec![up_to]);
                let (by, reason) = (Holder::fresh(), "a test".into());
                let order = Eviction { name, fences, unreadable: false, by, reason };
                let told = self.node.evict(&order, hint).await.expect("an answer");
                prop_assert_eq!(told, expected, "{:?}", step);
                Ok(())
            }
            _ => self.view().await,
        }
    }

    /// Compares how a claim stands at the node with how it stands by the rule.
    fn stands(&self, id: u8, step: &Step, reply: Reply) -> TestCaseResult {
        let (model, told) = (&self.model, reply.seat.clone());
        prop_assert_eq!(reply.time, model.now_us);
        let left =
            Duration::from_millis(model.lapses_ms[usize::from(id)].saturating_sub(model.now_ms()));
        let in_line = model.line.waiting.len() + usize::from(model.line.head.is_some());
        let by_rule = model.line.position(id);
        let alike = match (by_rule, &told) {
            (Position::Holds { vote }, Seat::Holds { vote: told, remaining }) => {
                vote == *told && *remaining == left
            }
            (Position::Waits { ahead, better }, Seat::Waits { ahead: told, better: any, .. }) => {
                ahead == *told && (better > 0) == *any
            }
            (Position::Out { by }, Seat::Out { ahead, by: told, .. }) => {
                let by = by.map(|id| self.holder(id));
                in_line == *ahead && by == told.as_ref()
            }
            _ => false,
        };
        prop_assert!(alike, "{:?}: {:?} by the rule, {:?} at the node", step, by_rule, told);
        Ok(())
    }

    /// Compares the whole line. Looking takes nothing out.
    async fn view(&self) -> TestCaseResult {
        let views = self.node.view(&Query::name(self.name.clone()), 1).await.expect("an answer");
        let told = views[0].claims.iter().map(|claim| (claim.token, claim.rank, claim.vote));
        let line = &self.model.line;
        let head = line.head.map(|head| (head.claim, Some(head.vote)));
        let waiting = line.waiting.iter().map(|claim| (*claim, None));
        let all =
            head.into_iter().chain(waiting).filter(|(claim, _)| self.model.is_alive(claim.id));
        let expected = all.map(|(claim, vote)| (self.token(claim.id, false), claim.rank, vote));
        prop_assert_eq!(told.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        prop_assert!(views[0].foreign.is_none());
        Ok(())
    }
}

/// A node that may vote, and its clock.
struct Lab {
    clock: Clock,
    server: Server,
    node: std::sync::Arc<dyn Node>,
}

impl Lab {
    async fn start() -> Self {
        let clock = Clock::new().expect("a clock");
        let options = leasehold_testkit::Redis::new().clock(&clock);
        let server = options.start().await.expect("a server");
        let url = format!("redlock://{}?node_timeout_ms=20000", server.address());
        let (nodes, settings) = redlock::parse(&url).expect("a good url");
        let node = nodes.into_iter().next().expect("one node");
        let passport = node.passport().await.expect("an answer");
        let (run_id, ttl_max) = (passport.run_id.clone(), settings.ttl_max);
        let marker = Marker { run_id, set_id: 1, nodes: 1, ttl_max };
        assert!(node.admit(&passport, &marker, 0).await.expect("an answer"));
        Self { clock, server, node }
    }
}

fn told(server: &Server, command: &[&str]) -> String {
    server.redis(command).expect("the server takes it")
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

#[test]
fn end_of_a_closed_lease_leaves_the_next_claim_of_its_owner_in_place() {
    let runtime = runtime();
    let lab = runtime.block_on(Lab::start());
    let (ttl, patience, stay) = (90_000, 90_000, 90_000);
    let enter = |join| Step::Enter { id: 1, join, hint: Number::Zero, ttl, patience };
    let steps = [
        enter(false),
        Step::KeepClosed { id: 1, by_owner: false, stay },
        enter(true),
        Step::Evict { up_to: Number::Vote(0), hint: Number::Zero },
        Step::Leave { id: 1, by_owner: true, hint: Number::Zero },
    ];
    let mut run = Run::begin(&lab, 0, 0);
    runtime.block_on(run.steps(&steps)).expect("the node answers as the rule");
}

#[test]
fn scripts_of_a_node_answer_as_the_rule_that_was_proved() {
    let runtime = runtime();
    let lab = runtime.block_on(Lab::start());
    let case = std::cell::Cell::new(0);
    let steps = prop::collection::vec(step(), 1..60);
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let all = TestRunner::new(config).run(&(beginning(), steps), |(counter, steps)| {
        case.set(case.get() + 1);
        let mut run = Run::begin(&lab, case.get(), counter);
        let ended = runtime.block_on(run.steps(&steps));
        run.each_token(|token| run.node.forget(&token));
        ended
    });
    if let Err(error) = all {
        panic!("{error}");
    }
}
