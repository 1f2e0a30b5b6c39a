//! The runtime that a blocking client and everything made by it share.

use std::ops::Deref;
use std::sync::Arc;

use tokio::runtime::Runtime;

/// A runtime that a forked child leaves alone: ending it would take the parent's connections out of
/// the list of sockets that the kernel watches for both.
#[derive(Debug, Clone)]
pub(super) struct SharedRuntime {
    /// Taken only on drop.
    runtime: Option<Arc<Runtime>>,
    /// The process that started it.
    process: u32,
}

impl SharedRuntime {
    pub(super) fn new(runtime: Runtime) -> Self {
        Self { runtime: Some(Arc::new(runtime)), process: std::process::id() }
    }
}

impl Deref for SharedRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.runtime.as_deref().expect("only a drop takes it")
    }
}

impl Drop for SharedRuntime {
    fn drop(&mut self) {
        let runtime = self.runtime.take();
        if self.process != std::process::id() {
            std::mem::forget(runtime);
        }
    }
}
