//! Tools of the cases: failures that know their place, waiting for facts, and waiters.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Token};
use leasehold::engine::LineView;
use leasehold::scope::of_task;
use leasehold::{Client, Lease, Name, Released, Request, Result};
use tokio::task::JoinHandle;

use super::harness::LONG;
use crate::Worker;
use crate::servers::set_failed;

pub(super) use crate::waiting::EVENT_MAX;

/// How long a case may take before it fails.
pub(super) const CASE_MAX: Duration = Duration::from_secs(360);

/// How often a fact that has no event is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// The result of a case.
pub type Outcome = std::result::Result<(), Failure>;

/// Why a case failed, and where.
pub struct Failure {
    what: String,
    at: &'static Location<'static>,
}

impl Failure {
    /// Makes a failure at the caller's place.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> Self {
        set_failed(true);
        Self { what: what.into(), at: Location::caller() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        set_failed(true);
        Self { what: error.to_string(), at: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Awaits an event; fails when it does not come.
pub(super) async fn soon<T>(
    what: &str,
    event: impl Future<Output = T>,
) -> std::result::Result<T, Failure> {
    within(EVENT_MAX, what, event).await
}

pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    event: impl Future<Output = T>,
) -> std::result::Result<T, Failure> {
    match tokio::time::timeout(limit, event).await {
        Ok(value) => Ok(value),
        Err(_) => Err(Failure::new(format!("waited {limit:?} for {what}"))),
    }
}

/// Looks at a fact until it is true; fails when it does not become true.
pub(super) async fn until(what: &str, fact: impl AsyncFn() -> Result<bool>) -> Outcome {
    until_within(EVENT_MAX, what, fact).await
}

pub(super) async fn until_within(
    limit: Duration,
    what: &str,
    fact: impl AsyncFn() -> Result<bool>,
) -> Outcome {
    within(limit, what, async {
        loop {
            match fact().await {
                Ok(true) => return Ok(()),
                // A store that was too busy to answer is asked again.
                Err(error) if !error.is_transient() => return Err(error.into()),
                Ok(false) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    })
    .await?
}

/// Waits until exactly `count` claims wait for `name`.
pub(super) async fn until_waiting(client: &Client, name: &str, count: usize) -> Outcome {
    until(&format!("{count} claims waiting for `{name}`"), async || {
        let line = client.line(name).await?;
        Ok(line.map_or(0, |line| line.waiting.len()) == count)
    })
    .await
}

/// Waits until no claim is in the line of `name`.
pub(super) async fn until_free(client: &Client, name: &str) -> Outcome {
    until(&format!("`{name}` to be free"), async || Ok(client.line(name).await?.is_none())).await
}

/// The line of a name that must be in use.
pub(super) async fn line(client: &Client, name: &str) -> std::result::Result<LineView, Failure> {
    let line = client.line(name).await?;
    line.ok_or_else(|| Failure::new(format!("nobody is in the line of `{name}`")))
}

/// A claim that waits in a task of its own. Dropping it cancels the wait.
pub(super) struct Waiter(JoinHandle<Result<Lease>>);

impl Waiter {
    /// Begins to wait.
    pub(super) fn start(request: Request) -> Self {
        Self(tokio::spawn(async move { request.acquire().await }))
    }

    /// Begins to wait as the task of this number.
    pub(super) fn start_as(task: u64, request: Request) -> Self {
        Self(tokio::spawn(of_task(task, async move { request.acquire().await })))
    }

    /// Begins to wait and returns when it is in line behind `before` other waiters.
    pub(super) async fn queue(
        client: &Client,
        name: &str,
        request: Request,
        before: usize,
    ) -> std::result::Result<Self, Failure> {
        let waiter = Self::start(request);
        until_waiting(client, name, before + 1).await?;
        Ok(waiter)
    }

    /// The lease, once it is granted.
    pub(super) async fn granted(&mut self) -> std::result::Result<Lease, Failure> {
        Ok(soon("a grant", &mut self.0).await???)
    }

    /// Waits for the lease and gives it back.
    pub(super) async fn served(&mut self) -> Outcome {
        assert_eq!(self.granted().await?.release().await?, Released::Released);
        Ok(())
    }

    /// The result of the wait.
    pub(super) async fn ended(mut self) -> std::result::Result<Result<Lease>, Failure> {
        Ok(soon("the end of a wait", &mut self.0).await??)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A claim as an engine sees it, for cases that speak to the engine itself.
pub(super) fn claim(name: &str, mode: Mode, ttl: Duration) -> Result<Claim> {
    Ok(Claim {
        key: ClaimKey { name: Name::new(name)?, token: Token::random() },
        mode,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl,
        patience: LONG,
        join: false,
    })
}

/// The renewal of a claim on its own terms.
pub(super) fn renewal(claim: &Claim) -> Renewal {
    Renewal { key: claim.key.clone(), ttl: claim.ttl, patience: claim.patience }
}

/// The fence of a worker, once it holds.
pub(super) async fn held(worker: &mut Worker) -> std::result::Result<u64, Failure> {
    Ok(worker.wait_for_line("held ", EVENT_MAX).await?.parse()?)
}

/// Lets a worker close its client and end.
pub(super) async fn ended(worker: &mut Worker) -> Outcome {
    worker.close_input();
    let status = worker.wait_exit(EVENT_MAX).await?;
    assert!(status.success(), "{status}: {}", worker.stderr());
    Ok(())
}

/// The state of a worker's lease, as the worker reports it.
pub(super) async fn state(worker: &mut Worker) -> std::result::Result<String, Failure> {
    worker.send_line("state")?;
    Ok(worker.wait_for_line("state ", EVENT_MAX).await?)
}

/// A mode as one word, for the worker.
pub(super) fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Shared => "shared".into(),
        Mode::Permits { take, of } => format!("permits:{take}:{of}"),
        _ => "exclusive".into(),
    }
}
