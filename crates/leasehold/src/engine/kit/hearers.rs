//! Hands messages to all who listen through one connection.

use futures_util::stream::{BoxStream, StreamExt, unfold};
use tokio::sync::broadcast;

use crate::engine::HolderMessage;

/// Messages that a slow listener may fall behind by before its stream ends.
const BEHIND_MAX: usize = 64;

/// Those who listen. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Hearers(broadcast::Sender<Option<HolderMessage>>);

impl Default for Hearers {
    fn default() -> Self {
        Self(broadcast::channel(BEHIND_MAX).0)
    }
}

impl Hearers {
    /// A message arrived.
    pub(crate) fn tell(&self, message: HolderMessage) {
        // Nobody may listen.
        let _heard = self.0.send(Some(message));
    }

    /// A text arrived. Anybody may send one: what is no message is left out.
    #[allow(dead_code, reason = "the memory engine has no texts")]
    pub(crate) fn tell_text(&self, text: &str) {
        match HolderMessage::of_text(text) {
            Some(message) => self.tell(message),
            None => tracing::debug!("a text is no message to holders"),
        }
    }

    /// Messages may have been missed: the streams end.
    #[allow(dead_code, reason = "the memory engine misses none")]
    pub(crate) fn missed(&self) {
        let _heard = self.0.send(None);
    }

    /// The streams end when the answer is dropped: with the task that has it, however it ends.
    #[allow(dead_code, reason = "the memory engine has no task")]
    pub(crate) fn end_with_this(&self) -> impl Drop + Send + use<> {
        struct End(Hearers);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.missed();
            }
        }
        End(self.clone())
    }

    /// Messages from now on, until one may have been missed.
    pub(crate) fn listen(&self) -> BoxStream<'static, HolderMessage> {
        let receiver = self.0.subscribe();
        let next = |mut receiver: broadcast::Receiver<Option<HolderMessage>>| async move {
            // One that falls behind gets an error, and ends as well.
            let message = receiver.recv().await.ok().flatten()?;
            Some((message, receiver))
        };
        unfold(receiver, next).boxed()
    }
}
