//! Why a node of a quorum did not help: one reason for each node, never one text for all.

use std::fmt;

use crate::rule::claim::Holder;

/// A node that did not help a claim to a majority.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFailure {
    /// The node's address.
    pub node: String,
    /// Why it did not help.
    pub reason: NodeReason,
}

impl NodeFailure {
    pub(crate) fn new(node: impl Into<String>, reason: NodeReason) -> Self {
        Self { node: node.into(), reason }
    }
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.reason)
    }
}

/// Why a node did not help a claim that has no majority.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeReason {
    /// The claim holds there; the others were missing.
    Granted,
    /// The claim waits in line there.
    Waiting,
    /// Somebody else holds it there.
    Taken {
        /// The holder; `None` for a client of another library.
        by: Option<Holder>,
    },
    /// It gave no answer in time.
    Silent,
    /// It was asked, and its answer not awaited: without it there was no majority already.
    NotAwaited,
    /// It could not be reached, or failed.
    Unreachable {
        /// The failure as the client saw it.
        cause: String,
    },
    /// Its answer came later than the claim's time there.
    Expired,
    /// It started empty, and may not vote before it has waited and caught up.
    Probation,
}

impl fmt::Display for NodeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeReason::Granted => f.write_str("granted"),
            NodeReason::Waiting => f.write_str("waiting in line"),
            NodeReason::Taken { by: Some(holder) } => write!(f, "taken by `{}`", holder.label()),
            NodeReason::Taken { by: None } => f.write_str("taken by a client of another library"),
            NodeReason::Silent => f.write_str("no answer in time"),
            NodeReason::NotAwaited => f.write_str("not awaited: no majority was left without it"),
            NodeReason::Unreachable { cause } => write!(f, "unreachable: {cause}"),
            NodeReason::Expired => f.write_str("its answer came after the ttl"),
            NodeReason::Probation => {
                f.write_str("on probation: it started empty and does not vote yet")
            }
        }
    }
}
