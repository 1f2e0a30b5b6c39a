//! Giving a lease back while its name stays closed for a while.
//!
//! The claim's node stays where it is. A node beside it says that nobody owns the claim any more,
//! and another one how long it stays; both are made in one transaction, and go with the claim. The
//! client that made the claim ends it by its own clock. If that client is gone, the session does.
//!
//! Two requests for a claim that this client made; those of a renewal by a handle for another one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::{Config, Error, Result};
use crate::rule::claim::{ClaimKey, Released, Standing};
use crate::seeded::{Seeded, seeded};

use super::Inner;
use super::ask::modes;
use super::book::Record;
use super::keep::{find, forget, out, ttl_node};
use super::leave::failed;
use super::mark;
use super::nodes::{Ours, closed_node, holds, ttl_stem};
use super::pool::{kept_for, timeout_for};
use super::read::Lineup;
use super::taken_up::{Stopped, answered, undisturbed};
use super::visit::{self, Found};
use super::wire::{Part, Request, code};

/// How often a claim is tried that others change meanwhile.
const ROUNDS_MAX: usize = 16;

/// What became of a claim that was to be closed.
enum Closing {
    Done,
    /// It is not there, nobody owns it, or it waits.
    Unfit,
}

pub(super) async fn keep_closed(inner: &Inner, key: &ClaimKey, stay: Duration) -> Result<Released> {
    refuse_unkept(inner, stay)?;
    let _asked = inner.book.ask(key);
    let closing = match find(inner, key).await? {
        Some(record) => close_own(inner, &record, stay).await?,
        None => {
            let sent = AtomicBool::new(false);
            undisturbed(|| close_by_handle(inner, key, stay, &sent)).await?
        }
    };
    match closing {
        Closing::Done => Ok(Released::Released),
        Closing::Unfit => {
            let session = inner.pool.any().await?;
            Ok(match out(inner, &session, &key.name).await? {
                Standing::Out { by: Some(holder), .. } => Released::TakenBy(holder),
                _ => Released::AlreadyExpired,
            })
        }
    }
}

/// Refuses a time for which no session lasts, as far as that is known.
fn refuse_unkept(inner: &Inner, stay: Duration) -> Result<()> {
    match inner.pool.servers().longest.get().map(kept_for) {
        Some(longest) if stay > longest && !seeded(Seeded::SpanBeyondTheSession) => {
            Err(Error::Config(Config::not_kept(inner.info.engine, stay, longest)))
        }
        _ => Ok(()),
    }
}

/// A claim that this client made. It stays in the book, for the sweep.
async fn close_own(inner: &Inner, record: &Record, stay: Duration) -> Result<Closing> {
    let session = &record.session;
    if stay > record.ttl {
        session.stretch(timeout_for(stay)).await?;
        mark::tell_longer(inner, session).await?;
        refuse_unkept(inner, stay)?;
    }
    for _ in 0..ROUNDS_MAX {
        let lineup = inner.read_line(session, &record.name).await?;
        let Some(at) = lineup.place(record.ours) else {
            forget(inner, &record.stay);
            return Ok(Closing::Unfit);
        };
        if !holds(modes(&lineup.entries[..at]), record.mode) {
            return Ok(Closing::Unfit);
        }
        // An earlier request may have closed it, if its answer was lost.
        let mut is_closed = lineup.is_closed(record.ours);
        if !is_closed {
            let parts = closing(inner, &lineup, (&record.paths[0], record.ours), stay);
            let reply = session.ask(Request::Multi(parts)).await?;
            is_closed = match failed(&inner.parts(&reply)?) {
                code::OK => true,
                code::NO_NODE | code::NODE_EXISTS => false,
                error => return Err(inner.refusal(error)),
            };
        }
        if is_closed {
            closed(inner, record, stay);
            return Ok(Closing::Done);
        }
    }
    Err(inner.busy())
}

/// A claim of this client is closed, and stays for so long: only the sweep touches it from now on.
pub(super) fn closed(inner: &Inner, record: &Record, stay: Duration) {
    let (line, until) = (inner.layout.line(&record.name), SystemClock.now() + stay);
    let marker = format!("{line}/{}", closed_node(record.ours));
    let ttl_path = format!("{line}/{}", ttl_name(record.ours, stay));
    inner.book.close(&record.stay, marker, ttl_path, until);
    inner.waits.end(&record.stay);
}

fn ttl_name(ours: Ours, stay: Duration) -> String {
    format!("{}-{}ms", ttl_stem(ours), stay.as_millis())
}

/// A claim that another client made: its session is taken up for a moment. `sent` says whether an
/// earlier try sent the transaction, whose answer may be lost.
async fn close_by_handle(
    inner: &Inner,
    key: &ClaimKey,
    stay: Duration,
    sent: &AtomicBool,
) -> Result<Closing, Stopped> {
    let reader = inner.pool.any().await?;
    let found = visit::seek_any(inner, &reader, key).await?;
    let Some(found) = found else { return Ok(Closing::Unfit) };
    if found.lineup.is_closed(found.ours) {
        return Ok(if sent.load(Ordering::Relaxed) { Closing::Done } else { Closing::Unfit });
    }
    let Found { lineup, at, ours, path, .. } = &found;
    if !holds(modes(&lineup.entries[..*at]), lineup.entries[*at].mode) {
        return Ok(Closing::Unfit);
    }
    // The time begins anew when the session is taken up, so it need not last for longer than that.
    let take_up = || visit::take_up(inner, &reader, key, &found, Some(stay));
    let Some(mut taken_up) = answered(take_up().await)? else { return Ok(Closing::Unfit) };
    refuse_unkept(inner, stay)?;
    let mut parts = closing(inner, lineup, (path, *ours), stay);
    parts.extend(taken_up.retimed(inner));
    sent.store(true, Ordering::Relaxed);
    let reply = answered(taken_up.session.ask(Request::Multi(parts)).await)?;
    let parts = inner.parts(&reply)?;
    match (failed(&parts), parts.first()) {
        (code::OK, _) => {}
        (code::NO_NODE, Some(Part::Failed(code::NO_NODE))) => return Ok(Closing::Unfit),
        (code::NO_NODE | code::NODE_EXISTS | code::BAD_VERSION, _) => {
            return Err(Stopped::TakenBack(inner.busy()));
        }
        (error, _) => return Err(inner.refusal(error).into()),
    }
    for _ in 0..ROUNDS_MAX {
        match taken_up.is_long_enough(inner).await {
            Ok(true) => break,
            Ok(false) => {}
            // Its client took it back, for as long as it needs.
            Err(Error::Unreachable { .. }) => return Ok(Closing::Done),
            Err(error) => return Err(error.into()),
        }
        // Somebody who has more on the session said so meanwhile.
        match take_up().await {
            Ok(Some(again)) => taken_up = again,
            _ => return Ok(Closing::Done),
        }
    }
    taken_up.session.leave();
    Ok(Closing::Done)
}

/// The requests that close a claim, in one transaction. They fail if it is closed already.
fn closing(
    inner: &Inner,
    lineup: &Lineup,
    (claim, ours): (&str, Ours),
    stay: Duration,
) -> Vec<Request> {
    let line = claim.rsplit_once('/').map_or("", |(line, _)| line);
    let path = |node: &str| format!("{line}/{node}");
    let mut parts = vec![Request::Check { path: claim.to_owned() }];
    let stem = ttl_stem(ours);
    parts.extend(lineup.ttl_nodes(&stem).map(|node| Request::Delete { path: path(node) }));
    parts.push(ttl_node(inner, path(&closed_node(ours))));
    parts.push(ttl_node(inner, path(&ttl_name(ours, stay))));
    parts
}
