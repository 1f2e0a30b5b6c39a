//! Leases that outlive their client because detached claims are on them.
//!
//! All claims of a client share its leases, so nobody else ends one of them, not even an empty one:
//! the client's next claim may be on its way to it. A client that closes has no next claim. It says
//! so by a key on each lease that it leaves, and whoever takes the last claim off such a lease ends
//! it, and that key with it. From the moment it says so, a lease only loses keys.

use std::collections::BTreeSet;

use super::Inner;
use super::feed;
use super::leases;
use super::lineup::read_many;
use super::wire::{LeaseRequest, RangeRequest, TimeToLive, TxnRequest, put};

/// Says of leases that their client is gone.
pub(super) async fn leave(inner: &Inner, leases: &BTreeSet<i64>) {
    for lease in leases {
        let success = vec![put(&mark(inner, *lease), b"", *lease)];
        let request = TxnRequest { success, ..TxnRequest::default() };
        if let Err(status) = inner.links.txn(&request).await {
            tracing::debug!(code = ?status.code(), "a lease that is left ends by itself");
        }
    }
}

/// Ends those of these leases whose client is gone and whose claims are too.
///
/// What is on a lease is asked for only if it was left: on one of a client that lives there may be
/// all of its claims.
pub(super) async fn end_empty(inner: &Inner, leases: BTreeSet<i64>) {
    for lease in those_left(inner, leases).await {
        let request = LeaseRequest { id: lease, keys: true };
        let path = "/etcdserverpb.Lease/LeaseTimeToLive";
        let asked = inner.links.try_ask::<_, TimeToLive>(path, &request).await;
        // What cannot be told ends by itself.
        let is_empty = asked.is_ok_and(|answer| answer.keys == [mark(inner, lease)]);
        // While somebody watches, its end would be taken for that of the claim that was on it.
        if is_empty && !feed::is_watched(inner).await {
            leases::revoke(&inner.links, lease).await;
        }
    }
}

/// Those of these leases of others whose client is gone. One that says so later than it is asked
/// here looks by itself whether anything is left.
async fn those_left(inner: &Inner, leases: BTreeSet<i64>) -> Vec<i64> {
    let others = leases.into_iter().filter(|lease| *lease != 0 && !inner.leases.has(*lease));
    let others: Vec<i64> = others.collect();
    let reads = others.iter().map(|lease| RangeRequest::one(&mark(inner, *lease)));
    let reads = reads.map(|range| range.without_values().op()).collect();
    match read_many(inner, reads).await {
        Ok(found) => {
            let marked = others.into_iter().zip(found);
            let marked = marked.filter(|(_, (range, _))| !range.kvs.is_empty());
            marked.map(|(lease, _)| lease).collect()
        }
        Err(error) => {
            tracing::debug!(%error, "leases that may be left end by themselves");
            Vec::new()
        }
    }
}

/// The key that says of a lease that no client has a use for it but the claims on it.
pub(super) fn mark(inner: &Inner, lease: i64) -> Vec<u8> {
    inner.layout.own(&format!("left:{lease:x}"))
}
