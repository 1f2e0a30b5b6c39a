//! What a client knows of its nodes' clocks: what to suggest as a vote, and where to stand in line.
//!
//! A node's counter is never behind its clock, so nodes left to themselves would never give one
//! and the same vote. A number a little ahead of their clocks, suggested to all of them, is the
//! vote that all of them give. It also makes the rank of a claim: the same at every node, so that
//! all nodes have one order. Neither carries any proof; a wrong clock costs an exchange, or a
//! place in line.

use std::time::Duration;

use super::ballot::majority;
use crate::clock::Moment;
use crate::clock::remote::{ClockTrouble, Reading, RemoteClock};

/// How far a hint is ahead of the clocks at least: longer than a request is on its way on one
/// network, and so short that a counter which lost its memory is soon above it.
const LEAD_MIN: Duration = Duration::from_millis(10);

/// How far it is ahead at most, however slow the nodes answer.
const LEAD_MAX: Duration = Duration::from_millis(250);

/// The nodes' clocks.
#[derive(Debug, Clone)]
pub struct NodeClocks {
    clocks: Vec<RemoteClock>,
}

impl NodeClocks {
    /// Nothing is known yet.
    pub fn new(nodes: usize) -> Self {
        Self { clocks: vec![RemoteClock::default(); nodes] }
    }

    /// An answer showed a node's clock, in microseconds. Returns what is wrong with it, if that
    /// is news.
    pub fn read(
        &mut self,
        node: usize,
        time: u64,
        sent: Moment,
        received: Moment,
    ) -> Option<ClockTrouble> {
        self.clocks[node].read(Reading { sent, received, time })
    }

    fn readings(&self) -> impl Iterator<Item = Reading> {
        self.clocks.iter().filter_map(RemoteClock::last)
    }

    /// What a majority of the nodes' clocks have not passed at `now`, in microseconds: so one
    /// clock that is wrong moves nobody. 0 before anything was read.
    pub fn time_at(&self, now: Moment) -> u64 {
        let ahead = |reading: Reading| reading.time as i64 - nanos(reading.sent) / 1_000;
        let mut ahead: Vec<i64> = self.readings().map(ahead).collect();
        ahead.sort_unstable();
        let middle = majority(self.clocks.len()).min(ahead.len());
        match middle.checked_sub(1) {
            Some(index) => u64::try_from(ahead[index] + nanos(now) / 1_000).unwrap_or(0),
            None => 0,
        }
    }

    /// The vote to suggest at `now`, above `known`, the highest number seen on this name: ahead
    /// of the clocks by as long as the slowest of the last exchanges took.
    pub fn hint(&self, now: Moment, known: u64) -> u64 {
        let took = |reading: Reading| reading.received.since(reading.sent);
        let slowest = self.readings().map(took).max().unwrap_or_default();
        let lead = slowest.clamp(LEAD_MIN, LEAD_MAX);
        (self.time_at(now) + micros(lead) as u64).max(known + 1)
    }
}

fn nanos(at: Moment) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::remote::Shift;

    const HOUR: u64 = 3_600_000_000;

    fn at(micros: u64) -> Moment {
        Moment::from_nanos(1_000 * micros)
    }

    fn clocks(times: &[u64]) -> NodeClocks {
        let mut clocks = NodeClocks::new(times.len());
        for (node, time) in times.iter().enumerate() {
            clocks.read(node, *time, at(1_000), at(1_400));
        }
        clocks
    }

    #[test]
    fn a_hint_is_ahead_of_the_clocks_of_a_majority() {
        let clocks = clocks(&[5_000_000, 5_000_300, 5_000_100]);
        assert_eq!(clocks.time_at(at(1_000)), 5_000_100);
        assert_eq!(clocks.hint(at(2_000), 0), 5_011_100);
        assert_eq!(clocks.hint(at(2_000), 6_000_000), 6_000_001);
    }

    #[test]
    fn one_wrong_clock_moves_nobody() {
        for wrong in [5_000_000 + HOUR, 0] {
            let clocks = clocks(&[5_000_000, wrong, 5_000_100]);
            assert!(clocks.time_at(at(1_000)).abs_diff(5_000_000) <= 100, "{wrong}");
        }
    }

    #[test]
    fn with_two_nodes_a_hint_is_ahead_of_both() {
        assert_eq!(clocks(&[5_000_000, 5_700_000]).time_at(at(1_000)), 5_700_000);
    }

    #[test]
    fn a_step_of_one_nodes_clock_is_told_of_that_node() {
        let mut clocks = clocks(&[5_000_000, 5_000_000]);
        let stepped = clocks.read(1, 6_000_000 + HOUR, at(1_001_000), at(1_001_400));
        assert!(matches!(stepped, Some(ClockTrouble::Step { by: Shift::Ahead(_) })), "{stepped:?}");
        assert_eq!(clocks.read(0, 6_000_000, at(1_001_000), at(1_001_400)), None);
    }

    #[test]
    fn nothing_is_suggested_before_anything_is_known() {
        assert_eq!(NodeClocks::new(3).time_at(at(1_000)), 0);
    }
}
