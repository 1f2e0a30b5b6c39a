//! An engine behind a shared pointer, as an engine.
//!
//! A harness hands engines out without saying their type, and clients and layers want a value.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold::Result;
use leasehold::claim::{
    Amended, Amendment, Claim, ClaimKey, ClaimRef, Holder, HolderId, Released, Renewal, Standing,
};
use leasehold::clock::Glance;
use leasehold::engine::{
    Bump, Bumped, Concern, Counts, Engine, Event, Eviction, Finding, Info, Notice, Page, Query,
    Resize, Resized, Totals, Wait, Wake,
};

#[derive(Debug)]
pub(super) struct Forward(pub(super) Arc<dyn Engine>);

#[async_trait]
impl Engine for Forward {
    fn info(&self) -> &Info {
        self.0.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        self.0.claim(claim).await
    }

    fn claim_now(&self, claim: ClaimRef<'_>, glance: Glance<'_>) -> Option<(u64, Duration)> {
        self.0.claim_now(claim, glance)
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        self.0.claim_all(claims).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.0.wait(key).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.0.renew(renewals).await
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.0.release(keys).await
    }

    fn release_now(&self, key: &ClaimKey) -> Option<Released> {
        self.0.release_now(key)
    }

    async fn amend(&self, key: &ClaimKey, amendment: &Amendment) -> Result<Amended> {
        self.0.amend(key, amendment).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        self.0.resize(order).await
    }

    async fn losses(&self) -> Vec<ClaimKey> {
        self.0.losses().await
    }

    async fn concerns(&self) -> Vec<Concern> {
        self.0.concerns().await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }

    async fn announce(&self, notice: &Notice) -> Result<()> {
        self.0.announce(notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        self.0.waits_of(holder).await
    }

    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        self.0.watch(query).await
    }

    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        self.0.evict(order).await
    }

    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.0.bump_epoch(order).await
    }

    async fn tally(&self, counts: &Counts) -> Result<()> {
        self.0.tally(counts).await
    }

    async fn totals(&self) -> Result<Totals> {
        self.0.totals().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.0.examine().await
    }

    async fn install(&self) -> Result<()> {
        self.0.install().await
    }

    fn schema(&self) -> &'static str {
        self.0.schema()
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}
