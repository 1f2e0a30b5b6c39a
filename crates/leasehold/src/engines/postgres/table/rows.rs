//! Between the library's nouns and the rows and arguments of the SQL functions.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, WasNull};

use crate::engine::{BrokenLine, ClaimView, LineView, Page, Query, Select};
use crate::error::{Kind, Result};
use crate::rule::claim::{Claim, Holder, HolderId, Mode, Note, Place, Released, Standing};
use crate::rule::line::Refusal;
use crate::rule::name::Name;

use super::super::failure::broken;

/// Why a column cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misfit {
    /// The row is the answer to another statement.
    Missing,
    Null,
    OtherType,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Misfit::Missing => "a row without",
            Misfit::Null => "a null in",
            Misfit::OtherType => "another type in",
        })
    }
}

/// A row with the address of its store, for errors.
pub(super) struct Answer<'a> {
    pub(super) store: &'a str,
    pub(super) row: &'a Row,
}

impl<'a> Answer<'a> {
    pub(super) fn get<T: FromSql<'a>>(&self, column: &str) -> Result<T> {
        let read = match self.row.columns().iter().position(|there| there.name() == column) {
            Some(place) => self.row.try_get(place).map_err(|error| match error.source() {
                Some(cause) if cause.is::<WasNull>() => Misfit::Null,
                _ => Misfit::OtherType,
            }),
            None => Err(Misfit::Missing),
        };
        read.map_err(|misfit| broken(self.store, &format!("{misfit} `{column}`")))
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
            "queued" => Ok(Standing::Queued {
                place: Place::new(self.number("fence")?),
                ahead: self.ahead()?,
                retry_in: self.span("span_us")?,
            }),
            "out" => Ok(Standing::Out {
                ahead: self.ahead()?,
                retry_in: self.span("span_us")?,
                by: self.holder()?,
            }),
            _ => Err(broken(self.store, "an unknown standing")),
        }
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
            fence: self.number("fence")?.into(),
            mode: mode(u32::try_from(units).unwrap_or_default(), self.capacity()?),
            age: self.span("age_us")?,
            remaining: self.span("remaining_us")?,
            note: note.map_err(|_| broken(self.store, "a note out of bounds"))?,
            closed: self.get("closed")?,
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

/// Adds claims to a page that is full with one line less than they are of. Returns how many names
/// they have, and the last of these.
pub(super) fn fill<'a>(
    page: &mut Page,
    store: &str,
    query: &Query,
    rows: &'a [Row],
) -> (usize, Option<&'a str>) {
    let mut names = 0;
    for rows in rows.chunk_by(|one, next| name_in(one) == name_in(next)) {
        names += 1;
        // No client can ask for what is no name.
        let Some(name) = name_in(&rows[0]).and_then(|name| Name::new(name).ok()) else { continue };
        if page.lines.len() + page.broken.len() == query.page_lines() {
            let ends = (page.lines.last().map(|line| &line.name), page.broken.last());
            page.next = ends.0.max(ends.1.map(|line| &line.name)).cloned();
            break;
        }
        match line(store, &name, rows) {
            Ok(line) => page.lines.push(line),
            Err(_) if matches!(query.select, Select::Holder(_)) => {}
            Err(error) => page.broken.push(BrokenLine { name, cause: error.to_string() }),
        }
    }
    (names, rows.last().and_then(name_in))
}

fn name_in(row: &Row) -> Option<&str> {
    row.try_get("name").ok()
}

/// The line of the claims in some rows, of which there is one at least.
fn line(store: &str, name: &Name, rows: &[Row]) -> Result<LineView> {
    let capacity = Answer { store, row: &rows[0] }.capacity()?;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for row in rows {
        let answer = Answer { store, row };
        let claims = if answer.get("holds")? { &mut held } else { &mut waiting };
        claims.push(answer.view()?);
    }
    Ok(LineView { name: name.clone(), kind: kind(capacity), held, waiting })
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
