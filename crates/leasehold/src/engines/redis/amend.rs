//! Changing what is in line: a claim's mode or note, a semaphore's limit. One script call each.

use crate::engine::{Resize, Resized};
use crate::error::Result;
use crate::rule::claim::{Amended, Amendment, ClaimKey, Mode};
use crate::rule::line::Refusal;

use super::answer::{self, Odd, Parts, hex};
use super::{CLAIM_BYTES, Inner, scripts};

pub(super) async fn amend(inner: &Inner, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
    let keys = inner.layout.keys(&key.name)?;
    let note = amendment.note.as_ref().map_or("", |note| note.as_str());
    let call = inner
        .call(&scripts::AMEND, &keys, note.len() + CLAIM_BYTES)
        .text(hex(key.token.as_bytes()));
    let call = match amendment.mode {
        Some(mode) => call.shown(mode.units()).shown(mode.capacity()),
        None => call.text("").text(""),
    };
    let call = call.text(if amendment.note.is_some() { "note" } else { "" }).text(note);
    // Becoming exclusive is a grant: it counts when enough replicas have it. Asked again, it is the
    // same change, so nothing is taken back.
    let wait_for = inner.wait_for.filter(|_| amendment.mode == Some(Mode::Exclusive));
    let (answer, reached) = match wait_for {
        None => (inner.links.call(&call).await?, u64::MAX),
        Some(wait_for) => inner.call_and_wait(&call, wait_for).await?,
    };
    let (amended, expired) = inner.understood(Parts::of(answer).and_then(amended))?;
    inner.note_expired(expired);
    match wait_for {
        Some(wait_for) if amended == Amended::Done && reached < wait_for.replicas => {
            Err(inner.too_few(wait_for, reached))
        }
        _ => Ok(amended),
    }
}

fn amended(mut parts: Parts) -> Result<(Amended, u64), Odd> {
    let (verdict, expired) = (parts.text()?, parts.number()?);
    let amended = match verdict.as_str() {
        "done" => Amended::Done,
        "refused" => Amended::Refused,
        "out" => Amended::Out { by: parts.holder()? },
        _ => return Err(Odd),
    };
    Ok((amended, expired))
}

pub(super) async fn resize(inner: &Inner, order: &Resize) -> Result<Resized> {
    let keys = inner.layout.keys(&order.name)?;
    let call = inner.call(&scripts::RESIZE, &keys, CLAIM_BYTES).shown(order.of);
    let answer = inner.links.call(&call).await?;
    let (verdict, expired, units) = inner.understood(Parts::of(answer).and_then(resized))?;
    inner.note_expired(expired);
    match verdict.as_str() {
        "done" => Ok(Resized::Done { before: units }),
        "unused" => Ok(Resized::Unused),
        "held" => Ok(Resized::Held { units }),
        "wanted" => Ok(Resized::Wanted { units }),
        "mismatch" => {
            let refusal = Refusal::Mismatch(answer::kind(units));
            Err(refusal.into_resize_error(order))
        }
        _ => inner.understood(Err(Odd)),
    }
}

fn resized(mut parts: Parts) -> Result<(String, u64, u32), Odd> {
    Ok((parts.text()?, parts.number()?, parts.number()?))
}
