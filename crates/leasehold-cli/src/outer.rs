//! The names that the runs around this one hold.
//!
//! A `leasehold` inside the command of a `run` is the same holder. If it waits for a name that a
//! run around it holds, it waits for itself, and only it could end that. The holder on the name
//! does not show this. Two commands that one script runs side by side are the same holder too, and
//! may well wait for each other. So each run passes its names on in the environment.

use leasehold::{Mode, Name};

/// Carries the names of the runs around a command.
pub(crate) const OUTER_VARIABLE: &str = "LEASEHOLD_OUTER";

/// The names of the runs around this process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Outer {
    names: Vec<String>,
}

impl Outer {
    /// Reads them from the environment, and skips words that it does not understand. The only harm
    /// is that the command does not notice a wait for itself at once.
    pub(crate) fn read() -> Self {
        let text = std::env::var(OUTER_VARIABLE).unwrap_or_default();
        Self { names: text.split(' ').filter(|word| !word.is_empty()).filter_map(decode).collect() }
    }

    /// These names and those of one more run, as text for the environment.
    pub(crate) fn with(&self, names: &[Name]) -> String {
        let all = self.names.iter().map(String::as_str).chain(names.iter().map(Name::as_str));
        all.map(encode).collect::<Vec<_>>().join(" ")
    }

    /// The names, for the search for deadlocks: the outer runs keep them until this process ends.
    pub(crate) fn names(&self) -> impl Iterator<Item = Name> {
        self.names.iter().filter_map(|name| Name::new(name).ok())
    }

    /// Whether a claim that has to wait for `name` would wait for a run around it.
    ///
    /// With permits, another holder may give back enough of them, unless the claim wants all.
    pub(crate) fn waits_for_itself(&self, name: &Name, mode: Mode) -> bool {
        let certain = match mode {
            Mode::Permits { take, of } => take == of,
            _ => true,
        };
        certain && self.names.iter().any(|outer| outer == name.as_str())
    }
}

/// Writes everything but plain letters, digits and a few marks as `%XX`.
fn encode(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'.' | b'_' | b'-' | b'/' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn decode(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_environment() {
        for name in ["a", "job:é\n 1%", "😀", "%41", " "] {
            assert_eq!(decode(&encode(name)).as_deref(), Some(name));
            assert!(!encode(name).contains([' ', '\n']));
        }
        assert_eq!(decode("%4"), None);
    }

    #[test]
    fn only_a_name_of_an_outer_run_is_a_wait_for_oneself() {
        let outer = Outer { names: vec!["a".into()] };
        let (a, b) = (Name::new("a").expect("good"), Name::new("b").expect("good"));
        assert!(outer.waits_for_itself(&a, Mode::Exclusive));
        assert!(outer.waits_for_itself(&a, Mode::Permits { take: 3, of: 3 }));
        assert!(!outer.waits_for_itself(&a, Mode::Permits { take: 1, of: 3 }));
        assert!(!outer.waits_for_itself(&b, Mode::Exclusive));
        assert_eq!(outer.with(&[b]), "a b");
    }
}
