//! At most one run in each period, over all machines, by the store's clock alone.
//!
//! A caller that starts a run holds an exclusive claim. The client renews it with a short ttl, so
//! another caller can take over a run that dies. When the run ends, its outcome becomes the
//! claim's note. The claim stays until a period has passed since the start.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::clock::Moment;
use crate::engine::{ClaimView, unsupported};
use crate::error::{Error, Kind, LostCause, Result, UnlessHeld};
use crate::lease::Lease;
use crate::primitives::rate_limiter::check_period;
use crate::rule::claim::{Holder, Note};
use crate::rule::fence::Fence;
use crate::runtime::acquire::{NO_WAIT, Request};

/// How long, by default, a run that died holds up the others.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// How often a caller asks if each time the last period has just ended.
const TRIES_MAX: usize = 8;

/// The most bytes of a failure's text in a note. JSON escapes make the text longer.
const WHY_BYTES_MAX: usize = 1_024;

/// Work that is done at most once in each period; made by [`Client::once`](crate::Client::once).
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Outcome;
///
/// let client = leasehold::connect("memory:").await?;
/// let report = client.once("nightly-report", Duration::from_secs(12 * 60 * 60));
/// let outcome = report
///     .run(async |lease| {
///         println!("writing the report with fence {}", lease.fence());
///         Ok::<(), std::io::Error>(())
///     })
///     .await?;
/// assert!(matches!(outcome, Outcome::Ran(Ok(()))));
///
/// let again = report.run(async |_| Ok::<(), std::io::Error>(())).await?;
/// match again {
///     Outcome::Skipped { last: Some(last) } => println!("skipped: {last}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// A period begins with a run, counts on the store's clock, and is 100 ms to 366 days. On
/// ZooKeeper it is at most the servers' longest session. A run that takes longer than the period
/// is still alone: the next one may start when it ends. A run does not count if its process dies
/// or its future is dropped. The next caller then takes it over, at the latest after its ttl. The
/// same happens if the client cannot report a run's end to the store during its ttl. So the work
/// must be safe to run again.
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is run"]
pub struct Once {
    request: Request,
    every: Duration,
    ttl: Duration,
    longest: Option<Duration>,
    retry_failed: bool,
    again: bool,
}

/// What became of asking for a run.
///
#[cfg_attr(doctest, doc = "```compile_fail")]
#[cfg_attr(doctest, doc = "#![deny(unused_must_use)]")]
#[cfg_attr(doctest, doc = "async fn nightly(client: leasehold::Client) -> leasehold::Result<()> {")]
#[cfg_attr(
    doctest,
    doc = "    let job = client.once(\"report\", std::time::Duration::from_secs(60));"
)]
#[cfg_attr(doctest, doc = "    job.run(async |_| Ok::<(), std::io::Error>(())).await?;")]
#[cfg_attr(doctest, doc = "    Ok(())")]
#[cfg_attr(doctest, doc = "}")]
#[cfg_attr(doctest, doc = "```")]
#[derive(Debug)]
#[must_use = "the work may have failed"]
pub enum Outcome<T, E> {
    /// The work ran, with this result.
    Ran(std::result::Result<T, E>),
    /// Another caller runs, or has run in this period.
    Skipped {
        /// Which client, and how the run went. `None` if somebody had the name at each try, and was
        /// gone before it could be read: whether the work ran is not known then.
        last: Option<LastRun>,
    },
}

/// A run as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// Its state.
    pub state: RunState,
    /// Its holder.
    pub by: Holder,
    /// Its fence.
    pub fence: Fence,
    /// How long ago it started.
    pub started: Duration,
    /// How long until the next run may start, if the store hears no more of this one.
    pub next_in: Duration,
}

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// It has not ended, or has not reported its end.
    Running,
    /// It ended well.
    Done {
        /// How long it took.
        took: Duration,
    },
    /// It failed.
    Failed {
        /// How long it took.
        took: Duration,
        /// Its reason.
        why: String,
    },
}

impl Once {
    pub(crate) fn new(request: Request, every: Duration) -> Self {
        Self { request, every, ttl: TTL_DEFAULT, longest: None, retry_failed: false, again: false }
    }

    /// The longest period: a year.
    pub const EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// How long after the death of a run the next caller can take it over. It is 100 ms to 24 h, by
    /// default 30 s, and never longer than the period.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Stops a run after this long: for work that may hang. The run counts as failed, and
    /// [`run`](Self::run) ends with [`Error::Lost`].
    pub fn max_run(mut self, span: Duration) -> Self {
        self.longest = Some(span);
        self
    }

    /// Does not count a run that failed: the next caller runs again. The store forgets its outcome.
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs even if there was a run in this period, and ends that period. A run that goes on now is
    /// not disturbed.
    pub fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Runs `work` if no other caller runs or has run in this period.
    ///
    /// When the lease is lost, the work stops at its next await point, and the error has the cause.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work; the run does not count.
    pub async fn run<T, E: fmt::Display>(
        &self,
        work: impl AsyncFnOnce(&Lease) -> std::result::Result<T, E>,
    ) -> Result<Outcome<T, E>> {
        match self.start().await? {
            Ok(run) => {
                let name = run.lease.name().clone();
                let ran = run.within(self.longest, work(&run.lease)).await;
                let (why, ran) = match ran {
                    Ok(value) => (value.as_ref().err().map(ToString::to_string), Ok(value)),
                    Err(LostCause::HoldAtMost) => {
                        let why = LostCause::HoldAtMost.to_string();
                        (Some(why), Err(LostCause::HoldAtMost))
                    }
                    Err(cause) => return Err(Error::Lost { name, cause }),
                };
                if let Err(error) = run.end(why).await {
                    tracing::warn!(%error, "the outcome of a run is not remembered");
                }
                ran.map(Outcome::Ran).map_err(|cause| Error::Lost { name, cause })
            }
            Err(last) => Ok(Outcome::Skipped { last }),
        }
    }

    /// Starts a run, to be ended by hand: for work that is not a future. Says who runs or ran if
    /// it may not start. A name that is in use as a lock is [`Error::Mismatch`]: the lock says
    /// nothing about the work.
    ///
    /// # Cancel safety
    ///
    /// If the future or the run is dropped, the run does not count.
    pub async fn start(&self) -> Result<std::result::Result<Run, Option<LastRun>>> {
        self.check()?;
        self.request.client().check_unrenewed(self.every).await?;
        let ttl = self.ttl.min(self.every);
        let request = self.request.clone().ttl(ttl).note(note_of(&RunState::Running));
        for _ in 0..TRIES_MAX {
            let begun = self.request.client().inner.keeper.clock.now();
            if let Some(lease) = request.ask_until(Some(NO_WAIT)).await.unless_held()? {
                let (every, retry_failed) = (self.every, self.retry_failed);
                return Ok(Ok(Run { lease, begun, every, retry_failed }));
            }
            // The run in the way may have ended by now, with its period.
            match self.last().await? {
                Some(last) if self.again && last.state != RunState::Running => {
                    let (client, fences) = (self.request.client(), [last.fence]);
                    let name = self.request.name()?;
                    client.admin().force_release_fences(name, &fences, "again").await?;
                }
                Some(last) => return Ok(Err(Some(last))),
                None => {}
            }
        }
        Ok(Err(None))
    }

    /// The run of this period: its holder, and how it went; `None` if there is none. A name that is
    /// in use as a lock is [`Error::Mismatch`].
    pub async fn last(&self) -> Result<Option<LastRun>> {
        let name = self.request.name()?;
        let Some(line) = self.request.client().line(name.as_str()).await? else {
            return Ok(None);
        };
        let mut claims = line.held.iter().chain(&line.waiting);
        if claims.any(|claim| state_in(&claim.note).is_none()) {
            return Err(Error::Mismatch {
                name: line.name,
                in_force: line.kind,
                asked: Kind::Once,
            });
        }
        Ok(line.held.into_iter().find_map(LastRun::of))
    }

    fn check(&self) -> Result<()> {
        let client = self.request.client();
        let parts = client.parts();
        if parts.amend.is_none() || parts.unattended.is_none() {
            let advice = "use a lock with `hold_at_least`, or another store";
            return Err(unsupported(client.info(), "remember the outcome of a run", advice));
        }
        check_period(self.every, Self::EVERY_MAX)
    }
}

/// A run that was started with [`Once::start`]. If it is dropped, it does not count.
#[derive(Debug)]
#[must_use = "a run that is dropped did not happen"]
pub struct Run {
    lease: Lease,
    begun: Moment,
    every: Duration,
    retry_failed: bool,
}

impl Run {
    /// The lease it runs under.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The work's result, or a cause if the lease is lost or the work takes longer than `longest`.
    async fn within<T>(
        &self,
        longest: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> std::result::Result<T, LostCause> {
        let until = longest.map_or(Moment::NEVER, |span| self.begun + span);
        tokio::select! {
            biased;
            ran = self.lease.while_held(work) => ran,
            () = self.lease.sleep_until(until), if longest.is_some() => Err(LostCause::HoldAtMost),
        }
    }

    /// Ends the run: well with `None`, or failed with a reason. The store keeps the outcome, and
    /// allows no run until the period has passed.
    ///
    /// An error means that the store did not get the outcome, or that the lease was lost before.
    /// The run has happened all the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may not get the outcome; the run counts.
    pub async fn end(self, why: Option<String>) -> Result<()> {
        if why.is_some() && self.retry_failed {
            return self.lease.release().await.map(|_released| ());
        }
        self.lease.hold_at_least(self.every);
        let took = self.lease.clock_now().since(self.begun);
        let state = match why {
            None => RunState::Done { took },
            Some(why) => RunState::Failed { took, why },
        };
        let told = self.lease.set_note(note_of(&state)).await;
        // The claim stays until the period is over, even if the note failed.
        let kept = self.lease.release().await;
        told.and(kept.map(|_released| ()))
    }
}

impl LastRun {
    /// The run that a claim's note describes; `None` if it describes none.
    pub fn of(claim: ClaimView) -> Option<Self> {
        Some(Self {
            state: state_in(&claim.note)?,
            by: claim.holder,
            fence: claim.fence,
            started: claim.age,
            next_in: claim.remaining,
        })
    }
}

impl fmt::Display for LastRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, started) = (self.by.label(), Duration::from_millis(millis(self.started)));
        match &self.state {
            RunState::Running => write!(f, "`{by}` runs since {started:?}"),
            RunState::Done { took } => {
                write!(f, "`{by}` started it {started:?} ago, and it was done in {took:?}")
            }
            RunState::Failed { took, why } => {
                write!(f, "`{by}` started it {started:?} ago, and it failed after {took:?}: {why}")
            }
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The note for a state: one JSON object.
fn note_of(state: &RunState) -> String {
    match state {
        RunState::Running => r#"{"run":"running"}"#.to_owned(),
        RunState::Done { took } => format!(r#"{{"run":"done","took_ms":{}}}"#, millis(*took)),
        RunState::Failed { took, why } => {
            let mut note = format!(r#"{{"run":"failed","took_ms":{},"why":""#, millis(*took));
            let mut end = why.len().min(WHY_BYTES_MAX);
            while !why.is_char_boundary(end) {
                end -= 1;
            }
            for c in why[..end].chars() {
                match c {
                    '"' | '\\' => note.extend(['\\', c]),
                    // Writing to a text cannot fail.
                    c if u32::from(c) < 0x20 => drop(write!(note, "\\u{:04x}", u32::from(c))),
                    c => note.push(c),
                }
            }
            note.push_str("\"}");
            note
        }
    }
}

/// The state in a note that tells of a run.
pub(crate) fn state_in(note: &Note) -> Option<RunState> {
    let rest = note.text();
    if rest == note_of(&RunState::Running) {
        return Some(RunState::Running);
    }
    let took = |rest: &str| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Duration::from_millis(digits.parse().unwrap_or(0))
    };
    if let Some(rest) = rest.strip_prefix(r#"{"run":"done","took_ms":"#) {
        return Some(RunState::Done { took: took(rest) });
    }
    if let Some(rest) = rest.strip_prefix(r#"{"run":"failed","took_ms":"#) {
        let why = rest.split_once(r#""why":""#).map_or("", |(_, why)| why);
        return Some(RunState::Failed { took: took(rest), why: unescaped(why) });
    }
    None
}

/// A JSON text up to its closing quote.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('u') => {
                    let code: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&code, 16).ok();
                    plain.extend(code.and_then(char::from_u32));
                }
                escaped => plain.extend(escaped),
            },
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_being_a_note() {
        let took = Duration::from_millis(1_234);
        let texts = ["", "status 3", "a \"quoted\" \\ path\nand\ttabs \u{1}", "é"];
        let failed = texts.map(|why| RunState::Failed { took, why: why.to_owned() });
        for state in [RunState::Running, RunState::Done { took }].into_iter().chain(failed) {
            let note = Note::new(note_of(&state)).expect("a good note");
            assert_eq!(state_in(&note), Some(state), "{note:?}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_letters_and_fits_a_note() {
        let why = "\u{1}é".repeat(2_000);
        let state = RunState::Failed { took: Duration::MAX, why: why.clone() };
        let note = Note::new(note_of(&state)).expect("it fits");
        let Some(RunState::Failed { why: read, .. }) = state_in(&note) else { panic!("failed") };
        assert!(read.len() > 1_000 && why.starts_with(&read));
    }

    #[test]
    fn note_of_a_plain_lock_tells_of_no_run() {
        for text in ["", "nightly", "{\"run\":\"else\"}"] {
            let note = Note::new(text).expect("a good note");
            assert_eq!(state_in(&note), None);
        }
    }
}
