//! The thread that drives an engine's connections.
//!
//! A lock lives as long as its session, and a session as long as somebody drives its connection.
//! Callers' runtimes end and block, so none of them may be that somebody: the engine has a thread
//! of its own. Callers await answers wherever they are.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// Ends the thread, and with it all connections, when it is dropped.
#[derive(Debug)]
pub(super) struct Crew {
    ashore: Arc<Notify>,
}

/// Where tasks of the engine are started.
#[derive(Debug, Clone)]
pub(super) struct Deck(Handle);

impl Crew {
    /// Starts the thread.
    pub(super) fn muster(store: &str) -> Result<(Crew, Deck)> {
        let failed = |error: std::io::Error| Error::Store {
            store: store.to_owned(),
            cause: format!("cannot start the thread for its connections: {error}"),
            transient: true,
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let deck = Deck(runtime.handle().clone());
        let ashore = Arc::new(Notify::new());
        let (ended, (ready, started)) = (Arc::clone(&ashore), sync_channel::<()>(1));
        let thread = std::thread::Builder::new().name("leasehold-advisory".into());
        let run = move || {
            // Nobody may have waited for it.
            let _unheard = ready.send(());
            runtime.block_on(ended.notified());
        };
        thread.spawn(run).map_err(failed)?;
        // It runs, or it ended and drops the sender; either way there is nothing to wait for.
        let _started = started.recv();
        Ok((Crew { ashore }, deck))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.ashore.notify_one();
    }
}

impl Deck {
    /// Runs a task on the engine's thread, whatever becomes of the caller.
    pub(super) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.spawn(task)
    }
}
