//! Replacing the note of a claim that holds: it is read, and written if nobody wrote it meanwhile.
//! Three exchanges and one proposal; it stays on whatever lease it is on.
//!
//! A claim's mode is part of its key, and the order of a line is that of its keys' creation: a key
//! with another mode would be behind everybody. So modes and limits stay as they are here.

use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::rule::claim::{Amended, ClaimKey, Note, Standing};

use super::Inner;
use super::keep;
use super::wire::{Compare, TxnRequest, put_on_same_lease};

/// How often a claim is tried that is written by others meanwhile: its renewals.
const ROUNDS_MAX: usize = 8;

pub(super) async fn set_note(inner: &Inner, key: &ClaimKey, note: &Note) -> Result<Amended> {
    for _ in 0..ROUNDS_MAX {
        let now = SystemClock.now();
        let lapsed = inner.book.get(key).is_some_and(|record| record.until <= now);
        let found = if lapsed { None } else { keep::find(inner, key).await? };
        let Some(record) = found.filter(|record| record.held) else {
            let by = match keep::out(inner, &key.name).await? {
                Standing::Out { by, .. } => by,
                _ => None,
            };
            return Ok(Amended::Out { by });
        };
        let mut detail = record.detail;
        detail.note = note.clone();
        let compare = vec![Compare::modified(&record.key, record.modified)];
        let success = vec![put_on_same_lease(&record.key, &detail.encode())];
        let request = TxnRequest { compare, success, failure: Vec::new() };
        let answer = inner.links.txn(&request).await;
        let answer = answer.map_err(|status| inner.links.translate(&status))?;
        if answer.succeeded {
            inner.book.change_at(key, record.created, |record| {
                (record.modified, record.seen) = (answer.revision(), answer.revision());
                record.detail.note = note.clone();
            });
            return Ok(Amended::Done);
        }
    }
    Err(Error::Store {
        store: inner.links.store.clone(),
        cause: format!("the claim on `{}` changed again and again", key.name),
        transient: true,
    })
}
