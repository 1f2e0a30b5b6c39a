//! No answer says that a script or a statement failed, or anything else that a user of the library
//! cannot have caused.

use super::{Tally, Violation, count};
use crate::event::{RUN, What};
use crate::history::History;

pub(super) const NAME: &str = "answers";

/// The errors that a store may cause when it is stopped, cut off or away. Others are faults.
const EXPECTED: [&str; 8] =
    ["Unreachable", "NoMajority", "TaskEnded", "TooSlow", "Timeout", "Lost", "Stale", "Closed"];

/// A file whose disk is full says so; that ends by itself only when somebody makes room.
const FULL: &str = "the disk is full";

/// The words of a store that ran a wrong script or statement.
const WRONG: [&str; 6] = [
    "Script attempted",
    "Error running script",
    "user_script",
    "syntax error",
    "WRONGTYPE",
    "nil value",
];

pub(super) fn check(history: &History, tally: &mut Tally) -> Vec<Violation> {
    let failed = history.events.iter().filter_map(|event| {
        let What::Failed { call, kind, text } = &event.what else { return None };
        count(tally, NAME, false);
        let is_wrong = WRONG.iter().any(|words| text.contains(words));
        let transient = kind == "Store (transient)";
        let expected = EXPECTED.contains(&kind.as_str()) || transient;
        // A store that was set back says so itself.
        let set_back = kind == "SetBack" && history.may_have_forgotten(RUN, 0, event.at);
        if (expected && !is_wrong) || set_back || text.contains(FULL) {
            return None;
        }
        let text = format!("`{call}` failed: {kind}: {text}");
        let attempts = vec![(event.worker, event.attempt)];
        Some(Violation { check: NAME, at: event.at, text, attempts })
    });
    failed.collect()
}
