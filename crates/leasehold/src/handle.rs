//! A lease as one line of text, which another process can adopt.
//!
//! The text is enough to own the lease: treat it like a password. It has a checksum, so the reader
//! can tell a cut or mistyped text from a stale one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, Invalid, Result};
use crate::rule::claim::{ClaimKey, Holder, HolderId, Token, Ttl};
use crate::rule::fence::Fence;
use crate::rule::name::Name;

const MARK: &str = "lh1_";

/// A lease's portable form: [`Lease::handle`](crate::Lease::handle) makes one,
/// [`Client::adopt`](crate::Client::adopt) takes it up.
///
/// `Display` gives the text; `Debug` hides the secret in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    pub(crate) store_id: u128,
    pub(crate) key: ClaimKey,
    pub(crate) fence: u64,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Holder,
}

impl Handle {
    /// The name of the lock.
    pub fn name(&self) -> &Name {
        &self.key.name
    }

    /// The lease's fence.
    pub fn fence(&self) -> Fence {
        self.fence.into()
    }

    /// The time to live the lease was taken with.
    pub fn ttl(&self) -> Duration {
        self.ttl.get()
    }

    /// The holder that took the lease.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.holder.label().as_bytes();
        let mut bytes = Vec::with_capacity(96);
        bytes.extend(self.store_id.to_be_bytes());
        bytes.extend(self.key.token.as_bytes());
        bytes.extend(self.fence.to_be_bytes());
        bytes.extend((self.ttl.get().as_millis() as u64).to_be_bytes());
        bytes.extend(self.holder.id().0.to_be_bytes());
        bytes.extend((label.len() as u16).to_be_bytes());
        bytes.extend(label);
        bytes.extend(self.key.name.as_str().as_bytes());
        bytes.extend(checksum(&bytes).to_be_bytes());
        write!(f, "{MARK}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Handle");
        debug.field("name", self.name()).field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason| Error::Invalid(Invalid::Handle { reason });
        let no_mark = || bad("it does not begin with `lh1_`");
        let body = text.trim().strip_prefix(MARK).ok_or_else(no_mark)?;
        let bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| bad("it has foreign characters"))?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| bad("it is too short"))?;
        if checksum(body) != u32::from_be_bytes(*sum) {
            return Err(bad("its checksum does not fit; was it cut?"));
        }
        let mut rest = Reader(body);
        let parsed = (|| {
            let store_id = u128::from_be_bytes(rest.take()?);
            let token = Token::from_bytes(rest.take()?);
            let fence = u64::from_be_bytes(rest.take()?);
            let ttl = Ttl::new(Duration::from_millis(u64::from_be_bytes(rest.take()?))).ok()?;
            let id = HolderId(u128::from_be_bytes(rest.take()?));
            let label_bytes = u16::from_be_bytes(rest.take()?);
            let label = rest.text(usize::from(label_bytes))?;
            let holder = Holder::known(id, label).ok()?;
            let name_bytes = rest.0.len();
            let name = Name::new(rest.text(name_bytes)?).ok()?;
            Some(Handle { store_id, key: ClaimKey { name, token }, fence, ttl, holder })
        })();
        parsed.ok_or_else(|| bad("its parts do not fit together"))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn text(&mut self, length: usize) -> Option<&'a str> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        std::str::from_utf8(head).ok()
    }
}

/// FNV-1a. It catches cut and mistyped text, not forgeries: a forger would need the token.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        Handle {
            store_id: 7,
            key: ClaimKey { name: Name::new("job:é").expect("good"), token: Token::random() },
            fence: 42,
            ttl: Ttl::DEFAULT,
            holder: Holder::labelled("host:1:a").expect("good"),
        }
    }

    #[test]
    fn a_handle_survives_being_written_and_read() {
        let handle = handle();
        let read: Handle = handle.to_string().parse().expect("what was written can be read");
        assert_eq!(read, handle);
        assert_eq!(read.holder.label(), "host:1:a");
    }

    #[test]
    fn a_cut_or_changed_handle_is_refused() {
        let text = handle().to_string();
        for length in 0..text.len() {
            assert!(text[..length].parse::<Handle>().is_err(), "cut at {length}");
        }
        let middle = text.len() / 2;
        let other = if &text[middle..=middle] == "A" { "B" } else { "A" };
        let changed = format!("{}{other}{}", &text[..middle], &text[middle + 1..]);
        assert!(changed.parse::<Handle>().is_err());
        assert!("garbage".parse::<Handle>().is_err());
    }

    #[test]
    fn debug_output_hides_the_token() {
        let text = format!("{:?}", handle());
        assert!(text.contains("job:é") && !text.contains("token"), "{text}");
    }
}
