//! The etcd engine: a cluster that agrees on everything before it says yes.
//!
//! A claim is a key `NAME/…` on a lease, in the order of creation, as etcd's own lock clients have
//! it; the fence is the creation's revision. The claim and the answer are one transaction, giving
//! back is another. Whoever is next hears of it through the standing watch and need not ask.
//!
//! Exchanges: claim 1, renew 1 and 1 for each 64 claims, release 1 for up to 32. Proposals: one to
//! claim, one to give back; renewals are none.

mod amend;
#[cfg(test)]
mod answer_tests;
mod ask;
mod book;
mod closing;
mod crowd;
mod date;
mod detail;
mod doctor;
mod epoch;
mod failure;
mod feed;
mod gather;
mod keep;
mod keys;
mod leases;
mod leave;
mod left;
mod lineup;
mod link;
mod mailbox;
mod messages;
mod notices;
mod queue;
mod quiet;
mod settings;
mod slots;
mod sums;
mod survey;
#[cfg(test)]
mod sweep_tests;
mod transport;
mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::task::JoinHandle;

use crate::engine::bell::BellRegistry;
use crate::engine::{
    Administer, Amend, Bump, Bumped, Capabilities, ClaimMany, Counting, Counts, Engine, Event,
    Eviction, Finding, HolderMessage, HolderMessages, Info, Notice, Page, Parts, Query,
    RaiseFences, Totals, Unattended, Wait, WaitNotices, Wake, Watch,
};
use crate::error::Result;
use crate::rule::claim::{
    Amended, Claim, ClaimKey, Holder, HolderId, Note, Released, Renewal, Standing,
};

use book::Book;
use keys::Layout;
use leases::Leases;
use link::{Links, lock};
use queue::Queue;
use quiet::Quiet;
use settings::Settings;

/// A store in an etcd cluster. Clones share their connections and leases.
#[derive(Debug, Clone)]
pub struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    info: Info,
    layout: Layout,
    links: Arc<Links>,
    leases: Leases,
    book: Arc<Book>,
    queue: Queue,
    quiet: Quiet,
    epochs: epoch::Known,
    bell_registry: BellRegistry,
    /// Ends claims that nobody renewed.
    janitor: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(janitor) = lock(&self.janitor).take() {
            janitor.abort();
        }
    }
}

impl Etcd {
    /// Opens the store at a URL: `etcd:` or `etcds:`.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let Settings { members, login, layout, store, answer } = Settings::from_url(url.as_ref())?;
        let links = Arc::new(Links::new(members, login, store.clone(), answer));
        let store_id = doctor::greet(&links, &layout).await?;
        let can = Capabilities::ALL;
        let info = Info { engine: "etcd", store, store_id, can, can_fail: true };
        let inner = Inner {
            info,
            layout,
            links,
            leases: Leases::default(),
            book: Arc::default(),
            queue: Queue::default(),
            quiet: Quiet::default(),
            epochs: epoch::Known::default(),
            bell_registry: BellRegistry::default(),
            janitor: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sees to it that somebody ends what nobody renews. The runtime of the last janitor may have
    /// ended.
    fn employ_janitor(&self) {
        let mut janitor = lock(&self.inner.janitor);
        if janitor.as_ref().is_none_or(JoinHandle::is_finished) {
            let inner = Arc::downgrade(&self.inner);
            *janitor = Some(tokio::spawn(leave::keep_sweeping(inner)));
        }
    }
}

#[async_trait]
impl Engine for Etcd {
    fn info(&self) -> &Info {
        &self.inner.info
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        let inner = &self.inner;
        self.employ_janitor();
        if claim.join {
            inner.bell_registry.register(claim.key.token);
        }
        let standing = ask::claim(inner, claim).await?;
        if !matches!(standing, Standing::Queued { .. }) {
            inner.bell_registry.forget(&claim.key.token);
            inner.queue.forget(&claim.key.name, &claim.key.token);
        }
        Ok(standing)
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        match self.inner.bell_registry.bell(&key.token) {
            Some(bell) => Ok(bell.heard().await),
            None => Ok(Wake::Ask),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        self.employ_janitor();
        Ok(keep::renew(&self.inner, renewals).await?.into_iter().map(Ok).collect())
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.employ_janitor();
        let released = leave::release(&self.inner, keys).await;
        for key in keys {
            self.inner.bell_registry.forget(&key.token);
        }
        released
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        survey::inspect(&self.inner, query).await
    }

    async fn close(&self) -> Result<()> {
        let Inner { links, leases, book, janitor, .. } = &*self.inner;
        // What is left ends with its leases, which nobody keeps from now on.
        if let Some(janitor) = lock(janitor).take() {
            janitor.abort();
        }
        if let Err(error) = leave::forget_gone(&self.inner).await {
            tracing::debug!(%error, "leases of claims that may be gone end by themselves");
        }
        let (left, unused): (BTreeSet<i64>, BTreeSet<i64>) =
            leases.take_all().into_iter().partition(|lease| book.uses(*lease));
        // While somebody watches, the end of a lease would be taken for that of its claims.
        if !feed::is_watched(&self.inner).await {
            for lease in unused {
                leases::revoke(links, lease).await;
            }
        }
        left::leave(&self.inner, &left).await;
        // Others may have ended the last claim on one of them just before it was said.
        left::end_empty(&self.inner, left).await;
        links.close();
        Ok(())
    }

    fn parts(self: Arc<Self>) -> Parts {
        // A claim's mode is in its key, and a key that is written again is behind all others.
        Parts {
            claim_many: Some(self.clone()),
            amend: Some(self.clone()),
            unattended: Some(self.clone()),
            wait_notices: Some(self.clone()),
            messages: Some(self.clone()),
            watch: Some(self.clone()),
            admin: Some(self.clone()),
            counting: Some(self.clone()),
            raise_fences: Some(self),
            ..Parts::default()
        }
    }
}

#[async_trait]
impl ClaimMany for Etcd {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        ask::claim_all(&self.inner, claims).await
    }
}

#[async_trait]
impl Amend for Etcd {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        amend::set_note(&self.inner, key, note).await
    }
}

#[async_trait]
impl Unattended for Etcd {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        self.inner.bell_registry.forget(&key.token);
        closing::keep_closed(&self.inner, key, stay).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

#[async_trait]
impl WaitNotices for Etcd {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        notices::announce(&self.inner, notice).await
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        notices::waits_of(&self.inner, holder).await
    }
}

#[async_trait]
impl HolderMessages for Etcd {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        messages::send(&self.inner, message).await
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        messages::listen(&self.inner).await
    }
}

#[async_trait]
impl Watch for Etcd {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        feed::watch(Arc::clone(&self.inner), query.clone()).await
    }
}

#[async_trait]
impl Administer for Etcd {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        leave::evict(&self.inner, order).await
    }

    async fn totals(&self) -> Result<Totals> {
        let counts = sums::total(&self.inner).await?;
        let mut totals = Totals { counts, ..Totals::default() };
        survey::count(&self.inner, &mut totals).await?;
        Ok(totals)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        doctor::examine(self).await
    }
}

#[async_trait]
impl Counting for Etcd {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        sums::add(&self.inner, counts).await
    }
}

#[async_trait]
impl RaiseFences for Etcd {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        self.inner.bump_epoch(order).await
    }
}
