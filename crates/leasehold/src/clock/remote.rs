//! Judges the clock of another machine by comparing its readings with our own clock.
//!
//! A server that ends claims by its wall clock shows that clock in its usual answers. The server
//! reads it between the client's request and the arrival of the answer. So each reading bounds how
//! far that clock is ahead of ours. If two bounds do not overlap, the clock was set. If the same
//! time comes again much later, the clock stands still. A slow exchange or a paused client only
//! makes the bounds wider.

use std::time::Duration;

use super::Moment;

/// The smallest step that is reported. Smaller ones matter little, and a hand-over between two
/// well-kept servers may cause them.
const STEP_MIN: Duration = Duration::from_millis(50);

/// How much two clocks may drift apart: one part in so many of the time that passed. The margin of
/// a lease covers it.
const DRIFT_PART: u32 = 100;

/// A clock that shows the same time after this long stands still. Longer than the tick of a coarse
/// clock.
pub const STILL_MIN: Duration = Duration::from_millis(20);

/// One reading of another machine's clock, between two instants of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Our time before the request was sent.
    pub sent: Moment,
    /// Our time after the answer arrived.
    pub received: Moment,
    /// The time on the other clock, in microseconds.
    pub time: u64,
}

/// A fault of a clock that ends claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockTrouble {
    /// It was set. Claims in the store at that instant end that much early, or late.
    Step {
        /// By how much, at least.
        by: Shift,
    },
    /// It stands still. No claim expires meanwhile.
    Frozen {
        /// For how long already, at least.
        stood: Duration,
    },
}

/// How far and in which direction a clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Forward: claims end early, and two may hold at a time.
    Ahead(Duration),
    /// Back: claims last longer.
    Back(Duration),
}

impl Shift {
    /// How far, in either direction.
    pub fn span(self) -> Duration {
        match self {
            Shift::Ahead(by) | Shift::Back(by) => by,
        }
    }

    /// Whether two may be the same step, as far as readings can tell.
    pub fn is_like(self, other: Shift) -> bool {
        let near =
            |one: Duration, other: Duration| one.abs_diff(other) <= STEP_MIN + one.max(other) / 10;
        match (self, other) {
            (Shift::Ahead(one), Shift::Ahead(other)) => near(one, other),
            (Shift::Back(one), Shift::Back(other)) => near(one, other),
            _ => false,
        }
    }
}

impl std::fmt::Display for Shift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shift::Ahead(by) => write!(f, "{by:.1?} ahead"),
            Shift::Back(by) => write!(f, "{by:.1?} back"),
        }
    }
}

impl std::fmt::Display for ClockTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClockTrouble::Step { by } => write!(f, "was set {by}"),
            ClockTrouble::Frozen { stood } => write!(f, "stood still for {stood:.1?} or longer"),
        }
    }
}

/// Another machine's clock.
#[derive(Debug, Clone, Default)]
pub struct RemoteClock {
    known: Option<Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    last: Reading,
    /// When the time of the last reading was first shown.
    shown_since: Moment,
    stands_still: bool,
    bounds: Bounds,
}

/// How far a clock is ahead of ours, in microseconds: at least, and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    least: i64,
    most: i64,
}

impl Bounds {
    fn of(reading: &Reading) -> Self {
        let time = i64::try_from(reading.time).unwrap_or(i64::MAX);
        let ahead_of = |ours: Moment| time.saturating_sub(since_start(ours));
        Self { least: ahead_of(reading.received), most: ahead_of(reading.sent) }
    }

    /// How far another reading's bounds are beyond these; 0 if they overlap.
    fn gap(self, later: Bounds) -> i64 {
        if later.least > self.most {
            later.least - self.most
        } else {
            (later.most - self.least).min(0)
        }
    }

    /// The overlap of both; the later one alone if they do not overlap.
    fn narrowed(self, later: Bounds) -> Self {
        let (least, most) = (self.least.max(later.least), self.most.min(later.most));
        if least <= most { Self { least, most } } else { later }
    }

    fn widened(self, by: i64) -> Self {
        Self { least: self.least.saturating_sub(by), most: self.most.saturating_add(by) }
    }
}

impl RemoteClock {
    /// The last reading.
    pub fn last(&self) -> Option<Reading> {
        self.known.map(|known| known.last)
    }

    /// Whether the last reading found it standing still.
    pub fn stands_still(&self) -> bool {
        self.known.is_some_and(|known| known.stands_still)
    }

    /// Takes a reading from an answer. Returns a fault of the clock when it is new. Ignores a
    /// reading whose request was sent before that of the last one.
    pub fn read(&mut self, reading: Reading) -> Option<ClockTrouble> {
        let shown = Bounds::of(&reading);
        let fresh = Known {
            last: reading,
            shown_since: reading.received,
            stands_still: false,
            bounds: shown,
        };
        let Some(known) = self.known else {
            self.known = Some(fresh);
            return None;
        };
        if reading.sent < known.last.sent {
            return None;
        }
        if reading.time == known.last.time {
            return self.same_again(known, fresh);
        }
        let passed = reading.received.since(known.last.sent);
        let drift = micros(passed / DRIFT_PART);
        let bounds = known.bounds.widened(drift).narrowed(shown);
        let gap = match known.stands_still && reading.time > known.last.time {
            // A clock that stood still may have begun to run again at any instant since.
            true => known.bounds.gap(shown).max(0),
            false => known.bounds.gap(shown),
        };
        let stepped = micros(STEP_MIN) + drift < gap.abs();
        self.known = Some(if stepped { fresh } else { Known { bounds, ..fresh } });
        let by = Duration::from_micros(gap.unsigned_abs());
        let by = if gap > 0 { Shift::Ahead(by) } else { Shift::Back(by) };
        stepped.then_some(ClockTrouble::Step { by })
    }

    /// Handles a reading that shows the same time as the last one.
    fn same_again(&mut self, known: Known, fresh: Known) -> Option<ClockTrouble> {
        let stood = fresh.last.sent.since(known.shown_since);
        let stands_still = known.stands_still || stood >= STILL_MIN;
        self.known = Some(Known { shown_since: known.shown_since, stands_still, ..fresh });
        (stands_still && !known.stands_still).then_some(ClockTrouble::Frozen { stood })
    }
}

fn since_start(at: Moment) -> i64 {
    i64::try_from(at.as_nanos() / 1_000).unwrap_or(i64::MAX)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * SECOND;

    /// A reading whose request was sent at `sent` and took `took`, both in microseconds.
    fn reading(time: u64, sent: u64, took: u64) -> Reading {
        let at = |micros: u64| Moment::from_nanos(1_000 * micros);
        Reading { sent: at(sent), received: at(sent + took), time }
    }

    /// A clock that showed `HOUR` when ours showed a second.
    fn clock() -> RemoteClock {
        let mut clock = RemoteClock::default();
        assert_eq!(clock.read(reading(HOUR + 200, SECOND, 400)), None);
        clock
    }

    fn ahead(trouble: Option<ClockTrouble>) -> Option<u128> {
        match trouble {
            Some(ClockTrouble::Step { by: Shift::Ahead(by) }) => Some(by.as_micros()),
            _ => None,
        }
    }

    fn back(trouble: Option<ClockTrouble>) -> Option<u128> {
        match trouble {
            Some(ClockTrouble::Step { by: Shift::Back(by) }) => Some(by.as_micros()),
            _ => None,
        }
    }

    #[test]
    fn steps_are_told_once_with_their_size_and_direction() {
        let mut clock = clock();
        let stepped = clock.read(reading(2 * HOUR + SECOND, 2 * SECOND, 400));
        assert!(ahead(stepped).is_some_and(|by| u128::from(HOUR) - by < 1_000), "{stepped:?}");
        assert_eq!(clock.read(reading(2 * HOUR + 2 * SECOND, 3 * SECOND, 400)), None, "once");
        let stepped = clock.read(reading(HOUR + 3 * SECOND, 4 * SECOND, 400));
        assert!(back(stepped).is_some_and(|by| u128::from(HOUR) - by < 1_000), "{stepped:?}");
    }

    #[test]
    fn an_exchange_that_took_long_is_no_step() {
        for shown_after in [0, 400, 5 * SECOND, 10 * SECOND] {
            let mut clock = clock();
            let time = HOUR + SECOND + shown_after;
            assert_eq!(clock.read(reading(time, 2 * SECOND, 10 * SECOND)), None, "{shown_after}");
        }
    }

    #[test]
    fn a_step_that_a_long_exchange_hid_is_found_by_the_next_one() {
        let mut clock = clock();
        let hidden = HOUR + 3 * SECOND;
        assert_eq!(clock.read(reading(hidden, 2 * SECOND, 10 * SECOND)), None);
        // The clock was two seconds ahead, because the server had answered at once.
        let stepped = clock.read(reading(HOUR + 14 * SECOND, 13 * SECOND, 400));
        assert!(ahead(stepped).is_some_and(|by| (1_800_000..=2_000_000).contains(&by)));
    }

    #[test]
    fn clocks_that_run_a_little_apart_are_no_trouble() {
        for percent in [99, 101] {
            let mut clock = clock();
            for second in 1..10_000 {
                let time = HOUR + 200 + second * SECOND * percent / 100;
                let read = clock.read(reading(time, (1 + second) * SECOND, 400));
                assert_eq!(read, None, "{percent} % after {second} s");
            }
        }
    }

    #[test]
    fn a_clock_that_stands_still_is_told_once_and_again_after_it_ran() {
        let mut clock = clock();
        assert_eq!(clock.read(reading(HOUR + 10_000, SECOND + 10_000, 400)), None);
        let mut told = Vec::new();
        for tick in 2..200 {
            told.extend(clock.read(reading(HOUR + 10_000, SECOND + tick * 10_000, 400)));
        }
        assert!(matches!(told[..], [ClockTrouble::Frozen { stood }] if stood >= STILL_MIN));
        assert!(clock.stands_still());
        // It runs on from the time that it showed.
        assert_eq!(clock.read(reading(HOUR + 15_000, 3 * SECOND, 400)), None);
        assert_eq!(clock.read(reading(HOUR + SECOND, 4 * SECOND - 15_000, 400)), None);
        assert!(!clock.stands_still());
        let again = clock.read(reading(HOUR + SECOND, 5 * SECOND, 400));
        assert!(matches!(again, Some(ClockTrouble::Frozen { .. })), "{again:?}");
        // It is set to the right time.
        let set = clock.read(reading(HOUR + 9 * SECOND, 10 * SECOND, 400));
        assert!(ahead(set).is_some(), "{set:?}");
    }

    #[test]
    fn clock_that_shows_the_same_time_within_a_tick_runs() {
        let mut clock = clock();
        assert_eq!(clock.read(reading(HOUR + 200, SECOND + 10_000, 400)), None);
        assert!(!clock.stands_still());
    }

    #[test]
    fn a_reading_that_comes_late_says_nothing() {
        let mut clock = clock();
        assert_eq!(clock.read(reading(HOUR + 9 * SECOND, 10 * SECOND, 400)), None);
        assert_eq!(clock.read(reading(HOUR, 2 * SECOND, 400)), None);
        assert_eq!(clock.last().map(|last| last.time), Some(HOUR + 9 * SECOND));
    }

    #[test]
    fn one_step_seen_twice_is_like_itself() {
        let ahead = |ms| Shift::Ahead(Duration::from_millis(ms));
        assert!(ahead(700).is_like(ahead(690)) && ahead(3_600_000).is_like(ahead(3_599_000)));
        assert!(!ahead(700).is_like(ahead(1_000)));
        assert!(!ahead(700).is_like(Shift::Back(Duration::from_millis(700))));
    }
}
