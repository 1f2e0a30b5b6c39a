//! The standing watch: one on all of the store's keys, on which a client hears who leaves.
//!
//! It is opened for the first claim that has to wait, which asks once more when it is, and stays
//! open for as long as somebody waits now and then: who never waits does not pay for hearing of
//! every lock that is given back. It asks for nothing past, so the server always has it in step;
//! one that was opened for an old revision would be served late. When it breaks, another is opened,
//! if need be at another member, and everybody who waits asks again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::error::Result;

use super::Inner;
use super::link::{Desk, Watch, lock};
use super::wire::{WatchCreate, WatchResponse};

/// The pause after a failed attempt to watch, doubled from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// How long a watch stays open that nobody needs: opening it again costs two exchanges.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Leaves out the puts: who comes is behind everybody, and changes nothing.
const NO_PUTS: i32 = 0;
/// What an event of a key that is gone is.
const DELETED: i32 = 1;

/// An open mailbox. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Mailbox {
    task: JoinHandle<()>,
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether this runtime hears who leaves. It goes on to for as long as a claim is in the queue.
pub(super) fn is_open(inner: &Inner) -> bool {
    inner.links.desk().hears()
}

impl Desk {
    fn hears(&self) -> bool {
        lock(&self.mailbox).as_ref().is_some_and(|open| !open.task.is_finished())
    }
}

/// Sees to it that this runtime has an open mailbox.
pub(super) async fn ensure(inner: &Arc<Inner>) -> Result<()> {
    let desk = inner.links.desk();
    if desk.hears() {
        return Ok(());
    }
    let _turn = desk.opening.lock().await;
    if desk.hears() {
        return Ok(());
    }
    let watch = open(inner).await.map_err(|status| inner.links.translate(&status))?;
    let task = tokio::spawn(listen(Arc::downgrade(inner), watch));
    *lock(&desk.mailbox) = Some(Mailbox { task });
    Ok(())
}

async fn open(inner: &Inner) -> Result<Watch, tonic::Status> {
    let span = inner.layout.all();
    let create = WatchCreate {
        key: span.from,
        range_end: span.to,
        filters: vec![NO_PUTS],
        ..WatchCreate::default()
    };
    inner.links.watch(&create).await
}

async fn listen(inner: Weak<Inner>, mut watch: Watch) {
    let mut idle_at = tokio::time::Instant::now() + IDLE_MAX;
    loop {
        let Some(mut moved) = inner.upgrade().map(|inner| inner.links.moves()) else { return };
        let member = watch.member;
        loop {
            tokio::select! {
                message = watch.next() => match (message, inner.upgrade()) {
                    (Some(message), Some(inner)) => hear(&inner, message),
                    _ => break,
                },
                // Whoever does not answer requests will not tell of departures either.
                _ = moved.wait_for(|current| *current != member) => break,
                () = tokio::time::sleep_until(idle_at) => match inner.upgrade() {
                    Some(inner) if !close_if_idle(&inner) => {
                        idle_at = tokio::time::Instant::now() + IDLE_MAX;
                    }
                    _ => return,
                },
            }
        }
        match open_again(&inner).await {
            Some(opened) => watch = opened,
            None => return,
        }
        if let Some(inner) = inner.upgrade() {
            inner.queue.missed();
            inner.bell_registry.ring_all();
        }
    }
}

/// Closes this runtime's mailbox if nobody needed it lately. Who is about to wait is in the queue
/// before it looks whether the mailbox is open: one of the two sees the other.
fn close_if_idle(inner: &Inner) -> bool {
    let desk = inner.links.desk();
    let mut mailbox = lock(&desk.mailbox);
    if inner.queue.was_used() || inner.book.is_long() {
        return false;
    }
    *mailbox = None;
    true
}

/// Watches again, however long it takes; `None` if nobody needs it any more.
async fn open_again(inner: &Weak<Inner>) -> Option<Watch> {
    let mut pause = PAUSE_FIRST;
    loop {
        let strong = inner.upgrade()?;
        match open(&strong).await {
            Ok(watch) => return Some(watch),
            Err(status) => tracing::debug!(code = ?status.code(), ?pause, "cannot watch"),
        }
        drop(strong);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

fn hear(inner: &Inner, message: WatchResponse) {
    let departures = message.events.into_iter().filter(|event| event.kind == DELETED);
    for kv in departures.filter_map(|event| event.kv) {
        let Some((name, _)) = inner.layout.read(&kv.key) else { continue };
        inner.book.gone(&kv.key, kv.mod_revision);
        for (token, wake) in inner.queue.departed(&name, &kv.key, kv.mod_revision) {
            inner.bell_registry.ring(&token, wake);
        }
    }
}
