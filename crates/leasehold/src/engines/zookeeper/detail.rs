//! What stands in a claim's node: who, since when, for how long, the note, and what a handle needs
//! to take up the session. What decides is in the node's name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::rule::claim::{Claim, Holder, HolderId, Note, Token};

use super::nodes::digest;
use super::session::Identity;

/// What a lock of somebody else's is shown as held by.
const FOREIGN: &str = "a client of another library";

/// The first line of a node of ours.
const MARK: &str = "leasehold 1";

/// A claim's data.
#[derive(Debug, Clone)]
pub(super) struct Detail {
    pub(super) holder: Holder,
    pub(super) note: Note,
    /// Without renewal.
    pub(super) ttl: Duration,
    /// By the wall clock of whoever made it, in milliseconds: for people.
    pub(super) joined_ms: u64,
    /// The session's password, for whoever has the claim's token.
    seal: u128,
    /// What its client counted on: how long the session lasted without a word when it was made.
    pub(super) timeout: Duration,
}

impl Detail {
    pub(super) fn of(claim: &Claim, identity: &Identity, timeout: Duration) -> Self {
        Self {
            holder: claim.holder.clone(),
            note: claim.note.clone(),
            ttl: claim.ttl,
            joined_ms: wall_ms(),
            seal: u128::from_be_bytes(identity.password) ^ veil(&claim.key.token, identity.id),
            timeout,
        }
    }

    pub(super) fn foreign() -> Self {
        let holder = Holder::known(HolderId(0), FOREIGN).unwrap_or_else(|_| Holder::fresh());
        let (note, joined_ms) = (Note::default(), wall_ms());
        Self { holder, note, ttl: Duration::MAX, joined_ms, seal: 0, timeout: Duration::ZERO }
    }

    /// What is known of a claim of ours whose data leasehold did not write like this.
    pub(super) fn unreadable() -> Self {
        Self { holder: Holder::unreadable(), ..Self::foreign() }
    }

    pub(super) fn is_unreadable(&self) -> bool {
        self.holder.is_unreadable()
    }

    /// The session of this claim, for whoever has its token.
    pub(super) fn identity(&self, token: &Token, session: i64) -> Identity {
        let password = (self.seal ^ veil(token, session)).to_be_bytes();
        Identity { id: session, password }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (id, label) = (self.holder.id().0, self.holder.label());
        let (ttl, joined, note) = (self.ttl.as_millis(), self.joined_ms, self.note.as_str());
        let (seal, timeout) = (self.seal, self.timeout.as_millis());
        format!("{MARK}\n{id:032x}\n{ttl}\n{timeout}\n{joined}\n{seal:032x}\n{label}\n{note}")
            .into_bytes()
    }

    /// What a node says; one that is not ours is somebody else's.
    pub(super) fn decode(data: &[u8]) -> Self {
        Self::read(data).unwrap_or_else(Self::foreign)
    }

    /// What a node of ours says.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(data).ok()?.splitn(8, '\n');
        if lines.next()? != MARK {
            return None;
        }
        let id = HolderId(u128::from_str_radix(lines.next()?, 16).ok()?);
        let ttl = Duration::from_millis(lines.next()?.parse().ok()?);
        let timeout = Duration::from_millis(lines.next()?.parse().ok()?);
        let joined_ms = lines.next()?.parse().ok()?;
        let seal = u128::from_str_radix(lines.next()?, 16).ok()?;
        let holder = Holder::known(id, lines.next()?).ok()?;
        let note = Note::new(lines.next()?).ok()?;
        Some(Self { holder, note, ttl, joined_ms, seal, timeout })
    }

    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(wall_ms().saturating_sub(self.joined_ms))
    }
}

/// What a password is hidden with: known to whoever has the token, and used for one session once.
fn veil(token: &Token, session: i64) -> u128 {
    let session = session.to_be_bytes();
    u128::from_be_bytes(digest(&[b"session", token.as_bytes(), &session]))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::{ClaimKey, Mode};
    use crate::rule::name::Name;

    const LASTS: Duration = Duration::from_millis(2_304);

    #[test]
    fn data_survives_the_store_and_opens_with_the_token_alone() {
        let token = Token::random();
        let claim = Claim {
            key: ClaimKey { name: Name::new("n").expect("a name"), token },
            mode: Mode::Exclusive,
            holder: Holder::labelled("é 1").expect("a label"),
            note: Note::new("two\nlines\n").expect("a note"),
            ttl: Duration::from_millis(1_500),
            patience: Duration::from_millis(1_500),
            join: true,
        };
        let identity = Identity { id: 77, password: [9; 16] };
        let read = Detail::decode(&Detail::of(&claim, &identity, LASTS).encode());
        assert_eq!((read.holder.label(), read.note.as_str()), ("é 1", "two\nlines\n"));
        assert_eq!((&read.holder, read.ttl), (&claim.holder, claim.ttl));
        assert_eq!(read.timeout, LASTS);
        assert_eq!(read.identity(&token, 77), identity);
        assert_ne!(read.identity(&Token::random(), 77), identity);
    }

    #[test]
    fn any_other_data_is_a_strangers() {
        for value in [&b""[..], b"leasehold 1\nx", b"\xff", b"leader"] {
            assert_eq!(Detail::decode(value).holder.label(), FOREIGN);
        }
    }
}
