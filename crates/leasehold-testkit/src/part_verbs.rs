//! The verbs of an engine's parts, called on the engine itself.
//!
//! A test that talks to an engine without a client would otherwise ask for a part each time. A part
//! that is missing is an error here, as it is for a client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::{
    Amended, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Standing,
};
use leasehold::engine::{Engine, Eviction, Notice, Parts, Resize, Resized, Totals, Wait, need};

/// The calls that a test makes on the parts of an engine.
#[async_trait]
pub trait PartVerbs {
    /// The parts.
    fn all_parts(&self) -> Parts;

    /// As [`ClaimMany::claim_all`](leasehold::engine::ClaimMany::claim_all); `None` without it.
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>>;

    /// As [`Amend::set_note`](leasehold::engine::Amend::set_note).
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended>;

    /// As [`Convert::set_mode`](leasehold::engine::Convert::set_mode).
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended>;

    /// As [`Convert::resize`](leasehold::engine::Convert::resize).
    async fn resize(&self, order: &Resize) -> Result<Resized>;

    /// As [`Unattended::keep_closed`](leasehold::engine::Unattended::keep_closed).
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released>;

    /// As [`WaitNotices::announce`](leasehold::engine::WaitNotices::announce).
    async fn announce(&self, notice: &Notice) -> Result<()>;

    /// As [`WaitNotices::waits_of`](leasehold::engine::WaitNotices::waits_of).
    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>>;

    /// As [`Administer::evict`](leasehold::engine::Administer::evict).
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>>;

    /// As [`Steal::steal`](leasehold::engine::Steal::steal).
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing>;

    /// As [`Administer::totals`](leasehold::engine::Administer::totals).
    async fn totals(&self) -> Result<Totals>;
}

#[async_trait]
impl PartVerbs for Arc<dyn Engine> {
    fn all_parts(&self) -> Parts {
        Arc::clone(self).parts()
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        match self.all_parts().claim_many {
            Some(part) => part.claim_all(claims).await,
            None => Ok(None),
        }
    }

    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        need(&self.all_parts().amend, self.info())?.set_note(key, note).await
    }

    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        need(&self.all_parts().convert, self.info())?.set_mode(key, mode).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        need(&self.all_parts().convert, self.info())?.resize(order).await
    }

    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        need(&self.all_parts().unattended, self.info())?.keep_closed(key, stay).await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        need(&self.all_parts().wait_notices, self.info())?.announce(notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        need(&self.all_parts().wait_notices, self.info())?.waits_of(holder).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        need(&self.all_parts().admin, self.info())?.evict(order).await
    }

    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        need(&self.all_parts().steal, self.info())?.steal(claim, order).await
    }

    async fn totals(&self) -> Result<Totals> {
        need(&self.all_parts().admin, self.info())?.totals().await
    }
}
