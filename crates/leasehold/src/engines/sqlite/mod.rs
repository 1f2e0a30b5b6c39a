//! The SQLite engine: one file, all processes of one machine. The embedded default.
//!
//! A verb is one transaction: load the line, let `line.rs` decide, write what changed, commit
//! without a flush, ring whoever holds now. Deadlines are instants on the host's boot clock
//! together with the boot's id, so that neither wall-clock steps nor reboots matter.
//!
//! Verbs run on the caller's thread: they take microseconds and wait for no other machine. When
//! another process writes at that moment they try again briefly, then as a proper future.

mod bell_folder;
mod bells;
mod boot;
mod failure;
mod feed;
mod file;
mod notices;
mod place;
mod platform;
mod store;
#[cfg(test)]
mod tests;
mod verbs;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use rusqlite::Connection;

use crate::clock::{Clock, SystemClock};
use crate::engine::{
    Administer, Amend, Bump, Bumped, Capabilities, ClaimMany, Convert, Counting, Counts, Engine,
    Event, Eviction, Finding, HolderMessage, HolderMessages, Info, Level, Notice, Page, Parts,
    Query, RaiseFences, ReleaseNow, Resize, Resized, Setup, Steal, Totals, Unattended, Wait,
    WaitNotices, Wake, Watch,
};
use crate::error::{Config, Error, Result};
use crate::rule::claim::{
    Amended, Amendment, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Renewal, Standing,
};

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
            None => boot::boot_id()?,
        };
        let opened = file::open(&place.path, &boot_id);
        let (front, store_id) = opened.map_err(|failure| failure.into_error(&place.path))?;
        place.refuse_strangers()?;
        let inner = Inner {
            info: info(&place, store_id),
            bells: Bells::beside(&place.path, place.rights()),
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
            Err(Failure::MarkReached(fences)) => {
                file::raise_mark(db, fences)?;
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
        self.persist(|| file::bump_epoch(&self.front(), order)).await
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
            verb.claim(claim, inner.bells.mailbox(), |token, place| {
                inner.bells.expect(token, place)
            })
        });
        let standing = standing.await?;
        if !matches!(standing, Standing::Queued { .. }) {
            inner.bells.forget(&claim.key.token);
        }
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bells.bell(&key.token) {
            Some(bell) => Ok(bell.heard().await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let path = &self.inner.place.path;
        let renew = |verb: &mut Verb<'_>, renewal| match verb.renew(renewal) {
            // A line that cannot be read must not take the leases on other names along.
            Err(failure @ Failure::Broken(_)) => Ok(Err(failure.into_error(path))),
            renewed => renewed.map(Ok),
        };
        self.inner
            .write_behind(|verb| renewals.iter().map(|renewal| renew(verb, renewal)).collect())
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

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let inner = &*self.inner;
        inner
            .persist(|| {
                let db = inner.front();
                file::read(&db, |db| verbs::inspect(db, inner.clock.now(), query))
            })
            .await
    }

    async fn close(&self) -> Result<()> {
        self.inner.bells.close();
        self.inner.upkeep(true)
    }

    fn parts(self: Arc<Self>) -> Parts {
        Parts {
            release_now: Some(self.clone()),
            claim_many: Some(self.clone()),
            amend: Some(self.clone()),
            convert: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
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

impl ReleaseNow for Sqlite {
    fn release_now(&self, key: &ClaimKey) -> Option<Released> {
        let inner = &*self.inner;
        let attempt = || inner.write_on(&inner.front(), &mut |verb| verb.release(key));
        // Whatever goes wrong here, the keeper tries again and reports.
        let released = inner.place.is_same().then(|| inner.on_the_spot(attempt))?;
        inner.bells.forget(&key.token);
        released.ok()
    }
}

#[async_trait]
impl ClaimMany for Sqlite {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        let mailbox = self.inner.bells.mailbox();
        self.inner.write(|verb| verb.claim_all(claims, mailbox)).await
    }
}

#[async_trait]
impl Amend for Sqlite {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        let amendment = Amendment::note(note.clone());
        self.inner.write(|verb| verb.amend(key, &amendment)).await
    }
}

#[async_trait]
impl Convert for Sqlite {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        let amendment = Amendment::mode(mode);
        self.inner.write(|verb| verb.amend(key, &amendment)).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.inner.write(|verb| verb.resize(order)).await
    }
}

#[async_trait]
impl Unattended for Sqlite {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.inner.write(|verb| verb.keep_closed(key, stay)).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

#[async_trait]
impl WaitNotices for Sqlite {
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
}

#[async_trait]
impl HolderMessages for Sqlite {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        self.inner.bells.send_to_all(message)
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        self.inner.bells.listen()
    }
}

#[async_trait]
impl Watch for Sqlite {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        feed::watch(Arc::clone(&self.inner), query.clone()).await
    }
}

#[async_trait]
impl Administer for Sqlite {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        let evicted = self.inner.write(|verb| verb.evict(order)).await?;
        let (name, by, reason) = (&order.name, order.by.label(), &order.reason);
        tracing::warn!(%name, by, reason, "evicted");
        Ok(evicted)
    }

    async fn totals(&self) -> Result<Totals> {
        let inner = &*self.inner;
        let read = || file::read(&inner.front(), |db| verbs::totals(db, inner.clock.now()));
        inner.persist(read).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let inner = &*self.inner;
        let nameless = inner.persist(|| file::read(&inner.front(), store::nameless)).await?;
        let mut findings = examine(inner);
        findings.extend((nameless > 0).then(|| cannot_ask(nameless)));
        Ok(findings)
    }
}

#[async_trait]
impl Steal for Sqlite {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        let mailbox = self.inner.bells.mailbox();
        self.inner.write(|verb| verb.steal(claim, order, mailbox)).await
    }
}

#[async_trait]
impl Counting for Sqlite {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        let inner = &*self.inner;
        let add = || file::transact(&inner.front(), |db| store::add_counts(db, counts));
        inner.persist(add).await?;
        // The keeper comes here now and then, and is in no hurry.
        inner.upkeep(false)
    }
}

#[async_trait]
impl RaiseFences for Sqlite {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.inner.bump_epoch(order).await
    }
}

#[async_trait]
impl Setup for Sqlite {
    async fn install(&self) -> Result<()> {
        let inner = &*self.inner;
        inner
            .persist(|| {
                file::install(&inner.front(), &inner.place.path, &inner.boot_id).map(|_store| ())
            })
            .await
    }

    fn schema(&self) -> Cow<'static, str> {
        file::SCHEMA.into()
    }
}

fn examine(inner: &Inner) -> Vec<Finding> {
    let place = &inner.place;
    let file_system = match place.network() {
        None if place.is_overlay() => Finding {
            level: Level::Warning,
            subject: "file system",
            found: "an overlay, in which each container changes a copy of its own".into(),
            advice: "put the file into a folder that all its users mount".into(),
        },
        None => good("file system", "local"),
        Some(kind) => Finding {
            level: Level::Bad,
            subject: "file system",
            found: format!("{kind}, which other machines may share"),
            advice: "move the file to a local disk, or use a server engine".into(),
        },
    };
    let mode = place.rights().mode;
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
        rights,
        file_system,
    ]
}

fn cannot_ask(nameless: usize) -> Finding {
    Finding {
        level: Level::Bad,
        subject: "record",
        found: format!("{nameless} claims have a name that nobody can ask for"),
        advice: "see what else writes to the file, and delete them from its table `claims`".into(),
    }
}

fn good(subject: &'static str, found: &str) -> Finding {
    Finding { level: Level::Good, subject, found: found.into(), advice: String::new() }
}
