//! Messages to holders: one key that is written for each, and a watch on it for each who listens.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};

use crate::engine::HolderMessage;
use crate::error::Result;

use super::Inner;
use super::link::Watch;
use super::wire::{TxnRequest, WatchCreate, put};

/// What an event of a key that was written is.
const PUT: i32 = 0;

fn key(inner: &Inner) -> Vec<u8> {
    inner.layout.own("holders")
}

pub(super) async fn send(inner: &Inner, message: &HolderMessage) -> Result<()> {
    let write = put(&key(inner), message.to_text().as_bytes(), 0);
    let request = TxnRequest { success: vec![write], ..TxnRequest::default() };
    let sent = inner.links.txn(&request).await;
    sent.map(drop).map_err(|status| inner.links.translate(&status))
}

pub(super) async fn listen(inner: &Arc<Inner>) -> Result<BoxStream<'static, HolderMessage>> {
    let create = WatchCreate { key: key(inner), ..WatchCreate::default() };
    let moved = inner.links.moves();
    let watch = inner.links.watch(&create).await;
    let watch = watch.map_err(|status| inner.links.translate(&status))?;
    let next = |(mut watch, mut moved): (Watch, tokio::sync::watch::Receiver<usize>)| async move {
        let member = watch.member;
        let response = tokio::select! {
            response = watch.next() => response?,
            // A member that does not answer requests will not tell of messages either.
            _ = moved.wait_for(|current| *current != member) => return None,
        };
        let puts = response.events.into_iter().filter(|event| event.kind == PUT);
        let texts = puts.filter_map(|event| event.kv).map(|kv| kv.value);
        let read = |text: Vec<u8>| HolderMessage::of_text(&String::from_utf8_lossy(&text));
        let messages: Vec<HolderMessage> = texts.filter_map(read).collect();
        Some((stream::iter(messages), (watch, moved)))
    };
    Ok(stream::unfold((watch, moved), next).flatten().boxed())
}
