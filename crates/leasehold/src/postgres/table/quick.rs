//! The usual case by the shortest way: a name that nobody else wants, taken and given back.
//!
//! Each is one prepared statement on one row, where a session is ours to prepare it in. If it is
//! not the usual case no row comes back, nothing has changed, and the SQL function is asked, as it
//! is in all cases where nothing can be prepared. Whoever met somebody on a name asks the function
//! at once for a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};

use crate::claim::{Claim, ClaimKey, Released, Standing};
use crate::error::Result;
use crate::name::Name;

use super::super::failure::broken;
use super::super::link::Link;
use super::super::settings::Settings;
use super::Inner;
use super::rows::micros;
use super::schema::Statements;

/// The places of the prepared statements.
const TAKE: usize = 0;
const PART: usize = 1;

/// What the functions set for themselves. Plans are made while tables are small, and must not be
/// scans of whole tables, which would be kept when they have grown.
const SET: &str = "SET lock_timeout = '1500ms'; SET enable_seqscan = off; \
                   SET enable_bitmapscan = off; SET jit = off";

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
    let part = [Type::TEXT, Type::BYTEA];
    let texts: [(&str, &[Type]); 2] = [(&statements.take, &take), (&statements.part, &part)];
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
}

/// What came of taking a name.
pub(super) enum Taken {
    Held(Standing),
    /// Somebody is in line.
    Met,
    /// It has to be asked for in full.
    Unasked,
}

impl Inner {
    /// Takes a name that nobody is in line for.
    pub(super) async fn take(&self, link: &Link, claim: &Claim, bell: i64) -> Result<Taken> {
        let name = &claim.key.name;
        let Some(statement) = link.prepared(TAKE).filter(|_| !self.met.lately(name)) else {
            return Ok(Taken::Unasked);
        };
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
            return Ok(Taken::Met);
        };
        let fence = u64::try_from(row.get::<_, i64>(0))
            .map_err(|_| broken(&self.settings.store, "a negative number"))?;
        Ok(Taken::Held(Standing::Held { fence, remaining: claim.ttl }))
    }

    /// Gives a lease back that nobody else is in line with; `None` if that has to be asked for in
    /// full.
    pub(super) async fn part(&self, link: &Link, key: &ClaimKey) -> Result<Option<Released>> {
        let Some(statement) = link.prepared(PART).filter(|_| !self.met.lately(&key.name)) else {
            return Ok(None);
        };
        let (name, token) = (key.name.as_str(), key.token.as_bytes().as_slice());
        let row = link.query_prepared(&self.settings, statement, &[&name, &token]).await?;
        Ok(row.map(|row| match row.get(0) {
            true => Released::Released,
            false => Released::AlreadyExpired,
        }))
    }
}
