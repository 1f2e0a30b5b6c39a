//! Between the library's nouns and the rows and arguments of the SQL functions.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::claim::{Claim, Holder, HolderId, Mode, Note, Released, Standing};
use crate::engine::{ClaimView, LineView, Page, Query};
use crate::error::{Kind, Result};
use crate::line::Refusal;
use crate::name::Name;

use super::super::failure::broken;

/// A row with the address of its store, for errors.
pub(super) struct Answer<'a> {
    pub(super) store: &'a str,
    pub(super) row: &'a Row,
}

impl<'a> Answer<'a> {
    pub(super) fn get<T: FromSql<'a>>(&self, column: &str) -> Result<T> {
        self.row.try_get(column).map_err(|_| broken(self.store, "a row of another shape"))
    }

    fn span(&self, column: &str) -> Result<Duration> {
        Ok(Duration::from_micros(self.number(column)?))
    }

    fn number(&self, column: &str) -> Result<u64> {
        let number: i64 = self.get(column)?;
        u64::try_from(number).map_err(|_| broken(self.store, "a negative number"))
    }

    /// What the server's clock shows, in microseconds. One that is before 1970 is as good as none.
    pub(super) fn clock(&self) -> Result<u64> {
        Ok(u64::try_from(self.get::<i64>("clock_us")?).unwrap_or_default())
    }

    /// Whoever is named in the row.
    pub(super) fn holder(&self) -> Result<Option<Holder>> {
        let id: Option<&[u8]> = self.get("holder")?;
        let Some(id) = id else { return Ok(None) };
        let id: [u8; 16] = id.try_into().map_err(|_| broken(self.store, "an odd holder"))?;
        let label: &str = self.get("label")?;
        let holder = Holder::known(HolderId(u128::from_be_bytes(id)), label);
        holder.map(Some).map_err(|_| broken(self.store, "a label out of bounds"))
    }

    /// How a claim stands, as `claim` and `renew` answer.
    pub(super) fn standing(&self) -> Result<Standing> {
        match self.get("standing")? {
            "held" => Ok(Standing::Held {
                fence: self.number("fence")?,
                remaining: self.span("span_us")?,
            }),
            "queued" => {
                Ok(Standing::Queued { ahead: self.ahead()?, retry_in: self.span("span_us")? })
            }
            "out" => Ok(Standing::Out {
                ahead: self.ahead()?,
                retry_in: self.span("span_us")?,
                by: self.holder()?,
            }),
            _ => Err(broken(self.store, "an unknown standing")),
        }
    }

    /// The number of a claim that is in line.
    pub(super) fn fence(&self) -> Result<u64> {
        self.number("fence")
    }

    /// The answer to a claim, which may be refused.
    pub(super) fn claimed(&self, claim: &Claim) -> Result<Standing> {
        let refusal = match self.get("standing")? {
            "mismatch" => Refusal::Mismatch(kind(self.capacity()?)),
            "full" => Refusal::Full,
            _ => return self.standing(),
        };
        Err(refusal.into_error(claim))
    }

    /// What became of a claim that was given back.
    pub(super) fn released(&self) -> Result<Released> {
        Ok(match (self.get("released")?, self.holder()?) {
            (true, _) => Released::Released,
            (false, Some(holder)) => Released::TakenBy(holder),
            (false, None) => Released::AlreadyExpired,
        })
    }

    fn ahead(&self) -> Result<usize> {
        let ahead: i32 = self.get("ahead")?;
        usize::try_from(ahead).map_err(|_| broken(self.store, "a negative number"))
    }

    fn capacity(&self) -> Result<u32> {
        let capacity: i64 = self.get("capacity")?;
        u32::try_from(capacity).map_err(|_| broken(self.store, "a capacity out of bounds"))
    }

    fn view(&self) -> Result<ClaimView> {
        let holder = self.holder()?.ok_or_else(|| broken(self.store, "a claim of nobody"))?;
        let units: i64 = self.get("units")?;
        let note = Note::new(self.get::<&str>("note")?);
        Ok(ClaimView {
            holder,
            fence: self.number("fence")?,
            mode: mode(u32::try_from(units).unwrap_or_default(), self.capacity()?),
            age: self.span("age_us")?,
            remaining: self.span("remaining_us")?,
            note: note.map_err(|_| broken(self.store, "a note out of bounds"))?,
        })
    }
}

/// Puts answers that come with their places in order, one for each question.
pub(super) fn in_place<T>(
    store: &str,
    count: usize,
    rows: &[Row],
    read: impl Fn(&Answer<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut placed: Vec<(i64, T)> = Vec::with_capacity(count);
    for row in rows {
        let answer = Answer { store, row };
        placed.push((answer.get("at")?, read(&answer)?));
    }
    placed.sort_unstable_by_key(|(at, _)| *at);
    if placed.len() != count {
        return Err(broken(store, "too few or too many rows"));
    }
    Ok(placed.into_iter().map(|(_, answer)| answer).collect())
}

/// Makes a page of the claims of up to one line more than it may have.
pub(super) fn page(store: &str, query: &Query, rows: &[Row]) -> Result<Page> {
    let mut page = Page::default();
    for row in rows {
        let answer = Answer { store, row };
        let name: &str = answer.get("name")?;
        if page.lines.last().is_none_or(|line: &LineView| line.name.as_str() != name) {
            if page.lines.len() == query.page_lines() {
                page.next = page.lines.last().map(|line| line.name.clone());
                break;
            }
            page.lines.push(LineView {
                name: Name::new(name).map_err(|_| broken(store, "a name out of bounds"))?,
                kind: kind(answer.capacity()?),
                held: Vec::new(),
                waiting: Vec::new(),
            });
        }
        let line = page.lines.last_mut().expect("one was pushed above");
        let claims = if answer.get("holds")? { &mut line.held } else { &mut line.waiting };
        claims.push(answer.view()?);
    }
    Ok(page)
}

fn kind(capacity: u32) -> Kind {
    match capacity {
        Mode::LOCK_CAPACITY => Kind::Lock,
        of => Kind::Permits { of },
    }
}

fn mode(units: u32, capacity: u32) -> Mode {
    match (units, capacity) {
        (Mode::LOCK_CAPACITY, Mode::LOCK_CAPACITY) => Mode::Exclusive,
        (_, Mode::LOCK_CAPACITY) => Mode::Shared,
        (take, of) => Mode::Permits { take, of },
    }
}

/// A span in the store's microseconds: a part of one counts in favour of whoever holds.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// What a count is in the store.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
