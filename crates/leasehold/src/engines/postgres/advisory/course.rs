//! Drives a session's connection.
//!
//! The connection and the wait that may be in flight on it are one task, a [`SharedTask`]. The task
//! belongs to the engine's thread. A caller that sends a statement polls the task itself, and its
//! own runtime sees the answer come, so neither wakes another thread. Only the end of the
//! connection wakes the engine's thread. The runtime of a waiter may be blocked when its answer
//! comes, so the engine's thread also looks for answers to waits from time to time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::engine::kit::shared_task::SharedTask;
use crate::engine::kit::socket::Watched;

use super::super::link::Messages;

/// Something that is to be done whatever becomes of whoever wanted it.
type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session's connection as its users have it.
pub(super) struct Course {
    shared_task: Arc<SharedTask>,
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
        let shared_task = SharedTask::start(&Handle::current(), task);
        Self { shared_task, watched, shared }
    }

    /// Has the present runtime ready to watch, for as long as both are there.
    pub(super) fn attend(&self) {
        self.watched.attend(&self.shared_task);
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
            self.shared_task.queue_and_poll(|| asked.as_mut().poll(context))
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
                    Poll::Ready(Ok(())) if self.shared_task.poll_here() => {}
                    // The connection's task is being polled. It may even be what awaits here, and
                    // must return to read: the end of a connection is there for as long as nobody
                    // reads it.
                    Poll::Ready(Ok(())) => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
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
        self.shared_task.poll_here();
    }

    /// Reads what has come, if anything has.
    pub(super) fn look(&self) {
        self.watched.suspect();
        self.shared_task.poll_here();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use futures_util::stream;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::kit::socket::Socket;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The connection of a server that closes it at once. Nothing reads it before a job has seen
    /// the end.
    async fn closed_under_a_job() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let socket = Socket::of_tcp(client.expect("connected")).expect("a socket");
        let watched = socket.watched();
        let polls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&polls);
        let messages = stream::poll_fn(move |_| {
            let _open = &socket;
            // The first poll of the job only begins to watch.
            if seen.load(Ordering::SeqCst) < 2 { Poll::Pending } else { Poll::Ready(None) }
        });
        let (end, ended) = oneshot::channel();
        let end = move || {
            let _ = end.send(());
        };
        let course = Arc::new(Course::begin(Box::pin(messages), watched, end));
        let inside = Arc::clone(&course);
        course.along(async move {
            let counted = poll_fn(|_| {
                polls.fetch_add(1, Ordering::SeqCst);
                Poll::<()>::Pending
            });
            inside.meanwhile(counted).await;
        });
        drop(server);
        ended.await.expect("the connection ends");
    }

    #[test]
    fn job_that_sees_the_end_of_its_connection_lets_the_connection_read_it() {
        let (done, is_done) = sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(closed_under_a_job());
            let _ = done.send(());
        });
        is_done.recv_timeout(LIMIT).expect("the task of the connection goes on");
    }
}
