//! An observer that writes down what a client reports about the clocks of its store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::internal::remote::{ClockTrouble, Shift};
use leasehold::observe::{Measure, Observer};

/// The reports about clocks, with their servers. Clones share one diary.
#[derive(Debug, Clone, Default)]
pub struct ClockDiary(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    entries: Vec<(String, ClockTrouble)>,
    renewals: usize,
}

impl Observer for ClockDiary {
    fn observe(&self, measure: &Measure<'_>) {
        let (server, trouble) = match *measure {
            Measure::ClockStep { server, by } => (server, ClockTrouble::Step { by }),
            Measure::ClockFrozen { server, stood } => (server, ClockTrouble::Frozen { stood }),
            Measure::Renewed { .. } => {
                self.lock().renewals += 1;
                return;
            }
            _ => return,
        };
        self.lock().entries.push((server.to_owned(), trouble));
    }
}

impl ClockDiary {
    /// All reports, in order.
    pub fn entries(&self) -> Vec<(String, ClockTrouble)> {
        self.lock().entries.clone()
    }

    /// How many renewals were answered, including those of waiting claims.
    pub fn renewals(&self) -> usize {
        self.lock().renewals
    }

    /// The first clock that was set ahead, and by how much.
    pub fn ahead(&self) -> Option<(String, Duration)> {
        self.entries().into_iter().find_map(|(server, trouble)| match trouble {
            ClockTrouble::Step { by: Shift::Ahead(by) } => Some((server, by)),
            _ => None,
        })
    }

    /// The first server whose clock stands still.
    pub fn frozen(&self) -> Option<String> {
        self.entries().into_iter().find_map(|(server, trouble)| match trouble {
            ClockTrouble::Frozen { .. } => Some(server),
            _ => None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
