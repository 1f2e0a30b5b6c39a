//! Rates over the last half minute, from the counts that the store keeps.
//!
//! Clients report their counts to the store every ten seconds. So the difference of two readings a
//! second apart would be nothing nine times and ten times too much once. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use leasehold::engine::Counts;
use serde::Serialize;

/// Three times the period in which clients report their counts.
const WINDOW: Duration = Duration::from_secs(30);

/// More samples than a window has at the shortest interval.
const SAMPLES_MAX: usize = 64;

/// Counts per second, over `over_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) acquired: f64,
    pub(crate) released: f64,
    pub(crate) contended: f64,
    pub(crate) expired: f64,
    pub(crate) lost: f64,
    pub(crate) over_ms: u64,
}

/// The counts of the last half minute.
#[derive(Debug, Default)]
pub(crate) struct Window {
    samples: VecDeque<(Instant, Counts)>,
}

impl Window {
    /// Adds a reading of the counts.
    pub(crate) fn add(&mut self, at: Instant, counts: Counts) {
        let fell = |last: &Counts| counts.acquired < last.acquired;
        if self.samples.back().is_some_and(|(_, last)| fell(last)) {
            // Another store, or an emptied one: the earlier samples do not compare with it.
            self.samples.clear();
        }
        self.samples.push_back((at, counts));
        // Keeps the last one outside, so that the window is never shorter than `WINDOW`.
        let outside = |sample: &(Instant, Counts)| at.duration_since(sample.0) >= WINDOW;
        while self.samples.len() > SAMPLES_MAX || self.samples.get(1).is_some_and(outside) {
            self.samples.pop_front();
        }
    }

    /// The rates; `None` before the second reading.
    pub(crate) fn rates(&self) -> Option<Rates> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let over = last.0.duration_since(first.0);
        if over.is_zero() {
            return None;
        }
        let rate = |count: fn(&Counts) -> u64| {
            let difference = count(&last.1).saturating_sub(count(&first.1));
            // Counts of other processes are never more exact than a tenth.
            (difference as f64 / over.as_secs_f64() * 10.0).round() / 10.0
        };
        Some(Rates {
            acquired: rate(|counts| counts.acquired),
            released: rate(|counts| counts.released),
            contended: rate(|counts| counts.contended),
            expired: rate(|counts| counts.expired),
            lost: rate(|counts| counts.lost),
            over_ms: u64::try_from(over.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(acquired: u64) -> Counts {
        Counts { acquired, ..Counts::default() }
    }

    #[test]
    fn a_rate_needs_two_readings() {
        let mut window = Window::default();
        let begun = Instant::now();
        window.add(begun, counts(100));
        assert_eq!(window.rates(), None);
        window.add(begun + Duration::from_secs(2), counts(105));
        let rates = window.rates().expect("two readings");
        assert_eq!((rates.acquired, rates.released, rates.over_ms), (2.5, 0.0, 2_000));
    }

    #[test]
    fn counts_told_in_bursts_give_an_even_rate() {
        let mut window = Window::default();
        let begun = Instant::now();
        for second in 0..100 {
            window.add(begun + Duration::from_secs(second), counts(second / 10 * 70));
        }
        let rates = window.rates().expect("many readings");
        assert_eq!((rates.acquired, rates.over_ms), (7.0, 30_000));
        assert!(window.samples.len() <= SAMPLES_MAX);
    }

    #[test]
    fn a_store_that_was_emptied_begins_anew() {
        let mut window = Window::default();
        let begun = Instant::now();
        window.add(begun, counts(100));
        window.add(begun + Duration::from_secs(1), counts(0));
        assert_eq!(window.rates(), None);
        window.add(begun + Duration::from_secs(2), counts(3));
        assert_eq!(window.rates().map(|rates| rates.acquired), Some(3.0));
    }
}
