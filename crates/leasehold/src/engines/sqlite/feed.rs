//! Events for those who watch the file.
//!
//! A watcher enters itself with a time limit and prolongs it; verbs write events down only while
//! somebody is entered, and ring the watchers' mailboxes after the commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};

use crate::engine::{Event, Query};
use crate::error::Result;

use super::{Inner, file, store};

/// How long a watcher that died goes on costing the others an insert for each event.
const WATCH_FOR: Duration = Duration::from_secs(30);
/// How often a living one prolongs its stay; also how late a lost bell is made good.
const PROLONG_EVERY: Duration = Duration::from_secs(5);

struct Feed {
    inner: Arc<Inner>,
    query: Query,
    last: i64,
    ready: VecDeque<Event>,
    over: bool,
}

pub(super) async fn watch(
    inner: Arc<Inner>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    inner.feeds.fetch_add(1, Ordering::AcqRel);
    let mut feed = Feed { last: 0, ready: VecDeque::new(), over: false, inner, query };
    feed.enter().await?;
    let next = |mut feed: Feed| async move { feed.next().await.map(|item| (item, feed)) };
    Ok(stream::unfold(feed, next).boxed())
}

impl Feed {
    async fn enter(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        inner.bells.expect_events()?;
        let enter = || {
            file::transact(&inner.front(), |db| {
                let until = inner.clock.now() + WATCH_FOR;
                store::watch_until(db, inner.bells.mailbox(), until)?;
                store::last_event(db)
            })
        };
        self.last = inner.persist(enter).await?;
        Ok(())
    }

    /// The next event; after an error that will not go away, the end.
    async fn next(&mut self) -> Option<Result<Event>> {
        if self.over {
            return None;
        }
        let next = self.next_event().await;
        self.over = next.as_ref().is_err_and(|error| !error.is_transient());
        Some(next)
    }

    async fn next_event(&mut self) -> Result<Event> {
        let inner = Arc::clone(&self.inner);
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let bell = inner.bells.events().notified();
            tokio::pin!(bell);
            // From here on no bell is missed, also one that rings before the first await.
            bell.as_mut().enable();
            self.read().await?;
            if !self.ready.is_empty() {
                continue;
            }
            tokio::select! {
                () = bell => {}
                () = tokio::time::sleep(PROLONG_EVERY) => self.prolong().await?,
            }
        }
    }

    async fn read(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let last = self.last;
        let events = inner
            .persist(|| {
                let db = inner.front();
                file::read(&db, |db| store::events_after(db, last))
            })
            .await?;
        for (number, event) in events {
            if number > self.last + 1 {
                let missed = (number - self.last - 1) as u64;
                self.ready.push_back(Event::missed(missed, &event.name));
            }
            self.last = number;
            if self.query.admits_event(&event) {
                self.ready.push_back(event);
            }
        }
        Ok(())
    }

    async fn prolong(&self) -> Result<()> {
        let inner = &*self.inner;
        inner
            .persist(|| {
                let until = inner.clock.now() + WATCH_FOR;
                let db = inner.front();
                file::transact(&db, |db| store::watch_until(db, inner.bells.mailbox(), until))
            })
            .await
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if self.inner.feeds.fetch_sub(1, Ordering::AcqRel) > 1 {
            // Another one of this client still reads under the same mailbox.
            return;
        }
        // At worst the others go on writing events down until the time limit.
        let db = self.inner.front();
        let _at_worst = file::transact(&db, |db| store::unwatch(db, self.inner.bells.mailbox()));
    }
}
