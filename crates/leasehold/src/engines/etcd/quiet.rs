//! Names on which this client met nobody the last few times.
//!
//! A claim on such a name is sent without what to do if somebody is in its way, which is most of
//! the request. If somebody is, nothing is written, and it is sent once more with all of it. So a
//! name must have been quiet for a while first: those that several want pay for that seldom.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::rule::name::Name;

use super::link::lock;

/// How many claims in a row must have met nobody.
const ROW: u8 = 4;
/// How many names are remembered for sure; up to twice as many are.
const NAMES_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Quiet {
    names: Mutex<Names>,
}

/// Who is in neither is not known. What was not used since the present ones began is in the past.
#[derive(Debug, Default)]
struct Names {
    present: HashMap<Name, u8>,
    past: HashMap<Name, u8>,
}

impl Quiet {
    /// Whether nobody is likely to be there.
    pub(super) fn is(&self, name: &Name) -> bool {
        let names = lock(&self.names);
        names.present.get(name).or_else(|| names.past.get(name)).is_some_and(|row| *row >= ROW)
    }

    /// A claim held at once.
    pub(super) fn met_nobody(&self, name: &Name) {
        let mut names = lock(&self.names);
        if let Some(row) = names.present.get_mut(name) {
            *row = row.saturating_add(1);
            return;
        }
        let row = names.past.remove(name).unwrap_or(0).saturating_add(1);
        if names.present.len() >= NAMES_MAX {
            names.past = std::mem::take(&mut names.present);
        }
        names.present.insert(name.clone(), row);
    }

    /// A claim found somebody.
    pub(super) fn met_somebody(&self, name: &Name) {
        let mut names = lock(&self.names);
        names.present.remove(name);
        names.past.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn a_name_is_quiet_after_some_claims_that_met_nobody_and_until_one_did() {
        let (quiet, name) = (Quiet::default(), name("n"));
        for _ in 0..ROW {
            assert!(!quiet.is(&name));
            quiet.met_nobody(&name);
        }
        assert!(quiet.is(&name));
        quiet.met_somebody(&name);
        quiet.met_nobody(&name);
        assert!(!quiet.is(&name));
    }

    #[test]
    fn names_that_are_used_are_remembered_and_the_others_are_not_for_ever() {
        let (quiet, used) = (Quiet::default(), name("used"));
        for number in 0..NAMES_MAX * 4 {
            for _ in 0..ROW {
                quiet.met_nobody(&used);
            }
            quiet.met_nobody(&name(&format!("other:{number}")));
            assert!(quiet.is(&used));
        }
        let names = lock(&quiet.names);
        assert!(names.present.len() + names.past.len() <= NAMES_MAX * 2);
    }
}
