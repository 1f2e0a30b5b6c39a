//! Lines and claims as the JSON of `list`, `show`, `top` and `acquire` writes them.

use leasehold::engine::{BrokenLine, ClaimView, LineView};
use leasehold::error::Kind;
use leasehold::{Fence, Mode, Name, Purpose, RunState};
use serde::Serialize;
use serde_json::Value;

use crate::acquire::millis;
use crate::duration::human;
use crate::filter::Filter;
use crate::text::wall_clock_ago;

/// One line as the contract writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    name: &'a str,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    held: Vec<Held<'a>>,
    /// Finished periods of `once` and spent units of `rate`.
    past: Vec<Held<'a>>,
    waiting: Vec<Waits<'a>>,
    /// Why its record cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<&'a str>,
}

/// A claim that holds, as the contract writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Held<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    /// A decimal string: readers that take numbers for floats would round it. `null` for a lock of
    /// another library that has none.
    fence: Option<String>,
    /// `null` if the store does not know it.
    acquired_at: Option<String>,
    remaining_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'static str>,
    note: &'a str,
    /// The note, if it is a JSON object or list.
    #[serde(skip_serializing_if = "Option::is_none")]
    note_json: Option<Value>,
}

/// A claim that waits, as the contract writes it.
#[derive(Debug, Serialize)]
struct Waits<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    ahead: usize,
    waiting_ms: u64,
    note: &'a str,
    /// The note, if it is a JSON object or list.
    #[serde(skip_serializing_if = "Option::is_none")]
    note_json: Option<Value>,
}

/// Whose claim it is, and what for.
#[derive(Debug, Serialize)]
struct Who<'a> {
    holder: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    /// The purpose of the claim, if it is no lock.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    used_by: Option<&'static str>,
}

impl<'a> Who<'a> {
    fn of(claim: &'a ClaimView) -> Self {
        Self {
            holder: claim.holder.label(),
            host: claim.note.fact(HOST),
            pid: claim.note.fact(PID).and_then(|pid| pid.parse().ok()),
            program: claim.note.fact(PROGRAM),
            permits: match claim.mode {
                Mode::Permits { take, .. } => Some(take),
                _ => None,
            },
            used_by: match claim.purpose() {
                Purpose::Once(_) => Some("once"),
                Purpose::Rate => Some("rate"),
                _ => None,
            },
        }
    }
}

/// The facts that `run` tells of itself.
pub(crate) const HOST: &str = "host";
pub(crate) const PID: &str = "pid";
pub(crate) const PROGRAM: &str = "program";

impl<'a> Held<'a> {
    pub(crate) fn of(claim: &'a ClaimView) -> Self {
        let run = match claim.purpose() {
            Purpose::Once(state) => Some(run_word(&state)),
            _ => None,
        };
        Self {
            who: Who::of(claim),
            fence: known_fence(claim).map(|fence| fence.to_string()),
            acquired_at: (!claim.is_foreign()).then(|| wall_clock_ago(claim.age)),
            remaining_ms: millis(claim.remaining),
            run,
            note: claim.note.text(),
            note_json: json_in(claim.note.text()),
        }
    }
}

impl<'a> Line<'a> {
    pub(crate) fn of(line: &'a LineView) -> Self {
        Self::filtered(line, &Filter::default())
    }

    /// Only the claims that the filter admits; places in line stay as they are.
    pub(crate) fn filtered(line: &'a LineView, filter: &Filter) -> Self {
        let limit = match line.kind {
            Kind::Permits { of } => Some(of),
            _ => None,
        };
        let held = line.held.iter().filter(|claim| filter.admits_held(claim));
        let (past, held): (Vec<_>, Vec<_>) = held.partition(|claim| claim.purpose().is_past());
        let waiting = line.waiting.iter().enumerate();
        let waiting = waiting.filter(|(_, claim)| filter.admits_waiting(claim));
        let waiting = waiting.map(|(place, claim)| Waits {
            who: Who::of(claim),
            ahead: line.held.len() + place,
            waiting_ms: millis(claim.age),
            note: claim.note.text(),
            note_json: json_in(claim.note.text()),
        });
        Self {
            name: line.name.as_str(),
            mode: mode(line),
            limit,
            held: held.into_iter().map(Held::of).collect(),
            past: past.into_iter().map(Held::of).collect(),
            waiting: waiting.collect(),
            broken: None,
        }
    }

    /// A line whose record cannot be read.
    pub(crate) fn broken(line: &'a BrokenLine) -> Self {
        Self { broken: Some(&line.cause), ..Self::free(&line.name) }
    }

    /// A line that nobody is in.
    pub(crate) fn free(name: &'a Name) -> Self {
        let (held, past, waiting) = (Vec::new(), Vec::new(), Vec::new());
        let (mode, limit, broken) = ("exclusive", None, None);
        Self { name: name.as_str(), mode, limit, held, past, waiting, broken }
    }

    /// Whether the filter left nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.past.is_empty() && self.waiting.is_empty()
    }
}

/// The JSON in a note: an object or a list. Another note that happens to be JSON, such as `42`, is
/// text.
fn json_in(note: &str) -> Option<Value> {
    let is_meant = note.starts_with(['{', '[']);
    is_meant.then(|| serde_json::from_str(note).ok()).flatten()
}

/// The fence of a claim, if it has one.
pub(crate) fn known_fence(claim: &ClaimView) -> Option<Fence> {
    (claim.fence != 0).then_some(claim.fence)
}

/// How a run of `once` went, in a word.
pub(crate) fn run_word(state: &RunState) -> &'static str {
    match state {
        RunState::Done { .. } => "done",
        RunState::Failed { .. } => "failed",
        _ => "running",
    }
}

/// The purpose of a claim that is no lock, for the place behind its holder.
pub(crate) fn purpose_words(claim: &ClaimView) -> &'static str {
    match claim.purpose() {
        Purpose::Rate => " (a unit of `rate`)",
        Purpose::Evicted => " (the record of a force-release)",
        Purpose::Once(_) if claim.purpose().is_past() => " (a finished period of `once`)",
        Purpose::Once(_) => " (a run of `once`)",
        _ => "",
    }
}

/// Why a name is not free although nobody works under it, if that is so.
pub(crate) fn past_words(name: &Name, held: &[ClaimView]) -> Option<String> {
    let first = held.first()?;
    let soonest = human(held.iter().map(|claim| claim.remaining).min()?);
    match first.purpose() {
        Purpose::Rate => Some(format!(
            "`{name}` is in use by `rate`: {} units are spent, the next comes back in {soonest}",
            held.len()
        )),
        Purpose::Once(state) if first.purpose().is_past() => Some(format!(
            "`{name}` is in use by `once`: `{}` ran it {} ago ({}), the period ends in {soonest}",
            first.holder.label(),
            human(first.age),
            run_word(&state)
        )),
        _ => None,
    }
}

/// Whether nothing is in a line but records of force-releases.
pub(crate) fn is_record(line: &LineView) -> bool {
    line.waiting.is_empty() && line.held.iter().all(|claim| claim.purpose() == Purpose::Evicted)
}

/// The mode in which a line is used: that of its holder, or else of the next claim.
pub(crate) fn mode(line: &LineView) -> &'static str {
    match line.held.first().or(line.waiting.first()).map(|claim| claim.mode) {
        Some(Mode::Shared) => "shared",
        Some(Mode::Permits { .. }) => "permits",
        _ => "exclusive",
    }
}
