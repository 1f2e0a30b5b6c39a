//! Notices on the engine's thread that a connection ended, although nobody waits on it.
//!
//! Only the end: what servers say while they live wakes whoever it is for, and not this thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::crew::Deck;
use super::wire::Wire;

/// How many ends are taken at a time; the others next time.
const AT_A_TIME: usize = 32;

/// All connections of an engine.
#[derive(Debug)]
pub(super) struct Hangup {
    ends: Arc<OwnedFd>,
    wires: Arc<Mutex<HashMap<u64, Weak<Wire>>>>,
}

struct Ends(Arc<OwnedFd>);

impl AsRawFd for Ends {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Hangup {
    /// Begins to watch, on the engine's thread.
    pub(super) fn new(deck: &Deck) -> io::Result<Self> {
        let ends = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let wires = Arc::new(Mutex::new(HashMap::new()));
        let (watched, known) = (Ends(Arc::clone(&ends)), Arc::clone(&wires));
        let crew = deck.clone();
        deck.run(async move {
            if let Err(error) = watch(watched, &known, &crew).await {
                tracing::warn!(%error, "ends of lock sessions are found by heartbeats only");
            }
        });
        Ok(Self { ends, wires })
    }

    /// Watches one more connection, under a number of its own.
    pub(super) fn add(&self, id: u64, wire: &Arc<Wire>) -> io::Result<()> {
        {
            let mut wires = lock(&self.wires);
            wires.retain(|_, wire| wire.strong_count() > 0);
            wires.insert(id, Arc::downgrade(wire));
        }
        let flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.ends, wire.plug(), epoll::EventData::new_u64(id), flags)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(ends: Ends, wires: &Mutex<HashMap<u64, Weak<Wire>>>, deck: &Deck) -> io::Result<()> {
    #[allow(deprecated, reason = "its successor is unsafe to call; the descriptor stays open here")]
    let ends = AsyncFd::with_interest(ends, Interest::READABLE)?;
    loop {
        let mut ready = ends.readable().await?;
        let over = over(&ends.get_ref().0)?;
        if over.is_empty() {
            ready.clear_ready();
        }
        for id in over {
            let wire = lock(wires).remove(&id).and_then(|wire| wire.upgrade());
            if let Some(wire) = wire {
                deck.run(async move { wire.see_out().await });
            }
        }
    }
}

/// The connections that ended.
fn over(ends: &OwnedFd) -> io::Result<Vec<u64>> {
    let mut events = Vec::with_capacity(AT_A_TIME);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(ends, spare_capacity(&mut events), Some(&now))?;
    Ok(events.iter().map(|event| event.data.u64()).collect())
}
