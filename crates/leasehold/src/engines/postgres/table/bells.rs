//! The bells of waiting claims, and the ear that hears them: one connection that only listens.
//!
//! A bell goes by a number that follows from the claim's token but does not tell it, because every
//! user of the database may listen. Its upper part is the client's own, and the name of a channel
//! that hardly anybody else hears: the usual hand-off wakes one client. What the SQL functions ring
//! is heard by all clients, who ring those that are theirs.
//!
//! The bell of a usual hand-off also says the fence: the claim holds, and that is flushed. Every
//! user of the database may notify too, so it counts only with a proof that takes the token to
//! make, and for the place in line that the claim has now. Any other bell says "ask again".
//!
//! A connection that was lost is made again: listen first, then ring everybody with "ask again".
//! Behind a proxy that pools transactions nothing is ever heard; a trial finds that out, and
//! whoever waits asks now and then instead.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::engine::Wake;
use crate::engine::bell::{Bell, BellRegistry};
use crate::error::{Error, Result, UnreachableReason};
use crate::rule::claim::Token;

use super::super::link::{Messages, connect};
use super::super::{failure, settings::Settings};
use super::Inner;
use super::quick::Known;
use super::schema::{Statements, quoted};

/// How often somebody asks who waits and hears nothing, less a random part.
pub(super) const POLL_EVERY: Duration = Duration::from_millis(500);

/// How long the bell of the trial may take once it was rung.
const TRIAL_LIMIT: Duration = Duration::from_secs(2);

/// How often a connection is asked whether it is still there, and given up if nobody waits any
/// more. Middleboxes forget idle connections after some minutes.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// How often it is looked whether anybody still waits where each connection counts.
const LOOK_EVERY_OF_FEW: Duration = Duration::from_secs(1);

/// The pauses between attempts to make a lost connection again.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(2);

/// How long until a connection that heard nothing in its trial is tried again.
const PROXIED_PAUSE: Duration = Duration::from_secs(60);

/// How many bits of a bell's number are the claim's; those above are the client's. `hand.sql` knows
/// it too.
const CLAIM_BITS: u32 = 40;

/// How many bytes of its digest a proof has: as hard to guess as the token itself.
const PROOF_BYTES: usize = 16;

/// The waiting claims of an engine, by the numbers of their bells.
#[derive(Debug)]
pub(super) struct Bells {
    bell_registry: BellRegistry,
    /// The client's part of its bells' numbers. Two that have the same hear each other's.
    client: i64,
    /// Whose a number is.
    tokens: Mutex<HashMap<i64, Waiting>>,
}

/// A claim that may be in line.
#[derive(Debug)]
struct Waiting {
    token: Token,
    /// Whether its bell was rung since its owner last asked.
    rung: bool,
    /// Whether the bell said that it holds. It waits no more then, unless it asks again.
    granted: bool,
}

/// What a bell says.
#[derive(Debug)]
pub(super) struct Rung<'a> {
    /// Whose it is.
    pub(super) number: i64,
    /// The fence that is granted, and the proof of it.
    pub(super) grant: Option<(u64, &'a str)>,
}

impl<'a> Rung<'a> {
    /// Reads a notification; `None` for what is nobody's bell. Anybody may notify.
    fn read(payload: &'a str) -> Option<Self> {
        let mut parts = payload.split('.');
        let number = i64::from_str_radix(parts.next()?, 16).ok()?;
        let fence = parts.next().and_then(|fence| fence.parse().ok());
        Some(Self { number, grant: fence.zip(parts.next()) })
    }

    /// Reads the last of what is to be rung for in a session, as `hand.sql` writes it down.
    pub(super) fn last(rings: &'a str) -> Option<Self> {
        let (_channels, payload) = rings.rsplit_once(':')?;
        Self::read(payload)
    }

    /// The fence that the claim holds with, if that is proven; else 0.
    fn fence(&self, token: &Token) -> u64 {
        let proven = self.grant.filter(|(fence, proof)| *proof == proof_of(token, *fence));
        proven.map_or(0, |(fence, _)| fence)
    }
}

/// What only somebody who knows the token can say of a fence, as `hand.sql` makes it.
fn proof_of(token: &Token, fence: u64) -> String {
    let digest = Sha256::new().chain_update(token.as_bytes()).chain_update(fence.to_be_bytes());
    let digest = digest.finalize();
    digest[..PROOF_BYTES].iter().fold(String::with_capacity(2 * PROOF_BYTES), |mut text, byte| {
        let _never_fails = write!(text, "{byte:02x}");
        text
    })
}

impl Default for Bells {
    fn default() -> Self {
        let client = rand::random_range(1..1 << (i64::BITS - 1 - CLAIM_BITS));
        Self { bell_registry: BellRegistry::default(), client, tokens: Mutex::default() }
    }
}

impl Bells {
    /// Hangs up a claim's bell and returns its number. To be called before the claim is sent.
    pub(super) fn expect(&self, token: Token) -> i64 {
        let number = self.number(&token);
        self.bell_registry.register(token);
        self.tokens().insert(number, Waiting { token, rung: false, granted: false });
        number
    }

    /// What is known about a claim that is to be asked for, before its bell is hung up again.
    pub(super) fn known(&self, token: &Token) -> Known {
        match self.tokens().get(&self.number(token)) {
            Some(Waiting { rung: true, .. }) => Known::Rung,
            Some(_) => Known::Asked,
            None => Known::New,
        }
    }

    pub(super) fn forget(&self, token: &Token) {
        self.bell_registry.forget(token);
        self.tokens().remove(&self.number(token));
    }

    pub(super) fn bell(&self, token: &Token) -> Option<Arc<Bell>> {
        self.bell_registry.bell(token)
    }

    /// Rings a claim's bell, if it waits here.
    pub(super) fn ring(&self, rung: &Rung<'_>) {
        let rung = self.tokens().get_mut(&rung.number).map(|waiting| {
            waiting.rung = true;
            let fence = rung.fence(&waiting.token);
            waiting.granted = fence != 0;
            (waiting.token, fence)
        });
        if let Some((token, fence)) = rung {
            self.bell_registry.ring(&token, Wake::holds_at(fence));
        }
    }

    /// Whether a claim may still be rung for.
    fn is_anybody_waiting(&self) -> bool {
        self.tokens().values().any(|waiting| !waiting.granted)
    }

    fn ring_all(&self) {
        self.bell_registry.ring_all();
    }

    /// The number of a claim's bell. It is positive, because zero is no bell.
    fn number(&self, token: &Token) -> i64 {
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        let claim = hasher.finish() >> (u64::BITS - CLAIM_BITS);
        self.client << CLAIM_BITS | i64::try_from(claim).unwrap_or_default()
    }

    /// Makes a connection hear the bells that are rung for all, and for this client.
    fn listen(&self, statements: &Statements) -> String {
        let own = format!("{}.{}", statements.bells, self.client);
        format!("LISTEN {}; LISTEN {}", quoted(&statements.bells), quoted(&own))
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<i64, Waiting>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What can be heard just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hearing {
    /// Nobody needed to listen yet.
    Unneeded,
    /// The connection is being made.
    Begins,
    /// Every bell.
    Bells,
    /// Nothing: the connection is lost, and being made again.
    Lost,
    /// Nothing, for want of a connection of our own: a proxy is in between.
    Proxied,
}

/// Listens on one runtime.
#[derive(Debug)]
pub(super) struct Ear {
    hearing: watch::Sender<Hearing>,
    task: Mutex<Option<AbortHandle>>,
}

impl Default for Ear {
    fn default() -> Self {
        Self { hearing: watch::Sender::new(Hearing::Unneeded), task: Mutex::default() }
    }
}

impl Ear {
    pub(super) fn hearing(&self) -> Hearing {
        *self.hearing.borrow()
    }

    /// Begins to listen if that is not so yet, and returns when it is clear what can be heard.
    pub(super) async fn open(&self, inner: &Arc<Inner>) -> Hearing {
        let mut hearing = self.hearing.subscribe();
        let begins = self.hearing.send_if_modified(|hearing| {
            let begins = *hearing == Hearing::Unneeded;
            if begins {
                *hearing = Hearing::Begins;
            }
            begins
        });
        if begins {
            let told = self.hearing.clone();
            let task = tokio::spawn(listen(Arc::downgrade(inner), told));
            *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        }
        let known = hearing.wait_for(|hearing| *hearing != Hearing::Begins).await;
        known.map_or(Hearing::Lost, |hearing| *hearing)
    }

    /// Ends when the bell rings or, while none can be heard, when it is time to ask.
    pub(super) async fn wait(&self, bell: &Bell) -> Wake {
        let mut hearing = self.hearing.subscribe();
        loop {
            let hears = *hearing.borrow_and_update() == Hearing::Bells;
            let pause = POLL_EVERY.mul_f64(rand::random_range(0.6..1.0));
            tokio::select! {
                biased;
                wake = bell.heard() => return wake,
                Ok(()) = hearing.changed() => {}
                () = tokio::time::sleep(pause), if !hears => return Wake::Ask,
            }
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Listens for as long as the engine lives.
async fn listen(engine: Weak<Inner>, told: watch::Sender<Hearing>) {
    let mut pause = PAUSE_FIRST;
    let mut again = false;
    while let Some(inner) = engine.upgrade() {
        let begun = Heard::begin(inner, &engine).await;
        let ended = match begun {
            Ok(None) => Hearing::Proxied,
            Ok(Some(mut heard)) => {
                told.send_replace(Hearing::Bells);
                if again {
                    // From here on no bell is missed, but those before this were. At the first
                    // time whoever waits for this asks anyway.
                    heard.bells.ring_all();
                }
                pause = PAUSE_FIRST;
                let Some(error) = heard.until_over().await else {
                    // The next claim that has to wait makes another connection.
                    told.send_replace(Hearing::Unneeded);
                    return;
                };
                tracing::debug!(%error, "bells are not heard until a connection is made again");
                Hearing::Lost
            }
            Err(error) => {
                tracing::debug!(%error, "no connection to hear bells on");
                Hearing::Lost
            }
        };
        if ended == Hearing::Proxied {
            tracing::warn!(
                "notifications do not arrive, probably for a transaction-pooling proxy in between; \
                 whoever waits asks every {POLL_EVERY:?} instead"
            );
            pause = PROXIED_PAUSE;
        }
        told.send_replace(ended);
        again = true;
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(PAUSE_LONGEST.max(pause));
    }
}

/// A connection that listens.
struct Heard {
    client: Client,
    messages: Messages,
    bells: Arc<Bells>,
    settings: Arc<Settings>,
    /// The bell of the trial, and whether it was heard.
    trial: i64,
    tried: bool,
}

impl Heard {
    /// Connects and listens; `None` if the trial's bell was not heard.
    async fn begin(inner: Arc<Inner>, engine: &Weak<Inner>) -> Result<Option<Heard>> {
        let settings = Arc::clone(&inner.settings);
        let statements = Arc::clone(&inner.statements);
        let bells = Arc::clone(&inner.bells);
        // The engine may end while this waits.
        drop(inner);
        let (client, messages) = connect(&settings).await?;
        let trial = rand::random_range(1..i64::MAX);
        let mut heard = Heard { client, messages, bells, settings, trial, tried: false };
        heard.run(&heard.bells.listen(&statements)).await?;
        match heard.try_out(engine, &statements).await? {
            true => Ok(Some(heard)),
            false => Ok(None),
        }
    }

    /// Rings a bell of our own from another connection: one that is only lent to us for the length
    /// of a transaction never hears it.
    async fn try_out(&mut self, engine: &Weak<Inner>, statements: &Statements) -> Result<bool> {
        let Some(inner) = engine.upgrade() else { return Ok(false) };
        let (channel, payload) = (statements.bells.clone(), format!("{:x}", self.trial));
        let mut rung = pin!(async move {
            let arguments: [_; 2] = [(&channel as _, Type::TEXT), (&payload as _, Type::TEXT)];
            inner.query("SELECT pg_notify($1, $2)", &arguments).await
        });
        // The statement may wait behind many others; the limit counts from its answer on.
        let mut limit = pin!(tokio::time::sleep(TRIAL_LIMIT));
        let mut sent = false;
        while !self.tried {
            tokio::select! {
                message = self.messages.next() => self.hear(message)?,
                answer = &mut rung, if !sent => {
                    answer?;
                    sent = true;
                    limit.as_mut().reset(tokio::time::Instant::now() + TRIAL_LIMIT);
                }
                () = &mut limit, if sent => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Hears until nobody waits any more, or until the connection is lost, and then says why.
    async fn until_over(&mut self) -> Option<Error> {
        let look_every = match self.settings.connections {
            1 => LOOK_EVERY_OF_FEW,
            _ => ASK_EVERY,
        };
        let (mut look, mut ask) = (Instant::now() + look_every, Instant::now() + ASK_EVERY);
        loop {
            let heard = tokio::time::timeout_at(look, self.messages.next()).await;
            let now = Instant::now();
            let alive = match heard {
                Ok(message) => self.hear(message),
                Err(_) if !self.bells.is_anybody_waiting() => return None,
                Err(_) => {
                    look = now + look_every;
                    if now < ask {
                        continue;
                    }
                    ask = now + ASK_EVERY;
                    self.run("SELECT 1").await
                }
            };
            if let Err(error) = alive {
                return Some(error);
            }
        }
    }

    /// Runs a statement on the connection while hearing.
    async fn run(&mut self, statement: &str) -> Result<()> {
        let store = self.settings.store.clone();
        let limit = self.settings.exchange_limit;
        let Self { client, messages, bells, trial, tried, .. } = self;
        let answered = async {
            let mut answer = pin!(client.batch_execute(statement));
            loop {
                tokio::select! {
                    answer = &mut answer => return answer.map_err(|e| failure::error(&store, e)),
                    message = messages.next() => {
                        *tried |= hear(&store, bells, *trial, message)?;
                    }
                }
            }
        };
        match tokio::time::timeout(limit, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(failure::silent(&store, "no answer", limit)),
        }
    }

    fn hear(&mut self, message: Option<Result<AsyncMessage, tokio_postgres::Error>>) -> Result<()> {
        self.tried |= hear(&self.settings.store, &self.bells, self.trial, message)?;
        Ok(())
    }
}

/// Rings whom a message is for; says whether it was the trial's.
fn hear(
    store: &str,
    bells: &Bells,
    trial: i64,
    message: Option<Result<AsyncMessage, tokio_postgres::Error>>,
) -> Result<bool> {
    match message {
        Some(Ok(AsyncMessage::Notification(notification))) => {
            let Some(rung) = Rung::read(notification.payload()) else { return Ok(false) };
            bells.ring(&rung);
            Ok(rung.number == trial)
        }
        Some(Ok(_)) => Ok(false),
        Some(Err(error)) => Err(failure::error(store, error)),
        None => {
            let cause = "the connection was closed";
            Err(Error::unreachable(store, UnreachableReason::Broken, cause))
        }
    }
}
