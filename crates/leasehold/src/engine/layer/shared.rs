//! Runs every verb of an engine on one runtime, so that all callers share its connections.
//!
//! An engine that talks to a server keeps connections for each runtime that calls it, and the
//! keeper has a runtime of its own. That saves a long-running program a hop between threads. But
//! hundreds of commands may run at once, and a server has only so many connections. So a command
//! pays for the hop, some ten microseconds. The shared runtime has a thread of its own, so work
//! that blocks the caller's thread cannot hold up a renewal.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::engine::{
    Administer, Amend, Bump, Bumped, ClaimMany, Convert, Counting, Counts, Engine, Event, Eviction,
    Finding, HolderMessage, HolderMessages, Info, Notice, Page, Parts, Query, RaiseFences, Resize,
    Resized, Setup, Steal, Totals, Unattended, Wait, WaitNotices, Wake, Watch,
};
use crate::error::{Error, Result};
use crate::rule::claim::{
    Amended, Claim, ClaimKey, Holder, HolderId, Mode, Note, Released, Renewal, Standing,
};

/// A runtime on a thread of its own. It ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    runtime: Handle,
    _until_dropped: Arc<oneshot::Sender<()>>,
}

impl Thread {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::Store {
            store: "this process".into(),
            cause: format!("cannot start a thread for connections: {error}"),
            transient: false,
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (sender, dropped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("leasehold-connections".into());
        let work = move || {
            // Nothing is ever sent. It ends when the sender is dropped.
            let _gone = runtime.block_on(dropped);
        };
        thread.spawn(work).map_err(failed)?;
        Ok(Self { runtime: handle, _until_dropped: Arc::new(sender) })
    }

    /// Runs work on the thread. Dropping the future drops the work.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = Aborting(self.runtime.spawn(work));
        match (&mut task.0).await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_ended) => Err(Error::task_ended("this process")),
        }
    }
}

/// A task that is aborted when this is dropped.
struct Aborting<T>(JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An engine, or a part of one, whose verbs run on one thread.
#[derive(Debug)]
pub(crate) struct Shared<P: ?Sized> {
    part: Arc<P>,
    thread: Thread,
}

impl<P: ?Sized> Shared<P> {
    /// Runs the verbs of `part` on `thread`.
    pub(crate) fn on(thread: &Thread, part: Arc<P>) -> Arc<Self> {
        Arc::new(Self { part, thread: thread.clone() })
    }
}

/// Runs a verb on the engine's thread, with copies of its arguments.
macro_rules! there {
    ($self:ident.$verb:ident($($argument:ident),*)) => {{
        let part = Arc::clone(&$self.part);
        $(let $argument = $argument.to_owned();)*
        $self.thread.run(async move { part.$verb($(&$argument),*).await }).await
    }};
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Shared<dyn Engine> {
    fn info(&self) -> &Info {
        self.part.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        there!(self.claim(claim))
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        there!(self.wait(key))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        there!(self.renew(renewals))
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        there!(self.release(keys))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        there!(self.inspect(query))
    }

    async fn close(&self) -> Result<()> {
        there!(self.close())
    }

    fn parts(self: Arc<Self>) -> Parts {
        let thread = &self.thread;
        let Parts {
            claim_now,
            release_now,
            claim_many,
            amend,
            convert,
            unattended,
            wait_notices,
            messages,
            alerts,
            watch,
            admin,
            steal,
            counting,
            raise_fences,
            setup,
        } = Arc::clone(&self.part).parts();
        Parts {
            // These two need no runtime.
            claim_now,
            release_now,
            claim_many: claim_many.map(|part| Shared::on(thread, part) as _),
            amend: amend.map(|part| Shared::on(thread, part) as _),
            convert: convert.map(|part| Shared::on(thread, part) as _),
            unattended: unattended.map(|part| Shared::on(thread, part) as _),
            wait_notices: wait_notices.map(|part| Shared::on(thread, part) as _),
            messages: messages.map(|part| Shared::on(thread, part) as _),
            // On the caller's runtime: a dropped task would lose what it had found.
            alerts,
            watch: watch.map(|part| Shared::on(thread, part) as _),
            admin: admin.map(|part| Shared::on(thread, part) as _),
            steal: steal.map(|part| Shared::on(thread, part) as _),
            counting: counting.map(|part| Shared::on(thread, part) as _),
            raise_fences: raise_fences.map(|part| Shared::on(thread, part) as _),
            setup: setup.map(|part| Shared::on(thread, part) as _),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ClaimMany for Shared<dyn ClaimMany> {
    async fn claim_all(&self, claims: &[Claim]) -> Result<Option<Vec<Standing>>> {
        there!(self.claim_all(claims))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Amend for Shared<dyn Amend> {
    async fn set_note(&self, key: &ClaimKey, note: &Note) -> Result<Amended> {
        there!(self.set_note(key, note))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Convert for Shared<dyn Convert> {
    async fn set_mode(&self, key: &ClaimKey, mode: Mode) -> Result<Amended> {
        let part = Arc::clone(&self.part);
        let key = key.clone();
        self.thread.run(async move { part.set_mode(&key, mode).await }).await
    }

    async fn resize(&self, order: &Resize) -> Result<Resized> {
        there!(self.resize(order))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Unattended for Shared<dyn Unattended> {
    async fn keep_closed(&self, key: &ClaimKey, stay: Duration) -> Result<Released> {
        let part = Arc::clone(&self.part);
        let key = key.clone();
        self.thread.run(async move { part.keep_closed(&key, stay).await }).await
    }

    async fn longest_without_renewal(&self) -> Result<Option<Duration>> {
        there!(self.longest_without_renewal())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WaitNotices for Shared<dyn WaitNotices> {
    async fn announce(&self, notice: &Notice) -> Result<()> {
        there!(self.announce(notice))
    }

    async fn waits_of(&self, holder: HolderId) -> Result<Vec<Wait>> {
        let part = Arc::clone(&self.part);
        self.thread.run(async move { part.waits_of(holder).await }).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl HolderMessages for Shared<dyn HolderMessages> {
    async fn send(&self, message: &HolderMessage) -> Result<()> {
        there!(self.send(message))
    }

    async fn listen(&self) -> Result<BoxStream<'static, HolderMessage>> {
        there!(self.listen())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Watch for Shared<dyn Watch> {
    async fn watch(&self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        there!(self.watch(query))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Administer for Shared<dyn Administer> {
    async fn evict(&self, order: &Eviction) -> Result<Vec<Holder>> {
        there!(self.evict(order))
    }

    async fn totals(&self) -> Result<Totals> {
        there!(self.totals())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        there!(self.examine())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Steal for Shared<dyn Steal> {
    async fn steal(&self, claim: &Claim, order: &Eviction) -> Result<Standing> {
        there!(self.steal(claim, order))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Counting for Shared<dyn Counting> {
    async fn tally(&self, counts: &Counts) -> Result<()> {
        there!(self.tally(counts))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl RaiseFences for Shared<dyn RaiseFences> {
    async fn bump_epoch(&self, order: &Bump) -> Result<Bumped> {
        there!(self.bump_epoch(order))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Setup for Shared<dyn Setup> {
    async fn install(&self) -> Result<()> {
        there!(self.install())
    }

    fn schema(&self) -> Cow<'static, str> {
        self.part.schema()
    }
}
