//! `-v`, `LEASEHOLD_LOG` and `RUST_LOG`: the library's traces, as plain lines on standard error.
//!
//! This small subscriber is all that the command needs: one level for everything, no colours, and
//! no cost while logging is off.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The level to write: `error`, `warn`, `info`, `debug`, `trace` or `off`.
const LOG_VARIABLE: &str = "LEASEHOLD_LOG";
/// The same for all Rust programs, with directives such as `leasehold=debug,info`.
const RUST_VARIABLE: &str = "RUST_LOG";

use crate::exit;
use crate::text;

/// Prints the library's events from now on, if the options or the environment ask for it.
pub(crate) fn install(verbose: bool) {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let asked = variable(LOG_VARIABLE).or_else(|| variable(RUST_VARIABLE));
    let level = match asked {
        Some(directives) => level_in(&directives),
        None => None,
    };
    let level = match level {
        Some(level) if level > Level::DEBUG => Some(level),
        level => {
            if verbose {
                Some(Level::DEBUG)
            } else {
                level
            }
        }
    };
    let Some(level) = level else { return };
    let lines = Lines { level, spans: AtomicU64::new(1) };
    // Fails only if a subscriber was installed before.
    let _installed = tracing::subscriber::set_global_default(lines);
}

/// The level that directives ask for: the last one for this program, else the last one for all.
fn level_in(directives: &str) -> Option<Level> {
    let (mut own, mut all) = (None, None);
    for directive in directives.split(',').map(str::trim) {
        match directive.split_once('=') {
            Some((target, level)) if target.starts_with("leasehold") => {
                own = Some(level.parse().ok())
            }
            Some(_) => {}
            None if directive == "leasehold" => own = Some(Some(Level::TRACE)),
            None => all = directive.parse().ok(),
        }
    }
    own.unwrap_or(all)
}

#[derive(Debug)]
struct Lines {
    level: Level,
    spans: AtomicU64,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::WARN => "warning".to_owned(),
            level => level.as_str().to_ascii_lowercase(),
        };
        exit::say(&text::escape(&format!("{level}: {}{}", line.message, line.fields)));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_that_of_the_program_or_else_of_all() {
        let levels = [
            ("debug", Some(Level::DEBUG)),
            ("WARN", Some(Level::WARN)),
            ("off", None),
            ("info,leasehold=trace,hyper=off", Some(Level::TRACE)),
            ("leasehold::keeper=debug", Some(Level::DEBUG)),
            ("info,leasehold=off", None),
            ("hyper=debug", None),
            ("", None),
        ];
        for (directives, level) in levels {
            assert_eq!(level_in(directives), level, "{directives}");
        }
    }
}
