//! Letting fences go on above everything, after a backup was restored: one exchange, one flush.

use std::sync::Arc;

use tokio_postgres::types::Type;

use crate::engine::{Bump, Bumped};
use crate::error::Result;

use super::super::link::{Argument, one};
use super::Inner;
use super::rows::{Answer, signed};

pub(super) async fn bump(inner: &Arc<Inner>, order: &Bump) -> Result<Bumped> {
    let (above, now) = (signed(order.above), signed(order.now_us));
    let arguments: [Argument<'_>; 2] = [(&above, Type::INT8), (&now, Type::INT8)];
    let store = &inner.settings.store;
    let row = one(store, inner.query(&inner.statements.bump, &arguments).await?)?;
    let answer = Answer { store, row: &row };
    let fence = |column| answer.get::<i64>(column).map(|fence| fence.max(0) as u64);
    Ok(Bumped::Raised { before: fence("before")?.into(), from: fence("first")?.into() })
}
