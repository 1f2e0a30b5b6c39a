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
use crate::name::Name;

/// How much of a line's capacity a claim needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// All of it: a mutex, or the writer of a read/write lock.
    Exclusive,
    /// One reader among many.
    Shared,
    /// `take` permits of a semaphore of `of`; everybody on the name must say the same `of`.
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

/// A claim's unguessable id: whoever knows it owns the claim. Never shown to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A fresh token from the thread's cryptographic generator.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
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

/// Who makes a claim: a random identity, and a label for people.
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

    /// A new holder with a fresh identity and a label of the caller's.
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

/// Text that travels with a claim for others to read: up to 4 KiB of UTF-8 without NUL, which
/// some stores cannot keep.
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

    /// The text; empty where there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// A time to live within bounds: 100 ms to 24 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// Below this a busy machine's scheduling alone would lose the lease.
    pub const MIN: Duration = Duration::from_millis(100);
    /// Above this a crashed holder would block the others for longer than anybody waits.
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

    /// How long a waiting claim lives without a heartbeat: as long as a lease, but never so long
    /// that a waiter that died holds up the line for more than ten seconds.
    pub fn patience(self) -> Duration {
        self.0.min(Duration::from_secs(10))
    }
}

/// How long before its end in the store a claim that the store keeps for `span` ends for its
/// owner: 1 % + 2 ms, for clocks that run at slightly different rates and a thread that is
/// scheduled a little late.
pub(crate) fn margin(span: Duration) -> Duration {
    // Spans are far below the 584 years that fit.
    Duration::from_nanos(span.as_nanos() as u64 / 100 + 2_000_000)
}

/// What is asked of a store: a place in a name's line.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The line, and the secret that owns the claim.
    pub key: ClaimKey,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// Who asks.
    pub holder: Holder,
    /// For others to read.
    pub note: Note,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// How long the claim stays in line without a heartbeat.
    pub patience: Duration,
    /// Whether to stand in line when it cannot hold at once.
    pub join: bool,
}

/// A claim that somebody else owns, for a store that keeps no more of it than it must.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRef<'a> {
    /// The line.
    pub name: &'a Name,
    /// The secret that owns the claim.
    pub token: Token,
    /// How much of the line's capacity.
    pub mode: Mode,
    /// Who asks.
    pub holder: &'a Holder,
    /// For others to read.
    pub note: &'a Note,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// How long the claim stays in line without a heartbeat.
    pub patience: Duration,
    /// Whether to stand in line when it cannot hold at once.
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
    /// From now on, if it holds.
    pub ttl: Duration,
    /// From now on, if it waits.
    pub patience: Duration,
}

impl Renewal {
    /// How long an exchange of these renewals may take before it counts as failed: so that the
    /// shortest of their leases can be tried again.
    pub fn limit(renewals: &[Renewal]) -> Duration {
        let shortest = renewals.iter().map(|renewal| renewal.ttl).min().unwrap_or_default();
        (shortest / 4).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }
}

/// How a claim stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Held {
        /// Its number: rises in one name's line, for ever.
        fence: u64,
        /// How long it holds without another word, counted from before the request was sent.
        remaining: Duration,
    },
    /// It is in line.
    Queued {
        /// How many claims are before it.
        ahead: usize,
        /// When to ask again although no bell rang.
        retry_in: Duration,
    },
    /// It is not in line.
    Out {
        /// How many claims are in line.
        ahead: usize,
        /// When to ask again although no bell rang.
        retry_in: Duration,
        /// Who holds, if anybody does.
        by: Option<Holder>,
    },
}

/// What became of a claim that was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was in line, and is not any more.
    Released,
    /// It was not there, and nobody holds the name: it expired, or an earlier release whose
    /// answer was lost had removed it.
    AlreadyExpired,
    /// It was not there, and somebody else holds the name.
    TakenBy(Holder),
    /// The lease was entered more than once, and another entry keeps it.
    StillEntered,
}

/// A change of a claim that holds. What is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amendment {
    /// Exclusive to shared; shared to exclusive for whoever is the only one to hold; fewer
    /// permits of the same limit. Everything else is refused.
    pub mode: Option<Mode>,
    /// Another note.
    pub note: Option<Note>,
}

impl Amendment {
    /// Another note.
    pub fn note(note: Note) -> Self {
        Self { mode: None, note: Some(note) }
    }

    /// Another mode.
    pub fn mode(mode: Mode) -> Self {
        Self { mode: Some(mode), note: None }
    }
}

/// What became of an [`Amendment`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amended {
    /// The claim is as asked.
    Done,
    /// The mode cannot be changed so, or not while others hold. Nothing was changed.
    Refused,
    /// The claim does not hold.
    Out {
        /// Who holds, if anybody does.
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
