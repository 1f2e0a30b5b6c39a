//! What clients say of their long waits: a row for each client that has something to say.

use std::sync::Arc;

use tokio_postgres::types::Type;

use crate::engine::{Notice, Wait};
use crate::error::Result;
use crate::rule::claim::HolderId;

use super::super::link::Argument;
use super::Inner;
use super::rows::{Answer, micros};

pub(super) async fn announce(inner: &Arc<Inner>, notice: &Notice) -> Result<()> {
    let (holder, client) = (notice.holder.0.to_be_bytes(), notice.client.to_be_bytes());
    let (text, keep) = (notice.text(), micros(notice.keep));
    let arguments: [Argument<'_>; 4] = [
        (&holder.as_slice(), Type::BYTEA),
        (&client.as_slice(), Type::BYTEA),
        (&text, Type::TEXT),
        (&keep, Type::INT8),
    ];
    inner.query(&inner.statements.announce, &arguments).await.map(|_rows| ())
}

pub(super) async fn waits_of(inner: &Arc<Inner>, holder: HolderId) -> Result<Vec<Wait>> {
    let holder = holder.0.to_be_bytes();
    let arguments: [Argument<'_>; 1] = [(&holder.as_slice(), Type::BYTEA)];
    let rows = inner.query(&inner.statements.waits_of, &arguments).await?;
    let store = &inner.settings.store;
    let mut waits = Vec::new();
    for row in &rows {
        waits.extend(Wait::read(&Answer { store, row }.get::<String>("waits")?));
    }
    Ok(waits)
}
