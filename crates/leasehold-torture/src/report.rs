//! The report of a run: counts, waits, and each violation with the histories of its workers side
//! by side.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::checks::{Tally, Violation};
use crate::event::{Event, Instant, MASTER_CHANGED, What, ms};
use crate::history::History;

/// How many violations are shown in full; more of a kind say the same.
const SHOWN_MAX: usize = 3;

/// How many events of each attempt are shown.
const EVENTS_MAX: usize = 12;

/// The numbers of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Leases and units that were granted.
    pub grants: usize,
    /// Grants by what was asked for.
    pub grants_by_want: BTreeMap<String, usize>,
    /// Claims that waited in line.
    pub queued: usize,
    /// How much each check judged and excused.
    pub judged: Tally,
    /// How often observers saw a leader.
    pub leaders_seen: usize,
    /// Faults that were made, by kind.
    pub faults: BTreeMap<String, usize>,
    /// Faults that could not be made, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// Calls that failed, by kind of error.
    pub errors: BTreeMap<String, usize>,
    /// Waits for a grant, in microseconds: half of them were shorter than this.
    pub wait_p50_us: u64,
    /// 99 of 100 were shorter.
    pub wait_p99_us: u64,
    /// The longest.
    pub wait_max_us: u64,
    /// Violations by check.
    pub violations: BTreeMap<String, usize>,
}

impl Summary {
    /// Counts a history.
    pub fn of(history: &History, violations: &[Violation], judged: Tally) -> Summary {
        let mut summary = Summary { judged, ..Summary::default() };
        let mut waits: Vec<Instant> = Vec::new();
        for attempt in &history.attempts {
            summary.queued += usize::from(attempt.queued.is_some());
            if let Some(grant) = attempt.grant {
                waits.push(grant.at - attempt.asked);
                *summary.grants_by_want.entry(attempt.want.word().to_owned()).or_default() += 1;
            }
        }
        for event in &history.events {
            let (counts, key) = match &event.what {
                What::Fault { kind, .. } if kind == MASTER_CHANGED => continue,
                What::Fault { kind, .. } => (&mut summary.faults, kind),
                What::Leads { .. } => {
                    summary.leaders_seen += 1;
                    continue;
                }
                What::Skipped { kind, .. } => (&mut summary.skipped, kind),
                What::Failed { kind, .. } => (&mut summary.errors, kind),
                _ => continue,
            };
            *counts.entry(key.clone()).or_default() += 1;
        }
        // A fault is written down when it begins, so one that was not made counts twice until here.
        for (kind, skipped) in &summary.skipped {
            if let Some(made) = summary.faults.get_mut(kind) {
                *made = made.saturating_sub(*skipped);
            }
        }
        summary.faults.retain(|_, made| *made > 0);
        for violation in violations {
            *summary.violations.entry(violation.check.to_owned()).or_default() += 1;
        }
        waits.sort_unstable();
        summary.grants = waits.len();
        summary.wait_p50_us = percentile(&waits, 50) / 1_000;
        summary.wait_p99_us = percentile(&waits, 99) / 1_000;
        summary.wait_max_us = percentile(&waits, 100) / 1_000;
        summary
    }

    /// The numbers in words.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, said: String| {
            let _ = writeln!(text, "  {what:<11} {said}");
        };
        line("grants", format!("{} ({})", self.grants, counted(&self.grants_by_want)));
        let (queued, seen) = (self.queued, self.leaders_seen);
        line("seen", format!("{queued} waits in line, {seen} leaders as observers saw them"));
        line("judged", judged(&self.judged));
        line("faults", format!("{} ({})", self.faults_made(), counted(&self.faults)));
        if !self.skipped.is_empty() {
            line("not made", counted(&self.skipped));
        }
        line("errors", counted(&self.errors));
        let (p50, p99, max) = (self.wait_p50_us, self.wait_p99_us, self.wait_max_us);
        line("waits", format!("p50 {p50} µs, p99 {p99} µs, max {max} µs"));
        line("violations", counted(&self.violations));
        text
    }

    /// All faults that were made.
    pub fn faults_made(&self) -> usize {
        self.faults.values().sum()
    }
}

fn percentile(sorted: &[Instant], percent: usize) -> Instant {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// `check 3 (2 excused), other 4`.
fn judged(tally: &Tally) -> String {
    let words = tally.iter().map(|(check, judged)| match judged.excused {
        0 => format!("{check} {}", judged.judged),
        excused => format!("{check} {} ({excused} excused)", judged.judged),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// `kind 3, other 4`, or `none`.
pub fn counted(counts: &BTreeMap<String, usize>) -> String {
    let words: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Violations in words, with the histories of their first two attempts side by side.
pub fn explained(history: &History, violations: &[Violation]) -> String {
    let mut text = String::new();
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    for violation in violations {
        let count = shown.entry(violation.check).or_default();
        *count += 1;
        if *count > SHOWN_MAX {
            continue;
        }
        let start = history.events.first().map_or(0, |event| event.at);
        let at = (violation.at.saturating_sub(start)) as f64 / ms(1_000) as f64;
        let _ = writeln!(text, "{} at {at:.3} s: {}", violation.check, violation.text);
        let columns: Vec<Vec<&Event>> =
            violation.attempts.iter().take(2).map(|key| events_of(history, *key)).collect();
        text.push_str(&side_by_side(&columns, start));
    }
    for (check, count) in shown.into_iter().filter(|(_, count)| *count > SHOWN_MAX) {
        let _ = writeln!(text, "{check}: {} more", count - SHOWN_MAX);
    }
    text
}

fn events_of(history: &History, (worker, number): (u32, u64)) -> Vec<&Event> {
    let of = |event: &&Event| event.worker == worker && event.attempt == number;
    let all: Vec<&Event> = history.events.iter().filter(of).collect();
    if all.len() <= EVENTS_MAX {
        return all;
    }
    let half = EVENTS_MAX / 2;
    [&all[..half], &all[all.len() - half..]].concat()
}

/// One row for each event, in the column of its attempt.
fn side_by_side(columns: &[Vec<&Event>], start: Instant) -> String {
    const WIDTH: usize = 58;
    let mut rows: Vec<(usize, &Event)> = Vec::new();
    for (column, events) in columns.iter().enumerate() {
        rows.extend(events.iter().map(|event| (column, *event)));
    }
    rows.sort_by_key(|(_, event)| event.at);
    let mut text = String::new();
    for (column, event) in rows {
        let at = event.at.saturating_sub(start) as f64 / ms(1_000) as f64;
        let what = serde_json::to_string(&event.what).unwrap_or_default();
        let what = what.replace("\"what\":", "").replace(['"', '{', '}'], "");
        let indent = " ".repeat(column * WIDTH);
        let _ = writeln!(text, "  {at:>9.4}  {indent}[{}] {what}", event.worker);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Want;
    use crate::history::Terms;

    fn event(at: u64, worker: u32, what: What) -> Event {
        Event { at: ms(at), worker, attempt: 1, what }
    }

    fn attempt(worker: u32, fence: u64, at: u64) -> Vec<Event> {
        let (name, how) = ("n".to_owned(), "lock".to_owned());
        let want = Want::Exclusive;
        vec![
            event(at, worker, What::Asks { name, want, ttl_ms: 2_000, how, closed_ms: None }),
            event(at + 5, worker, What::Granted { fence, until: ms(9_000) }),
            event(at + 90, worker, What::Releases),
        ]
    }

    #[test]
    fn violation_shows_both_histories_in_columns() {
        let events = [attempt(1, 1, 10), attempt(2, 2, 20)].concat();
        let history = History::of(events, Terms::default());
        let found = crate::checks::judge(&history).0;
        let text = explained(&history, &found);
        assert!(text.starts_with("exclusion at 0.015 s: `n` was held"), "{text}");
        assert!(text.contains("\n     0.0050  [1] granted,fence:1,"), "{text}");
        let second = text.lines().find(|line| line.contains("[2] granted")).expect("a line");
        assert!(second.find("[2]") > Some(60), "{text}");
    }

    #[test]
    fn fault_that_was_not_made_does_not_count() {
        let fault = |number, kind: &str| {
            let (kind, target, forgets) = (kind.to_owned(), 0, false);
            event(10, 0, What::Fault { number, kind, target, forgets })
        };
        let skipped = |kind: &str| {
            let (kind, why) = (kind.to_owned(), "no disk".to_owned());
            event(20, 0, What::Skipped { kind, why })
        };
        let events = vec![
            fault(1, "file-full"),
            skipped("file-full"),
            fault(2, "fail-over"),
            fault(3, "fail-over"),
            skipped("fail-over"),
            fault(4, MASTER_CHANGED),
        ];
        let summary = Summary::of(&History::of(events, Terms::default()), &[], Tally::new());
        assert_eq!((counted(&summary.faults), summary.faults_made()), ("fail-over 1".into(), 1));
        assert_eq!(counted(&summary.skipped), "fail-over 1, file-full 1");
    }

    #[test]
    fn summary_counts_grants_and_waits() {
        let events = [attempt(1, 1, 10), attempt(2, 2, 200)].concat();
        let summary = Summary::of(&History::of(events, Terms::default()), &[], Tally::new());
        assert_eq!((summary.grants, summary.wait_p50_us, summary.wait_max_us), (2, 5_000, 5_000));
        assert_eq!(counted(&summary.grants_by_want), "exclusive 2");
    }
}
