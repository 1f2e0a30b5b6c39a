//! The cost of a verb at the end of a line of 10 and of 10,000 waiting claims.
//!
//! It measures engine verbs, without a client around them: joining and leaving at the end, and a
//! release at the head, after which a new claim joins at the end.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold::Name;
use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Token};
use leasehold::engine::Engine;
use leasehold_testkit::servers::Redis as Server;

use crate::Result;
use crate::contender::{Contender, Outcome, Role, take_turns};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, span, times};
use crate::scenarios::Setting;
use crate::stats::{Samples, ratio_of_rounds};

const LENGTHS: [usize; 2] = [10, 9_990];
/// Longer than the whole scenario.
const LONG: Duration = Duration::from_secs(3_600);
const AT_ONCE: usize = 200;

/// A line whose length stays the same.
struct Queue {
    engine: leasehold::redis::Redis,
    claims: VecDeque<Claim>,
}

fn claim(name: &str) -> Result<Claim> {
    Ok(Claim {
        key: ClaimKey { name: Name::new(name)?, token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: LONG,
        patience: LONG,
        join: true,
    })
}

impl Queue {
    async fn of(url: &str, length: usize) -> Result<Self> {
        let engine = leasehold::redis::Redis::open(url).await?;
        let mut claims = VecDeque::with_capacity(length);
        while claims.len() < length {
            let some: Vec<Claim> = (0..AT_ONCE.min(length - claims.len()))
                .map(|_| claim(&format!("line:{length}")))
                .collect::<Result<_>>()?;
            try_join_all(some.iter().map(|claim| engine.claim(claim))).await?;
            claims.extend(some);
        }
        Ok(Self { engine, claims })
    }

    /// Joins at the end and leaves again, many times.
    async fn join_and_leave(&self, times: usize) -> Result<Samples> {
        let mut spans = Vec::with_capacity(times);
        for _ in 0..times {
            let claim = claim(self.claims[0].key.name.as_str())?;
            let begun = now();
            self.engine.claim(&claim).await?;
            self.engine.release(std::slice::from_ref(&claim.key)).await?;
            spans.push(now() - begun);
        }
        Ok(Samples::new(spans))
    }

    /// Releases the first claim, and lets a new one join at the end, many times.
    async fn move_up(&mut self, times: usize) -> Result<Samples> {
        let mut spans = Vec::with_capacity(times);
        for _ in 0..times {
            let Some(first) = self.claims.pop_front() else { return Err("no line".into()) };
            let last = claim(first.key.name.as_str())?;
            let begun = now();
            self.engine.release(std::slice::from_ref(&first.key)).await?;
            self.engine.claim(&last).await?;
            spans.push(now() - begun);
            self.claims.push_back(last);
        }
        Ok(Samples::new(spans))
    }
}

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Server::new().start_blocking()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let runtime = &runtime;
    let times = setting.either(50, 200);
    let mut lines = Vec::new();
    for length in LENGTHS {
        let line = runtime.block_on(Queue::of(server.url(), length))?;
        lines.push(std::rc::Rc::new(std::cell::RefCell::new(line)));
    }
    let mut contenders = Vec::new();
    for (line, length) in lines.iter().zip(LENGTHS) {
        let (joined, moved) = (line.clone(), line.clone());
        contenders.push(Contender::new(Role::Ours, format!("join + leave, {length}"), move || {
            let line = joined.borrow();
            runtime.block_on(line.join_and_leave(times))
        }));
        contenders.push(Contender::new(
            Role::Ours,
            format!("release + join, {length}"),
            move || {
                let mut line = moved.borrow_mut();
                runtime.block_on(line.move_up(times))
            },
        ));
    }
    let outcomes = take_turns(contenders, setting.either(5, 20), progress)?;
    Ok(report(&outcomes))
}

fn report(outcomes: &[Outcome<Samples>]) -> Report {
    let mut report = Report::default();
    let mut table = Table::new(["verbs, waiting claims", "p50", "p99", "to the short line"]);
    for (outcome, short) in outcomes.iter().zip(outcomes.iter().cycle().take(2).cycle()) {
        let all = Samples::pooled(&outcome.rounds);
        let ratio = ratio_of_rounds(&outcome.rounds, &short.rounds);
        table.row([outcome.name.clone(), span(all.p50()), span(all.p99()), times(ratio)]);
    }
    report.table(table);
    for (long, short) in [(2, 0), (3, 1)] {
        let ratio = ratio_of_rounds(&outcomes[long].rounds, &outcomes[short].rounds);
        let met = ratio.is_some_and(|ratio| ratio <= 2.0);
        let what = format!("Redis: {}", outcomes[long].name);
        report.target(what, "at most 2 × that of 10", times(ratio), met);
    }
    report
}
