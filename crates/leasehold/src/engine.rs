//! The narrow waist: what a store must be able to do, and nothing about how.
//!
//! Every verb is atomic for one name and safe to repeat with the same token after any error.
//! Time is the store's: callers send durations, never instants. There are no default bodies, so
//! that a wrapper which forgets to forward a verb does not compile.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::claim::{
    Amended, Amendment, Claim, ClaimKey, ClaimRef, Holder, HolderId, Mode, Note, Released, Renewal,
    Standing,
};
use crate::clock::Glance;
use crate::clock::remote::ClockTrouble;
use crate::error::{Config, Error, Kind, Result};
use crate::name::Name;

pub use crate::concern::{Concern, Trouble};
pub use crate::notice::{Kept, Notice, Wait};

/// A store's implementation of lines.
///
/// A dropped future may or may not have taken effect; the caller then releases the claim, which
/// settles it either way.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// What this engine is, and what it can promise.
    fn info(&self) -> &Info;

    /// Joins the line, asks how a claim stands, or confirms that it holds.
    async fn claim(&self, claim: &Claim) -> Result<Standing>;

    /// Makes a claim that does not join, on the spot, without a runtime. If it holds, says its
    /// fence and for how long the store keeps it. `None` if it does not, or the store cannot
    /// answer without waiting; then it is not in line. The caller has just read its clock.
    fn claim_now(&self, _claim: ClaimRef<'_>, _glance: Glance<'_>) -> Option<(u64, Duration)> {
        None
    }

    /// Makes claims on different names in one exchange, so that all of them hold; `None` if one
    /// would not, or the store cannot tell in one exchange, and then none is in its line. No claim
    /// joins here.
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>>;

    /// Ends when the claim holds or it is worth asking again. A bell that rang since the last
    /// answer of `claim` counts; one that is lost is repaired by the heartbeat.
    async fn wait(&self, key: &ClaimKey) -> Result<Wake>;

    /// Keeps claims alive, all in one exchange where the store can. An answer for each: a store of
    /// several parts may know of some claims and not of others. Those must be answered within
    /// [`Renewal::limit`], whatever became of the rest.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>>;

    /// Gives claims back or takes them out of their lines, and rings those who hold now. Nobody
    /// claims with such a token again: where a claim may still be on its way, the engine looks for
    /// it later and takes it out.
    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>>;

    /// As `release` of one claim, on the spot, without a runtime: for leases that are dropped.
    /// `None` where the store cannot answer without waiting; the claim is then released later.
    fn release_now(&self, key: &ClaimKey) -> Option<Released>;

    /// Changes a claim that holds without leaving the line, and rings those who hold by that. Its
    /// time and its fence stay as they are.
    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended>;

    /// Gives the semaphore that a name is in use as another limit, and rings those who hold by
    /// that. Claims that name the old limit are a mismatch from then on.
    async fn resize(&self, order: &Resize) -> Result<Resized>;

    /// Ends when claims of this client were lost before their time in a way that the engine
    /// noticed by itself, and names them; `renew` then answers `Out` for each. Where nothing of
    /// the kind is ever noticed it never ends. Dropping the future loses none of them.
    async fn losses(&self) -> Vec<ClaimKey>;

    /// Ends when something was found about a server that the store's promises rest on: that the
    /// clock by which it ends claims was set or stands still, or that it may evict claims now.
    /// Clocks are read from answers that are given anyway, those to renewals above all; settings
    /// are looked at now and then, by whoever awaits this. Where there is nothing of the kind to
    /// be found it never ends. Dropping the future loses nothing.
    async fn concerns(&self) -> Vec<Concern>;

    /// Reads lines in name order, a page at a time.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Tells others what a client waits for, and what it keeps meanwhile; it replaces what the
    /// client said before. Never before a claim has waited for a while.
    async fn announce(&self, notice: &Notice) -> Result<()>;

    /// What the clients of a holder said of their waits. It may be out of date.
    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>>;

    /// Events from the answer on; those of one name in the order in which they happened.
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>>;

    /// Takes a name from whoever holds it; returns them.
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>>;

    /// Lets fences go on above everything that was ever given out, also by a later state of the
    /// store than the present one: for a store that was restored from a backup. Leases and places
    /// in line stay as they are. Harmless when it is repeated.
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped>;

    /// Adds a client's counts to the store's.
    async fn tally(&self, counts: &Counts) -> Result<()>;

    /// The counts of all clients, and what is in the lines now.
    async fn totals(&self) -> Result<Totals>;

    /// Looks at the store's settings with the eyes of somebody who needs the promises kept.
    async fn examine(&self) -> Result<Vec<Finding>>;

    /// Installs what the store needs; harmless when it is there.
    async fn install(&self) -> Result<()>;

    /// The statements that `install` runs; empty where there are none.
    fn schema(&self) -> &'static str;

    /// Gives up what the engine holds outside the store's lines: mailboxes and connections.
    async fn close(&self) -> Result<()>;
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// It is worth asking again.
    Ask,
    /// The claim holds, and the store keeps it for as long as its last heartbeat said. To be
    /// answered only where the grant is as safe as one that `claim` answers.
    Holds {
        /// Its number.
        fence: u64,
    },
}

/// What an engine is and what it can promise.
#[derive(Debug, Clone)]
pub struct Info {
    /// The engine's name, as in the documentation.
    pub engine: &'static str,
    /// The store's address without credentials.
    pub store: String,
    /// An id that is the same for every client of the same store, and no other.
    pub store_id: u128,
    /// What it can do.
    pub can: Capabilities,
    /// Whether its verbs can fail in a way that is worth trying again.
    pub can_fail: bool,
}

/// What an engine can do. Conformance cases are chosen by these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Waiting claims are granted in order of arrival.
    pub fifo: bool,
    /// Shared claims.
    pub shared: bool,
    /// Permits out of a limit.
    pub permits: bool,
    /// `claim_all` can grant: several lines change in one exchange.
    pub many: bool,
    /// Each claim has a time to live of its own.
    pub ttl_per_claim: bool,
    /// A lease can outlive the process that took it and be taken up by its handle.
    pub detach: bool,
    /// Claims of other processes are seen.
    pub across_processes: bool,
    /// `watch` gives events.
    pub watch: bool,
    /// `evict` works.
    pub evict: bool,
    /// `tally` adds up all clients.
    pub tally: bool,
    /// `announce` and `waits_of` work, and lines are read as they are, so that a deadlock can be
    /// found.
    pub deadlocks: bool,
    /// `amend` replaces the note of a claim that holds.
    pub amend: bool,
    /// `amend` changes the mode of a claim that holds.
    pub convert: bool,
    /// `resize` works.
    pub resize: bool,
    /// Fences are counted over all names of the store, so that who was told one and asks then
    /// gets a greater one. A store that was set back breaks that, and `bump_epoch` mends it.
    pub epochs: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Capabilities = Capabilities {
        fifo: true,
        shared: true,
        permits: true,
        many: true,
        ttl_per_claim: true,
        detach: true,
        across_processes: true,
        watch: true,
        evict: true,
        tally: true,
        deadlocks: true,
        amend: true,
        convert: true,
        resize: true,
        epochs: true,
    };
}

/// Which lines to read.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Which of them.
    pub select: Select,
    /// Only names after this one: where the last page ended.
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

    /// Whether an event is one of those asked for.
    pub fn admits_event(&self, event: &Event) -> bool {
        match &self.select {
            Select::Holder(holder) => event.holder.id() == *holder,
            _ => self.admits(&event.name),
        }
    }

    /// Whether a name is among those asked for; a query by holder leaves that to the line.
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
    /// Names that begin so.
    Prefix(String),
    /// Lines in which this holder has a claim.
    Holder(HolderId),
}

/// Lines as they were read.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// In name order.
    pub lines: Vec<LineView>,
    /// Ask again with this as `after` for more.
    pub next: Option<Name>,
}

/// One name's line as others may see it.
#[derive(Debug, Clone)]
pub struct LineView {
    /// The name.
    pub name: Name,
    /// What it is in use as.
    pub kind: Kind,
    /// The claims that hold, in order.
    pub held: Vec<ClaimView>,
    /// The claims that wait, in order.
    pub waiting: Vec<ClaimView>,
}

/// A claim as others may see it: everything but its token.
#[derive(Debug, Clone)]
pub struct ClaimView {
    /// Who.
    pub holder: Holder,
    /// Its number.
    pub fence: u64,
    /// What it asked for.
    pub mode: Mode,
    /// Since when it holds, or waits.
    pub age: Duration,
    /// How long without another word.
    pub remaining: Duration,
    /// What its holder wrote.
    pub note: Note,
}

/// Something that happened to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// On which name.
    pub name: Name,
    /// Whose claim.
    pub holder: Holder,
    /// Its number.
    pub fence: u64,
}

impl Event {
    /// Says that a watcher was too slow. Its name and holder mean nothing.
    pub fn missed(count: u64, at: &Name) -> Self {
        let (kind, holder) = (EventKind::Missed(count), Holder::fresh());
        Self { kind, name: at.clone(), holder, fence: 0 }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A claim stands in line.
    Queued,
    /// A claim holds.
    Granted,
    /// A lease was given back.
    Released,
    /// A waiting claim went away.
    Left,
    /// A claim's time ran out.
    Expired,
    /// A lease has another mode or note than before.
    Amended,
    /// An administrator took a lease.
    Evicted {
        /// Why.
        reason: String,
    },
    /// The watcher was too slow, and this many events are missing before the next.
    Missed(u64),
}

/// An administrator's order to take a name from whoever holds it.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// The name.
    pub name: Name,
    /// Who orders it.
    pub by: Holder,
    /// Why, for the record.
    pub reason: String,
}

/// An administrator's order to give a semaphore another limit.
#[derive(Debug, Clone)]
pub struct Resize {
    /// The name.
    pub name: Name,
    /// The limit from now on.
    pub of: u32,
    /// Who orders it.
    pub by: Holder,
}

/// What became of a [`Resize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resized {
    /// The limit is as ordered.
    Done {
        /// What it was before.
        before: u32,
    },
    /// Nobody is in line, so there is no limit to change: whoever comes next sets it.
    Unused,
    /// More permits are held than the new limit has. Nothing was changed.
    Held {
        /// How many.
        units: u32,
    },
    /// A waiting claim asks for more permits than the new limit has. Nothing was changed.
    Wanted {
        /// How many.
        units: u32,
    },
}

/// An administrator's order to let fences go on above all that were ever given out.
///
/// A backup takes back the count, and with it whatever the store could remember of an earlier
/// order. So the new fences begin at the wall clock, which no backup takes back: fences are given
/// out more slowly than it runs, and so each order is above all fences of the time before it.
#[derive(Debug, Clone)]
pub struct Bump {
    /// A fence that was seen somewhere, and must be exceeded too; 0 if there is none.
    pub above: u64,
    /// The time of day, in microseconds since 1970.
    pub now_us: u64,
    /// Who orders it.
    pub by: Holder,
}

impl Bump {
    /// The greatest fence that can be exceeded: far above the clock, and with room above it in the
    /// stores' signed numbers.
    pub const ABOVE_MAX: u64 = 1 << 62;

    /// The least that the next fence may be, of a store that counts one for each microsecond at
    /// most; `last` is the greatest that the store knows of.
    pub fn floor(&self, last: u64) -> u64 {
        last.max(self.above).saturating_add(1).max(self.now_us)
    }

    /// The answer of a store whose fences are above the clock anyway.
    pub(crate) fn by_the_clock(&self, engine: &'static str) -> Result<Bumped> {
        if self.above < self.now_us {
            return Ok(Bumped::Unneeded);
        }
        let what = "begin above that fence";
        let advice = "its fences follow the clock, which is below that: see where it came from";
        Err(Error::Config(Config::Unsupported { engine, what, advice }))
    }
}

/// What became of a [`Bump`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bumped {
    /// From now on fences are at least `from`.
    Raised {
        /// What the next fence would have been at least.
        before: u64,
        /// What it is at least.
        from: u64,
    },
    /// There is nothing to be done: fences begin at the clock by themselves, or end with the
    /// store.
    Unneeded,
}

/// What a client counted since it last told the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases granted.
    pub acquired: u64,
    /// Leases given back.
    pub released: u64,
    /// Claims that had to wait or were refused because somebody held the name.
    pub contended: u64,
    /// Leases whose time ran out in the store.
    pub expired: u64,
    /// Leases their holder found lost.
    pub lost: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.acquired += other.acquired;
        self.released += other.released;
        self.contended += other.contended;
        self.expired += other.expired;
        self.lost += other.lost;
    }
}

/// The counts of all clients of a store, and what is in its lines now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// What clients counted and told.
    pub counts: Counts,
    /// Leases held now.
    pub active: u64,
    /// Claims waiting now.
    pub waiting: u64,
}

/// One thing `examine` looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub found: String,
    /// What to change; empty where nothing needs to be.
    pub advice: String,
}

impl Finding {
    /// What a client found about a server while it used the store.
    pub fn of_concern(concern: &Concern) -> Self {
        let Concern { server, trouble } = concern;
        let (subject, advice) = match trouble {
            Trouble::Clock(ClockTrouble::Step { .. }) => {
                ("clock", "two may hold after a step ahead: let NTP slew it, and check fences")
            }
            Trouble::Clock(ClockTrouble::Frozen { .. }) => {
                ("clock", "locks of whoever died never expire: see to its clock")
            }
            Trouble::Eviction { .. } => {
                ("eviction", "locks that are held may be evicted: set `noeviction` again")
            }
        };
        Self {
            level: Level::Bad,
            subject,
            found: format!("{server}: {trouble} while this client looked"),
            advice: advice.into(),
        }
    }
}

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is broken.
    Bad,
}
