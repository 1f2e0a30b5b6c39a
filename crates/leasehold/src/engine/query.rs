//! Reading lines: queries, and the pages that answer them.

use std::time::Duration;

use crate::engine::Event;
use crate::error::{Error, Kind};
use crate::rule::claim::{Holder, HolderId, Mode, Note};
use crate::rule::fence::Fence;
use crate::rule::name::Name;

/// Which lines to read.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// The choice of lines.
    pub select: Select,
    /// Only names after this one, which the last page ended with.
    pub after: Option<Name>,
    /// At most this many lines; 0 means [`Query::LINES_MAX`].
    pub limit: usize,
}

impl Query {
    /// The most lines in one page, so that a page always fits a message.
    pub const LINES_MAX: usize = 1_000;

    /// All lines.
    pub fn all() -> Self {
        Self::default()
    }

    /// One line.
    pub fn name(name: Name) -> Self {
        Self { select: Select::Name(name), ..Self::default() }
    }

    /// The lines whose names begin with `prefix`.
    pub fn prefix(prefix: impl Into<String>) -> Self {
        Self { select: Select::Prefix(prefix.into()), ..Self::default() }
    }

    /// The lines in which `holder` has a claim.
    pub fn holder(holder: HolderId) -> Self {
        Self { select: Select::Holder(holder), ..Self::default() }
    }

    /// How many lines a page may have.
    pub fn page_lines(&self) -> usize {
        match self.limit {
            0 => Self::LINES_MAX,
            limit => limit.min(Self::LINES_MAX),
        }
    }

    /// Whether the query selects an event.
    pub fn admits_event(&self, event: &Event) -> bool {
        match &self.select {
            Select::Holder(holder) => event.holder.id() == *holder,
            _ => self.admits(&event.name),
        }
    }

    /// Whether the query selects a name. A query by holder admits all names, and selects by line.
    pub fn admits(&self, name: &Name) -> bool {
        let after = self.after.as_ref().is_none_or(|after| name > after);
        after
            && match &self.select {
                Select::All | Select::Holder(_) => true,
                Select::Name(only) => only == name,
                Select::Prefix(prefix) => name.as_str().starts_with(prefix),
            }
    }
}

/// The choice of lines in a [`Query`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Select {
    /// Every line.
    #[default]
    All,
    /// One line.
    Name(Name),
    /// Names with this prefix.
    Prefix(String),
    /// Lines in which this holder has a claim.
    Holder(HolderId),
}

/// Lines as they were read.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// In name order.
    pub lines: Vec<LineView>,
    /// Names whose records cannot be read, in name order. They count towards the page's limit. A
    /// query by holder leaves them out. A name may be in `lines` too, with its readable part.
    pub broken: Vec<BrokenLine>,
    /// For the next page, ask again with this as `after`; `None` on the last page.
    pub next: Option<Name>,
}

/// A name whose record in the store is not in leasehold's form.
/// [`evict`](crate::engine::Administer::evict) removes the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenLine {
    /// The name.
    pub name: Name,
    /// The fault of the record.
    pub cause: String,
}

impl BrokenLine {
    /// The error for a caller that asked for this name alone.
    pub(crate) fn into_error(self, store: &str) -> Error {
        let Self { name, cause } = self;
        let cause = format!("the record of `{name}` cannot be read: {cause}; force-release it");
        Error::Store { store: store.to_owned(), cause, transient: false }
    }
}

/// One name's line as others may see it.
#[derive(Debug, Clone)]
pub struct LineView {
    /// The name.
    pub name: Name,
    /// The kind of its claims.
    pub kind: Kind,
    /// The claims that hold, in order.
    pub held: Vec<ClaimView>,
    /// The claims that wait, in order.
    pub waiting: Vec<ClaimView>,
}

/// A claim as others may see it: everything but its token.
#[derive(Debug, Clone)]
pub struct ClaimView {
    /// The holder.
    pub holder: Holder,
    /// Its number.
    pub fence: Fence,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// How long it has held, or waited.
    pub age: Duration,
    /// How long it stays without a renewal or heartbeat.
    pub remaining: Duration,
    /// The holder's note.
    pub note: Note,
    /// Whether its owner gave it back with
    /// [`keep_closed`](crate::engine::Unattended::keep_closed), so that it has no owner.
    pub closed: bool,
}
