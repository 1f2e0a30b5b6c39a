//! What a client has to tell others of its long waits: a sheet for each holder it speaks for.
//!
//! The waiting loops write on it and the keeper sends it, one exchange after the other, so that a
//! later word never arrives before an earlier one, and nothing is left behind when a wait ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{Holder, HolderId, Token};
use crate::engine::{Notice, Wait};

#[derive(Debug)]
pub(crate) struct Notices {
    /// Who speaks: several clients may be one holder.
    client: u128,
    sheets: Mutex<Sheets>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct Sheets {
    closed: bool,
    by_holder: HashMap<HolderId, Sheet>,
}

/// What there is to say in one holder's name.
#[derive(Debug, Default)]
struct Sheet {
    waits: Vec<(Token, Wait)>,
    keep: Duration,
    /// Counts what was written, and how much of it was sent and answered.
    written: u64,
    sent: u64,
    answered: u64,
    /// The last that was not answered well.
    failed: u64,
}

impl Sheet {
    fn is_due(&self) -> bool {
        self.written > self.sent && self.sent == self.answered
    }

    fn is_over(&self) -> bool {
        self.waits.is_empty() && self.written == self.answered
    }
}

impl Notices {
    pub(crate) fn new() -> Self {
        let client = Holder::fresh().id().0;
        Self { client, sheets: Mutex::default(), settled: Notify::new() }
    }

    /// Writes down that a claim waits. Returns what to wait for with [`said`](Self::said); `None`
    /// if nothing is said any more.
    pub(crate) fn write(
        &self,
        holder: HolderId,
        token: Token,
        wait: Wait,
        keep: Duration,
    ) -> Option<u64> {
        let mut sheets = self.sheets();
        if sheets.closed {
            return None;
        }
        let sheet = sheets.by_holder.entry(holder).or_default();
        sheet.waits.retain(|(other, _)| *other != token);
        sheet.waits.push((token, wait));
        sheet.keep = keep;
        sheet.written += 1;
        Some(sheet.written)
    }

    /// Takes back that a claim waits; whether the keeper has something to send for it.
    pub(crate) fn strike(&self, holder: HolderId, token: &Token) -> bool {
        let mut sheets = self.sheets();
        let Some(sheet) = sheets.by_holder.get_mut(&holder) else { return false };
        let before = sheet.waits.len();
        sheet.waits.retain(|(other, _)| other != token);
        if sheet.waits.len() == before {
            return false;
        }
        if sheet.sent == 0 && sheet.waits.is_empty() {
            // Nobody ever heard of it.
            sheets.by_holder.remove(&holder);
            return false;
        }
        sheet.written += 1;
        true
    }

    /// Takes everything back, and takes nothing more.
    pub(crate) fn close(&self) {
        let mut sheets = self.sheets();
        sheets.closed = true;
        sheets.by_holder.retain(|_, sheet| sheet.sent > 0);
        for sheet in sheets.by_holder.values_mut() {
            if !sheet.waits.is_empty() {
                sheet.waits.clear();
                sheet.written += 1;
            }
        }
        drop(sheets);
        self.settled.notify_waiters();
    }

    /// Whether nothing is left to send or to hear of.
    pub(crate) fn is_clear(&self) -> bool {
        self.sheets().by_holder.values().all(|sheet| sheet.written == sheet.answered)
    }

    /// What is to be sent now, and how much of its sheet it is.
    pub(crate) fn due(&self) -> Vec<(Notice, u64)> {
        let mut due = Vec::new();
        for (holder, sheet) in &mut self.sheets().by_holder {
            if sheet.is_due() {
                sheet.sent = sheet.written;
                let waits = sheet.waits.iter().map(|(_, wait)| wait.clone()).collect();
                let (holder, client, keep) = (*holder, self.client, sheet.keep);
                due.push((Notice { holder, client, waits, keep }, sheet.sent));
            }
        }
        due
    }

    /// An exchange has ended.
    pub(crate) fn answered(&self, holder: HolderId, number: u64, well: bool) {
        let mut sheets = self.sheets();
        if let Some(sheet) = sheets.by_holder.get_mut(&holder) {
            sheet.answered = number;
            if !well {
                sheet.failed = number;
            }
            if sheet.is_over() {
                sheets.by_holder.remove(&holder);
            }
        }
        drop(sheets);
        self.settled.notify_waiters();
    }

    /// Ends when the store has heard what was written; whether it has.
    pub(crate) async fn said(&self, holder: HolderId, number: u64) -> bool {
        loop {
            let settled = self.settled.notified();
            match self.sheets().by_holder.get(&holder) {
                None => return false,
                Some(sheet) if sheet.answered >= number => return sheet.failed < number,
                Some(_) => {}
            }
            settled.await;
        }
    }

    fn sheets(&self) -> MutexGuard<'_, Sheets> {
        self.sheets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    const H: HolderId = HolderId(1);

    fn wait(fence: u64) -> Wait {
        Wait { name: Name::new("n").expect("a good name"), fence, keeps: Vec::new() }
    }

    fn fences(notice: &Notice) -> Vec<u64> {
        notice.waits.iter().map(|wait| wait.fence).collect()
    }

    #[tokio::test]
    async fn one_word_is_sent_at_a_time_and_the_last_one_takes_everything_back() {
        let notices = Notices::new();
        let (one, two) = (Token::random(), Token::random());
        let keep = Duration::from_secs(1);
        let first = notices.write(H, one, wait(1), keep).expect("open");
        let sent = notices.due();
        assert_eq!(fences(&sent[0].0), [1]);
        notices.write(H, two, wait(2), keep).expect("open");
        assert!(notices.due().is_empty(), "the first is under way");
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
    fn what_nobody_heard_needs_no_taking_back() {
        let notices = Notices::new();
        let token = Token::random();
        notices.write(H, token, wait(1), Duration::ZERO).expect("open");
        assert!(!notices.strike(H, &token) && notices.is_clear());
    }

    #[test]
    fn a_close_takes_back_what_was_said_and_takes_no_more() {
        let notices = Notices::new();
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
