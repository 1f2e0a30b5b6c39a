//! One attempt to get a majority of nodes, as a machine without clock, socket or chance.
//!
//! Events go in: answers, bells, heartbeats. [`Ballot::next`] says what to do about them, one
//! step at a time. Instants, hints and dice are arguments, so the model checker runs this very
//! code. Why it is right is in `docs/engines/redlock.md`.
//!
//! An attempt has an id of its own at the nodes, which is never used again after a release. It
//! asks all nodes at once and joins their lines. When it holds at a majority *with one and the
//! same vote*, that vote is its fence. Votes that differ are raised to a common fence first. When
//! it holds at a minority for a while, it gives way there to those with a better rank.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::NodeReason;
use crate::rule::claim::Holder;

/// The most nodes of a quorum. Seven survive three failures, and each more costs every exchange.
pub const NODES_MAX: usize = 15;

/// How long a minority is kept at least in the hope of the rest: bells of one release arrive
/// within less on one network.
const GIVE_WAY_MIN: Duration = Duration::from_millis(2);

/// How long a minority is kept at most. There is at most one such claim for each node, so asking
/// that often is no load, and it bounds what a split vote can cost.
const GIVE_WAY_MAX: Duration = Duration::from_millis(250);

/// When a node that did not answer, or does not vote, is asked again while the claim waits.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// After so many split votes a claim that does not join counts as refused.
const ROUNDS_MAX: u32 = 8;

/// A majority of the *configured* nodes, reachable or not: two of them always meet.
pub fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What stays the same during an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How many nodes are configured: 1 to [`NODES_MAX`].
    pub nodes: usize,
    /// Whether to stand in line where it cannot hold at once.
    pub join: bool,
    /// How many attempts of this claim ended in a split vote before.
    pub round: u32,
    /// How long before its end at a node a claim ends for its owner.
    pub margin: Duration,
}

/// What to send to a node. Its answer, or that there was none, must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// Join the line, or ask how the claim stands.
    Ask,
    /// Raise the vote to the fence, if the claim still holds with a vote up to it.
    Raise {
        /// The number all votes are raised to.
        fence: u64,
    },
    /// Give the node up to whoever has a better rank, if the vote is still at most this.
    GiveWay {
        /// The vote that is given up.
        up_to: u64,
    },
}

/// What a node said.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The claim holds there.
    Holds {
        /// The number of its tenure.
        vote: u64,
        /// The instant before the request was sent, and how long the node keeps the claim.
        kept_until: Moment,
    },
    /// The claim is in line there.
    Waits {
        /// How many are before it.
        ahead: usize,
        /// Whether somebody in that line has a better rank.
        better: bool,
        /// As above.
        kept_until: Moment,
    },
    /// The claim is not in line there.
    Out {
        /// Who holds, if anybody of ours does.
        by: Option<Holder>,
    },
    /// There was no answer, or none that helps.
    Failed(NodeReason),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this, and ask again for the next step.
    Send {
        /// To which node.
        node: usize,
        /// What.
        order: Order,
    },
    /// Nothing, until an event or this instant.
    Wait {
        /// When to ask again although nothing happened.
        until: Moment,
        /// Whether a majority has the claim in its lines, so that somebody will ring.
        in_line: bool,
    },
    /// A majority holds with this fence.
    Won {
        /// The fence.
        fence: u64,
        /// Until when a majority keeps the claim.
        kept_until: Moment,
    },
    /// Somebody else has it. Only for a claim that does not join; release it at all nodes.
    Taken {
        /// Who, if known.
        by: Option<Holder>,
    },
    /// The vote was split. Only for a claim that does not join; release it at all nodes, and try
    /// again at this instant, with another id.
    Again {
        /// When.
        at: Moment,
    },
    /// No majority can be reached; release it at all nodes. [`Ballot::causes`] says why.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Unasked,
    Holds { vote: u64, kept_until: Moment, at_entry: bool },
    Waits { ahead: usize, better: bool },
    Out { by: Option<Holder> },
    Gone { cause: NodeReason, again: Moment },
}

/// One node as this attempt knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    state: State,
    /// Until when the node keeps the waiting claim without another word. A tenure that a bell
    /// tells of is kept for as long; what is said inside a tenure counts for that tenure only.
    waits_until: Moment,
    /// Whether the node was asked to let the claim into its line, and whether more than once: then
    /// it may have lost its place in between, and a bell may be that of the place it lost.
    asked: bool,
    asked_again: bool,
    /// Votes up to this one were given up, and never count again: the order to give way may
    /// still be on its way.
    spent: u64,
    /// What was sent and not answered. One thing at a time, so answers need no number.
    under_way: Option<Order>,
    /// Whether the claim was found to hold since that was sent, or since the heartbeat was. A
    /// bell takes another way than answers do, so an answer that is older may come later.
    overtaken: bool,
    beat_overtaken: bool,
}

impl Place {
    fn vote(&self) -> Option<u64> {
        match self.state {
            State::Holds { vote, .. } => Some(vote),
            _ => None,
        }
    }

    /// The vote, if the node keeps the claim for longer than until `horizon`.
    fn kept_vote(&self, horizon: Moment) -> Option<u64> {
        match self.state {
            State::Holds { vote, kept_until, .. } if kept_until > horizon => Some(vote),
            _ => None,
        }
    }

    fn is_in_line(&self) -> bool {
        matches!(self.state, State::Holds { .. } | State::Waits { .. })
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    fn is_gone(&self) -> bool {
        self.is_idle() && matches!(self.state, State::Gone { .. })
    }

    /// The claim holds there. A greater vote is of a later tenure, a smaller one is old news.
    fn holds(&mut self, vote: u64, until: Moment, entered: bool) {
        if vote <= self.spent {
            return;
        }
        let (kept_until, at_entry) = match self.state {
            State::Holds { vote: known, .. } if vote < known => return,
            State::Holds { vote: known, kept_until, at_entry } if vote == known => {
                (kept_until.max(until), at_entry)
            }
            _ => (until, entered),
        };
        self.state = State::Holds { vote, kept_until, at_entry };
        self.overtaken = true;
        self.beat_overtaken = true;
    }

    /// The claim waits there, if nothing newer is known.
    fn waits(&mut self, (ahead, better): (usize, bool), until: Moment, overtaken: bool) {
        self.waits_until = self.waits_until.max(until);
        match &mut self.state {
            // It was handed over after this answer, and is kept since what was answered here.
            State::Holds { kept_until, .. } if overtaken => {
                *kept_until = until.max(*kept_until);
            }
            _ if overtaken => {}
            state => *state = State::Waits { ahead, better },
        }
    }
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ballot {
    terms: Terms,
    places: Vec<Place>,
    /// The highest fence that any node was asked to raise its vote to; 0 before the first. The
    /// fence won is never below it, because that order may still be on its way.
    target: u64,
    /// When to give a minority up.
    give_way_at: Option<Moment>,
    /// How often a minority was given up, and given back, since the claim last held nothing.
    given_way: u32,
    /// The longest exchange so far.
    slowest: Duration,
}

impl Ballot {
    /// An attempt that has asked nobody yet.
    pub fn new(terms: Terms) -> Self {
        debug_assert!((1..=NODES_MAX).contains(&terms.nodes));
        let place = Place {
            state: State::Unasked,
            waits_until: Moment::from_nanos(0),
            asked: false,
            asked_again: false,
            spent: 0,
            under_way: None,
            overtaken: false,
            beat_overtaken: false,
        };
        let places = vec![place; terms.nodes];
        let slowest = Duration::ZERO;
        Self { terms, places, target: 0, give_way_at: None, given_way: 0, slowest }
    }

    /// The votes as far as they are known, node by node.
    pub fn votes(&self) -> impl Iterator<Item = Option<u64>> {
        self.places.iter().map(Place::vote)
    }

    /// What was sent to a node and not answered.
    pub fn under_way(&self, node: usize) -> Option<Order> {
        self.places[node].under_way
    }

    /// How many claims are before this one, as the best informed node says.
    pub fn ahead(&self) -> usize {
        let ahead = |place: &Place| match place.state {
            State::Waits { ahead, .. } => Some(ahead),
            _ => None,
        };
        self.places.iter().filter_map(ahead).max().unwrap_or(0)
    }

    /// What each node has to say, for the error if this ends without a lease.
    pub fn causes(&self) -> Vec<NodeReason> {
        let cause = |place: &Place| match &place.state {
            State::Unasked => NodeReason::NotAwaited,
            State::Holds { .. } => NodeReason::Granted,
            State::Waits { .. } => NodeReason::Waiting,
            State::Out { by } => NodeReason::Taken { by: by.clone() },
            State::Gone { cause, .. } => cause.clone(),
        };
        self.places.iter().map(cause).collect()
    }

    /// A node answered the order that was under way, or did not in time. `took` is from sending
    /// to now.
    pub fn answered(&mut self, node: usize, answer: Answer, now: Moment, took: Duration) {
        let (join, horizon, again) = (self.terms.join, self.horizon(now), now + ASK_AGAIN);
        let place = &mut self.places[node];
        let Some(order) = place.under_way.take() else { return };
        if !matches!(answer, Answer::Failed(_)) {
            self.slowest = self.slowest.max(took);
        }
        match answer {
            Answer::Holds { kept_until, .. } if kept_until <= horizon => {
                place.state = State::Gone { cause: NodeReason::Expired, again };
            }
            Answer::Holds { vote, kept_until } => {
                place.holds(vote, kept_until, order == Order::Ask);
            }
            Answer::Waits { ahead, better, kept_until } => {
                place.waits((ahead, better), kept_until, place.overtaken);
            }
            _ if place.overtaken => {}
            // What was lost on the way is asked for once more; who was refused asks no more.
            Answer::Out { .. } if order != Order::Ask => place.state = State::Unasked,
            Answer::Out { by } if join => {
                place.state = State::Gone { cause: NodeReason::Taken { by }, again };
            }
            Answer::Out { by } => place.state = State::Out { by },
            Answer::Failed(cause) => place.state = State::Gone { cause, again },
        }
    }

    /// A node's bell says that the claim holds there with this vote. The node keeps it since the
    /// last request that it answered. False if the bell may be an old one: then the node is to be
    /// asked how the claim stands.
    pub fn rung(&mut self, node: usize, vote: u64) -> bool {
        let place = &mut self.places[node];
        if place.asked_again {
            return false;
        }
        place.holds(vote, place.waits_until, false);
        true
    }

    /// A heartbeat goes out to all nodes.
    pub fn beat_begins(&mut self) {
        for place in &mut self.places {
            place.beat_overtaken = false;
        }
    }

    /// A node answered the heartbeat. One that did not is no news.
    pub fn beaten(&mut self, node: usize, answer: Answer) {
        let place = &mut self.places[node];
        let settled = place.beat_overtaken || !place.is_idle();
        match answer {
            Answer::Holds { vote, kept_until } => place.holds(vote, kept_until, false),
            Answer::Waits { ahead, better, kept_until } => {
                place.waits((ahead, better), kept_until, settled);
            }
            Answer::Out { .. } if !settled && place.is_in_line() => {
                place.state = State::Unasked;
            }
            Answer::Out { .. } | Answer::Failed(_) => {}
        }
    }

    /// What to do now. `hint` is the number this client would suggest to a node now, `dice` any
    /// number, fresh each time.
    pub fn next(&mut self, now: Moment, hint: u64, dice: u32) -> Step {
        let horizon = self.horizon(now);
        if let Some((fence, kept_until)) = self.won(horizon) {
            return Step::Won { fence, kept_until };
        }
        let order = self.order_to_raise(horizon, hint).or_else(|| self.order_to_ask(now));
        if let Some((node, order)) = order.or_else(|| self.order_to_give_way(now, dice)) {
            return self.send(node, order);
        }
        if let Some(end) = self.without_hope(now, dice) {
            return end;
        }
        let in_line = self.count(Place::is_in_line) >= self.majority();
        Step::Wait { until: self.next_event(), in_line }
    }

    fn majority(&self) -> usize {
        majority(self.terms.nodes)
    }

    /// What a node does not keep for longer than until then does not count now.
    fn horizon(&self, now: Moment) -> Moment {
        now + self.terms.margin
    }

    fn count(&self, test: impl Fn(&Place) -> bool) -> usize {
        self.places.iter().filter(|place| test(place)).count()
    }

    fn held(&self, horizon: Moment) -> usize {
        self.count(|place| place.kept_vote(horizon).is_some())
    }

    /// How many nodes may still turn out to be held by what was sent already.
    fn pending(&self, horizon: Moment) -> usize {
        self.count(|place| place.kept_vote(horizon).is_none() && !place.is_idle())
    }

    fn send(&mut self, node: usize, order: Order) -> Step {
        let place = &mut self.places[node];
        place.under_way = Some(order);
        place.overtaken = false;
        if order == Order::Ask {
            place.asked_again = place.asked;
            place.asked = true;
        }
        if let Order::GiveWay { up_to } = order {
            place.spent = up_to;
            place.state = State::Unasked;
            place.waits_until = Moment::from_nanos(0);
        }
        Step::Send { node, order }
    }

    /// A majority that holds with one vote, and until when it keeps the claim.
    fn won(&self, horizon: Moment) -> Option<(u64, Moment)> {
        for fence in self.votes().flatten().filter(|vote| *vote >= self.target) {
            let kept_until = |place: &Place| match place.state {
                State::Holds { vote, kept_until, .. } if vote == fence => Some(kept_until),
                _ => None,
            };
            let mut kept: Vec<Moment> = self.places.iter().filter_map(kept_until).collect();
            kept.sort_unstable_by(|one, other| other.cmp(one));
            if let Some(until) = kept.get(self.majority() - 1)
                && *until > horizon
            {
                return Some((fence, *until));
            }
        }
        None
    }

    /// A majority holds with votes that differ: they are raised to a fence above all of them.
    /// The hint is above what other nodes are about to vote, so that they can be counted later.
    fn order_to_raise(&mut self, horizon: Moment, hint: u64) -> Option<(usize, Order)> {
        if self.held(horizon) < self.majority() {
            return None;
        }
        let votes = || self.places.iter().filter_map(|place| place.kept_vote(horizon));
        if votes().filter(|vote| *vote <= self.target).count() < self.majority() {
            let highest = votes().max().unwrap_or(0);
            self.target = highest.max(hint).max(self.target);
        }
        let fence = self.target;
        let can_rise = |place: &Place| {
            place.is_idle() && place.kept_vote(horizon).is_some_and(|vote| vote < fence)
        };
        let node = self.places.iter().position(can_rise)?;
        Some((node, Order::Raise { fence }))
    }

    /// Asks whom it has not asked, who did not answer a while ago, and who does not keep the
    /// claim for long enough any more.
    fn order_to_ask(&self, now: Moment) -> Option<(usize, Order)> {
        let (join, horizon) = (self.terms.join, self.horizon(now));
        let is_due = |place: &Place| match &place.state {
            State::Unasked => true,
            State::Holds { .. } => place.kept_vote(horizon).is_none(),
            State::Gone { again, .. } => join && *again <= now,
            State::Waits { .. } | State::Out { .. } => false,
        };
        let node = self.places.iter().position(|place| place.is_idle() && is_due(place))?;
        Some((node, Order::Ask))
    }

    /// A claim that holds at a minority keeps others from a majority. It gives way at once if it
    /// was granted on entering and knows of a better rank; else after a while, in which the rest
    /// of its bells would have come.
    fn order_to_give_way(&mut self, now: Moment, dice: u32) -> Option<(usize, Order)> {
        let horizon = self.horizon(now);
        let held = self.held(horizon);
        let giving_way = |place: &Place| matches!(place.under_way, Some(Order::GiveWay { .. }));
        if !self.terms.join || held == 0 || held >= self.majority() {
            self.give_way_at = None;
            if self.count(giving_way) == 0 {
                self.given_way = 0;
            }
            return None;
        }
        let after = give_way_after(self.slowest, self.given_way, dice);
        let at = *self.give_way_at.get_or_insert(now + after);
        if now < at && !self.must_give_way(horizon) {
            return None;
        }
        let is_due = |place: &Place| place.is_idle() && place.kept_vote(horizon).is_some();
        let Some(node) = self.places.iter().position(is_due) else {
            // The answer that is awaited brings this back.
            self.give_way_at = None;
            return None;
        };
        let up_to = self.places[node].vote().unwrap_or(0).max(self.target);
        if held == 1 {
            self.give_way_at = None;
            self.given_way += 1;
        }
        Some((node, Order::GiveWay { up_to }))
    }

    /// Whether the answers to the first questions say that others come first.
    fn must_give_way(&self, horizon: Moment) -> bool {
        let better = |place: &Place| matches!(place.state, State::Waits { better: true, .. });
        let by_bell = |place: &Place| matches!(place.state, State::Holds { at_entry: false, .. });
        self.held(horizon) + self.pending(horizon) < self.majority()
            && self.count(better) > 0
            && self.count(by_bell) == 0
    }

    /// How the attempt ends if no majority can come of it.
    fn without_hope(&self, now: Moment, dice: u32) -> Option<Step> {
        let (horizon, gone) = (self.horizon(now), self.count(Place::is_gone));
        if gone > self.terms.nodes - self.majority() {
            return Some(Step::Failed);
        }
        let hope = self.held(horizon) + self.pending(horizon);
        if self.terms.join || hope >= self.majority() {
            return None;
        }
        let (by, named) = self.most_named();
        if named + gone >= self.majority() || self.terms.round >= ROUNDS_MAX {
            return Some(Step::Taken { by });
        }
        let pause = give_way_after(self.slowest, self.terms.round, dice);
        Some(Step::Again { at: now + pause })
    }

    /// Whom most nodes name as holder, and how many do.
    fn most_named(&self) -> (Option<Holder>, usize) {
        let by = |place: &Place| match &place.state {
            State::Out { by } => Some(by.clone()),
            _ => None,
        };
        let named: Vec<Option<Holder>> = self.places.iter().filter_map(by).collect();
        let count = |one: &Option<Holder>| named.iter().filter(|other| *other == one).count();
        let most = named.iter().max_by_key(|one| count(one));
        (most.cloned().flatten(), most.map_or(0, count))
    }

    fn next_event(&self) -> Moment {
        let mut until = self.give_way_at.unwrap_or(Moment::NEVER);
        for place in self.places.iter().filter(|place| place.is_idle()) {
            match &place.state {
                State::Holds { kept_until, .. } => {
                    until = until.min(*kept_until - self.terms.margin);
                }
                State::Gone { again, .. } if self.terms.join => until = until.min(*again),
                _ => {}
            }
        }
        until
    }
}

/// How long to hope for the rest: two of the slowest exchanges so far, twice as long each time it
/// did not help, and up to as much again by chance, so that no two claims stay in step.
fn give_way_after(slowest: Duration, times: u32, dice: u32) -> Duration {
    let first = (slowest * 2).clamp(GIVE_WAY_MIN, GIVE_WAY_MAX / 2);
    let pause = first.saturating_mul(1 << times.min(10)).min(GIVE_WAY_MAX / 2);
    pause + pause.mul_f64(f64::from(dice) / f64::from(u32::MAX))
}
