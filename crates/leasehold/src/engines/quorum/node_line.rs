//! The rule of one node: a line of exclusive claims, and the vote of the one that holds.
//!
//! What a node's scripts do, without expiry: that somebody's time ran out comes in as
//! [`NodeLine::leave`]. Pure: the node's counter, its clock and its callers' hints are arguments,
//! bells go out as values. The model of the protocol and the simulated contests run this code; a
//! node's scripts are a translation of it.
//!
//! A claim's *tenure* at a node lasts from the moment it holds there until the moment it does
//! not. Its *vote* is the number of that tenure. Three rules carry the whole proof:
//!
//! 1. A vote is given when the tenure begins, never when the claim joins, and is above everything
//!    the node's counter ever was.
//! 2. A vote is only raised inside its tenure, and the counter with it.
//! 3. The counter never falls.

/// How far ahead of the node's own next number a hint may be, in microseconds. A wrong hint would
/// be harmless, but for ever: counters do not fall.
pub const HINT_AHEAD_MAX: u64 = 60_000_000;

/// What a fresh vote is made from, beside the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seed {
    /// The node's clock in microseconds, so that a counter that was lost starts above itself.
    pub time: u64,
    /// The number that the caller suggests to all nodes, so that their votes agree; 0 for none.
    pub hint: u64,
}

impl Seed {
    /// Raises a node's counter to a number that was never given, and returns it.
    pub fn draw(self, counter: &mut u64) -> u64 {
        let own = (*counter + 1).max(self.time);
        let in_reach = self.hint <= own.saturating_add(HINT_AHEAD_MAX);
        *counter = if in_reach { own.max(self.hint) } else { own };
        *counter
    }
}

/// A claim in a node's line. `I` is the claim's id: its token, or something smaller in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiting<I> {
    /// Smaller comes first; the same at every node, so that all nodes have one order.
    pub rank: u64,
    /// Decides between equal ranks.
    pub id: I,
}

/// The claim that holds, and since when in terms of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenure<I> {
    /// The claim.
    pub claim: Waiting<I>,
    /// The number of this tenure.
    pub vote: u64,
}

/// How a claim stands at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Position<I> {
    /// It holds.
    Holds {
        /// The number of its tenure.
        vote: u64,
    },
    /// It is in line.
    Waits {
        /// How many claims are before it, the one that holds among them.
        ahead: usize,
        /// How many claims in this line have a better rank, holding or waiting.
        better: usize,
    },
    /// It is not in line.
    Out {
        /// Which claim holds, if one does.
        by: Option<I>,
    },
}

/// One name's line at one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeLine<I> {
    /// The claim that holds.
    pub head: Option<Tenure<I>>,
    /// The others, by rank.
    pub waiting: Vec<Waiting<I>>,
}

impl<I> Default for NodeLine<I> {
    fn default() -> Self {
        Self { head: None, waiting: Vec::new() }
    }
}

impl<I: Copy + Ord> NodeLine<I> {
    /// Joins the line, or says how the claim stands. A claim that does not `join` stays out
    /// unless the line is empty.
    pub fn enter(
        &mut self,
        counter: &mut u64,
        claim: Waiting<I>,
        join: bool,
        seed: Seed,
    ) -> Position<I> {
        if self.head.is_none() && self.waiting.is_empty() {
            self.head = Some(Tenure { claim, vote: seed.draw(counter) });
        } else if join && !self.contains(claim.id) {
            let at = self.waiting.partition_point(|other| *other < claim);
            self.waiting.insert(at, claim);
        }
        self.position(claim.id)
    }

    /// How a claim stands.
    pub fn position(&self, id: I) -> Position<I> {
        if let Some(head) = self.head.filter(|head| head.claim.id == id) {
            return Position::Holds { vote: head.vote };
        }
        let Some(index) = self.waiting.iter().position(|other| other.id == id) else {
            return Position::Out { by: self.head.map(|head| head.claim.id) };
        };
        let behind_head = self.head.is_some_and(|head| head.claim < self.waiting[index]);
        let ahead = index + usize::from(self.head.is_some());
        Position::Waits { ahead, better: index + usize::from(behind_head) }
    }

    /// Raises the vote of the claim's tenure, and the counter, to `fence`; changes nothing unless
    /// the claim holds with a vote up to it.
    pub fn raise(&mut self, counter: &mut u64, id: I, fence: u64) -> Position<I> {
        if let Some(head) = self.head.as_mut().filter(|head| head.claim.id == id)
            && head.vote <= fence
        {
            head.vote = fence;
            *counter = fence.max(*counter);
        }
        self.position(id)
    }

    /// Ends the claim's tenure if its vote is at most `up_to`, and puts the claim back in line by
    /// its rank. Returns how it stands now, and whose bell to ring.
    pub fn give_way(
        &mut self,
        counter: &mut u64,
        id: I,
        up_to: u64,
        seed: Seed,
    ) -> (Position<I>, Option<Tenure<I>>) {
        let mut rung = None;
        if let Some(head) = self.head.filter(|head| head.claim.id == id && head.vote <= up_to) {
            self.head = None;
            let at = self.waiting.partition_point(|other| *other < head.claim);
            self.waiting.insert(at, head.claim);
            rung = self.settle(counter, seed).filter(|next| next.claim.id != id);
        }
        (self.position(id), rung)
    }

    /// Takes a claim out of the line: given back, or its time ran out. Returns whether it was
    /// there, and whose bell to ring.
    pub fn leave(&mut self, counter: &mut u64, id: I, seed: Seed) -> (bool, Option<Tenure<I>>) {
        if self.head.is_some_and(|head| head.claim.id == id) {
            self.head = None;
            return (true, self.settle(counter, seed));
        }
        let before = self.waiting.len();
        self.waiting.retain(|other| other.id != id);
        (self.waiting.len() < before, None)
    }

    /// Gives a claim that holds another id, which nobody sends; one that waits is taken out.
    /// Returns whether it held.
    pub fn keep_closed(&mut self, id: I, retired: I) -> bool {
        if let Some(head) = self.head.as_mut().filter(|head| head.claim.id == id) {
            head.claim.id = retired;
            return true;
        }
        self.waiting.retain(|other| other.id != id);
        false
    }

    /// Hands a line that nobody holds to the first who waits: here a tenure begins, so here its
    /// vote is drawn.
    fn settle(&mut self, counter: &mut u64, seed: Seed) -> Option<Tenure<I>> {
        if self.head.is_none() && !self.waiting.is_empty() {
            let claim = self.waiting.remove(0);
            self.head = Some(Tenure { claim, vote: seed.draw(counter) });
            return self.head;
        }
        None
    }

    fn contains(&self, id: I) -> bool {
        !matches!(self.position(id), Position::Out { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Seed = Seed { time: 0, hint: 0 };

    fn claim(rank: u64) -> Waiting<u8> {
        Waiting { rank, id: rank as u8 }
    }

    fn line(counter: &mut u64, ranks: &[u64]) -> NodeLine<u8> {
        let mut line = NodeLine::default();
        for rank in ranks {
            line.enter(counter, claim(*rank), true, PLAIN);
        }
        line
    }

    #[test]
    fn a_vote_is_the_hint_where_the_hint_is_above_counter_and_clock() {
        let mut counter = 7;
        assert_eq!(Seed { time: 5, hint: 12 }.draw(&mut counter), 12);
        assert_eq!(Seed { time: 5, hint: 12 }.draw(&mut counter), 13);
        assert_eq!(Seed { time: 40, hint: 12 }.draw(&mut counter), 40);
        assert_eq!(counter, 40);
    }

    #[test]
    fn a_hint_too_far_ahead_is_ignored() {
        let mut counter = 7;
        assert_eq!(Seed { time: 0, hint: 9 + HINT_AHEAD_MAX }.draw(&mut counter), 8);
        assert_eq!(Seed { time: 0, hint: 9 + HINT_AHEAD_MAX }.draw(&mut counter), 60_000_009);
    }

    #[test]
    fn who_waits_is_ordered_by_rank_whatever_the_order_of_arrival() {
        let mut counter = 0;
        let line = line(&mut counter, &[5, 9, 3, 7]);
        assert_eq!(line.position(5), Position::Holds { vote: 1 });
        assert_eq!(line.position(3), Position::Waits { ahead: 1, better: 0 });
        assert_eq!(line.position(7), Position::Waits { ahead: 2, better: 2 });
        assert_eq!(line.position(9), Position::Waits { ahead: 3, better: 3 });
        assert_eq!(line.position(1), Position::Out { by: Some(5) });
    }

    #[test]
    fn a_vote_is_given_when_the_tenure_begins_and_not_when_the_claim_joins() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1, 2]);
        line.raise(&mut counter, 1, 10);
        let (left, rung) = line.leave(&mut counter, 1, PLAIN);
        assert!(left);
        assert_eq!(rung.map(|next| (next.claim.id, next.vote)), Some((2, 11)));
    }

    #[test]
    fn entering_twice_is_entering_once() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1, 2]);
        let before = line.clone();
        line.enter(&mut counter, claim(1), true, PLAIN);
        line.enter(&mut counter, claim(2), true, PLAIN);
        assert_eq!((line, counter), (before, 1));
    }

    #[test]
    fn a_claim_that_does_not_join_leaves_no_trace() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1]);
        let answer = line.enter(&mut counter, claim(2), false, PLAIN);
        assert_eq!(answer, Position::Out { by: Some(1) });
        assert_eq!((line.waiting.len(), counter), (0, 1));
    }

    #[test]
    fn a_raise_needs_the_tenure_and_a_vote_up_to_the_fence() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1, 2]);
        assert_eq!(
            line.raise(&mut counter, 2, 9),
            Position::Waits { ahead: 1, better: 1 },
            "who waits raises nothing"
        );
        assert_eq!(counter, 1);
        assert_eq!(line.raise(&mut counter, 1, 9), Position::Holds { vote: 9 });
        assert_eq!(line.raise(&mut counter, 1, 8), Position::Holds { vote: 9 });
        assert_eq!(counter, 9);
    }

    #[test]
    fn giving_way_hands_the_line_to_the_best_rank_with_a_fresh_vote() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[5, 9, 3]);
        let (position, rung) = line.give_way(&mut counter, 5, 1, PLAIN);
        assert_eq!(position, Position::Waits { ahead: 1, better: 1 });
        assert_eq!(rung.map(|next| (next.claim.id, next.vote)), Some((3, 2)));
        let (position, rung) = line.give_way(&mut counter, 3, 2, PLAIN);
        assert_eq!(position, Position::Holds { vote: 3 }, "the best rank gets it back, anew");
        assert_eq!(rung, None, "who asks needs no bell");
    }

    #[test]
    fn lease_that_stays_closed_keeps_its_tenure_and_is_found_by_nobody() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1, 2]);
        assert!(!line.keep_closed(2, 9), "it waits");
        assert_eq!(line.position(2), Position::Out { by: Some(1) });
        assert!(line.keep_closed(1, 9));
        assert_eq!(line.position(9), Position::Holds { vote: 1 });
        let before = line.clone();
        assert!(!line.leave(&mut counter, 1, PLAIN).0 && !line.keep_closed(1, 8));
        line.raise(&mut counter, 1, 7);
        line.give_way(&mut counter, 1, 7, PLAIN);
        assert_eq!((line, counter), (before, 1));
    }

    #[test]
    fn giving_way_late_does_not_touch_a_later_tenure() {
        let mut counter = 0;
        let mut line = line(&mut counter, &[1, 2]);
        line.give_way(&mut counter, 1, 1, PLAIN);
        let before = line.clone();
        let (position, rung) = line.give_way(&mut counter, 1, 1, PLAIN);
        assert_eq!((position, rung), (Position::Holds { vote: 2 }, None));
        assert_eq!(line, before);
    }
}
