//! The SQLite engine: one file, all processes of one machine. The embedded default.
//!
//! A verb is one transaction: load the line, let `line.rs` decide, write what changed, commit
//! without a flush, ring whoever holds now. Deadlines are instants on the host's boot clock
//! together with the boot's id, so that neither wall-clock steps nor reboots matter.
//!
//! Verbs run on the caller's thread: they take microseconds and wait for no other machine. When
//! another process writes at that moment they try again briefly, then as a proper future.

mod bells;
mod failure;
mod feed;
mod file;
mod notices;
mod place;
mod store;
#[cfg(test)]
mod tests;
mod verbs;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rusqlite::Connection;

use crate::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Released, Renewal, Standing,
};
use crate::clock::{Clock, SystemClock};
use crate::engine::{
    Bump, Bumped, Capabilities, Concern, Counts, Engine, Event, Eviction, Finding, Info, Level,
    Notice, Page, Query, Resize, Resized, Totals, Wait, Wake,
};
use crate::error::{Config, Error, Result};

use bells::{Bells, Rung};
use failure::Failure;
use place::Place;
use verbs::{Bellpull, Verb};

/// How often a verb tries again on the spot while another process writes. A transaction takes
/// some ten microseconds, so this is mostly enough, and never blocks a runtime for long.
const TRIES_ON_THE_SPOT: u32 = 50;

/// A store in an SQLite file. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

/// How to open a file other than in the usual way.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The clock claims expire on; all users of the file must share it.
    pub clock: Arc<dyn Clock>,
    /// The id of the present boot; read from the kernel if `None`.
    pub boot_id: Option<String>,
    /// How long to go on trying while others keep the file busy.
    pub busy_timeout: Duration,
    /// Whether to accept a network file system, because all its users are on one machine.
    pub allow_network: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            boot_id: None,
            busy_timeout: Duration::from_secs(5),
            allow_network: false,
        }
    }
}

#[derive(Debug)]
struct Inner {
    info: Info,
    place: Place,
    clock: Arc<dyn Clock>,
    busy_timeout: Duration,
    boot_id: String,
    /// For callers.
    front: Mutex<Connection>,
    /// For renewals, so that they never queue behind callers; opened when first needed.
    back: Mutex<Option<Connection>>,
    bells: Bells,
    /// How many of this client's watchers read events.
    feeds: AtomicUsize,
}

impl Sqlite {
    /// Opens the file at `path`, and makes it if it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Settings::default())
    }

    /// Opens the file at `path` with other settings.
    pub fn open_with(path: impl AsRef<Path>, settings: Settings) -> Result<Self> {
        let place = Place::prepare(path.as_ref(), settings.allow_network)?;
        let boot_id = match settings.boot_id {
            Some(boot_id) => boot_id,
            None => boot_id()?,
        };
        let opened = file::open(&place.path, &boot_id);
        let (front, store_id) = opened.map_err(|failure| failure.into_error(&place.path))?;
        let inner = Inner {
            info: info(&place, store_id),
            bells: Bells::beside(&place.path, place.mode()),
            clock: settings.clock,
            busy_timeout: settings.busy_timeout,
            boot_id,
            front: Mutex::new(front),
            back: Mutex::new(None),
            feeds: AtomicUsize::new(0),
            place,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens what stands behind `sqlite:` in a URL: `PATH` or `PATH?option=value&…`.
    pub(crate) fn open_url(rest: &str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() {
            return Err(Error::Config(Config::Url {
                reason: "`sqlite:` needs a path".into(),
                known: vec!["sqlite:locks.db", "sqlite:/var/lib/app/locks.db"],
            }));
        }
        let mut settings = Settings::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            set_option(&mut settings, pair)?;
        }
        Self::open_with(PathBuf::from(path), settings)
    }
}

fn set_option(settings: &mut Settings, pair: &str) -> Result<()> {
    let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
    let bad = |reason: &str| {
        let (option, reason) = (option.to_owned(), reason.to_owned());
        Err(Error::Config(Config::Option { option, reason }))
    };
    match option {
        "allow_network" => match value {
            "yes" => settings.allow_network = true,
            "no" => settings.allow_network = false,
            _ => return bad("takes `yes` or `no`"),
        },
        "busy_timeout_ms" => match value.parse() {
            Ok(millis) => settings.busy_timeout = Duration::from_millis(millis),
            Err(_) => return bad("takes a number of milliseconds"),
        },
        _ => return bad("is unknown; this engine has `allow_network` and `busy_timeout_ms`"),
    }
    Ok(())
}

fn info(place: &Place, store_id: u128) -> Info {
    Info {
        engine: "sqlite",
        store: format!("sqlite:{}", place.path.display()),
        store_id,
        can: Capabilities::ALL,
        can_fail: true,
    }
}

fn boot_id() -> Result<String> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).map_err(|error| {
        Error::Config(Config::Refused {
            path: FILE.into(),
            reason: format!("the boot cannot be told from the one before: {error}"),
            advice: "the SQLite engine needs Linux with /proc",
        })
    })?;
    Ok(text.trim().to_owned())
}

impl Inner {
    fn front(&self) -> MutexGuard<'_, Connection> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one verb as one transaction on the callers' connection.
    async fn write<T>(
        &self,
        mut act: impl FnMut(&mut Verb<'_>) -> Result<T, Failure>,
    ) -> Result<T> {
        self.persist(|| {
            let db = self.front();
            self.write_on(&db, &mut act)
        })
        .await
    }

    /// Runs one verb as one transaction on the keeper's connection.
    async fn write_behind<T>(
        &self,
        mut act: impl FnMut(&mut Verb<'_>) -> Result<T, Failure>,
    ) -> Result<T> {
        self.persist(|| {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            let db = match &mut *back {
                Some(db) => db,
                empty => empty.insert(file::connect(&self.place.path)?),
            };
            self.write_on(db, &mut act)
        })
        .await
    }

    fn write_on<T>(
        &self,
        db: &Connection,
        act: &mut impl FnMut(&mut Verb<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let attempt = |act: &mut dyn FnMut(&mut Verb<'_>) -> Result<T, Failure>| {
            file::transact(db, |db| {
                let mut verb = Verb::begin(db, self.clock.now())?;
                let value = act(&mut verb)?;
                Ok((value, verb.end()?))
            })
        };
        let (value, bells) = match attempt(act) {
            Err(Failure::MarkReached) => {
                file::raise_mark(db, 1)?;
                attempt(act)?
            }
            other => other?,
        };
        self.ring(db, bells);
        Ok(value)
    }

    /// Tries until it works, fails for another reason than a busy file, or the time is up.
    async fn persist<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        if !self.place.is_same() {
            return Err(Error::Replaced { store: self.info.store.clone() });
        }
        let begun = Instant::now();
        loop {
            // Whole bursts again and again: a single try now and then would starve beside a
            // process that writes all the time.
            match self.on_the_spot(&mut attempt) {
                Err(Failure::Busy) if begun.elapsed() < self.busy_timeout => {}
                Err(failure) => return Err(failure.into_error(&self.place.path)),
                Ok(value) => return Ok(value),
            }
            let pause = Duration::from_micros(rand::random_range(100..1_500));
            tokio::time::sleep(pause).await;
        }
    }

    /// Tries a few times in a row.
    fn on_the_spot<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        for _ in 1..TRIES_ON_THE_SPOT {
            match attempt() {
                Err(Failure::Busy) => std::thread::yield_now(),
                other => return other,
            }
        }
        attempt()
    }

    /// Rings those who hold now. Whoever is found dead is taken out, and the next one is rung.
    fn ring(&self, db: &Connection, mut bells: Bellpull) {
        while let Some((mailbox, key, fence)) = bells.claims.pop() {
            if self.bells.ring(mailbox, &key.token, fence) == Rung::Dead {
                let buried = file::transact(db, |db| {
                    let mut verb = Verb::begin(db, self.clock.now())?;
                    verb.release(&key)?;
                    verb.end()
                });
                match buried {
                    Ok(more) => bells.claims.extend(more.claims),
                    // Its time will run out by itself.
                    Err(failure) => tracing::debug!(?failure, "a dead claim stays in line"),
                }
            }
        }
        for mailbox in bells.watchers {
            if self.bells.ring_watcher(mailbox) == Rung::Dead
                && let Err(failure) = file::transact(db, |db| store::unwatch(db, mailbox))
            {
                tracing::debug!(?failure, "a dead watcher stays on the list");
            }
        }
    }

    /// Raises the count and its mark, which is on the disk when this returns.
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        let bumped = self.persist(|| file::bump_epoch(&self.front(), order)).await?;
        tracing::warn!(by = order.by.label(), ?bumped, "fences begin anew");
        Ok(bumped)
    }

    fn upkeep(&self, at_close: bool) -> Result<()> {
        let db = self.front();
        let done = file::raise_mark(&db, file::FENCE_BLOCK / 2)
            .and_then(|()| file::write_back(&db, at_close));
        match done {
            // Others are at it; there is a next time.
            Err(Failure::Busy) | Ok(()) => Ok(()),
            Err(failure) => Err(failure.into_error(&self.place.path)),
        }
    }
}

#[async_trait]
impl Engine for Sqlite {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let inner = &*self.inner;
        let standing = inner.write(|verb| {
            verb.claim(claim, inner.bells.mailbox(), |token, fence| {
                inner.bells.expect(token, fence).map_err(|error| Error::Store {
                    store: inner.info.store.clone(),
                    cause: format!("cannot make a mailbox beside the database: {error}"),
                    transient: false,
                })
            })
        });
        let standing = standing.await?;
        if !matches!(standing, Standing::Queued { .. }) {
            inner.bells.forget(&claim.key.token);
        }
        Ok(standing)
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        let mailbox = self.inner.bells.mailbox();
        self.inner.write(|verb| verb.claim_all(claims, mailbox)).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bells.bell(&key.token) {
            Some(bell) => Ok(bell.heard().await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.inner
            .write_behind(|verb| {
                renewals.iter().map(|renewal| verb.renew(renewal).map(Ok)).collect()
            })
            .await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        let released =
            self.inner.write(|verb| keys.iter().map(|key| verb.release(key)).collect()).await;
        for key in keys {
            self.inner.bells.forget(&key.token);
        }
        released
    }

    fn release_now(&self, key: &ClaimKey) -> Option<Released> {
        let inner = &*self.inner;
        let attempt = || inner.write_on(&inner.front(), &mut |verb| verb.release(key));
        // Whatever goes wrong here, the keeper tries again and reports.
        let released = inner.place.is_same().then(|| inner.on_the_spot(attempt))?;
        inner.bells.forget(&key.token);
        released.ok()
    }

    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
        self.inner.write(|verb| verb.amend(key, amendment)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.inner.write(|verb| verb.resize(order)).await
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        // What the store drops before its time is found by the next renewal.
        std::future::pending().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        // Claims end by the machine's boot clock, which nobody sets.
        std::future::pending().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let inner = &*self.inner;
        inner
            .persist(|| {
                let db = inner.front();
                file::read(&db, |db| verbs::inspect(db, inner.clock.now(), query))
            })
            .await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        let inner = &*self.inner;
        let write = |db: &Connection| notices::announce(db, inner.clock.now(), notice);
        inner.persist(|| file::transact(&inner.front(), write)).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        let inner = &*self.inner;
        let read = |db: &Connection| notices::waits_of(db, inner.clock.now(), holder);
        inner.persist(|| file::read(&inner.front(), read)).await
    }

    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        feed::watch(Arc::clone(&self.inner), query.clone()).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let evicted = self.inner.write(|verb| verb.evict(order)).await?;
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        Ok(evicted)
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.inner.bump_epoch(order).await
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        let inner = &*self.inner;
        let add = || file::transact(&inner.front(), |db| store::add_counts(db, counts));
        inner.persist(add).await?;
        // The keeper comes here now and then, and is in no hurry.
        inner.upkeep(false)
    }

    async fn totals(&self) -> Result<Totals> {
        let inner = &*self.inner;
        let read = || file::read(&inner.front(), |db| verbs::totals(db, inner.clock.now()));
        inner.persist(read).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(examine(&self.inner))
    }

    async fn install(&self) -> Result<()> {
        let inner = &*self.inner;
        inner
            .persist(|| {
                file::install(&inner.front(), &inner.place.path, &inner.boot_id).map(|_store| ())
            })
            .await
    }

    fn schema(&self) -> &'static str {
        file::SCHEMA
    }

    async fn close(&self) -> Result<()> {
        self.inner.bells.close();
        self.inner.upkeep(true)
    }
}

fn examine(inner: &Inner) -> Vec<Finding> {
    let place = &inner.place;
    let network = match place.network() {
        None => good("file system", "local"),
        Some(kind) => Finding {
            level: Level::Bad,
            subject: "file system",
            found: format!("{kind}, which other machines may share"),
            advice: "move the file to a local disk, or use a server engine".into(),
        },
    };
    let mode = place.mode();
    let rights = if mode & 0o077 == 0 {
        good("permissions", "only the owner may read and write the file")
    } else {
        Finding {
            level: if mode & 0o002 == 0 { Level::Warning } else { Level::Bad },
            subject: "permissions",
            found: format!("others may open the file too (mode {mode:04o})"),
            advice: "`chmod 600` it unless several users share these locks".into(),
        }
    };
    vec![
        good("reach", "all processes of this machine that open this file"),
        good("clock", &format!("the boot clock of boot {}", inner.boot_id)),
        good("durability", "fences survive power loss; claims end with the boot"),
        network,
        rights,
    ]
}

fn good(subject: &'static str, found: &str) -> Finding {
    Finding { level: Level::Good, subject, found: found.into(), advice: String::new() }
}
