//! An engine around an engine: some verbs are changed, all others are handed on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::claim::{Claim, ClaimKey, Released, Renewal, Standing};
use leasehold::engine::{Engine, Info, Page, Parts, Query, Unattended, Wake};

use crate::mutant::Faulty;

/// An engine with a fault.
#[derive(Debug)]
pub struct Wrong {
    engine: Arc<dyn Engine>,
    changed: Faulty,
}

impl Wrong {
    /// Puts a fault around an engine.
    pub fn new(engine: Arc<dyn Engine>, changed: Faulty) -> Wrong {
        Wrong { engine, changed }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Wrong {
    fn info(&self) -> &Info {
        self.engine.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.changed.claim(&self.engine, claim).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.changed.wait(&self.engine, key).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.changed.renew(&self.engine, renewals).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.changed.release(&self.engine, keys).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.changed.inspect(&*self.engine, query).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        let mut parts = Arc::clone(&self.engine).parts();
        // Each claim and each release takes the way with the fault.
        parts.claim_now = None;
        parts.release_now = None;
        parts.claim_many = None;
        let wrong = |part| Arc::new(WrongUnattended { part, engine: self }) as _;
        parts.unattended = parts.unattended.map(wrong);
        parts
    }
}

/// The part of an engine with a fault that keeps claims which no client renews.
#[derive(Debug)]
struct WrongUnattended {
    part: Arc<dyn Unattended>,
    engine: Arc<Wrong>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Unattended for WrongUnattended {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        let Wrong { engine, changed } = &*self.engine;
        changed.keep_closed((engine, &*self.part), key, stay).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        self.part.longest_without_renewal().await
    }
}
