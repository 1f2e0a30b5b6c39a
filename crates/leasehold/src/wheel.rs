//! A task of an engine's own thread on which others may push.
//!
//! An engine's connections live on a thread of its own, so that a caller who blocks his runtime
//! starves nobody's locks. But waking a thread takes longer than what there is to do. So whoever
//! has something for the task, or sees first that something has come for it, goes on with it
//! himself, there and then. One at a time; nobody waits for another's turn: whoever had it looks
//! once more for what came meanwhile. Whatever the task waits for wakes the engine's thread, so it
//! goes on whether anybody pushes or not.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

/// How often whoever has the task looks once more, before he leaves it to the engine's thread.
const TURNS_MAX: usize = 64;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that several may push on.
pub(crate) struct Wheel {
    home: Handle,
    /// None when it is over.
    task: Mutex<Option<Task>>,
    /// What the task is woken by; there from its first turn on.
    waker: OnceLock<Waker>,
    /// Whether somebody wanted a turn while another had it.
    missed: AtomicBool,
    /// Whether somebody has it who will look for what was missed.
    turning: AtomicBool,
}

impl std::fmt::Debug for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wheel")
    }
}

impl Wheel {
    /// Starts a task on the thread of `home`.
    pub(crate) fn start(
        home: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<Self> {
        let wheel = Arc::new(Self {
            home: home.clone(),
            // Whoever pushes does so on his own runtime's time, which must not run out here.
            task: Mutex::new(Some(Box::pin(tokio::task::unconstrained(task)))),
            waker: OnceLock::new(),
            missed: AtomicBool::new(false),
            turning: AtomicBool::new(false),
        });
        let turning = Turning(Arc::clone(&wheel));
        home.spawn(poll_fn(move |context| {
            let Turning(wheel) = &turning;
            wheel.waker.get_or_init(|| {
                let (wheel, home) = (Arc::downgrade(wheel), context.waker().clone());
                Waker::from(Arc::new(Nudge { wheel, home }))
            });
            wheel.turn()
        }));
        wheel
    }

    /// Goes on with the task until there is nothing to do for now.
    pub(crate) fn push(&self) {
        if self.waker.get().is_none() {
            // Its first turn is yet to come.
            return;
        }
        let _home = self.home.enter();
        if self.turn().is_ready()
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// Does something that the task is waiting for, and pushes it.
    pub(crate) fn push_with<T>(&self, cause: impl FnOnce() -> T) -> T {
        // Before its first turn nobody would notice a wake-up that was kept back.
        let pushes = self.waker.get().is_some();
        let before = PUSHING.replace(pushes);
        let done = cause();
        PUSHING.set(before);
        self.push();
        done
    }

    /// Ready when the task is over.
    fn turn(&self) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            let Some(mut task) = self.seize() else { return Poll::Pending };
            self.missed.store(false, Ordering::SeqCst);
            let Some(waker) = self.waker.get() else { return Poll::Pending };
            // One that panics is over, and not to be polled again.
            let Some(mut running) = task.take() else { return Poll::Ready(()) };
            let busy = Busy::with(&self.turning);
            if running.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                return Poll::Ready(());
            }
            *task = Some(running);
            drop(task);
            drop(busy);
            if !self.missed.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        // It has always something to do; others on this runtime have, too.
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        Poll::Pending
    }

    /// The task, unless somebody else has it, who then looks again.
    fn seize(&self) -> Option<MutexGuard<'_, Option<Task>>> {
        self.try_seize().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // Who had it may have looked before that was said.
            self.try_seize()
        })
    }

    fn try_seize(&self) -> Option<MutexGuard<'_, Option<Task>>> {
        match self.task.try_lock() {
            Ok(task) => Some(task),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Somebody has the task, until this is dropped, by a panic for instance.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn with(turning: &'a AtomicBool) -> Self {
        turning.store(true, Ordering::SeqCst);
        Self(turning)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// What the engine's thread has of a wheel. The task does not outlive that thread.
struct Turning(Arc<Wheel>);

impl Drop for Turning {
    fn drop(&mut self) {
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Not with the lock: others may push as it ends.
        drop(task);
    }
}

thread_local! {
    /// Whether this thread is about to push, so that no other has to be woken for it.
    static PUSHING: Cell<bool> = const { Cell::new(false) };
}

/// Wakes the engine's thread, unless whoever does will push, or somebody has the task and looks
/// once more by himself.
struct Nudge {
    wheel: Weak<Wheel>,
    home: Waker,
}

impl Nudge {
    /// Whether whoever has the task at this moment will go on with it.
    fn is_seen(&self) -> bool {
        self.wheel.upgrade().is_some_and(|wheel| {
            wheel.turning.load(Ordering::SeqCst) && {
                wheel.missed.store(true, Ordering::SeqCst);
                // He looks for that only after he said that he is done.
                wheel.turning.load(Ordering::SeqCst)
            }
        })
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that is being torn down has no cell any more, and pushes nothing.
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

    /// A thread with a runtime, which can be held up.
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

        /// Keeps the thread from doing anything until the sender is dropped.
        fn hold_up(&self) -> SyncSender<()> {
            let (go_on, held): (SyncSender<()>, Receiver<()>) = sync_channel(1);
            let (ready, is_held) = sync_channel::<()>(1);
            self.handle.spawn(async move {
                ready.send(()).expect("the test waits");
                // Its end is the word.
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

    /// A task that gives back what it gets, and how it is asked.
    fn echo(home: &Home) -> (Arc<Wheel>, mpsc::Sender<(u32, SyncSender<u32>)>) {
        let (ask, mut asked) = mpsc::channel::<(u32, SyncSender<u32>)>(64);
        let (ready, is_ready) = oneshot::channel();
        let task = async move {
            ready.send(()).expect("the test waits");
            while let Some((word, answer)) = asked.recv().await {
                answer.send(word).expect("somebody asked");
            }
        };
        let wheel = Wheel::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        (wheel, ask)
    }

    #[test]
    fn whoever_pushes_gets_what_he_wants_although_the_engines_thread_is_held_up() {
        let home = Home::new();
        let (wheel, ask) = echo(&home);
        let held = home.hold_up();
        let (answer, answered) = sync_channel(1);
        wheel.push_with(|| ask.try_send((7, answer)).expect("there is room"));
        assert_eq!(answered.recv_timeout(LIMIT), Ok(7));
        drop(held);
    }

    #[test]
    fn what_nobody_pushes_is_done_by_the_engines_thread() {
        let home = Home::new();
        let (_wheel, ask) = echo(&home);
        let (answer, answered) = sync_channel(1);
        ask.try_send((7, answer)).expect("there is room");
        assert_eq!(answered.recv_timeout(LIMIT), Ok(7));
    }

    #[test]
    fn nothing_is_lost_among_many_who_push_at_once() {
        let home = Home::new();
        let (wheel, ask) = echo(&home);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (wheel, ask) = (Arc::clone(&wheel), ask.clone());
                std::thread::spawn(move || {
                    for word in 0..5_000 {
                        let (answer, answered) = sync_channel(1);
                        wheel.push_with(|| ask.try_send((word, answer)).expect("there is room"));
                        assert_eq!(answered.recv_timeout(LIMIT), Ok(word));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("all were answered");
        }
    }

    /// A task that, once asked, wants as many turns as that, and then answers.
    fn restless(home: &Home) -> (Arc<Wheel>, mpsc::Sender<(u32, SyncSender<u32>)>) {
        let (ask, mut asked) = mpsc::channel::<(u32, SyncSender<u32>)>(1);
        let (ready, is_ready) = oneshot::channel();
        let task = async move {
            ready.send(()).expect("the test waits");
            while let Some((turns, answer)) = asked.recv().await {
                let mut left = turns;
                poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    left -= 1;
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
                answer.send(turns).expect("somebody asked");
            }
        };
        let wheel = Wheel::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        (wheel, ask)
    }

    #[test]
    fn what_the_task_wakes_itself_for_is_done_by_whoever_has_it() {
        let home = Home::new();
        let (wheel, ask) = restless(&home);
        let held = home.hold_up();
        let (answer, answered) = sync_channel(1);
        wheel.push_with(|| ask.try_send((3, answer)).expect("there is room"));
        assert_eq!(answered.recv_timeout(LIMIT), Ok(3));
        drop(held);
    }

    #[test]
    fn a_task_that_does_not_rest_is_left_to_the_engines_thread() {
        let home = Home::new();
        let (wheel, ask) = restless(&home);
        let held = home.hold_up();
        let many = 10 * TURNS_MAX as u32;
        let (answer, answered) = sync_channel(1);
        wheel.push_with(|| ask.try_send((many, answer)).expect("there is room"));
        assert!(answered.try_recv().is_err(), "whoever pushes has other things to do");
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
        let wheel = Wheel::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        // This runtime has no clock, and is gone before the time is up.
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async { wheel.push_with(|| ask.try_send(()).expect("there is room")) });
        drop(runtime);
        assert_eq!(is_done.recv_timeout(LIMIT), Ok(()));
    }

    #[test]
    fn a_task_that_panics_is_over_and_whoever_pushes_on_is_told_by_its_channel() {
        let home = Home::new();
        let (ask, mut asked) = mpsc::channel::<()>(1);
        let (ready, is_ready) = oneshot::channel();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let task = async move {
            ready.send(()).expect("the test waits");
            asked.recv().await.expect("it is asked");
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("as the test wants it");
        };
        let wheel = Wheel::start(&home.handle, task);
        is_ready.blocking_recv().expect("its first turn");
        // That turn is over when the thread has one for another task.
        let (turned, has_turned) = oneshot::channel();
        home.handle.spawn(async move { turned.send(()) });
        has_turned.blocking_recv().expect("another turn");
        let pushed = std::panic::AssertUnwindSafe(|| wheel.push_with(|| ask.try_send(())));
        assert!(std::panic::catch_unwind(pushed).is_err());
        wheel.push();
        assert!(ask.is_closed());
        assert_eq!(turns.load(Ordering::SeqCst), 1);
    }
}
