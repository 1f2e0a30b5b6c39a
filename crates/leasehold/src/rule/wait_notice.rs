//! A client's notice of its long waits, and the text in which a store keeps it.
//!
//! A notice lists only claims that have waited for a while and whose owner keeps leases meanwhile.
//! It is a hint where to look. The reader checks in the lines that the claim waits and that the
//! leases are held, so an outdated notice does no harm.

use std::fmt::Write as _;
use std::time::Duration;

use crate::rule::claim::HolderId;
use crate::rule::name::Name;

/// One client's long waits. A notice replaces the client's earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The holder of the claims.
    pub holder: HolderId,
    /// The client that sends the notice: several clients may be one holder.
    pub client: u128,
    /// The waits. An empty list withdraws the client's earlier notice.
    pub waits: Vec<Wait>,
    /// How long the notice lasts, if the client does not send it again.
    pub keep: Duration,
}

/// A claim that waits, and the leases that will not be given back before it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The name that the claim waits for.
    pub name: Name,
    /// The claim's number in that line.
    pub fence: u64,
    /// The leases that the claim's owner keeps meanwhile.
    pub keeps: Vec<Kept>,
}

/// A lease that is kept while its owner waits for something else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// Its name.
    pub name: Name,
    /// Its number. 0 stands for every lease that the holder has on this name.
    pub fence: u64,
}

impl Notice {
    /// The most waits in one notice.
    pub const WAITS_MAX: usize = 64;
    /// The most leases it names for one wait. People could not read a deadlock that has more.
    pub const KEPT_MAX: usize = 64;
    /// The longest text: every store takes it in one piece.
    pub const BYTES_MAX: usize = 64 * 1024;

    /// The text for the store, with as many waits as fit.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for wait in self.waits.iter().take(Self::WAITS_MAX) {
            let before = text.len();
            write_item(&mut text, 'w', wait.fence, &wait.name);
            for kept in wait.keeps.iter().take(Self::KEPT_MAX) {
                write_item(&mut text, 'k', kept.fence, &kept.name);
            }
            if text.len() > Self::BYTES_MAX {
                text.truncate(before);
                break;
            }
        }
        text
    }
}

impl Wait {
    /// Reads the text of a notice up to the first item that it does not understand. The only
    /// harm is that a deadlock may not be found.
    pub fn read(text: &str) -> Vec<Wait> {
        let mut waits: Vec<Wait> = Vec::new();
        let mut rest = text;
        while let Some((kind, fence, name, more)) = read_item(rest) {
            rest = more;
            match (kind, waits.last_mut()) {
                ('w', _) => waits.push(Wait { name, fence, keeps: Vec::new() }),
                ('k', Some(wait)) => wait.keeps.push(Kept { name, fence }),
                _ => break,
            }
        }
        waits
    }
}

/// Writes the length before the name, because a name may contain any character.
fn write_item(text: &mut String, kind: char, fence: u64, name: &Name) {
    let name = name.as_str();
    // Writing to a string cannot fail.
    let _infallible = write!(text, "{kind}{fence} {}:{name}", name.len());
}

fn read_item(text: &str) -> Option<(char, u64, Name, &str)> {
    let kind = text.chars().next()?;
    let (fence, rest) = text.get(kind.len_utf8()..)?.split_once(' ')?;
    let (length, rest) = rest.split_once(':')?;
    let (name, rest) = rest.split_at_checked(length.parse().ok()?)?;
    Some((kind, fence.parse().ok()?, Name::new(name).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a good name")
    }

    #[test]
    fn waits_survive_their_text_whatever_the_names_are() {
        let kept = |text: &str, fence| Kept { name: name(text), fence };
        let waits = vec![
            Wait { name: name("a b:c"), fence: u64::MAX, keeps: vec![kept("k1 2:", 7)] },
            Wait { name: name("w12 3:é\n"), fence: 1, keeps: vec![kept("😀", 0), kept("x", 3)] },
            Wait { name: name("n"), fence: 0, keeps: Vec::new() },
        ];
        let keep = Duration::from_secs(1);
        let notice = Notice { holder: HolderId(1), client: 2, waits: waits.clone(), keep };
        assert_eq!(Wait::read(&notice.text()), waits);
    }

    #[test]
    fn text_that_is_no_notice_tells_of_no_waits() {
        for text in ["", "x", "w", "w1", "w1 5:abc", "k1 1:a", "w1 1:", "w1 99999999999999999999:a"]
        {
            assert_eq!(Wait::read(text), Vec::new(), "{text}");
        }
        assert_eq!(Wait::read("w1 1:ax").len(), 1, "the items before it are read");
    }

    #[test]
    fn a_text_never_exceeds_its_bounds() {
        let long = name(&"n".repeat(Name::BYTES_MAX));
        let keeps = vec![Kept { name: long.clone(), fence: u64::MAX }; Notice::KEPT_MAX + 1];
        let waits = vec![Wait { name: long, fence: u64::MAX, keeps }; Notice::WAITS_MAX + 1];
        let keep = Duration::from_secs(1);
        let text = Notice { holder: HolderId(1), client: 2, waits, keep }.text();
        assert!(text.len() <= Notice::BYTES_MAX);
        let waits = Wait::read(&text);
        assert!(!waits.is_empty() && waits.iter().all(|wait| wait.keeps.len() == Notice::KEPT_MAX));
    }
}
