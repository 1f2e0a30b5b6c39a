//! Drives a session's connection: on the engine's thread, with a hand from whoever sends.
//!
//! The engine's thread reads, and ends the session when the connection does. But a statement that
//! was just put in the queue need not wait for that thread to wake up: whoever put it there writes
//! it to the socket himself, on behalf of that thread. Should it be at it already, nothing is left
//! to do; nobody waits for anybody, and no wake-up is taken from the engine's thread.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;

use super::super::link::Messages;

/// A connection that several may drive, one at a time.
#[derive(Default)]
pub(super) struct Driver {
    wheel: Mutex<Wheel>,
}

#[derive(Default)]
struct Wheel {
    /// None before the engine's thread drives it, and when it is over.
    messages: Option<Messages>,
    /// Wakes the engine's thread; whoever helps leaves this one with the socket.
    waker: Option<Waker>,
}

impl Driver {
    /// Drives a connection until it ends. It is closed when this is dropped.
    pub(super) async fn run(self: Arc<Self>, messages: Messages) {
        let closing = Closing(&self);
        self.wheel().messages = Some(messages);
        poll_fn(|context| {
            let mut wheel = self.wheel();
            wheel.waker = Some(context.waker().clone());
            wheel.drive(context)
        })
        .await;
        drop(closing);
    }

    /// Awaits an answer, whose question is written the moment it is asked.
    pub(super) async fn sent<T>(&self, asked: impl Future<Output = T>) -> T {
        let mut asked = pin!(asked);
        let mut helped = false;
        poll_fn(|context| {
            let polled = asked.as_mut().poll(context);
            if polled.is_pending() && !helped {
                helped = true;
                self.help();
            }
            polled
        })
        .await
    }

    fn help(&self) {
        let Ok(mut wheel) = self.wheel.try_lock() else { return };
        let Some(waker) = wheel.waker.clone() else { return };
        if wheel.drive(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }

    fn wheel(&self) -> MutexGuard<'_, Wheel> {
        self.wheel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wheel {
    /// Goes on until there is nothing to do for now; ready when the connection has ended.
    fn drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(messages) = &mut self.messages {
            match messages.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "a lock session ended");
                    self.messages = None;
                }
                Poll::Ready(None) => self.messages = None,
            }
        }
        Poll::Ready(())
    }
}

/// Closes the connection, from which on everybody finds it closed.
struct Closing<'a>(&'a Driver);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let messages = {
            let mut wheel = self.0.wheel();
            wheel.waker = None;
            wheel.messages.take()
        };
        // Whoever waits for an answer is woken by this.
        drop(messages);
    }
}
