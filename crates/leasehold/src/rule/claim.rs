//! The nouns that cross the narrow waist: claims, their keys, modes, holders, notes and bounds.
//!
//! Everything here is checked when it is made, so an engine may rely on it. Nothing here knows a
//! clock or a store.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

use crate::error::{Error, Invalid, Result};
use crate::rule::name::Name;

/// How much of a line's capacity a claim needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// All of the capacity: a mutex, or the writer of a read/write lock.
    Exclusive,
    /// One reader among many.
    Shared,
    /// `take` permits of a semaphore of `of`. All claims on a name must have the same `of`.
    Permits {
        /// How many permits.
        take: u32,
        /// Out of how many.
        of: u32,
    },
}

impl Mode {
    /// The capacity of a line of exclusive and shared claims: more readers than any line may have.
    pub(crate) const LOCK_CAPACITY: u32 = u32::MAX;

    /// The units this claim takes.
    pub fn units(self) -> u32 {
        match self {
            Mode::Exclusive => Self::LOCK_CAPACITY,
            Mode::Shared => 1,
            Mode::Permits { take, .. } => take,
        }
    }

    /// The capacity of the line this claim belongs in.
    pub fn capacity(self) -> u32 {
        match self {
            Mode::Exclusive | Mode::Shared => Self::LOCK_CAPACITY,
            Mode::Permits { of, .. } => of,
        }
    }

    pub(crate) fn checked(self) -> Result<Self> {
        match self {
            // The largest number is the capacity of locks, so that no semaphore can be mistaken
            // for one.
            Mode::Permits { take, of } if take == 0 || take > of || of == u32::MAX => {
                Err(Error::Invalid(Invalid::Permits { take, of }))
            }
            mode => Ok(mode),
        }
    }
}

/// A claim's unguessable id. It proves who owns the claim, so it is never shown to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

/// The beginning of the token of a claim without an owner.
const RETIRED: [u8; 8] = *b"retired\0";

impl Token {
    /// A fresh token from the thread's cryptographic generator.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// A token for a claim that only keeps its name closed. No client learns it, so the claim has
    /// no owner. Readers of the store recognise it by its beginning.
    pub fn retired() -> Self {
        let Self(mut bytes) = Self::random();
        bytes[..RETIRED.len()].copy_from_slice(&RETIRED);
        Self(bytes)
    }

    /// Whether the token belongs to a claim without an owner.
    pub fn is_retired(&self) -> bool {
        self.0.starts_with(&RETIRED)
    }

    /// The token in the bytes a store keeps.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes for the store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// The one who takes claims: a random identity, and a label for people.
///
/// Two holders with the same label are two holders.
#[derive(Clone)]
pub struct Holder {
    id: HolderId,
    label: Arc<str>,
}

/// The identity of a holder, random per client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub u128);

/// The label of the holder in a record that cannot be read.
const UNREADABLE: &str = "unreadable record";

impl HolderId {
    /// The high half of the ids of sessions that are not leasehold's. The low half is the number
    /// of their process.
    pub(crate) const FOREIGN_SESSION: u128 = 0x7067_5f6c_6f63_6b73_0000_0000_0000_0000;

    /// Whether the id stands for a client of another library.
    pub(crate) fn is_foreign(self) -> bool {
        self.0 == 0 || self.0 >> 64 == Self::FOREIGN_SESSION >> 64
    }
}

impl Holder {
    /// The longest label in bytes: a host name (at most 253) and something beside it.
    pub const LABEL_BYTES_MAX: usize = 300;

    /// A new holder with a fresh identity and the default label `HOST:PID:RANDOM`.
    pub fn fresh() -> Self {
        let id = HolderId(rand::rng().next_u64() as u128 | (rand::rng().next_u64() as u128) << 64);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let label = format!("{host}:{}:{:06x}", std::process::id(), id.0 as u32 & 0x00ff_ffff);
        Self { id, label: Arc::from(label) }
    }

    /// A new holder with a fresh identity and the caller's label.
    pub fn labelled(label: impl AsRef<str>) -> Result<Self> {
        Self::known(Self::fresh().id, label)
    }

    /// A holder that exists already, as a store or a parent process names it.
    pub fn known(id: HolderId, label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        let fits = !label.is_empty() && label.len() <= Self::LABEL_BYTES_MAX;
        if !fits || label.chars().any(char::is_control) {
            return Err(Error::Invalid(Invalid::Label));
        }
        Ok(Self { id, label: Arc::from(label) })
    }

    /// The holder in a record that cannot be read.
    #[cfg(any(
        feature = "etcd",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zookeeper"
    ))]
    pub(crate) fn unreadable() -> Self {
        Self { id: HolderId(0), label: Arc::from(UNREADABLE) }
    }

    /// Whether this stands for a record that cannot be read. Clients of other libraries have the
    /// same id.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.id.0 == 0 && &*self.label == UNREADABLE
    }

    /// The same holder with a label that shares no count with this one's.
    pub(crate) fn apart(&self) -> Self {
        Self { id: self.id, label: Arc::from(&*self.label) }
    }

    /// The identity.
    pub fn id(&self) -> HolderId {
        self.id
    }

    /// The label, for people.
    pub fn label(&self) -> &str {
        &self.label
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({:032x} {:?})", self.id.0, self.label())
    }
}

/// Text beside a claim that others can read: up to 4 KiB of UTF-8 without NUL. Some stores cannot
/// keep NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Note(Option<Arc<str>>);

impl Note {
    /// The longest note in bytes: enough for an address and a reason, too little for a payload.
    pub const BYTES_MAX: usize = 4096;

    /// Checks the rule and makes a note. An empty text is no note.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.len() > Self::BYTES_MAX {
            return Err(Error::Invalid(Invalid::NoteTooLong { bytes: text.len() }));
        }
        if text.contains('\0') {
            return Err(Error::Invalid(Invalid::NoteHasNul));
        }
        Ok(Self((!text.is_empty()).then(|| Arc::from(text))))
    }

    /// A note that is JSON.
    #[cfg(feature = "json")]
    pub fn json(note: &impl serde::Serialize) -> Result<Self> {
        let not_json =
            |error: serde_json::Error| Invalid::NoteNotJson { reason: error.to_string() };
        Self::new(serde_json::to_string(note).map_err(not_json)?)
    }

    /// The text; empty where there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// A time to live within bounds: 100 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// With less, a busy machine's scheduling alone would lose the lease.
    pub const MIN: Duration = Duration::from_millis(100);
    /// With more, a crashed holder would block the others for longer than they would wait.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// 30 seconds.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// Checks the bounds.
    pub fn new(ttl: Duration) -> Result<Self> {
        if ttl < Self::MIN || ttl > Self::MAX {
            return Err(Error::Invalid(Invalid::Ttl { ttl }));
        }
        Ok(Self(ttl))
    }

    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }

    /// How long a waiting claim stays in line without a heartbeat: for its ttl, and at most for
    /// ten seconds. So a dead waiter holds up the line for at most ten seconds.
    pub fn patience(self) -> Duration {
        self.0.min(Duration::from_secs(10))
    }
}

/// The safety margin of a claim that the store keeps for `span`: 1 % + 2 ms. The claim ends that
/// much earlier for its owner, because clock rates differ a little and threads may run late.
pub(crate) fn margin(span: Duration) -> Duration {
    // Spans are far below the 584 years that fit.
    Duration::from_nanos(span.as_nanos() as u64 / 100 + 2_000_000)
}

/// A request to a store for a place in a name's line.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The line, and the secret that owns the claim.
    pub key: ClaimKey,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// The holder.
    pub holder: Holder,
    /// Text for others to read.
    pub note: Note,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// How long the claim stays in line without a heartbeat.
    pub patience: Duration,
    /// Whether to wait in line if it cannot hold at once.
    pub join: bool,
}

/// A borrowed [`Claim`], for a store that copies only the parts that it keeps.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRef<'a> {
    /// The line.
    pub name: &'a Name,
    /// The secret that owns the claim.
    pub token: Token,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// The holder.
    pub holder: &'a Holder,
    /// Text for others to read.
    pub note: &'a Note,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// How long the claim stays in line without a heartbeat.
    pub patience: Duration,
    /// Whether to wait in line if it cannot hold at once.
    pub join: bool,
}

impl<'a> From<&'a Claim> for ClaimRef<'a> {
    fn from(claim: &'a Claim) -> Self {
        Self {
            name: &claim.key.name,
            token: claim.key.token,
            mode: claim.mode,
            holder: &claim.holder,
            note: &claim.note,
            ttl: claim.ttl,
            patience: claim.patience,
            join: claim.join,
        }
    }
}

/// Names one claim: its line and its token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// The line.
    pub name: Name,
    /// The claim in it.
    pub token: Token,
}

/// Asks to keep a claim alive: for `ttl` if it holds, for `patience` if it waits.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The claim.
    pub key: ClaimKey,
    /// From now on, if it holds. A lease that lasts longer anyway keeps its end: several clients
    /// may know the claim, and each counts on the end that it heard of.
    pub ttl: Duration,
    /// From now on, if it waits.
    pub patience: Duration,
}

impl Renewal {
    /// How long an exchange of these renewals may take before it counts as failed. The limit
    /// leaves the shortest of their leases time for another try.
    pub fn limit(renewals: &[Renewal]) -> Duration {
        let shortest = renewals.iter().map(|renewal| renewal.ttl).min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}

/// One stay of a claim in its line.
///
/// A claim that loses its place and joins the line again keeps its token and gets another place.
/// A message about one place says nothing about the next one, however late it arrives. So every
/// message that says that a claim waits or holds names the place. The reader compares it with the
/// claim's present place before it believes the message. The same holds for an engine's own
/// records: code that writes about a claim after an await names the place that it read before.
///
/// The number is the engine's. Most engines use the fence that the claim got when it joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64);

impl Place {
    /// No place: the claim waits, but is not in the store's line. No bell can grant it.
    pub const NONE: Place = Place(0);

    /// The place with this number, which no other stay of the same claim has. Not 0.
    pub fn new(number: u64) -> Self {
        debug_assert_ne!(number, 0, "0 is no place");
        Self(number)
    }

    /// The engine's number of this place.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How a claim stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Held {
        /// Its number. On one name, each later claim has a greater number.
        fence: u64,
        /// How long it holds without a renewal, counted from before the request was sent.
        remaining: Duration,
    },
    /// It is in line.
    Queued {
        /// Its place. A bell grants the claim only if it names the same place.
        place: Place,
        /// How many claims are before it.
        ahead: usize,
        /// After this time the waiter asks again, although no bell rang.
        retry_in: Duration,
    },
    /// It is not in line.
    Out {
        /// How many claims are in line.
        ahead: usize,
        /// After this time the client may ask again.
        retry_in: Duration,
        /// The present holder, if there is one.
        by: Option<Holder>,
    },
}

/// The outcome of giving a claim back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was in line, and is not any more. Also the answer to a repeated request whose first
    /// answer was lost, if the claim is gone by then.
    Released,
    /// It was not there, and the name is free: the claim expired. With a release by handle, an
    /// earlier release whose answer was lost may have removed it.
    AlreadyExpired,
    /// It was not there, and another holder has the name.
    TakenBy(Holder),
    /// The lease was entered more than once, and another entry keeps it.
    StillEntered,
}

/// A change of a claim that holds. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amendment {
    /// Allowed are: exclusive to shared; shared to exclusive for the only holder; fewer permits
    /// of the same limit. The store refuses everything else.
    pub mode: Option<Mode>,
    /// The new note.
    pub note: Option<Note>,
}

impl Amendment {
    /// A change of the note.
    pub fn note(note: Note) -> Self {
        Self { mode: None, note: Some(note) }
    }

    /// A change of the mode.
    pub fn mode(mode: Mode) -> Self {
        Self { mode: Some(mode), note: None }
    }
}

/// The outcome of an [`Amendment`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amended {
    /// The claim is changed.
    Done,
    /// This change of mode is never allowed, or not while others hold. Nothing was changed.
    Refused,
    /// The claim does not hold.
    Out {
        /// The present holder, if there is one.
        by: Option<Holder>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_bounds_are_inclusive() {
        assert!(Ttl::new(Ttl::MIN).is_ok());
        assert!(Ttl::new(Ttl::MAX).is_ok());
        let outside = [Duration::ZERO, Duration::from_nanos(1), Ttl::MAX + Duration::from_nanos(1)];
        for ttl in outside {
            assert!(matches!(Ttl::new(ttl), Err(Error::Invalid(Invalid::Ttl { .. }))));
        }
    }

    #[test]
    fn permits_outside_their_limit_are_refused() {
        for (take, of) in [(0, 3), (4, 3), (0, 0), (1, u32::MAX)] {
            assert!(Mode::Permits { take, of }.checked().is_err(), "{take}/{of}");
        }
        assert!(Mode::Permits { take: 3, of: 3 }.checked().is_ok());
    }

    #[test]
    fn a_token_never_shows_in_debug_output() {
        assert_eq!(format!("{:?}", Token::random()), "Token(secret)");
    }

    #[test]
    fn retired_tokens_differ_and_are_told_from_others() {
        let (one, two) = (Token::retired(), Token::retired());
        assert!(one.is_retired() && two.is_retired() && one != two);
        assert!(!Token::random().is_retired());
    }

    #[test]
    fn holders_with_one_label_are_two_holders() {
        let one = Holder::labelled("pod").expect("a good label");
        let two = Holder::labelled("pod").expect("a good label");
        assert_ne!(one, two);
    }

    #[test]
    fn a_note_may_have_4096_bytes_and_no_more() {
        assert!(Note::new("x".repeat(4096)).is_ok());
        assert!(Note::new("x".repeat(4097)).is_err());
        assert!(matches!(Note::new("a\0"), Err(Error::Invalid(Invalid::NoteHasNul))));
    }
}
