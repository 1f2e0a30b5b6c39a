//! Events for those who watch.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::RedisResult;
use redis::aio::PubSubStream;

use crate::engine::{Event, Query};
use crate::error::Result;

use super::mailbox::subscribe_again;
use super::shape::unreachable;
use super::{Inner, answer};

/// How long messages may take from node to node of a Cluster.
const MARKS_MAX: Duration = Duration::from_secs(5);

struct Feed {
    inner: Arc<Inner>,
    query: Query,
    messages: PubSubStream,
    /// The connection broke, so events may be missing before the next.
    gap: bool,
    held_back: Option<Event>,
    /// What came in the last message and was not told yet.
    heard: std::vec::IntoIter<Event>,
}

pub(super) async fn watch(
    inner: Arc<Inner>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    let messages = subscribe(&inner).await.map_err(|error| inner.links.translate(&error))?;
    let feed =
        Feed { inner, query, messages, gap: false, held_back: None, heard: Vec::new().into_iter() };
    let next = |mut feed: Feed| async move { Some((Ok(feed.next().await), feed)) };
    Ok(stream::unfold(feed, next).boxed())
}

/// Subscribes, so that what comes from then on happened from then on.
async fn subscribe(inner: &Inner) -> RedisResult<PubSubStream> {
    let (shape, channel) = (&inner.links.shape, &inner.layout.events);
    let mut messages = shape.subscribe(&[channel]).await?;
    if !shape.is_cluster() {
        return Ok(messages);
    }
    // In a Cluster messages of other nodes arrive late, but those of one node in order: what
    // comes before a mark from each of them is from before.
    let mark = format!("mark:{:032x}", rand::random::<u128>());
    let mut awaited = 0;
    for mut server in shape.connect_each().await? {
        redis::cmd("PUBLISH").arg(channel).arg(&mark).exec_async(&mut server).await?;
        awaited += 1;
    }
    let marks = async {
        while awaited > 0 {
            match messages.next().await {
                Some(message) => {
                    awaited -= u32::from(message.get_payload_bytes() == mark.as_bytes());
                }
                None => return Err(unreachable("the subscription ended")),
            }
        }
        Ok(())
    };
    match tokio::time::timeout(MARKS_MAX, marks).await {
        Ok(arrived) => arrived.map(|()| messages),
        Err(_late) => Err(unreachable("the nodes of the Cluster do not hear each other")),
    }
}

impl Feed {
    async fn next(&mut self) -> Event {
        if let Some(event) = self.held_back.take() {
            return event;
        }
        loop {
            let event = self.next_message().await;
            if !self.query.admits_event(&event) {
                continue;
            }
            if std::mem::take(&mut self.gap) {
                // How many is not known.
                let missed = Event::missed(0, &event.name);
                self.held_back = Some(event);
                return missed;
            }
            return event;
        }
    }

    async fn next_message(&mut self) -> Event {
        loop {
            if let Some(event) = self.heard.next() {
                return event;
            }
            match self.messages.next().await {
                Some(message) => {
                    let heard = answer::events(message.get_payload_bytes(), &self.inner.layout);
                    self.heard = heard.into_iter();
                }
                None => {
                    let shape = &self.inner.links.shape;
                    self.messages = subscribe_again(shape, &[&self.inner.layout.events]).await;
                    self.gap = true;
                }
            }
        }
    }
}
