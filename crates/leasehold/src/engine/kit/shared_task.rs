//! A task of an engine's own thread that callers' threads may poll as well.
//!
//! An engine's connections live on a thread of its own, so a caller that blocks its runtime cannot
//! hold up other callers' locks. But waking that thread takes longer than the task's work. So a
//! thread that has work for the task, or sees data for it, *pushes* the task: it polls it directly.
//!
//! Only one thread polls at a time, and the others do not wait. They set a flag, and the polling
//! thread checks the flag before it stops. If no thread pushes, every wake-up of the task wakes the
//! engine's thread, which polls it then.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

/// How often a thread polls the task in one push, before it leaves it to the engine's thread.
const POLLS_MAX: usize = 64;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that several threads may push.
pub(crate) struct SharedTask {
    home: Handle,
    /// None when the task is over.
    task: Mutex<Option<Task>>,
    /// The task's waker, set at its first turn.
    waker: OnceLock<Waker>,
    /// Whether a thread wanted a turn while another thread polled the task.
    missed: AtomicBool,
    /// Whether a thread polls the task now, and will check `missed` afterwards.
    polling: AtomicBool,
}

/// The outcome of an attempt to poll the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PollOutcome {
    /// The task is over.
    Over,
    /// The task was polled.
    Done,
    /// Another thread polls the task.
    Refused,
}

impl std::fmt::Debug for SharedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedTask")
    }
}

impl SharedTask {
    /// Starts a task on the thread of `home`.
    pub(crate) fn start(
        home: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<Self> {
        let shared_task = Arc::new(Self {
            home: home.clone(),
            // A push must not stop because the pushing task has used up its tokio budget.
            task: Mutex::new(Some(Box::pin(tokio::task::unconstrained(task)))),
            waker: OnceLock::new(),
            missed: AtomicBool::new(false),
            polling: AtomicBool::new(false),
        });
        let polling = Polling(Arc::clone(&shared_task));
        home.spawn(poll_fn(move |context| {
            let Polling(shared_task) = &polling;
            shared_task.waker.get_or_init(|| {
                let (shared_task, home) = (Arc::downgrade(shared_task), context.waker().clone());
                Waker::from(Arc::new(WakeHome { shared_task, home }))
            });
            match shared_task.try_poll() {
                PollOutcome::Over => Poll::Ready(()),
                PollOutcome::Done | PollOutcome::Refused => Poll::Pending,
            }
        }));
        shared_task
    }

    /// Polls the task until it has nothing to do for now. Returns false if another thread polls
    /// it, or if the task itself calls this. Then the task gets another turn after this one.
    pub(crate) fn poll_here(&self) -> bool {
        if self.waker.get().is_none() {
            // The task has not had its first turn.
            return false;
        }
        let _home = self.home.enter();
        let outcome = self.try_poll();
        if outcome == PollOutcome::Over
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
        outcome != PollOutcome::Refused
    }

    /// Calls `cause`, which does something that the task waits for, and pushes the task.
    pub(crate) fn queue_and_poll<T>(&self, cause: impl FnOnce() -> T) -> T {
        // Before the first turn a push does nothing, so the wake-up must not be suppressed.
        let pushes = self.waker.get().is_some();
        let before = PUSHING.replace(pushes);
        let done = cause();
        PUSHING.set(before);
        self.poll_here();
        done
    }

    fn try_poll(&self) -> PollOutcome {
        for polls in 0..POLLS_MAX {
            let Some(mut task) = self.lock_task() else {
                return if polls == 0 { PollOutcome::Refused } else { PollOutcome::Done };
            };
            self.missed.store(false, Ordering::SeqCst);
            let Some(waker) = self.waker.get() else { return PollOutcome::Refused };
            // Taken out while it runs: a task that panics is over, and is not polled again.
            let Some(mut running) = task.take() else { return PollOutcome::Over };
            let busy = Busy::with(&self.polling);
            if running.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                return PollOutcome::Over;
            }
            *task = Some(running);
            drop(task);
            drop(busy);
            if !self.missed.load(Ordering::SeqCst) {
                return PollOutcome::Done;
            }
        }
        // The task always has something to do. Other tasks of this runtime need their polls too.
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        PollOutcome::Done
    }

    /// The task; `None` if another thread polls it, which then polls it once more.
    fn lock_task(&self) -> Option<MutexGuard<'_, Option<Task>>> {
        self.try_lock_task().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // The other thread may have checked the flag before it was set.
            self.try_lock_task()
        })
    }

    fn try_lock_task(&self) -> Option<MutexGuard<'_, Option<Task>>> {
        match self.task.try_lock() {
            Ok(task) => Some(task),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Marks that a thread polls the task, until it is dropped: also by a panic.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn with(polling: &'a AtomicBool) -> Self {
        polling.store(true, Ordering::SeqCst);
        Self(polling)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The engine thread's reference. The task does not outlive that thread.
struct Polling(Arc<SharedTask>);

impl Drop for Polling {
    fn drop(&mut self) {
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Without the lock: other threads may push while the task is dropped.
        drop(task);
    }
}

thread_local! {
    /// Whether this thread is about to push, so that no other thread needs to be woken.
    static PUSHING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes the engine's thread, unless the waking thread will push, or a thread that polls the task
/// will poll it once more.
struct WakeHome {
    shared_task: Weak<SharedTask>,
    home: Waker,
}

impl WakeHome {
    /// Whether a thread polls the task now and will poll it once more.
    fn is_seen(&self) -> bool {
        self.shared_task.upgrade().is_some_and(|shared_task| {
            shared_task.polling.load(Ordering::SeqCst) && {
                shared_task.missed.store(true, Ordering::SeqCst);
                // The polling thread checks `missed` only after it has cleared `polling`.
                shared_task.polling.load(Ordering::SeqCst)
            }
        })
    }
}

impl Wake for WakeHome {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that is being torn down has no cell any more, and does not push.
        if !PUSHING.try_with(Cell::get).unwrap_or(false) && !self.is_seen() {
            self.home.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// A thread with a runtime, which a test can block.
    struct Home {
        handle: Handle,
        let_go: Option<SyncSender<()>>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Home {
        fn new() -> Self {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let handle = runtime.handle().clone();
            let (let_go, held) = sync_channel::<()>(1);
            let end = async move {
                drop(tokio::task::spawn_blocking(move || held.recv()).await);
            };
            let thread = std::thread::spawn(move || runtime.block_on(end));
            Self { handle, let_go: Some(let_go), thread: Some(thread) }
        }

        /// Blocks the thread until the sender is dropped.
        fn hold_up(&self) -> SyncSender<()> {
            let (go_on, held): (SyncSender<()>, Receiver<()>) = sync_channel(1);
            let (ready, is_held) = sync_channel::<()>(1);
            self.handle.spawn(async move {
                ready.send(()).expect("the test waits");
                // It goes on when the sender is dropped.
                held.recv().expect_err("nothing is sent");
            });
            is_held.recv().expect("it is held up");
            go_on
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            drop(self.let_go.take());
            if let Some(thread) = self.thread.take() {
                drop(thread.join());
            }
        }
    }

    const LIMIT: Duration = Duration::from_secs(10);

    /// A task that sends back each word that it receives, and the sender for such words.
    fn echo(home: &Home) -> (Arc<SharedTask>, mpsc::Sender<(u32, SyncSender<u32>)>) {
        let (ask, mut asked) = mpsc::channel::<(u32, SyncSender<u32>)>(64);
        let (ready, is_ready) = oneshot::channel();
        let task = async move {
            ready.send(()).expect("the test waits");
            while let Some((word, answer)) = asked.recv().await {
                answer.send(word).expect("the test waits for it");
            }
        };
        let shared_task = SharedTask::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        (shared_task, ask)
    }

    #[test]
    fn caller_drives_the_task_while_the_engines_thread_is_blocked() {
        let home = Home::new();
        let (shared_task, ask) = echo(&home);
        let held = home.hold_up();
        let (answer, answered) = sync_channel(1);
        shared_task.queue_and_poll(|| ask.try_send((7, answer)).expect("there is room"));
        assert_eq!(answered.recv_timeout(LIMIT), Ok(7));
        drop(held);
    }

    #[test]
    fn engines_thread_does_the_work_that_no_caller_pushes() {
        let home = Home::new();
        let (_wheel, ask) = echo(&home);
        let (answer, answered) = sync_channel(1);
        ask.try_send((7, answer)).expect("there is room");
        assert_eq!(answered.recv_timeout(LIMIT), Ok(7));
    }

    #[test]
    fn nothing_is_lost_among_many_who_push_at_once() {
        let home = Home::new();
        let (shared_task, ask) = echo(&home);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (shared_task, ask) = (Arc::clone(&shared_task), ask.clone());
                std::thread::spawn(move || {
                    for word in 0..5_000 {
                        let (answer, answered) = sync_channel(1);
                        shared_task.queue_and_poll(|| {
                            ask.try_send((word, answer)).expect("there is room")
                        });
                        assert_eq!(answered.recv_timeout(LIMIT), Ok(word));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("all were answered");
        }
    }

    /// A task that receives a number, takes that many polls, and then answers.
    fn restless(home: &Home) -> (Arc<SharedTask>, mpsc::Sender<(u32, SyncSender<u32>)>) {
        let (ask, mut asked) = mpsc::channel::<(u32, SyncSender<u32>)>(1);
        let (ready, is_ready) = oneshot::channel();
        let task = async move {
            ready.send(()).expect("the test waits");
            while let Some((polls, answer)) = asked.recv().await {
                let mut left = polls;
                poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    left -= 1;
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
                answer.send(polls).expect("the test waits for it");
            }
        };
        let shared_task = SharedTask::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        (shared_task, ask)
    }

    #[test]
    fn task_that_wakes_itself_goes_on_in_the_same_push() {
        let home = Home::new();
        let (shared_task, ask) = restless(&home);
        let held = home.hold_up();
        let (answer, answered) = sync_channel(1);
        shared_task.queue_and_poll(|| ask.try_send((3, answer)).expect("there is room"));
        assert_eq!(answered.recv_timeout(LIMIT), Ok(3));
        drop(held);
    }

    #[test]
    fn a_task_that_does_not_rest_is_left_to_the_engines_thread() {
        let home = Home::new();
        let (shared_task, ask) = restless(&home);
        let held = home.hold_up();
        let many = 10 * POLLS_MAX as u32;
        let (answer, answered) = sync_channel(1);
        shared_task.queue_and_poll(|| ask.try_send((many, answer)).expect("there is room"));
        assert!(answered.try_recv().is_err(), "the push ended before the task did");
        drop(held);
        assert_eq!(answered.recv_timeout(LIMIT), Ok(many));
    }

    #[test]
    fn clocks_that_are_set_while_somebody_pushes_are_the_engines() {
        let home = Home::new();
        let (ask, mut asked) = mpsc::channel::<()>(1);
        let (done, is_done) = sync_channel(1);
        let (ready, is_ready) = oneshot::channel();
        let task = async move {
            ready.send(()).expect("the test waits");
            asked.recv().await.expect("it is asked");
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.send(()).expect("the test waits");
        };
        let shared_task = SharedTask::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        // This runtime has no clock, and is gone before the time is up.
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            shared_task.queue_and_poll(|| ask.try_send(()).expect("there is room"))
        });
        drop(runtime);
        assert_eq!(is_done.recv_timeout(LIMIT), Ok(()));
    }

    #[test]
    fn task_that_panics_is_over_and_later_pushers_learn_it_from_its_channel() {
        let home = Home::new();
        let (ask, mut asked) = mpsc::channel::<()>(1);
        let (ready, is_ready) = oneshot::channel();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let task = async move {
            ready.send(()).expect("the test waits");
            asked.recv().await.expect("it is asked");
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("as the test wants it");
        };
        let shared_task = SharedTask::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        // The first turn is over when the thread runs another task.
        let (turned, has_turned) = oneshot::channel();
        home.handle.spawn(async move { turned.send(()) });
        has_turned.blocking_recv().expect("another turn");
        let pushed =
            std::panic::AssertUnwindSafe(|| shared_task.queue_and_poll(|| ask.try_send(())));
        assert!(std::panic::catch_unwind(pushed).is_err());
        shared_task.poll_here();
        assert!(ask.is_closed());
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    }
}
