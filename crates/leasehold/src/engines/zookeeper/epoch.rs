//! Fences: the transaction that created a claim, and what the store's record of epochs adds to it.
//!
//! A claim's transaction checks that the record is of the version that this client knows. So it is
//! the one in force then, and nothing more is asked as long as nobody raises fences. Else nothing
//! is made, and the claim is sent again with a reading of the record behind it: the record has its
//! whole past, so one that is read later will do. Whoever reads of a claim that is newer than what
//! it knows reads the record after that, from the same server.

use std::sync::{Arc, Mutex};

use crate::engine::kit::epochs::Epochs;
use crate::engine::{Bump, Bumped};
use crate::error::{Error, Result};

use super::Inner;
use super::lock;
use super::read::make;
use super::session::{Reply, Session};
use super::wire::{Request, Sort, code};

/// Where the record is.
const RECORD: &str = "epoch";
/// How often raising is tried when others raise as well.
const ROUNDS_MAX: usize = 16;
/// How fences stand to the clock here: so many for each millisecond. Numbers leap by 2^32 whenever
/// a leader is elected, which is four seconds of such a clock.
const PER_MILLISECOND: u64 = 1 << 20;

/// The record as it was last read.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How often it was forgotten.
    times: u64,
    reading: Option<Reading>,
}

#[derive(Debug, Clone)]
struct Reading {
    epochs: Arc<Epochs>,
    version: i32,
    /// The transaction up to which it is the whole truth.
    as_of: i64,
}

/// What a claim is sent with.
#[derive(Debug)]
pub(super) struct Assumed {
    times: u64,
    reading: Option<Reading>,
}

impl Assumed {
    pub(super) fn is_known(&self) -> bool {
        self.reading.is_some()
    }

    /// What makes the claim's transaction fail if it is not so.
    pub(super) fn check(&self, inner: &Inner) -> Option<Request> {
        let Reading { version, .. } = self.reading.as_ref()?;
        Some(Request::CheckVersion { path: inner.layout.own(RECORD), version: *version })
    }
}

impl Known {
    /// What was heard before a connection broke may not be true of what is behind the next one: a
    /// store that was set back may come to the same version in another way.
    pub(super) fn forget(&self) {
        let mut state = lock(&self.0);
        (state.times, state.reading) = (state.times + 1, None);
    }

    /// It was not as it was assumed to be; whoever found out first says so.
    pub(super) fn was_wrong(&self, assumed: &Assumed) {
        let mut state = lock(&self.0);
        if state.times == assumed.times {
            (state.times, state.reading) = (state.times + 1, None);
        }
    }

    pub(super) fn assume(&self) -> Assumed {
        let state = lock(&self.0);
        Assumed { times: state.times, reading: state.reading.clone() }
    }

    /// What was assumed of a transaction was so. `None` if it was forgotten meanwhile.
    fn confirm(&self, assumed: &Assumed, number: i64) -> Option<Arc<Epochs>> {
        let mut state = lock(&self.0);
        let assumed_reading = assumed.reading.as_ref().filter(|_| state.times == assumed.times)?;
        if let Some(reading) = &mut state.reading
            && reading.version == assumed_reading.version
        {
            reading.as_of = reading.as_of.max(number);
        }
        Some(Arc::clone(&assumed_reading.epochs))
    }

    /// Takes in what was read by a request that was sent when it had been forgotten so often.
    fn learn(&self, times: u64, read: Reading) {
        let mut state = lock(&self.0);
        let is_newer = state.reading.as_ref().is_none_or(|known| known.as_of <= read.as_of);
        if state.times == times && is_newer {
            state.reading = Some(read);
        }
    }

    /// What is added up to this transaction, if that is known.
    fn at(&self, number: i64) -> Option<Arc<Epochs>> {
        let state = lock(&self.0);
        let reading = state.reading.as_ref().filter(|reading| number <= reading.as_of)?;
        Some(Arc::clone(&reading.epochs))
    }
}

impl Inner {
    /// Asks for the record.
    pub(super) fn epoch_request(&self) -> Request {
        Request::GetData { path: self.layout.own(RECORD) }
    }

    /// The fence of a claim that the transaction `number` made: with what was assumed then, or
    /// with the record as it was read after it.
    pub(super) async fn fence_of_new(
        &self,
        session: &Session,
        (assumed, read): (&Assumed, Option<Reply>),
        number: i64,
    ) -> Result<u64> {
        if let Some(epochs) = self.epochs.confirm(assumed, number) {
            return Ok(epochs.fence(unsigned(number)));
        }
        let epochs = match read {
            Some(reply) => {
                if reply.code == code::NO_NODE {
                    // So that the next claim has something to check.
                    self.make_record(session).await?;
                }
                self.learn_epochs(&reply, assumed.times)?.epochs
            }
            None => self.read_epochs(session).await?,
        };
        Ok(epochs.fence(unsigned(number)))
    }

    /// The fence of a claim that was read of in this session.
    pub(super) async fn fence_at(&self, session: &Session, created: i64) -> Result<u64> {
        let epochs = match self.epochs.at(created) {
            Some(epochs) => epochs,
            None => self.read_epochs(session).await?,
        };
        Ok(epochs.fence(unsigned(created)))
    }

    async fn read_epochs(&self, session: &Session) -> Result<Arc<Epochs>> {
        let times = self.epochs.assume().times;
        let reply = session.ask(self.epoch_request()).await?;
        Ok(self.learn_epochs(&reply, times)?.epochs)
    }

    /// Takes in the record. It is the whole truth up to what its server knew of.
    fn learn_epochs(&self, reply: &Reply, times: u64) -> Result<Reading> {
        let (epochs, version) = match self.data_of(reply)? {
            None => (Epochs::default(), 0),
            // It was made, and nothing was written yet.
            Some((data, stat)) if data.is_empty() => (Epochs::default(), stat.version),
            Some((data, stat)) => {
                let epochs = Epochs::read(&data, unsigned(stat.modified));
                (epochs.ok_or_else(|| self.no_record())?, stat.version)
            }
        };
        let reading = Reading { epochs: Arc::new(epochs), version, as_of: reply.zxid };
        self.epochs.learn(times, reading.clone());
        Ok(reading)
    }

    async fn make_record(&self, session: &Session) -> Result<()> {
        let (login, store) = (self.has_login(), &self.info.store);
        let path = self.layout.own(RECORD);
        make(session, path, Sort::Persistent, Vec::new(), login, store).await
    }

    fn no_record(&self) -> Error {
        let cause = format!("`{}` should hold its epochs, and does not", self.layout.own(RECORD));
        Error::Store { store: self.info.store.clone(), cause, transient: false }
    }

    /// Lets fences go on above all that were given out.
    pub(super) async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        let session = self.pool.any().await?;
        self.make_own(&session).await?;
        self.make_record(&session).await?;
        let path = self.layout.own(RECORD);
        let order = Bump { now_us: order.now_us / 1_000 * PER_MILLISECOND, ..order.clone() };
        for _ in 0..ROUNDS_MAX {
            let times = self.epochs.assume().times;
            let synced = session.send(Request::Sync { path: path.clone() }).await?;
            let read = session.send(self.epoch_request()).await?;
            synced.answer().await?;
            let reply = read.answer().await?;
            let Reading { epochs, version, .. } = self.learn_epochs(&reply, times)?;
            let step = epochs.step(unsigned(reply.zxid), &order);
            let data = step.record.into_bytes();
            let written = Request::SetData { path: path.clone(), data, version };
            match session.ask(written).await?.code {
                code::OK => {
                    self.epochs.forget();
                    return Ok(step.bumped);
                }
                code::BAD_VERSION => {}
                error => return Err(self.refusal(error)),
            }
        }
        Err(self.busy())
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
