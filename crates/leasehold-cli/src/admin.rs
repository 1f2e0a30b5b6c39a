//! `stats`, `force-release`, `resize`, `bump-epoch` and `init`: what those who look after the locks
//! ask for.

use std::io::{self, BufRead as _, IsTerminal as _};

use leasehold::engine::Bumped;
use leasehold::{Holder, Name};
use serde::Serialize;

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::store::Store;
use crate::take;
use crate::text::escape;
use crate::view::align;

#[derive(Debug, Serialize)]
struct Stats {
    acquired: u64,
    released: u64,
    contended: u64,
    expired: u64,
    lost: u64,
    active: u64,
    waiting: u64,
}

/// Counts what all clients did.
pub(crate) async fn stats(store: &Store) -> Outcome {
    let totals = store.client.store_stats().await?;
    let stats = Stats {
        acquired: totals.counts.acquired,
        released: totals.counts.released,
        contended: totals.counts.contended,
        expired: totals.counts.expired,
        lost: totals.counts.lost,
        active: totals.active,
        waiting: totals.waiting,
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
    ];
    let rows = rows.map(|(what, count, meaning)| [what.into(), count.to_string(), meaning.into()]);
    out::print(&align(&rows))?;
    Ok(exit::DONE)
}

#[derive(Debug, Serialize)]
struct ForceReleased<'a> {
    name: &'a str,
    taken_from: Vec<&'a str>,
    reason: &'a str,
}

/// Takes a lock from whoever holds it.
pub(crate) async fn force_release(
    order: args::ForceRelease,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&order.name)?;
    if order.reason.trim().is_empty() {
        return Err(Failure::usage("--reason is empty")
            .hint("say why; whoever lost the lock will want to know"));
    }
    if !order.yes && !io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask on")
            .hint("give --yes if you are sure that the holder must lose the lock"));
    }
    let store = open().await?;
    if !order.yes && !confirm(&store, &name).await? {
        store.voice.tell("nothing was done");
        return Ok(exit::DONE);
    }
    let losers = store.client.force_release(&name, &order.reason).await?;
    take::farewell(&store).await;
    report(&store, &name, &losers, &order.reason)
}

async fn confirm(store: &Store, name: &Name) -> Result<bool, Failure> {
    let line = store.client.show(name).await?;
    let held = line.map(|line| line.held).unwrap_or_default();
    if held.is_empty() {
        return Ok(true);
    }
    let holders: Vec<String> =
        held.iter().map(|claim| format!("`{}`", escape(claim.holder.label()))).collect();
    exit::say_all(&format!(
        "`{}` is held by {}.\nIf the holder is alive, two may be at work until it notices.\n\
         Take it away? [y/N] ",
        escape(name.as_str()),
        holders.join(", ")
    ));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn report(store: &Store, name: &Name, losers: &[Holder], reason: &str) -> Outcome {
    if store.voice.json {
        let taken_from = losers.iter().map(Holder::label).collect();
        out::print_json(&ForceReleased { name: name.as_str(), taken_from, reason })?;
    } else if losers.is_empty() {
        store.voice.tell(&format!("nobody held `{name}`"));
    } else {
        for holder in losers {
            let (name, label) = (escape(name.as_str()), escape(holder.label()));
            out::print(&format!("`{name}` was taken from `{label}`\n"))?;
        }
    }
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
    let resized = store.client.resize(&name, order.permits).await;
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
            .tell(&format!("nobody is in line for `{name}`: whoever comes next sets its limit")),
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
    let bumped = store.client.bump_epoch(order.above).await;
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
        match store.client.schema() {
            "" => store.voice.tell(&format!("`{}` needs nothing installed", info.engine)),
            schema => out::print(schema)?,
        }
        return Ok(exit::DONE);
    }
    store.client.install().await?;
    store.voice.tell(&format!("`{}` is ready", info.store));
    Ok(exit::DONE)
}
