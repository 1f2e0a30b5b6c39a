//! An observer that writes down what a client tells of the clocks of its store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::remote::{ClockTrouble, Shift};
use leasehold::observe::{Measure, Observer};

/// What was told of clocks, and of which servers. Clones are the same diary.
#[derive(Debug, Clone, Default)]
pub struct ClockDiary(Arc<Mutex<Vec<(String, ClockTrouble)>>>);

impl Observer for ClockDiary {
    fn observe(&self, measure: &Measure<'_>) {
        let (server, trouble) = match *measure {
            Measure::ClockStep { server, by } => (server, ClockTrouble::Step { by }),
            Measure::ClockFrozen { server, stood } => (server, ClockTrouble::Frozen { stood }),
            _ => return,
        };
        self.lock().push((server.to_owned(), trouble));
    }
}

impl ClockDiary {
    /// Everything that was told, in order.
    pub fn entries(&self) -> Vec<(String, ClockTrouble)> {
        self.lock().clone()
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

    fn lock(&self) -> MutexGuard<'_, Vec<(String, ClockTrouble)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
