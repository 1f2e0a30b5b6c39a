//! Taking turns: ours, the raw limit and the rivals run round by round, one after the other.
//!
//! A loopback round trip changes threefold with the machine's idleness, so only neighbouring
//! rounds compare. Each scenario gives its rounds as closures, and chooses their result type.

use crate::Result;
use crate::progress::Progress;

/// The role of a contender in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ours,
    /// No lock on this store can beat it.
    Limit,
    /// People would use it instead.
    Rival,
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Role::Ours => "ours",
            Role::Limit => "limit",
            Role::Rival => "rival",
        }
    }
}

/// A contender, and the code of one of its rounds.
pub(crate) struct Contender<'a, T> {
    name: String,
    role: Role,
    round: Box<dyn FnMut() -> Result<T> + 'a>,
}

impl<'a, T> Contender<'a, T> {
    pub(crate) fn new(
        role: Role,
        name: impl Into<String>,
        round: impl FnMut() -> Result<T> + 'a,
    ) -> Self {
        Self { name: name.into(), role, round: Box::new(round) }
    }
}

/// The results of all rounds of one contender.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) rounds: Vec<T>,
}

/// Runs A, B, C, A, B, C… The first turn of each only warms up, and does not count.
pub(crate) fn take_turns<T>(
    mut contenders: Vec<Contender<'_, T>>,
    rounds: usize,
    progress: &mut Progress,
) -> Result<Vec<Outcome<T>>> {
    let mut outcomes: Vec<Outcome<T>> = contenders
        .iter()
        .map(|contender| {
            let (name, role) = (contender.name.clone(), contender.role);
            Outcome { name, role, rounds: Vec::new() }
        })
        .collect();
    for turn in 0..=rounds {
        progress.say(|| format!("round {turn} of {rounds}"));
        for (contender, outcome) in contenders.iter_mut().zip(&mut outcomes) {
            let value = (contender.round)()
                .map_err(|error| format!("`{}` failed: {error}", contender.name))?;
            if turn > 0 {
                outcome.rounds.push(value);
            }
        }
    }
    Ok(outcomes)
}
