//! How a client listens for messages to the holders of leases.
//!
//! The stream is kept here, and not in the future that awaits it: that future is dropped whenever
//! the keeper has something else to do.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};

use crate::clock::Moment;
use crate::engine::HolderMessage;
use crate::error::{Error, Result};

/// How long a lease is held before its client listens. Shorter leases pay nothing for messages, and
/// no person can have seen them.
pub(crate) const LISTEN_AFTER: Duration = Duration::from_secs(1);

/// The first pause before it listens again; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(250);

/// The longest pause before it listens again.
const PAUSE_MAX: Duration = Duration::from_secs(30);

type Messages = BoxStream<'static, HolderMessage>;

/// What a client heard.
pub(crate) enum Heard {
    Message(HolderMessage),
    /// It listens from now on. It may have missed messages before.
    Begun,
    /// It does not listen any more, or could not begin.
    Ended(Option<Error>),
}

/// Whether and how a client listens.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    stage: Stage,
    failures: u32,
    pause_until: Option<Moment>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Beginning(BoxFuture<'static, Result<Messages>>),
    Open(Messages),
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Idle => "Idle",
            Stage::Beginning(_) => "Beginning",
            Stage::Open(_) => "Open",
        })
    }
}

impl Listening {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// When it may begin that would begin at `at`.
    pub(crate) fn not_before(&self, at: Moment) -> Moment {
        self.pause_until.map_or(at, |until| until.max(at))
    }

    pub(crate) fn begin(&mut self, beginning: BoxFuture<'static, Result<Messages>>) {
        self.stage = Stage::Beginning(beginning);
    }

    /// It ended at `now`, and begins again after a pause.
    pub(crate) fn ended(&mut self, now: Moment) {
        let pause = PAUSE_FIRST.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.pause_until = Some(now + pause.mul_f64(rand::random_range(0.5..1.0)));
        self.failures = self.failures.saturating_add(1);
        self.stage = Stage::Idle;
    }

    /// Ends when something is heard; never while it is idle. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Heard {
        match &mut self.stage {
            Stage::Idle => std::future::pending().await,
            Stage::Beginning(beginning) => match beginning.await {
                Ok(messages) => {
                    self.stage = Stage::Open(messages);
                    self.failures = 0;
                    Heard::Begun
                }
                Err(error) => Heard::Ended(Some(error)),
            },
            Stage::Open(messages) => match messages.next().await {
                Some(message) => Heard::Message(message),
                None => Heard::Ended(None),
            },
        }
    }
}
