//! A number for the present thread, which spreads the writes of many threads over cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many shards there are: enough that the threads of one machine rarely share one.
pub(crate) const THREAD_SHARDS: usize = 16;

/// Gives the data of one shard cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// The shard of the present thread.
pub(crate) fn thread_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is being torn down may have no cell any more. It may use any shard.
    SHARD
        .try_with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(NEXT.fetch_add(1, Ordering::Relaxed) % THREAD_SHARDS);
            }
            shard.get()
        })
        .unwrap_or(0)
}
