//! `watch`: prints events as they happen, one line each, until the user ends it.

use std::future::Future;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::Name;
use leasehold::engine::{Event, EventKind, Query};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::record;
use crate::signals::Signals;
use crate::store::Store;
use crate::take;
use crate::text::{escape, wall_clock_ago};

/// An event, as one line of JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    at: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
}

impl<'a> Line<'a> {
    fn of(event: &'a Event) -> Self {
        let (reason, missed) = match &event.kind {
            EventKind::Evicted { reason } => (Some(reason.as_str()), None),
            EventKind::Missed(count) => (None, Some(*count)),
            _ => (None, None),
        };
        // Missed events have no name.
        let known = missed.is_none();
        Self {
            at: wall_clock_ago(Duration::ZERO),
            event: word(&event.kind),
            name: known.then(|| event.name.as_str()),
            holder: known.then(|| event.holder.label()),
            fence: known.then(|| event.fence.to_string()),
            reason,
            by: None,
            missed,
        }
    }

    fn text(&self) -> String {
        let mut words = vec![self.at.clone(), format!("{:<8}", self.event)];
        if let Some(count) = self.missed {
            words.push(format!("{count} events: this watcher was too slow"));
        }
        words.extend(self.name.map(escape));
        words.extend(self.holder.map(escape));
        words.extend(self.fence.as_ref().map(|fence| format!("fence {fence}")));
        words.extend(self.by.as_ref().map(|by| format!("by {}", escape(by))));
        words.extend(self.reason.map(|reason| format!("reason: {}", escape(reason))));
        words.join("  ") + "\n"
    }
}

fn word(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::Queued => "queued",
        EventKind::Granted => "granted",
        EventKind::Released => "released",
        EventKind::Left => "left",
        EventKind::Expired => "expired",
        EventKind::Amended => "amended",
        EventKind::Evicted { .. } => "evicted",
        EventKind::Missed(_) => "missed",
        _ => "other",
    }
}

/// Prints events until a signal comes or the reader goes away.
pub(crate) async fn watch(
    watch: args::Watch,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let query = match &watch.name {
        Some(name) => Query::name(Name::new(name)?),
        None => Query::all(),
    };
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    let mut events = store.client.admin().watch(&query).await?;
    let mut reader_gone = std::pin::pin!(reader_gone());
    let outcome = loop {
        let event = tokio::select! {
            biased;
            signal = signals.ending(|| {}) => break Ok(exit::of_signal(signal as i32)),
            () = &mut reader_gone => break Ok(exit::DONE),
            event = events.next() => event,
        };
        let printed = match event {
            Some(Ok(event)) => {
                let by = taker(&store, &event).await;
                print(&store, &Line { by, ..Line::of(&event) })
            }
            Some(Err(error)) => break Err(error.into()),
            None => break Ok(exit::DONE),
        };
        if let Err(error) = printed {
            break Err(error.into());
        }
    };
    drop(events);
    take::farewell(&store).await;
    outcome
}

/// The operator who took a lease. The event does not name it, but the record does.
async fn taker(store: &Store, event: &Event) -> Option<String> {
    let EventKind::Evicted { .. } = event.kind else { return None };
    let record = record::of_lease(&store.client, &event.name, event.fence).await?;
    Some(record.by)
}

fn print(store: &Store, line: &Line<'_>) -> io::Result<()> {
    match store.voice.json {
        true => out::print_json(line),
        false => out::print(&line.text()),
    }
}

/// Ends when the reader of standard output is gone, so that `watch | head -1` does not wait for
/// the next event. Never ends if this process cannot see that, for example with a file.
pub(crate) fn reader_gone() -> impl Future<Output = ()> {
    // A copy, used only to notice its errors and never written to. Its mode stays as it is, because
    // other processes share it.
    let output = io::stdout().as_fd().try_clone_to_owned();
    let output = output.and_then(Sender::from_owned_fd_unchecked);
    async move {
        match output {
            Ok(output) => {
                let _gone = output.ready(Interest::ERROR).await;
            }
            Err(_unknowable) => std::future::pending().await,
        }
    }
}
