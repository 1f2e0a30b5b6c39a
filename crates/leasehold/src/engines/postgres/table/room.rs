//! The connections of one runtime: a few for verbs, one for bells.
//!
//! A connection's driver is a task of the runtime that made it. So each runtime has its own: the
//! keeper's renewals never depend on a caller's blocked runtime, and nobody's answer takes a
//! detour over another thread. Exchanges share connections and never wait for a free one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

use super::super::link::Link;
use super::Inner;
use super::bells::Ear;

/// How long after a failure to open one more connection none is opened beside those there are.
const GROW_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Room {
    links: Mutex<Vec<Arc<Link>>>,
    /// Held by whoever opens the first connection; the others wait for it and share its failure.
    opening: tokio::sync::Mutex<Option<Error>>,
    growing: AtomicBool,
    grow_after: Mutex<Option<Instant>>,
    pub(super) ear: Ear,
}

impl Room {
    /// A connection for one exchange.
    pub(super) async fn link(self: &Arc<Self>, inner: &Arc<Inner>) -> Result<Arc<Link>> {
        if let Some(link) = self.least_busy(inner) {
            return Ok(link);
        }
        let first = self.opening.try_lock().is_ok();
        let mut failed = self.opening.lock().await;
        if let Some(link) = self.least_busy(inner) {
            return Ok(link);
        }
        if let Some(error) = failed.as_ref().filter(|_| !first) {
            // Somebody tried while this one waited: one time limit for all, not one after another.
            return Err(error.clone());
        }
        *failed = None;
        match inner.open_link().await {
            Ok(link) => {
                let link = Arc::new(link);
                self.links().push(Arc::clone(&link));
                Ok(link)
            }
            Err(error) => {
                *failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Whether its runtime, or everything in it, has ended.
    pub(super) fn is_over(&self) -> bool {
        self.links().iter().all(|link| !link.is_usable())
    }

    fn least_busy(self: &Arc<Self>, inner: &Arc<Inner>) -> Option<Arc<Link>> {
        let mut links = self.links();
        links.retain(|link| link.is_usable());
        let link = links.iter().min_by_key(|link| link.busy()).cloned()?;
        let more = link.busy() > 0 && links.len() < inner.settings.connections;
        drop(links);
        if more {
            self.grow(inner);
        }
        Some(link)
    }

    /// Opens one more connection, in the background: those there are go on in the meantime.
    fn grow(self: &Arc<Self>, inner: &Arc<Inner>) {
        let later = self.grow_after().is_some_and(|after| after > Instant::now());
        if later || self.growing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (room, inner) = (Arc::clone(self), Arc::clone(inner));
        tokio::spawn(async move {
            match inner.open_link().await {
                Ok(link) => room.links().push(Arc::new(link)),
                Err(error) => {
                    tracing::debug!(%error, "no further connection; those there are will do");
                    *room.grow_after() = Some(Instant::now() + GROW_PAUSE);
                }
            }
            room.growing.store(false, Ordering::Release);
        });
    }

    fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow_after(&self) -> MutexGuard<'_, Option<Instant>> {
        self.grow_after.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
