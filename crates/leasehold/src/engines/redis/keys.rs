//! Where things are in Redis: the keys of a name, and the way back from a key to its name.
//!
//! The lock key is what other libraries see. Its companions share its hash slot: in a Cluster
//! they carry a short hash tag of the same slot, because the name itself may hold braces in any
//! arrangement.

use std::sync::OnceLock;

use crc16::{State, XMODEM};

use crate::engine::Select;
use crate::error::{Error, Invalid, Result};
use crate::rule::claim::HolderId;
use crate::rule::name::Name;
use crate::seeded::{Seeded, seeded};

/// What every key of ours but the lock keys begins with.
const OURS: &str = "leasehold:";
const SLOTS: u16 = 16_384;
/// How many fence counters there are outside a Cluster, which has one for each slot. Few enough
/// to copy from server to server, enough that names of a quorum rarely share one.
pub(super) const BUCKETS: u16 = 4_096;

/// Room for what a companion's key has beside the lock key: `leasehold:{12345}:expiry:`.
const COMPANION_BYTES: usize = 32;

/// What the key that no client writes ends with. A Cluster has one in each slot.
const ABSENT: &str = "absent";

/// How names become keys.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    prefix: String,
    pub(super) cluster: bool,
    /// The channel of events: channels know no databases and no prefixes.
    pub(super) events: String,
    /// The channel of messages to holders.
    pub(super) for_holders: String,
    /// The key of the store's id.
    pub(super) store: String,
    /// The key of the sums.
    pub(super) totals: String,
}

/// The keys of one name, in the order the scripts take them: one after the other in one text.
/// In a Cluster the absent key stands behind the last of them.
#[derive(Debug)]
pub(super) struct Keys<const COUNT: usize = 5> {
    text: String,
    ends: [usize; COUNT],
}

/// How many of a name's keys verbs need that give out no fence: all but the last.
pub(super) const WITHOUT_FENCE: usize = 4;

impl<const COUNT: usize> Keys<COUNT> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.text[std::mem::replace(&mut start, *end)..*end])
    }

    /// A key of the same slot that no client writes, in a Cluster. Every script about a name names
    /// it, so that a server refuses the script (`TRYAGAIN`) while the slot moves.
    ///
    /// A server whose slot moves away begins a script when it has all of the script's keys. It
    /// checks the keys of each command in the script again. A key that the script has just emptied
    /// counts as moved, and the script stops in the middle. With a key that is always missing, the
    /// script does not begin. See "Multiple keys operations" in
    /// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.
    pub(super) fn absent(&self) -> Option<&str> {
        let named = self.ends.last().copied().unwrap_or(0);
        let is_named = |key: &&str| !key.is_empty() && !seeded(Seeded::ScriptWhileSlotMoves);
        Some(&self.text[named..]).filter(is_named)
    }

    /// The key that other libraries see.
    pub(super) fn lock(&self) -> &str {
        &self.text[..self.ends[0]]
    }
}

impl Layout {
    pub(super) fn new(prefix: String, cluster: bool, database: i64) -> Self {
        let events = format!("{OURS}events:{database}:{prefix}");
        let for_holders = for_holders(database, &prefix);
        let (store, totals) = (format!("{OURS}store:{prefix}"), format!("{OURS}totals:{prefix}"));
        Self { prefix, cluster, events, for_holders, store, totals }
    }

    pub(super) fn keys(&self, name: &Name) -> Result<Keys> {
        let name = name.as_str();
        let length = self.prefix.len() + name.len();
        let mut text = String::with_capacity(4 * length + 6 * COMPANION_BYTES);
        text.extend([self.prefix.as_str(), name]);
        if text.starts_with(OURS) {
            return Err(Error::Invalid(Invalid::NameReserved { prefix: OURS }));
        }
        let slot = slot(text.as_bytes());
        let tag = if self.cluster { format!("{{{}}}:", tag(slot)) } else { String::new() };
        let mut ends = [length; 5];
        for (end, kind) in ends[1..4].iter_mut().zip(["line:", "order:", "expiry:"]) {
            text.extend([OURS, &tag, kind, &self.prefix, name]);
            *end = text.len();
        }
        text.extend([OURS, &tag, "fence"]);
        if !self.cluster {
            text.extend([":", (slot % BUCKETS).to_string().as_str()]);
        }
        ends[4] = text.len();
        if self.cluster {
            text.extend([OURS, &tag, ABSENT]);
        }
        Ok(Keys { text, ends })
    }

    /// Which part of the store a name is in: names of one part are at one server. The slot in a
    /// Cluster; elsewhere there is one part.
    pub(super) fn part(&self, name: &Name) -> u16 {
        match self.cluster {
            true => slot(format!("{}{name}", self.prefix).as_bytes()),
            false => 0,
        }
    }

    /// Where the clients of a holder say what they wait for. It has no absent key: its one script
    /// uses one key and never reads it after a deletion, so a moving slot cannot stop it in the
    /// middle.
    pub(super) fn notices(&self, holder: HolderId) -> Keys<1> {
        let text = format!("{OURS}notices:{:032x}:{}", holder.0, self.prefix);
        let ends = [text.len()];
        Keys { text, ends }
    }

    /// A pattern for SCAN that finds at least the line keys asked for.
    pub(super) fn pattern(&self, select: &Select) -> String {
        let group = if self.cluster { "leasehold:{*}:line:" } else { "leasehold:line:" };
        let begin = match select {
            Select::Prefix(begin) => begin.as_str(),
            Select::Name(name) => name.as_str(),
            _ => "",
        };
        format!("{group}{}{}*", escaped(&self.prefix), escaped(begin))
    }

    /// The name whose line is at this key.
    pub(super) fn name_of_line(&self, line: &[u8]) -> Option<Name> {
        let (_, lock) = std::str::from_utf8(line).ok()?.split_once(":line:")?;
        self.name(lock)
    }

    /// The name of the lock key that a text begins with, and what is behind the NUL after it.
    pub(super) fn name_before_nul<'a>(&self, text: &'a str) -> Option<(Name, &'a str)> {
        let (name, rest) = text.strip_prefix(&self.prefix)?.split_once('\0')?;
        Some((Name::new(name).ok()?, rest))
    }

    /// What stands before the names.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of a lock key.
    fn name(&self, lock: &str) -> Option<Name> {
        Name::new(lock.strip_prefix(&self.prefix)?).ok()
    }
}

/// Whether a key is neither ours nor that of a lock with this prefix.
pub(super) fn is_beyond(prefix: &str, key: &str) -> bool {
    !key.starts_with(OURS) && !key.starts_with(prefix)
}

/// How names become keys at a node of a quorum. Its companions are apart from those of a store on
/// one server, so that the two never meet; the lock key is the same.
#[derive(Debug, Clone)]
pub(super) struct QuorumLayout {
    prefix: String,
    /// The key of the marker under which the node votes.
    pub(super) marker: String,
    /// The channel of messages to holders.
    pub(super) for_holders: String,
}

/// The channel of messages to holders.
fn for_holders(database: i64, prefix: &str) -> String {
    format!("{OURS}holders:{database}:{prefix}")
}

impl QuorumLayout {
    /// What the keys of counters begin with, behind which their number stands.
    pub(super) const FENCES: &str = "leasehold:quorum:fence:";

    pub(super) fn new(prefix: String, database: i64) -> Self {
        let marker = format!("{OURS}quorum:marker:{prefix}");
        let for_holders = for_holders(database, &prefix);
        Self { prefix, marker, for_holders }
    }

    pub(super) fn keys(&self, name: &Name) -> Result<Keys<6>> {
        let name = name.as_str();
        let length = self.prefix.len() + name.len();
        let mut text = String::with_capacity(4 * length + 6 * COMPANION_BYTES);
        text.extend([self.prefix.as_str(), name]);
        if text.starts_with(OURS) {
            return Err(Error::Invalid(Invalid::NameReserved { prefix: OURS }));
        }
        let bucket = slot(text.as_bytes()) % BUCKETS;
        let mut ends = [length; 6];
        for (end, kind) in ends[1..4].iter_mut().zip(["line:", "order:", "expiry:"]) {
            text.extend([OURS, "quorum:", kind, &self.prefix, name]);
            *end = text.len();
        }
        text.extend([Self::FENCES, bucket.to_string().as_str()]);
        ends[4] = text.len();
        text.push_str(&self.marker);
        ends[5] = text.len();
        Ok(Keys { text, ends })
    }

    /// What stands before the names.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The marker alone, for scripts that are about the node and no name.
    pub(super) fn node_keys(&self) -> Keys<1> {
        Keys { text: self.marker.clone(), ends: [self.marker.len()] }
    }

    /// A pattern for SCAN that finds at least the line keys asked for.
    pub(super) fn pattern(&self, select: &Select) -> String {
        let begin = match select {
            Select::Prefix(begin) => begin.as_str(),
            Select::Name(name) => name.as_str(),
            _ => "",
        };
        format!("leasehold:quorum:line:{}{}*", escaped(&self.prefix), escaped(begin))
    }

    /// The name whose line is at this key.
    pub(super) fn name_of_line(&self, line: &[u8]) -> Option<Name> {
        let lock = std::str::from_utf8(line).ok()?.strip_prefix("leasehold:quorum:line:")?;
        Name::new(lock.strip_prefix(&self.prefix)?).ok()
    }
}

/// A key beside another one, in its slot, for the greatest fence seen for it.
pub(crate) fn guard_key(key: &str) -> String {
    format!("{OURS}guard:{{{}}}:{key}", tag(slot(key.as_bytes())))
}

/// Takes the meaning from the characters that a pattern gives one.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\' | '-') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The hash slot of a key, by the rule of Redis Cluster.
fn slot(key: &[u8]) -> u16 {
    let hashed = match key.iter().position(|byte| *byte == b'{') {
        Some(open) => match key[open + 1..].iter().position(|byte| *byte == b'}') {
            Some(length) if length > 0 => &key[open + 1..open + 1 + length],
            _ => key,
        },
        None => key,
    };
    State::<XMODEM>::calculate(hashed) % SLOTS
}

/// A short text that hashes to `slot`.
fn tag(slot: u16) -> String {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![u32::MAX; usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0.. {
            let place = &mut tags[usize::from(hash_of(number))];
            if *place == u32::MAX {
                *place = number;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags
    });
    format!("{:x}", tags[usize::from(slot)])
}

fn hash_of(number: u32) -> u16 {
    State::<XMODEM>::calculate(format!("{number:x}").as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_share_the_slot_of_their_lock_key_whatever_braces_the_name_has() {
        let layout = Layout::new("lock:".into(), true, 0);
        let odd =
            ["plain", "{a}", "{}", "}{", "{{x}}", "a{b", "a}b", "{}{c}", "x{y}z{w}", "}", "{"];
        for name in odd {
            let keys = layout.keys(&Name::new(name).expect("a name")).expect("keys");
            let all = keys.iter().chain(keys.absent());
            let slots: Vec<u16> = all.map(|key| slot(key.as_bytes())).collect();
            assert_eq!(slots.len(), 6, "{keys:?}");
            assert!(slots.iter().all(|other| *other == slots[0]), "{name}: {keys:?} {slots:?}");
        }
    }

    #[test]
    fn one_server_is_named_no_absent_key() {
        let layout = Layout::new("lock:".into(), false, 0);
        let keys = layout.keys(&Name::new("n").expect("a name")).expect("keys");
        assert_eq!(keys.absent(), None);
    }

    #[test]
    fn the_key_of_a_fence_is_in_the_slot_of_what_it_guards() {
        for key in ["plain", "{a}", "{}", "}{", "a}b", "x{y}z{w}", ""] {
            assert_eq!(slot(guard_key(key).as_bytes()), slot(key.as_bytes()), "{key}");
        }
    }

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot(b"123456789"), 12_739);
        assert_eq!(slot(b"foo{bar}zap"), slot(b"bar"));
        assert_eq!(slot(b"foo{}{bar}"), State::<XMODEM>::calculate(b"foo{}{bar}") % SLOTS);
    }

    #[test]
    fn a_line_key_leads_back_to_its_name() {
        for cluster in [false, true] {
            let layout = Layout::new("lock:".into(), cluster, 0);
            let name = Name::new("a:line:{b}").expect("a name");
            let keys = layout.keys(&name).expect("keys");
            assert_eq!(layout.name(keys.lock()), Some(name.clone()));
            let line = keys.iter().nth(1).expect("the line's key");
            assert_eq!(layout.name_of_line(line.as_bytes()), Some(name));
        }
    }

    #[test]
    fn a_lock_key_never_falls_on_a_companion() {
        let layout = Layout::new(String::new(), false, 0);
        let name = Name::new("leasehold:line:x").expect("a name");
        assert!(matches!(layout.keys(&name), Err(Error::Invalid(Invalid::NameReserved { .. }))));
    }
}
