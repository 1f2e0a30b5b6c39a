//! Events for those who watch: a task with a connection of its own for each.
//!
//! A watcher enters itself with a time limit and prolongs it; verbs tell events only while somebody
//! is entered. The task reads on although nobody takes the events: what a server cannot deliver it
//! keeps, for all listeners.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::engine::{Event, EventKind, Query};
use crate::error::{Error, Result, UnreachableReason};
use crate::rule::claim::{Holder, HolderId};
use crate::rule::name::Name;

use super::super::link::{Argument, Messages, connect};
use super::super::{failure, settings::Settings};
use super::rows::micros;
use super::schema::Statements;

/// How many events a watcher may fall behind before it misses some.
const EVENTS_KEPT: usize = 1_024;

/// How long a watcher that died goes on costing the others a notification for each event.
const WATCH_FOR: Duration = Duration::from_secs(30);
/// How often a living one prolongs its stay.
const PROLONG_EVERY: Duration = Duration::from_secs(8);

/// The pause before a lost connection is made again.
const PAUSE: Duration = Duration::from_millis(250);

/// Begins to watch; events are told from the answer on.
pub(super) async fn watch(
    settings: Arc<Settings>,
    statements: Arc<Statements>,
    query: Query,
) -> Result<BoxStream<'static, Result<Event>>> {
    let (sender, receiver) = mpsc::channel(EVENTS_KEPT);
    let watcher = rand::random_range(1..i64::MAX);
    let mut feed = Feed { settings, statements, query, sender, watcher, missed: None };
    let line = feed.enter().await?;
    tokio::spawn(feed.run(line));
    let next = |mut receiver: mpsc::Receiver<Result<Event>>| async move {
        receiver.recv().await.map(|event| (event, receiver))
    };
    Ok(stream::unfold(receiver, next).boxed())
}

/// A connection on which events are told.
type Line = (Client, Messages);

struct Feed {
    settings: Arc<Settings>,
    statements: Arc<Statements>,
    query: Query,
    sender: mpsc::Sender<Result<Event>>,
    watcher: i64,
    /// How many events are missing before the next; zero where nobody knows.
    missed: Option<u64>,
}

impl Feed {
    /// Watches until nobody takes the events any more, or an error that will not go away.
    async fn run(mut self, line: Line) {
        let sender = self.sender.clone();
        tokio::select! {
            () = sender.closed() => {}
            () = self.follow_all(line) => {}
        }
        self.leave().await;
    }

    async fn follow_all(&mut self, mut line: Line) {
        loop {
            let Err(error) = self.follow(&mut line).await else { return };
            tracing::debug!(%error, "a watch is interrupted");
            self.missed.get_or_insert(0);
            line = loop {
                tokio::time::sleep(PAUSE).await;
                match self.enter().await {
                    Ok(line) => break line,
                    Err(error) if error.is_transient() => {}
                    Err(error) => {
                        // Whoever reads this knows that it was the last; if nobody does, so be it.
                        let _read = self.sender.send(Err(error)).await;
                        return;
                    }
                }
            };
        }
    }

    /// Connects, listens and enters.
    async fn enter(&mut self) -> Result<Line> {
        let (client, mut messages) = connect(&self.settings).await?;
        let statements = Arc::clone(&self.statements);
        let entered = async {
            client.batch_execute(&statements.listen_events).await?;
            prolong(&client, &statements, self.watcher).await
        };
        // Nothing is told before this watcher is entered, unless another one is.
        let limit = self.settings.exchange_limit;
        match tokio::time::timeout(limit, drive(&self.settings, &mut messages, entered, |_| {}))
            .await
        {
            Ok(Ok(())) => Ok((client, messages)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(failure::silent(&self.settings.store, "no answer", limit)),
        }
    }

    /// Follows the events over one connection until it is lost.
    async fn follow(&mut self, (client, messages): &mut Line) -> Result<()> {
        let (settings, statements) = (Arc::clone(&self.settings), Arc::clone(&self.statements));
        let watcher = self.watcher;
        loop {
            let quiet = async {
                tokio::time::sleep(PROLONG_EVERY).await;
                prolong(client, &statements, watcher).await
            };
            drive(&settings, messages, quiet, |payload| self.tell(payload)).await?;
        }
    }

    fn tell(&mut self, payload: &str) {
        // Anybody may notify; what is no event is not ours.
        let Some(event) = read(payload).filter(|event| self.query.admits_event(event)) else {
            return;
        };
        if let Some(count) = self.missed {
            match self.sender.try_send(Ok(Event::missed(count, &event.name))) {
                Ok(()) => self.missed = None,
                Err(_) => {
                    self.missed = Some(count + 1);
                    return;
                }
            }
        }
        if self.sender.try_send(Ok(event)).is_err() {
            self.missed = Some(1);
        }
    }

    /// At worst the others go on telling events until the time limit.
    async fn leave(&self) {
        let left = async {
            let (client, mut messages) = connect(&self.settings).await?;
            let arguments: [Argument<'_>; 1] = [(&self.watcher, Type::INT8)];
            let leaving = client.query_typed(&self.statements.unwatch, &arguments);
            drive(&self.settings, &mut messages, leaving, |_| {}).await.map(|_rows| ())
        };
        if let Err(error) = left.await {
            tracing::debug!(%error, "a watcher stays entered until its time is up");
        }
    }
}

/// Hands what is told to `tell` until `work` is done.
async fn drive<T>(
    settings: &Settings,
    messages: &mut Messages,
    work: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    mut tell: impl FnMut(&str),
) -> Result<T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                return done.map_err(|error| failure::error(&settings.store, error));
            }
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(told))) => tell(told.payload()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failure::error(&settings.store, error)),
                None => {
                    let (store, cause) = (&settings.store, "the connection was closed");
                    return Err(Error::unreachable(store, UnreachableReason::Broken, cause));
                }
            },
        }
    }
}

async fn prolong(
    client: &Client,
    statements: &Statements,
    watcher: i64,
) -> std::result::Result<(), tokio_postgres::Error> {
    let span = micros(WATCH_FOR);
    let arguments: [Argument<'_>; 2] = [(&watcher, Type::INT8), (&span, Type::INT8)];
    client.query_typed(&statements.watch, &arguments).await.map(|_rows| ())
}

/// Reads what `tell` in `rule.sql` wrote.
fn read(payload: &str) -> Option<Event> {
    let mut words = payload.splitn(6, ' ');
    let kind = words.next()?;
    let fence: u64 = words.next()?.parse().ok()?;
    let holder = u128::from_str_radix(words.next()?, 16).ok()?;
    let name_bytes: usize = words.next()?.parse().ok()?;
    let label_bytes: usize = words.next()?.parse().ok()?;
    let text = words.next()?;
    let (name, rest) = text.split_at_checked(name_bytes)?;
    let (label, reason) = rest.split_at_checked(label_bytes)?;
    let kind = match kind {
        "queued" => EventKind::Queued,
        "granted" => EventKind::Granted,
        "released" => EventKind::Released,
        "left" => EventKind::Left,
        "expired" => EventKind::Expired,
        "amended" => EventKind::Amended,
        "evicted" => EventKind::Evicted { reason: reason.to_owned() },
        _ => return None,
    };
    let holder = Holder::known(HolderId(holder), label).ok()?;
    Some(Event { kind, name: Name::new(name).ok()?, holder, fence: fence.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_whatever_its_name_contains() {
        let holder = format!("{:032x}", 7);
        let event = read(&format!("evicted 12 {holder} 4 3 a bcme why not")).expect("an event");
        assert_eq!(event.kind, EventKind::Evicted { reason: "why not".into() });
        assert_eq!(
            (event.name.as_str(), event.holder.label(), event.fence),
            ("a bc", "me ", 12_u64.into())
        );
        for odd in ["", "granted", "granted 1 x 1 1 ab", "granted 1 7 9 9 ab", "sung 1 7 1 1 ab"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
