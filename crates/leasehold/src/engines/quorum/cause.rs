//! Why a node did not help: one cause for each node, never one text for all.

use std::fmt;

use crate::rule::claim::Holder;

/// What one node has to say about a claim that has no majority.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The claim holds there; the others were missing.
    Granted,
    /// The claim waits in line there.
    Waiting,
    /// Somebody else holds it there.
    Taken {
        /// Who; `None` for a client of another library.
        by: Option<Holder>,
    },
    /// It gave no answer in time.
    Silent,
    /// It was asked, and its answer not awaited: without it there was no majority already.
    NotAwaited,
    /// It could not be reached, or failed.
    Unreachable {
        /// What was seen.
        cause: String,
    },
    /// Its answer came later than the claim's time there.
    Expired,
    /// It started empty, and may not vote before it has waited and caught up.
    Probation,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Granted => f.write_str("granted"),
            Cause::Waiting => f.write_str("waiting in line"),
            Cause::Taken { by: Some(holder) } => write!(f, "taken by `{}`", holder.label()),
            Cause::Taken { by: None } => f.write_str("taken by a client of another library"),
            Cause::Silent => f.write_str("no answer in time"),
            Cause::NotAwaited => f.write_str("not awaited: no majority was left without it"),
            Cause::Unreachable { cause } => write!(f, "unreachable: {cause}"),
            Cause::Expired => f.write_str("its answer came after the ttl"),
            Cause::Probation => f.write_str("on probation: it started empty and does not vote yet"),
        }
    }
}
