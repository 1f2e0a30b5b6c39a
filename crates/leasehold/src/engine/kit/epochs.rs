//! Fences of stores that number their writes themselves, and always go on from the last number.
//!
//! A fence is the number of the write that made the claim, plus an addend. One record of the store
//! has each addend and the number above which it counts. So all clients compute the same fence.
//! Pure: the engine decides where it keeps the record.

use crate::engine::{Bump, Bumped};

/// The first line of the record.
const MARK: &str = "leasehold epochs 1";

/// The addends for the numbers of a store's writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    /// The number above which each addend counts, and the addend. Both rise.
    steps: Vec<(u64, u64)>,
}

/// The new record, and the answer for the administrator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) record: String,
    pub(crate) bumped: Bumped,
}

impl Epochs {
    /// Reads a record that the write `written` made; `None` if it is no such record. Its first
    /// addend counts above its own number, which its writer could not know. The older steps follow.
    pub(crate) fn read(record: &[u8], written: u64) -> Option<Self> {
        let mut lines = std::str::from_utf8(record).ok()?.lines();
        if lines.next()? != MARK {
            return None;
        }
        let latest = (written, lines.next()?.parse().ok()?);
        let mut steps = Vec::new();
        for line in lines {
            let (above, add) = line.split_once(' ')?;
            steps.push((above.parse().ok()?, add.parse().ok()?));
        }
        steps.push(latest);
        steps.is_sorted().then_some(Self { steps })
    }

    /// The fence of a claim that the write `number` made.
    pub(crate) fn fence(&self, number: u64) -> u64 {
        let step = self.steps.iter().rev().find(|(above, _)| number > *above);
        number.saturating_add(step.map_or(0, |(_, add)| *add))
    }

    /// The next step, if `last` is the last write of the store. Claims made after the record get
    /// the fences that the order asks for.
    pub(crate) fn step(&self, last: u64, order: &Bump) -> Step {
        let before = self.fence(last + 1);
        let from = order.floor(before);
        // One number is the record's own. Other writes may come before it. They belong to the step
        // before, and their fences are lower, because no step adds less.
        let add = from - (last + 2);
        let mut record = format!("{MARK}\n{add}\n");
        for (above, add) in &self.steps {
            record.push_str(&format!("{above} {add}\n"));
        }
        Step { record, bumped: Bumped::Raised { before: before.into(), from: from.into() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::Holder;

    fn order(above: u64, now_us: u64) -> Bump {
        Bump { above, now_us, by: Holder::fresh() }
    }

    fn from(step: &Step) -> u64 {
        match step.bumped {
            Bumped::Raised { before, from } if before < from => from.as_u64(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_record_fences_are_the_numbers() {
        assert_eq!(Epochs::default().fence(7), 7);
    }

    #[test]
    fn claim_from_before_a_record_keeps_its_fence_and_a_later_one_is_above() {
        let first = Epochs::default().step(10, &order(0, 5_000));
        assert_eq!(from(&first), 5_000);
        // Three more writes came in between.
        let one = Epochs::read(first.record.as_bytes(), 14).expect("a record");
        assert_eq!((one.fence(10), one.fence(13)), (10, 13));
        assert!(one.fence(15) >= 5_000);
        let second = one.step(20, &order(0, 6));
        let two = Epochs::read(second.record.as_bytes(), 21).expect("a record");
        assert_eq!([10, 13, 15, 20].map(|number| two.fence(number)), {
            [10, 13, one.fence(15), one.fence(20)]
        });
        assert!(two.fence(22) >= from(&second) && from(&second) > two.fence(20));
    }

    #[test]
    fn fences_rise_with_the_numbers_whatever_the_clock_and_the_delays_are() {
        for delay in [1, 2, 100] {
            let (mut epochs, mut last) = (Epochs::default(), 3);
            for now in [0, 1_000_000, 5, 2_000_000, 2_000_000] {
                let step = epochs.step(last, &order(0, now));
                last += delay;
                epochs = Epochs::read(step.record.as_bytes(), last).expect("a record");
                assert!(epochs.fence(last + 1) >= from(&step));
            }
            let fences: Vec<u64> = (1..last + 5).map(|number| epochs.fence(number)).collect();
            assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
        }
    }

    #[test]
    fn a_fence_that_was_seen_is_exceeded() {
        let step = Epochs::default().step(10, &order(1 << 40, 5));
        assert_eq!(from(&step), (1 << 40) + 1);
        let epochs = Epochs::read(step.record.as_bytes(), 11).expect("a record");
        assert!(epochs.fence(12) > 1 << 40);
    }

    #[test]
    fn text_that_is_no_record_is_refused() {
        for text in
            ["", "7", "leasehold epochs 1", "leasehold epochs 1\nx", "leasehold epochs 2\n7"]
        {
            assert_eq!(Epochs::read(text.as_bytes(), 9), None, "{text:?}");
        }
        assert_eq!(Epochs::read(b"leasehold epochs 1\n7\n12 3\n", 9), None, "out of order");
    }
}
