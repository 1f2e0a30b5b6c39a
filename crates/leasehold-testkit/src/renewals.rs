//! Counts a client's reports about its renewals, including the heartbeats of waiting claims.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::Client;
use leasehold::observe::{Measure, Observer};

/// Counts exchanges; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    answered: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Renewals {
    /// A client whose renewals are counted.
    pub async fn of(url: &str) -> leasehold::Result<(Client, Self)> {
        let seen = Self::default();
        let client = Client::builder().observer(seen.clone()).connect(url).await?;
        Ok((client, seen))
    }

    /// How many exchanges were answered.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Why the others failed.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().expect("nobody panics").clone()
    }
}

impl Observer for Renewals {
    fn observe(&self, measure: &Measure<'_>) {
        match measure {
            Measure::Renewed { .. } => {
                self.answered.fetch_add(1, Ordering::SeqCst);
            }
            Measure::RenewalFailed { error, .. } => {
                self.failures.lock().expect("nobody panics").push(error.to_string());
            }
            _ => {}
        }
    }
}
