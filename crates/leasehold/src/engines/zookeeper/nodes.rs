//! Where things are in ZooKeeper: the node of a name, the nodes of its claims, and the way back.
//!
//! A claim's node carries in its name all that decides: its mode, its attempt, its session and the
//! number that the server put behind. So a line is read by reading names. The attempt is a digest
//! of the token: whoever lists nodes learns nothing to act with.

use std::cmp::Ordering;

use sha2::{Digest as _, Sha256};

use crate::rule::claim::{Mode, Token};
use crate::rule::name::Name;

/// Whose lock clients are to see our claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Kazoo,
    Curator,
    Both,
}

/// The node of the store's own things: no name is written so.
const OWN: &str = "%leasehold";
/// Digits behind a node that the server numbered.
const DIGITS: usize = 10;

/// A digest of a token: names a claim without giving it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Attempt(pub(super) u128);

impl Attempt {
    pub(super) fn of(token: &Token) -> Self {
        let digest = digest(&[b"attempt", token.as_bytes()]);
        Self(u128::from_be_bytes(digest))
    }
}

/// The first half of a SHA-256.
pub(super) fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let whole = hash.finalize();
    let mut half = [0; 16];
    for (to, from) in half.iter_mut().zip(whole.iter()) {
        *to = *from;
    }
    half
}

/// A number that the server put behind a node's name: how many were created under the parent
/// before. It is one of 32 bits and runs over; who is before whom is told by the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence(pub(super) i32);

impl Sequence {
    pub(super) fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) < 0
    }

    fn order(&self, other: &Self) -> Ordering {
        self.0.wrapping_sub(other.0).cmp(&0)
    }
}

/// A claim of ours, by its node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ours {
    pub(super) attempt: Attempt,
    pub(super) session: i64,
}

/// One claim of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its node's name, without the path.
    pub(super) node: String,
    pub(super) sequence: Sequence,
    pub(super) mode: Mode,
    /// `None` if it is somebody else's.
    pub(super) ours: Option<Ours>,
}

/// The claims of a line in order. Of a claim with two nodes the first counts.
pub(super) fn lineup(children: Vec<String>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = children.into_iter().filter_map(read_node).collect();
    entries.sort_by(|one, two| one.sequence.order(&two.sequence));
    let mut seen = std::collections::HashSet::new();
    entries.retain(|entry| entry.ours.is_none_or(|ours| seen.insert(ours)));
    entries
}

/// Whether a claim holds behind those.
pub(super) fn holds(ahead: impl IntoIterator<Item = Mode>, mode: Mode) -> bool {
    let capacity = u64::from(mode.capacity());
    let mut units = u64::from(mode.units());
    for before in ahead {
        if before.capacity() != mode.capacity() {
            return false;
        }
        units += u64::from(before.units());
    }
    units <= capacity
}

/// How many of a line hold.
pub(super) fn holding(entries: &[Entry]) -> usize {
    let modes = |count: usize| entries[..count].iter().map(|entry| entry.mode);
    (0..entries.len()).take_while(|at| holds(modes(*at), entries[*at].mode)).count()
}

/// The names of a claim's nodes, up to the number; the first one decides.
pub(super) fn stems(dialect: Dialect, ours: Ours, mode: Mode) -> Vec<String> {
    let Ours { attempt: Attempt(attempt), session } = ours;
    let id = format!("lh-{attempt:032x}-{session:016x}");
    let (kazoo, curator) = match mode {
        Mode::Permits { take, of } => return vec![format!("{id}-of-{of}-take-{take}-permit-")],
        Mode::Shared => (format!("{id}__rlock__"), format!("_c_{id}-__READ__")),
        _ => (format!("{id}__lock__"), format!("_c_{id}-lock-")),
    };
    match dialect {
        Dialect::Kazoo => vec![kazoo],
        Dialect::Curator => vec![curator],
        Dialect::Both => vec![kazoo, curator],
    }
}

/// The node that tells of another ttl than the claim began with.
pub(super) fn ttl_stem(ours: Ours) -> String {
    let Ours { attempt: Attempt(attempt), session } = ours;
    format!("ttl-{attempt:032x}-{session:016x}")
}

/// The node that says that a claim was given back and keeps its name closed: nobody owns it.
pub(super) fn closed_node(ours: Ours) -> String {
    format!("{}-closed", ttl_stem(ours))
}

/// The node that has another note than the claim began with. No digits are at its end: it is no
/// claim.
pub(super) fn note_node(ours: Ours) -> String {
    let Ours { attempt: Attempt(attempt), session } = ours;
    format!("note-{attempt:032x}-{session:016x}-text")
}

/// Whose note a node has; `None` if it has none.
pub(super) fn read_note_node(node: &str) -> Option<Ours> {
    read_id(node.strip_prefix("note-")?.strip_suffix("-text")?)
}

/// Reads what a node's name says; `None` if it is no claim.
pub(super) fn read_node(node: String) -> Option<Entry> {
    let (stem, sequence) = split_number(&node)?;
    let mode = mode_of(stem);
    let ours = read_ours(stem);
    Some(Entry { sequence, mode, ours, node })
}

fn split_number(node: &str) -> Option<(&str, Sequence)> {
    let at = node.len().checked_sub(DIGITS)?;
    let (mut stem, digits) = node.split_at_checked(at)?;
    let mut number: i64 = digits.parse().ok().filter(|_| !digits.starts_with('+'))?;
    // Behind the largest number comes the smallest, whose sign comes before its ten digits. A mere
    // hyphen there belongs to the name.
    if number >= 1_000_000_000 && (stem.ends_with("_-") || stem.ends_with("--")) {
        stem = &stem[..stem.len() - 1];
        number = -number;
    }
    Some((stem, Sequence(i32::try_from(number).ok()?)))
}

fn mode_of(stem: &str) -> Mode {
    let shared = ["__rlock__", "__READ__", "read-"];
    if shared.iter().any(|end| stem.ends_with(end)) {
        return Mode::Shared;
    }
    permits_of(stem).unwrap_or(Mode::Exclusive)
}

fn permits_of(stem: &str) -> Option<Mode> {
    let (_, rest) = stem.strip_prefix("lh-")?.split_once("-of-")?;
    let (of, take) = rest.strip_suffix("-permit-")?.split_once("-take-")?;
    Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
}

fn read_ours(stem: &str) -> Option<Ours> {
    let stem = stem.strip_prefix("_c_").unwrap_or(stem);
    read_id(stem.strip_prefix("lh-")?)
}

fn read_id(text: &str) -> Option<Ours> {
    let (attempt, rest) = text.split_at_checked(32)?;
    let session = rest.strip_prefix('-')?.get(..16)?;
    let attempt = Attempt(u128::from_str_radix(attempt, 16).ok()?);
    Some(Ours { attempt, session: u64::from_str_radix(session, 16).ok()?.cast_signed() })
}

/// Where names are.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    root: String,
}

impl Layout {
    pub(super) fn new(root: String) -> Self {
        Self { root }
    }

    /// The node below which all lines are.
    pub(super) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// All nodes from the top down to the lines', for making them.
    pub(super) fn ancestors(&self) -> Vec<String> {
        let slashes = self.root.match_indices('/').map(|(at, _)| at).skip(1);
        let ends = slashes.chain([self.root.len()]);
        ends.map(|end| self.root[..end].to_owned()).filter(|path| !path.is_empty()).collect()
    }

    /// The node of a name's line.
    pub(super) fn line(&self, name: &Name) -> String {
        format!("{}/{}", self.root, self.node_of(name))
    }

    fn node_of(&self, name: &Name) -> String {
        let node = encode(name.as_str());
        match node == "zookeeper" && self.root.is_empty() {
            // The servers' own.
            true => "%7Aookeeper".to_owned(),
            false => node,
        }
    }

    /// The name of a line's node.
    pub(super) fn name(&self, node: &str) -> Option<Name> {
        let name = Name::new(decode(node)?).ok()?;
        (self.node_of(&name) == node).then_some(name)
    }

    /// The line and the node of a path.
    pub(super) fn read<'a>(&self, path: &'a str) -> Option<(Name, &'a str)> {
        let (line, node) = path.strip_prefix(&self.root)?.strip_prefix('/')?.split_once('/')?;
        (!node.contains('/')).then_some((self.name(line)?, node))
    }

    /// A node of the store's own.
    pub(super) fn own(&self, what: &str) -> String {
        match what {
            "" => format!("{}/{OWN}", self.root),
            what => format!("{}/{OWN}/{what}", self.root),
        }
    }
}

/// Whether a character may stand in a node's name as it is. ZooKeeper counts in UTF-16, and
/// refuses whatever is out of its first plane, private or a control character.
fn stands(char: char) -> bool {
    !matches!(
        char,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'.. | '/' | '%'
    )
}

/// A text as the name of a node; two texts never have the same.
pub(super) fn encode(text: &str) -> String {
    let mut node = String::with_capacity(text.len());
    for (at, char) in text.char_indices() {
        // `.` and `..` mean something to the servers.
        if stands(char) && !(at == 0 && matches!(text, "." | "..")) {
            node.push(char);
        } else {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                node.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    node
}

/// The text of a node's name.
pub(super) fn decode(node: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node;
    while let Some(at) = rest.find('%') {
        bytes.extend(rest[..at].bytes());
        let hex = rest.get(at + 1..at + 3)?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &rest[at + 3..];
    }
    bytes.extend(rest.bytes());
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a good name")
    }

    #[test]
    fn odd_names_have_nodes_of_their_own_and_lead_back() {
        let odd = [
            "a",
            "a/b",
            "/",
            ".",
            "..",
            "...",
            "%",
            "%2F",
            "%2f",
            "zookeeper",
            "%leasehold",
            "😀",
            "\u{1}",
            "\u{7f}",
            "\u{85}",
            "\u{e000}",
            "\u{ffff}",
            "é",
            "e\u{301}",
            "a\nb",
            " a",
            "名",
            "%7Aookeeper",
            "leasehold",
        ];
        for root in ["", "/locks", "/my/app"] {
            let layout = Layout::new(root.into());
            let mut nodes = std::collections::HashSet::new();
            for text in odd {
                let path = layout.line(&name(text));
                let node = path.rsplit('/').next().expect("a node");
                assert_eq!(layout.name(node), Some(name(text)), "{path}");
                assert_eq!(path.matches('/').count(), root.matches('/').count() + 1, "{path}");
                assert!(node.chars().all(stands_or_percent), "{path}");
                assert!(!["", ".", "..", "%leasehold"].contains(&node), "{path}");
                assert!(path != "/zookeeper");
                nodes.insert(path);
            }
            assert_eq!(nodes.len(), odd.len());
        }
    }

    fn stands_or_percent(char: char) -> bool {
        stands(char) || char == '%'
    }

    #[test]
    fn a_claims_node_says_all_that_decides() {
        let ours = Ours { attempt: Attempt::of(&Token::random()), session: i64::MIN + 5 };
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 3, of: 700 }];
        for dialect in [Dialect::Kazoo, Dialect::Curator, Dialect::Both] {
            for mode in modes {
                for stem in stems(dialect, ours, mode) {
                    let entry = read_node(format!("{stem}0000000012")).expect("a claim");
                    assert_eq!((entry.mode, entry.ours), (mode, Some(ours)), "{stem}");
                    assert_eq!(entry.sequence, Sequence(12));
                    let entry = read_node(format!("{stem}-2147483647")).expect("a claim");
                    let (sequence, mode_read) = (entry.sequence, entry.mode);
                    assert_eq!((sequence, mode_read), (Sequence(-2_147_483_647), mode), "{stem}");
                }
            }
        }
    }

    #[test]
    fn nodes_of_other_clients_are_seen_as_what_they_are() {
        let foreign = |node: &str| read_node(node.to_owned()).map(|entry| (entry.mode, entry.ours));
        for node in [
            "0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d__lock__0000000003",
            "_c_6e1d0f4e-8f0a-4b5c-9d3e-2f1a0b9c8d7e-lock-0000000004",
            "lock-0000000001",
            "_c_6e1d0f4e-8f0a-4b5c-9d3e-2f1a0b9c8d7e-__WRIT__0000000002",
        ] {
            assert_eq!(foreign(node), Some((Mode::Exclusive, None)), "{node}");
        }
        for node in ["0a__rlock__0000000003", "_c_6e-__READ__0000000004", "read-0000000001"] {
            assert_eq!(foreign(node), Some((Mode::Shared, None)), "{node}");
        }
        let ours = Ours { attempt: Attempt(1), session: 2 };
        let ttl = format!("{}-1000000000ms", ttl_stem(ours));
        let beside = [ttl, note_node(ours), closed_node(ours)];
        for node in ["leases", "x", ""].into_iter().chain(beside.iter().map(String::as_str)) {
            assert_eq!(foreign(node), None, "{node}");
        }
        assert_eq!(read_note_node(&note_node(ours)), Some(ours));
        assert_eq!(read_note_node(&beside[0]), None);
        assert_eq!(read_note_node(&beside[2]), None);
    }

    #[test]
    fn numbers_that_run_over_keep_their_order() {
        assert!(Sequence(i32::MAX).is_before(Sequence(i32::MIN)));
        assert!(Sequence(-1).is_before(Sequence(0)));
        assert!(Sequence(5).is_before(Sequence(6)) && !Sequence(6).is_before(Sequence(5)));
        let line = lineup(vec!["b__lock__-2147483648".into(), "a__lock__2147483647".into()]);
        assert_eq!(line[0].node, "a__lock__2147483647");
    }

    #[test]
    fn of_a_claim_with_two_nodes_the_first_counts() {
        let ours = Ours { attempt: Attempt(7), session: 9 };
        let [kazoo, curator] = stems(Dialect::Both, ours, Mode::Exclusive).try_into().expect("two");
        let children = vec![format!("{curator}0000000002"), format!("{kazoo}0000000001")];
        let line = lineup(children);
        assert_eq!(line.len(), 1);
        assert_eq!(line[0].sequence, Sequence(1));
    }

    #[test]
    fn curator_sorts_our_kazoo_nodes_behind_its_own() {
        // It takes what is behind the last `lock-`, or the whole name if that is not in it.
        let ours = Ours { attempt: Attempt(0), session: 0 };
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
            for stem in stems(Dialect::Kazoo, ours, mode) {
                assert!(!stem.contains("lock-") && *stem > *"9999999999", "{stem}");
            }
        }
        assert!(*ttl_stem(ours) > *"9999999999" && *note_node(ours) > *"9999999999");
    }
}
