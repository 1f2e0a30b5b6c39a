//! Everything that can go wrong, typed, and whether trying again may help.
//!
//! Expected outcomes are values elsewhere: another holder has the name, or the lease had expired.
//! An [`Error`] means that the question could not be answered or should not have been asked.

mod node_failure;
mod try_lock;
mod unreachable;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::rule::claim::{Holder, Mode, Note, Ttl};
use crate::rule::fence::Fence;
use crate::rule::name::Name;

pub use node_failure::{NodeFailure, NodeReason};
pub use try_lock::{Held, TryLockError, UnlessHeld};
pub use unreachable::{Source, UnreachableReason};

/// The result of every fallible call of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request breaks a rule of the library; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The store's address or settings cannot be used as they are.
    #[error(transparent)]
    Config(#[from] Config),

    /// The store did not answer, or not in time. Whether the request took effect is unknown;
    /// repeating it with the same token is harmless, and the library does so by itself.
    #[error("cannot reach the store `{store}`: {cause}")]
    Unreachable {
        /// The store, without credentials.
        store: String,
        /// The kind of failure.
        reason: UnreachableReason,
        /// The failure in the library's words.
        cause: String,
        /// The error of the driver or the system, where there is one.
        source: Option<Source>,
    },

    /// No majority of the nodes answered, or of those that may vote. As with
    /// [`Unreachable`](Error::Unreachable), repeating the request is harmless.
    #[error("no majority of the nodes of `{store}`: {}", node_list(.nodes))]
    NoMajority {
        /// The store, without credentials.
        store: String,
        /// Each node with its failure.
        nodes: Vec<NodeFailure>,
    },

    /// The store answered with a failure of its own.
    #[error("the store `{store}` failed: {cause}")]
    Store {
        /// The store, without credentials.
        store: String,
        /// The store's own message.
        cause: String,
        /// Whether the same request may succeed later.
        transient: bool,
    },

    /// A task of the engine ended before it answered. The client may still be open. As with
    /// [`Unreachable`](Error::Unreachable), repeating the request is harmless.
    #[error("a task for the store `{store}` ended before it answered")]
    TaskEnded {
        /// The store, without credentials.
        store: String,
    },

    /// The engine does not have this feature.
    #[error("{engine} cannot {what}; {advice}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// The feature.
        what: &'static str,
        /// An alternative.
        advice: &'static str,
    },

    /// The store is not the one this client connected to any more (its file was replaced).
    #[error("the store `{store}` was replaced under this client; connect again")]
    Replaced {
        /// The store, without credentials.
        store: String,
    },

    /// The store gave a fence that is not above one that it had given before. So it was set back to
    /// an earlier state, for example by restoring a backup. The client gave the claim back.
    #[error(
        "the store `{store}` was set back to an earlier state: it gives fence {given}, and {known} \
         was given before; run `leasehold bump-epoch` on it once"
    )]
    SetBack {
        /// The store, without credentials.
        store: String,
        /// The fence that was refused.
        given: Fence,
        /// The greatest fence that this client had seen before.
        known: Fence,
    },

    /// A claim of another kind, or with another limit, is on this name.
    #[error("`{name}` is in use as {in_force}, not as {asked}; all who use a name must agree")]
    Mismatch {
        /// The name.
        name: Name,
        /// The kind of the claims that are in line.
        in_force: Kind,
        /// The kind that this claim asked for.
        asked: Kind,
    },

    /// The limit of a semaphore cannot be lowered that far while its permits are in use.
    #[error("the limit of `{name}` cannot be {of} now: {why}")]
    InUse {
        /// The name.
        name: Name,
        /// The limit that was ordered.
        of: u32,
        /// The reason.
        why: TooMany,
    },

    /// Other claims have the name, and the caller does not wait for them. Made of a
    /// [`TryLockError`] by `?`.
    #[error(transparent)]
    Held(Box<Held>),

    /// The lease was lost while work that needed it was going on.
    #[error("the lease on `{name}` was lost: {cause}")]
    Lost {
        /// The name.
        name: Name,
        /// Why.
        cause: LostCause,
    },

    /// The store granted the claim, but so late that the lease had already run out.
    #[error(
        "the answer for `{name}` took {took:?}, longer than its ttl; raise the ttl or see the store"
    )]
    TooSlow {
        /// The name.
        name: Name,
        /// From sending the request to reading its answer.
        took: Duration,
    },

    /// Waiting would never end: the holders named wait for one another. Give back the leases that
    /// you hold; then the others go on, and you may begin again.
    #[error("waiting for `{name}` would be a deadlock: {cycle}")]
    Deadlock {
        /// The name this claim asked for.
        name: Name,
        /// Each name in the cycle with its holder.
        cycle: Cycle,
    },

    /// The handle names a lease that is not, or no longer, held.
    #[error("the lease of this handle on `{name}` is not held any more{}", taken_by(.by))]
    Stale {
        /// The name.
        name: Name,
        /// The present holder of the name, if there is one.
        by: Option<Holder>,
    },

    /// A named limit of the library was reached.
    #[error("too many {what}: the limit is {limit}")]
    Limit {
        /// The thing that there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },

    /// The caller's time limit ended while the claim waited, and the store did not answer the
    /// claim's last request. If the store answered it, the wait ends without a lease and without an
    /// error.
    #[error("no lease on `{name}` after {waited:?}, and the store failed last")]
    Timeout {
        /// The name.
        name: Name,
        /// How long the claim waited.
        waited: Duration,
        /// The error of the last request.
        #[source]
        last: Box<Error>,
    },

    /// The client was closed.
    #[error("this client is closed")]
    Closed,

    /// This process is a forked child of the one that made the client. The client's leases belong
    /// to the parent.
    #[error("this client was made before a fork: connect again in the child")]
    Forked,
}

impl Error {
    /// A task of the engine ended before it answered. The client may still be open.
    #[allow(dead_code, reason = "the engines of the build decide whether it is used")]
    pub(crate) fn task_ended(store: &str) -> Self {
        Error::TaskEnded { store: store.to_owned() }
    }

    /// The store cannot be reached, for a reason that no driver reported. `cause` is the failure in
    /// the engine's words.
    pub fn unreachable(
        store: impl Into<String>,
        reason: UnreachableReason,
        cause: impl Into<String>,
    ) -> Self {
        Error::Unreachable { store: store.into(), reason, cause: cause.into(), source: None }
    }

    /// The store cannot be reached, because of an error of a driver or of the system.
    pub fn unreachable_by(
        store: impl Into<String>,
        reason: UnreachableReason,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let (store, cause) = (store.into(), reason.to_string());
        Error::Unreachable { store, reason, cause, source: Some(Source::new(source)) }
    }

    /// The error and its sources in one line, for people. A source that only repeats what was said
    /// before is left out.
    pub fn with_sources(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            let more = source.to_string();
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            next = source.source();
        }
        text
    }

    /// Whether the same call may succeed when it is tried again.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. }
            | Error::NoMajority { .. }
            | Error::TaskEnded { .. }
            | Error::Held(_)
            | Error::TooSlow { .. }
            | Error::Timeout { .. } => true,
            Error::Store { transient, .. } => *transient,
            _ => false,
        }
    }
}

fn node_list(nodes: &[NodeFailure]) -> String {
    nodes.iter().map(NodeFailure::to_string).collect::<Vec<_>>().join("; ")
}

fn taken_by(by: &Option<Holder>) -> String {
    by.as_ref().map(|holder| format!("; `{}` has it now", holder.label())).unwrap_or_default()
}

/// A request that breaks a rule, found before anything is sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name of no bytes.
    #[error("a lock name must have 1 to {} bytes; this one is empty", Name::BYTES_MAX)]
    NameEmpty,
    /// A name of too many bytes.
    #[error("a lock name must have 1 to {} bytes; this one has {bytes}", Name::BYTES_MAX)]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A name with a NUL byte.
    #[error("a lock name must not contain a NUL byte")]
    NameHasNul,
    /// A name whose key the library uses itself.
    #[error("a lock name must not begin with `{prefix}` here; set a `prefix` in the store's url")]
    NameReserved {
        /// The reserved beginning.
        prefix: &'static str,
    },
    /// A time to live out of bounds.
    #[error("a ttl must be between {:?} and {:?}; this one is {ttl:?}", Ttl::MIN, Ttl::MAX)]
    Ttl {
        /// The value given.
        ttl: Duration,
    },
    /// A time to live above the limit that the nodes of a quorum agreed on.
    #[error("a ttl must be at most {ttl_max:?} here; this one is {ttl:?}: see `ttl_max_ms`")]
    TtlAboveStore {
        /// The value given.
        ttl: Duration,
        /// The longest ttl allowed.
        ttl_max: Duration,
    },
    /// A note of too many bytes.
    #[error("a note may have up to {} bytes; this one has {bytes}", Note::BYTES_MAX)]
    NoteTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A note with a NUL byte.
    #[error("a note must not contain a NUL byte")]
    NoteHasNul,
    /// A note cannot be written as JSON.
    #[error("the note cannot be written as JSON: {reason}")]
    NoteNotJson {
        /// The fault of the value.
        reason: String,
    },
    /// A holder label of no bytes, too many bytes, or with control characters.
    #[error(
        "a holder label must have 1 to {} bytes and no control characters",
        Holder::LABEL_BYTES_MAX
    )]
    Label,
    /// Permits that cannot be taken.
    #[error("permits must be 1 to the limit, and the limit at least 1; asked for {take} of {of}")]
    Permits {
        /// How many were asked for.
        take: u32,
        /// Out of how many.
        of: u32,
    },
    /// A rate that cannot be kept.
    #[error("a rate must be 1 to {most} units in a period; this one is {units}")]
    Rate {
        /// How many units were asked for.
        units: u32,
        /// How many there may be.
        most: u32,
    },
    /// A period that is too short for a clock to tell it from the next.
    #[error(
        "a period must be at least {:?}: {period:?} is shorter than the clock can tell",
        Ttl::MIN
    )]
    PeriodTooShort {
        /// The value given.
        period: Duration,
    },
    /// A period that is longer than allowed.
    #[error("a period must be at most {most:?}; this one is {period:?}")]
    PeriodTooLong {
        /// The value given.
        period: Duration,
        /// The longest period allowed.
        most: Duration,
    },
    /// A text that is no handle.
    #[error("this is not a lease handle: {reason}")]
    Handle {
        /// What does not fit.
        reason: &'static str,
    },
    /// A setting of the client that is out of bounds.
    #[error("{what} must be {rule}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its rule.
        rule: &'static str,
    },
}

/// A store address or setting that cannot be used as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Config {
    /// A text that is no store URL.
    #[error("this is not a store url: {reason}; examples: {}", known_list(.known))]
    Url {
        /// What does not fit.
        reason: String,
        /// The schemes of this build.
        known: Vec<&'static str>,
    },
    /// An unknown scheme.
    #[error("unknown store scheme `{scheme}`; this build knows {}", known_list(.known))]
    UnknownScheme {
        /// The scheme given.
        scheme: String,
        /// The schemes of this build.
        known: Vec<&'static str>,
    },
    /// A scheme of an engine that was left out of this build.
    #[error("the engine for `{scheme}` is not in this build; {advice}")]
    NotBuilt {
        /// The scheme given.
        scheme: String,
        /// Advice.
        advice: &'static str,
    },
    /// An option in the URL's query that the engine does not know, or whose value it cannot read.
    #[error("the store option `{option}` {reason}")]
    Option {
        /// The option.
        option: String,
        /// What does not fit.
        reason: String,
    },
    /// A place or state that would make the lock unsafe or unusable.
    #[error("refusing to use `{}`: {reason}; {advice}", .path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// The fault.
        reason: String,
        /// Advice.
        advice: &'static str,
    },
    /// The store does not let this user in, or does not allow a needed operation.
    #[error("cannot use the store `{store}`: {reason}; {advice}")]
    Denied {
        /// The store, without credentials.
        store: String,
        /// The store's own message.
        reason: String,
        /// Advice.
        advice: &'static str,
    },
    /// The store's content was made by another version of leasehold, or cannot hold a store.
    #[error("refusing to use `{store}`: {reason}; {advice}")]
    Unfit {
        /// The store, without credentials.
        store: String,
        /// The fault.
        reason: String,
        /// Advice.
        advice: &'static str,
    },
    /// This user lacks a right that the store's administrator can give.
    #[error(
        "the store `{store}` cannot be used: a right is missing; let an administrator run this, \
         then try again: {statements}"
    )]
    RightMissing {
        /// The store, without credentials.
        store: String,
        /// The statements that give the right.
        statements: String,
    },
    /// The store does not keep a claim for that long if no client renews it.
    #[error(
        "{engine} keeps a claim that no client renews for {longest:?} at most, and {asked:?} is \
         asked for; ask for less, or raise {setting}"
    )]
    NotKept {
        /// The engine.
        engine: &'static str,
        /// The time that the caller asked for.
        asked: Duration,
        /// The longest time under the store's present settings.
        longest: Duration,
        /// The setting to change, and where it is.
        setting: &'static str,
    },
    /// A handle of another store.
    #[error("this handle belongs to another store; use the url it was made with")]
    OtherStore,
}

impl Config {
    /// Makes the [`NotKept`](Self::NotKept) error, with the setting that this engine has.
    pub(crate) fn not_kept(engine: &'static str, asked: Duration, longest: Duration) -> Self {
        let setting = match engine {
            "redlock" => "`ttl_max_ms` in the store's url, for all its clients",
            _ => "`maxSessionTimeout` of its servers",
        };
        Config::NotKept { engine, asked, longest, setting }
    }
}

fn known_list(known: &[&str]) -> String {
    known.iter().map(|scheme| format!("`{scheme}`")).collect::<Vec<_>>().join(", ")
}

/// Why a lease is no longer held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// Its time ran out before a renewal succeeded, although the store answered.
    Expired,
    /// The store could not be reached until the time ran out.
    Unreachable,
    /// Another holder has the name now.
    TakenBy(Holder),
    /// An administrator took it, and this client heard of that.
    #[non_exhaustive]
    Evicted {
        /// The label of the administrator's client.
        by: String,
        /// Why.
        reason: String,
    },
    /// An administrator took it, or the store lost it.
    Removed,
    /// The client gave it back because it was held for as long as `hold_at_most` allows.
    HoldAtMost,
    /// The store is no longer the one that granted it.
    Replaced,
    /// The client was closed.
    Closed,
    /// The client gave back all its leases, by
    /// [`Client::release_all`](crate::Client::release_all).
    Released,
    /// This process is a forked child; the parent has the lease.
    Forked,
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostCause::Expired => f.write_str("its time ran out before it could be renewed"),
            LostCause::Unreachable => {
                f.write_str("the store could not be reached until its time ran out")
            }
            LostCause::TakenBy(holder) => write!(f, "`{}` has it now", holder.label()),
            LostCause::Evicted { by, reason } if reason.is_empty() => {
                write!(f, "`{by}` force-released it")
            }
            LostCause::Evicted { by, reason } => write!(f, "`{by}` force-released it: {reason}"),
            LostCause::Removed => f.write_str("it was force-released or removed from the store"),
            LostCause::HoldAtMost => f.write_str("it was held for the longest time allowed"),
            LostCause::Replaced => f.write_str("the store was replaced"),
            LostCause::Closed => f.write_str("the client was closed"),
            LostCause::Released => f.write_str("the client gave back all its leases"),
            LostCause::Forked => f.write_str("this process was forked: its parent has the lease"),
        }
    }
}

/// The kind a name is in use as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Exclusive and shared claims.
    Lock,
    /// Permits out of a limit.
    Permits {
        /// The limit.
        of: u32,
    },
    /// Periods of [`Once`](crate::Once).
    Once,
    /// Units of a [`RateLimiter`](crate::RateLimiter).
    Rate {
        /// How many in each window.
        of: u32,
    },
}

impl From<Mode> for Kind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive | Mode::Shared => Kind::Lock,
            Mode::Permits { of, .. } => Kind::Permits { of },
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Lock => f.write_str("a lock"),
            Kind::Permits { of } => write!(f, "a semaphore of {of}"),
            Kind::Once => f.write_str("a job of `once`"),
            Kind::Rate { of } => write!(f, "a rate of {of}"),
        }
    }
}

/// Why a semaphore's limit cannot be lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TooMany {
    /// Leases hold this many permits.
    Held(u32),
    /// A waiting claim asks for this many permits.
    Wanted(u32),
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooMany::Held(units) => write!(f, "{units} permits are held; try again when fewer are"),
            TooMany::Wanted(units) => write!(
                f,
                "somebody waits for {units} permits at once; try again when that claim is served"
            ),
        }
    }
}

/// The names and holders of a deadlock, in waiting order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle(pub Vec<(Name, Holder)>);

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the store found it, and names nobody");
        }
        for (index, (name, holder)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{name}` is held by `{}`", holder.label())?;
        }
        Ok(())
    }
}
