//! The counts of all clients, spread over a few keys so that clients rarely meet at one.

use std::time::Duration;

use crate::engine::Counts;
use crate::error::{Error, Result};

use super::Inner;
use super::wire::{Compare, RangeRequest, RangeResponse, Span, TxnRequest, put};

/// How many keys the sums are spread over.
const SHARDS: u8 = 8;
/// How often adding is tried when others add to the same key.
const ROUNDS_MAX: usize = 16;

/// One key of the sums.
pub(super) struct Sum {
    pub(super) key: Vec<u8>,
    pub(super) modified: i64,
    counts: Counts,
}

impl Sum {
    /// The value with more added to it.
    pub(super) fn plus(&self, more: &Counts) -> String {
        let mut sum = self.counts;
        sum += *more;
        let Counts { acquired, released, contended, expired, lost } = sum;
        format!("{acquired} {released} {contended} {expired} {lost}")
    }
}

fn read(value: &[u8]) -> Counts {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    Counts { acquired: next(), released: next(), contended: next(), expired: next(), lost: next() }
}

/// One of the keys, whichever.
pub(super) async fn read_one(inner: &Inner) -> Result<Sum> {
    let shard = rand::random_range(0..SHARDS);
    let key = inner.layout.own(&format!("totals:{shard}"));
    let range: RangeResponse =
        inner.links.ask("/etcdserverpb.KV/Range", &RangeRequest::one(&key)).await?;
    Ok(match range.kvs.into_iter().next() {
        Some(kv) => Sum { key, modified: kv.mod_revision, counts: read(&kv.value) },
        None => Sum { key, modified: 0, counts: Counts::default() },
    })
}

pub(super) async fn add(inner: &Inner, counts: &Counts) -> Result<()> {
    if *counts == Counts::default() {
        return Ok(());
    }
    for round in 0..ROUNDS_MAX {
        let sum = read_one(inner).await?;
        let compare = vec![Compare::modified(&sum.key, sum.modified)];
        let success = vec![put(&sum.key, sum.plus(counts).as_bytes(), 0)];
        let request = TxnRequest { compare, success, failure: Vec::new() };
        let answer = inner.links.txn(&request).await;
        if answer.map_err(|status| inner.links.translate(&status))?.succeeded {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..=round as u64))).await;
    }
    Err(Error::Store {
        store: inner.links.store.clone(),
        cause: "too many count at once".into(),
        transient: true,
    })
}

pub(super) async fn total(inner: &Inner) -> Result<Counts> {
    let span = Span::prefix(&inner.layout.own("totals:"));
    let range: RangeResponse =
        inner.links.ask("/etcdserverpb.KV/Range", &RangeRequest::span(&span)).await?;
    let mut sum = Counts::default();
    for kv in range.kvs {
        sum += read(&kv.value);
    }
    Ok(sum)
}
