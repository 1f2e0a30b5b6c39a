//! The purpose of a claim, and facts about it behind the text of its note.
//!
//! Every store keeps notes, so facts need no new feature of an engine. They are for the people who
//! look after the locks. The library decides nothing by them.

use crate::engine::ClaimView;
use crate::error::Kind;
use crate::primitives::once::{self, RunState};
use crate::rule::claim::{Mode, Note};

/// Separates the text of a note from its facts.
const FACTS: char = '\u{1e}';
/// Separates two facts.
const NEXT: char = '\u{1f}';

/// The longest value of a fact in bytes: a host name has up to 253.
const VALUE_BYTES_MAX: usize = 256;

/// The fact that a claim is a spent unit of a rate.
const UNIT: (&str, &str) = ("use", "rate");
/// The fact that a claim is the record of a force-release.
const EVICTED: (&str, &str) = ("use", "evicted");

impl Note {
    /// A text for a note with facts behind it, such as `("host", "web1")`. It cuts long values and
    /// replaces their control characters. If the whole does not fit, it has no facts.
    pub fn with_facts(text: &str, facts: &[(&str, &str)]) -> String {
        let mut whole = text.to_owned();
        for (at, (key, value)) in facts.iter().enumerate() {
            whole.push(if at == 0 { FACTS } else { NEXT });
            whole.push_str(key);
            whole.push('=');
            let mut end = value.len().min(VALUE_BYTES_MAX);
            while !value.is_char_boundary(end) {
                end -= 1;
            }
            whole.extend(value[..end].chars().map(|c| if c.is_control() { '?' } else { c }));
        }
        if whole.len() > Note::BYTES_MAX { text.to_owned() } else { whole }
    }

    /// The holder's text, without facts.
    pub fn text(&self) -> &str {
        self.parts().0
    }

    /// A fact by its key.
    pub fn fact(&self, key: &str) -> Option<&str> {
        let facts = self.parts().1.split(NEXT).filter_map(|fact| fact.split_once('='));
        facts.into_iter().find(|(of, _)| *of == key).map(|(_, value)| value)
    }

    fn parts(&self) -> (&str, &str) {
        self.as_str().rsplit_once(FACTS).unwrap_or((self.as_str(), ""))
    }
}

/// The text of a note for a unit of a rate.
pub(crate) fn note_of_unit(text: &str) -> String {
    Note::with_facts(text, &[UNIT])
}

/// The purpose of a claim, as far as its note shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// A lock, or any other claim whose note does not show its purpose.
    Lock,
    /// A period of [`Once`](crate::Once): its work runs, or ran and is not due again.
    Once(RunState),
    /// A spent unit of a [`RateLimiter`](crate::RateLimiter).
    Rate,
    /// The record of a force-release: `use=evicted` among its facts.
    Evicted,
}

impl Purpose {
    /// Whether no work runs under the claim any more. It only keeps its place until its time is
    /// over.
    pub fn is_past(&self) -> bool {
        match self {
            Purpose::Lock | Purpose::Once(RunState::Running) => false,
            Purpose::Once(_) | Purpose::Rate | Purpose::Evicted => true,
        }
    }
}

impl Purpose {
    /// What a note tells.
    fn of(note: &Note) -> Self {
        if let Some(state) = once::state_in(note) {
            return Purpose::Once(state);
        }
        match note.fact(UNIT.0) {
            Some(of) if of == UNIT.1 => Purpose::Rate,
            Some(of) if of == EVICTED.1 => Purpose::Evicted,
            _ => Purpose::Lock,
        }
    }
}

/// What a claim uses its name as.
pub(crate) fn kind_of(mode: Mode, note: &Note) -> Kind {
    match (Purpose::of(note), Kind::from(mode)) {
        (Purpose::Once(_), _) => Kind::Once,
        (Purpose::Rate, Kind::Permits { of }) => Kind::Rate { of },
        (_, kind) => kind,
    }
}

impl ClaimView {
    /// The purpose of the claim.
    pub fn purpose(&self) -> Purpose {
        Purpose::of(&self.note)
    }

    /// Whether it belongs to a client of another library. The store knows no more about it.
    pub fn is_foreign(&self) -> bool {
        self.holder.id().is_foreign()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> Note {
        Note::new(text).expect("a good note")
    }

    #[test]
    fn facts_stand_behind_the_text_of_a_note() {
        let facts = [("host", "web1"), ("program", "de\u{1f}ploy=now"), ("pid", "7")];
        let note = note(&Note::with_facts("release 42", &facts));
        assert_eq!(note.text(), "release 42");
        assert_eq!((note.fact("host"), note.fact("pid")), (Some("web1"), Some("7")));
        assert_eq!(note.fact("program"), Some("de?ploy=now"));
        assert_eq!(note.fact("user"), None);
    }

    #[test]
    fn note_without_facts_is_its_text() {
        for text in ["", "release 42", "{\"run\":\"else\"}"] {
            assert_eq!((note(text).text(), note(text).fact("host")), (text, None));
        }
    }

    #[test]
    fn facts_that_do_not_fit_are_left_out() {
        let text = "x".repeat(Note::BYTES_MAX);
        assert_eq!(Note::with_facts(&text, &[("host", "web1")]), text);
        let long = Note::with_facts("", &[("host", &"é".repeat(300))]);
        assert_eq!(note(&long).fact("host").map(str::len), Some(VALUE_BYTES_MAX));
    }
}
