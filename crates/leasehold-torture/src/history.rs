//! The whole history of a run: the events of all processes in order, and what follows from them.
//!
//! From the events of one attempt follows for which time its lease was surely valid. Nothing is
//! judged here; that is left to `checks`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;

use crate::event::{Event, Instant, RUN, Want, What, ms};

/// One attempt of a worker to take a name.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Whose.
    pub worker: u32,
    /// Its number.
    pub number: u64,
    /// The name.
    pub name: String,
    /// As what.
    pub want: Want,
    /// The ttl that it asked for.
    pub ttl: Instant,
    /// How it asked.
    pub how: String,
    /// When it began.
    pub asked: Instant,
    /// When the worker knew that the claim stands in line.
    pub queued: Option<Instant>,
    /// The grant, if there was one.
    pub grant: Option<Grant>,
    /// How long the name must stay closed after the grant.
    pub closes: Option<Instant>,
    /// How the lease was given back, if its owner got so far.
    pub parting: Option<Parting>,
    /// When nothing more was to be expected of it: given back, refused, failed or dead.
    pub ended: Instant,
    /// Whether it ended so that nothing of it is left soon, as long as nothing is disturbed.
    pub settled: bool,
    /// The events, by their place in the history.
    pub events: Vec<usize>,
}

/// A lease, and when it was surely valid.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// When the library returned it.
    pub at: Instant,
    /// The store granted it no earlier than this.
    pub since: Instant,
    /// Its number.
    pub fence: u64,
    /// The end of the time in which nobody else may hold.
    pub end: Instant,
}

/// How a lease was given back.
#[derive(Debug, Clone)]
pub struct Parting {
    /// When its owner asked for it.
    pub asked: Instant,
    /// The safe end that the lease had said last.
    pub safe_until: Instant,
    /// When it was answered, and what.
    pub answer: Option<(Instant, String)>,
}

/// A stretch of time in which the claims of a worker, or of all, may lose their places.
#[derive(Debug, Clone)]
pub struct Disturbance {
    /// From when.
    pub from: Instant,
    /// To when.
    pub to: Instant,
    /// Which worker; [`RUN`] is all.
    pub worker: u32,
    /// Whether the store may have forgotten leases.
    pub forgets: bool,
}

/// Facts about the store that the checks need beside its history.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whether claims are granted in the order in which they joined.
    pub fifo: bool,
    /// Whether a lease lasts until its safe end although its owner is paused. It does not where the
    /// lock ends with a connection that others can cut.
    pub lasts_to_safe_end: bool,
    /// How long after the store forgot leases their owners may go on: until their next renewal, or
    /// until they see that their connection is gone.
    pub unaware: Instant,
    /// How long after such a fault the store may go on to forget: a master that was replaced
    /// learns of it later.
    pub settles: Instant,
    /// How long anything may take after the last fault.
    pub progress: Instant,
    /// How much later than asked a name opens that was to stay closed.
    pub opens_late: Instant,
    /// Whether each of several servers decides by itself, so that one of them may still have what
    /// the others gave back.
    pub has_copies: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            fifo: true,
            lasts_to_safe_end: true,
            unaware: ms(3_000),
            settles: 0,
            progress: ms(30_000),
            opens_late: 0,
            has_copies: false,
        }
    }
}

/// The longest time after which a store has dropped a claim with this ttl that nobody renews. A
/// session of ZooKeeper, and a lease of etcd, are longer than the ttl.
pub fn forgotten_after(ttl: Instant) -> Instant {
    ttl * 3 / 2 + ms(3_000)
}

/// A run, as it was written down.
#[derive(Debug, Clone)]
pub struct History {
    /// All events, in order.
    pub events: Vec<Event>,
    /// All attempts, in the order in which they began.
    pub attempts: Vec<Attempt>,
    /// When something was disturbed.
    pub disturbances: Vec<Disturbance>,
    /// When threads that were ready waited for a processor: from when to when, and for how long.
    pub delays: Vec<(Instant, Instant, Instant)>,
    /// What is known of the store.
    pub terms: Terms,
    /// When all faults were over; the end of the history if they never were.
    pub calm: Instant,
    /// The instant of the last event.
    pub last: Instant,
}

impl History {
    /// Reads every file of a folder that ends with `.jsonl`.
    pub fn read(folder: &Path, terms: Terms) -> io::Result<History> {
        let mut events = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                read_file(&fs::read_to_string(&path)?, &mut events)?;
            }
        }
        if events.is_empty() {
            return Err(io::Error::other("there is no history"));
        }
        Ok(History::of(events, terms))
    }

    /// Puts events in order and finds what follows from them.
    pub fn of(mut events: Vec<Event>, terms: Terms) -> History {
        events.sort_by_key(|event| event.at);
        let last = events.last().map_or(0, |event| event.at);
        let first = |wanted: &What| events.iter().find(|event| event.what == *wanted);
        let calm = first(&What::Calm).map_or(last, |event| event.at);
        let ends = ends_of_workers(&events);
        let disturbances = disturbances(&events, last);
        let mut attempts = attempts(&events, &terms);
        for attempt in &mut attempts {
            attempt.cut_at(ends.get(&attempt.worker).copied().unwrap_or(last));
        }
        let delays = events.iter().filter_map(|event| match event.what {
            What::Delayed { since, by } => Some((since, event.at, by)),
            _ => None,
        });
        let delays = delays.collect();
        History { events, attempts, disturbances, delays, terms, calm, last }
    }

    /// The attempts on each name, in the order in which they began.
    pub fn by_name(&self) -> BTreeMap<&str, Vec<&Attempt>> {
        let mut names: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
        for attempt in &self.attempts {
            names.entry(&attempt.name).or_default().push(attempt);
        }
        names
    }

    /// Whether something of this worker, or of all, was disturbed between two instants.
    pub fn is_disturbed(&self, worker: u32, from: Instant, to: Instant) -> bool {
        self.disturbances.iter().any(|one| {
            (one.worker == worker || one.worker == RUN) && one.from <= to && one.to >= from
        })
    }

    /// Whether the store may have forgotten, by `later`, what it granted to this worker at
    /// `earlier`, so that both may believe to hold until the earlier one's next renewal.
    pub fn may_have_forgotten(&self, worker: u32, earlier: Instant, later: Instant) -> bool {
        let fits = |one: &&Disturbance| one.worker == RUN || one.worker == worker || worker == RUN;
        self.disturbances.iter().filter(|one| one.forgets).filter(fits).any(|one| {
            let settled = one.to + self.terms.settles;
            if settled < earlier || one.from > later {
                return false;
            }
            let mut found = self.after(settled, self.terms.unaware);
            // A worker that is stopped sees nothing.
            let stops = self.disturbances.iter().filter(|stop| stop.worker == worker);
            let stops = stops.filter(|stop| stop.from <= found && stop.to >= one.from);
            let last = stops.map(|stop| stop.to).max().unwrap_or_default();
            if !self.terms.lasts_to_safe_end && last > settled {
                found = found.max(self.after(last, self.terms.unaware));
            }
            later <= found
        })
    }

    /// How much of a span threads of the run were kept waiting for a processor.
    pub fn delay(&self, from: Instant, to: Instant) -> Instant {
        let first = self.delays.partition_point(|(_, end, _)| *end <= from);
        let within = self.delays[first..].iter().take_while(|(begin, ..)| *begin < to);
        let parts = within.map(|(begin, end, by)| {
            // It is not known when in its span a delay was.
            let part = (*end).min(to) - (*begin).max(from);
            (*by).min(part)
        });
        parts.sum()
    }

    /// The instant at which this much time has passed since `from` without the delays.
    pub fn after(&self, from: Instant, span: Instant) -> Instant {
        let mut at = from + span;
        loop {
            let later = from + span + self.delay(from, at);
            if later <= at {
                return at;
            }
            at = later;
        }
    }
}

impl Attempt {
    /// The span in which the lease was surely valid, if it was granted.
    pub fn valid(&self) -> Option<(Instant, Instant)> {
        self.grant.filter(|grant| grant.end > grant.at).map(|grant| (grant.at, grant.end))
    }

    /// Whether the claim still stood in line at an instant.
    pub fn waits_at(&self, at: Instant) -> bool {
        let until = self.grant.map_or(self.ended, |grant| grant.at);
        self.queued.is_some_and(|queued| queued < at) && until > at
    }

    /// When the name is to open after this lease was given back, if it stays closed.
    pub fn due(&self) -> Option<Instant> {
        Some(self.grant?.at + self.closes?)
    }

    /// When it opens at the latest.
    pub fn opens(&self, terms: &Terms) -> Option<Instant> {
        Some(self.due()? + terms.opens_late)
    }

    /// The worker has ended at this instant: nobody acts on its lease afterwards.
    fn cut_at(&mut self, end: Instant) {
        self.ended = self.ended.min(end);
        if let Some(grant) = &mut self.grant {
            grant.end = grant.end.min(end.max(grant.at));
        }
    }
}

fn read_file(text: &str, events: &mut Vec<Event>) -> io::Result<()> {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        match serde_json::from_str(line) {
            Ok(event) => events.push(event),
            // A worker that was killed may have been in the middle of its last line.
            Err(_) if lines.peek().is_none() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn ends_of_workers(events: &[Event]) -> HashMap<u32, Instant> {
    let ends = events.iter().filter_map(|event| match event.what {
        What::Ended { target } => Some((target, event.at)),
        _ => None,
    });
    ends.collect()
}

fn disturbances(events: &[Event], last: Instant) -> Vec<Disturbance> {
    let mut open: HashMap<u32, Disturbance> = HashMap::new();
    let mut done = Vec::new();
    for event in events {
        match &event.what {
            What::Fault { number, target, forgets, .. } => {
                let (from, worker, forgets) = (event.at, *target, *forgets);
                open.insert(*number, Disturbance { from, to: last, worker, forgets });
            }
            What::Healed { number } => {
                if let Some(one) = open.remove(number) {
                    done.push(Disturbance { to: event.at, ..one });
                }
            }
            What::Stalled { since } => done.push(Disturbance {
                from: *since,
                to: event.at,
                worker: event.worker,
                forgets: false,
            }),
            _ => {}
        }
    }
    done.extend(open.into_values());
    done
}

/// An attempt while its events are read.
struct Reading {
    attempt: Attempt,
    /// The safe end that the lease said last.
    until: Instant,
    /// When the lease last said that it is held.
    seen: Instant,
    /// The end of validity, once it is known.
    end: Option<Instant>,
}

fn attempts(events: &[Event], terms: &Terms) -> Vec<Attempt> {
    let mut order = Vec::new();
    let mut readings: HashMap<(u32, u64), Reading> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        let key = (event.worker, event.attempt);
        if let What::Asks { name, want, how, closed_ms, ttl_ms } = &event.what {
            let attempt = Attempt {
                worker: event.worker,
                number: event.attempt,
                name: name.clone(),
                want: *want,
                ttl: ms(*ttl_ms),
                how: how.clone(),
                asked: event.at,
                queued: None,
                grant: None,
                closes: closed_ms.map(ms),
                parting: None,
                ended: Instant::MAX,
                settled: false,
                events: Vec::new(),
            };
            readings.insert(key, Reading { attempt, until: 0, seen: 0, end: None });
            order.push(key);
        }
        if let Some(reading) = readings.get_mut(&key) {
            reading.attempt.events.push(index);
            reading.read(event);
        }
    }
    let last = events.last().map_or(0, |event| event.at);
    order.iter().filter_map(|key| Some(readings.remove(key)?.finished(terms, last))).collect()
}

impl Reading {
    fn read(&mut self, event: &Event) {
        let at = event.at;
        match &event.what {
            What::Queued => self.attempt.queued = self.attempt.queued.or(Some(at)),
            What::Granted { fence, until } => {
                let since = until.saturating_sub(self.attempt.ttl).clamp(self.attempt.asked, at);
                self.attempt.grant = Some(Grant { at, since, fence: *fence, end: at });
                (self.until, self.seen) = (*until, at);
            }
            What::Held { until } | What::Adopted { until } => {
                (self.until, self.seen, self.end) = (*until, at, None);
            }
            What::Lost { .. } => {
                self.stop(at);
                self.attempt.ended = at;
            }
            What::Detached => self.stop(at),
            What::Releases => {
                self.stop(at);
                let safe_until = self.until;
                self.attempt.parting = Some(Parting { asked: at, safe_until, answer: None });
            }
            What::Released { answer } => {
                if let Some(parting) = &mut self.attempt.parting {
                    parting.answer = Some((at, answer.clone()));
                }
                self.attempt.ended = at;
                self.attempt.settled = true;
                // A release that was repeated until its lease had ended may not have come through.
                if answer == "released" && at < self.until {
                    self.stay_closed();
                }
            }
            What::Refused => {
                self.attempt.ended = at;
                self.attempt.settled = true;
            }
            What::Failed { .. } => self.attempt.ended = at,
            _ => {}
        }
    }

    fn stop(&mut self, at: Instant) {
        if self.end.is_none() {
            self.end = Some(at);
        }
    }

    /// Nobody else may hold before the name opens. The store counts in milliseconds, and some
    /// stores round.
    fn stay_closed(&mut self) {
        const ROUNDING: Instant = ms(100);
        if let (Some(grant), Some(closed)) = (&self.attempt.grant, self.attempt.closes) {
            let opens = (grant.at + closed).saturating_sub(ROUNDING);
            let end = self.end.unwrap_or(opens).max(opens);
            (self.end, self.until, self.seen) = (Some(end), self.until.max(opens), end);
        }
    }

    fn finished(self, terms: &Terms, last: Instant) -> Attempt {
        let mut attempt = self.attempt;
        attempt.ended = attempt.ended.min(last);
        if let Some(grant) = &mut attempt.grant {
            let safe = if terms.lasts_to_safe_end { self.until } else { self.seen };
            grant.end = self.end.unwrap_or(last).min(safe).max(grant.at);
        }
        attempt
    }
}
