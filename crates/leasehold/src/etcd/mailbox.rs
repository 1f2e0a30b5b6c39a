//! The standing watch: one on all of the store's keys, on which a client hears who leaves.
//!
//! It is open before the first claim that may wait is sent, and asks for nothing past, so the
//! server always has it in step; one that was opened for an old revision would be served late. When
//! it breaks, another is opened, if need be at another member, and everybody who waits asks again.

use std::sync::Weak;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::error::Result;

use super::Inner;
use super::keys::Owner;
use super::link::{Watch, lock};
use super::wire::{WatchCreate, WatchResponse};

/// The pause after a failed attempt to watch, doubled from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

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

/// Sees to it that this runtime has an open mailbox.
pub(super) async fn ensure(inner: &std::sync::Arc<Inner>) -> Result<()> {
    let desk = inner.links.desk();
    let is_open = || lock(&desk.mailbox).as_ref().is_some_and(|open| !open.task.is_finished());
    if is_open() {
        return Ok(());
    }
    let _turn = desk.opening.lock().await;
    if is_open() {
        return Ok(());
    }
    let watch = open(inner).await.map_err(|status| inner.links.translate(&status))?;
    let task = tokio::spawn(listen(std::sync::Arc::downgrade(inner), watch));
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
            }
        }
        match open_again(&inner).await {
            Some(opened) => watch = opened,
            None => return,
        }
        if let Some(inner) = inner.upgrade() {
            inner.belfry.ring_all();
        }
    }
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
        let Some((name, owner)) = inner.layout.read(&kv.key) else { continue };
        let own = match owner {
            Owner::Ours { token, .. } => Some(token),
            Owner::Foreign => None,
        };
        if let Some(token) = &own {
            inner.book.gone(token, kv.mod_revision);
        }
        for (token, fence) in inner.queue.departed(&name, &kv.key, own.as_ref(), kv.mod_revision) {
            inner.belfry.ring(&token, fence);
        }
    }
}
