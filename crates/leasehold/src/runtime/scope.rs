//! The user of a lease or a wait inside a client: a task, a thread, or a holder of its own.
//!
//! A waiting task keeps only the leases that it took itself. Another task of the same client will
//! give its own leases back. If the search counted those as part of a deadlock, it would break a
//! program that would have gone on.

use std::cell::Cell;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rule::claim::HolderId;

/// A task, a thread outside of all tasks, or a holder that does one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope(u64);

const KIND: u64 = 0b11;
const TASK: u64 = 1;
const THREAD: u64 = 2;
const ALONE: u64 = 3;
/// A task with a number from the caller.
const NUMBERED: u64 = 0;

/// The caller's own scope for the work that runs now on this thread.
#[derive(Debug, Clone, Copy)]
struct Said {
    scope: Scope,
    /// The tokio task in which the caller set it. Another task that the work drives, as a
    /// runtime's `block_on` does, is not part of the work.
    inside: Option<tokio::task::Id>,
}

thread_local! {
    static SAID: Cell<Option<Said>> = const { Cell::new(None) };
}

/// Runs `work` as a step of task `task`: its leases and waits belong to that task.
///
/// The search for deadlocks must know which leases a waiting task keeps. It tells tokio tasks apart
/// by itself. Callers with other tasks give each a number: an event loop of another language, or a
/// server whose sessions each use several tokio tasks for their requests. Equal numbers are one
/// task; the two highest bits do not count. Tokio tasks that `work` spawns or drives are tasks of
/// their own.
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::connect("memory:")?;
/// let session = 7;
/// let lease = leasehold::scope::within(session, || client.mutex("order:42").lock())?;
/// # lease.release()?;
/// # Ok(())
/// # }
/// ```
pub fn within<T>(task: u64, work: impl FnOnce() -> T) -> T {
    /// Also restores it when the work panics.
    struct Before(Option<Said>);
    impl Drop for Before {
        fn drop(&mut self) {
            SAID.set(self.0);
        }
    }
    let scope = Scope(task << 2 | NUMBERED);
    let _before = Before(SAID.replace(Some(Said { scope, inside: tokio::task::try_id() })));
    work()
}

/// Runs every step of a future as a step of task `task`; see [`within`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let session = 7;
/// let mutex = client.mutex("order:42");
/// let lease = leasehold::scope::of_task(session, mutex.lock()).await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// That of `work`: it is dropped with this future.
pub async fn of_task<F: Future>(task: u64, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| within(task, || work.as_mut().poll(context))).await
}

impl Scope {
    /// The scope that the caller set; else the present tokio task; outside of tasks, the thread.
    pub(crate) fn here() -> Self {
        // A thread that is being torn down may have no cell any more.
        let said = SAID.try_with(Cell::get).ok().flatten();
        if let Some(Said { scope, .. }) = said.filter(|said| said.inside == tokio::task::try_id()) {
            return scope;
        }
        match tokio::task::try_id() {
            Some(id) => {
                let mut number = Number(0);
                id.hash(&mut number);
                Self(number.0 << 2 | TASK)
            }
            None => Self(thread() << 2 | THREAD),
        }
    }

    /// A holder that does one thing at a time, in any of its tasks.
    pub(crate) fn alone(holder: HolderId) -> Self {
        let bits = holder.0 as u64 ^ (holder.0 >> 64) as u64;
        Self(bits << 2 | ALONE)
    }

    pub(crate) fn is_alone(self) -> bool {
        self.0 & KIND == ALONE
    }

    fn is_thread(self) -> bool {
        self.0 & KIND == THREAD
    }

    fn is_task(self) -> bool {
        matches!(self.0 & KIND, TASK | NUMBERED)
    }

    /// Whether a wait in `waiting` keeps a lease that was taken here until the wait has ended.
    ///
    /// A lease acquired outside of tasks counts as kept by every task that waits, because it was
    /// most likely passed to one. A lease acquired in a task belongs to that task alone.
    pub(crate) fn is_kept_by(self, waiting: Scope) -> bool {
        self == waiting || self.is_thread() && waiting.is_task()
    }
}

/// Counts the waits of this process, which puts uses of leases before or after a wait.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// When a wait began, as a number of waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitBegan(u64);

impl WaitBegan {
    pub(crate) fn now() -> Self {
        Self(WAITS.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The scope that uses a claim, and its last use.
#[derive(Debug)]
pub(crate) struct Usage {
    scope: AtomicU64,
    last: AtomicU64,
}

impl Usage {
    /// A use here and now.
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

    /// Records a use here. This may be another task than the one that took the claim. A thread
    /// outside of all tasks does not take a claim over from a task: an event loop of another
    /// language asks about the leases of its tasks there.
    pub(crate) fn touch(&self) {
        let (owner, here) = (self.scope(), Scope::here());
        let stays = owner.is_alone() || owner.is_task() && here.is_thread();
        if !stays {
            self.belongs_to(here);
        }
        self.last.store(WAITS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether the claim was used while a wait went on: then that wait does not keep it.
    pub(crate) fn is_used_since(&self, began: WaitBegan) -> bool {
        self.last.load(Ordering::Relaxed) >= began.0
    }
}

/// Reads the number of an id that shows it to hashers only.
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
    // A thread that is being torn down may have no cell any more. It does not wait.
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
    async fn lease_of_a_task_is_kept_by_its_own_waits_only() {
        let outside = Scope::here();
        let task = || async { tokio::spawn(async { Scope::here() }).await.expect("a scope") };
        let (one, two) = (task().await, task().await);
        assert!(one.is_kept_by(one) && outside.is_kept_by(outside));
        assert!(!one.is_kept_by(two) && !two.is_kept_by(one));
        assert!(outside.is_kept_by(one), "a lease from outside of tasks may be any task's");
        assert!(!one.is_kept_by(outside));
    }

    #[tokio::test]
    async fn numbered_task_is_the_same_in_every_tokio_task_and_thread() {
        let outside = Scope::here();
        let numbered = |number| tokio::spawn(of_task(number, async { Scope::here() }));
        let one = numbered(1).await.expect("a scope");
        let again = of_task(1, async {
            tokio::task::yield_now().await;
            Scope::here()
        });
        assert_eq!(one, again.await);
        assert_eq!(one, std::thread::spawn(|| within(1, Scope::here)).join().expect("a scope"));
        let two = numbered(2).await.expect("a scope");
        assert!(!one.is_kept_by(two) && outside.is_kept_by(two) && !two.is_kept_by(outside));
        assert_eq!(outside, Scope::here(), "it ends with its work");
        assert_eq!(within(1, || within(2, Scope::here)), two);
    }

    #[test]
    fn task_that_numbered_work_drives_is_another_task() {
        let driven = within(1, || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime");
            let root = runtime.block_on(async { Scope::here() });
            assert_eq!(root, Scope::here(), "the root of a runtime is no task");
            runtime
                .block_on(async { tokio::spawn(async { Scope::here() }).await.expect("a scope") })
        });
        assert_ne!(driven, within(1, Scope::here));
    }

    #[test]
    fn claim_of_a_task_stays_its_own_when_a_thread_uses_it() {
        let usage = within(1, Usage::here);
        let task = within(1, Scope::here);
        let began = WaitBegan::now();
        usage.touch();
        assert_eq!(usage.scope(), task, "this thread is outside of all tasks");
        assert!(usage.is_used_since(began), "the use counts");
        within(2, || usage.touch());
        assert_eq!(usage.scope(), within(2, Scope::here), "another task takes it over");
        let of_thread = Usage::here();
        within(1, || of_thread.touch());
        assert_eq!(of_thread.scope(), task);
    }

    #[test]
    fn use_during_a_wait_is_seen() {
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
