//! The calls for operators: lines, events, orders about other holders' claims, the store's state.
//!
//! [`Client`] has what users need. Everything here acts for the client's holder, whose label the
//! store records with each order.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;

use crate::client::Client;
use crate::clock::Moment;
use crate::engine::{
    BrokenLine, Bump, Bumped, Event, Eviction, Finding, HolderMessage, Page, Query, Resize,
    Resized, Totals, unsupported,
};
use crate::error::{Error, Invalid, Result, TooMany};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::rule::claim::{Holder, Mode};
use crate::rule::fence::Fence;
use crate::rule::name::Name;
use crate::runtime::acquire::Request;
use crate::runtime::trial;

/// How often holders that were asked for a lease are looked at, and asked again.
const REVOKE_LOOK: Duration = Duration::from_millis(250);
const REVOKE_AGAIN: Duration = Duration::from_secs(1);

/// The calls of a client for operators; made by [`Client::admin`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let lease = client.mutex("report").lock().await?;
/// let losers = client.admin().force_release("report", "it hangs").await?;
/// assert_eq!(losers, [client.holder().clone()]);
/// lease.lost().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "it does nothing until it is asked for something"]
pub struct Admin<'a> {
    client: &'a Client,
}

impl<'a> Admin<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// The counts that all clients reported to the store, and the claims in its lines.
    pub async fn store_stats(self) -> Result<Totals> {
        let keeper = self.client.keeper()?;
        let admin = keeper.need(&keeper.parts.admin)?;
        keeper.retry.again(|| admin.totals()).await
    }

    /// Reads lines, a page at a time.
    pub async fn inspect(self, query: &Query) -> Result<Page> {
        self.client.engine()?.inspect(query).await
    }

    /// Names whose records cannot be read, the first [`Query::LINES_MAX`] of them. Reads every
    /// line.
    pub async fn broken_lines(self) -> Result<Vec<BrokenLine>> {
        let mut query = Query::all();
        let mut broken = Vec::new();
        loop {
            let page = self.inspect(&query).await?;
            broken.extend(page.broken);
            match page.next {
                Some(next) if broken.len() < Query::LINES_MAX => query.after = Some(next),
                _ => break,
            }
        }
        broken.truncate(Query::LINES_MAX);
        Ok(broken)
    }

    /// Events from now on; those of one name in the order in which they happened.
    pub async fn watch(self, query: &Query) -> Result<BoxStream<'static, Result<Event>>> {
        let keeper = self.client.keeper()?;
        let part = keeper.need(&keeper.parts.watch)?;
        keeper.retry.again(|| part.watch(query)).await
    }

    /// Takes a name from all its present holders, and returns them. The next fence is greater. A
    /// claim that is granted meanwhile keeps the name.
    pub async fn force_release(
        self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let name = Name::new(name)?;
        let page = self.inspect(&Query::name(name.clone())).await?;
        let held = page.lines.iter().flat_map(|line| &line.held);
        let fences = held.map(|claim| claim.fence.as_u64()).collect();
        self.evict(name, fences, !page.broken.is_empty(), reason.into()).await
    }

    /// Takes a name from the claims that hold it with one of these fences, such as one permit of
    /// several; returns their holders. Claims with other fences keep it.
    pub async fn force_release_fences(
        self,
        name: impl AsRef<str>,
        fences: &[Fence],
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let fences = fences.iter().map(|fence| fence.as_u64()).collect();
        self.evict(Name::new(name)?, fences, false, reason.into()).await
    }

    /// Asks the present holders to give a name back within this time. Then it force-releases what
    /// they still hold, and returns the holders that lost a lease by that. They learn of it by
    /// [`Lease::revoke_requested`](crate::Lease::revoke_requested). If the store carries no
    /// messages to holders, the call is a late [`force_release`](Self::force_release).
    ///
    /// # Cancel safety
    ///
    /// Holders may have been asked. Nothing is taken from them.
    pub async fn revoke(
        self,
        name: impl AsRef<str>,
        within: Duration,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let name = Name::new(name)?;
        let page = self.inspect(&Query::name(name.clone())).await?;
        let held = page.lines.iter().flat_map(|line| &line.held);
        let fences: Vec<Fence> = held.map(|claim| claim.fence).collect();
        self.revoke_fences(name, &fences, within, reason).await
    }

    /// The same for the claims that hold with one of these fences, such as one permit of several.
    pub async fn revoke_fences(
        self,
        name: impl AsRef<str>,
        fences: &[Fence],
        within: Duration,
        reason: impl Into<String>,
    ) -> Result<Vec<Holder>> {
        let (name, reason) = (Name::new(name)?, reason.into());
        let keeper = self.client.keeper()?;
        keeper.need(&keeper.parts.admin)?;
        let until = keeper.clock.now() + within;
        let by = self.client.inner.holder.clone();
        let fences = fences.iter().map(|fence| fence.as_u64()).collect();
        let unreadable = false;
        let mut order = Eviction { name: name.clone(), fences, unreadable, by, reason };
        let mut asked_at = None;
        loop {
            let now = keeper.clock.now();
            let page = self.inspect(&Query::name(name.clone())).await?;
            let held: Vec<_> = page.lines.iter().flat_map(|line| &line.held).collect();
            order.fences.retain(|fence| held.iter().any(|claim| claim.fence == *fence));
            if order.fences.is_empty() {
                return Ok(Vec::new());
            }
            if now >= until {
                return self.evict(name, order.fences, false, order.reason).await;
            }
            // More than once: a client that has just taken the name does not listen yet.
            if asked_at.is_none_or(|at: Moment| now >= at + REVOKE_AGAIN) {
                asked_at = Some(now);
                let messages = HolderMessage::of_revocation(&order, until.since(now));
                keeper.send(&messages).await;
            }
            let pause = REVOKE_LOOK.min(until.since(now));
            keeper.clock.sleep_until(keeper.clock.now() + pause).await;
        }
    }

    /// Takes a name from its holders and holds it, before those who wait. They keep their order and
    /// go on to wait behind this lease. It is exclusive, and its fence is greater than all before.
    /// The former holders lose their leases as by [`force_release`](Self::force_release). A free
    /// name is taken too. A semaphore is not: [`Error::Mismatch`].
    ///
    /// # Cancel safety
    ///
    /// The holders may have lost the name. The claim leaves the line in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::connect("memory:").await?;
    /// let hanging = client.mutex("report").lock().await?;
    /// let lease = client.admin().steal("report", "it hangs").await?;
    /// assert!(lease.is_held() && lease.fence() > hanging.fence());
    /// hanging.lost().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn steal(self, name: impl AsRef<str>, reason: impl Into<String>) -> Result<Lease> {
        self.steal_with(name, reason, LockOptions::new()).await
    }

    /// The same with options of the lease, such as its ttl and note.
    /// [`reentrant`](LockOptions::reentrant) is none of them.
    ///
    /// # Cancel safety
    ///
    /// As [`steal`](Self::steal).
    pub async fn steal_with(
        self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
        options: LockOptions,
    ) -> Result<Lease> {
        Request::new(self.client.clone(), name).options(options).steal(reason.into()).await
    }

    async fn evict(
        self,
        name: Name,
        fences: Vec<u64>,
        unreadable: bool,
        reason: String,
    ) -> Result<Vec<Holder>> {
        let by = self.client.inner.holder.clone();
        let order = Eviction { name, fences, unreadable, by, reason };
        let keeper = self.client.keeper()?;
        let admin = keeper.need(&keeper.parts.admin)?;
        let page = self.inspect(&Query::name(order.name.clone())).await?;
        let mut tries = 0;
        let evict = || {
            tries += 1;
            admin.evict(&order)
        };
        let mut evicted = keeper.retry.again(evict).await?;
        if tries > 1 {
            // A try whose answer was lost may have taken the name, and the next one found nobody.
            let held = page.lines.into_iter().flat_map(|line| line.held);
            let gone = held.filter(|claim| order.fences.contains(&claim.fence.as_u64()));
            for holder in gone.map(|claim| claim.holder) {
                if !evicted.contains(&holder) {
                    evicted.push(holder);
                }
            }
        }
        // Also where nobody was found: an earlier try, whose answer was lost, may have taken it.
        keeper.send(&HolderMessage::of_eviction(&order)).await;
        Ok(evicted)
    }

    /// Gives a semaphore that is in use another limit, for all claims in its line, and returns the
    /// limit before. `None` if the line is empty: then the next claim sets the limit.
    ///
    /// A claim that still names the old limit gets [`Error::Mismatch`]. A limit below the held
    /// permits, or below those of a waiting claim, is [`Error::InUse`].
    pub async fn resize(self, name: impl AsRef<str>, limit: u32) -> Result<Option<u32>> {
        Mode::Permits { take: 1, of: limit }.checked()?;
        let name = Name::new(name)?;
        let order = Resize { name, of: limit, by: self.client.inner.holder.clone() };
        let keeper = self.client.keeper()?;
        let part = keeper.need(&keeper.parts.convert)?;
        let why = match keeper.retry.again(|| part.resize(&order)).await? {
            Resized::Done { before } => {
                let (name, by) = (&order.name, order.by.label());
                tracing::warn!(%name, by, limit, before, "resized");
                return Ok(Some(before));
            }
            Resized::Unused => return Ok(None),
            Resized::Held { units } => TooMany::Held(units),
            Resized::Wanted { units } => TooMany::Wanted(units),
        };
        Err(Error::InUse { name: order.name, of: limit, why })
    }

    /// Lets fences go on above all that the store ever gave out. Call it once after a restore from
    /// a backup, before clients work with the store again. `above` is a fence that a log shows and
    /// that the new ones must exceed, if the clock cannot be trusted. Without it, a clock behind
    /// the date of this build is an error.
    ///
    /// Leases and places in line stay as they are. A repetition does no harm, with or without a
    /// restore.
    pub async fn bump_epoch(self, above: Option<Fence>) -> Result<Bumped> {
        let above = above.map_or(0, Fence::as_u64);
        if above > Bump::ABOVE_MAX {
            let (what, rule) = ("a fence to be exceeded", "at most 2^62");
            return Err(Error::Invalid(Invalid::Setting { what, rule }));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX).min(Bump::ABOVE_MAX);
        if now_us < Bump::NOW_US_MIN && above == 0 {
            let what = "begin at the time of day: this clock is behind the date of the build";
            let advice = "set the clock, or name a fence that must be exceeded (`--above`)";
            return Err(unsupported(self.client.info(), what, advice));
        }
        let order = Bump { above, now_us, by: self.client.inner.holder.clone() };
        let keeper = self.client.keeper()?;
        let Some(part) = &keeper.parts.raise_fences else {
            return order.by_the_clock(self.client.info());
        };
        let bumped = keeper.retry.again(|| part.bump_epoch(&order)).await?;
        if let Bumped::Raised { before, from } = bumped {
            tracing::warn!(by = order.by.label(), %before, %from, "fences go on above all others");
        }
        Ok(bumped)
    }

    /// Looks at the store's settings as [`examine`](Self::examine) does, and takes no lock.
    pub async fn look(self) -> Result<Vec<Finding>> {
        let keeper = self.client.keeper()?;
        match &keeper.parts.admin {
            Some(admin) => keeper.retry.again(|| admin.examine()).await,
            None => Ok(Vec::new()),
        }
    }

    /// Looks for settings of the store that weaken the promises, and at every record. It also takes
    /// a lock and gives it back.
    pub async fn examine(self) -> Result<Vec<Finding>> {
        let mut findings = self.look().await?;
        findings.push(trial::lock(self.client.engine()?).await);
        match self.broken_lines().await {
            Ok(broken) => findings.extend(broken.iter().map(Finding::of_broken)),
            Err(error) => findings.push(Finding::of_unread(&error)),
        }
        Ok(findings)
    }

    /// Installs what the store needs; harmless when it is there.
    pub async fn install(self) -> Result<()> {
        let keeper = self.client.keeper()?;
        match &keeper.parts.setup {
            Some(setup) => keeper.retry.again(|| setup.install()).await,
            None => Ok(()),
        }
    }

    /// The statements [`install`](Self::install) runs; empty where there are none.
    pub fn schema(self) -> Cow<'static, str> {
        self.client.parts().setup.as_ref().map_or_else(Cow::default, |setup| setup.schema())
    }
}
