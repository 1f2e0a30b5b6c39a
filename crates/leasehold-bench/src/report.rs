//! The findings of a scenario as Markdown: tables, and a line for each target.
//!
//! Standard output gets exactly this text; `cargo xtask bench --write` puts it into the page.

use std::fmt::{self, Write as _};

/// The findings of one scenario.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tables: Vec<Table>,
    notes: Vec<String>,
    targets: Vec<Target>,
}

/// Rows under a header; the first column is text, the others are numbers.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// One promise and its result.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) target: String,
    pub(crate) measured: String,
    pub(crate) met: bool,
}

impl Report {
    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// A paragraph under the tables: how to read them.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(crate) fn target(
        &mut self,
        what: impl Into<String>,
        target: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) {
        let (what, target, measured) = (what.into(), target.into(), measured.into());
        self.targets.push(Target { what, target, measured, met });
    }

    pub(crate) fn targets(&self) -> &[Target] {
        &self.targets
    }
}

impl Table {
    pub(crate) fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.head.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }
}

/// The table of all targets that were checked.
pub(crate) fn targets(targets: &[Target]) -> Table {
    let mut table = Table::new(["what", "target", "measured", "verdict"]);
    for Target { what, target, measured, met } in targets {
        let verdict = if *met { "met" } else { "**missed**" };
        table.row([what, target, measured, verdict]);
    }
    table
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            writeln!(f, "{table}")?;
        }
        for note in &self.notes {
            writeln!(f, "{note}\n")?;
        }
        if self.targets.is_empty() { Ok(()) } else { writeln!(f, "{}", targets(&self.targets)) }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String]| {
            let mut text = String::from("|");
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                // Writing into a string cannot fail.
                let _infallible = match column {
                    0 => write!(text, " {cell:<width$} |"),
                    _ => write!(text, " {cell:>width$} |"),
                };
            }
            text
        };
        writeln!(f, "{}", line(&self.head))?;
        let rules = widths.iter().enumerate().map(|(column, width)| match column {
            0 => format!(":{}", "-".repeat(width + 1)),
            _ => format!("{}:", "-".repeat(width + 1)),
        });
        writeln!(f, "|{}|", rules.collect::<Vec<_>>().join("|"))?;
        for row in &self.rows {
            writeln!(f, "{}", line(row))?;
        }
        Ok(())
    }
}

/// A time span with a unit that suits its size.
pub(crate) fn span(nanos: Option<u64>) -> String {
    match nanos {
        None => "–".to_owned(),
        Some(nanos @ 0..1_000) => format!("{nanos} ns"),
        Some(nanos @ 1_000..1_000_000) => format!("{} µs", digits(nanos as f64 / 1e3)),
        Some(nanos @ 1_000_000..1_000_000_000) => format!("{} ms", digits(nanos as f64 / 1e6)),
        Some(nanos) => format!("{} s", digits(nanos as f64 / 1e9)),
    }
}

/// A ratio, as in "takes 1.52 times as long".
pub(crate) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{} ×", digits(ratio)))
}

/// A number with three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit_that_suits_them() {
        let texts = [None, Some(150), Some(5_250), Some(99_960), Some(1_000_000)].map(span);
        assert_eq!(texts, ["–", "150 ns", "5.25 µs", "100.0 µs", "1.00 ms"]);
    }

    #[test]
    fn tables_line_up() {
        let mut table = Table::new(["who", "p50"]);
        table.row(["ours", "1 µs"]);
        let text = "| who  |  p50 |\n|:-----|-----:|\n| ours | 1 µs |\n";
        assert_eq!(table.to_string(), text);
    }
}
