//! One exchange with all nodes about many claims: renewals and releases.
//!
//! It runs in a task of its own. Whoever asked is answered as soon as a majority has decided every
//! claim; the rest of the answers, and the repairs they call for, do not hold anybody up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::Reply;
use super::attempt::{Attempt, Phase, answer, cause};
use super::ballot::{Answer, majority};
use super::engine::Inner;
use super::tally::{self, RenewalTally, Renewed};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, NodeReason, Result};
use crate::rule::claim::{ClaimKey, Released, Renewal, Standing};

/// What a renewal is about.
enum Subject {
    /// A lease whose fence is known.
    Lease(Arc<Attempt>, RenewalTally),
    /// A claim that waits.
    Waiting(Arc<Attempt>),
    /// A lease that another process took, of which only the owner's token is known.
    Unknown(Vec<Option<Answer>>),
}

struct Item {
    subject: Subject,
    renewal: Renewal,
}

/// A renewal of many claims at all nodes.
struct Round {
    inner: Arc<Inner>,
    begun: Moment,
    items: Vec<Item>,
    /// What each node had to say, once it is known.
    causes: Vec<Option<NodeReason>>,
    answered: usize,
}

impl Inner {
    /// Keeps claims alive: all of them in one exchange with each node.
    pub(super) async fn renew(
        self: &Arc<Self>,
        renewals: &[Renewal],
    ) -> Result<Vec<Result<Standing>>> {
        let begun = SystemClock.now();
        let items = renewals.iter().map(|renewal| self.item(renewal)).collect();
        let (inner, causes) = (Arc::clone(self), vec![None; self.nodes.len()]);
        let round = Round { inner, begun, items, causes, answered: 0 };
        let (answer, answered) = oneshot::channel();
        tokio::spawn(round.run(answer));
        answered.await.unwrap_or_else(|_| Err(Error::task_ended(&self.info.store)))
    }

    fn item(&self, renewal: &Renewal) -> Item {
        let nodes = self.nodes.len();
        let mut renewal = renewal.clone();
        let subject = match self.attempt(&renewal.key) {
            Some(attempt) => {
                renewal.key = attempt.key.clone();
                let mut state = attempt.state();
                let phase = state.phase;
                if phase == Phase::Running {
                    state.ballot.beat_begins();
                }
                drop(state);
                match phase {
                    Phase::Held { fence, .. } => {
                        Subject::Lease(attempt, RenewalTally::new(nodes, fence))
                    }
                    _ => Subject::Waiting(attempt),
                }
            }
            None => Subject::Unknown(vec![None; nodes]),
        };
        Item { subject, renewal }
    }

    /// Gives claims back or takes them out of their lines, at all nodes.
    pub(super) async fn release(self: &Arc<Self>, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let mut known = 0;
        let mut sent = Vec::with_capacity(keys.len());
        let mut attempts = Vec::with_capacity(keys.len());
        for key in keys {
            let (at_nodes, attempt, fence) = self.part_with(key);
            known = known.max(fence);
            sent.push(at_nodes);
            attempts.push(attempt);
        }
        let hint = self.hint(SystemClock.now(), known);
        let (answer, answered) = oneshot::channel();
        tokio::spawn(Arc::clone(self).release_all((sent, attempts), hint, answer));
        answered.await.unwrap_or_else(|_| Err(Error::task_ended(&self.info.store)))
    }

    /// Forgets a claim. Returns what the nodes call it, its attempt, and its fence if it held.
    pub(super) fn part_with(&self, key: &ClaimKey) -> (ClaimKey, Option<Arc<Attempt>>, u64) {
        let Some(attempt) = self.attempt(key) else { return (key.clone(), None, 0) };
        let before = std::mem::replace(&mut attempt.state().phase, Phase::Over);
        self.strike(&attempt);
        let fence = if let Phase::Held { fence, .. } = before { fence } else { 0 };
        (attempt.key.clone(), Some(attempt), fence)
    }

    async fn release_all(
        self: Arc<Self>,
        (keys, attempts): (Vec<ClaimKey>, Vec<Option<Arc<Attempt>>>),
        hint: u64,
        answer: oneshot::Sender<Result<Vec<Released>>>,
    ) {
        let leave = |node: usize| {
            let (inner, keys, attempts) = (&self, &keys, &attempts);
            async move { (node, inner.leave(node, (keys, attempts), hint).await) }
        };
        let mut leaving: FuturesUnordered<_> = (0..self.nodes.len()).map(leave).collect();
        let mut answers: Vec<Vec<Option<Released>>> =
            vec![vec![None; self.nodes.len()]; keys.len()];
        let mut causes = vec![NodeReason::Granted; self.nodes.len()];
        let mut answer = Some(answer);
        while let Some((node, left)) = leaving.next().await {
            match left {
                Ok(left) => {
                    for (answers, left) in answers.iter_mut().zip(left) {
                        answers[node] = Some(left);
                    }
                }
                Err(error) => causes[node] = cause(&error),
            }
            let all_in = leaving.is_empty();
            let told: Option<Vec<Released>> =
                answers.iter().map(|answers| tally::released(answers, all_in)).collect();
            if let Some(told) = told
                && let Some(answer) = answer.take()
            {
                // Whoever asked may have stopped waiting.
                let _gone = answer.send(Ok(told));
            }
        }
        if let Some(answer) = answer {
            let _gone = answer.send(Err(self.no_majority(causes)));
        }
    }
}

impl Round {
    async fn run(mut self, answer: oneshot::Sender<Result<Vec<Result<Standing>>>>) {
        let inner = Arc::clone(&self.inner);
        let renewals: Vec<Renewal> = self.items.iter().map(|item| item.renewal.clone()).collect();
        let keep = |node: usize| {
            let (inner, renewals) = (&inner, &renewals);
            async move {
                let sent = SystemClock.now();
                (node, sent, inner.in_time(node, inner.nodes[node].keep(renewals)).await)
            }
        };
        let mut keeping: FuturesUnordered<_> = (0..inner.nodes.len()).map(keep).collect();
        let mut answer = Some(answer);
        while let Some((node, sent, kept)) = keeping.next().await {
            match kept {
                Ok(replies) => self.answered(node, sent, replies),
                Err(error) => self.failed(node, &error),
            }
            if self.is_decided(keeping.is_empty())
                && let Some(answer) = answer.take()
            {
                // Whoever asked may have stopped waiting.
                let _gone = answer.send(self.standings());
            }
        }
        self.repair().await;
    }

    fn answered(&mut self, node: usize, sent: Moment, replies: Vec<Reply>) {
        let now = SystemClock.now();
        self.answered += 1;
        self.causes[node] = Some(NodeReason::Granted);
        if let Some(reply) = replies.first() {
            self.inner.read_clock(node, reply.time, sent, now);
        }
        self.inner.answers(node);
        // As all that is answered here, counted from before anything was sent.
        let sent = self.begun;
        for (item, reply) in self.items.iter_mut().zip(replies) {
            let patience = item.renewal.patience;
            match &mut item.subject {
                Subject::Lease(_, tally) => tally.answered(node, answer(reply, sent, patience)),
                Subject::Waiting(attempt) => {
                    let mut state = attempt.state();
                    state.note_retry(node, &reply, now);
                    state.ballot.beaten(node, answer(reply, sent, patience));
                    drop(state);
                    self.inner.advance(attempt);
                }
                Subject::Unknown(answers) => answers[node] = Some(answer(reply, sent, patience)),
            }
        }
    }

    fn failed(&mut self, node: usize, error: &Error) {
        let cause = cause(error);
        for item in &mut self.items {
            let failed = Answer::Failed(cause.clone());
            match &mut item.subject {
                Subject::Lease(_, tally) => tally.answered(node, failed),
                Subject::Waiting(_) => {}
                Subject::Unknown(answers) => answers[node] = Some(failed),
            }
        }
        self.causes[node] = Some(cause);
    }

    /// Whether more answers would change nothing that is told.
    fn is_decided(&self, all_in: bool) -> bool {
        let enough = self.answered >= self.inner.majority();
        let decided = |item: &Item| match &item.subject {
            Subject::Lease(_, tally) => tally.verdict() != Renewed::Pending,
            Subject::Waiting(_) => enough,
            Subject::Unknown(answers) => agreed(answers).is_some(),
        };
        all_in || self.items.iter().all(decided)
    }

    fn standings(&mut self) -> Result<Vec<Result<Standing>>> {
        let lost = |item: &Item| match &item.subject {
            Subject::Lease(_, tally) => matches!(tally.verdict(), Renewed::Lost { .. }),
            _ => false,
        };
        if self.answered < self.inner.majority() && !self.items.iter().all(lost) {
            return Err(self.unsure());
        }
        Ok(self.items.iter().map(|item| self.standing(item)).collect())
    }

    fn unsure(&self) -> Error {
        let causes = self.causes.iter().cloned();
        self.inner
            .no_majority(causes.map(|cause| cause.unwrap_or(NodeReason::NotAwaited)).collect())
    }

    fn standing(&self, item: &Item) -> Result<Standing> {
        match &item.subject {
            Subject::Lease(attempt, tally) => self.lease(attempt, tally),
            Subject::Waiting(attempt) => Ok(self.waiting(attempt, &item.renewal)),
            Subject::Unknown(answers) => Ok(self.unknown(answers, &item.renewal)),
        }
    }

    /// How long a claim is kept, counted from before anything was sent.
    fn left(&self, kept_until: Moment) -> Duration {
        kept_until.since(self.begun)
    }

    fn lease(&self, attempt: &Arc<Attempt>, tally: &RenewalTally) -> Result<Standing> {
        let mut state = attempt.state();
        let Phase::Held { fence, .. } = state.phase else {
            return Ok(out(None));
        };
        match tally.verdict() {
            Renewed::Kept { kept_until } => {
                state.phase = Phase::Held { fence, kept_until };
                Ok(Standing::Held { fence, remaining: self.left(kept_until) })
            }
            Renewed::Lost { by } => {
                // The holder does not know of the loss yet. The nodes that still have the claim
                // must not grant the name before it does, so the claim stays there until its ttl
                // has passed.
                state.phase = Phase::Over;
                drop(state);
                self.inner.strike(attempt);
                Ok(out(by))
            }
            // Nothing is known anew; what was known before stays.
            Renewed::Pending | Renewed::Unsure => Err(self.unsure()),
        }
    }

    fn waiting(&self, attempt: &Arc<Attempt>, renewal: &Renewal) -> Standing {
        let retry_in = attempt.retry_in(SystemClock.now());
        let mut state = attempt.state();
        match state.phase {
            Phase::Running => {
                let promised = self.begun + renewal.patience;
                state.promised_until = state.promised_until.max(promised);
                let (place, ahead) = (attempt.place(), state.ballot.ahead());
                Standing::Queued { place, ahead, retry_in }
            }
            Phase::Held { fence, kept_until } => {
                Standing::Held { fence, remaining: self.left(kept_until) }
            }
            Phase::Over => out(None),
        }
    }

    fn unknown(&self, answers: &[Option<Answer>], renewal: &Renewal) -> Standing {
        let nodes = answers.len();
        let fence = agreed(answers).unwrap_or(0);
        let mut tally = RenewalTally::new(nodes, fence);
        for (node, answer) in answers.iter().enumerate() {
            if let Some(answer) = answer {
                tally.answered(node, answer.clone());
            }
        }
        match tally.verdict() {
            Renewed::Kept { kept_until } => {
                let phase = Phase::Held { fence, kept_until };
                self.inner.enlist(&Arc::new(Attempt::adopted(&renewal.key, nodes, phase)));
                Standing::Held { fence, remaining: self.left(kept_until) }
            }
            Renewed::Lost { by } => out(by),
            Renewed::Pending | Renewed::Unsure => out(None),
        }
    }

    /// Puts the claims of leases that were kept back where they were lost.
    async fn repair(self) {
        let mut repairs = FuturesUnordered::new();
        for item in &self.items {
            let Subject::Lease(attempt, tally) = &item.subject else { continue };
            let Some(claim) = &attempt.claim else { continue };
            let Phase::Held { fence, .. } = attempt.phase() else { continue };
            if !matches!(tally.verdict(), Renewed::Kept { .. }) {
                continue;
            }
            for node in tally.to_repair() {
                let inner = &self.inner;
                repairs.push(async move {
                    let (owner, rank) = (&attempt.owner, attempt.rank);
                    let repair = inner.nodes[node].repair(claim, owner, rank, fence);
                    let repaired = inner.in_time(node, repair).await;
                    (node, attempt, repaired)
                });
            }
        }
        while let Some((node, attempt, repaired)) = repairs.next().await {
            if let Err(error) = repaired {
                tracing::debug!(%error, "a node that lost a lease was not repaired");
                attempt.set_adrift(node);
            }
            if attempt.phase() == Phase::Over {
                // It was given back in the meantime.
                let hint = self.inner.hint(SystemClock.now(), 0);
                self.inner.leave_at(node, Arc::clone(attempt), hint).await;
            }
        }
    }
}

/// The vote that a majority has, which must have been the fence of the lease that it is.
fn agreed(answers: &[Option<Answer>]) -> Option<u64> {
    let votes = || {
        answers.iter().flatten().filter_map(|answer| match answer {
            Answer::Holds { vote, .. } => Some(*vote),
            _ => None,
        })
    };
    let count = |vote: u64| votes().filter(|other| *other == vote).count();
    votes().find(|vote| count(*vote) >= majority(answers.len()))
}

fn out(by: Option<crate::rule::claim::Holder>) -> Standing {
    Standing::Out { ahead: usize::from(by.is_some()), retry_in: Duration::ZERO, by }
}
