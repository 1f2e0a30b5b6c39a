//! Tells a refused caller which claims are in the way, and with which note.

use std::time::Duration;

use crate::engine::{LineView, Query};
use crate::error::{Held, Result, TryLockError};
use crate::runtime::keeper::Keeper;

/// How long a busy store has to tell who is in the way.
const READ_WITHIN: Duration = Duration::from_secs(2);

/// The longest line that is read for a refused caller. Reading a longer one costs a store more
/// than the refusal did.
const CLAIMS_READ_MAX: usize = 100;

/// Adds to a refusal what the line shows, which has the notes and all holders. A store that fails
/// or is slow now has still refused the claim, so the refusal stays as it is.
pub(crate) async fn explained<T>(
    keeper: &Keeper,
    answer: Result<T, TryLockError>,
) -> Result<T, TryLockError> {
    let Err(TryLockError::Held(mut held)) = answer else { return answer };
    if held.ahead > CLAIMS_READ_MAX {
        return Err(TryLockError::Held(held));
    }
    let (query, begun) = (Query::name(held.name.clone()), keeper.clock.now());
    let read = tokio::select! {
        biased;
        read = keeper.engine.inspect(&query) => read,
        () = keeper.clock.sleep_until(begun + READ_WITHIN) => Err(keeper.silent(begun)),
    };
    match read {
        Ok(page) => explain(&mut held, page.lines.into_iter().next()),
        Err(error) => {
            tracing::debug!(%error, name = %held.name, "the line of a refused claim is not read");
        }
    }
    Err(TryLockError::Held(held))
}

fn explain(held: &mut Held, line: Option<LineView>) {
    let Some(line) = line else { return };
    let in_line = line.held.len() + line.waiting.len();
    // Claims that came later are behind one that waited, and are no longer told from those before.
    held.ahead = if held.waited { held.ahead.min(in_line) } else { in_line };
    if let Some(first) = line.held.first() {
        held.by = Some(first.holder.clone());
        held.note = first.note.text().to_owned();
    }
    held.claims = line.held;
}
