//! What the answers of all nodes to a renewal, or to a release, mean together.
//!
//! A node counts for a renewal if the claim holds there *with a vote up to the lease's fence*.
//! That one comparison keeps out what must not be counted: a tenure that began after the lease
//! had lapsed there, whether by a repair, by a late request or by a place in line. If anybody was
//! granted in between with a greater fence, the node's counter was raised above ours, and so is
//! the vote of every later tenure.

use super::ballot::{Answer, majority};
use crate::clock::Moment;
use crate::error::NodeReason;
use crate::rule::claim::{Holder, Released};

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// Not enough answers yet.
    Pending,
    /// A majority keeps the claim until then. More answers can still come in.
    Kept {
        /// The m-th longest of what the nodes said.
        kept_until: Moment,
    },
    /// No majority can say so any more, however the others answer.
    Lost {
        /// Who holds it now, if the nodes know.
        by: Option<Holder>,
    },
    /// All answers are in, and too many are missing to know. The lease's deadline stays.
    Unsure,
}

/// The answers to one renewal of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RenewalTally {
    fence: u64,
    answers: Vec<Option<Answer>>,
}

impl RenewalTally {
    /// No answers yet.
    pub fn new(nodes: usize, fence: u64) -> Self {
        Self { fence, answers: vec![None; nodes] }
    }

    /// A node answered, or did not in time.
    pub fn answered(&mut self, node: usize, answer: Answer) {
        self.answers[node] = Some(answer);
    }

    /// Whether a node's answer means that the lease is kept there.
    fn counts(&self, answer: &Answer) -> bool {
        matches!(answer, Answer::Holds { vote, .. } if *vote <= self.fence)
    }

    /// What is known so far.
    pub fn verdict(&self) -> Renewed {
        let (nodes, needed) = (self.answers.len(), majority(self.answers.len()));
        let answers = || self.answers.iter().flatten();
        let kept_until = |answer: &Answer| match answer {
            Answer::Holds { kept_until, .. } if self.counts(answer) => Some(*kept_until),
            _ => None,
        };
        let mut kept: Vec<Moment> = answers().filter_map(kept_until).collect();
        if kept.len() >= needed {
            kept.sort_unstable_by(|one, other| other.cmp(one));
            return Renewed::Kept { kept_until: kept[needed - 1] };
        }
        let silent = answers().filter(|answer| matches!(answer, Answer::Failed(_))).count();
        let answered = answers().count();
        if kept.len() + silent + (nodes - answered) < needed {
            return Renewed::Lost { by: self.taken_by() };
        }
        if answered == nodes { Renewed::Unsure } else { Renewed::Pending }
    }

    /// The nodes that lost the claim, to get it back after a renewal that was kept. They do not
    /// count for it, and for no later one unless they give a vote up to the fence.
    pub fn to_repair(&self) -> Vec<usize> {
        let lost = |answer: &Option<Answer>| matches!(answer, Some(Answer::Out { .. }));
        (0..self.answers.len()).filter(|node| lost(&self.answers[*node])).collect()
    }

    /// What each node has to say, for the error if nothing is sure.
    pub fn causes(&self) -> Vec<NodeReason> {
        let cause = |answer: &Option<Answer>| match answer {
            None => NodeReason::NotAwaited,
            Some(Answer::Holds { .. }) => NodeReason::Granted,
            Some(Answer::Waits { .. }) => NodeReason::Waiting,
            Some(Answer::Out { by }) => NodeReason::Taken { by: by.clone() },
            Some(Answer::Failed(cause)) => cause.clone(),
        };
        self.answers.iter().map(cause).collect()
    }

    fn taken_by(&self) -> Option<Holder> {
        let by = |answer: &Answer| match answer {
            Answer::Out { by } => by.clone(),
            _ => None,
        };
        most_named(self.answers.iter().flatten().filter_map(by).collect())
    }
}

/// What the answers of all nodes to a release mean. `None` stands for a node that gave none, and
/// for the whole if that is not known yet, or never will be: the release is then to be sent
/// again, which is harmless.
///
/// A minority may have let the claim in after it was evicted elsewhere, and says that it was
/// released. So that alone says nothing while others have still to answer (`all_in` is false).
pub fn released(answers: &[Option<Released>], all_in: bool) -> Option<Released> {
    let answered = answers.iter().flatten().count();
    let some = all_in && answered >= majority(answers.len());
    kept_closed(answers).or(some.then_some(Released::Released))
}

/// What became of a lease whose name stays closed: only a majority can keep it closed. `None` if
/// the answers so far do not tell.
pub fn kept_closed(answers: &[Option<Released>]) -> Option<Released> {
    let needed = majority(answers.len());
    let answered = answers.iter().flatten().count();
    let gone = |answer: &&Released| matches!(answer, Released::Released);
    let released = answers.iter().flatten().filter(gone).count();
    if answered - released > answers.len() - needed {
        let by = |answer: &Released| match answer {
            Released::TakenBy(holder) => Some(holder.clone()),
            _ => None,
        };
        let by = most_named(answers.iter().flatten().filter_map(by).collect());
        return Some(by.map_or(Released::AlreadyExpired, Released::TakenBy));
    }
    (released >= needed).then_some(Released::Released)
}

fn most_named(named: Vec<Holder>) -> Option<Holder> {
    let count = |one: &Holder| named.iter().filter(|other| *other == one).count();
    named.iter().max_by_key(|one| count(one)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::HolderId;

    const SOON: Moment = Moment::from_nanos(10);
    const LATER: Moment = Moment::from_nanos(20);

    fn holder(id: u128) -> Holder {
        Holder::known(HolderId(id), format!("holder {id}")).expect("a good label")
    }

    fn holds(vote: u64, kept_until: Moment) -> Answer {
        Answer::Holds { vote, kept_until }
    }

    fn out(by: Option<Holder>) -> Answer {
        Answer::Out { by }
    }

    fn verdict(fence: u64, answers: &[Option<Answer>]) -> Renewed {
        let mut tally = RenewalTally::new(answers.len(), fence);
        for (node, answer) in answers.iter().enumerate() {
            if let Some(answer) = answer {
                tally.answered(node, answer.clone());
            }
        }
        tally.verdict()
    }

    #[test]
    fn a_majority_keeps_the_lease_without_waiting_for_a_dead_node() {
        let answers = [Some(holds(5, LATER)), None, Some(holds(4, SOON))];
        assert_eq!(verdict(5, &answers), Renewed::Kept { kept_until: SOON });
        let answers = [Some(holds(5, LATER)), None, None];
        assert_eq!(verdict(5, &answers), Renewed::Pending);
    }

    #[test]
    fn a_majority_is_one_of_the_configured_nodes() {
        let silent = || Some(Answer::Failed(NodeReason::Silent));
        assert_eq!(verdict(5, &[Some(holds(5, SOON)), silent(), silent()]), Renewed::Unsure);
        let half = [Some(holds(5, SOON)), Some(holds(5, SOON)), silent(), silent()];
        assert_eq!(verdict(5, &half), Renewed::Unsure);
    }

    #[test]
    fn a_tenure_that_began_after_the_lease_had_lapsed_does_not_count() {
        let answers = [Some(holds(5, SOON)), Some(holds(6, SOON)), Some(out(None))];
        assert_eq!(verdict(5, &answers), Renewed::Lost { by: None });
    }

    #[test]
    fn a_lease_is_lost_as_soon_as_no_majority_can_keep_it() {
        let taken = || Some(out(Some(holder(7))));
        assert_eq!(verdict(5, &[taken(), None, taken()]), Renewed::Lost { by: Some(holder(7)) });
        assert_eq!(verdict(5, &[taken(), None, Some(holds(5, SOON))]), Renewed::Pending);
    }

    #[test]
    fn only_nodes_that_lost_the_claim_are_repaired() {
        let mut tally = RenewalTally::new(5, 9);
        tally.answered(0, holds(9, SOON));
        tally.answered(1, out(None));
        tally.answered(2, holds(12, SOON));
        tally.answered(3, Answer::Failed(NodeReason::Silent));
        assert_eq!(tally.to_repair(), [1]);
    }

    #[test]
    fn a_release_is_told_by_a_majority() {
        let gone = || Some(Released::Released);
        assert_eq!(released(&[gone(), gone(), None], false), Some(Released::Released));
        assert_eq!(released(&[gone(), None, None], true), None, "too few to know");
        let again = [Some(Released::AlreadyExpired), gone(), None];
        assert_eq!(released(&again, false), None, "the third decides");
        assert_eq!(released(&again, true), Some(Released::Released), "sent twice, answered once");
    }

    #[test]
    fn a_release_of_what_a_majority_lost_says_so() {
        let taken = || Some(Released::TakenBy(holder(3)));
        let gone = || Some(Released::Released);
        assert_eq!(released(&[taken(), taken(), gone()], false), taken());
        let expired = || Some(Released::AlreadyExpired);
        assert_eq!(released(&[expired(), None, expired()], false), expired());
    }

    #[test]
    fn name_stays_closed_only_at_a_majority() {
        let closed = || Some(Released::Released);
        assert_eq!(kept_closed(&[closed(), None, closed()]), closed());
        assert_eq!(kept_closed(&[closed(), Some(Released::AlreadyExpired), None]), None);
        let taken = || Some(Released::TakenBy(holder(3)));
        assert_eq!(kept_closed(&[taken(), closed(), taken()]), taken());
    }

    #[test]
    fn a_minority_that_still_had_the_claim_does_not_make_it_released() {
        let taken = || Some(Released::TakenBy(holder(3)));
        let gone = || Some(Released::Released);
        assert_eq!(released(&[gone(), gone(), taken(), None, None], false), None);
        assert_eq!(released(&[gone(), gone(), taken(), taken(), taken()], true), taken());
    }
}
