//! Where things are in etcd: the keys of a name's claims, and the way back from a key to its name.
//!
//! A claim is the key `NAME/SUFFIX`, as those of etcd's own lock clients are. A key's name is all
//! before its last slash, so `a` and `a/b` are two lines, although etcd's prefix `a/` holds both.

use crate::rule::claim::Mode;
use crate::rule::name::Name;

use super::slots::Slot;
use super::wire::Span;

/// What the suffix of a claim begins with, by its mode. None of them is a hexadecimal digit, with
/// which the suffixes of etcd's own clients begin.
const EXCLUSIVE: u8 = b'x';
const SHARED: u8 = b's';
const PERMITS: u8 = b'p';

/// How names become keys.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    prefix: String,
}

/// Whose a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Ours {
        slot: Slot,
        mode: Mode,
    },
    /// Somebody else's lock client; what it has is exclusive.
    Foreign,
}

impl Owner {
    pub(super) fn mode(self) -> Mode {
        match self {
            Owner::Ours { mode, .. } => mode,
            Owner::Foreign => Mode::Exclusive,
        }
    }
}

impl Layout {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Everything of this store.
    pub(super) fn all(&self) -> Span {
        Span::prefix(self.prefix.as_bytes())
    }

    /// All keys whose names begin so.
    pub(super) fn names(&self, begin: &str) -> Span {
        Span::prefix(format!("{}{begin}", self.prefix).as_bytes())
    }

    /// A name's line, with all names below it.
    pub(super) fn line(&self, name: &Name) -> Span {
        Span::prefix(&self.stem(name))
    }

    /// Those parts of a name's line in which nobody may be if a claim is to hold at once.
    pub(super) fn in_the_way(&self, name: &Name, mode: Mode) -> Vec<Span> {
        match mode {
            Mode::Shared => self.around(name, &[SHARED]),
            _ => vec![self.line(name)],
        }
    }

    /// Those parts of a name's line in which claims of another kind are.
    pub(super) fn other_kinds(&self, name: &Name, mode: Mode) -> Vec<Span> {
        match mode {
            Mode::Permits { of, .. } => self.around(name, &permits_of(of)),
            _ => {
                let mut stem = self.stem(name);
                stem.push(PERMITS);
                vec![Span::prefix(&stem)]
            }
        }
    }

    /// A name's line without the suffixes that begin so.
    fn around(&self, name: &Name, suffix: &[u8]) -> Vec<Span> {
        let mut stem = self.stem(name);
        stem.extend(suffix);
        let (line, hole) = (self.line(name), Span::prefix(&stem));
        vec![Span { from: line.from, to: hole.from }, Span { from: hole.to, to: line.to }]
    }

    fn stem(&self, name: &Name) -> Vec<u8> {
        format!("{}{}/", self.prefix, name.as_str()).into_bytes()
    }

    /// The key of a claim.
    pub(super) fn key(&self, name: &Name, slot: Slot, mode: Mode) -> Vec<u8> {
        let mut key = self.stem(name);
        let hex = slot.to_hex();
        match mode {
            Mode::Permits { take, of } => {
                key.extend(permits_of(of));
                key.extend(hex.as_bytes());
                key.extend(format!("{take:08x}").as_bytes());
            }
            Mode::Shared => {
                key.push(SHARED);
                key.extend(hex.as_bytes());
            }
            _ => {
                key.push(EXCLUSIVE);
                key.extend(hex.as_bytes());
            }
        }
        key
    }

    /// The name a key belongs to, and whose it is; `None` if it is no claim.
    pub(super) fn read(&self, key: &[u8]) -> Option<(Name, Owner)> {
        let key = key.strip_prefix(self.prefix.as_bytes())?;
        let slash = key.iter().rposition(|byte| *byte == b'/')?;
        let name = Name::new(std::str::from_utf8(&key[..slash]).ok()?).ok()?;
        Some((name, owner(&key[slash + 1..])))
    }

    /// Whose a key of this line is; `None` if it belongs to a name below.
    pub(super) fn owner(&self, name: &Name, key: &[u8]) -> Option<Owner> {
        let suffix = key.strip_prefix(self.stem(name).as_slice())?;
        (!suffix.contains(&b'/')).then(|| owner(suffix))
    }

    /// A key of the store's own. Without a slash it is no claim, and no lock client sees it.
    pub(super) fn own(&self, what: &str) -> Vec<u8> {
        format!("{}leasehold:{what}", self.prefix).into_bytes()
    }
}

fn permits_of(of: u32) -> Vec<u8> {
    format!("{}{of:08x}", char::from(PERMITS)).into_bytes()
}

fn owner(suffix: &[u8]) -> Owner {
    ours(suffix).map_or(Owner::Foreign, |(slot, mode)| Owner::Ours { slot, mode })
}

fn ours(suffix: &[u8]) -> Option<(Slot, Mode)> {
    let suffix = std::str::from_utf8(suffix).ok()?;
    let (kind, rest) = suffix.split_at_checked(1)?;
    match (kind.as_bytes(), rest.len()) {
        ([EXCLUSIVE], 32) => Some((Slot::from_hex(rest)?, Mode::Exclusive)),
        ([SHARED], 32) => Some((Slot::from_hex(rest)?, Mode::Shared)),
        ([PERMITS], 48) => {
            let (of, rest) = rest.split_at_checked(8)?;
            let (hex, take) = rest.split_at_checked(32)?;
            let (of, take) = (number(of)?, number(take)?);
            Some((Slot::from_hex(hex)?, Mode::Permits { take, of }))
        }
        _ => None,
    }
}

fn number(hex: &str) -> Option<u32> {
    u32::from_str_radix(hex, 16).ok()
}

/// Whether a key is one of etcd's own lock clients: its suffix is the id of its lease.
pub(super) fn is_session(key: &[u8], lease: i64) -> bool {
    lease != 0 && key.ends_with(format!("/{lease:x}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::claim::Token;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a good name")
    }

    #[test]
    fn a_key_leads_back_to_its_name_and_claim() {
        let layout = Layout::new("p/".into());
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 3, of: 700 }];
        for text in ["a", "a/b", "/", "a//", "é", "/my-lock/"] {
            for mode in modes {
                let slot = Slot::of(&Token::random());
                let key = layout.key(&name(text), slot, mode);
                assert_eq!(layout.read(&key), Some((name(text), Owner::Ours { slot, mode })));
                assert_eq!(layout.owner(&name(text), &key), Some(Owner::Ours { slot, mode }));
            }
        }
    }

    #[test]
    fn keys_of_names_below_are_not_in_the_line() {
        let layout = Layout::new(String::new());
        let below = layout.key(&name("a/b"), Slot::of(&Token::random()), Mode::Exclusive);
        assert!(below.starts_with(&layout.line(&name("a")).from));
        assert_eq!(layout.owner(&name("a"), &below), None);
    }

    #[test]
    fn keys_of_other_clients_are_foreign_and_ours_are_not_theirs() {
        let layout = Layout::new(String::new());
        assert_eq!(layout.owner(&name("demo"), b"demo/7293a1de2b830b05"), Some(Owner::Foreign));
        assert!(is_session(b"demo/7293a1de2b830b05", 0x7293_a1de_2b83_0b05));
        assert!(!is_session(b"registry/pods", 5));
        assert_eq!(layout.read(&layout.own("store")), None);
    }

    #[test]
    fn what_is_around_a_mode_leaves_out_just_its_own() {
        let layout = Layout::new(String::new());
        let (one, mode) = (name("n"), Mode::Permits { take: 1, of: 3 });
        let inside = |key: &[u8], spans: &[Span]| {
            spans.iter().any(|span| *span.from <= *key && *key < *span.to)
        };
        let slot = Slot::of(&Token::from_bytes([0xff; 16]));
        let key = |mode| layout.key(&one, slot, mode);
        let others = layout.other_kinds(&one, mode);
        assert!(!inside(&key(mode), &others));
        assert!(inside(&key(Mode::Permits { take: 1, of: 4 }), &others));
        assert!(inside(&key(Mode::Exclusive), &others) && inside(b"n/1f", &others));
        let others = layout.other_kinds(&one, Mode::Shared);
        assert!(inside(&key(mode), &others) && !inside(&key(Mode::Exclusive), &others));
        let way = layout.in_the_way(&one, Mode::Shared);
        assert!(!inside(&key(Mode::Shared), &way) && inside(&key(Mode::Exclusive), &way));
        assert!(inside(b"n/1f", &way));
    }
}
