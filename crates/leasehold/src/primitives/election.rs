//! Leader election: one leader at a time, with its term and its payload.
//!
//! A campaign is an exclusive claim. The lease is the leadership, its fence the term, its note the
//! payload. Observers read the line, and read it again after each event on it.

use std::ops::Deref;
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};

use crate::client::Client;
use crate::engine::{Event, Query};
use crate::error::{Error, LostCause, Result, TryLockError};
use crate::lease::Lease;
use crate::options::LockOptions;
use crate::rule::claim::{Holder, Mode, Released};
use crate::rule::fence::Fence;
use crate::rule::name::Name;
use crate::runtime::acquire::Request;

/// How often an observer reads the line without an event: in a store without events, and in a
/// store with them, where one may get lost.
const LOOK_UNTOLD: Duration = Duration::from_secs(1);
const LOOK_TOLD: Duration = Duration::from_secs(10);

/// The least time between two reads.
const LOOK_LEAST: Duration = Duration::from_millis(50);

/// The pause before the next campaign or read if the store is unreachable.
const PAUSE: Duration = Duration::from_millis(500);

/// An election with one leader at a time; made by
/// [`Client::election`](crate::Client::election).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::connect("memory:").await?;
/// let election = client.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// println!("leader for term {}", leadership.term());
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.payload, "10.0.0.7:8080");
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is asked for a lease"]
pub struct Election {
    request: Request,
}

/// A leader, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's identity.
    pub holder: Holder,
    /// Its term: greater than that of every leader before.
    pub term: Fence,
    /// The leader's own text: an address, for instance.
    pub payload: String,
}

impl Election {
    pub(crate) fn new(request: Request) -> Self {
        Self { request }
    }

    /// How long leadership lasts without renewal: 100 ms to 24 h, by default 30 s. After this time
    /// another candidate follows a leader that died.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { request: self.request.ttl(ttl) }
    }

    /// Sets options. Other options stay as they are. The payload of a campaign is its note.
    pub fn options(self, options: LockOptions) -> Self {
        Self { request: self.request.options(options) }
    }

    /// Waits to become the leader for as long as it takes, in order of arrival. `payload` is for
    /// observers to read from the first moment on: up to 4 KiB.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(&self, payload: impl Into<String>) -> Result<Leadership> {
        self.request.clone().note(payload).acquire().await.map(Leadership)
    }

    /// Waits to become the leader for at most `span`. If another leads by then, says who.
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_within(
        &self,
        span: Duration,
        payload: impl Into<String>,
    ) -> Result<Leadership, TryLockError> {
        self.request.clone().note(payload).acquire_within(span).await.map(Leadership)
    }

    /// The present leader.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let (client, name) = (self.request.client(), self.request.name()?);
        Ok(look(client, &name).await?.map(|(leader, _)| leader))
    }

    /// The leader, and from then on every change of it: another leader, another payload, or none.
    ///
    /// The stream never ends by itself. Each item was true when it was read. Several quick changes
    /// may be one item, but the stream never misses the last one. An error means that the store is
    /// unreachable. The next item comes when it answers again, or at the next failure.
    pub async fn observe(&self) -> Result<BoxStream<'static, Result<Option<Leader>>>> {
        let (client, name) = (self.request.client().clone(), self.request.name()?);
        let mut observer = Observer { client, name, events: None, told: None };
        observer.listen().await?;
        let next = |mut observer: Observer| async move { Some((observer.next().await, observer)) };
        Ok(stream::unfold(observer, next).boxed())
    }

    /// Campaigns, runs `work` while it leads, and campaigns again when leadership is lost. When
    /// the work ends, it resigns and returns the work's result.
    ///
    /// When leadership is lost, the work is dropped at its next await point. It never begins a step
    /// after the lease's end on this machine's clock. But it may be in the middle of a step then.
    /// Only a resource that checks the [term](Leadership::term) is safe from that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::connect("memory:").await?;
    /// let term = client
    ///     .election("scheduler")
    ///     .run_while_leader("10.0.0.7:8080", async |leadership| leadership.term())
    ///     .await?;
    /// assert!(term > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and resigns.
    pub async fn run_while_leader<T>(
        &self,
        payload: impl Into<String>,
        work: impl AsyncFn(&Leadership) -> T,
    ) -> Result<T> {
        let payload = payload.into();
        let clock = &self.request.client().inner.keeper.clock;
        loop {
            let leadership = match self.campaign(payload.as_str()).await {
                Ok(leadership) => leadership,
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, "cannot campaign; trying again");
                    clock.sleep_until(clock.now() + PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match leadership.while_held(work(&leadership)).await {
                Ok(value) => {
                    if let Err(error) = leadership.resign().await {
                        tracing::warn!(%error, "resigning goes on in the background");
                    }
                    return Ok(value);
                }
                Err(LostCause::Closed) => return Err(Error::Closed),
                Err(cause) => {
                    tracing::warn!(name = %leadership.name(), %cause, "leadership lost");
                }
            }
        }
    }
}

/// Leadership in its holder's hands. Dropping it resigns.
///
/// It is a [`Lease`]: [`is_held`](Lease::is_held) is never true after its end on this machine's own
/// clock, even if the store is unreachable.
#[derive(Debug)]
#[must_use = "leadership that is dropped is resigned at once"]
pub struct Leadership(Lease);

impl Leadership {
    /// The number of this term, the lease's fence: greater than that of every leader before. Pass
    /// it to each resource that the leader changes, and let the resource refuse smaller ones.
    pub fn term(&self) -> Fence {
        self.0.fence()
    }

    /// Changes the payload that observers see, in the same term: up to 4 KiB.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, observers may or may not see the payload. Leadership goes on.
    pub async fn proclaim(&self, payload: impl AsRef<str>) -> Result<()> {
        self.0.set_note(payload).await
    }

    /// Gives leadership up, and returns the outcome.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future finishes it in the background.
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }

    /// The plain lease.
    pub fn into_lease(self) -> Lease {
        self.0
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

/// Reads the leader, and how long it leads without a renewal.
async fn look(client: &Client, name: &Name) -> Result<Option<(Leader, Duration)>> {
    let line = client.line(name.as_str()).await?;
    let first = line.and_then(|line| line.held.into_iter().next());
    Ok(first.filter(|first| first.mode == Mode::Exclusive).map(|first| {
        let payload = first.note.text().to_owned();
        (Leader { holder: first.holder, term: first.fence, payload }, first.remaining)
    }))
}

/// Follows one name: listens first, then reads the line, then reads it again after each event.
struct Observer {
    client: Client,
    name: Name,
    events: Option<BoxStream<'static, Result<Event>>>,
    /// The last item.
    told: Option<Option<Leader>>,
}

impl Observer {
    /// Begins to listen, if the store has events. The observer does this before it reads the line,
    /// so it misses no event in between.
    async fn listen(&mut self) -> Result<()> {
        if self.events.is_none() && self.client.parts().watch.is_some() {
            self.events = Some(self.client.admin().watch(&Query::name(self.name.clone())).await?);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Leader>> {
        let clock = self.client.inner.keeper.clock.clone();
        loop {
            let seen = match self.listen().await {
                Ok(()) => look(&self.client, &self.name).await,
                Err(error) => Err(error),
            };
            let seen = match seen {
                Ok(seen) => seen,
                Err(error) => {
                    // Limits how often the caller gets errors.
                    clock.sleep_until(clock.now() + PAUSE).await;
                    return Err(error);
                }
            };
            // A leader that dies causes no event, so read again when its time is over.
            let longest = if self.events.is_some() { LOOK_TOLD } else { LOOK_UNTOLD };
            let left = seen.as_ref().map_or(longest, |(_, remaining)| *remaining);
            let leader = seen.map(|(leader, _)| leader);
            if self.told.as_ref() != Some(&leader) {
                self.told = Some(leader.clone());
                return Ok(leader);
            }
            let at = clock.now() + left.clamp(LOOK_LEAST, longest);
            tokio::select! {
                () = self.heard() => {}
                () = clock.sleep_until(at) => {}
            }
        }
    }

    /// Ends after an event. A broken stream is opened again before the next read.
    async fn heard(&mut self) {
        let Some(events) = &mut self.events else {
            return std::future::pending().await;
        };
        let mut next = events.next().await;
        loop {
            match next {
                Some(Ok(_event)) => {}
                Some(Err(_)) | None => {
                    self.events = None;
                    return;
                }
            }
            // One read covers all events that came meanwhile.
            match events.next().now_or_never() {
                Some(another) => next = another,
                None => return,
            }
        }
    }
}
