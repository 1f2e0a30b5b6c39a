//! The lines of a test program about its tests, and how long each test took.
//!
//! A test program prints a line when a test ends, and no durations on stable Rust. It starts its
//! tests in the order of their names and runs a fixed number at once. So each end of a test is the
//! start of the next one, and the starts follow from the ends. `totals` counts the tests.

use std::time::Duration;

use crate::totals::Totals;

/// Everything that a test program has printed about its tests so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) totals: Totals,
    /// How many tests the program announced.
    pub(crate) announced: usize,
    /// When the program announced its tests, counted from its start.
    began: Duration,
    /// In the order in which they ended.
    pub(crate) ended: Vec<Ended>,
}

/// A test that ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) failed: bool,
    /// When it ended, counted from the start of the program.
    at: Duration,
}

impl Seen {
    /// Reads a line that came `at` this time after the start of the program.
    pub(crate) fn line(&mut self, line: &str, at: Duration) {
        if let Some(count) = announcement(line) {
            self.announced += count;
            self.began = at;
        } else if let Some(totals) = Totals::from_line(line) {
            self.totals += totals;
        } else if let Some((name, failed)) = end_of_test(line) {
            self.ended.push(Ended { name: name.to_owned(), failed, at });
        }
    }

    /// How long each test took in a program that ran `at_once` tests side by side.
    pub(crate) fn durations(&self, at_once: usize) -> Vec<(&str, Duration)> {
        let mut in_order: Vec<&Ended> = self.ended.iter().collect();
        in_order.sort_by(|left, right| left.name.cmp(&right.name));
        let lasted = in_order.iter().enumerate().map(|(index, test)| {
            let freed = index.checked_sub(at_once).and_then(|end| self.ended.get(end));
            let start = freed.map_or(self.began, |end| end.at);
            (test.name.as_str(), test.at.saturating_sub(start))
        });
        lasted.collect()
    }

    /// The names of the tests that failed.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &str> {
        self.ended.iter().filter(|test| test.failed).map(|test| test.name.as_str())
    }
}

/// The number in `running 12 tests`.
fn announcement(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    let count = rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?;
    count.parse().ok()
}

/// The name in `test NAME ... ok`, and whether the test failed.
fn end_of_test(line: &str) -> Option<(&str, bool)> {
    let (start, verdict) = line.rsplit_once(" ... ")?;
    // Some programs pad names, so that verdicts line up.
    let start = start.trim_end();
    let failed = match verdict {
        "ok" => false,
        "FAILED" => true,
        _ => return None,
    };
    // A child of a test may have written half a line before it.
    let name = start.strip_prefix("test ").or_else(|| Some(start.rsplit_once("test ")?.1))?;
    Some((name.strip_suffix(" - should panic").unwrap_or(name), failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &[(&str, u64)]) -> Seen {
        let mut seen = Seen::default();
        for (line, second) in lines {
            seen.line(line, Duration::from_secs(*second));
        }
        seen
    }

    #[test]
    fn names_and_verdicts_are_read() {
        let seen = seen(&[
            ("running 4 tests", 0),
            ("test a::b      ... ok", 1),
            ("noisetest src/latest.rs - c (line 3) ... FAILED", 1),
            ("test d - should panic ... ok", 1),
            ("test e ... ignored", 1),
            ("test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured", 1),
        ]);
        let names: Vec<&str> = seen.ended.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["a::b", "src/latest.rs - c (line 3)", "d"]);
        assert_eq!(seen.failed().collect::<Vec<_>>(), ["src/latest.rs - c (line 3)"]);
        assert_eq!(seen.announced, 4);
        assert_eq!(seen.totals, Totals { passed: 2, failed: 1, ignored: 1 });
    }

    #[test]
    fn start_of_a_test_is_the_end_that_made_room_for_it() {
        // Two at once: a and b start at 1. b ends at 3 and c starts; a ends at 5 and d starts.
        let seen = seen(&[
            ("running 4 tests", 1),
            ("test b ... ok", 3),
            ("test a ... ok", 5),
            ("test d ... ok", 6),
            ("test c ... ok", 9),
        ]);
        let seconds: Vec<(&str, u64)> =
            seen.durations(2).into_iter().map(|(name, took)| (name, took.as_secs())).collect();
        assert_eq!(seconds, [("a", 4), ("b", 2), ("c", 6), ("d", 1)]);
    }
}
