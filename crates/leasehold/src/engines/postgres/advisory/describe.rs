//! Writing down what the server does not know about a lock: its name, holder, note and fence.
//!
//! Off the way of a claim, and only about claims that live for a while: most are given back before
//! anybody could read of them. Whoever reads waits a moment for what is being written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio_postgres::types::{ToSql, Type};

use crate::error::Result;

use super::Inner;
use super::book::{Entry, Place, Written};

/// How old a claim is before it is written down. Whoever reads waits longer than this.
const AGE: Duration = Duration::from_millis(10);

/// The pause after a failure to write.
const PAUSE: Duration = Duration::from_millis(500);

/// The most claims in one exchange.
const BATCH_MAX: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Scribe {
    awake: AtomicBool,
    work: Notify,
    /// Held from looking at the book until what was seen is written, so that nothing older
    /// overwrites it.
    pub(super) pen: Mutex<()>,
}

impl Scribe {
    /// There is something to write, in a moment.
    pub(super) fn notice(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.work.notify_one();
        }
    }
}

/// Writes as long as the engine runs.
pub(super) async fn write(inner: Arc<Inner>) {
    sweep(&inner).await;
    loop {
        inner.scribe.work.notified().await;
        loop {
            tokio::time::sleep(AGE).await;
            let (written, more) = write_some(&inner).await;
            if let Err(error) = written {
                tracing::debug!(%error, "others cannot read about some locks yet");
                tokio::time::sleep(PAUSE).await;
            }
            if !more {
                // From here on somebody who comes rings anew; whoever came just before is seen.
                inner.scribe.awake.store(false, Ordering::Release);
                if !gather(&inner).1 {
                    break;
                }
                inner.scribe.awake.store(true, Ordering::Release);
            }
        }
    }
}

/// Writes what is due, and says whether anything was left to be written.
async fn write_some(inner: &Inner) -> (Result<()>, bool) {
    let _pen = inner.scribe.pen.lock().await;
    let (batch, more) = gather(inner);
    match batch.is_empty() {
        true => (Ok(()), more),
        false => (put_down(inner, &batch).await, more),
    }
}

/// Removes what sessions that are gone have left.
async fn sweep(inner: &Inner) {
    if inner.found.get().is_some()
        && let Err(error) = inner.ask(&inner.statements.sweep, &[]).await
    {
        tracing::debug!(%error, "what dead sessions wrote is left");
    }
}

/// A row to be written.
struct Row {
    id: i64,
    token: crate::rule::claim::Token,
    pid: i32,
    backend: i64,
    key: (u32, u32, i16),
    name: String,
    holder: [u8; 16],
    label: String,
    note: String,
    fence: i64,
    age_us: i64,
    left_us: i64,
    says: Written,
}

/// What is old enough to be written, and whether anything is left to be.
fn gather(inner: &Inner) -> (Vec<Row>, bool) {
    let now = inner.now();
    let book = inner.book();
    let mut rows = Vec::new();
    let mut more = false;
    for entry in book.claims.values().filter(|entry| entry.to_write() > entry.written) {
        more = true;
        let seat = entry.session().and_then(|session| book.seats.get(&session));
        let Some(seat) = seat else { continue };
        // One that was written down as waiting is expected by readers to be written anew soon.
        let due = entry.written != Written::Nothing || now.since(entry.since) >= AGE;
        if due && rows.len() < BATCH_MAX {
            rows.push(row(entry, &seat.session, now));
        }
    }
    (rows, more)
}

fn row(entry: &Entry, session: &super::session::Session, now: crate::clock::Moment) -> Row {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let fence = match entry.place {
        Place::Held { fence, .. } => fence,
        _ => 0,
    };
    Row {
        id: entry.row,
        token: entry.key.token,
        pid: session.pid,
        backend: session.backend,
        key: entry.on.columns(),
        name: entry.key.name.as_str().to_owned(),
        holder: entry.holder.id().0.to_be_bytes(),
        label: entry.holder.label().to_owned(),
        note: entry.note.as_str().to_owned(),
        fence: i64::try_from(fence).unwrap_or(i64::MAX),
        age_us: micros(now.since(entry.since)),
        left_us: micros(entry.left(now)),
        says: entry.to_write(),
    }
}

async fn put_down(inner: &Inner, rows: &[Row]) -> Result<()> {
    macro_rules! column {
        ($row:ident => $value:expr) => {
            rows.iter().map(|$row| $value).collect::<Vec<_>>()
        };
    }
    let ids = column!(row => row.id);
    let pids = column!(row => row.pid);
    let backends = column!(row => row.backend);
    let classes = column!(row => i64::from(row.key.0));
    let objects = column!(row => i64::from(row.key.1));
    let kinds = column!(row => row.key.2);
    let names = column!(row => row.name.as_str());
    let holders = column!(row => row.holder.as_slice());
    let labels = column!(row => row.label.as_str());
    let notes = column!(row => row.note.as_str());
    let fences = column!(row => row.fence);
    let ages = column!(row => row.age_us);
    let lefts = column!(row => row.left_us);
    let arguments: [(&(dyn ToSql + Sync), Type); 13] = [
        (&ids, Type::INT8_ARRAY),
        (&pids, Type::INT4_ARRAY),
        (&backends, Type::INT8_ARRAY),
        (&classes, Type::INT8_ARRAY),
        (&objects, Type::INT8_ARRAY),
        (&kinds, Type::INT2_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&holders, Type::BYTEA_ARRAY),
        (&labels, Type::TEXT_ARRAY),
        (&notes, Type::TEXT_ARRAY),
        (&fences, Type::INT8_ARRAY),
        (&ages, Type::INT8_ARRAY),
        (&lefts, Type::INT8_ARRAY),
    ];
    inner.ask(&inner.statements.describe, &arguments).await?;
    let gone: Vec<i64> = {
        let mut book = inner.book();
        let mut gone = Vec::new();
        for row in rows {
            match book.claims.get_mut(&row.token).filter(|entry| entry.row == row.id) {
                Some(entry) => entry.written = row.says,
                None => gone.push(row.id),
            }
        }
        gone
    };
    if !gone.is_empty() {
        // Given back while they were being written.
        inner.ask(&inner.statements.forget, &[(&gone, Type::INT8_ARRAY)]).await?;
    }
    Ok(())
}
