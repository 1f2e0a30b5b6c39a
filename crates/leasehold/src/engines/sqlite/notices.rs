//! What clients say of their long waits: a row for each client that has something to say.

use rusqlite::{Connection, params};

use crate::clock::Moment;
use crate::engine::{Notice, Wait};
use crate::rule::claim::HolderId;

use super::failure::Failure;
use super::store::nanos;

/// Writes a notice down in place of the client's last one, or takes that back.
pub(super) fn announce(db: &Connection, now: Moment, notice: &Notice) -> Result<(), Failure> {
    let (holder, client) = (notice.holder.0.to_be_bytes(), notice.client.to_be_bytes());
    if notice.waits.is_empty() {
        db.prepare_cached("DELETE FROM notices WHERE holder = ?1 AND client = ?2")?
            .execute(params![holder, client])?;
    } else {
        db.prepare_cached(
            "INSERT INTO notices (holder, client, waits, expires) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (holder, client) \
             DO UPDATE SET waits = excluded.waits, expires = excluded.expires",
        )?
        .execute(params![holder, client, notice.text(), nanos(now + notice.keep)])?;
    }
    // What a client that died said goes with the next word of anybody: there are few of them.
    db.prepare_cached("DELETE FROM notices WHERE expires <= ?1")?.execute([nanos(now)])?;
    Ok(())
}

/// What the clients of a holder said.
pub(super) fn waits_of(
    db: &Connection,
    now: Moment,
    holder: HolderId,
) -> Result<Vec<Wait>, Failure> {
    let mut select =
        db.prepare_cached("SELECT waits FROM notices WHERE holder = ?1 AND expires > ?2")?;
    let mut rows = select.query(params![holder.0.to_be_bytes(), nanos(now)])?;
    let mut waits = Vec::new();
    while let Some(row) = rows.next()? {
        waits.extend(Wait::read(&row.get::<_, String>(0)?));
    }
    Ok(waits)
}
