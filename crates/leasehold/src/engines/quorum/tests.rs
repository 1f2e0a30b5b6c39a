//! Facts about one attempt: what the ballot does about what it is told.

use std::time::Duration;

use super::ballot::{Answer, Ballot, NODES_MAX, Order, Step, Terms, majority};
use crate::clock::Moment;
use crate::error::NodeReason;
use crate::rule::claim::{Holder, HolderId, Ttl, margin};

const START: Moment = Moment::from_nanos(1_000_000_000);
const MARGIN: Duration = Duration::from_millis(102);
const QUICK: Duration = Duration::from_micros(300);

fn after(millis: u64) -> Moment {
    START + Duration::from_millis(millis)
}

fn terms(nodes: usize) -> Terms {
    Terms { nodes, join: true, round: 0, margin: MARGIN }
}

fn holder(id: u128) -> Holder {
    Holder::known(HolderId(id), format!("holder {id}")).expect("a good label")
}

fn holds(vote: u64) -> Answer {
    Answer::Holds { vote, kept_until: after(10_000) }
}

fn waits(better: bool) -> Answer {
    Answer::Waits { ahead: 1, better, kept_until: after(10_000) }
}

fn out(by: u128) -> Answer {
    Answer::Out { by: Some(holder(by)) }
}

fn silent() -> Answer {
    Answer::Failed(NodeReason::Silent)
}

/// A ballot with what it wants sent, in order.
struct Desk {
    ballot: Ballot,
    now: Moment,
    hint: u64,
}

impl Desk {
    /// An attempt that has asked all nodes.
    fn new(terms: Terms) -> Self {
        let mut desk = Self { ballot: Ballot::new(terms), now: START, hint: 0 };
        let (sent, step) = desk.next();
        let all: Vec<_> = (0..terms.nodes).map(|node| (node, Order::Ask)).collect();
        assert_eq!(sent, all, "all nodes are asked at once");
        assert!(matches!(step, Step::Wait { in_line: false, .. }), "{step:?}");
        desk
    }

    /// What is sent now, and what remains to be done then.
    fn next(&mut self) -> (Vec<(usize, Order)>, Step) {
        let mut sent = Vec::new();
        loop {
            match self.ballot.next(self.now, self.hint, 0) {
                Step::Send { node, order } => sent.push((node, order)),
                step => return (sent, step),
            }
        }
    }

    fn tell(&mut self, answers: &[(usize, Answer)]) -> (Vec<(usize, Order)>, Step) {
        for (node, answer) in answers {
            self.ballot.answered(*node, answer.clone(), self.now, QUICK);
        }
        self.next()
    }

    fn ring(&mut self, bells: &[(usize, u64)]) -> (Vec<(usize, Order)>, Step) {
        for (node, vote) in bells {
            self.ballot.rung(*node, *vote);
        }
        self.next()
    }

    fn at(&mut self, now: Moment) -> (Vec<(usize, Order)>, Step) {
        self.now = now;
        self.next()
    }
}

fn won(fence: u64) -> (Vec<(usize, Order)>, Step) {
    (vec![], Step::Won { fence, kept_until: after(10_000) })
}

#[test]
fn two_majorities_always_meet() {
    for nodes in 1..=NODES_MAX {
        assert!(2 * majority(nodes) > nodes, "{nodes}");
        assert!(2 * (majority(nodes) - 1) <= nodes, "no more than needed: {nodes}");
    }
}

#[test]
fn one_vote_of_a_majority_is_the_fence_after_one_exchange() {
    let mut desk = Desk::new(terms(3));
    assert!(matches!(desk.tell(&[(2, holds(9))]).1, Step::Wait { .. }));
    assert_eq!(desk.tell(&[(0, holds(9))]), won(9), "without waiting for the third");
}

#[test]
fn votes_that_differ_are_raised_to_the_highest() {
    let mut desk = Desk::new(terms(3));
    let (sent, _) = desk.tell(&[(0, holds(7)), (1, holds(9))]);
    assert_eq!(sent, [(0, Order::Raise { fence: 9 })]);
    assert_eq!(desk.tell(&[(0, holds(9))]), won(9));
}

#[test]
fn votes_that_differ_are_raised_to_a_hint_above_them() {
    let mut desk = Desk::new(terms(3));
    desk.hint = 20;
    let (sent, _) = desk.tell(&[(0, holds(7)), (1, holds(9))]);
    assert_eq!(sent, [(0, Order::Raise { fence: 20 }), (1, Order::Raise { fence: 20 })]);
    assert!(matches!(desk.tell(&[(0, holds(20))]).1, Step::Wait { .. }), "one is no majority");
    assert_eq!(desk.tell(&[(1, holds(20))]), won(20));
}

#[test]
fn a_higher_vote_that_comes_late_does_not_move_the_fence() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, holds(7)), (1, holds(9))]);
    let (sent, step) = desk.tell(&[(2, holds(12))]);
    assert_eq!(sent, [], "two nodes can still agree on 9");
    assert!(matches!(step, Step::Wait { .. }));
    assert_eq!(desk.tell(&[(0, holds(9))]), won(9));
}

#[test]
fn the_fence_is_never_below_what_a_node_was_asked_to_raise_to() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, holds(7)), (1, holds(9))]);
    // The raise at node 0 gets no answer and may still arrive there. Then 7 would be too low.
    desk.tell(&[(0, silent())]);
    desk.ballot.beat_begins();
    desk.ballot.beaten(1, Answer::Out { by: None });
    assert_eq!(desk.tell(&[(2, holds(7))]).0, [(1, Order::Ask)]);
    desk.ballot.beaten(0, holds(7));
    let (sent, _) = desk.next();
    assert!(sent.contains(&(0, Order::Raise { fence: 9 })), "{sent:?}");
    assert!(sent.contains(&(2, Order::Raise { fence: 9 })), "{sent:?}");
}

#[test]
fn bells_of_a_majority_win_without_another_exchange() {
    let mut desk = Desk::new(terms(3));
    let (_, step) = desk.tell(&[(0, waits(true)), (1, waits(true)), (2, waits(true))]);
    assert_eq!(step, Step::Wait { until: Moment::NEVER, in_line: true });
    desk.ring(&[(1, 33)]);
    assert_eq!(desk.ring(&[(2, 33)]), won(33));
}

#[test]
fn a_bell_that_is_quicker_than_the_answer_counts() {
    let mut desk = Desk::new(terms(3));
    desk.ring(&[(0, 5), (1, 5)]);
    let (sent, step) = desk.tell(&[(0, waits(true))]);
    assert!(sent.is_empty() && matches!(step, Step::Wait { .. }), "one node keeps it: {step:?}");
    assert_eq!(desk.tell(&[(1, waits(true))]), won(5), "how long is in the answers");
}

#[test]
fn a_dead_node_does_not_hold_up_a_live_majority() {
    let mut desk = Desk::new(terms(5));
    desk.tell(&[(0, silent()), (1, holds(4)), (2, holds(4))]);
    assert_eq!(desk.tell(&[(3, holds(4))]), won(4));
}

#[test]
fn half_of_an_even_number_is_no_majority() {
    let mut desk = Desk::new(terms(4));
    let (sent, step) = desk.tell(&[(0, holds(4)), (1, holds(4)), (2, silent())]);
    assert!(sent.is_empty() && matches!(step, Step::Wait { .. }));
    assert_eq!(desk.tell(&[(3, silent())]).1, Step::Failed);
}

#[test]
fn a_failure_names_each_node_and_its_cause() {
    let mut desk = Desk::new(terms(4));
    let unreachable = NodeReason::Unreachable { cause: "connection refused".into() };
    let answers = [
        (0, holds(4)),
        (1, Answer::Failed(unreachable.clone())),
        (2, Answer::Failed(NodeReason::Probation)),
    ];
    assert_eq!(desk.tell(&answers).1, Step::Failed, "two of four cannot be had any more");
    let causes = [NodeReason::Granted, unreachable, NodeReason::Probation, NodeReason::NotAwaited];
    assert_eq!(desk.ballot.causes(), causes);
    let taken = NodeReason::Taken { by: Some(holder(7)) };
    assert_eq!(taken.to_string(), "taken by `holder 7`");
}

#[test]
fn a_node_that_had_no_time_to_answer_is_not_called_silent() {
    let mut desk = Desk::new(terms(3));
    let step = desk.tell(&[(0, silent()), (2, silent())]).1;
    assert_eq!(step, Step::Failed, "without waiting for the other one");
    assert_eq!(
        desk.ballot.causes(),
        [NodeReason::Silent, NodeReason::NotAwaited, NodeReason::Silent]
    );
    assert_ne!(NodeReason::NotAwaited.to_string(), NodeReason::Silent.to_string());
}

#[test]
fn an_answer_later_than_the_ttl_is_no_vote() {
    let mut desk = Desk::new(terms(3));
    desk.now = after(10_000);
    let (_, step) = desk.tell(&[(0, holds(4)), (1, holds(4)), (2, holds(4))]);
    assert_eq!(step, Step::Failed);
    assert_eq!(
        desk.ballot.causes(),
        [NodeReason::Expired, NodeReason::Expired, NodeReason::Expired]
    );
}

#[test]
fn the_shortest_ttl_leaves_a_lease_after_its_margin_and_a_quick_exchange() {
    let margin = margin(Ttl::MIN);
    assert!(Ttl::MIN - margin >= Duration::from_millis(97), "{margin:?}");
    let mut desk = Desk::new(Terms { margin, ..terms(3) });
    let kept = Answer::Holds { vote: 4, kept_until: START + Ttl::MIN };
    desk.now = after(5);
    let (_, step) = desk.tell(&[(0, kept.clone()), (1, kept)]);
    assert_eq!(step, Step::Won { fence: 4, kept_until: START + Ttl::MIN });
}

#[test]
fn a_lease_is_kept_for_as_long_as_a_majority_keeps_it() {
    let mut desk = Desk::new(terms(5));
    let until = |millis| Answer::Holds { vote: 4, kept_until: after(millis) };
    desk.tell(&[(0, until(9_000)), (1, silent())]);
    desk.tell(&[(2, until(7_000))]);
    let (_, step) = desk.tell(&[(3, until(8_000)), (4, until(6_000))]);
    assert_eq!(step, Step::Won { fence: 4, kept_until: after(7_000) });
}

#[test]
fn what_a_node_keeps_no_longer_is_asked_for_again() {
    let mut desk = Desk::new(terms(3));
    let (_, step) = desk.tell(&[(0, holds(4)), (1, waits(false)), (2, waits(false))]);
    assert!(matches!(step, Step::Wait { .. }));
    // Long before that the minority is given up; this is about what was never given up.
    let mut held = desk.ballot.clone();
    let late = after(10_000) - MARGIN;
    assert_eq!(held.next(late, 0, 0), Step::Send { node: 0, order: Order::Ask });
}

#[test]
fn a_lost_tenure_found_by_a_raise_is_asked_for_again() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, holds(7)), (1, holds(9))]);
    let (sent, _) = desk.tell(&[(0, Answer::Out { by: None })]);
    assert_eq!(sent, [(0, Order::Ask)]);
    let (sent, _) = desk.tell(&[(0, holds(11))]);
    assert_eq!(sent, [(1, Order::Raise { fence: 11 })], "a later tenure has a later vote");
}

#[test]
fn who_was_granted_a_minority_gives_way_at_once_to_a_better_rank() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, holds(4))]);
    let (sent, _) = desk.tell(&[(1, waits(true))]);
    assert_eq!(sent, [], "the third node may still make a majority");
    let (sent, _) = desk.tell(&[(2, waits(false))]);
    assert_eq!(sent, [(0, Order::GiveWay { up_to: 4 })]);
}

#[test]
fn the_best_rank_waits_for_the_others_to_give_way() {
    let mut desk = Desk::new(terms(2));
    let (sent, step) = desk.tell(&[(0, holds(4)), (1, waits(false))]);
    assert_eq!(sent, []);
    assert_eq!(step, Step::Wait { until: after(2), in_line: true });
    desk.tell(&[]);
    let (sent, _) = desk.ring(&[(1, 6)]);
    assert_eq!(sent, [(0, Order::Raise { fence: 6 })]);
    assert_eq!(desk.tell(&[(0, holds(6))]), won(6));
}

#[test]
fn a_minority_by_bell_is_kept_for_a_while_and_then_given_up_ever_more_patiently() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, waits(true)), (1, waits(true)), (2, waits(true))]);
    let (sent, step) = desk.ring(&[(1, 5)]);
    assert_eq!(sent, [], "the other bells may be on their way");
    let mut vote = 5;
    let mut step = step;
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let Step::Wait { until, .. } = step else { panic!("{step:?}") };
        pauses.push(until.since(desk.now).as_millis());
        let (sent, _) = desk.at(until);
        assert_eq!(sent, [(1, Order::GiveWay { up_to: vote })]);
        // Nobody has a better rank there, so the node gives it back with another vote.
        vote += 1;
        step = desk.tell(&[(1, holds(vote))]).1;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 125, 125, 125, 125]);
}

#[test]
fn all_of_a_minority_is_given_up_together() {
    let mut desk = Desk::new(terms(5));
    let (sent, _) = desk.tell(&[
        (0, holds(4)),
        (1, waits(true)),
        (2, holds(5)),
        (3, waits(true)),
        (4, waits(true)),
    ]);
    assert_eq!(sent, [(0, Order::GiveWay { up_to: 4 }), (2, Order::GiveWay { up_to: 5 })]);
}

#[test]
fn what_was_given_up_never_counts_again() {
    let mut desk = Desk::new(terms(3));
    let (sent, _) = desk.tell(&[(0, holds(4)), (1, waits(true)), (2, waits(true))]);
    assert_eq!(sent, [(0, Order::GiveWay { up_to: 4 })]);
    desk.ballot.beat_begins();
    desk.ballot.beaten(0, holds(4));
    let (sent, step) = desk.ring(&[(1, 4)]);
    assert!(sent.is_empty() && matches!(step, Step::Wait { .. }), "4 at node 0 is spent");
    desk.tell(&[(0, silent())]);
    let (_, step) = desk.ring(&[(0, 4)]);
    assert!(matches!(step, Step::Wait { .. }), "also when nothing is known of the order");
    let (sent, _) = desk.ring(&[(0, 6)]);
    assert_eq!(sent, [(0, Order::Ask)], "a later tenure, of which it must be asked how long");
    assert_eq!(desk.tell(&[(0, holds(6))]).0, [(1, Order::Raise { fence: 6 })]);
}

#[test]
fn a_tenure_after_giving_way_is_not_kept_for_as_long_as_the_one_before() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, holds(4)), (1, waits(true)), (2, waits(true))]);
    let kept_until = after(5_000);
    desk.tell(&[(0, Answer::Waits { ahead: 1, better: true, kept_until })]);
    desk.ring(&[(0, 6)]);
    assert_eq!(desk.ring(&[(1, 6)]).1, Step::Won { fence: 6, kept_until });
}

#[test]
fn a_heartbeat_repairs_a_lost_bell_and_a_lost_place() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, waits(true)), (1, waits(true)), (2, waits(true))]);
    desk.ballot.beat_begins();
    desk.ballot.beaten(0, Answer::Out { by: None });
    assert_eq!(desk.next().0, [(0, Order::Ask)], "it stands in line again");
    desk.ballot.beaten(1, holds(5));
    desk.ballot.beaten(2, holds(5));
    assert_eq!(desk.next(), won(5));
}

#[test]
fn a_bell_of_a_place_that_was_lost_is_worth_asking_and_no_vote() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, waits(true)), (1, waits(true)), (2, waits(true))]);
    // The client slept, and its claim was granted and ran out at two nodes meanwhile. Their bells
    // are on their way still when it is in line again.
    desk.ballot.beat_begins();
    desk.ballot.beaten(0, Answer::Out { by: None });
    desk.ballot.beaten(1, Answer::Out { by: None });
    assert_eq!(desk.next().0, [(0, Order::Ask), (1, Order::Ask)]);
    desk.tell(&[(0, waits(true)), (1, waits(true))]);
    assert!(!desk.ballot.rung(0, 5) && !desk.ballot.rung(1, 5));
    assert!(matches!(desk.next().1, Step::Wait { .. }), "nobody voted for it");
    desk.ballot.beat_begins();
    desk.ballot.beaten(0, holds(9));
    desk.ballot.beaten(1, holds(9));
    assert_eq!(desk.next(), won(9));
}

#[test]
fn a_heartbeat_that_a_bell_overtook_says_nothing() {
    let mut desk = Desk::new(terms(3));
    desk.tell(&[(0, waits(true)), (1, waits(true)), (2, waits(true))]);
    desk.ballot.beat_begins();
    desk.ring(&[(0, 5)]);
    desk.ballot.beaten(0, waits(true));
    assert_eq!(desk.ring(&[(1, 5)]), won(5));
}

#[test]
fn a_node_that_did_not_answer_is_asked_again_while_the_claim_waits() {
    let mut desk = Desk::new(terms(3));
    let (_, step) = desk.tell(&[(0, waits(true)), (1, waits(true)), (2, silent())]);
    assert_eq!(step, Step::Wait { until: after(1_000), in_line: true });
    assert_eq!(desk.at(after(1_000)).0, [(2, Order::Ask)]);
}

fn trying(nodes: usize, round: u32) -> Desk {
    Desk::new(Terms { join: false, round, ..terms(nodes) })
}

#[test]
fn a_claim_that_does_not_join_is_refused_by_whoever_has_a_majority() {
    let mut desk = trying(3, 0);
    desk.tell(&[(0, out(7))]);
    let (_, step) = desk.tell(&[(1, out(7))]);
    assert_eq!(step, Step::Taken { by: Some(holder(7)) }, "whatever the third says");
    let mut desk = trying(3, 0);
    let (_, step) = desk.tell(&[(0, out(7)), (1, silent()), (2, holds(4))]);
    assert_eq!(step, Step::Taken { by: Some(holder(7)) }, "the silent one may be theirs too");
}

#[test]
fn a_split_vote_is_tried_again_after_a_pause_and_not_for_ever() {
    let split = [(0, out(7)), (1, out(8)), (2, holds(4))];
    assert_eq!(trying(3, 0).tell(&split).1, Step::Again { at: after(2) });
    assert_eq!(trying(3, 3).tell(&split).1, Step::Again { at: after(16) });
    assert!(matches!(trying(3, 8).tell(&split).1, Step::Taken { by: Some(_) }));
    let even = [(0, out(7)), (1, holds(4))];
    assert_eq!(
        trying(2, 0).tell(&even).1,
        Step::Again { at: after(2) },
        "one of two is no majority"
    );
}
