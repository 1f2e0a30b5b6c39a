//! What this client has and waits for, on which session, and until when. No I/O, no clock.
//!
//! PostgreSQL lets a session take the same lock again and again. Two claims of one client must
//! exclude each other all the same, so a session has a key at most once; only readers may share
//! one, and only when no further session can be opened.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::error::Error;
use crate::rule::claim::{self, Claim, ClaimKey, Holder, Note, Token};

use super::keys::AdvisoryKey;
use super::session::{Session, Shared};

/// How long a key that somebody had to wait for counts as contended: whoever comes within this
/// time waits at once, instead of trying first.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// The most keys that are remembered as contended.
const CONTENDED_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) seats: BTreeMap<u64, Seat>,
    pub(super) claims: HashMap<Token, Entry>,
    keys: HashMap<AdvisoryKey, Vec<Token>>,
    /// How many sessions are being opened.
    pub(super) opening: usize,
    /// Claims that were lost with their session, until the keeper asks.
    pub(super) losses: Vec<ClaimKey>,
    contended: HashMap<AdvisoryKey, Moment>,
}

/// A session, and what is on it.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) session: Shared,
    /// It waits for a lock, and can do nothing else.
    pub(super) blocked: bool,
    /// How many claims have each key.
    holds: HashMap<AdvisoryKey, u32>,
    /// After how long a silence the server ends it.
    pub(super) timeout_ms: u64,
}

/// One claim of this client.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: ClaimKey,
    pub(super) on: AdvisoryKey,
    pub(super) shared: bool,
    pub(super) holder: Holder,
    pub(super) note: Note,
    pub(super) ttl: Duration,
    pub(super) since: Moment,
    /// Its row in `advisory_claims`, and what is in it.
    pub(super) row: i64,
    pub(super) written: Written,
    pub(super) place: Place,
}

/// What others can read about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Written {
    Nothing,
    Waiting,
    Held,
}

/// Where a claim is.
#[derive(Debug)]
pub(super) enum Place {
    /// On its way to this session; its answer is not read yet.
    Taking { session: u64 },
    /// This session waits for it.
    Waiting { session: u64, ended: Arc<Notify>, leaving: bool },
    /// This session has it.
    Held {
        session: u64,
        fence: u64,
        /// Until when the server keeps it for certain.
        kept_until: Moment,
        /// When this client gives it back by itself.
        expires: Moment,
    },
    /// It is being given back; what was sent is carried out before anything later.
    Leaving { session: u64, why: Leave },
    /// Waiting for it failed.
    Failed(Error),
    /// Its session ended.
    Gone,
}

/// Why a claim is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    Asked,
    /// Its time was over before anybody asked.
    Expired,
}

/// What to do to get a session.
#[derive(Debug)]
pub(super) enum Pick {
    /// This one; the timeout to set first, if it is another than before.
    Seat(Shared, Option<u64>),
    /// Open one more.
    Open,
    /// There are too many.
    Full,
}

impl Seat {
    pub(super) fn new(session: Session, timeout_ms: u64) -> Self {
        Self { session: Arc::new(session), blocked: false, holds: HashMap::new(), timeout_ms }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.blocked && self.holds.is_empty()
    }

    fn is_usable(&self) -> bool {
        !self.blocked && !self.session.is_over()
    }
}

impl Entry {
    /// The claim's place in line. A claim that joins again is another entry.
    pub(super) fn in_line(&self) -> claim::Place {
        claim::Place::new(self.row.unsigned_abs())
    }

    pub(super) fn new(claim: &Claim, on: AdvisoryKey, shared: bool, now: Moment) -> Self {
        Self {
            key: claim.key.clone(),
            on,
            shared,
            holder: claim.holder.clone(),
            note: claim.note.clone(),
            ttl: claim.ttl,
            since: now,
            row: rand::random_range(1..i64::MAX),
            written: Written::Nothing,
            place: Place::Taking { session: 0 },
        }
    }

    /// How much of its time is left; all of it while it waits.
    pub(super) fn left(&self, now: Moment) -> Duration {
        match self.place {
            Place::Held { expires, .. } => expires.since(now).min(self.ttl),
            _ => self.ttl,
        }
    }

    pub(super) fn session(&self) -> Option<u64> {
        match self.place {
            Place::Taking { session }
            | Place::Waiting { session, .. }
            | Place::Held { session, .. }
            | Place::Leaving { session, .. } => Some(session),
            Place::Failed(_) | Place::Gone => None,
        }
    }

    /// What should be written about it.
    pub(super) fn to_write(&self) -> Written {
        match self.place {
            Place::Held { .. } => Written::Held,
            Place::Waiting { .. } => Written::Waiting,
            _ => Written::Nothing,
        }
    }
}

impl Book {
    /// A claim, if it is the one of this name.
    pub(super) fn entry(&mut self, key: &ClaimKey) -> Option<&mut Entry> {
        self.claims.get_mut(&key.token).filter(|entry| entry.key.name == key.name)
    }

    /// The claims of this client on a key.
    pub(super) fn on(&self, key: AdvisoryKey) -> impl Iterator<Item = &Entry> {
        let tokens = self.keys.get(&key).into_iter().flatten();
        tokens.filter_map(|token| self.claims.get(token))
    }

    /// A claim of this client that stands in the way of another: one that holds or is about to.
    /// One that is being given back may be gone for the server already, which is asked then.
    pub(super) fn obstacle(&self, on: AdvisoryKey, shared: bool) -> Option<&Entry> {
        let there =
            |entry: &&Entry| matches!(entry.place, Place::Held { .. } | Place::Taking { .. });
        self.on(on).filter(there).find(|entry| !(shared && entry.shared))
    }

    /// A session to take a lock on; the claim is on it from here on.
    pub(super) fn seat_for(&mut self, entry: Entry, timeout_ms: u64, most: usize) -> Pick {
        let (on, total) = (entry.on, self.seats.len() + self.opening);
        let free = |seat: &&Seat| seat.is_usable() && !seat.holds.contains_key(&on);
        let usable = || self.seats.values().filter(free);
        let same = |seat: &&Seat| seat.timeout_ms == timeout_ms;
        let chosen = usable()
            .find(same)
            .or_else(|| usable().find(|seat| seat.is_idle()))
            .map(|seat| seat.session.id);
        let chosen = match chosen {
            None if total < most => return Pick::Open,
            None => {
                let longer = usable().filter(|seat| seat.timeout_ms >= timeout_ms);
                let any = longer.min_by_key(|seat| seat.timeout_ms).or_else(|| usable().next());
                any.map(|seat| seat.session.id).or_else(|| self.stack(on, entry.shared))
            }
            chosen => chosen,
        };
        match chosen {
            Some(session) => self.seat(entry, Place::Taking { session }, session, timeout_ms),
            None => Pick::Full,
        }
    }

    /// A session on which a reader may share the key with others.
    fn stack(&self, on: AdvisoryKey, shared: bool) -> Option<u64> {
        let only_readers = |seat: &&Seat| {
            let mut there = self.on(on).filter(|e| e.session() == Some(seat.session.id));
            there.all(|entry| entry.shared && !matches!(entry.place, Place::Leaving { .. }))
        };
        let mut usable = self.seats.values().filter(|seat| shared && seat.is_usable());
        usable.find(only_readers).map(|seat| seat.session.id)
    }

    /// A session of its own to wait on; the claim is on it from here on.
    pub(super) fn seat_to_wait(&mut self, entry: Entry, timeout_ms: u64, most: usize) -> Pick {
        let idle = || self.seats.values().filter(|seat| seat.is_idle() && seat.is_usable());
        let same = idle().find(|seat| seat.timeout_ms == timeout_ms);
        let Some(session) = same.or_else(|| idle().next()).map(|seat| seat.session.id) else {
            let room = self.seats.len() + self.opening < most;
            return if room { Pick::Open } else { Pick::Full };
        };
        let place = Place::Waiting { session, ended: Arc::default(), leaving: false };
        let pick = self.seat(entry, place, session, timeout_ms);
        self.seats.get_mut(&session).expect("it was just found").blocked = true;
        pick
    }

    fn seat(&mut self, mut entry: Entry, place: Place, session: u64, timeout_ms: u64) -> Pick {
        let seat = self.seats.get_mut(&session).expect("it was just found");
        // Alone it has its own time; with others there, the longest.
        let wanted = match seat.holds.is_empty() {
            true => timeout_ms,
            false => timeout_ms.max(seat.timeout_ms),
        };
        let set = (wanted != seat.timeout_ms).then_some(wanted);
        seat.timeout_ms = wanted;
        *seat.holds.entry(entry.on).or_default() += 1;
        entry.place = place;
        let pick = Pick::Seat(Arc::clone(&seat.session), set);
        self.keys.entry(entry.on).or_default().push(entry.key.token);
        self.claims.insert(entry.key.token, entry);
        pick
    }

    /// Takes a claim out, and off its session.
    pub(super) fn remove(&mut self, token: &Token) -> Option<Entry> {
        let entry = self.claims.remove(token)?;
        if let Some(tokens) = self.keys.get_mut(&entry.on) {
            tokens.retain(|other| other != token);
            if tokens.is_empty() {
                self.keys.remove(&entry.on);
            }
        }
        if let Some(seat) = entry.session().and_then(|session| self.seats.get_mut(&session)) {
            if let Some(count) = seat.holds.get_mut(&entry.on) {
                *count -= 1;
                if *count == 0 {
                    seat.holds.remove(&entry.on);
                }
            }
            if matches!(entry.place, Place::Waiting { .. }) {
                seat.blocked = false;
            }
        }
        Some(entry)
    }

    /// How many other claims share this one's key on its session.
    pub(super) fn sharers(&self, entry: &Entry) -> u32 {
        let seat = entry.session().and_then(|session| self.seats.get(&session));
        let holds = seat.and_then(|seat| seat.holds.get(&entry.on)).copied();
        holds.unwrap_or(1).saturating_sub(1)
    }

    /// A session is over: everything on it is gone. Returns who waits to hear of it.
    pub(super) fn lose_session(&mut self, session: u64) -> Vec<Token> {
        if self.seats.remove(&session).is_none() {
            return Vec::new();
        }
        let mut rung = Vec::new();
        for entry in self.claims.values_mut().filter(|entry| entry.session() == Some(session)) {
            match &entry.place {
                Place::Held { .. } => self.losses.push(entry.key.clone()),
                Place::Waiting { ended, .. } => {
                    ended.notify_waiters();
                    rung.push(entry.key.token);
                }
                _ => {}
            }
            entry.place = Place::Gone;
        }
        rung
    }

    /// The longest ttl on a session, for its timeout.
    pub(super) fn longest_ms(&self, session: u64) -> Option<u64> {
        let on = self.claims.values().filter(|entry| entry.session() == Some(session));
        on.map(|entry| timeout_ms(entry.ttl)).max()
    }

    pub(super) fn is_contended(&self, on: AdvisoryKey, now: Moment) -> bool {
        self.contended.get(&on).is_some_and(|until| *until > now)
    }

    pub(super) fn contend(&mut self, on: AdvisoryKey, now: Moment) {
        if self.contended.len() >= CONTENDED_MAX {
            self.contended.retain(|_, until| *until > now);
        }
        if self.contended.len() < CONTENDED_MAX {
            self.contended.insert(on, now + CONTENDED_FOR);
        }
    }
}

/// After how long a silence the server ends a session: a tenth and a moment after the ttl. Whoever
/// is alive gives back what expires by himself, in time, and keeps his session.
pub(super) fn timeout_ms(ttl: Duration) -> u64 {
    let timeout = ttl + ttl / 10 + Duration::from_millis(100);
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
