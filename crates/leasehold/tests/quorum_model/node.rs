//! A node of the model: the library's own rule, the mistakes to be found, and forgetting.

use leasehold::internal::quorum::ballot::majority;
use leasehold::internal::quorum::node_line::{NodeLine, Position, Seed, Tenure, Waiting};

use crate::world::{Id, RETIRED, Variant, Verb};

/// How a node that started empty comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rejoin {
    /// It votes at once.
    AtOnce,
    /// It waits until everything from before has ended, then votes.
    WaitOnly,
    /// It copies the counters of a majority of the others, then votes.
    CopyOnly,
    /// It waits, then copies, then votes.
    WaitAndCopy,
}

/// Whether a node may vote.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Voting,
    /// Until these attempts and leases have ended.
    Waiting {
        for_ids: Vec<Id>,
        then_copy: bool,
    },
    /// It has read the counters of these nodes.
    Copying {
        from: Vec<usize>,
        greatest: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) line: NodeLine<Id>,
    pub(crate) counter: u64,
    pub(crate) mode: Mode,
    /// For [`Variant::VoteAtJoin`]: the votes of the waiting claims.
    early: Vec<(Id, u64)>,
}

type Outcome = (Option<Position<Id>>, Option<Tenure<Id>>);

impl Node {
    pub(crate) fn new(counter: u64) -> Self {
        let (line, mode) = (NodeLine::default(), Mode::Voting);
        Self { line, counter, mode, early: Vec::new() }
    }

    /// Carries out a request. Returns the answer, `None` for "on probation", and the bell.
    pub(crate) fn execute(&mut self, variant: Variant, id: Id, rank: u64, verb: Verb) -> Outcome {
        let before = (self.line.head, self.counter);
        let (position, rung) = self.answer(variant, id, rank, verb);
        if variant != Variant::VoteAtJoin {
            return (position, rung);
        }
        if let Some(Position::Waits { .. }) = position
            && !self.early.iter().any(|(other, _)| *other == id)
        {
            self.counter += 1;
            self.early.push((id, self.counter));
        }
        (self.with_early_vote(before, position, id), self.line.head.filter(|_| rung.is_some()))
    }

    /// Replaces the vote of a lease that just began by the vote that the node gave when the claim
    /// joined.
    fn with_early_vote(
        &mut self,
        (head, counter): (Option<Tenure<Id>>, u64),
        position: Option<Position<Id>>,
        id: Id,
    ) -> Option<Position<Id>> {
        let began = |now: &Tenure<Id>| head.is_none_or(|head| head.claim != now.claim);
        if let Some(now) = self.line.head.as_mut().filter(|now| began(now))
            && let Some(found) = self.early.iter().position(|(other, _)| *other == now.claim.id)
        {
            now.vote = self.early.remove(found).1;
            self.counter = counter;
        }
        position.map(|_| self.line.position(id))
    }

    fn answer(&mut self, variant: Variant, id: Id, rank: u64, verb: Verb) -> Outcome {
        let Self { line, counter, .. } = self;
        let claim = Waiting { rank, id };
        let plain = Seed { time: 0, hint: 0 };
        match verb {
            Verb::Enter { .. } if self.mode != Mode::Voting => (None, None),
            Verb::Enter { join, hint } => {
                (Some(line.enter(counter, claim, join, Seed { time: 0, hint })), None)
            }
            Verb::Raise { fence } if variant == Variant::UnconditionalConfirm => {
                *counter = fence.max(*counter);
                (Some(Position::Holds { vote: fence }), None)
            }
            Verb::Raise { fence } if variant == Variant::ConfirmWithoutVote => {
                let held = matches!(line.position(id), Position::Holds { .. });
                line.raise(counter, id, fence);
                let position = match held {
                    true => Position::Holds { vote: fence },
                    false => line.position(id),
                };
                (Some(position), None)
            }
            Verb::Raise { fence } => (Some(line.raise(counter, id, fence)), None),
            Verb::GiveWay { up_to } => {
                let (position, rung) = line.give_way(counter, id, up_to, plain);
                (Some(position), rung)
            }
            Verb::Leave { hint } => {
                let (_, rung) = line.leave(counter, id, Seed { time: 0, hint });
                (Some(line.position(id)), rung)
            }
            Verb::KeepClosed => {
                line.keep_closed(id, id + RETIRED);
                (Some(line.position(id)), None)
            }
            Verb::Renew if variant == Variant::RepairCounted => {
                let position = line.enter(counter, claim, false, plain);
                let held = matches!(position, Position::Holds { .. });
                (Some(if held { Position::Holds { vote: 0 } } else { position }), None)
            }
            Verb::Renew => (Some(line.position(id)), None),
            Verb::Repair { fence } => {
                // It does so on probation, too: its vote is above the fence, so it never counts.
                *counter = fence.max(*counter);
                (Some(line.enter(counter, claim, true, plain)), None)
            }
        }
    }

    /// The node loses the claim that holds: it expired, or it was evicted or deleted.
    pub(crate) fn lose(&mut self, variant: Variant) -> Option<Tenure<Id>> {
        let id = self.line.head?.claim.id;
        self.execute(variant, id, 0, Verb::Leave { hint: 0 }).1
    }

    /// Starts empty.
    pub(crate) fn forget(&mut self, rejoin: Rejoin, active: Vec<Id>) {
        *self = Self::new(0);
        self.mode = match rejoin {
            Rejoin::AtOnce => Mode::Voting,
            Rejoin::WaitOnly => Mode::Waiting { for_ids: active, then_copy: false },
            Rejoin::WaitAndCopy => Mode::Waiting { for_ids: active, then_copy: true },
            Rejoin::CopyOnly => Mode::Copying { from: Vec::new(), greatest: 0 },
        };
    }

    pub(crate) fn wait_no_more_for(&mut self, id: Id) {
        if let Mode::Waiting { for_ids, .. } = &mut self.mode {
            for_ids.retain(|other| *other != id);
        }
    }

    pub(crate) fn end_wait(&mut self) {
        let copy = matches!(self.mode, Mode::Waiting { then_copy: true, .. });
        self.mode = match copy {
            true => Mode::Copying { from: Vec::new(), greatest: 0 },
            false => Mode::Voting,
        };
    }

    /// Reads the counter of another node; votes once it has read a majority's.
    pub(crate) fn copy(&mut self, node: usize, counter: u64, nodes: usize) {
        let Mode::Copying { from, greatest } = &mut self.mode else { return };
        from.push(node);
        from.sort_unstable();
        *greatest = counter.max(*greatest);
        if from.len() >= majority(nodes) {
            self.counter = self.counter.max(*greatest);
            self.mode = Mode::Voting;
        }
    }
}
