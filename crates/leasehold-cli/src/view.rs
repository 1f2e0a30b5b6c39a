//! `list` and `show`: lines as tables for people and as JSON for programs.

use std::time::Duration;

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
use crate::waits::{self, Edge, Gathered, Graph};

/// How much of a note fits a row of `list`; `show` has all of it.
const NOTE_WIDTH: usize = 48;

/// How long `show` follows who waits for whom: somebody waits for the table.
const FOLLOWED_FOR: Duration = Duration::from_secs(3);

const HEADER: [&str; 8] = ["NAME", "MODE", "CLAIM", "HOLDER", "FENCE", "SINCE", "LEFT", "NOTE"];

/// One line as the contract writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    name: &'a str,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    held: Vec<Held<'a>>,
    waiting: Vec<Waits<'a>>,
}

/// One line of `show`, with who waits for whom.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    line: Line<'a>,
    waits: Vec<Edge>,
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
    pub(crate) fn of(line: &'a LineView) -> Self {
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
pub(crate) fn mode(line: &LineView) -> &'static str {
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
    let Some(line) = store.client.show(&name).await? else {
        match store.voice.json {
            true => out::print_json(&Shown { line: Line::free(&name), waits: Vec::new() })?,
            false => out::print(&format!("`{}` is free\n", escape(name.as_str())))?,
        }
        return Ok(exit::DONE);
    };
    let gathered = waits::gather(&store.client, line, FOLLOWED_FOR).await;
    if let Some(error) = &gathered.trouble {
        store.voice.warn(&format!("cannot follow what holders wait for: {error}"));
    }
    let line = &gathered.lines[0];
    if store.voice.json {
        let waits = Graph::new(&gathered.lines).edges(line);
        out::print_json(&Shown { line: Line::of(line), waits })?;
    } else {
        let table = table(std::slice::from_ref(line), usize::MAX, true);
        out::print(&(table + &waits_section(&gathered)))?;
    }
    Ok(exit::DONE)
}

/// Who waits for whom, a sentence for each chain; nothing where nobody waits.
fn waits_section(gathered: &Gathered) -> String {
    let (chains, left_out) = Graph::new(&gathered.lines).chains(&gathered.lines[0]);
    if chains.is_empty() {
        return String::new();
    }
    let mut text = "\nWAITS\n".to_owned();
    for chain in &chains {
        text.push_str(&chain.sentence());
        text.push('\n');
    }
    if left_out > 0 {
        text.push_str(&format!("… and {left_out} more\n"));
    }
    if !gathered.whole {
        text.push_str("… more claims are concerned than were followed\n");
    }
    text
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
