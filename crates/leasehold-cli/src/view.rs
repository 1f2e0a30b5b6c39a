//! `list` and `show`: lines as tables for people and as JSON for programs.

use leasehold::engine::{ClaimView, LineView, Query};
use leasehold::error::Kind;
use leasehold::{Mode, Name};
use serde::Serialize;

use crate::acquire::millis;
use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::store::Store;
use crate::text::{cut, escape, wall_clock_ago};

/// How much of a note fits a row of `list`; `show` has all of it.
const NOTE_WIDTH: usize = 48;

const HEADER: [&str; 8] = ["NAME", "MODE", "CLAIM", "HOLDER", "FENCE", "SINCE", "LEFT", "NOTE"];

/// One line as the contract writes it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    name: &'a str,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    held: Vec<Held<'a>>,
    waiting: Vec<Waits<'a>>,
}

/// A claim that holds, as the contract writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Held<'a> {
    holder: &'a str,
    /// A decimal string: readers that take numbers for floats would round it.
    fence: String,
    acquired_at: String,
    remaining_ms: u64,
    note: &'a str,
}

/// A claim that waits, as the contract writes it.
#[derive(Debug, Serialize)]
struct Waits<'a> {
    holder: &'a str,
    ahead: usize,
    waiting_ms: u64,
    note: &'a str,
}

impl<'a> Held<'a> {
    pub(crate) fn of(claim: &'a ClaimView) -> Self {
        Self {
            holder: claim.holder.label(),
            fence: claim.fence.to_string(),
            acquired_at: wall_clock_ago(claim.age),
            remaining_ms: millis(claim.remaining),
            note: claim.note.as_str(),
        }
    }
}

impl<'a> Line<'a> {
    fn of(line: &'a LineView) -> Self {
        let limit = match line.kind {
            Kind::Permits { of } => Some(of),
            _ => None,
        };
        let waiting = line.waiting.iter().enumerate().map(|(place, claim)| Waits {
            holder: claim.holder.label(),
            ahead: line.held.len() + place,
            waiting_ms: millis(claim.age),
            note: claim.note.as_str(),
        });
        Self {
            name: line.name.as_str(),
            mode: mode(line),
            limit,
            held: line.held.iter().map(Held::of).collect(),
            waiting: waiting.collect(),
        }
    }

    /// A line that nobody is in.
    fn free(name: &'a Name) -> Self {
        let (held, waiting) = (Vec::new(), Vec::new());
        Self { name: name.as_str(), mode: "exclusive", limit: None, held, waiting }
    }
}

/// What a line is in use as: by who holds it, else by who is next.
fn mode(line: &LineView) -> &'static str {
    match line.held.first().or(line.waiting.first()).map(|claim| claim.mode) {
        Some(Mode::Shared) => "shared",
        Some(Mode::Permits { .. }) => "permits",
        _ => "exclusive",
    }
}

/// Shows all locks, page by page, so that a store with many takes no more memory than one page.
pub(crate) async fn list(store: &Store, list: args::List) -> Outcome {
    let mut query = list.prefix.map_or_else(Query::all, Query::prefix);
    let mut separator = "[";
    let mut lines_seen = 0;
    loop {
        let page = store.client.inspect(&query).await?;
        if store.voice.json {
            let mut text = String::new();
            for line in &page.lines {
                text.push_str(separator);
                text.push_str(out::json_line(&Line::of(line))?.trim_end());
                separator = ",\n";
            }
            out::print(&text)?;
        } else if !page.lines.is_empty() {
            out::print(&table(&page.lines, NOTE_WIDTH, lines_seen == 0))?;
        }
        lines_seen += page.lines.len();
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    if store.voice.json {
        let end = if lines_seen == 0 { "[]\n" } else { "]\n" };
        out::print(end)?;
    } else if lines_seen == 0 {
        store.voice.tell("nobody holds or waits for anything here");
    }
    Ok(exit::DONE)
}

/// Shows one lock.
pub(crate) async fn show(
    show: args::Show,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&show.name)?;
    let store = open().await?;
    let line = store.client.show(&name).await?;
    match (&line, store.voice.json) {
        (Some(line), true) => out::print_json(&Line::of(line))?,
        (None, true) => out::print_json(&Line::free(&name))?,
        (Some(line), false) => {
            out::print(&table(std::slice::from_ref(line), usize::MAX, true))?;
        }
        (None, false) => out::print(&format!("`{}` is free\n", escape(name.as_str())))?,
    }
    Ok(exit::DONE)
}

/// A row for each claim, columns as wide as they need to be.
fn table(lines: &[LineView], note_width: usize, with_header: bool) -> String {
    let mut rows: Vec<[String; 8]> = Vec::new();
    if with_header {
        rows.push(HEADER.map(str::to_owned));
    }
    for line in lines {
        let mode = match line.kind {
            Kind::Permits { of } => format!("permits of {of}"),
            _ => mode(line).to_owned(),
        };
        let held = line.held.iter().map(|claim| (claim, "held".to_owned()));
        let waiting = line.waiting.iter().enumerate();
        let waiting = waiting.map(|(place, claim)| (claim, format!("waits {}", place + 1)));
        for (claim, place) in held.chain(waiting) {
            rows.push([
                escape(line.name.as_str()),
                mode.clone(),
                place,
                escape(claim.holder.label()),
                claim.fence.to_string(),
                human(claim.age),
                human(claim.remaining),
                cut(&escape(claim.note.as_str()), note_width),
            ]);
        }
    }
    align(&rows)
}

/// Pads cells so that columns line up; the last one ends where it ends.
pub(crate) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
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
}
