//! Giving a lease back while its name stays closed for a while.
//!
//! The claim stays where it is, on a lease of its own that nobody keeps alive, and ends with that.
//! Its value gets another token, so no client finds the claim by the token that it had.
//!
//! Two exchanges for a claim that this client made, and two proposals; two exchanges more for a
//! claim of another client.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::rule::claim::{ClaimKey, Released, Standing, Token};

use super::Inner;
use super::book::Record;
use super::detail::Detail;
use super::keep;
use super::leases;
use super::left;
use super::wire::{Compare, RangeRequest, TxnRequest, put};

/// How often a claim is tried that its renewals write meanwhile.
const ROUNDS_MAX: usize = 8;

/// What became of a claim that was to be closed.
enum Closing {
    Done,
    /// It has another token already.
    DoneBefore,
    Changed,
}

pub(super) async fn keep_closed(inner: &Inner, key: &ClaimKey, stay: Duration) -> Result<Released> {
    let now = SystemClock.now();
    let known = inner.book.get(key);
    let mut own = known.filter(|own| own.held && own.until > now);
    let lease = leases::fresh_id();
    leases::grant_once(&inner.links, lease, stay).await?;
    for _ in 0..ROUNDS_MAX {
        let found = match own.take() {
            Some(own) => Some(own),
            None => keep::find(inner, key).await?.filter(|found| found.held),
        };
        let Some(found) = found else {
            leases::revoke(&inner.links, lease).await;
            // A claim that waits is no lease, and stays in line.
            return Ok(match keep::out(inner, &key.name).await? {
                Standing::Out { by: Some(holder), .. } => Released::TakenBy(holder),
                _ => Released::AlreadyExpired,
            });
        };
        match close(inner, &found, lease, stay).await? {
            Closing::Done => {}
            // An earlier request did it, and its answer was lost.
            Closing::DoneBefore => {
                leases::revoke(&inner.links, lease).await;
            }
            Closing::Changed => continue,
        }
        inner.book.closed(key, found.created, SystemClock.now());
        inner.queue.forget(&key.name, &key.token);
        left::end_empty(inner, BTreeSet::from([found.lease])).await;
        return Ok(Released::Released);
    }
    leases::revoke(&inner.links, lease).await;
    Err(inner.busy())
}

/// Moves a claim to the lease and gives it another token, if it is as the record says.
async fn close(inner: &Inner, record: &Record, lease: i64, stay: Duration) -> Result<Closing> {
    let detail = Detail { token: Token::retired(), ttl: stay, ..record.detail.clone() };
    let compare = vec![
        Compare::created(&record.key, record.created),
        Compare::modified(&record.key, record.seen),
    ];
    // Nobody keeps the lease: a client that evicts the claim ends it too.
    let left = put(&left::mark(inner, lease), b"", lease);
    let success = vec![put(&record.key, &detail.encode(), lease), left];
    let failure = vec![RangeRequest::one(&record.key).op()];
    let answer = inner.links.txn(&TxnRequest { compare, success, failure }).await;
    let answer = answer.map_err(|status| inner.links.translate(&status))?;
    if answer.succeeded {
        return Ok(Closing::Done);
    }
    let found = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
    let is_closed = found.is_some_and(|kv| {
        let token = Detail::token(&kv.value);
        kv.create_revision == record.created && token != Some(record.detail.token)
    });
    Ok(if is_closed { Closing::DoneBefore } else { Closing::Changed })
}
