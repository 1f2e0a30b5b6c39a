//! Changing what is in line: a claim's mode or note, a semaphore's limit. One exchange each, and
//! one flush where something changed.

use std::sync::Arc;

use tokio_postgres::types::Type;

use crate::engine::{Resize, Resized};
use crate::error::{Kind, Result};
use crate::rule::claim::{Amended, Amendment, ClaimKey};
use crate::rule::line::Refusal;

use super::super::failure::broken;
use super::super::link::{Argument, one};
use super::Inner;
use super::rows::Answer;

pub(super) async fn amend(
    inner: &Arc<Inner>,
    key: &ClaimKey,
    amendment: &Amendment,
) -> Result<Amended> {
    let units = amendment.mode.map(|mode| i64::from(mode.units()));
    let capacity = amendment.mode.map(|mode| i64::from(mode.capacity()));
    let note = amendment.note.as_ref().map(|note| note.as_str());
    let arguments: [Argument<'_>; 5] = [
        (&key.name.as_str(), Type::TEXT),
        (&key.token.as_bytes().as_slice(), Type::BYTEA),
        (&units, Type::INT8),
        (&capacity, Type::INT8),
        (&note, Type::TEXT),
    ];
    let store = &inner.settings.store;
    let row = one(store, inner.query(&inner.statements.amend, &arguments).await?)?;
    let answer = Answer { store, row: &row };
    Ok(match answer.get("outcome")? {
        "done" => Amended::Done,
        "refused" => Amended::Refused,
        "out" => Amended::Out { by: answer.holder()? },
        _ => return Err(broken(store, "an unknown outcome")),
    })
}

pub(super) async fn resize(inner: &Arc<Inner>, order: &Resize) -> Result<Resized> {
    let arguments: [Argument<'_>; 2] =
        [(&order.name.as_str(), Type::TEXT), (&i64::from(order.of), Type::INT8)];
    let store = &inner.settings.store;
    let row = one(store, inner.query(&inner.statements.resize, &arguments).await?)?;
    let answer = Answer { store, row: &row };
    let units: Option<i64> = answer.get("units")?;
    let units = u32::try_from(units.unwrap_or(0))
        .map_err(|_| broken(store, "a number of units out of bounds"))?;
    match answer.get("outcome")? {
        "done" => Ok(Resized::Done { before: units }),
        "unused" => Ok(Resized::Unused),
        "held" => Ok(Resized::Held { units }),
        "wanted" => Ok(Resized::Wanted { units }),
        "mismatch" => Err(Refusal::Mismatch(Kind::Lock).into_resize_error(order)),
        _ => Err(broken(store, "an unknown outcome")),
    }
}
