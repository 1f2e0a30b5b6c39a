//! Fences: the transaction that created a claim, and what the store's record of epochs adds to it.
//!
//! The node that is written with every claim tells in the same answer when something was last made
//! below it. Whoever writes the record makes and removes a node there, in the same transaction. So
//! a claim's own answer says whether the record that this client knows is the one in force, and
//! nothing more is asked as long as it is. Whoever reads of a claim that is newer than what it
//! knows reads the record after that, from the same server.

use std::sync::{Arc, Mutex};

use crate::engine::{Bump, Bumped};
use crate::epochs::Epochs;
use crate::error::{Error, Result};

use super::Inner;
use super::lock;
use super::read::{MOMENT, make, shared_acl};
use super::session::{Reply, Session};
use super::wire::{Part, Request, Sort, Stat, code};

/// Where the record is.
const RECORD: &str = "epoch";
/// How often raising is tried when others raise as well.
const ROUNDS_MAX: usize = 16;
/// How fences stand to the clock here: so many for each millisecond. Numbers leap by 2^32 whenever
/// a leader is elected, which is four seconds of such a clock.
const PER_MILLISECOND: u64 = 1 << 20;

/// The record as it was last read.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    epochs: Arc<Epochs>,
    /// The transaction up to which it is the whole truth.
    as_of: i64,
    /// What was last made below the node that is written with every claim.
    mark: Option<i64>,
}

impl Known {
    /// What was heard before a connection broke may not be true of what is behind the next one.
    pub(super) fn forget(&self) {
        *lock(&self.0) = Reading::default();
    }
}

impl Inner {
    /// The fence of a claim just made; `moment` is the node that was written with it.
    pub(super) async fn fence_of_new(&self, session: &Session, moment: &Stat) -> Result<u64> {
        let (number, mark) = (moment.modified, Some(moment.child_changed));
        {
            let mut known = lock(&self.epochs.0);
            if moment.child_changes == 0 {
                // Nobody ever raised them.
                *known = Reading { epochs: Arc::default(), as_of: number, mark };
            }
            if known.mark == mark {
                known.as_of = known.as_of.max(number);
                return Ok(known.epochs.fence(unsigned(number)));
            }
        }
        Ok(self.read_epochs(session, mark).await?.fence(unsigned(number)))
    }

    /// The fence of a claim that was read of in this session.
    pub(super) async fn fence_at(&self, session: &Session, created: i64) -> Result<u64> {
        let known = {
            let known = lock(&self.epochs.0);
            (created <= known.as_of).then(|| Arc::clone(&known.epochs))
        };
        let epochs = match known {
            Some(epochs) => epochs,
            None => self.read_epochs(session, None).await?,
        };
        Ok(epochs.fence(unsigned(created)))
    }

    /// Reads the record, which is not older than `mark`, if that was seen in this session.
    async fn read_epochs(&self, session: &Session, mark: Option<i64>) -> Result<Arc<Epochs>> {
        let reply = session.ask(Request::GetData { path: self.layout.own(RECORD) }).await?;
        let (epochs, _version) = self.learn_epochs(&reply, mark)?;
        Ok(epochs)
    }

    /// Takes in the record. It is the whole truth up to what its server knew of.
    fn learn_epochs(&self, reply: &Reply, mark: Option<i64>) -> Result<(Arc<Epochs>, i32)> {
        let (epochs, version) = match self.data_of(reply)? {
            None => (Epochs::default(), 0),
            // It was made, and nothing was written yet.
            Some((data, stat)) if data.is_empty() => (Epochs::default(), stat.version),
            Some((data, stat)) => {
                let epochs = Epochs::read(&data, unsigned(stat.modified));
                (epochs.ok_or_else(|| self.no_record())?, stat.version)
            }
        };
        let epochs = Arc::new(epochs);
        let reading = Reading { epochs: Arc::clone(&epochs), as_of: reply.zxid, mark };
        *lock(&self.epochs.0) = reading;
        Ok((epochs, version))
    }

    fn no_record(&self) -> Error {
        let cause = format!("`{}` should hold its epochs, and does not", self.layout.own(RECORD));
        Error::Store { store: self.info.store.clone(), cause, transient: false }
    }

    /// Lets fences go on above all that were given out.
    pub(super) async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        let session = self.pool.any().await?;
        self.make_own(&session).await?;
        let (path, touch) = (self.layout.own(RECORD), self.layout.own(&format!("{MOMENT}/bump")));
        let (login, store) = (self.has_login(), &self.info.store);
        make(&session, path.clone(), Sort::Persistent, Vec::new(), login, store).await?;
        let order = Bump { now_us: order.now_us / 1_000 * PER_MILLISECOND, ..order.clone() };
        for _ in 0..ROUNDS_MAX {
            let synced = session.send(Request::Sync { path: path.clone() }).await?;
            let read = session.send(Request::GetData { path: path.clone() }).await?;
            synced.answer().await?;
            let reply = read.answer().await?;
            let (epochs, version) = self.learn_epochs(&reply, None)?;
            let step = epochs.step(unsigned(reply.zxid), &order);
            let data = step.record.into_bytes();
            let (acl, sort) = (shared_acl(login), Sort::Persistent);
            let reply = session.ask(Request::Multi(vec![
                Request::SetData { path: path.clone(), data, version },
                Request::Create { path: touch.clone(), data: Vec::new(), acl, sort },
                Request::Delete { path: touch.clone() },
            ]));
            let parts = self.parts(&reply.await?)?;
            let failed = parts.iter().find_map(|part| match part {
                Part::Failed(error) => Some(*error),
                _ => None,
            });
            match failed {
                None => {
                    let by = order.by.label();
                    tracing::warn!(by, bumped = ?step.bumped, "fences begin anew");
                    return Ok(step.bumped);
                }
                Some(code::BAD_VERSION) => {}
                Some(error) => return Err(self.refusal(error)),
            }
        }
        Err(self.busy())
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
