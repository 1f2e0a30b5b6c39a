//! What clients say of their long waits: a key for each, which begins with the holder's id.
//!
//! It is on the lease that claims of the same life are on, so it needs no keep-alive of its own,
//! and a client that dies takes it along.

use crate::engine::{Notice, Wait};
use crate::error::Result;
use crate::rule::claim::HolderId;

use super::wire::{RangeRequest, RangeResponse, RequestOp, Span, TxnRequest, delete, put};
use super::{Inner, failure};

fn key_of(inner: &Inner, holder: HolderId, client: &str) -> Vec<u8> {
    inner.layout.own(&format!("notice:{:032x}:{client}", holder.0))
}

pub(super) async fn announce(inner: &Inner, notice: &Notice) -> Result<()> {
    let key = key_of(inner, notice.holder, &format!("{:032x}", notice.client));
    if notice.waits.is_empty() {
        return send(inner, delete(&key)).await.map_err(|status| inner.links.translate(&status));
    }
    let term = inner.leases.term(notice.keep);
    let lease = term.obtain(&inner.links, notice.keep).await?;
    let said = send(inner, put(&key, notice.text().as_bytes(), lease.id)).await;
    said.map_err(|status| {
        if failure::is_lease_gone(&status) {
            // The next word gets another one.
            term.forget(lease.id);
        }
        inner.links.translate(&status)
    })
}

async fn send(inner: &Inner, op: RequestOp) -> std::result::Result<(), tonic::Status> {
    let request = TxnRequest { success: vec![op], ..TxnRequest::default() };
    inner.links.txn(&request).await.map(|_done| ())
}

pub(super) async fn waits_of(inner: &Inner, holder: HolderId) -> Result<Vec<Wait>> {
    let span = Span::prefix(&key_of(inner, holder, ""));
    let range: RangeResponse =
        inner.links.ask("/etcdserverpb.KV/Range", &RangeRequest::span(&span)).await?;
    let texts = range.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value));
    Ok(texts.flat_map(|text| Wait::read(&text)).collect())
}
