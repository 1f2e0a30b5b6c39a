//! `force-release`: takes a lock from those who hold it, or from one of them.
//!
//! It looks who holds first, and takes the lock only from the claims that it saw, by their fences.
//! A claim that is granted between the look and the order keeps the lock. A record that cannot be
//! read goes only if neither a fence nor a holder is named, and with it all that hold.

use std::io::{self, BufRead as _, IsTerminal as _};

use leasehold::engine::{BrokenLine, ClaimView, LineView, Query};
use leasehold::{Fence, Holder, Name};
use serde::Serialize;

use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::lines::{self, HOST, known_fence};
use crate::out;
use crate::record;
use crate::store::Store;
use crate::take;
use crate::text::escape;

/// How many other holders a refusal names.
const TOLD_MAX: usize = 3;

#[derive(Debug, Serialize)]
struct ForceReleased<'a> {
    name: &'a str,
    taken_from: Vec<&'a str>,
    reason: &'a str,
}

/// Takes a lock away.
pub(crate) async fn force_release(
    order: args::ForceRelease,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&order.name)?;
    check_order(&order.reason, order.yes)?;
    let store = open().await?;
    let page = store.client.admin().inspect(&Query::name(name.clone())).await?;
    let chosen = choose(&order, &name, page.lines.first())?;
    let broken = page.broken.first().filter(|_| !names_one(&order));
    if !page.broken.is_empty() && broken.is_none() && chosen.is_empty() {
        let message = format!("nothing was taken: the record of `{name}` cannot be read");
        return Err(Failure::new(exit::CONFLICT, message)
            .hint("without --fence and --from, the record goes with all that hold"));
    }
    let unread =
        |broken: &BrokenLine| format!("the record of `{name}` cannot be read: {}", broken.cause);
    let in_the_way = chosen.iter().map(|claim| in_the_way(&name, claim));
    let question: Vec<String> = broken.map(unread).into_iter().chain(in_the_way).collect();
    if !order.yes && !question.is_empty() && !confirm(&question)? {
        store.voice.tell("nothing was done");
        return Ok(exit::DECLINED);
    }
    let fences: Vec<Fence> = chosen.iter().map(|claim| claim.fence).collect();
    if !fences.is_empty() || broken.is_some() {
        record::write(&store, &name, &fences, &order.reason).await;
    }
    let losers = if broken.is_some() {
        store.client.admin().force_release(&name, &order.reason).await?
    } else {
        store.client.admin().force_release_fences(&name, &fences, &order.reason).await?
    };
    take::farewell(&store).await;
    report(&store, &name, &losers, &order.reason)
}

/// Refuses an order without a reason, and one that needs a terminal for its question and has none.
pub(crate) fn check_order(reason: &str, yes: bool) -> Result<(), Failure> {
    if reason.trim().is_empty() {
        return Err(Failure::usage("--reason is empty")
            .hint("say why: the holder that loses the lock will want to know"));
    }
    if !yes && !io::stdin().is_terminal() {
        return Err(Failure::usage("there is no terminal to ask on")
            .hint("give --yes if you are sure that the holder must lose the lock"));
    }
    Ok(())
}

/// Whether the order is not about all who hold.
fn names_one(order: &args::ForceRelease) -> bool {
    order.fence.is_some() || order.from.is_some()
}

/// The claims that are to lose the lock. It is refused if others hold it by now.
fn choose<'a>(
    order: &args::ForceRelease,
    name: &Name,
    line: Option<&'a LineView>,
) -> Result<Vec<&'a ClaimView>, Failure> {
    let held = line.map(|line| line.held.as_slice()).unwrap_or_default();
    let is_meant = |claim: &&ClaimView| {
        order.fence.is_none_or(|fence| claim.fence == fence)
            && order.from.as_ref().is_none_or(|label| claim.holder.label() == label)
    };
    let chosen: Vec<&ClaimView> = held.iter().filter(is_meant).collect();
    if chosen.is_empty() && !held.is_empty() {
        let first: Vec<String> = held.iter().take(TOLD_MAX).map(describe).collect();
        let more = match held.len() - first.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!("nothing was taken: `{name}` is held by {}{more}", first.join(", "));
        return Err(Failure::new(exit::CONFLICT, message));
    }
    Ok(chosen)
}

fn describe(claim: &ClaimView) -> String {
    let (label, words) = (claim.holder.label(), lines::purpose_words(claim));
    let fence = known_fence(claim).map_or_else(|| "?".to_owned(), |fence| fence.to_string());
    let on = match claim.note.fact(HOST) {
        Some(host) if !label.starts_with(host) => format!(" on {host}"),
        _ => String::new(),
    };
    format!("`{label}`{on} (fence {fence}){words}")
}

/// Describes a claim to the operator before it loses the lock.
pub(crate) fn in_the_way(name: &Name, claim: &ClaimView) -> String {
    let mut told = format!(
        "`{name}` is held by {} for {}, free in {} unless it is renewed",
        describe(claim),
        human(claim.age),
        human(claim.remaining),
    );
    match claim.note.text() {
        "" => {}
        note => told.push_str(&format!(": {note}")),
    }
    told
}

pub(crate) fn confirm(question: &[String]) -> Result<bool, Failure> {
    for line in question {
        exit::say_all(&(escape(line) + "\n"));
    }
    exit::say_all(
        "If the holder is alive, two may be at work until it notices.\nTake it away? [y/N] ",
    );
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

pub(crate) fn report(store: &Store, name: &Name, losers: &[Holder], reason: &str) -> Outcome {
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
