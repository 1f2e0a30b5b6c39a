//! Who inside a client uses a lease or waits: a task, a thread, or a holder of its own.
//!
//! A wait stands in the way of giving back only what the same task took. What another task of the
//! same client took, that one will give back, and taking it for part of a deadlock would break a
//! program that would have gone on.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::claim::HolderId;

/// A task, a thread outside of all tasks, or a holder that does one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope(u64);

const KIND: u64 = 0b11;
const TASK: u64 = 1;
const THREAD: u64 = 2;
const ALONE: u64 = 3;

impl Scope {
    /// The task that this is called in; the thread, outside of tasks.
    pub(crate) fn here() -> Self {
        match tokio::task::try_id() {
            Some(id) => {
                let mut number = Number(0);
                id.hash(&mut number);
                Self(number.0 << 2 | TASK)
            }
            None => Self(thread() << 2 | THREAD),
        }
    }

    /// A holder that does one thing at a time, in whatever tasks.
    pub(crate) fn alone(holder: HolderId) -> Self {
        let bits = holder.0 as u64 ^ (holder.0 >> 64) as u64;
        Self(bits << 2 | ALONE)
    }

    pub(crate) fn is_alone(self) -> bool {
        self.0 & KIND == ALONE
    }

    /// Whether what was taken here may not be given back before a wait in `waiting` has ended.
    ///
    /// What was taken outside of tasks, and is waited under in one, was mostly handed to it. What
    /// was taken in a task belongs to that task alone.
    pub(crate) fn is_kept_by(self, waiting: Scope) -> bool {
        self == waiting || self.0 & KIND == THREAD && waiting.0 & KIND == TASK
    }
}

/// Counts the waits of this process, to tell what happened before one and what after.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// When a wait began, in waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitBegan(u64);

impl WaitBegan {
    pub(crate) fn now() -> Self {
        Self(WAITS.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Who uses a claim, and when somebody last did.
#[derive(Debug)]
pub(crate) struct Usage {
    scope: AtomicU64,
    last: AtomicU64,
}

impl Usage {
    /// It is used here and now.
    pub(crate) fn here() -> Self {
        let last = AtomicU64::new(WAITS.load(Ordering::Relaxed));
        Self { scope: AtomicU64::new(Scope::here().0), last }
    }

    pub(crate) fn scope(&self) -> Scope {
        Scope(self.scope.load(Ordering::Relaxed))
    }

    pub(crate) fn belongs_to(&self, scope: Scope) {
        self.scope.store(scope.0, Ordering::Relaxed);
    }

    /// Somebody uses it here, which may be another task than the one that took it.
    pub(crate) fn touch(&self) {
        if !self.scope().is_alone() {
            self.belongs_to(Scope::here());
        }
        self.last.store(WAITS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether somebody used it while a wait went on: then that wait stops nobody.
    pub(crate) fn is_used_since(&self, began: WaitBegan) -> bool {
        self.last.load(Ordering::Relaxed) >= began.0
    }
}

/// Takes the number out of an id that shows it to hashers only.
struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A number for the present thread.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THREAD_NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    // A thread that is being torn down may have no cell any more; it waits for nothing.
    THREAD_NUMBER
        .try_with(|number| {
            if number.get() == 0 {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_task_took_is_kept_by_its_own_waits_only() {
        let outside = Scope::here();
        let task = || async { tokio::spawn(async { Scope::here() }).await.expect("a scope") };
        let (one, two) = (task().await, task().await);
        assert!(one.is_kept_by(one) && outside.is_kept_by(outside));
        assert!(!one.is_kept_by(two) && !two.is_kept_by(one));
        assert!(outside.is_kept_by(one), "what was taken outside of tasks may be anybody's");
        assert!(!one.is_kept_by(outside));
    }

    #[test]
    fn what_is_used_while_a_wait_goes_on_is_seen() {
        let usage = Usage::here();
        usage.touch();
        let began = WaitBegan::now();
        assert!(!usage.is_used_since(began));
        usage.touch();
        assert!(usage.is_used_since(began) && !usage.is_used_since(WaitBegan::now()));
    }

    #[test]
    fn threads_and_holders_of_their_own_are_told_apart() {
        let here = Scope::here();
        let there = std::thread::spawn(Scope::here).join().expect("a scope");
        assert!(!here.is_kept_by(there) && !there.is_kept_by(here) && here == Scope::here());
        let (one, two) = (Scope::alone(HolderId(1)), Scope::alone(HolderId(2)));
        assert!(one.is_kept_by(one) && !one.is_kept_by(two) && !here.is_kept_by(one));
        assert!(one.is_alone() && !here.is_alone());
    }
}
