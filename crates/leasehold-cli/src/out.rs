//! Data goes to standard output, messages to standard error.
//!
//! Writing to standard output returns its error. `exit.rs` forgives the error that means that the
//! reader went away. Messages ignore errors.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::args::Globals;
use crate::exit;
use crate::text;

/// How many messages to print, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Voice {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Voice {
    pub(crate) fn new(globals: &Globals) -> Self {
        Self { json: globals.json, quiet: globals.quiet, verbose: globals.verbose }
    }

    /// Prints a message, unless `-q` is set.
    pub(crate) fn tell(self, message: &str) {
        if !self.quiet {
            exit::say(&text::escape(message));
        }
    }

    /// Prints a message only with `-v`.
    pub(crate) fn detail(self, message: &str) {
        if self.verbose {
            exit::say(&text::escape(message));
        }
    }

    /// Prints a warning, even with `-q`.
    pub(crate) fn warn(self, message: &str) {
        exit::say(&format!("warning: {}", text::escape(message)));
    }
}

/// How many columns standard output has; `None` if it is no terminal.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Writes data and flushes it.
pub(crate) fn print(data: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(data.as_bytes())?;
    stdout.flush()
}

/// Writes one JSON document on one line.
pub(crate) fn print_json(value: &impl Serialize) -> io::Result<()> {
    print(&json_line(value)?)
}

/// One JSON document on one line.
pub(crate) fn json_line(value: &impl Serialize) -> io::Result<String> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    Ok(line)
}

/// Writes one document for one value, and an array for several.
pub(crate) fn print_json_each(values: &[impl Serialize]) -> io::Result<()> {
    match values {
        [one] => print_json(one),
        several => print_json(&several),
    }
}
