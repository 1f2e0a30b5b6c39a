//! Events of claims, as a watcher hears of them.

use crate::rule::claim::Holder;
use crate::rule::fence::Fence;
use crate::rule::name::Name;

/// Something that happened to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The claim's name.
    pub name: Name,
    /// The claim's holder.
    pub holder: Holder,
    /// The claim's number.
    pub fence: Fence,
}

impl Event {
    /// Reports that a watcher was too slow. Its name and holder mean nothing.
    pub fn missed(count: u64, at: &Name) -> Self {
        let (kind, holder) = (EventKind::Missed(count), Holder::fresh());
        Self { kind, name: at.clone(), holder, fence: Fence::from(0) }
    }
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A claim waits in line. Also reported when it gets a new place, because the name was stolen.
    Queued,
    /// A claim holds.
    Granted,
    /// A lease was given back.
    Released,
    /// A waiting claim left the line.
    Left,
    /// A claim's time ran out.
    Expired,
    /// The mode or note of a lease changed.
    Amended,
    /// An administrator evicted a lease.
    Evicted {
        /// The administrator's reason.
        reason: String,
    },
    /// The watcher was too slow, and missed this many events.
    Missed(u64),
}
