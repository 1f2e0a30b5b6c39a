//! At most one run in each period, over all machines and whatever their clocks say.
//!
//! Whoever starts a run holds an exclusive claim, renewed with a short ttl: a run that dies is
//! taken over. When it ends, its outcome becomes the claim's note, and the claim stays until the
//! period has passed since the start. Only the store's clock counts.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::acquire::Request;
use crate::claim::{Holder, Mode, Note};
use crate::clock::Moment;
use crate::engine::ClaimView;
use crate::error::{Config, Error, LostCause, Result};
use crate::lease::Lease;
use crate::rate_limiter::check_period;

/// How long a run that died holds the others up, unless said otherwise.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// How often somebody asks whose period ends at the very moment he asks.
const TRIES_MAX: usize = 8;

/// How much of a failure's text is remembered. The rest of a note is for its words.
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
/// A period begins with a run, counts on the store's clock, and is 100 ms to 24 h. A run that
/// takes longer than the period is still alone: the next one may start when it ends. A run whose
/// process dies, or whose future is dropped, is not one: whoever asks next takes it over, at the
/// latest after its ttl. The same is true of one whose end could not be told to the store for as
/// long as its ttl; whoever runs must be able to bear that.
#[derive(Debug, Clone)]
pub struct Once {
    request: Request,
    every: Duration,
    ttl: Duration,
    longest: Option<Duration>,
    retry_failed: bool,
}

/// What became of asking for a run.
#[derive(Debug)]
pub enum Outcome<T, E> {
    /// It ran, and this is what it came to.
    Ran(std::result::Result<T, E>),
    /// Somebody runs, or has run in this period.
    Skipped {
        /// Who, and how it went; `None` if that was forgotten since.
        last: Option<LastRun>,
    },
}

/// A run as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRun {
    /// How it went.
    pub state: RunState,
    /// Who runs or ran.
    pub by: Holder,
    /// Its fence.
    pub fence: u64,
    /// How long ago it started.
    pub started: Duration,
    /// How long until somebody may run again, if nothing more is heard of it.
    pub next_in: Duration,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// It has not ended, or not told so.
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
        /// What it said.
        why: String,
    },
}

impl Once {
    pub(crate) fn new(request: Request, every: Duration) -> Self {
        Self { request, every, ttl: TTL_DEFAULT, longest: None, retry_failed: false }
    }

    /// How long after its death a run is taken over by whoever asks next: 100 ms to 24 h, 30 s
    /// unless said otherwise, and never longer than the period.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Stops a run after this long: for work that may hang. It counts as one that failed, and
    /// [`run`](Self::run) ends with [`Error::Lost`].
    pub fn max_run(mut self, span: Duration) -> Self {
        self.longest = Some(span);
        self
    }

    /// Does not count a run that failed: whoever asks next runs again. Its outcome is forgotten.
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs `work` if nobody runs or has run in this period.
    ///
    /// Work is stopped at its next await point when the lease is lost, and the error says why.
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
                    Err(LostCause::MaxHold) => {
                        let why = LostCause::MaxHold.to_string();
                        (Some(why), Err(LostCause::MaxHold))
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
    /// it may not start.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, or the run, means that there was none.
    pub async fn start(&self) -> Result<std::result::Result<Run, Option<LastRun>>> {
        self.check()?;
        let ttl = self.ttl.min(self.every);
        let request = self.request.clone().ttl(ttl).note(note_of(&RunState::Running));
        for _ in 0..TRIES_MAX {
            let begun = self.request.client().inner.keeper.clock.now();
            if let Some(lease) = request.try_acquire().await? {
                let (every, retry_failed) = (self.every, self.retry_failed);
                return Ok(Ok(Run { lease, begun, every, retry_failed }));
            }
            // Whoever is in the way may be gone by now, with its period.
            if let Some(last) = self.last().await? {
                return Ok(Err(Some(last)));
            }
        }
        Ok(Err(None))
    }

    /// Who runs, or has run in this period, and how it went; `None` if nobody has.
    pub async fn last(&self) -> Result<Option<LastRun>> {
        let name = self.request.name()?;
        let line = self.request.client().show(name.as_str()).await?;
        let first = line.and_then(|line| line.held.into_iter().next());
        Ok(first.filter(|first| first.mode == Mode::Exclusive).map(LastRun::read))
    }

    fn check(&self) -> Result<()> {
        let info = self.request.client().info();
        if !info.can.amend {
            return Err(Error::Config(Config::Unsupported {
                engine: info.engine,
                what: "remember the outcome of a run",
                advice: "use a lock with `hold_at_least`, or another store",
            }));
        }
        check_period(self.every)
    }
}

/// A run that was started with [`Once::start`]. Dropping it means that there was none.
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

    /// What the work came to, unless the lease is lost or it takes longer than it may.
    async fn within<T>(
        &self,
        longest: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> std::result::Result<T, LostCause> {
        let until = longest.map_or(Moment::NEVER, |span| self.begun + span);
        tokio::select! {
            biased;
            ran = self.lease.while_held(work) => ran,
            () = self.lease.sleep_until(until), if longest.is_some() => Err(LostCause::MaxHold),
        }
    }

    /// It ended: well, or for this reason not. Its outcome is remembered, and nobody runs again
    /// until the period has passed.
    ///
    /// An error says that the store could not be told, or that the lease had been lost before: the
    /// run has happened all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the outcome untold; the run counts.
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
        // Kept until the period is over, whether its outcome could be told or not.
        let kept = self.lease.release().await;
        told.and(kept.map(|_released| ()))
    }
}

impl LastRun {
    fn read(claim: ClaimView) -> Self {
        Self {
            state: state_of(&claim.note),
            by: claim.holder,
            fence: claim.fence,
            started: claim.age,
            next_in: claim.remaining,
        }
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

/// A state as the note has it: one JSON object.
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

/// The state in a note. One that is not ours is of somebody who merely has the lock: running.
fn state_of(note: &Note) -> RunState {
    let rest = note.as_str();
    let took = |rest: &str| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Duration::from_millis(digits.parse().unwrap_or(0))
    };
    if let Some(rest) = rest.strip_prefix(r#"{"run":"done","took_ms":"#) {
        return RunState::Done { took: took(rest) };
    }
    if let Some(rest) = rest.strip_prefix(r#"{"run":"failed","took_ms":"#) {
        let why = rest.split_once(r#""why":""#).map_or("", |(_, why)| why);
        return RunState::Failed { took: took(rest), why: unescaped(why) };
    }
    RunState::Running
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
            assert_eq!(state_of(&note), state, "{note:?}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_letters_and_fits_a_note() {
        let why = "\u{1}é".repeat(2_000);
        let state = RunState::Failed { took: Duration::MAX, why: why.clone() };
        let note = Note::new(note_of(&state)).expect("it fits");
        let RunState::Failed { why: read, .. } = state_of(&note) else { panic!("failed") };
        assert!(read.len() > 1_000 && why.starts_with(&read));
    }

    #[test]
    fn the_note_of_a_plain_lock_is_one_that_runs() {
        for text in ["", "nightly", "{\"run\":\"else\"}"] {
            let note = Note::new(text).expect("a good note");
            assert_eq!(state_of(&note), RunState::Running);
        }
    }
}
