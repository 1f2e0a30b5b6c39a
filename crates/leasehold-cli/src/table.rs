//! Tables for people: columns that line up, and the table of claims.

use leasehold::engine::{ClaimView, LineView};
use leasehold::error::Kind;
use leasehold::{Mode, Purpose};

use crate::duration::human;
use crate::filter::Filter;
use crate::lines::{self, HOST, PID, PROGRAM, known_fence, run_word};
use crate::text::{cut, escape, wall_clock_ago, width};

const HEADER: [&str; 10] =
    ["NAME", "MODE", "CLAIM", "HOLDER", "FENCE", "SINCE", "LEFT", "WHERE", "RUNS", "NOTE"];
const NAME: usize = 0;
const HOLDER: usize = 3;
const WHERE: usize = 7;
const RUNS: usize = 8;

/// The columns for a note in `list`; `show` has all of it.
const NOTE_WIDTH: usize = 48;

/// A table of claims: a row for each, columns as wide as they need to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    /// Whether it shows everything about its claims, with absolute times.
    pub(crate) whole: bool,
    /// The columns of the terminal that rows must fit into.
    pub(crate) columns: Option<usize>,
    pub(crate) header: bool,
}

impl Table {
    pub(crate) fn text(&self, lines: &[LineView], filter: &Filter) -> String {
        let mut rows: Vec<[String; 10]> = Vec::new();
        for line in lines {
            for claim in line.held.iter().filter(|claim| filter.admits_held(claim)) {
                rows.push(self.row(line, claim, None));
            }
            let waiting = line.waiting.iter().enumerate();
            for (place, claim) in waiting.filter(|(_, claim)| filter.admits_waiting(claim)) {
                rows.push(self.row(line, claim, Some(place)));
            }
        }
        if rows.is_empty() {
            return String::new();
        }
        // Leaves out these columns if all their cells are empty, as with the usual holder labels.
        let is_said = |column: usize| rows.iter().any(|row| !row[column].is_empty());
        let said = [WHERE, RUNS].map(is_said);
        if self.header {
            rows.insert(0, HEADER.map(str::to_owned));
        }
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| self.kept(row, said)).collect();
        let text = align(&rows);
        match self.columns {
            Some(columns) => text.lines().map(|line| cut(line, columns) + "\n").collect(),
            None => text,
        }
    }

    /// The cells of a row that are shown.
    fn kept(&self, mut row: [String; 10], [places, runs]: [bool; 2]) -> Vec<String> {
        if let Some(columns) = self.columns {
            row[NAME] = cut(&row[NAME], columns / 3);
            row[HOLDER] = cut(&row[HOLDER], columns / 4);
        }
        let cells = row.into_iter().enumerate();
        let is_kept = |column: usize| (column != WHERE || places) && (column != RUNS || runs);
        cells.filter(|(column, _)| is_kept(*column)).map(|(_, cell)| cell).collect()
    }

    fn row(&self, line: &LineView, claim: &ClaimView, waits: Option<usize>) -> [String; 10] {
        let purpose = claim.purpose();
        let note = match &purpose {
            Purpose::Once(state) => once_note(state),
            _ => escape(claim.note.text()),
        };
        [
            escape(line.name.as_str()),
            mode(line, claim, &purpose),
            standing(&purpose, waits),
            escape(claim.holder.label()),
            known_fence(claim).map_or_else(|| "?".to_owned(), |fence| fence.to_string()),
            self.since(claim),
            match waits {
                None => human(claim.remaining),
                // Each heartbeat extends it, so it tells nothing about the wait.
                Some(_) => String::new(),
            },
            place_of(claim),
            claim.note.fact(PROGRAM).map(escape).unwrap_or_default(),
            if self.whole { note } else { cut(&note, NOTE_WIDTH) },
        ]
    }

    fn since(&self, claim: &ClaimView) -> String {
        let age = human(claim.age);
        match self.whole {
            _ if claim.is_foreign() => "?".to_owned(),
            true => format!("{} ({age})", wall_clock_ago(claim.age)),
            false => age,
        }
    }
}

fn mode(line: &LineView, claim: &ClaimView, purpose: &Purpose) -> String {
    match (purpose, claim.mode, line.kind) {
        (Purpose::Once(_), ..) => "once".to_owned(),
        (Purpose::Rate, _, Kind::Permits { of }) => format!("rate of {of}"),
        (_, Mode::Permits { take, .. }, Kind::Permits { of }) => format!("permits {take} of {of}"),
        _ => lines::mode(line).to_owned(),
    }
}

fn standing(purpose: &Purpose, waits: Option<usize>) -> String {
    match (waits, purpose) {
        (Some(place), _) => format!("waits {}", place + 1),
        (None, Purpose::Once(state)) if purpose.is_past() => run_word(state).to_owned(),
        (None, Purpose::Rate) => "spent".to_owned(),
        (None, _) => "held".to_owned(),
    }
}

fn once_note(state: &leasehold::RunState) -> String {
    use leasehold::RunState::{Done, Failed};
    match state {
        Done { took } => format!("took {}", human(*took)),
        Failed { took, why } => format!("took {}: {}", human(*took), escape(why)),
        _ => String::new(),
    }
}

/// Host and process, unless the label has them.
fn place_of(claim: &ClaimView) -> String {
    let place = match (claim.note.fact(HOST), claim.note.fact(PID)) {
        (Some(host), Some(pid)) => format!("{host}:{pid}"),
        (Some(host), None) => host.to_owned(),
        _ => String::new(),
    };
    if claim.holder.label().starts_with(&place) { String::new() } else { escape(&place) }
}

/// Pads cells so that columns line up, except the last column.
pub(crate) fn align(rows: &[impl AsRef<[String]>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        let row = row.as_ref();
        widths.resize(widths.len().max(row.len()), 0);
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths);
        let cells =
            cells.map(|(cell, widest)| format!("{cell}{}", " ".repeat(widest - width(cell))));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let rows = [["a", "bb", ""], ["ccc", "d", "e"]].map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows), "a    bb\nccc  d   e\n");
    }

    #[test]
    fn columns_line_up_by_width_and_not_by_characters() {
        let rows = [["ロック", "x"], ["lock", "y"]].map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows), "ロック  x\nlock    y\n");
    }
}
