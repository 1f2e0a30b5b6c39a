//! The lease table: lines as rows, the verbs as SQL functions, each one exchange in autocommit.
//!
//! The functions translate `line.rs`; the model test compares their answers with it. Time is the
//! server's `clock_timestamp()`. A grant or a renewal is flushed before it is answered or rung for
//! as one, joining and leaving are not. Waiting costs no connection: one per runtime hears all
//! bells.

mod adrift;
mod amend;
mod bells;
mod epoch;
mod examine;
mod feed;
mod notices;
mod quick;
mod room;
mod rows;
pub(super) mod schema;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::runtime::{Handle, Id};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::clock::remote::{Reading, RemoteClock};
use crate::clock::{Clock, SystemClock};
use crate::engine::server_alert::AlertQueue;
use crate::engine::{
    Administer, Alert, Alerts, Amend, Bump, Bumped, Capabilities, ClaimMany, Convert, Counting,
    Counts, Engine, Event, Eviction, Finding, HolderMessage, HolderMessages, Info, Notice, Page,
    Parts, Query, RaiseFences, Resize, Resized, Select, Setup, Steal, Totals, Unattended, Wait,
    WaitNotices, Wake, Watch,
};
use crate::error::{Error, Result};
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Renewal, Standing,
    Token,
};
use crate::rule::name::Name;

use super::failure;
use super::link::{Argument, Link, one};
use super::settings::Settings;
use adrift::{Adrift, Voyage};
use bells::{Bells, Hearing};
use quick::{Known, Met, Short};
use room::Room;
use rows::{Answer, fill, in_place, micros, signed};
use schema::{Found, Statements};

/// The greatest letter there is, as often as the longest name can have it: behind every name that
/// begins with what stands before it.
const LAST: char = '\u{10ffff}';
const LAST_TIMES: usize = Name::BYTES_MAX / 4;

/// A store in the tables of a PostgreSQL database. Clones share their connections.
#[derive(Debug, Clone)]
pub struct LeaseTable {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Arc<Settings>,
    statements: Arc<Statements>,
    bells: Arc<Bells>,
    adrift: Adrift,
    met: Met,
    /// What is known before the store was found.
    fresh: Info,
    found: OnceLock<Info>,
    rooms: Mutex<HashMap<Id, Arc<Room>>>,
    /// The clock by which claims end, whichever server is the primary.
    clock: Mutex<RemoteClock>,
    clock_watch: AlertQueue,
}

impl LeaseTable {
    /// Connects to the database at `url`, and installs the store's schema if it is not there and
    /// the URL does not say `install=no`.
    ///
    /// Where it is not there, or a right is missing, this succeeds all the same, so that
    /// [`schema`](Setup::schema) can be asked for; every verb then says what is missing.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let url = url.as_ref();
        let settings = Settings::parse(url)?;
        let fresh = Info {
            engine: "postgres",
            store: settings.store.clone(),
            store_id: 0,
            can: Capabilities::ALL,
            can_fail: true,
        };
        let statements = Arc::new(Statements::of(&settings.schema));
        let inner = Arc::new(Inner {
            settings: Arc::new(settings),
            statements,
            bells: Arc::default(),
            adrift: Adrift::default(),
            met: Met::default(),
            fresh,
            found: OnceLock::new(),
            rooms: Mutex::default(),
            clock: Mutex::default(),
            clock_watch: AlertQueue::default(),
        });
        let found = if inner.settings.install {
            inner.room().link(&inner).await.map(|_link| ())
        } else {
            let link = Link::open(&inner.settings).await?;
            let found = schema::find(&link, &inner.settings, &inner.statements).await;
            found.and_then(|found| found.map_or(Ok(()), |found| inner.know(found)))
        };
        match found {
            Err(error) if !schema::is_right_missing(&error) => Err(error),
            _ => Ok(Self { inner }),
        }
    }
}

impl Inner {
    /// The connections of the present runtime.
    fn room(&self) -> Arc<Room> {
        let id = Handle::current().id();
        let mut rooms = self.rooms();
        if !rooms.contains_key(&id) {
            // Runtimes come and go; what they leave behind is of no use to anybody.
            rooms.retain(|_, room| !room.is_over());
        }
        Arc::clone(rooms.entry(id).or_default())
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<Id, Arc<Room>>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection to the same store.
    async fn open_link(&self) -> Result<Link> {
        let link = Link::open(&self.settings).await?;
        let found = schema::find_or_install(&link, &self.settings, &self.statements).await?;
        self.know(found)?;
        quick::prepare(&link, &self.settings, &self.statements, found.process).await?;
        Ok(link)
    }

    /// The server's clock was shown.
    fn read_clock(&self, reading: Reading) {
        let trouble = self.clock.lock().unwrap_or_else(PoisonError::into_inner).read(reading);
        if let Some(trouble) = trouble {
            self.clock_watch.tell(&self.settings.store, trouble);
        }
    }

    /// Sees to it that all connections lead to one store.
    fn know(&self, found: Found) -> Result<()> {
        self.read_clock(found.reading);
        let store_id = found.store_id;
        let found = self.found.get_or_init(|| Info { store_id, ..self.fresh.clone() });
        match found.store_id == store_id {
            true => Ok(()),
            false => Err(Error::Replaced { store: self.settings.store.clone() }),
        }
    }

    async fn query(
        self: &Arc<Self>,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>> {
        let link = self.room().link(self).await?;
        link.query(&self.settings, statement, arguments).await
    }

    /// Asks about one claim, by the short way first where there is one.
    async fn ask(
        self: &Arc<Self>,
        claim: &Claim,
        (join, known): (bool, Known),
        bell: i64,
    ) -> Result<Standing> {
        let link = self.room().link(self).await?;
        let voyage = self.adrift.setting_out(claim.key.token, Arc::clone(&link));
        let standing = match self.shortly(&link, claim, (join, known), bell).await {
            Ok(Short::Stands(standing)) => Ok(standing),
            // Enough to know for a claim that is going to join.
            Ok(Short::Met) if claim.join && !join => {
                Ok(Standing::Out { ahead: 1, retry_in: Duration::ZERO, by: None })
            }
            Ok(Short::Met | Short::Unasked) => {
                self.stand(&link, claim, (join, known == Known::New), bell).await
            }
            Err(error) => Err(error),
        };
        if !matches!(standing, Err(Error::Unreachable { .. })) {
            voyage.arrived();
        }
        if matches!(standing, Ok(Standing::Queued { .. })) {
            self.rehearse(&link);
        }
        standing
    }

    /// How a claim stands, whatever the line is like.
    async fn stand(
        &self,
        link: &Link,
        claim: &Claim,
        (join, new): (bool, bool),
        bell: i64,
    ) -> Result<Standing> {
        let (units, capacity) = (i64::from(claim.mode.units()), i64::from(claim.mode.capacity()));
        let (ttl, patience) = (micros(claim.ttl), micros(claim.patience));
        let holder = claim.holder.id().0.to_be_bytes();
        let arguments: [Argument<'_>; 11] = [
            (&claim.key.name.as_str(), Type::TEXT),
            (&claim.key.token.as_bytes().as_slice(), Type::BYTEA),
            (&units, Type::INT8),
            (&capacity, Type::INT8),
            (&holder.as_slice(), Type::BYTEA),
            (&claim.holder.label(), Type::TEXT),
            (&claim.note.as_str(), Type::TEXT),
            (&ttl, Type::INT8),
            (&patience, Type::INT8),
            (&join, Type::BOOL),
            (&bell, Type::INT8),
        ];
        let Statements { claim: first, claim_again, .. } = &*self.statements;
        let statement = if new { first } else { claim_again };
        let store = &self.settings.store;
        let (sent, rows) = loop {
            let sent = SystemClock.now();
            match link.try_query(&self.settings, statement, &arguments).await? {
                // Many that join and renew keep a line locked for long. The caller waits anyway,
                // for as long as it wants to.
                Err(error) if claim.join && failure::is_locked_out(&error) => {
                    let name = &claim.key.name;
                    tracing::debug!(%name, "the line is locked for long; the claim asks again");
                }
                rows => {
                    break (sent, rows.map_err(|error| failure::error(store, error))?);
                }
            }
        };
        let answer = Answer { store, row: &one(store, rows)? };
        if !new {
            let (received, time) = (SystemClock.now(), answer.clock()?);
            self.read_clock(Reading { sent, received, time });
        }
        answer.claimed(claim)
    }

    /// One exchange about several claims that hold at once or not at all.
    async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        let Some(first) = claims.first() else { return Ok(None) };
        let (names, tokens) = Self::columns(claims.iter().map(|claim| &claim.key));
        let units: Vec<i64> = claims.iter().map(|claim| i64::from(claim.mode.units())).collect();
        let capacities: Vec<i64> =
            claims.iter().map(|claim| i64::from(claim.mode.capacity())).collect();
        let holder = first.holder.id().0.to_be_bytes();
        let notes: Vec<&str> = claims.iter().map(|claim| claim.note.as_str()).collect();
        let ttls: Vec<i64> = claims.iter().map(|claim| micros(claim.ttl)).collect();
        let arguments: [Argument<'_>; 8] = [
            (&names, Type::TEXT_ARRAY),
            (&tokens, Type::BYTEA_ARRAY),
            (&units, Type::INT8_ARRAY),
            (&capacities, Type::INT8_ARRAY),
            (&holder.as_slice(), Type::BYTEA),
            (&first.holder.label(), Type::TEXT),
            (&notes, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
        ];
        let link = self.room().link(self).await?;
        let voyages: Vec<_> = claims
            .iter()
            .map(|claim| self.adrift.setting_out(claim.key.token, Arc::clone(&link)))
            .collect();
        let rows = link.query(&self.settings, &self.statements.claim_all, &arguments).await;
        if !matches!(rows, Err(Error::Unreachable { .. })) {
            voyages.into_iter().for_each(Voyage::arrived);
        }
        let rows = rows?;
        if rows.is_empty() {
            return Ok(None);
        }
        let standing = |answer: &Answer<'_>| answer.standing();
        in_place(&self.settings.store, claims.len(), &rows, standing).map(Some)
    }

    /// Takes a name from its holders for a new claim, before those who wait.
    async fn steal(self: &Arc<Self>, claim: &Claim, order: &Eviction) -> Result<Standing> {
        let holder = claim.holder.id().0.to_be_bytes();
        let ttl = micros(claim.ttl);
        let fences: Vec<i64> = order.fences.iter().copied().map(signed).collect();
        let arguments: [Argument<'_>; 8] = [
            (&claim.key.name.as_str(), Type::TEXT),
            (&claim.key.token.as_bytes().as_slice(), Type::BYTEA),
            (&holder.as_slice(), Type::BYTEA),
            (&claim.holder.label(), Type::TEXT),
            (&claim.note.as_str(), Type::TEXT),
            (&ttl, Type::INT8),
            (&order.reason.as_str(), Type::TEXT),
            (&fences, Type::INT8_ARRAY),
        ];
        let link = self.room().link(self).await?;
        let voyage = self.adrift.setting_out(claim.key.token, Arc::clone(&link));
        let rows = link.query(&self.settings, &self.statements.steal, &arguments).await;
        if !matches!(rows, Err(Error::Unreachable { .. })) {
            voyage.arrived();
        }
        let store = &self.settings.store;
        Answer { store, row: &one(store, rows?)? }.claimed(claim)
    }

    /// Gives claims back.
    async fn release(self: &Arc<Self>, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let link = self.room().link(self).await?;
        if let [key] = keys
            && let Some(released) = self.part(&link, key).await?
        {
            return Ok(vec![released]);
        }
        let (names, tokens) = Inner::columns(keys.iter());
        let arguments: [Argument<'_>; 2] =
            [(&names, Type::TEXT_ARRAY), (&tokens, Type::BYTEA_ARRAY)];
        let rows = link.query(&self.settings, &self.statements.release, &arguments).await?;
        in_place(&self.settings.store, keys.len(), &rows, |answer| answer.released())
    }

    /// Gives a lease back, and lets its claim stay for a while under a token that nobody knows.
    async fn keep_closed(self: &Arc<Self>, key: &ClaimKey, stay: Duration) -> Result<Released> {
        let (stay, retired) = (micros(stay), Token::retired());
        let arguments: [Argument<'_>; 4] = [
            (&key.name.as_str(), Type::TEXT),
            (&key.token.as_bytes().as_slice(), Type::BYTEA),
            (&stay, Type::INT8),
            (&retired.as_bytes().as_slice(), Type::BYTEA),
        ];
        let rows = self.query(&self.statements.keep_closed, &arguments).await?;
        let store = &self.settings.store;
        Answer { store, row: &one(store, rows)? }.released()
    }

    /// Names and tokens as the arrays of one exchange.
    fn columns<'a>(keys: impl Iterator<Item = &'a ClaimKey>) -> (Vec<&'a str>, Vec<&'a [u8]>) {
        keys.map(|key| (key.name.as_str(), key.token.as_bytes().as_slice())).unzip()
    }
}

#[async_trait]
impl Engine for LeaseTable {
    fn info(&self) -> &Info {
        self.inner.found.get().unwrap_or(&self.inner.fresh)
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let inner = &self.inner;
        let token = claim.key.token;
        let known = inner.bells.known(&token);
        let bell = if claim.join { inner.bells.expect(token) } else { 0 };
        let room = inner.room();
        let deaf = matches!(room.ear.hearing(), Hearing::Unneeded | Hearing::Begins);
        // Most claims never wait, so nobody listens before the first that has to; and nobody is in
        // line before somebody listens.
        let mut standing = inner.ask(claim, (claim.join && !deaf, known), bell).await?;
        if claim.join && deaf && !matches!(standing, Standing::Held { .. }) {
            room.ear.open(inner).await;
            standing = inner.ask(claim, (true, Known::Asked), bell).await?;
        }
        if claim.join && !matches!(standing, Standing::Queued { .. }) {
            inner.bells.forget(&token);
        }
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bells.bell(&key.token) {
            Some(bell) => Ok(self.inner.room().ear.wait(&bell).await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let inner = &self.inner;
        let (names, tokens) = Inner::columns(renewals.iter().map(|renewal| &renewal.key));
        let ttls: Vec<i64> = renewals.iter().map(|renewal| micros(renewal.ttl)).collect();
        let patiences: Vec<i64> = renewals.iter().map(|renewal| micros(renewal.patience)).collect();
        let arguments: [Argument<'_>; 4] = [
            (&names, Type::TEXT_ARRAY),
            (&tokens, Type::BYTEA_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&patiences, Type::INT8_ARRAY),
        ];
        let link = inner.room().link(inner).await?;
        // After the connection is there, which may take long.
        let sent = SystemClock.now();
        let rows = link.query(&inner.settings, &inner.statements.renew, &arguments).await?;
        let received = SystemClock.now();
        if let Some(row) = rows.first() {
            let time = Answer { store: &inner.settings.store, row }.clock()?;
            inner.read_clock(Reading { sent, received, time });
        }
        in_place(&inner.settings.store, renewals.len(), &rows, |answer| answer.standing().map(Ok))
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let inner = &self.inner;
        for key in keys {
            inner.adrift.settled(&key.token).await;
        }
        let released = inner.release(keys).await;
        keys.iter().for_each(|key| inner.bells.forget(&key.token));
        released
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let inner = &self.inner;
        let all = LAST.to_string().repeat(LAST_TIMES);
        let (first, last) = match &query.select {
            Select::Name(name) => (name.as_str(), name.as_str().to_owned()),
            Select::Prefix(prefix) => (prefix.as_str(), format!("{prefix}{all}")),
            _ => ("", all),
        };
        let holder = match &query.select {
            Select::Holder(holder) => Some(holder.0.to_be_bytes().to_vec()),
            _ => None,
        };
        let mut after = query.after.as_ref().map_or("", Name::as_str).to_owned();
        let mut page = Page::default();
        loop {
            let wanted = query.page_lines() + 1 - page.lines.len() - page.broken.len();
            let lines = i32::try_from(wanted).unwrap_or(i32::MAX);
            let arguments: [Argument<'_>; 5] = [
                (&first, Type::TEXT),
                (&last, Type::TEXT),
                (&after.as_str(), Type::TEXT),
                (&holder, Type::BYTEA),
                (&lines, Type::INT4),
            ];
            let rows = inner.query(&inner.statements.inspect, &arguments).await?;
            let (names, end) = fill(&mut page, &inner.settings.store, query, &rows);
            match end {
                // Some of the names were none, and took the places of others.
                Some(end) if page.next.is_none() && names == wanted => after = end.to_owned(),
                _ => return Ok(page),
            }
        }
    }

    async fn close(&self) -> Result<()> {
        // A call that is in flight keeps its connections until it ends.
        self.inner.rooms().clear();
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        Parts {
            claim_many: Some(self.clone()),
            amend: Some(self.clone()),
            convert: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
            alerts: Some(self.clone()),
            watch: Some(self.clone()),
            admin: Some(self.clone()),
            steal: Some(self.clone()),
            counting: Some(self.clone()),
            raise_fences: Some(self.clone()),
            setup: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl ClaimMany for LeaseTable {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.inner.claim_all(claims).await
    }
}

#[async_trait]
impl Amend for LeaseTable {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        let amendment = Amendment::note(note.clone());
        amend::amend(&self.inner, key, &amendment).await
    }
}

#[async_trait]
impl Convert for LeaseTable {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        let amendment = Amendment::mode(mode);
        amend::amend(&self.inner, key, &amendment).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        amend::resize(&self.inner, order).await
    }
}

#[async_trait]
impl Unattended for LeaseTable {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.inner.keep_closed(key, stay).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

#[async_trait]
impl WaitNotices for LeaseTable {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        notices::announce(&self.inner, notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        notices::waits_of(&self.inner, holder).await
    }
}

#[async_trait]
impl HolderMessages for LeaseTable {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        let (channel, text) = (self.inner.statements.for_holders.as_str(), message.to_text());
        let arguments: [Argument<'_>; 2] = [(&channel, Type::TEXT), (&text, Type::TEXT)];
        self.inner.query("SELECT pg_notify($1, $2)", &arguments).await.map(|_rows| ())
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        let link = self.inner.room().link(&self.inner).await?;
        if !link.is_own() {
            // A proxy keeps what is notified: the holder hears by its next renewal.
            return Ok(stream::pending().boxed());
        }
        link.listen(&self.inner.settings, &self.inner.statements.for_holders).await
    }
}

#[async_trait]
impl Alerts for LeaseTable {
    async fn alerts(&self) -> Vec<Alert> {
        let server_alerts = self.inner.clock_watch.news().await;
        server_alerts.into_iter().map(Alert::Server).collect()
    }
}

#[async_trait]
impl Watch for LeaseTable {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        let settings = Arc::clone(&self.inner.settings);
        feed::watch(settings, Arc::clone(&self.inner.statements), query.clone()).await
    }
}

#[async_trait]
impl Administer for LeaseTable {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let inner = &self.inner;
        let fences: Vec<i64> = order.fences.iter().copied().map(signed).collect();
        let fences = (!order.unreadable).then_some(fences);
        let arguments: [Argument<'_>; 3] = [
            (&order.name.as_str(), Type::TEXT),
            (&order.reason.as_str(), Type::TEXT),
            (&fences, Type::INT8_ARRAY),
        ];
        let rows = inner.query(&inner.statements.evict, &arguments).await?;
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        let store = &inner.settings.store;
        let holder = |row| Answer { store, row }.holder().ok().flatten();
        Ok(rows.iter().map(|row| holder(row).unwrap_or_else(Holder::unreadable)).collect())
    }

    async fn totals(&self) -> Result<Totals> {
        let inner = &self.inner;
        let rows = inner.query(&inner.statements.totals, &[]).await?;
        let store = &inner.settings.store;
        let row = &one(store, rows)?;
        let sum = |column| Answer { store, row }.get::<i64>(column).map(|sum| sum.max(0) as u64);
        Ok(Totals {
            counts: Counts {
                acquired: sum("acquired")?,
                released: sum("released")?,
                contended: sum("contended")?,
                expired: sum("expired")?,
                lost: sum("lost")?,
            },
            active: sum("active")?,
            waiting: sum("waiting")?,
        })
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        examine::examine(&self.inner).await
    }
}

#[async_trait]
impl Steal for LeaseTable {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        self.inner.steal(claim, order).await
    }
}

#[async_trait]
impl Counting for LeaseTable {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        let inner = &self.inner;
        let counted =
            [counts.acquired, counts.released, counts.contended, counts.expired, counts.lost]
                .map(signed);
        let arguments = counted.each_ref().map(|count| (count as &(dyn ToSql + Sync), Type::INT8));
        inner.query(&inner.statements.tally, &arguments).await.map(|_rows| ())
    }
}

#[async_trait]
impl RaiseFences for LeaseTable {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        epoch::bump(&self.inner, order).await
    }
}

#[async_trait]
impl Setup for LeaseTable {
    async fn install(&self) -> Result<()> {
        let inner = &self.inner;
        let link = Link::open(&inner.settings).await?;
        if let Some(found) = schema::find(&link, &inner.settings, &inner.statements).await? {
            return inner.know(found);
        }
        schema::install(&link, &inner.settings, &inner.statements).await
    }

    fn schema(&self) -> Cow<'static, str> {
        self.inner.statements.install.clone()
    }
}
