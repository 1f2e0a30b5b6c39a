//! Claims that leave the nodes' lines, also where the node does not answer at first.
//!
//! What a node did not answer is [`owed`](super::owed) to it. One task for each such node says it
//! again, ever more rarely, and at once when the node answers anybody else; it ends when nothing
//! is owed any more, and with the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use super::attempt::Attempt;
use super::engine::{Inner, lock};
use super::owed::{Owed, Terms};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, Result, UnreachableReason};
use crate::rule::claim::{ClaimKey, Released};

/// Claims told to a node in one exchange: a node is busy with them for some milliseconds.
const BATCH_MAX: usize = 256;

/// What is owed to one node.
#[derive(Debug, Default)]
pub(super) struct Debt {
    state: Mutex<State>,
    /// Whether anything is, for those who only want to know that.
    is_owed: AtomicBool,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    owed: Owed,
    /// Whether a task sees to it.
    tended: bool,
    closed: bool,
}

impl Debt {
    /// Nothing is said from now on.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.owed.clear();
        state.closed = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Changes what is owed.
    fn change<T>(&self, change: impl FnOnce(&mut Owed, Moment) -> T) -> T {
        let mut state = lock(&self.state);
        let changed = change(&mut state.owed, SystemClock.now());
        if state.closed {
            state.owed.clear();
        }
        self.is_owed.store(!state.owed.is_empty(), Ordering::Release);
        changed
    }

    /// When there is something to say. If there never will be, whoever tends it may go.
    fn next_turn(&self) -> Option<Moment> {
        let mut state = lock(&self.state);
        let turn = state.owed.next_turn(SystemClock.now());
        self.is_owed.store(turn.is_some(), Ordering::Release);
        state.tended &= turn.is_some();
        turn
    }
}

/// How a claim that leaves a node stands there.
fn terms(inner: &Inner, attempt: Option<&Arc<Attempt>>, node: usize) -> Terms {
    let claim = attempt.and_then(|attempt| attempt.claim.as_ref());
    Terms {
        ttl: claim.map_or(inner.settings.ttl_max, |claim| claim.ttl),
        adrift: attempt.map_or(0, |attempt| attempt.adrift(node)),
    }
}

impl Inner {
    /// Takes claims out of the lines of one node; `attempts` are theirs, where they are known.
    /// What it does not answer is said again later.
    pub(super) async fn leave(
        self: &Arc<Self>,
        node: usize,
        (keys, attempts): (&[ClaimKey], &[Option<Arc<Attempt>>]),
        hint: u64,
    ) -> Result<Vec<Released>> {
        debug_assert_eq!(keys.len(), attempts.len());
        let (mut left, repeated) = self.tell_to_leave(node, keys, hint).await;
        let debt = &self.debts[node];
        let adrift = || attempts.iter().flatten().any(|attempt| attempt.adrift(node) > 0);
        if left.is_err() || debt.is_owed.load(Ordering::Acquire) || adrift() {
            self.owe(node, (keys, attempts), &left);
        }
        if let (Ok(left), true) = (&mut left, repeated) {
            // The first request may have taken out what the second did not find.
            let own = left.iter_mut().zip(attempts).filter(|(_, attempt)| attempt.is_some());
            own.for_each(|(released, _)| *released = Released::Released);
        }
        left
    }

    /// Notes what a node has to be told again of claims that leave it.
    fn owe(
        self: &Arc<Self>,
        node: usize,
        (keys, attempts): (&[ClaimKey], &[Option<Arc<Attempt>>]),
        left: &Result<Vec<Released>>,
    ) {
        let debt = &self.debts[node];
        debt.change(|owed, now| {
            for (index, (key, attempt)) in keys.iter().zip(attempts).enumerate() {
                let terms = terms(self, attempt.as_ref(), node);
                match left.as_ref().ok().and_then(|left| left.get(index)) {
                    Some(released) => owed.answered(key, terms, released, now),
                    None => owed.unanswered(key, terms, now),
                }
            }
        });
        self.tend(node);
    }

    /// Sent again if the connection turns out to be broken, which it may have been for long:
    /// leaving twice is leaving once. Also returns whether it was sent again.
    async fn tell_to_leave(
        &self,
        node: usize,
        keys: &[ClaimKey],
        hint: u64,
    ) -> (Result<Vec<Released>>, bool) {
        match self.in_time(node, self.nodes[node].leave(keys, hint)).await {
            Err(Error::Unreachable { reason, .. }) if reason != UnreachableReason::NoAnswer => {
                (self.in_time(node, self.nodes[node].leave(keys, hint)).await, true)
            }
            answer => (answer, false),
        }
    }

    /// A node answered something.
    pub(super) fn answers(self: &Arc<Self>, node: usize) {
        let debt = &self.debts[node];
        if !debt.is_owed.load(Ordering::Acquire) {
            return;
        }
        let is_news = debt.change(Owed::heard);
        if is_news || !lock(&debt.state).tended {
            self.tend(node);
        }
    }

    /// A node answered that it did not let the claim of an attempt in.
    pub(super) fn stays_out(&self, node: usize, attempt: &Attempt) {
        let debt = &self.debts[node];
        if debt.is_owed.load(Ordering::Acquire) && attempt.adrift(node) == 0 {
            debt.change(|owed, _| owed.settle(&attempt.key.token));
        }
    }

    /// Sees to it that what is owed to a node is said when it is time to.
    fn tend(self: &Arc<Self>, node: usize) {
        let debt = &self.debts[node];
        let mut state = lock(&debt.state);
        if state.owed.is_empty() {
            return;
        }
        let tended = std::mem::replace(&mut state.tended, true);
        drop(state);
        if tended {
            debt.changed.notify_one();
            return;
        }
        tokio::spawn(settle(Tending { inner: Arc::downgrade(self), node, is_over: false }));
    }

    /// Says once what is due.
    async fn say_again(&self, node: usize) {
        let debt = &self.debts[node];
        let mut from = 0;
        loop {
            let batch = debt.change(|owed, now| owed.batch(now, from, BATCH_MAX));
            let Some((last, _)) = batch.last() else { return };
            from = last + 1;
            let keys: Vec<ClaimKey> = batch.into_iter().map(|(_, key)| key).collect();
            let hint = self.hint(SystemClock.now(), 0);
            match self.in_time(node, self.nodes[node].leave(&keys, hint)).await {
                Ok(left) => debt.change(|owed, now| {
                    for (key, released) in keys.iter().zip(&left) {
                        owed.told(&key.token, released, now);
                    }
                }),
                Err(error) => {
                    tracing::debug!(%error, "a node still does not hear that claims left it");
                    debt.change(Owed::silent);
                    return;
                }
            }
        }
    }
}

/// Sees to what is owed to a node. Lets go when its runtime ends, so that another may.
struct Tending {
    inner: Weak<Inner>,
    node: usize,
    /// Whether it was done, and another task may be at it by now.
    is_over: bool,
}

impl Drop for Tending {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|_| !self.is_over) {
            lock(&inner.debts[self.node].state).tended = false;
        }
    }
}

async fn settle(mut tending: Tending) {
    loop {
        let Some(inner) = tending.inner.upgrade() else { return };
        let debt = Arc::clone(&inner.debts[tending.node]);
        let Some(turn) = debt.next_turn() else {
            tending.is_over = true;
            return;
        };
        if turn <= SystemClock.now() {
            inner.say_again(tending.node).await;
            continue;
        }
        drop(inner);
        tokio::select! {
            () = SystemClock.sleep_until(turn) => {}
            () = debt.changed.notified() => {}
        }
    }
}
