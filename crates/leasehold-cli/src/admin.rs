//! `stats`, `resize`, `bump-epoch` and `init`: what those who look after the locks ask for.

use leasehold::engine::{Bumped, Query};
use leasehold::{Fence, Name, Purpose};
use serde::Serialize;

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::store::Store;
use crate::table::align;
use crate::take;
use crate::text::escape;
use crate::view::warn_of_broken;

#[derive(Debug, Serialize)]
struct Stats {
    acquired: u64,
    released: u64,
    contended: u64,
    expired: u64,
    lost: u64,
    active: u64,
    waiting: u64,
    periods: u64,
    units: u64,
}

/// Claims in the lines that nobody works under.
#[derive(Debug, Default)]
struct Past {
    periods: u64,
    units: u64,
    records: u64,
}

async fn past(store: &Store) -> Result<Past, Failure> {
    let (mut past, mut query) = (Past::default(), Query::all());
    loop {
        let page = store.client.admin().inspect(&query).await?;
        for claim in page.lines.iter().flat_map(|line| &line.held) {
            match claim.purpose() {
                Purpose::Rate => past.units += 1,
                Purpose::Evicted => past.records += 1,
                purpose => past.periods += u64::from(purpose.is_past()),
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(past),
        }
    }
}

/// Counts what all clients did.
pub(crate) async fn stats(store: &Store) -> Outcome {
    let totals = store.client.admin().store_stats().await?;
    warn_of_broken(store, &store.client.admin().broken_lines().await?);
    let Past { periods, units, records } = past(store).await?;
    let stats = Stats {
        acquired: totals.counts.acquired,
        released: totals.counts.released,
        contended: totals.counts.contended,
        expired: totals.counts.expired,
        lost: totals.counts.lost,
        active: totals.active.saturating_sub(periods + units + records),
        waiting: totals.waiting,
        periods,
        units,
    };
    if store.voice.json {
        out::print_json(&stats)?;
        return Ok(exit::DONE);
    }
    let rows = [
        ("acquired", stats.acquired, "leases granted"),
        ("released", stats.released, "leases given back"),
        ("contended", stats.contended, "claims that had to wait or were refused"),
        ("expired", stats.expired, "leases whose time ran out"),
        ("lost", stats.lost, "leases their holder found lost"),
        ("active", stats.active, "leases held now"),
        ("waiting", stats.waiting, "claims in line now"),
        ("periods", stats.periods, "finished periods of `once` that are not over"),
        ("units", stats.units, "units of `rate` that are spent"),
    ];
    let rows = rows.map(|(what, count, meaning)| [what.into(), count.to_string(), meaning.into()]);
    out::print(&align(&rows))?;
    Ok(exit::DONE)
}

#[derive(Debug, Serialize)]
struct Resized<'a> {
    name: &'a str,
    limit: u32,
    before: Option<u32>,
}

/// Gives a semaphore another limit.
pub(crate) async fn resize(
    order: args::Resize,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&order.name)?;
    let store = open().await?;
    let resized = store.client.admin().resize(&name, order.permits).await;
    take::farewell(&store).await;
    let (limit, before) = (order.permits, resized?);
    if store.voice.json {
        out::print_json(&Resized { name: name.as_str(), limit, before })?;
        return Ok(exit::DONE);
    }
    let shown = escape(name.as_str());
    match before {
        Some(before) => out::print(&format!("`{shown}` has {limit} permits, {before} before\n"))?,
        None => store
            .voice
            .tell(&format!("nobody is in line for `{name}`: the next client sets its limit")),
    }
    Ok(exit::DONE)
}

#[derive(Debug, Serialize)]
struct Raised {
    raised: bool,
    before: Option<String>,
    from: Option<String>,
}

/// Lets fences go on above all that were given out.
pub(crate) async fn bump_epoch(
    order: args::BumpEpoch,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let store = open().await?;
    let bumped = store.client.admin().bump_epoch(order.above.map(Fence::from)).await;
    take::farewell(&store).await;
    let (before, from) = match bumped? {
        Bumped::Raised { before, from } => (Some(before.to_string()), Some(from.to_string())),
        _ => (None, None),
    };
    if store.voice.json {
        out::print_json(&Raised { raised: from.is_some(), before, from })?;
        return Ok(exit::DONE);
    }
    match (before, from) {
        (Some(before), Some(from)) => {
            out::print(&format!("fences go on at {from}; without this, at {before}\n"))?;
        }
        _ => store.voice.tell(&format!(
            "nothing to be done: no backup takes back the fences of `{}`",
            store.client.info().engine
        )),
    }
    Ok(exit::DONE)
}

/// Installs what the store needs, or prints it.
pub(crate) async fn init(store: &Store, init: &args::Init) -> Outcome {
    let info = store.client.info();
    if init.print {
        match &*store.client.admin().schema() {
            "" => store.voice.tell(&format!("`{}` needs nothing installed", info.engine)),
            schema => out::print(schema)?,
        }
        return Ok(exit::DONE);
    }
    store.client.admin().install().await?;
    store.voice.tell(&format!("`{}` is ready", info.store));
    Ok(exit::DONE)
}
