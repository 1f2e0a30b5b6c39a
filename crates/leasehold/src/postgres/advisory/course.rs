//! What goes on over a session's connection, and who drives it.
//!
//! The connection and the wait that may be under way on it are one task, a [`Wheel`]: it belongs to
//! the engine's thread, and whoever asks something pushes it. He writes his statement himself, and
//! his own runtime sees the answer come, so that no other thread is woken for either. The engine's
//! thread is woken by the end of the connection alone; the answer to a wait, which may come while
//! the runtime of whoever waits is blocked, it looks for from time to time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::socket::Watched;
use crate::wheel::Wheel;

use super::super::link::Messages;

/// Something that is to be done whatever becomes of whoever wanted it.
type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session's connection as its users have it.
pub(super) struct Course {
    wheel: Arc<Wheel>,
    watched: Watched,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Jobs that were given and not taken up yet: a session waits for one lock at a time.
    given: Mutex<Vec<Job>>,
    end: Notify,
}

impl Course {
    /// Drives a connection on the present runtime. `ended` is called when it is over.
    pub(super) fn begin(
        messages: Messages,
        watched: Watched,
        ended: impl FnOnce() + Send + 'static,
    ) -> Self {
        let shared = Arc::<Shared>::default();
        let under_way = Arc::clone(&shared);
        let ending = Ending(Some(Box::new(ended)));
        let task = async move {
            let mut going = Going { messages, jobs: Vec::new() };
            let mut end = pin!(under_way.end.notified());
            poll_fn(|context| {
                if end.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                going.poll(context, &under_way)
            })
            .await;
            // Closed first: whoever waits for an answer hears of it by that.
            drop(going);
            drop(ending);
        };
        let wheel = Wheel::start(&Handle::current(), task);
        Self { wheel, watched, shared }
    }

    /// Has the present runtime ready to watch, for as long as both are there.
    pub(super) fn attend(&self) {
        self.watched.attend(&self.wheel);
    }

    /// Awaits an answer, whose question is written the moment it is asked, and which is read the
    /// moment it comes, on the present runtime.
    pub(super) async fn answered<T>(&self, asked: impl Future<Output = T>) -> T {
        let mut asked = pin!(asked);
        let mut sent = false;
        self.meanwhile(poll_fn(|context| {
            if sent {
                return asked.as_mut().poll(context);
            }
            sent = true;
            self.wheel.push_with(|| asked.as_mut().poll(context))
        }))
        .await
    }

    /// Awaits something that comes of what is read, which the present runtime watches for.
    pub(super) async fn meanwhile<T>(&self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        let watching = self.watched.meanwhile();
        poll_fn(|context| {
            loop {
                let polled = awaited.as_mut().poll(context);
                if polled.is_ready() {
                    return polled;
                }
                match watching.poll(context) {
                    Poll::Ready(Ok(())) => self.wheel.push(),
                    // One that cannot be watched any more is over, which is told by the answer.
                    Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Does something along with the connection, beginning here and now.
    pub(super) fn along(&self, job: impl Future<Output = ()> + Send + 'static) {
        let mut given = self.shared.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.push(Box::pin(job));
        drop(given);
        self.wheel.push();
    }

    /// Reads what has come, if anything has.
    pub(super) fn look(&self) {
        self.watched.suspect();
        self.wheel.push();
    }

    /// Closes the connection, answered or not.
    pub(super) fn end(&self) {
        self.shared.end.notify_one();
    }
}

/// The connection and what is done along with it.
struct Going {
    messages: Messages,
    jobs: Vec<Job>,
}

impl Going {
    /// Goes on until there is nothing to do for now; ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>, shared: &Shared) -> Poll<()> {
        loop {
            match self.messages.poll_next_unpin(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "a lock session ended");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
            }
        }
        let mut given = shared.given.lock().unwrap_or_else(PoisonError::into_inner);
        self.jobs.append(&mut given);
        drop(given);
        // What they ask is written in the next turn, which asking brings about.
        self.jobs.retain_mut(|job| job.as_mut().poll(context).is_pending());
        Poll::Pending
    }
}

/// Tells that the connection is over, however it came to that.
struct Ending(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            ended();
        }
    }
}
