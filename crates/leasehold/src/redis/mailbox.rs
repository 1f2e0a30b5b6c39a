//! The mailbox: one subscription on which all bells of a client's claims arrive.
//!
//! A bell may be lost with the connection it was on its way through. So after each reconnect
//! everybody who waits asks again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisResult;
use redis::aio::PubSubStream;
use tokio::task::JoinHandle;

use crate::bell::Belfry;

use super::answer;
use super::shape::Shape;

/// The pause after a failed attempt to subscribe, doubled from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// An open mailbox. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Mailbox {
    id: Arc<str>,
    task: JoinHandle<()>,
}

impl Mailbox {
    /// Subscribes, and listens on this runtime from then on.
    pub(super) async fn open(shape: Arc<Shape>, belfry: Arc<Belfry>) -> RedisResult<Self> {
        let id = format!("{:032x}", rand::random::<u128>());
        let channel = format!("leasehold:mailbox:{id}");
        let messages = shape.subscribe(&channel).await?;
        let listening = listen(shape, channel, belfry, messages);
        Ok(Self { id: id.into(), task: tokio::spawn(listening) })
    }

    /// What claims carry to be rung here.
    pub(super) fn id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Whether its runtime has ended.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(
    shape: Arc<Shape>,
    channel: String,
    belfry: Arc<Belfry>,
    mut messages: PubSubStream,
) {
    loop {
        while let Some(message) = messages.next().await {
            match answer::bell(message.get_payload_bytes()) {
                Some((token, fence)) => belfry.ring(&token, fence),
                None => tracing::debug!("a message in the mailbox is no bell"),
            }
        }
        messages = subscribe_again(&shape, &channel).await;
        belfry.ring_all();
    }
}

/// Subscribes again, however long it takes.
pub(super) async fn subscribe_again(shape: &Shape, channel: &str) -> PubSubStream {
    let mut pause = PAUSE_FIRST;
    loop {
        match shape.subscribe(channel).await {
            Ok(messages) => return messages,
            Err(error) => tracing::debug!(%error, ?pause, "cannot subscribe"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}
