//! Histories made by hand, in milliseconds.

use super::{Judged, Tally, Violation, judge};
use crate::event::{Event, RUN, Want, What, ms};
use crate::history::{History, Terms};

/// A history that is being made.
#[derive(Debug, Default)]
pub(super) struct Sample {
    events: Vec<Event>,
    pub(super) terms: Terms,
}

/// One attempt of a worker, to which events are added.
#[derive(Debug)]
pub(super) struct Step<'a> {
    sample: &'a mut Sample,
    worker: u32,
    attempt: u64,
}

impl Sample {
    pub(super) fn run(&mut self, at: u64, what: What) -> &mut Self {
        self.events.push(Event { at: ms(at), worker: RUN, attempt: 0, what });
        self
    }

    /// An attempt that is asked for exclusively; the worker is the attempt's number too.
    pub(super) fn asks(&mut self, worker: u32, at: u64) -> Step<'_> {
        self.wants(worker, at, Want::Exclusive)
    }

    pub(super) fn wants(&mut self, worker: u32, at: u64, want: Want) -> Step<'_> {
        let attempt = self.events.len() as u64 + 1;
        let (name, how) = ("n".to_owned(), "lock".to_owned());
        let asks = What::Asks { name, want, ttl_ms: 2_000, how, closed_ms: None };
        Step { sample: self, worker, attempt }.add(at, asks)
    }

    /// An attempt that holds for a while and gives back.
    pub(super) fn tenure(&mut self, worker: u32, fence: u64, from: u64, to: u64) -> &mut Self {
        self.asks(worker, from - 1).granted(from, fence).released(to);
        self
    }

    /// A fault for a worker, or for all.
    pub(super) fn fault(&mut self, target: u32, forgets: bool, from: u64, to: u64) -> &mut Self {
        let (number, kind) = (self.events.len() as u32, "test".to_owned());
        self.run(from, What::Fault { number, kind, target, forgets });
        self.run(to, What::Healed { number })
    }

    pub(super) fn sees(&mut self, at: u64, worker: u32, term: u64) -> &mut Self {
        self.events.push(Event { at: ms(at), worker, attempt: 0, what: What::Leads { term } });
        self
    }

    pub(super) fn access(&mut self, at: u64, of: u64, fence: u64, wrote: Option<u64>) -> &mut Self {
        let (name, by) = ("n".to_owned(), 1);
        self.run(at, What::Access { name, by, of, fence, accepted: true, wrote })
    }

    pub(super) fn found(&self) -> Vec<Violation> {
        self.verdict().0
    }

    fn verdict(&self) -> (Vec<Violation>, Tally) {
        judge(&History::of(self.events.clone(), self.terms))
    }

    /// How much a check judged, and excused.
    pub(super) fn judged(&self, check: &str) -> (usize, usize) {
        let Judged { judged, excused } = self.verdict().1.get(check).copied().unwrap_or_default();
        (judged, excused)
    }

    /// The checks that found something.
    pub(super) fn checks(&self) -> Vec<&'static str> {
        self.found().iter().map(|violation| violation.check).collect()
    }
}

impl Step<'_> {
    pub(super) fn add(self, at: u64, what: What) -> Self {
        let (worker, attempt) = (self.worker, self.attempt);
        self.sample.events.push(Event { at: ms(at), worker, attempt, what });
        self
    }

    pub(super) fn how(self, how: &str) -> Self {
        if let Some(Event { what: What::Asks { how: old, .. }, .. }) = self.sample.events.last_mut()
        {
            *old = how.to_owned();
        }
        self
    }

    pub(super) fn closed(self, span: u64) -> Self {
        if let Some(Event { what: What::Asks { closed_ms, .. }, .. }) =
            self.sample.events.last_mut()
        {
            *closed_ms = Some(span);
        }
        self
    }

    pub(super) fn queued(self, at: u64) -> Self {
        self.add(at, What::Queued)
    }

    /// Granted, and safe for two seconds.
    pub(super) fn granted(self, at: u64, fence: u64) -> Self {
        self.add(at, What::Granted { fence, until: ms(at + 2_000) })
    }

    pub(super) fn held(self, at: u64) -> Self {
        self.add(at, What::Held { until: ms(at + 2_000) })
    }

    pub(super) fn lost(self, at: u64) -> Self {
        self.add(at, What::Lost { cause: "expired".to_owned() })
    }

    pub(super) fn released(self, at: u64) -> Self {
        self.add(at, What::Releases).add(at + 1, What::Released { answer: "released".to_owned() })
    }
}
