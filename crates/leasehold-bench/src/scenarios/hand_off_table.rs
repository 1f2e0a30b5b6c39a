//! The table of hand-offs, alike for tasks and for processes.

use crate::contender::Outcome;
use crate::contest::Round;
use crate::report::{Report, Table, digits, span, times};
use crate::stats::{Samples, median, ratio_of_rounds};

/// Contests of several sizes, in one table.
pub(crate) struct HandOffTable {
    table: Table,
    /// The contender that the ratios compare with.
    base: &'static str,
    base_label: &'static str,
}

/// The values for the targets.
pub(crate) struct Seen {
    pub(crate) spans: Samples,
    pub(crate) given_back: usize,
    pub(crate) grants: usize,
    pub(crate) overlaps: usize,
}

impl HandOffTable {
    /// A table with this heading, and ratios to this contender.
    pub(crate) fn new(what: &str, base: &'static str, base_label: &'static str) -> Self {
        let ratio = format!("to {base_label}");
        let head = [what, "role", "workers", "hold", "hand-offs", "p50", "p99", "max"];
        let tail = ["given back", "Jain", "held", "CPU"];
        let head = head.into_iter().map(str::to_owned).chain([ratio]);
        let table = Table::new(head.chain(tail.map(str::to_owned)));
        Self { table, base, base_label }
    }

    /// Adds the outcomes of one contest; returns the values of each contender.
    pub(crate) fn add(
        &mut self,
        outcomes: &[Outcome<Round>],
        workers: usize,
        hold_ns: u64,
    ) -> Vec<Seen> {
        let base = outcomes.iter().find(|outcome| outcome.name == self.base).map(spans_of);
        let base = base.unwrap_or_default();
        outcomes.iter().map(|outcome| self.row(outcome, &base, workers, hold_ns)).collect()
    }

    fn row(
        &mut self,
        outcome: &Outcome<Round>,
        base: &[Samples],
        workers: usize,
        hold_ns: u64,
    ) -> Seen {
        let rounds = || outcome.rounds.iter().map(|round| &round.hand_offs);
        let spans = spans_of(outcome);
        let seen = Seen {
            spans: Samples::pooled(&spans),
            given_back: rounds().map(|round| round.given_back).sum(),
            grants: rounds().map(|round| round.grants).sum(),
            overlaps: rounds().map(|round| round.overlaps).sum(),
        };
        let share = |value: Option<f64>| value.map_or_else(String::new, digits);
        let held = median(rounds().map(|round| round.held_share * 100.0));
        let cores = median(outcome.rounds.iter().map(|round| round.cores));
        self.table.row([
            outcome.name.clone(),
            outcome.role.word().into(),
            workers.to_string(),
            span(Some(hold_ns)),
            seen.spans.count().to_string(),
            span(seen.spans.p50()),
            span(seen.spans.p99()),
            span(seen.spans.percentile(100.0)),
            times(ratio_of_rounds(&spans, base)),
            format!("{} of {}", seen.given_back, seen.grants),
            median(rounds().filter_map(|round| round.jain))
                .map_or_else(String::new, |jain| format!("{jain:.3}")),
            format!("{} %", share(held)),
            share(cores),
        ]);
        seen
    }

    /// Puts the table into the report.
    pub(crate) fn put(self, report: &mut Report) {
        report.table(self.table);
    }

    /// Puts the table into the report, with how to read it.
    pub(crate) fn finish(self, report: &mut Report) {
        report.table(self.table);
        report.note(format!(
            "A hand-off runs from the call to release until another worker has the lock, and \
             counts only if that worker was waiting when the call was made. `given back` counts \
             grants that went to the releaser while others waited. `held` is the share of time \
             in which somebody had the lock, `CPU` is in cores. `to {}` compares the p50 of \
             neighbouring rounds.",
            self.base_label,
        ));
    }
}

fn spans_of(outcome: &Outcome<Round>) -> Vec<Samples> {
    outcome.rounds.iter().map(|round| round.hand_offs.spans.clone()).collect()
}

/// The target that no two workers ever hold at a time; without it no other number counts.
pub(crate) fn exclusion_target(report: &mut Report, what: &str, overlaps: usize) {
    let measured = format!("{overlaps} overlaps");
    report.target(format!("{what}: one holder at a time"), "0 overlaps", measured, overlaps == 0);
}
