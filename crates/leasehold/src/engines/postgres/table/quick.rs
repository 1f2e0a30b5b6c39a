//! The usual cases by the shortest way: a name that nobody else wants, taken and given back; and
//! one that many want all of, waited for and given to the next, who is told that it holds.
//!
//! Each is one prepared statement, where a session is ours to prepare it in. If it is not the
//! usual case no row comes back, nothing has changed, and the SQL function is asked, as it is in
//! all cases where nothing can be prepared. Whoever met somebody on a name takes it for one that
//! many want for a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};

use crate::clock::remote::Reading;
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::rule::claim::{Claim, ClaimKey, Place, Released, Standing};
use crate::rule::name::Name;

use super::super::failure::{self, broken};
use super::super::link::Link;
use super::super::settings::Settings;
use super::Inner;
use super::bells::Rung;
use super::rows::micros;
use super::schema::Statements;

/// The places of the prepared statements.
const TAKE: usize = 0;
const PART: usize = 1;
const JOIN: usize = 2;
const CONFIRM: usize = 3;
const HAND: usize = 4;
const RING: usize = 5;

/// What the functions set for themselves. Plans are made while tables are small, and must not be
/// scans of whole tables, which would be kept when they have grown. They are made once: the server
/// takes plans for the arguments of each call for cheaper, which they are not, and making one takes
/// it longer than to carry it out.
const SET: &str = "SET lock_timeout = '1500ms'; SET enable_seqscan = off; \
                   SET enable_bitmapscan = off; SET jit = off; \
                   SET plan_cache_mode = force_generic_plan";

/// How long a name that somebody was met on counts as wanted by several.
const MET_FOR: Duration = Duration::from_secs(1);

/// The most names that are remembered so.
const MET_MAX: usize = 1_024;

/// Prepares the statements on a new connection, if its server process is its own.
pub(super) async fn prepare(
    link: &Link,
    settings: &Settings,
    statements: &Statements,
    process: i32,
) -> Result<()> {
    let take = [
        Type::TEXT,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
        Type::BYTEA,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
    ];
    let key = [Type::TEXT, Type::BYTEA];
    let join = [
        Type::TEXT,
        Type::BYTEA,
        Type::INT8,
        Type::BYTEA,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::INT8,
    ];
    let confirm = [Type::TEXT, Type::BYTEA, Type::INT8];
    let texts: [(&str, &[Type]); 6] = [
        (&statements.take, &take),
        (&statements.part, &key),
        (&statements.join, &join),
        (&statements.confirm, &confirm),
        (&statements.hand, &key),
        (&statements.ring, &[]),
    ];
    link.prepare(settings, process, SET, &texts).await
}

/// Names that several wanted a moment ago.
#[derive(Debug, Default)]
pub(super) struct Met {
    names: Mutex<HashMap<Name, Instant>>,
}

impl Met {
    fn lately(&self, name: &Name) -> bool {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(name).is_some_and(|at| at.elapsed() < MET_FOR)
    }

    fn note(&self, name: &Name) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MET_MAX {
            names.retain(|_, at| at.elapsed() < MET_FOR);
        }
        if names.len() < MET_MAX {
            names.insert(name.clone(), Instant::now());
        }
    }

    fn forget(&self, name: &Name) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// What is known about a claim before it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It cannot be in line yet.
    New,
    /// Its bell was rung.
    Rung,
    /// It may be in line.
    Asked,
}

/// What came of asking by the short way.
pub(super) enum Short {
    Stands(Standing),
    /// Somebody is in line.
    Met,
    /// It has to be asked for in full.
    Unasked,
}

impl Inner {
    /// Asks for a claim by the way that is the shortest for what is known about it.
    pub(super) async fn shortly(
        &self,
        link: &Link,
        claim: &Claim,
        (join, known): (bool, Known),
        bell: i64,
    ) -> Result<Short> {
        let lately = known == Known::New && self.met.lately(&claim.key.name);
        match known {
            Known::New if lately && join => self.join(link, claim, bell).await,
            Known::New if lately => Ok(Short::Unasked),
            Known::New => self.take(link, claim, bell).await,
            Known::Rung => self.confirm(link, claim).await,
            Known::Asked => Ok(Short::Unasked),
        }
    }

    /// Takes a name that nobody is in line for.
    async fn take(&self, link: &Link, claim: &Claim, bell: i64) -> Result<Short> {
        let name = &claim.key.name;
        let Some(statement) = link.prepared(TAKE) else { return Ok(Short::Unasked) };
        let (units, capacity) = (i64::from(claim.mode.units()), i64::from(claim.mode.capacity()));
        let (token, holder) = (claim.key.token.as_bytes(), claim.holder.id().0.to_be_bytes());
        let ttl = micros(claim.ttl);
        let arguments: [&(dyn ToSql + Sync); 9] = [
            &name.as_str(),
            &token.as_slice(),
            &units,
            &capacity,
            &holder.as_slice(),
            &claim.holder.label(),
            &claim.note.as_str(),
            &ttl,
            &bell,
        ];
        let Some(row) = link.query_prepared(&self.settings, statement, &arguments).await? else {
            self.met.note(name);
            return Ok(Short::Met);
        };
        let fence = self.positive(row.get(0))?;
        Ok(Short::Stands(Standing::Held { fence, remaining: claim.ttl }))
    }

    /// Enters the line of a name that several want all of.
    async fn join(&self, link: &Link, claim: &Claim, bell: i64) -> Result<Short> {
        let (name, mode) = (&claim.key.name, claim.mode);
        let statement = link.prepared(JOIN).filter(|_| mode.units() == mode.capacity());
        let Some(statement) = statement else { return Ok(Short::Unasked) };
        let units = i64::from(mode.units());
        let (token, holder) = (claim.key.token.as_bytes(), claim.holder.id().0.to_be_bytes());
        let patience = micros(claim.patience);
        let arguments: [&(dyn ToSql + Sync); 8] = [
            &name.as_str(),
            &token.as_slice(),
            &units,
            &holder.as_slice(),
            &claim.holder.label(),
            &claim.note.as_str(),
            &patience,
            &bell,
        ];
        let row = match link.try_prepared(&self.settings, statement, &arguments).await? {
            // Asked in full, it is asked until it is in line.
            Err(error) if failure::is_locked_out(&error) => return Ok(Short::Unasked),
            row => row.map_err(|error| failure::error(&self.settings.store, error))?,
        };
        let Some(row) = row else {
            // Probably it is not wanted by several any more.
            self.met.forget(name);
            return Ok(Short::Unasked);
        };
        self.met.note(name);
        let place = Place::new(self.positive(row.get(0))?);
        let ahead = usize::try_from(row.get::<_, i32>(1))
            .map_err(|_| broken(&self.settings.store, "a negative number"))?;
        let retry_in = Duration::from_micros(self.positive(row.get(2))?);
        Ok(Short::Stands(Standing::Queued { place, ahead, retry_in }))
    }

    /// Confirms a claim whose bell says that it holds.
    async fn confirm(&self, link: &Link, claim: &Claim) -> Result<Short> {
        let Some(statement) = link.prepared(CONFIRM) else { return Ok(Short::Unasked) };
        let (name, token) = (claim.key.name.as_str(), claim.key.token.as_bytes().as_slice());
        let ttl = micros(claim.ttl);
        let sent = SystemClock.now();
        let row = link.query_prepared(&self.settings, statement, &[&name, &token, &ttl]).await?;
        let Some(row) = row else { return Ok(Short::Unasked) };
        let (received, time) = (SystemClock.now(), row.get::<_, i64>(1));
        let time = u64::try_from(time).unwrap_or_default();
        self.read_clock(Reading { sent, received, time });
        let (fence, left) = (self.positive(row.get(0))?, self.positive(row.get(2))?);
        let remaining = Duration::from_micros(left);
        Ok(Short::Stands(Standing::Held { fence, remaining }))
    }

    /// Gives a lease back that nobody else is in line with, or that the next in line gets; `None`
    /// if that has to be asked for in full.
    pub(super) async fn part(&self, link: &Link, key: &ClaimKey) -> Result<Option<Released>> {
        let (name, token) = (key.name.as_str(), key.token.as_bytes().as_slice());
        if !self.met.lately(&key.name)
            && let Some(statement) = link.prepared(PART)
        {
            let row = link.query_prepared(&self.settings, statement, &[&name, &token]).await?;
            if let Some(row) = row {
                return Ok(Some(match row.get(0) {
                    true => Released::Released,
                    false => Released::AlreadyExpired,
                }));
            }
            self.met.note(&key.name);
        }
        self.hand(link, key).await
    }

    /// Gives a lease to the next in line, and rings for it: two statements that are sent together,
    /// the second without waiting for the answer to the first.
    async fn hand(&self, link: &Link, key: &ClaimKey) -> Result<Option<Released>> {
        let (Some(hand), Some(ring)) = (link.prepared(HAND), link.prepared(RING)) else {
            return Ok(None);
        };
        let (name, token) = (key.name.as_str(), key.token.as_bytes().as_slice());
        let handed = async {
            let row = link.query_prepared(&self.settings, hand, &[&name, &token]).await?;
            let Some(row) = row else { return Ok(None) };
            // Whoever waits here need not wait for the server's bell.
            if let Some(rung) = row.get::<_, Option<&str>>(0).and_then(Rung::last) {
                self.bells.ring(&rung);
            }
            Ok(Some(Released::Released))
        };
        let rung = link.run_prepared(&self.settings, ring);
        let (handed, rung) = tokio::join!(handed, rung);
        if let Err(error) = rung {
            // The lease is given back all the same, and the next in line finds out by asking.
            tracing::debug!(%error, "a bell was not rung");
        }
        handed
    }

    /// Lets a connection's process plan and load what giving to the next in line takes, once and
    /// while somebody waits anyway: the first time takes it some milliseconds.
    pub(super) fn rehearse(&self, link: &Link) {
        if let (Some(hand), Some(ring)) = (link.prepared(HAND), link.prepared(RING))
            && link.is_unrehearsed()
        {
            // Nobody is in line for a name without letters.
            link.send_prepared(hand, &[&"", &[0_u8; 0].as_slice()]);
            link.send_prepared(ring, &[]);
        }
    }

    fn positive(&self, number: i64) -> Result<u64> {
        u64::try_from(number).map_err(|_| broken(&self.settings.store, "a negative number"))
    }
}
