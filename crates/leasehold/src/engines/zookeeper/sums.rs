//! The counts of all clients, spread over a few nodes so that clients rarely meet at one.

use std::time::Duration;

use crate::engine::Counts;
use crate::error::Result;

use super::Inner;
use super::read::make;
use super::session::Session;
use super::wire::{Request, Sort, code};

/// How many nodes the sums are spread over.
const SHARDS: u8 = 8;
/// How often adding is tried when others add to the same node.
const ROUNDS_MAX: usize = 16;

fn text(counts: &Counts) -> String {
    let Counts { acquired, released, contended, expired, lost } = counts;
    format!("{acquired} {released} {contended} {expired} {lost}")
}

fn read(data: &[u8]) -> Counts {
    let text = std::str::from_utf8(data).unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    Counts { acquired: next(), released: next(), contended: next(), expired: next(), lost: next() }
}

fn shard(inner: &Inner, number: u8) -> String {
    inner.layout.own(&format!("totals-{number}"))
}

/// The request that adds to one of the nodes, unless somebody else does in between.
pub(super) async fn addition(inner: &Inner, session: &Session, more: &Counts) -> Result<Request> {
    let path = shard(inner, rand::random_range(0..SHARDS));
    let (mut sum, version) = match inner.data(session, path.clone()).await? {
        Some((data, stat)) => (read(&data), stat.version),
        None => {
            let (login, store) = (inner.has_login(), &inner.info.store);
            make(session, path.clone(), Sort::Persistent, Vec::new(), login, store).await?;
            (Counts::default(), 0)
        }
    };
    sum += *more;
    Ok(Request::SetData { path, data: text(&sum).into_bytes(), version })
}

pub(super) async fn add(inner: &Inner, counts: &Counts) -> Result<()> {
    if *counts == Counts::default() {
        return Ok(());
    }
    let session = inner.pool.any().await?;
    for round in 0..ROUNDS_MAX {
        let addition = addition(inner, &session, counts).await?;
        match session.ask(addition).await?.code {
            code::OK => return Ok(()),
            code::BAD_VERSION | code::NO_NODE => {}
            error => return Err(inner.refusal(error)),
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..=round as u64))).await;
    }
    Err(inner.busy())
}

pub(super) async fn total(inner: &Inner) -> Result<Counts> {
    let session = inner.pool.any().await?;
    session.ask(Request::Sync { path: inner.layout.own("") }).await?;
    let mut sum = Counts::default();
    for number in 0..SHARDS {
        if let Some((data, _)) = inner.data(&session, shard(inner, number)).await? {
            sum += read(&data);
        }
    }
    Ok(sum)
}
