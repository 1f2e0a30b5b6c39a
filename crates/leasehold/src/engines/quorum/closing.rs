//! Giving a lease back while its name stays closed: the claim stays at the nodes for a while, under
//! a token that nobody knows.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::attempt::{Attempt, cause};
use super::engine::Inner;
use super::tally;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, NodeReason, Result};
use crate::rule::claim::{ClaimKey, Released, Token};

impl Inner {
    /// Closes a lease at all nodes. A majority is enough.
    pub(super) async fn keep_closed(
        self: &Arc<Self>,
        key: &ClaimKey,
        stay: Duration,
    ) -> Result<Released> {
        let (key, attempt, _fence) = self.part_with(key);
        let (answer, answered) = oneshot::channel();
        // Apart, because a node may answer long after a majority has.
        tokio::spawn(Arc::clone(self).close_everywhere((key, attempt), stay, answer));
        answered.await.unwrap_or_else(|_| Err(Error::task_ended(&self.info.store)))
    }

    async fn close_everywhere(
        self: Arc<Self>,
        (key, attempt): (ClaimKey, Option<Arc<Attempt>>),
        stay: Duration,
        answer: oneshot::Sender<Result<Released>>,
    ) {
        let retired = Token::retired();
        let close = |node: usize| {
            let (inner, key, retired) = (&self, &key, &retired);
            async move {
                let closing = inner.nodes[node].keep_closed(key, stay, retired);
                (node, inner.in_time(node, closing).await)
            }
        };
        let mut closing: FuturesUnordered<_> = (0..self.nodes.len()).map(close).collect();
        let mut answers: Vec<Option<Released>> = vec![None; self.nodes.len()];
        let mut causes = vec![NodeReason::Granted; self.nodes.len()];
        let mut answer = Some(answer);
        while let Some((node, closed)) = closing.next().await {
            match closed {
                Ok(closed) => answers[node] = Some(closed),
                Err(error) => causes[node] = cause(&error),
            }
            if let Some(told) = tally::kept_closed(&answers)
                && let Some(answer) = answer.take()
            {
                // The caller may have stopped waiting.
                let _gone = answer.send(Ok(told));
            }
        }
        if let Some(answer) = answer {
            let _gone = answer.send(Err(self.no_majority(causes)));
            return;
        }
        // The others keep the name closed. These nodes may have the claim still, or get it yet.
        let hint = self.hint(SystemClock.now(), 0);
        for (node, closed) in answers.iter().enumerate() {
            let adrift = attempt.as_ref().is_some_and(|attempt| attempt.adrift(node) > 0);
            if closed.is_none() || adrift {
                let claim = (std::slice::from_ref(&key), std::slice::from_ref(&attempt));
                if let Err(error) = self.leave(node, claim, hint).await {
                    tracing::debug!(%error, "a node is told later that a claim left it");
                }
            }
        }
    }
}
