//! Requests that come while others are on their way, sent together.
//!
//! A server that is asked by many at once spends more on each request than on what it asks for. So
//! the first few go out at once and by themselves; those that come meanwhile are kept, and go out
//! in one exchange as soon as one of the first is answered. Who is alone loses nothing by it, and
//! the more there are the more go together.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How many exchanges are on their way before others are kept.
const WIDTH: usize = 4;

/// The most requests that are kept. Those beyond go out by themselves.
const KEPT_MAX: usize = 4_096;

/// A request that can be sent together with others.
pub(super) trait Parcel: Send + 'static {
    /// What its sender is told.
    type Answer: Send + 'static;

    /// Whether it may be in one exchange with another.
    fn goes_with(&self, other: &Self) -> bool;
}

/// Sends several requests in one exchange. There are as many answers, in the same order.
type Carry<P> = dyn Fn(Vec<P>) -> BoxFuture<'static, Vec<<P as Parcel>::Answer>> + Send + Sync;

/// Gathers the requests of one connection.
pub(super) struct Gather<P: Parcel> {
    most: usize,
    runtime: Handle,
    carry: Box<Carry<P>>,
    state: Mutex<State<P>>,
}

struct State<P: Parcel> {
    /// How many exchanges are on their way.
    out: usize,
    kept: VecDeque<Kept<P>>,
}

/// A request that is kept, and where its answer goes.
struct Kept<P: Parcel> {
    parcel: P,
    told: oneshot::Sender<P::Answer>,
}

impl<P: Parcel> Gather<P> {
    /// Gathers up to `most` requests for an exchange, which `carry` sends on the present runtime.
    pub(super) fn new<F, C>(most: usize, carry: C) -> Arc<Self>
    where
        F: Future<Output = Vec<P::Answer>> + Send + 'static,
        C: Fn(Vec<P>) -> F + Send + Sync + 'static,
    {
        let state = Mutex::new(State { out: 0, kept: VecDeque::new() });
        let carry: Box<Carry<P>> = Box::new(move |parcels| Box::pin(carry(parcels)));
        Arc::new(Self { most, runtime: Handle::current(), carry, state })
    }

    /// Sends a request: by `alone` if few are on their way, else together with others. `None` if
    /// the runtime ended, or the exchange with others came to no answer for this one.
    ///
    /// # Cancel safety
    ///
    /// A request that is kept when this is dropped is not sent. One that is on its way with others
    /// may take effect.
    pub(super) async fn send<F>(
        self: &Arc<Self>,
        parcel: P,
        alone: impl FnOnce(P) -> F,
    ) -> Option<P::Answer>
    where
        F: Future<Output = P::Answer>,
    {
        match self.admit(parcel) {
            Ok((parcel, _going)) => Some(alone(parcel).await),
            Err(answer) => answer.await.ok(),
        }
    }

    /// Lets a request out by itself, or keeps it.
    fn admit(
        self: &Arc<Self>,
        parcel: P,
    ) -> std::result::Result<(P, Going<P>), oneshot::Receiver<P::Answer>> {
        let mut state = self.state();
        if state.out < WIDTH || state.kept.len() >= KEPT_MAX {
            state.out += 1;
            return Ok((parcel, Going(Arc::clone(self))));
        }
        let (told, answer) = oneshot::channel();
        state.kept.push_back(Kept { parcel, told });
        Err(answer)
    }

    /// Sends what is kept, as far as it may go out.
    fn let_out(self: &Arc<Self>) {
        loop {
            // A runtime that ended drops what it is given, which comes back here.
            let kept = self.state().next(self.most);
            let Some(kept) = kept else { return };
            self.runtime.spawn(Going(Arc::clone(self)).with(kept));
        }
    }

    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Parcel> State<P> {
    /// What goes out next, if anything may. Those whose senders gave up do not.
    fn next(&mut self, most: usize) -> Option<Vec<Kept<P>>> {
        if self.out >= WIDTH {
            return None;
        }
        let mut chosen: Vec<Kept<P>> = Vec::with_capacity(most.min(self.kept.len()));
        let mut left = VecDeque::new();
        while let Some(kept) = self.kept.pop_front() {
            if chosen.len() == most {
                left.push_back(kept);
                break;
            }
            let fits = |others: &[Kept<P>]| others.iter().all(|o| kept.parcel.goes_with(&o.parcel));
            if kept.told.is_closed() {
                continue;
            } else if fits(&chosen) {
                chosen.push(kept);
            } else {
                left.push_back(kept);
            }
        }
        left.append(&mut self.kept);
        self.kept = left;
        self.out += usize::from(!chosen.is_empty());
        (!chosen.is_empty()).then_some(chosen)
    }
}

/// An exchange on its way. Whatever way it ends, the next may go out.
struct Going<P: Parcel>(Arc<Gather<P>>);

impl<P: Parcel> Going<P> {
    async fn with(self, kept: Vec<Kept<P>>) {
        let (parcels, told): (Vec<P>, Vec<_>) =
            kept.into_iter().map(|kept| (kept.parcel, kept.told)).unzip();
        let answers = (self.0.carry)(parcels).await;
        for (told, answer) in told.into_iter().zip(answers) {
            // Whoever gave up has seen to what may have come of it.
            let _unheard = told.send(answer);
        }
    }
}

impl<P: Parcel> Drop for Going<P> {
    fn drop(&mut self) {
        self.0.state().out -= 1;
        self.0.let_out();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    /// A request about a name, which is answered with how many went together.
    struct About(&'static str);

    impl Parcel for About {
        type Answer = usize;

        fn goes_with(&self, other: &Self) -> bool {
            self.0 != other.0
        }
    }

    /// A server that answers when it is let, and tells what it was asked together.
    struct Server {
        gather: Arc<Gather<About>>,
        answers: Arc<Semaphore>,
        asked: mpsc::Receiver<Vec<&'static str>>,
    }

    impl Server {
        fn new(most: usize) -> Self {
            let answers = Arc::new(Semaphore::new(0));
            let (tell, asked) = mpsc::channel(64);
            let let_go = Arc::clone(&answers);
            let gather = Gather::new(most, move |parcels: Vec<About>| {
                let (let_go, tell) = (Arc::clone(&let_go), tell.clone());
                async move {
                    let names: Vec<_> = parcels.iter().map(|about| about.0).collect();
                    let count = names.len();
                    tell.send(names).await.expect("somebody looks");
                    let_go.acquire().await.expect("open").forget();
                    vec![count; count]
                }
            });
            Self { gather, answers, asked }
        }

        /// Asks in a task, and returns when the request is on its way or kept.
        async fn ask(&self, name: &'static str) -> tokio::task::JoinHandle<Option<usize>> {
            let (gather, answers) = (Arc::clone(&self.gather), Arc::clone(&self.answers));
            let before = self.seen();
            let task = tokio::spawn(async move {
                let alone = async |_: About| {
                    answers.acquire().await.expect("open").forget();
                    0
                };
                gather.send(About(name), alone).await
            });
            while self.seen() == before {
                tokio::task::yield_now().await;
            }
            task
        }

        fn seen(&self) -> usize {
            let state = self.gather.state();
            state.out + state.kept.len()
        }

        async fn full(&self) -> Vec<tokio::task::JoinHandle<Option<usize>>> {
            let mut tasks = Vec::new();
            for _ in 0..WIDTH {
                tasks.push(self.ask("first").await);
            }
            tasks
        }
    }

    #[tokio::test]
    async fn the_first_go_alone_and_the_others_together() {
        let mut server = Server::new(2);
        let first = server.full().await;
        let others = [server.ask("a").await, server.ask("b").await, server.ask("c").await];
        server.answers.add_permits(WIDTH + 2);
        for task in first {
            assert_eq!(task.await.expect("no panic"), Some(0));
        }
        assert_eq!(server.asked.recv().await.expect("some"), ["a", "b"]);
        assert_eq!(server.asked.recv().await.expect("some"), ["c"]);
        let mut counts = Vec::new();
        for task in others {
            counts.push(task.await.expect("no panic"));
        }
        assert_eq!(counts, [Some(2), Some(2), Some(1)]);
        assert_eq!(server.seen(), 0);
    }

    #[tokio::test]
    async fn what_does_not_go_together_goes_out_side_by_side_in_its_order() {
        let mut server = Server::new(8);
        let first = server.full().await;
        for name in ["a", "a", "b", "a"] {
            drop(server.ask(name).await);
        }
        server.answers.add_permits(WIDTH + 3);
        for task in first {
            task.await.expect("no panic");
        }
        assert_eq!(server.asked.recv().await.expect("some"), ["a", "b"]);
        assert_eq!(server.asked.recv().await.expect("some"), ["a"]);
        assert_eq!(server.asked.recv().await.expect("some"), ["a"]);
    }

    #[tokio::test]
    async fn who_gives_up_while_kept_is_not_sent() {
        let mut server = Server::new(8);
        let first = server.full().await;
        let (given_up, stays) = (server.ask("a").await, server.ask("b").await);
        given_up.abort();
        assert!(given_up.await.is_err());
        server.answers.add_permits(WIDTH + 1);
        for task in first {
            task.await.expect("no panic");
        }
        assert_eq!(server.asked.recv().await.expect("some"), ["b"]);
        assert_eq!(stays.await.expect("no panic"), Some(1));
    }

    #[tokio::test]
    async fn who_gives_up_on_the_way_lets_the_next_out() {
        let mut server = Server::new(8);
        let first = server.full().await;
        let kept = server.ask("a").await;
        first[0].abort();
        assert_eq!(server.asked.recv().await.expect("some"), ["a"]);
        // The others of the first are answered before it.
        server.answers.add_permits(WIDTH);
        assert_eq!(kept.await.expect("no panic"), Some(1));
    }

    #[tokio::test]
    async fn an_exchange_that_panics_answers_nobody_and_holds_up_nobody() {
        let gather: Arc<Gather<About>> = Gather::new(8, |parcels: Vec<About>| async move {
            assert!(parcels.is_empty(), "on purpose");
            Vec::new()
        });
        let blocked = Arc::new(Semaphore::new(0));
        let ask = |name| {
            let (gather, blocked) = (Arc::clone(&gather), Arc::clone(&blocked));
            tokio::spawn(async move {
                let alone = async |_: About| {
                    blocked.acquire().await.expect("open").forget();
                    0
                };
                gather.send(About(name), alone).await
            })
        };
        let mut tasks: Vec<_> = (0..WIDTH).map(|_| ask("first")).collect();
        while gather.state().out < WIDTH {
            tokio::task::yield_now().await;
        }
        let kept = ask("a");
        while gather.state().kept.is_empty() {
            tokio::task::yield_now().await;
        }
        blocked.add_permits(WIDTH);
        assert_eq!(kept.await.expect("no panic here"), None);
        for task in tasks.drain(..) {
            assert_eq!(task.await.expect("no panic"), Some(0));
        }
        assert_eq!(gather.state().out, 0);
    }
}
