//! What renewals show of the clocks of a store's servers.
//!
//! One server, or whoever is master, is one clock: what matters is the time by which claims end,
//! whoever shows it. In a Cluster an answer does not say which node gave it, so each slot has a
//! clock of its own, and one step that many slots show is told once.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::clock::remote::{ClockTrouble, Reading, RemoteClock, Shift};

/// A slot that nobody renewed in for this long says nothing about the present.
const RECENT: Duration = Duration::from_secs(60);

/// The clocks of a store. There are at most as many as a Cluster has slots.
#[derive(Debug, Default)]
pub(super) struct StoreClocks {
    by_slot: HashMap<u16, RemoteClock>,
    /// The last step that was told, and when it was seen.
    step: Option<(Moment, Shift)>,
}

impl StoreClocks {
    /// An answer about a name in `slot` showed its server's clock. Returns what is wrong with it,
    /// if that is news.
    pub(super) fn read(&mut self, slot: u16, reading: Reading) -> Option<ClockTrouble> {
        let clock = self.by_slot.entry(slot).or_default();
        let before = clock.last();
        let trouble = clock.read(reading)?;
        let known = match trouble {
            ClockTrouble::Step { by } => {
                // Another slot told of one like it, which this one had not seen by then.
                let known = self.step.is_some_and(|(seen, told)| {
                    by.is_like(told) && before.is_some_and(|before| before.received < seen)
                });
                if !known {
                    self.step = Some((reading.received, by));
                }
                known
            }
            ClockTrouble::Frozen { .. } => {
                let others = self.by_slot.iter().filter(|(other, _)| **other != slot);
                others.map(|(_, other)| other).any(|other| {
                    let recent = |last: Reading| reading.sent.since(last.received) < RECENT;
                    other.stands_still() && other.last().is_some_and(recent)
                })
            }
        };
        (!known).then_some(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn reading(time: u64, sent: u64) -> Reading {
        let at = |micros: u64| Moment::from_nanos(1_000 * micros);
        Reading { sent: at(sent), received: at(sent + 400), time }
    }

    /// Slots whose clocks show the same as ours.
    fn clocks(slots: u16) -> StoreClocks {
        let mut clocks = StoreClocks::default();
        for slot in 0..slots {
            assert_eq!(clocks.read(slot, reading(SECOND, SECOND)), None);
        }
        clocks
    }

    #[test]
    fn a_step_that_all_slots_of_a_node_show_is_told_once() {
        let mut clocks = clocks(3);
        let stepped = |slot, now| (slot, reading(now + 60 * SECOND, now));
        let told: Vec<_> = [stepped(0, 2 * SECOND), stepped(1, 2 * SECOND), stepped(2, 9 * SECOND)]
            .into_iter()
            .filter_map(|(slot, reading)| clocks.read(slot, reading))
            .collect();
        assert!(matches!(told[..], [ClockTrouble::Step { by: Shift::Ahead(_) }]), "{told:?}");
        let again = clocks.read(0, reading(130 * SECOND, 10 * SECOND));
        assert!(again.is_some(), "another step is news");
    }

    #[test]
    fn steps_of_different_sizes_are_different_steps() {
        let mut clocks = clocks(2);
        assert!(clocks.read(0, reading(62 * SECOND, 2 * SECOND)).is_some());
        assert!(clocks.read(1, reading(3 * SECOND, 2 * SECOND)).is_some());
    }

    #[test]
    fn a_clock_that_stands_still_is_told_once_for_all_slots() {
        let mut clocks = clocks(3);
        let told: Vec<_> =
            (0..3).filter_map(|slot| clocks.read(slot, reading(SECOND, 2 * SECOND))).collect();
        assert!(matches!(told[..], [ClockTrouble::Frozen { .. }]), "{told:?}");
    }
}
