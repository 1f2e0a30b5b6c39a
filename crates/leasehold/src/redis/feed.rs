//! Events for those who watch.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use redis::aio::PubSubStream;

use crate::engine::{Event, Query};
use crate::error::Result;

use super::mailbox::subscribe_again;
use super::{Inner, answer};

struct Feed {
    inner: Arc<Inner>,
    query: Query,
    messages: PubSubStream,
    /// The connection broke, so events may be missing before the next.
    gap: bool,
    held_back: Option<Event>,
}

pub(super) async fn watch(
    inner: Arc<Inner>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    let messages = inner.links.shape.subscribe(&inner.layout.events).await;
    let messages = messages.map_err(|error| inner.links.translate(&error))?;
    let feed = Feed { inner, query, messages, gap: false, held_back: None };
    let next = |mut feed: Feed| async move { Some((Ok(feed.next().await), feed)) };
    Ok(stream::unfold(feed, next).boxed())
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
            match self.messages.next().await {
                Some(message) => {
                    let event = answer::event(message.get_payload_bytes(), &self.inner.layout);
                    if let Some(event) = event {
                        return event;
                    }
                }
                None => {
                    let shape = &self.inner.links.shape;
                    self.messages = subscribe_again(shape, &self.inner.layout.events).await;
                    self.gap = true;
                }
            }
        }
    }
}
