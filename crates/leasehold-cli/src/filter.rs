//! Which claims `list` shows: those that hold or wait for long.

use std::time::Duration;

use leasehold::Purpose;
use leasehold::engine::ClaimView;

use crate::args;

/// Without a bound it admits all claims. A bound admits only claims of its kind.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    held_for: Option<Duration>,
    waiting_for: Option<Duration>,
}

impl Filter {
    pub(crate) fn of(list: &args::List) -> Self {
        Self { held_for: list.held_for, waiting_for: list.waiting_for }
    }

    pub(crate) fn admits_all(&self) -> bool {
        self.held_for.is_none() && self.waiting_for.is_none()
    }

    /// A bound leaves out finished periods of `once`, spent units of `rate`, and locks of unknown
    /// age.
    pub(crate) fn admits_held(&self, claim: &ClaimView) -> bool {
        // The record of a force-release is shown with the name that it is about.
        if claim.purpose() == Purpose::Evicted {
            return false;
        }
        match self.held_for {
            Some(span) => claim.age >= span && !claim.is_foreign() && !claim.purpose().is_past(),
            None => self.waiting_for.is_none(),
        }
    }

    pub(crate) fn admits_waiting(&self, claim: &ClaimView) -> bool {
        match self.waiting_for {
            Some(span) => claim.age >= span,
            None => self.held_for.is_none(),
        }
    }
}
