//! Counting tests from the result lines that test programs print.
//!
//! Pure text work. `libtest` and `libtest-mimic` end every run with the same line:
//! `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s`.

use std::ops::AddAssign;

/// How many tests passed, failed and were ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Totals {
    /// Reads one line of a test program's output; other lines than result lines give `None`.
    pub(crate) fn from_line(line: &str) -> Option<Totals> {
        let line = without_colour(line);
        // Not only at the start: a child of a test may have written half a line before it.
        let (_noise, result) = line.split_once("test result: ")?;
        let (_verdict, counts) = result.split_once(". ")?;
        let mut totals = Totals::default();
        let mut known = 0;
        for part in counts.split(';') {
            let Some((count, what)) = part.trim().split_once(' ') else { continue };
            let field = match what {
                "passed" => &mut totals.passed,
                "failed" => &mut totals.failed,
                "ignored" => &mut totals.ignored,
                _ => continue,
            };
            *field = count.parse().ok()?;
            known += 1;
        }
        (known == 3).then_some(totals)
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Removes terminal colour sequences (`ESC [ … m`), which a user can force into a pipe.
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_of_libtest_is_read() {
        let line = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; \
                    finished in 0.25s";
        let totals = Totals { passed: 12, failed: 0, ignored: 3 };
        assert_eq!(Totals::from_line(line), Some(totals));
    }

    #[test]
    fn failed_and_coloured_result_line_is_read() {
        let line = "test result: \u{1b}[31mFAILED\u{1b}[0m. 1 passed; 2 failed; 0 ignored; \
                    0 measured; 0 filtered out; finished in 9.00s";
        let totals = Totals { passed: 1, failed: 2, ignored: 0 };
        assert_eq!(Totals::from_line(line), Some(totals));
    }

    #[test]
    fn result_after_half_a_line_of_noise_is_read() {
        let line = "startingtest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
        let totals = Totals { passed: 1, failed: 0, ignored: 0 };
        assert_eq!(Totals::from_line(line), Some(totals));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in ["test result", "test line::passes ... ok", "running 3 tests", ""] {
            assert_eq!(Totals::from_line(line), None, "{line}");
        }
        assert_eq!(Totals::from_line("test result: ok. many passed; 0 failed; 0 ignored"), None);
    }

    #[test]
    fn totals_add_up() {
        let mut sum = Totals { passed: 1, failed: 2, ignored: 3 };
        sum += Totals { passed: 10, failed: 20, ignored: 30 };
        assert_eq!(sum, Totals { passed: 11, failed: 22, ignored: 33 });
    }
}
