//! Durations as people write them on the command line and read them in tables.
//!
//! Written: whole numbers with `ms`, `s`, `m`, `h` or `d`, largest unit first, as in `500ms` or
//! `1h30m`. This file refuses fractions, because `1.5h` and `1.5ms` would round differently on
//! different stores. The message has an alternative. The library decides which durations a lock
//! may have.

use std::time::Duration;

use leasehold::claim::Ttl;

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Longer than any useful span, and too short to overflow a clock.
const SPAN_MAX_MS: u64 = 10 * 365 * 24 * 3_600_000;

const EXAMPLES: &str = "write it like `500ms`, `30s`, `5m`, `1h30m` or `7d`";

/// Reads a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.trim_start().starts_with('-') {
        return Err(format!("a duration cannot be negative; {EXAMPLES}"));
    }
    if text.contains(['.', ',']) {
        return Err("fractions are not understood; write `1500ms` instead of `1.5s`".to_owned());
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut largest = u64::MAX;
    while !rest.is_empty() {
        let (value, unit_ms, tail) = part(rest)?;
        if unit_ms >= largest {
            return Err(format!("units go from large to small, each once; {EXAMPLES}"));
        }
        largest = unit_ms;
        total_ms = value
            .checked_mul(unit_ms)
            .and_then(|ms| total_ms.checked_add(ms))
            .filter(|ms| *ms <= SPAN_MAX_MS)
            .ok_or("this is longer than ten years")?;
        rest = tail;
    }
    if text.is_empty() {
        return Err(format!("the duration is empty; {EXAMPLES}"));
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads one number with its unit; also returns the rest of the text.
fn part(text: &str) -> Result<(u64, u64, &str), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, tail) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("this is not a duration; {EXAMPLES}"));
    }
    let value: u64 = number.parse().map_err(|_| "this is longer than ten years")?;
    let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
    let (unit, rest) = tail.split_at(letters);
    if unit.is_empty() {
        return Err(format!("`{number}` has no unit; {EXAMPLES}"));
    }
    match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, unit_ms)) => Ok((value, *unit_ms, rest)),
        None => Err(format!("the unit is not one of ms, s, m, h and d; {EXAMPLES}")),
    }
}

/// Reads a time to live, with the library's bounds.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let span = parse(text)?;
    Ttl::new(span).map(Ttl::get).map_err(|_| {
        let (min, max) = (human(Ttl::MIN), human(Ttl::MAX));
        format!("a ttl must be between {min} and {max}; this one is {}", human(span))
    })
}

/// Reads a bound on how long a lock is held: from the shortest ttl to the longest.
pub(crate) fn parse_hold(text: &str) -> Result<Duration, String> {
    let span = parse(text)?;
    if span < Ttl::MIN || span > Ttl::MAX {
        let (min, max) = (human(Ttl::MIN), human(Ttl::MAX));
        return Err(format!("it must be between {min} and {max}; this one is {}", human(span)));
    }
    Ok(span)
}

/// Reads the time between two readings: long enough for a store to answer, short enough for a live
/// view.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let span = parse(text)?;
    let (min, max) = (Duration::from_millis(100), Duration::from_secs(3_600));
    match (min..=max).contains(&span) {
        true => Ok(span),
        false => Err(format!("it must be between 100ms and 1h; this one is {}", human(span))),
    }
}

/// A duration for people: two units at most, rounded down.
pub(crate) fn human(span: Duration) -> String {
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let (seconds, minutes, hours, days) =
        (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => two(minutes, "m", seconds % 60, "s"),
        // The longest ttl is written `24h` everywhere; days begin after it.
        3_600_000..=86_400_000 => two(hours, "h", minutes % 60, "m"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_they_are_documented() {
        let good = [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("1s500ms", 1_500),
            ("0s", 0),
        ];
        for (text, ms) in good {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn f131_other_text_is_refused_with_a_reason() {
        let bad = [
            ("", "empty"),
            ("abc", "not a duration"),
            ("0", "no unit"),
            ("30", "no unit"),
            ("1ns", "unit"),
            ("1w", "unit"),
            ("-5s", "negative"),
            ("1.5s", "fractions"),
            ("1,5s", "fractions"),
            ("5m1h", "large to small"),
            ("1s1s", "large to small"),
            ("9223372036854775808ms", "ten years"),
            ("99999999999999999999h", "ten years"),
            ("30 s", "unit"),
            ("３０s", "not a duration"),
        ];
        for (text, reason) in bad {
            let message = parse(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn a_ttl_out_of_bounds_names_the_bounds() {
        for text in ["0s", "99ms", "25h"] {
            let message = parse_ttl(text).expect_err(text);
            assert!(message.contains("between 100ms and 24h"), "{message}");
        }
        assert!(parse_ttl("100ms").is_ok() && parse_ttl("24h").is_ok());
    }

    #[test]
    fn an_interval_out_of_bounds_names_the_bounds() {
        for text in ["0s", "99ms", "2h"] {
            let message = parse_interval(text).expect_err(text);
            assert!(message.contains("between 100ms and 1h"), "{message}");
        }
        assert!(parse_interval("100ms").is_ok() && parse_interval("1h").is_ok());
    }

    #[test]
    fn spans_for_people_have_two_units_at_most() {
        let shown = [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (61_000, "1m1s"),
            (3_600_000, "1h"),
            (86_400_000, "24h"),
            (90_061_000, "1d1h"),
        ];
        for (ms, text) in shown {
            assert_eq!(human(Duration::from_millis(ms)), text);
        }
    }
}
