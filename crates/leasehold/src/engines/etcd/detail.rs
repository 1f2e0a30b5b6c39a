//! What stands in a claim's value: its token, who, since when, for how long, and the note. For
//! people and for whoever takes the claim up by its handle; what decides is in the key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::rule::claim::{Claim, Holder, HolderId, Note, Token};

/// What a lock of somebody else's is shown as held by.
const FOREIGN: &str = "a client of another library";

/// The first line of a value of ours.
const MARK: &str = "leasehold 1";

/// A claim's value.
#[derive(Debug, Clone)]
pub(super) struct Detail {
    /// Whose claim it is: a key is used again.
    pub(super) token: Token,
    pub(super) holder: Holder,
    pub(super) note: Note,
    /// Without renewal.
    pub(super) ttl: Duration,
    /// By the wall clock of whoever made it, in milliseconds: for people.
    pub(super) joined_ms: u64,
}

impl Detail {
    pub(super) fn of(claim: &Claim) -> Self {
        Self {
            token: claim.key.token,
            holder: claim.holder.clone(),
            note: claim.note.clone(),
            ttl: claim.ttl,
            joined_ms: wall_ms(),
        }
    }

    pub(super) fn foreign() -> Self {
        let holder = Holder::known(HolderId(0), FOREIGN).unwrap_or_else(|_| Holder::fresh());
        let (token, note) = (Token::from_bytes([0; 16]), Note::default());
        Self { token, holder, note, ttl: Duration::MAX, joined_ms: wall_ms() }
    }

    /// What is known of a claim of ours whose value leasehold did not write like this.
    pub(super) fn unreadable() -> Self {
        Self { holder: Holder::unreadable(), ..Self::foreign() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (id, label) = (self.holder.id().0, self.holder.label());
        let (ttl, joined, note) = (self.ttl.as_millis(), self.joined_ms, self.note.as_str());
        let token = u128::from_be_bytes(*self.token.as_bytes());
        format!("{MARK}\n{token:032x}\n{id:032x}\n{ttl}\n{joined}\n{label}\n{note}").into_bytes()
    }

    /// What a value says; one that is not ours is somebody else's.
    pub(super) fn decode(value: &[u8]) -> Self {
        Self::read(value).unwrap_or_else(Self::foreign)
    }

    /// What a value of ours says.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(value).ok()?.splitn(7, '\n');
        if lines.next()? != MARK {
            return None;
        }
        let token = Token::from_bytes(u128::from_str_radix(lines.next()?, 16).ok()?.to_be_bytes());
        let id = HolderId(u128::from_str_radix(lines.next()?, 16).ok()?);
        let ttl = Duration::from_millis(lines.next()?.parse().ok()?);
        let joined_ms = lines.next()?.parse().ok()?;
        let holder = Holder::known(id, lines.next()?).ok()?;
        Some(Self { token, holder, note: Note::new(lines.next()?).ok()?, ttl, joined_ms })
    }

    /// The token that a value names.
    pub(super) fn token(value: &[u8]) -> Option<Token> {
        let rest = value.strip_prefix(MARK.as_bytes())?.strip_prefix(b"\n")?;
        let hex = std::str::from_utf8(rest.get(..32)?).ok()?;
        Some(Token::from_bytes(u128::from_str_radix(hex, 16).ok()?.to_be_bytes()))
    }

    pub(super) fn age(&self) -> Duration {
        Duration::from_millis(wall_ms().saturating_sub(self.joined_ms))
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_the_store_with_whatever_is_in_its_note() {
        let token = Token::random();
        let detail = Detail {
            token,
            holder: Holder::labelled("é 1").expect("a label"),
            note: Note::new("two\nlines\n").expect("a note"),
            ttl: Duration::from_millis(1_500),
            joined_ms: 7,
        };
        let read = Detail::decode(&detail.encode());
        assert_eq!((read.token, Detail::token(&detail.encode())), (token, Some(token)));
        assert_eq!((read.holder.label(), read.note.as_str()), ("é 1", "two\nlines\n"));
        assert_eq!((read.holder, read.ttl, read.joined_ms), (detail.holder, detail.ttl, 7));
    }

    #[test]
    fn any_other_value_is_a_strangers() {
        for value in [&b""[..], b"leasehold 1\nx", b"\xff", b"leader"] {
            assert_eq!(Detail::decode(value).holder.label(), FOREIGN);
            assert_eq!(Detail::token(value), None);
        }
    }
}
