//! The results of a hand-off's turns: a table, and the targets that they meet.

use super::{PROCESSES, QUEUE, Served, TASKS, Targets, Turn};
use crate::contender::{Outcome, Role};
use crate::contest::Round;
use crate::report::{Report, Table, digits, span, times};
use crate::stats::{Samples, median, ratio_of_rounds};

/// Counts of the server's own background work, spread over the cycles of a round.
const CYCLE_SLACK: f64 = 0.05;
/// Counts of clients that start and end, spread over the grants to 200 waiters.
const GRANT_SLACK: f64 = 0.1;

/// The sum of the limits' p50s in each round.
pub(super) fn sums(limits: &[Outcome<Turn>]) -> Vec<Samples> {
    let rounds = limits.iter().map(|limit| limit.rounds.len()).min().unwrap_or(0);
    let p50 = |limit: &Outcome<Turn>, round: usize| match &limit.rounds[round] {
        Turn::Limit(samples) => samples.p50(),
        _ => None,
    };
    (0..rounds)
        .map(|round| {
            let sum: Option<u64> = limits.iter().map(|limit| p50(limit, round)).sum();
            Samples::new(sum.into_iter().collect())
        })
        .collect()
}

/// All samples of a limit.
fn pooled(limit: &Outcome<Turn>) -> Samples {
    Samples::pooled(limit.rounds.iter().filter_map(|turn| match turn {
        Turn::Limit(samples) => Some(samples),
        _ => None,
    }))
}

/// How often two workers held at a time, over all contenders.
pub(super) fn overlaps(outcomes: &[Outcome<Turn>]) -> usize {
    let turns = outcomes.iter().flat_map(|outcome| &outcome.rounds);
    turns
        .map(|turn| match turn {
            Turn::Contest { round, .. } => round.hand_offs.overlaps,
            Turn::Limit(_) | Turn::Queue { .. } => 0,
        })
        .sum()
}

/// The sum of the limits.
fn measured(limits: &[Outcome<Turn>]) -> Option<u64> {
    limits.iter().map(|limit| pooled(limit).p50()).sum()
}

fn at_most(value: Option<f64>, most: f64) -> bool {
    value.is_some_and(|value| value <= most)
}

fn at_least(value: Option<f64>, least: f64) -> bool {
    value.is_some_and(|value| value >= least)
}

/// The parts of the tables and the targets.
pub(super) struct Findings {
    pub(super) store: &'static str,
    pub(super) measure: &'static str,
    /// The name of the server's count.
    pub(super) what: &'static str,
    /// How the holders pass the time: they wait or compute.
    pub(super) holders: &'static str,
    pub(super) targets: Targets,
    /// The measure in each round.
    pub(super) limits: Vec<Samples>,
}

/// The results of all rounds of a contest.
struct Seen {
    spans: Samples,
    p50: Option<f64>,
    p99: Option<f64>,
    count: Option<f64>,
    given_back: String,
    is_given_back: bool,
    jain: Option<f64>,
    held: Option<f64>,
    /// The time that a holder held.
    hold_ns: Option<f64>,
    stall_ns: u64,
}

impl Seen {
    fn row(&self, outcome: &Outcome<Turn>) -> [String; 10] {
        [
            outcome.name.clone(),
            outcome.role.word().into(),
            span(self.spans.p50()),
            span(self.spans.p99()),
            times(self.p50),
            times(self.p99),
            count_text(self.count),
            self.given_back.clone(),
            three(self.jain),
            percent(self.held),
        ]
    }
}

fn three(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.3}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
}

fn count_text(count: Option<f64>) -> String {
    count.map_or_else(String::new, digits)
}

impl Findings {
    /// Puts the table into the report.
    pub(super) fn table(
        &self,
        report: &mut Report,
        limits: &[Outcome<Turn>],
        others: &[Outcome<Turn>],
    ) {
        let what = format!("hand-off, holders {}", self.holders);
        let head = [what.as_str(), "role", "p50", "p99"].map(str::to_owned);
        let ratios = ["p50", "p99"].map(|what| format!("{what} to {}", self.measure));
        let tail = ["given back", "Jain", "held"].map(str::to_owned);
        let counted = format!("{} a cycle", self.what);
        let mut table = Table::new(head.into_iter().chain(ratios).chain([counted]).chain(tail));
        for limit in limits {
            let all = pooled(limit);
            let known = [limit.name.clone(), limit.role.word().into(), span(all.p50())];
            let blank = std::iter::repeat_with(String::new).take(6);
            table.row(known.into_iter().chain([span(all.p99())]).chain(blank));
        }
        let measure = measured(limits);
        for outcome in others {
            if let Some(seen) = self.seen(outcome, measure) {
                table.row(seen.row(outcome));
            }
        }
        report.table(table);
    }

    /// Puts the targets and their results into the report.
    pub(super) fn targets(
        &self,
        report: &mut Report,
        limits: &[Outcome<Turn>],
        others: &[Outcome<Turn>],
    ) {
        let measure = measured(limits);
        let floor = others.iter().find(|outcome| outcome.role == Role::Limit);
        let floor = floor.and_then(|floor| self.seen(floor, measure));
        for outcome in others.iter().filter(|outcome| outcome.role == Role::Ours) {
            match self.seen(outcome, measure) {
                Some(seen) => self.contest_targets(report, &seen, floor.as_ref()),
                None => {
                    if let Some(served) = self.targets.queue {
                        self.queue_targets(report, outcome, served, measure);
                    }
                }
            }
        }
    }

    /// The results of a contest's rounds; `None` for other outcomes.
    fn seen(&self, outcome: &Outcome<Turn>, measure: Option<u64>) -> Option<Seen> {
        let rounds: Vec<(&Round, f64)> = outcome
            .rounds
            .iter()
            .filter_map(|turn| match turn {
                Turn::Contest { round, count } => Some((round, *count)),
                _ => None,
            })
            .collect();
        if rounds.is_empty() {
            return None;
        }
        let each = || rounds.iter().map(|(round, _)| &round.hand_offs);
        let spans: Vec<Samples> = each().map(|round| round.spans.clone()).collect();
        let all = Samples::pooled(&spans);
        let given_back: usize = each().map(|round| round.given_back).sum();
        let grants: usize = each().map(|round| round.grants).sum();
        let overrun_ns = rounds.iter().map(|(round, _)| round.overrun_ns).max().unwrap_or(0);
        Some(Seen {
            p50: ratio_of_rounds(&spans, &self.limits),
            p99: all.p99().zip(measure).map(|(p99, measure)| p99 as f64 / measure as f64),
            count: median(rounds.iter().map(|(_, count)| *count)),
            given_back: format!("{given_back} of {grants}"),
            is_given_back: given_back > 0,
            jain: median(each().filter_map(|round| round.jain)),
            held: median(each().map(|round| round.held_share)),
            hold_ns: median(each().map(|round| round.hold_ns)),
            stall_ns: all.percentile(100.0).unwrap_or(0).max(overrun_ns),
            spans: all,
        })
    }

    fn contest_targets(&self, report: &mut Report, seen: &Seen, floor: Option<&Seen>) {
        let (store, targets) = (self.store, &self.targets);
        let what = |what: &str| format!("{store}, {} workers: {what}", PROCESSES * TASKS);
        let ratios = [
            ("hand-off p50", targets.p50_max, seen.p50, floor.map(|floor| floor.p50)),
            ("hand-off p99", targets.p99_max, seen.p99, floor.map(|floor| floor.p99)),
        ];
        for (name, most, ratio, floor) in ratios {
            if let Some(most) = most {
                let target = format!("at most {most} × {}", self.measure);
                let mut measured = times(ratio);
                if let Some(floor) = floor {
                    measured = format!("{measured} (floor: {})", times(floor));
                }
                report.target(what(name), target, measured, at_most(ratio, most));
            }
        }
        let most = targets.cycle_max;
        let met = at_most(seen.count, f64::from(most) + CYCLE_SLACK);
        let counted = what(&format!("{} a cycle", self.what));
        report.target(counted, format!("at most {most}"), count_text(seen.count), met);
        if targets.is_fair {
            let met = at_least(seen.jain, 0.999);
            report.target(what("Jain"), "at least 0.999", three(seen.jain), met);
            let (back, met) = (what("given back while others wait"), !seen.is_given_back);
            report.target(back, "0", seen.given_back.clone(), met);
        }
        if let Some(least) = targets.held_min {
            let target = format!("at least {:.0} %", least * 100.0);
            let met = at_least(seen.held, least);
            // The held share if each hand-off took only a wake-up.
            let wake = median(self.limits.iter().filter_map(|limit| Some(limit.p50()? as f64)));
            let ceiling = wake.zip(seen.hold_ns).map(|(wake, hold)| hold / (hold + wake));
            let ceiling = percent(ceiling);
            let measured = format!("{} (ceiling: {ceiling})", percent(seen.held));
            report.target(what("held share"), target, measured, met);
        }
        if let Some(most) = targets.stall_max {
            let most_ns = most.as_nanos() as u64;
            let target = format!("at most {}", span(Some(most_ns)));
            let met = seen.stall_ns <= most_ns;
            report.target(what("longest stall"), target, span(Some(seen.stall_ns)), met);
        }
    }

    fn queue_targets(
        &self,
        report: &mut Report,
        outcome: &Outcome<Turn>,
        served: Served,
        measure: Option<u64>,
    ) {
        let turns = || {
            outcome.rounds.iter().filter_map(|turn| match turn {
                Turn::Queue { took, count } => Some((*took, *count)),
                _ => None,
            })
        };
        let took = median(turns().map(|(took, _)| took));
        let limit = measure.map(|measure| measure as f64 * QUEUE as f64);
        let ratio = took.zip(limit).map(|(took, limit)| took / limit);
        let shown = format!("{}, {}", span(took.map(|took| took as u64)), times(ratio));
        let (target, met) = match served {
            Served::Measures(most) => {
                (format!("within {most} × {QUEUE} {}", self.measure), at_most(ratio, most))
            }
            Served::Within(most) => {
                let target = format!("within {} ms", most.as_millis());
                (target, at_most(took, most.as_nanos() as f64))
            }
        };
        let store = self.store;
        report.target(format!("{store}, {QUEUE} waiters served"), target, shown, met);
        if let Some(most) = self.targets.grant_max {
            let count = median(turns().filter_map(|(_, count)| count));
            let met = at_most(count, f64::from(most) + GRANT_SLACK);
            let what = format!("{store}, {QUEUE} waiters: {} a grant", self.what);
            report.target(what, format!("at most {most}"), count_text(count), met);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limit(p50s: &[u64]) -> Outcome<Turn> {
        let turn = |p50: &u64| Turn::Limit(Samples::new(vec![1, *p50, 1_000]));
        let rounds = p50s.iter().map(turn).collect();
        Outcome { name: "limit".into(), role: Role::Limit, rounds }
    }

    #[test]
    fn limits_are_added_up_round_by_round() {
        let sums = sums(&[limit(&[10, 20]), limit(&[300, 400])]);
        let p50s: Vec<Option<u64>> = sums.iter().map(Samples::p50).collect();
        assert_eq!(p50s, [Some(310), Some(420)]);
    }

    #[test]
    fn targets_are_those_that_were_promised() {
        let hand_offs = crate::stats::HandOffs {
            spans: Samples::new(vec![620]),
            grants: 100,
            held_share: 0.9,
            jain: Some(1.0),
            overlaps: 2,
            ..Default::default()
        };
        let round = Round { hand_offs, cores: 1.0, cycles: 100, overrun_ns: 5_000_000 };
        let contest = Outcome {
            name: "leasehold".into(),
            role: Role::Ours,
            rounds: vec![Turn::Contest { round, count: 2.04 }],
        };
        let limits = [limit(&[310])];
        let targets = Targets {
            p50_max: Some(1.5),
            cycle_max: 2,
            stall_max: Some(Duration::from_millis(4)),
            ..Targets::default()
        };
        let (store, measure, what) = ("Store", "W", "requests");
        let holders = "wait";
        let findings = Findings { store, measure, what, holders, targets, limits: sums(&limits) };
        let mut report = Report::default();
        let contests = [contest];
        findings.targets(&mut report, &limits, &contests);
        assert_eq!(overlaps(&contests), 2);
        let seen: Vec<(&str, &str, bool)> = report
            .targets()
            .iter()
            .map(|target| (target.what.as_str(), target.measured.as_str(), target.met))
            .collect();
        assert_eq!(
            seen,
            [
                ("Store, 16 workers: hand-off p50", "2.00 ×", false),
                ("Store, 16 workers: requests a cycle", "2.04", true),
                ("Store, 16 workers: longest stall", "5.00 ms", false),
            ]
        );
    }
}
