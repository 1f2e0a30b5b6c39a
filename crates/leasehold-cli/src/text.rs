//! Text that is safe to print: escaped control characters, no passwords, instants in UTC.
//!
//! Names, notes and labels come from other people and may hold any character. They must not move
//! the cursor, forge a line, or reverse a table.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Escapes the characters that a terminal would act on instead of showing.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            '\r' => escaped.push_str("\\r"),
            c if c.is_control() || turns_text_around(c) => {
                escaped.extend(c.escape_unicode());
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// As [`escape`], but keeps line ends: for messages of several lines.
pub(crate) fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

/// Invisible characters that change the order or look of their neighbours.
fn turns_text_around(c: char) -> bool {
    let marks = '\u{200b}'..='\u{200f}';
    let orders = '\u{2028}'..='\u{202e}';
    let isolates = '\u{2060}'..='\u{206f}';
    c == '\u{feff}' || marks.contains(&c) || orders.contains(&c) || isolates.contains(&c)
}

/// How many columns of a terminal a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// At most `columns` columns of a text, with a mark at the end if it was cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| match left.checked_sub(c.width().unwrap_or(0)) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let kept: String = text.chars().take_while(fits).collect();
    if columns == 0 { kept } else { kept + "…" }
}

/// Removes the user part of everything that looks like a URL.
pub(crate) fn redact(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (head, tail) = rest.split_at(at + 3);
        clean.push_str(head);
        // A password may hold nearly any character, so remove all up to the last `@` of the word.
        let word = tail.find(char::is_whitespace).unwrap_or(tail.len());
        rest = match tail[..word].rfind('@') {
            Some(end) => {
                clean.push('…');
                &tail[end..]
            }
            None => tail,
        };
    }
    clean.push_str(rest);
    clean
}

/// The wall-clock instant `age` ago, in UTC with milliseconds.
pub(crate) fn wall_clock_ago(age: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.saturating_sub(age))
}

/// The same to the second, and without the date if it is less than a day ago.
pub(crate) fn time_ago(age: Duration) -> String {
    let at = wall_clock_ago(age);
    let seconds = at.split('.').next().unwrap_or(&at);
    let time = seconds.split_once('T').filter(|_| age < Duration::from_secs(86_400));
    time.map_or(seconds, |(_, time)| time).to_owned() + "Z"
}

fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    let mut text = String::with_capacity(24);
    write!(
        text,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60,
        since_epoch.subsec_millis()
    )
    .expect("writing to a string cannot fail");
    text
}

/// The date of a day counted from 1970-01-01. It counts in eras of 400 years that begin on a
/// 1 March, so the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_sent() {
        assert_eq!(escape("a\u{1b}[2Jb\n\u{202e}c"), "a\\u{1b}[2Jb\\n\\u{202e}c");
        assert_eq!(escape("naïve 😀"), "naïve 😀");
        assert_eq!(escape_lines("a\nb\u{7}"), "a\nb\\u{7}");
    }

    #[test]
    fn time_of_less_than_a_day_ago_has_no_date() {
        let [short, long] = [1, 2 * 86_400].map(|age| time_ago(Duration::from_secs(age)));
        assert_eq!((short.len(), long.len()), ("10:26:58Z".len(), "2026-11-15T10:26:58Z".len()));
        assert!(short.ends_with('Z') && long.contains('T'), "{short} {long}");
    }

    #[test]
    fn f145_urls_lose_their_user_part() {
        let shown = [
            ("redis://:secret@h:1/0", "redis://…@h:1/0"),
            ("no postgres://u:p@ss@h here", "no postgres://…@h here"),
            ("a://b://c:d@e", "a://…@e"),
            ("sqlite:/tmp/x", "sqlite:/tmp/x"),
            ("zk://h:1,h:2/x", "zk://h:1,h:2/x"),
        ];
        for (text, clean) in shown {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn instants_are_written_in_utc() {
        let shown = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in shown {
            assert_eq!(rfc3339(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn long_text_is_cut_with_a_mark() {
        assert_eq!(cut("héllo", 5), "héllo");
        assert_eq!(cut("héllo!", 5), "héll…");
        assert_eq!(cut("ロック:注", 9), "ロック:注");
        assert_eq!(cut("ロック:注", 8), "ロック:…");
        assert_eq!(cut("ロック", 4), "ロ…");
    }
}
