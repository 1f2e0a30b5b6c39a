//! The optional parts of an engine: one trait for each thing that some stores cannot do.
//!
//! An engine lists the parts that it has. A part that is absent is the answer "cannot", and
//! [`need`] makes the one error of it. So no engine writes a method that only refuses.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::clock::ClockReading;
use crate::engine::{
    Bump, Bumped, Counts, Event, Eviction, Finding, HolderMessage, Info, Notice, Query, Resize,
    Resized, ServerAlert, Totals, Wait,
};
use crate::error::{Error, Result};
use crate::rule::claim::{
    Amended, Claim, ClaimKey, ClaimRef, Holder, HolderId, Mode, Note, Released, Standing,
};

/// The abilities of an engine besides the eight methods of [`Engine`](crate::engine::Engine).
///
/// A client asks for it once and keeps it, so an engine knows its parts when it is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Parts {
    /// Grants free names without a runtime.
    pub claim_now: Option<Arc<dyn ClaimNow>>,
    /// Releases dropped leases without a runtime.
    pub release_now: Option<Arc<dyn ReleaseNow>>,
    /// Grants several names in one exchange.
    pub claim_many: Option<Arc<dyn ClaimMany>>,
    /// Replaces the note of a lease.
    pub amend: Option<Arc<dyn Amend>>,
    /// Changes the mode of a lease and the limit of a semaphore.
    pub convert: Option<Arc<dyn Convert>>,
    /// Keeps claims that no client renews.
    pub unattended: Option<Arc<dyn Unattended>>,
    /// Keeps notices of waits for the deadlock search.
    pub wait_notices: Option<Arc<dyn WaitNotices>>,
    /// Carries messages to holders.
    pub messages: Option<Arc<dyn HolderMessages>>,
    /// Reports what the engine notices by itself.
    pub alerts: Option<Arc<dyn Alerts>>,
    /// Reports events to watchers.
    pub watch: Option<Arc<dyn Watch>>,
    /// Carries out an administrator's orders.
    pub admin: Option<Arc<dyn Administer>>,
    /// Takes a name from its holders, before those who wait.
    pub steal: Option<Arc<dyn Steal>>,
    /// Adds up the counts of all clients.
    pub counting: Option<Arc<dyn Counting>>,
    /// Raises the fences of a restored store.
    pub raise_fences: Option<Arc<dyn RaiseFences>>,
    /// Installs what the store needs.
    pub setup: Option<Arc<dyn Setup>>,
}

/// A part that a caller may ask for although the engine does not have it.
pub trait Part: fmt::Debug + Send + Sync {
    /// What an engine without this part cannot do.
    const WHAT: &'static str;
    /// What the caller can do instead.
    const ADVICE: &'static str;
}

/// The part, or the error which says that the engine cannot do it.
pub fn need<'a, P: Part + ?Sized>(part: &'a Option<Arc<P>>, info: &Info) -> Result<&'a Arc<P>> {
    part.as_ref().ok_or_else(|| unsupported(info, P::WHAT, P::ADVICE))
}

/// The error for an engine without a part.
pub(crate) fn unsupported(info: &Info, what: &'static str, advice: &'static str) -> Error {
    Error::Unsupported { engine: info.engine, what, advice }
}

/// Grants free names on the caller's thread, for stores in this process.
pub trait ClaimNow: fmt::Debug + Send + Sync {
    /// Makes a claim that does not join the line. The answer of a claim that holds is its fence
    /// and the time for which the store keeps it. The answer of any other claim is `None`, and the
    /// claim is not in the line. The caller has just read its clock.
    fn claim_now(&self, claim: ClaimRef<'_>, reading: ClockReading<'_>) -> Option<(u64, Duration)>;
}

/// Releases claims on the caller's thread, for leases that are dropped.
pub trait ReleaseNow: fmt::Debug + Send + Sync {
    /// As [`release`](crate::engine::Engine::release) of one claim. `None` if the store cannot
    /// answer now; the keeper then releases the claim later.
    fn release_now(&self, key: &ClaimKey) -> Option<Released>;
}

/// Grants several names in one exchange.
#[async_trait]
pub trait ClaimMany: fmt::Debug + Send + Sync {
    /// Makes claims on different names, so that all of them hold. `None` if one of them would not,
    /// or the store cannot tell in one exchange; then none is in its line. No claim joins.
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>>;
}

/// Replaces the note of a lease.
#[async_trait]
pub trait Amend: fmt::Debug + Send + Sync {
    /// Replaces the note of a claim that holds. Its place, time and fence stay as they are.
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended>;
}

/// Changes a claim or a line that is in use without a place being lost.
#[async_trait]
pub trait Convert: fmt::Debug + Send + Sync {
    /// Changes the mode of a claim that holds, and rings those who hold by that. Its place, time
    /// and fence stay as they are.
    /// [`Amendment::mode`](crate::rule::claim::Amendment::mode) lists the changes that are allowed.
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended>;

    /// Gives a semaphore that is in use another limit, and rings those who hold by that. From then
    /// on a claim that names the old limit is a mismatch.
    async fn resize(&self, order: &Resize) -> Result<Resized>;
}

/// Keeps claims that no client renews: detached leases, periods, and names that stay closed.
#[async_trait]
pub trait Unattended: fmt::Debug + Send + Sync {
    /// Gives a lease back, and keeps its name closed for `stay` from now. The claim stays in its
    /// line with its fence, holder, note and age. It ends by itself after `stay`, also where that
    /// is earlier than it would have ended.
    ///
    /// Nobody owns the claim any more: from then on no verb finds a claim with this token. So a
    /// second call answers like a second `release`, and changes nothing. A claim that waits is no
    /// lease, and is not found. No event reports the call; the claim's end is
    /// [`EventKind::Expired`](crate::engine::EventKind::Expired). An error if the store cannot keep
    /// the claim for that long.
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released>;

    /// The longest time for which the store keeps a claim that no client renews; `None` if it
    /// keeps one for any ttl.
    async fn longest_without_renewal(&self) -> Result<Option<Duration>>;
}

/// Keeps notices of waits, so that clients find deadlocks. An engine with this part also shows
/// lines as they are.
#[async_trait]
pub trait WaitNotices: fmt::Debug + Send + Sync {
    /// Says what a client waits for, and what it keeps meanwhile. It replaces what the client said
    /// before. A client calls it only after a claim has waited for a while.
    async fn announce(&self, notice: &Notice) -> Result<()>;

    /// The waits that the clients of a holder reported. They may be out of date.
    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>>;
}

/// Carries messages to the clients that hold leases. Without this part a holder hears of an
/// eviction at its next renewal.
#[async_trait]
pub trait HolderMessages: fmt::Debug + Send + Sync {
    /// Hands a message to all clients of the store that listen.
    async fn send(&self, message: &HolderMessage) -> Result<()>;

    /// Messages from the answer on. The stream ends when one may have been missed; the caller then
    /// listens again. The client listens only while it holds leases for longer than a moment.
    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>>;
}

/// Reports what the engine notices by itself, between the calls of its other methods.
#[async_trait]
pub trait Alerts: fmt::Debug + Send + Sync {
    /// Ends when there is something to report. Dropping the future loses nothing.
    ///
    /// Server clocks are read from answers that are given anyway, such as those to renewals.
    /// Settings of servers are looked at now and then, while a caller awaits this.
    async fn alerts(&self) -> Vec<Alert>;
}

/// One thing that an engine noticed by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alert {
    /// A claim of this client was lost before its time; `renew` answers
    /// [`Standing::Out`](crate::rule::claim::Standing::Out) for it from now on.
    Lost(ClaimKey),
    /// The store's promises rest on a server that is not as it should be.
    Server(ServerAlert),
}

/// Reports events.
#[async_trait]
pub trait Watch: fmt::Debug + Send + Sync {
    /// Events from the answer on; those of one name in the order in which they happened.
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>>;
}

/// Carries out an administrator's orders, and answers an administrator's questions.
#[async_trait]
pub trait Administer: fmt::Debug + Send + Sync {
    /// Takes a name from the claims that hold it with one of the fences in the order; returns their
    /// holders. Safe to repeat: the next claim has another fence. Removes a record that cannot be
    /// read, whatever the order's fences are.
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>>;

    /// The counts of all clients, and what is in the lines that can be read.
    async fn totals(&self) -> Result<Totals>;

    /// Looks for settings of the store that weaken the promises.
    async fn examine(&self) -> Result<Vec<Finding>>;
}

/// Takes a name from its holders, before those who wait.
#[async_trait]
pub trait Steal: fmt::Debug + Send + Sync {
    /// Carries out the order of [`evict`](Administer::evict), and lets `claim` hold in the same
    /// exchange. The claim is exclusive, and its fence is greater than all before. Each claim that
    /// waits gets a new place behind it, in the old order. Messages about its old place change
    /// nothing from then on.
    ///
    /// A claim that is in line already is asked about, and nobody is evicted. If a claim holds that
    /// the order does not name, nothing changes, and the answer is
    /// [`Standing::Out`](crate::rule::claim::Standing::Out). So a repeated or late order does not
    /// hit the next claim. A semaphore is a mismatch. A record that cannot be read is an error.
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing>;
}

/// Adds up the counts of all clients.
#[async_trait]
pub trait Counting: fmt::Debug + Send + Sync {
    /// Adds a client's counts to the store's.
    async fn tally(&self, counts: &Counts) -> Result<()>;
}

/// Raises the fences of a store that was restored from a backup.
///
/// An engine has this part if it counts fences over all names of the store. A client that has seen
/// one fence then gets a greater one, whatever it claims next. A restored store breaks that,
/// the client notices, and this part mends it. Without this part fences begin at the clock, or end
/// with the store.
#[async_trait]
pub trait RaiseFences: fmt::Debug + Send + Sync {
    /// Lets fences go on above everything that was ever given out, also by a later state of the
    /// store than the present one. Leases and places in line stay as they are. Safe to repeat.
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped>;
}

/// Installs what the store needs, for stores that have a schema.
#[async_trait]
pub trait Setup: fmt::Debug + Send + Sync {
    /// Installs what the store needs; changes nothing where it is there.
    async fn install(&self) -> Result<()>;

    /// The statements that `install` runs.
    fn schema(&self) -> Cow<'static, str>;
}

impl Part for dyn Amend {
    const WHAT: &'static str = "replace the note of a lease";
    const ADVICE: &'static str = "release it and claim again, or use another store";
}

impl Part for dyn Convert {
    const WHAT: &'static str = "change the mode of a lease or the limit of a semaphore in use";
    const ADVICE: &'static str = "give back and claim again: the next limit is that of the first";
}

impl Part for dyn Unattended {
    const WHAT: &'static str = "keep a name closed after its lock was given back";
    const ADVICE: &'static str =
        "leave `hold_at_least` out, or use another store, such as the lease table";
}

impl Part for dyn WaitNotices {
    const WHAT: &'static str = "keep notices of waits for the deadlock search";
    const ADVICE: &'static str = "give waits a time limit";
}

impl Part for dyn Watch {
    const WHAT: &'static str = "report events";
    const ADVICE: &'static str = "read the lines again and again (`list`), or use another store";
}

impl Part for dyn Administer {
    const WHAT: &'static str = "carry out orders of an administrator";
    const ADVICE: &'static str = "let the ttl of a lock end";
}

impl Part for dyn Steal {
    const WHAT: &'static str = "take a name before those who wait";
    const ADVICE: &'static str = "force-release it and wait in line, or use another store";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Capabilities;

    #[test]
    fn absent_part_is_one_error_that_names_the_engine() {
        let store = "test:".to_owned();
        let can = Capabilities::ALL;
        let info = Info { engine: "test", store, store_id: 1, can, can_fail: true };
        let error = need(&Parts::default().watch, &info).map(|_part| ()).expect_err("no part");
        let text = format!("test cannot {}; {}", <dyn Watch>::WHAT, <dyn Watch>::ADVICE);
        assert_eq!(error.to_string(), text);
    }
}
