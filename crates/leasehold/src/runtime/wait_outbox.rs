//! A client's notices of its long waits: one notice for each of its holders.
//!
//! The waiting loops change a notice, and the keeper sends it. It sends the next version only after
//! the answer to the last one, so a later version never arrives first. The client withdraws each
//! wait that ends, so no notice stays behind.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::{Notice, Wait};
use crate::rule::claim::{Holder, HolderId, Token};

#[derive(Debug)]
pub(crate) struct WaitOutbox {
    /// This client: several clients may be one holder.
    client: u128,
    entries: Mutex<Entries>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct Entries {
    closed: bool,
    by_holder: HashMap<HolderId, HolderEntry>,
}

/// The notice of one holder.
#[derive(Debug, Default)]
struct HolderEntry {
    waits: Vec<(Token, Wait)>,
    keep: Duration,
    /// The number of the last version, of the last one sent, and of the last one answered.
    written: u64,
    sent: u64,
    answered: u64,
    /// The last version whose exchange failed.
    failed: u64,
}

impl HolderEntry {
    fn is_due(&self) -> bool {
        self.written > self.sent && self.sent == self.answered
    }

    fn is_over(&self) -> bool {
        self.waits.is_empty() && self.written == self.answered
    }
}

impl WaitOutbox {
    pub(crate) fn new() -> Self {
        let client = Holder::fresh().id().0;
        Self { client, entries: Mutex::default(), settled: Notify::new() }
    }

    /// Adds a wait. Returns the version to wait for with [`said`](Self::said); `None` after
    /// [`close`](Self::close).
    pub(crate) fn write(
        &self,
        holder: HolderId,
        token: Token,
        wait: Wait,
        keep: Duration,
    ) -> Option<u64> {
        let mut entries = self.entries();
        if entries.closed {
            return None;
        }
        let entry = entries.by_holder.entry(holder).or_default();
        entry.waits.retain(|(other, _)| *other != token);
        entry.waits.push((token, wait));
        entry.keep = keep;
        entry.written += 1;
        Some(entry.written)
    }

    /// Removes a wait. Returns whether the keeper has to send the change.
    pub(crate) fn strike(&self, holder: HolderId, token: &Token) -> bool {
        let mut entries = self.entries();
        let Some(entry) = entries.by_holder.get_mut(&holder) else { return false };
        let before = entry.waits.len();
        entry.waits.retain(|(other, _)| other != token);
        if entry.waits.len() == before {
            return false;
        }
        if entry.sent == 0 && entry.waits.is_empty() {
            // The store never got it.
            entries.by_holder.remove(&holder);
            return false;
        }
        entry.written += 1;
        true
    }

    /// Removes all waits, and accepts no more.
    pub(crate) fn close(&self) {
        let mut entries = self.entries();
        entries.closed = true;
        entries.by_holder.retain(|_, entry| entry.sent > 0);
        for entry in entries.by_holder.values_mut() {
            if !entry.waits.is_empty() {
                entry.waits.clear();
                entry.written += 1;
            }
        }
        drop(entries);
        self.settled.notify_waiters();
    }

    /// Whether the store has answered all versions.
    pub(crate) fn is_clear(&self) -> bool {
        self.entries().by_holder.values().all(|entry| entry.written == entry.answered)
    }

    /// The notices to send now, each with its version.
    pub(crate) fn due(&self) -> Vec<(Notice, u64)> {
        let mut due = Vec::new();
        for (holder, entry) in &mut self.entries().by_holder {
            if entry.is_due() {
                entry.sent = entry.written;
                let waits = entry.waits.iter().map(|(_, wait)| wait.clone()).collect();
                let (holder, client, keep) = (*holder, self.client, entry.keep);
                due.push((Notice { holder, client, waits, keep }, entry.sent));
            }
        }
        due
    }

    /// Records the end of an exchange.
    pub(crate) fn answered(&self, holder: HolderId, number: u64, well: bool) {
        let mut entries = self.entries();
        if let Some(entry) = entries.by_holder.get_mut(&holder) {
            entry.answered = number;
            if !well {
                entry.failed = number;
            }
            if entry.is_over() {
                entries.by_holder.remove(&holder);
            }
        }
        drop(entries);
        self.settled.notify_waiters();
    }

    /// Ends when the exchange of this version has ended. Returns whether it succeeded.
    pub(crate) async fn said(&self, holder: HolderId, number: u64) -> bool {
        loop {
            let settled = self.settled.notified();
            match self.entries().by_holder.get(&holder) {
                None => return false,
                Some(entry) if entry.answered >= number => return entry.failed < number,
                Some(_) => {}
            }
            settled.await;
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::name::Name;

    const H: HolderId = HolderId(1);

    fn wait(fence: u64) -> Wait {
        Wait { name: Name::new("n").expect("a good name"), fence, keeps: Vec::new() }
    }

    fn fences(notice: &Notice) -> Vec<u64> {
        notice.waits.iter().map(|wait| wait.fence).collect()
    }

    #[tokio::test]
    async fn one_word_is_sent_at_a_time_and_the_last_one_takes_everything_back() {
        let notices = WaitOutbox::new();
        let (one, two) = (Token::random(), Token::random());
        let keep = Duration::from_secs(1);
        let first = notices.write(H, one, wait(1), keep).expect("open");
        let sent = notices.due();
        assert_eq!(fences(&sent[0].0), [1]);
        notices.write(H, two, wait(2), keep).expect("open");
        assert!(notices.due().is_empty(), "the first is in flight");
        notices.answered(H, first, true);
        assert!(notices.said(H, first).await);
        let sent = notices.due();
        assert_eq!(fences(&sent[0].0), [1, 2]);
        notices.answered(H, sent[0].1, false);
        assert!(!notices.said(H, sent[0].1).await);
        assert!(notices.strike(H, &one) && notices.strike(H, &two) && !notices.strike(H, &two));
        let sent = notices.due();
        assert_eq!(fences(&sent[0].0), [0; 0]);
        assert!(!notices.is_clear());
        notices.answered(H, sent[0].1, true);
        assert!(notices.is_clear() && notices.due().is_empty());
    }

    #[test]
    fn wait_that_was_never_sent_needs_no_withdrawal() {
        let notices = WaitOutbox::new();
        let token = Token::random();
        notices.write(H, token, wait(1), Duration::ZERO).expect("open");
        assert!(!notices.strike(H, &token) && notices.is_clear());
    }

    #[test]
    fn a_close_takes_back_what_was_said_and_takes_no_more() {
        let notices = WaitOutbox::new();
        notices.write(H, Token::random(), wait(1), Duration::ZERO).expect("open");
        let sent = notices.due();
        notices.close();
        assert!(notices.write(H, Token::random(), wait(2), Duration::ZERO).is_none());
        notices.answered(H, sent[0].1, true);
        let sent = notices.due();
        assert!(sent[0].0.waits.is_empty());
        notices.answered(H, sent[0].1, false);
        assert!(notices.is_clear());
    }
}
