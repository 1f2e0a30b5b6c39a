//! The mailbox: one subscription on which all bells of a client's claims arrive, and messages to
//! holders.
//!
//! A bell may be lost with the connection it was on its way through. So after each reconnect
//! everybody who waits asks again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use redis::RedisResult;
use redis::aio::PubSubStream;
use tokio::task::JoinHandle;

use crate::engine::HolderMessage;
use crate::engine::kit::hearers::Hearers;

use super::bells::Bells;
use super::shape::Shape;

/// The pause after a failed attempt to subscribe, doubled from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// An open mailbox. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Mailbox {
    id: Arc<str>,
    task: JoinHandle<()>,
    hearers: Hearers,
}

impl Mailbox {
    /// Subscribes, and listens on this runtime from then on.
    pub(super) async fn open(
        shape: Arc<Shape>,
        bells: Arc<Bells>,
        for_holders: String,
    ) -> RedisResult<Self> {
        let id = format!("{:032x}", rand::random::<u128>());
        let channels = Channels { bells: format!("leasehold:mailbox:{id}"), for_holders };
        let messages = shape.subscribe(&channels.all()).await?;
        let hearers = Hearers::default();
        let listening = listen(shape, channels, (bells, hearers.clone()), messages);
        Ok(Self { id: id.into(), task: tokio::spawn(listening), hearers })
    }

    /// Messages to holders from now on.
    pub(super) fn listen(&self) -> BoxStream<'static, HolderMessage> {
        self.hearers.listen()
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

/// What a mailbox hears.
struct Channels {
    bells: String,
    for_holders: String,
}

impl Channels {
    fn all(&self) -> [&str; 2] {
        [&self.bells, &self.for_holders]
    }
}

async fn listen(
    shape: Arc<Shape>,
    channels: Channels,
    (bells, hearers): (Arc<Bells>, Hearers),
    mut messages: PubSubStream,
) {
    let _end = hearers.end_with_this();
    loop {
        while let Some(message) = messages.next().await {
            if message.get_channel_name() == channels.for_holders {
                hearers.tell_text(&String::from_utf8_lossy(message.get_payload_bytes()));
            } else if !bells.ring(message.get_payload_bytes()) {
                tracing::debug!("a message in the mailbox is no bell of a claim that waits here");
            }
        }
        messages = subscribe_again(&shape, &channels.all()).await;
        bells.ring_all();
        hearers.missed();
    }
}

/// Subscribes again, however long it takes.
pub(super) async fn subscribe_again(shape: &Shape, channels: &[&str]) -> PubSubStream {
    let mut pause = PAUSE_FIRST;
    loop {
        match shape.subscribe(channels).await {
            Ok(messages) => return messages,
            Err(error) => tracing::debug!(%error, ?pause, "cannot subscribe"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}
