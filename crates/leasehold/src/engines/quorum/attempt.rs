//! One attempt of a claim: its ballot, and the exchanges that drive it.
//!
//! What is sent to a node is sent by a task of its own, so that whoever waits may stop waiting at
//! any point: the answer is told to the ballot either way, and a node that lets the claim in after
//! the attempt is over is told so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::ballot::{Answer, Ballot, Order, Step, Terms};
use super::engine::Inner;
use super::{GiveWay, Reply, Seat};
use crate::clock::{Clock, Moment, SystemClock};
use crate::engine::Wake;
use crate::error::{Error, NodeReason, Result, UnreachableReason};
use crate::rule::claim::{Claim, ClaimKey, Place, Renewal, Token, margin};

/// When to ask again although no bell rang, if no node said.
const RETRY: Duration = Duration::from_secs(1);

/// How an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Held { fence: u64, kept_until: Moment },
    Over,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) ballot: Ballot,
    pub(super) phase: Phase,
    /// Until when whoever waits believes that the claim is kept, by what it was answered.
    pub(super) promised_until: Moment,
    /// When each node would have the claim hold if nobody said another word.
    retry_at: Vec<Option<Moment>>,
    /// An error of a node that asking again does not help against.
    hard: Option<Error>,
    /// How many requests to let the claim in each node did not answer. They may be carried out
    /// at any later time.
    adrift: Vec<u32>,
}

/// One attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// What is asked for; its token is the attempt's own. `None` for a lease that another process
    /// took: its token is the owner's then, and its text is not known here.
    pub(super) claim: Option<Claim>,
    pub(super) key: ClaimKey,
    /// The token that the claim's owner knows.
    pub(super) owner: Token,
    pub(super) rank: u64,
    state: Mutex<State>,
    pub(super) changed: Notify,
}

impl Attempt {
    /// An attempt under a token of its own, which is never used again.
    pub(super) fn new(claim: &Claim, nodes: usize, round: u32, rank: u64) -> Self {
        let key = ClaimKey { name: claim.key.name.clone(), token: Token::random() };
        let terms = Terms { nodes, join: claim.join, round, margin: margin(claim.ttl) };
        Self {
            owner: claim.key.token,
            claim: Some(Claim { key: key.clone(), ..claim.clone() }),
            key,
            rank,
            state: State::new(terms, Phase::Running),
            changed: Notify::new(),
        }
    }

    /// A lease that another process took.
    pub(super) fn adopted(key: &ClaimKey, nodes: usize, phase: Phase) -> Self {
        let terms = Terms { nodes, join: false, round: 0, margin: Duration::ZERO };
        Self {
            claim: None,
            key: key.clone(),
            owner: key.token,
            rank: 0,
            state: State::new(terms, phase),
            changed: Notify::new(),
        }
    }

    /// The claim's place in line: each attempt has a token of its own.
    pub(super) fn place(&self) -> Place {
        let [a, b, c, d, e, f, g, h, ..] = *self.key.token.as_bytes();
        // A random number; 0 is no place.
        Place::new(u64::from_be_bytes([a, b, c, d, e, f, g, h]).max(1))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// How many requests to let the claim in may be carried out later, at one node.
    pub(super) fn adrift(&self, node: usize) -> u32 {
        let state = self.state();
        state.adrift[node] + u32::from(state.ballot.under_way(node) == Some(Order::Ask))
    }

    /// A request to let the claim in was not answered.
    pub(super) fn set_adrift(&self, node: usize) {
        self.state().adrift[node] += 1;
    }

    /// When to ask again although no bell rang: when a majority would have let the claim in.
    pub(super) fn retry_in(&self, now: Moment) -> Duration {
        let state = self.state();
        let mut retries: Vec<Moment> = state.retry_at.iter().flatten().copied().collect();
        retries.sort_unstable();
        let majority = super::ballot::majority(state.retry_at.len());
        match retries.get(majority - 1) {
            Some(at) => at.since(now).max(Duration::from_millis(10)),
            None => RETRY,
        }
    }
}

impl State {
    fn new(terms: Terms, phase: Phase) -> Mutex<Self> {
        Mutex::new(Self {
            ballot: Ballot::new(terms),
            phase,
            promised_until: Moment::from_nanos(0),
            retry_at: vec![None; terms.nodes],
            hard: None,
            adrift: vec![0; terms.nodes],
        })
    }

    pub(super) fn note_retry(&mut self, node: usize, reply: &Reply, now: Moment) {
        self.retry_at[node] = match reply.seat {
            Seat::Waits { retry_in, .. } | Seat::Out { retry_in, .. } => Some(now + retry_in),
            _ => None,
        };
    }
}

/// What a node's reply to a request sent at `sent` means.
pub(super) fn answer(reply: Reply, sent: Moment, patience: Duration) -> Answer {
    match reply.seat {
        Seat::Holds { vote, remaining } => Answer::Holds { vote, kept_until: sent + remaining },
        Seat::Waits { ahead, better, .. } => {
            Answer::Waits { ahead, better, kept_until: sent + patience }
        }
        Seat::Out { by, .. } => Answer::Out { by },
        Seat::Probation => Answer::Failed(NodeReason::Probation),
    }
}

/// What a node's error says.
pub(super) fn cause(error: &Error) -> NodeReason {
    match error {
        Error::Unreachable { reason: UnreachableReason::NoAnswer, .. } => NodeReason::Silent,
        Error::Unreachable { cause, source: None, .. } | Error::Store { cause, .. } => {
            NodeReason::Unreachable { cause: cause.clone() }
        }
        Error::Unreachable { source: Some(source), .. } => {
            NodeReason::Unreachable { cause: source.to_string() }
        }
        error => NodeReason::Unreachable { cause: error.with_sources() },
    }
}

impl Inner {
    /// Drives an attempt until it ends, holds, or, if that is enough, waits in a majority's lines.
    pub(super) async fn drive(self: &Arc<Self>, attempt: &Arc<Attempt>, in_line: bool) -> Step {
        let bell = |index: usize| {
            let (node, token) = (Arc::clone(&self.nodes[index]), attempt.key.token);
            async move { (index, node.bell(&token).await) }
        };
        let mut bells: FuturesUnordered<_> = (0..self.nodes.len()).map(bell).collect();
        loop {
            let until = match self.step(attempt) {
                Step::Wait { in_line: true, until } if in_line && self.is_waiting(attempt) => {
                    return Step::Wait { in_line: true, until };
                }
                Step::Wait { until, .. } => until,
                step => return step,
            };
            tokio::select! {
                biased;
                Some((node, wake)) = bells.next() => {
                    self.heard(attempt, node, wake);
                    bells.push(bell(node));
                }
                () = attempt.changed.notified() => {}
                () = SystemClock.sleep_until(until) => {}
            }
        }
    }

    /// Whether the claim is in line and not about to be granted.
    fn is_waiting(&self, attempt: &Attempt) -> bool {
        let joins = attempt.claim.as_ref().is_some_and(|claim| claim.join);
        joins && attempt.state().ballot.votes().flatten().count() < self.majority()
    }

    /// Sends what is to be sent now, and says what comes next.
    fn step(self: &Arc<Self>, attempt: &Arc<Attempt>) -> Step {
        let mut state = attempt.state();
        match state.phase {
            Phase::Held { fence, kept_until } => return Step::Won { fence, kept_until },
            Phase::Over => return Step::Failed,
            Phase::Running => {}
        }
        // One hint for all nodes that are asked now: it is what makes their votes agree.
        let now = SystemClock.now();
        let hint = self.hint(now, 0);
        loop {
            match state.ballot.next(now, hint, rand::random()) {
                Step::Send { node, order } => {
                    let (inner, attempt) = (Arc::clone(self), Arc::clone(attempt));
                    tokio::spawn(inner.exchange(attempt, node, order, hint));
                }
                Step::Won { fence, kept_until } => {
                    state.phase = Phase::Held { fence, kept_until };
                    return Step::Won { fence, kept_until };
                }
                step => return step,
            }
        }
    }

    /// Something was heard: does what follows from it, and wakes whoever waits. So an attempt goes
    /// on although nobody listens for its bells.
    pub(super) fn advance(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        if attempt.claim.is_some() {
            // How it ends is for whoever waits.
            let _step = self.step(attempt);
        }
        attempt.changed.notify_one();
    }

    fn heard(self: &Arc<Self>, attempt: &Arc<Attempt>, node: usize, wake: Wake) {
        let known = match wake {
            Wake::Holds { fence: vote, .. } => attempt.state().ballot.rung(node, vote),
            Wake::Ask => false,
        };
        if !known {
            tokio::spawn(Arc::clone(self).ask_again(Arc::clone(attempt), node));
        }
    }

    /// Asks one node how the claim stands, because its bells may have been lost, or be old.
    async fn ask_again(self: Arc<Self>, attempt: Arc<Attempt>, node: usize) {
        let Some(claim) = &attempt.claim else { return };
        let (key, ttl, patience) = (attempt.key.clone(), claim.ttl, claim.patience);
        let renewals = [Renewal { key, ttl, patience }];
        let sent = SystemClock.now();
        match self.in_time(node, self.nodes[node].keep(&renewals)).await {
            Ok(replies) => {
                let mut state = attempt.state();
                for reply in replies {
                    state.note_retry(node, &reply, sent);
                    state.ballot.beaten(node, answer(reply, sent, patience));
                }
            }
            // The heartbeat repairs what is missed here.
            Err(error) => tracing::debug!(%error, "a node was not heard after its bells broke"),
        }
        self.advance(&attempt);
    }

    async fn exchange(
        self: Arc<Self>,
        attempt: Arc<Attempt>,
        node: usize,
        order: Order,
        hint: u64,
    ) {
        let Some(claim) = &attempt.claim else { return };
        let mut sent = SystemClock.now();
        let mut reply = self.send(&attempt, node, order, hint).await;
        if matches!(&reply, Ok(Reply { seat: Seat::Probation, .. })) && self.vet(node).await {
            sent = SystemClock.now();
            reply = self.send(&attempt, node, order, hint).await;
        }
        let is_answered = reply.is_ok();
        let came_late = self.tell(&attempt, claim, (node, order, sent), reply);
        self.advance(&attempt);
        if is_answered {
            self.answers(node);
        }
        if came_late {
            // The order to leave may have arrived before this one did.
            self.leave_at(node, attempt, hint).await;
        } else if is_answered && attempt.phase() == Phase::Over {
            self.stays_out(node, &attempt);
        }
    }

    /// Tells the ballot what a node answered. Says whether the node may have let the claim in
    /// although the attempt is over.
    fn tell(
        &self,
        attempt: &Attempt,
        claim: &Claim,
        (node, order, sent): (usize, Order, Moment),
        reply: Result<Reply>,
    ) -> bool {
        let now = SystemClock.now();
        let mut state = attempt.state();
        let told = match reply {
            Ok(reply) => {
                self.read_clock(node, reply.time, sent, now);
                state.note_retry(node, &reply, now);
                answer(reply, sent, claim.patience)
            }
            Err(error) => {
                let cause = cause(&error);
                if order == Order::Ask && matches!(error, Error::Unreachable { .. }) {
                    state.adrift[node] += 1;
                }
                if !error.is_transient() {
                    state.hard = Some(error);
                }
                Answer::Failed(cause)
            }
        };
        let may_be_in = !matches!(told, Answer::Out { .. } | Answer::Failed(NodeReason::Probation));
        state.ballot.answered(node, told, now, now.since(sent));
        state.phase == Phase::Over && may_be_in && order == Order::Ask
    }

    async fn send(
        &self,
        attempt: &Attempt,
        index: usize,
        order: Order,
        hint: u64,
    ) -> Result<Reply> {
        let (node, key) = (&self.nodes[index], &attempt.key);
        let Some(claim) = &attempt.claim else { return Err(Error::Closed) };
        match order {
            Order::Ask => {
                let asked = node.enter(claim, &attempt.owner, attempt.rank, hint);
                self.in_time(index, asked).await
            }
            Order::Raise { fence } => self.in_time(index, node.raise(key, fence, claim.ttl)).await,
            Order::GiveWay { up_to } => {
                let order = GiveWay { up_to, hint, patience: claim.patience };
                self.in_time(index, node.give_way(key, &order)).await
            }
        }
    }

    /// An attempt that is over leaves one node.
    pub(super) async fn leave_at(self: &Arc<Self>, node: usize, attempt: Arc<Attempt>, hint: u64) {
        let key = attempt.key.clone();
        if let Err(error) = self.leave(node, (&[key], &[Some(attempt)]), hint).await {
            tracing::debug!(%error, "a claim was not taken back at a node that is told later");
        }
    }

    /// Ends an attempt: it leaves at all nodes, whether they answered or not.
    pub(super) fn end(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        attempt.state().phase = Phase::Over;
        self.strike(attempt);
        let hint = self.hint(SystemClock.now(), 0);
        for node in 0..self.nodes.len() {
            let (inner, attempt) = (Arc::clone(self), Arc::clone(attempt));
            tokio::spawn(async move { inner.leave_at(node, attempt, hint).await });
        }
    }

    /// The error for an attempt that can get no majority.
    pub(super) fn failure(&self, attempt: &Attempt) -> Error {
        let mut state = attempt.state();
        match state.hard.take() {
            Some(error) => error,
            None => self.no_majority(state.ballot.causes()),
        }
    }
}
