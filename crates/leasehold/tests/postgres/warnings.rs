//! Warnings in the log, kept apart by thread.

use std::cell::RefCell;
use std::fmt;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The one subscriber of all tests in this process. A subscriber for each thread would not work. A
/// log line asks only the subscriber of the thread that reaches it first. If that one does not want
/// it, the line is silent on all threads from then on.
struct Warnings;

/// Begins to write down warnings, on all threads.
pub(crate) fn write_down() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Warnings).expect("the only one that is set");
    });
}

/// The warnings of this thread since it began.
pub(crate) fn said_here() -> Vec<String> {
    SAID.with_borrow(Clone::clone)
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        SAID.with_borrow_mut(|said| said.push(text.0));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{value:?}");
    }
}
