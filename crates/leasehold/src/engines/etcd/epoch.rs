//! Fences: the revision that created a claim, and what the store's record of epochs adds to it.
//!
//! The record is read in the transaction that makes a claim, so it is the one in force then.
//! Whoever reads of claims of others sees to it that what it knows is not older than they are.

use std::sync::{Arc, Mutex};

use crate::engine::kit::epochs::Epochs;
use crate::engine::{Bump, Bumped};
use crate::error::{Error, Result};

use super::Inner;
use super::link::lock;
use super::wire::{Compare, KeyValue, RangeRequest, RangeResponse, TxnRequest, put};

/// Where the record is.
const RECORD: &str = "epoch";
/// How often raising is tried when others raise as well.
const ROUNDS_MAX: usize = 16;

/// The record as it was last read, and the revision up to which that is the whole truth.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<(Arc<Epochs>, i64)>);

impl Inner {
    /// Asks for the record.
    pub(super) fn epoch_request(&self) -> RangeRequest {
        RangeRequest::one(&self.layout.own(RECORD))
    }

    pub(super) fn is_epoch(&self, key: &[u8]) -> bool {
        key == self.layout.own(RECORD)
    }

    /// Takes in the record as of a revision. A later answer may be older, and what is known is
    /// then true up to that: nothing more is concluded from it.
    pub(super) fn learn_epochs(
        &self,
        record: Option<&KeyValue>,
        revision: i64,
    ) -> Result<Arc<Epochs>> {
        let epochs = match record {
            None => Epochs::default(),
            Some(kv) => Epochs::read(&kv.value, unsigned(kv.mod_revision)).ok_or_else(|| {
                let cause = "the key `leasehold:epoch` should hold its epochs, and does not";
                let store = self.links.store.clone();
                Error::Store { store, cause: cause.into(), transient: false }
            })?,
        };
        let epochs = Arc::new(epochs);
        *lock(&self.epochs.0) = (Arc::clone(&epochs), revision);
        Ok(epochs)
    }

    /// What is added to revisions up to this one; an exchange, if that is not known.
    pub(super) async fn epochs(&self, created: i64) -> Result<Arc<Epochs>> {
        {
            let known = lock(&self.epochs.0);
            if created <= known.1 {
                return Ok(Arc::clone(&known.0));
            }
        }
        let (range, revision) = self.read_epochs().await?;
        self.learn_epochs(range.kvs.first(), revision)
    }

    /// The fence of a claim that was created at this revision.
    pub(super) async fn fence(&self, created: i64) -> Result<u64> {
        Ok(fence(&*self.epochs(created).await?, created))
    }

    async fn read_epochs(&self) -> Result<(RangeResponse, i64)> {
        let request = self.epoch_request();
        let range: RangeResponse = self.links.ask("/etcdserverpb.KV/Range", &request).await?;
        let revision = range.header.as_ref().map_or(0, |header| header.revision);
        Ok((range, revision))
    }

    /// Lets fences go on above all that were given out.
    pub(super) async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        for _ in 0..ROUNDS_MAX {
            let (range, revision) = self.read_epochs().await?;
            let record = range.kvs.first();
            let step = self.learn_epochs(record, revision)?.step(unsigned(revision), order);
            let key = self.layout.own(RECORD);
            let written = record.map_or(0, |kv| kv.mod_revision);
            let request = TxnRequest {
                compare: vec![Compare::modified(&key, written)],
                success: vec![put(&key, step.record.as_bytes(), 0)],
                failure: Vec::new(),
            };
            let answer = self.links.txn(&request).await;
            if answer.map_err(|status| self.links.translate(&status))?.succeeded {
                return Ok(step.bumped);
            }
        }
        Err(self.busy())
    }
}

/// A claim's number for the library.
pub(super) fn fence(epochs: &Epochs, created: i64) -> u64 {
    epochs.fence(unsigned(created))
}

fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
