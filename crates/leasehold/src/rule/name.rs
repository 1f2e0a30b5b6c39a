//! Names of locks: what may be locked, and the one rule for what a name may be.
//!
//! A name is compared byte by byte. It is never normalised, trimmed or folded, so two spellings
//! are two locks on every engine. Each engine decides how its store writes a name down.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Invalid, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8 without NUL.
///
/// Conventions that keep names readable in `leasehold list`: `job:TYPE:ID` for a unit of work,
/// `cron:TASK` for a periodic task, `user:ID:profile` for a part of a record. The library gives
/// them no meaning; a prefix only makes `list --prefix job:` useful.
///
/// ```
/// use leasehold::Name;
///
/// assert!(Name::new("job:settle:42").is_ok());
/// assert!(Name::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name in bytes. Long enough for a URL-like path, short enough for every store's
    /// key (PostgreSQL's index entries and ZooKeeper's escaped nodes are the tightest).
    pub const BYTES_MAX: usize = 512;

    /// Checks the rule and makes a name.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(Error::Invalid(Invalid::NameEmpty));
        }
        if text.len() > Self::BYTES_MAX {
            return Err(Error::Invalid(Invalid::NameTooLong { bytes: text.len() }));
        }
        if text.contains('\0') {
            return Err(Error::Invalid(Invalid::NameHasNul));
        }
        Ok(Self(Arc::from(text)))
    }

    /// Whether the two are equal. The comparison is quicker if one is a clone of the other.
    pub(crate) fn is(&self, other: &Name) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self == other
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    /// For people: control characters are escaped, so that a name cannot rewrite a log or a
    /// terminal. [`as_str`](Name::as_str) is the name itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        if !self.0.contains(char::is_control) {
            return f.pad(&self.0);
        }
        self.0.chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_accepted_and_kept_apart() {
        let odd = ["/", "..", "{a}", "%00", "a\nb", "😀", "e\u{301}", "é", " a", "a ", "A"];
        let names: std::collections::HashSet<Name> =
            odd.iter().map(|text| Name::new(text).expect("within the rule")).collect();
        assert_eq!(names.len(), odd.len());
    }

    #[test]
    fn the_longest_name_fits_and_one_byte_more_does_not() {
        assert!(Name::new("n".repeat(512)).is_ok());
        let error = Name::new("n".repeat(513)).expect_err("too long");
        assert!(matches!(error, Error::Invalid(Invalid::NameTooLong { bytes: 513 })));
    }

    #[test]
    fn control_characters_are_escaped_for_people_only() {
        let name = Name::new("a\nb\u{1b}[31m").expect("within the rule");
        assert_eq!(name.to_string(), "a\\nb\\u{1b}[31m");
        assert_eq!(name.as_str(), "a\nb\u{1b}[31m");
    }

    #[test]
    fn empty_names_and_nul_are_refused() {
        assert!(matches!(Name::new(""), Err(Error::Invalid(Invalid::NameEmpty))));
        assert!(matches!(Name::new("a\0b"), Err(Error::Invalid(Invalid::NameHasNul))));
    }
}
