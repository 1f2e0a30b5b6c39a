//! The narrow waist: the verbs of a store, and nothing about how it does them.
//!
//! [`Engine`] has the eight methods that every store has. Everything else is one of its [`Parts`],
//! which an engine has or has not.
//!
//! Every verb is atomic for one name and safe to repeat with the same token after any error.
//! Only the store's clock counts: callers send durations, never instants. No method has a default
//! body, so a wrapper that forgets to forward a verb does not compile.

mod admin;
pub(crate) mod bell;
mod events;
pub(crate) mod kit;
pub mod layer;
mod messages;
mod parts;
mod query;
pub(crate) mod server_alert;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Place, Released, Renewal, Standing};

pub use crate::engine::admin::{
    Bump, Bumped, Counts, Eviction, Finding, Level, OTHER_LOCKS, Resize, Resized, Totals,
};
pub use crate::engine::events::{Event, EventKind};
pub use crate::engine::messages::{HolderMessage, MessageKind};
pub(crate) use crate::engine::parts::unsupported;
pub use crate::engine::parts::{
    Administer, Alert, Alerts, Amend, ClaimMany, ClaimNow, Convert, Counting, HolderMessages, Part,
    Parts, RaiseFences, ReleaseNow, Setup, Steal, Unattended, WaitNotices, Watch, need,
};
pub use crate::engine::query::{BrokenLine, ClaimView, LineView, Page, Query, Select};
pub use crate::engine::server_alert::{AlertKind, ServerAlert};
pub use crate::rule::wait_notice::{Kept, Notice, Wait};

/// A store's implementation of lines.
///
/// A dropped future may or may not have taken effect. The caller then releases the claim, which
/// settles it either way.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// The engine's name, store and promises.
    fn info(&self) -> &Info;

    /// Joins the line, asks how a claim stands, or confirms that it holds. A client asks only for
    /// modes that [`Info::can`] promises.
    async fn claim(&self, claim: &Claim) -> Result<Standing>;

    /// Ends when the claim holds or the waiter should ask again. A bell that rang since the last
    /// answer of `claim` counts. If a bell is lost, the waiter's next heartbeat finds the grant.
    async fn wait(&self, key: &ClaimKey) -> Result<Wake>;

    /// Keeps claims alive, all in one exchange where the store can. Each claim has its own answer:
    /// a store of several parts may reach some claims and not others. The engine answers those
    /// that it reaches within [`Renewal::limit`], even if the others fail.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>>;

    /// Gives claims back or takes them out of their lines, and rings the claims that hold now.
    /// The caller never claims with such a token again. If a claim may still be in flight, the
    /// engine looks for it later and takes it out. An engine that repeats the request itself may
    /// find its own claim gone. It then answers [`Released::Released`], because its first request
    /// may have taken the claim out.
    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>>;

    /// Reads lines in name order, a page at a time. A page names the lines that cannot be read, and
    /// has all others.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Gives up the engine's resources outside the store's lines: mailboxes and connections.
    async fn close(&self) -> Result<()>;

    /// The engine's optional parts. A client asks once.
    fn parts(self: Arc<Self>) -> Parts;
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wake {
    /// The waiter should ask again.
    #[default]
    Ask,
    /// The claim holds, and the store keeps it for the time that its last heartbeat asked for. An
    /// engine may answer this only if the grant is as safe as one that `claim` answers. The waiter
    /// believes it only if the place is the last one that it learned.
    Holds {
        /// The place for which the bell was rung.
        place: Place,
        /// The lease's number.
        fence: u64,
    },
}

/// An engine's name, store and promises.
#[derive(Debug, Clone)]
pub struct Info {
    /// The engine's name, as in the documentation.
    pub engine: &'static str,
    /// The store's address without credentials.
    pub store: String,
    /// An id that is the same for every client of this store, and differs for other stores.
    pub store_id: u128,
    /// Its promises.
    pub can: Capabilities,
    /// Whether its verbs can fail in a way that a second try may mend.
    pub can_fail: bool,
}

/// The promises of an engine that do not follow from its [`Parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Waiting claims are granted in order of arrival.
    pub fifo: bool,
    /// Claims may be shared.
    pub shared: bool,
    /// Claims may be permits out of a limit.
    pub permits: bool,
    /// Each claim has a time to live of its own.
    pub ttl_per_claim: bool,
    /// The engine sees claims of other processes.
    pub across_processes: bool,
    /// Every client of the store can find a waiting claim by its token, so another client can
    /// continue the wait. A ticket needs it.
    pub waits_by_token: bool,
}

impl Wake {
    /// The wake of a claim whose place is its fence.
    pub(crate) fn holds_at(fence: u64) -> Self {
        match fence {
            0 => Wake::Ask,
            fence => Wake::Holds { place: Place::new(fence), fence },
        }
    }
}

impl Capabilities {
    /// Everything.
    pub const ALL: Capabilities = Capabilities {
        fifo: true,
        shared: true,
        permits: true,
        ttl_per_claim: true,
        across_processes: true,
        waits_by_token: true,
    };
}
