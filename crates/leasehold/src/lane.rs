//! A number for the present thread, to spread what many threads write over several cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many lanes there are: enough that the threads of one machine rarely share one.
pub(crate) const LANES: usize = 16;

/// Keeps what one lane writes off the cache lines of the others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane<T>(pub(crate) T);

/// The lane of the present thread.
pub(crate) fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is being torn down may have no cell any more; any lane will do for it.
    LANE.try_with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
        }
        lane.get()
    })
    .unwrap_or(0)
}
