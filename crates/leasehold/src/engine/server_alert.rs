//! Problems of servers that an engine noticed while it used them, kept until the client asks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::remote::ClockTrouble;
use crate::clock::{Clock, Moment, SystemClock};

/// The most reports kept for a client that does not ask. The watch drops the oldest first: it is in
/// the log, and the last report on each server's clock stays.
const UNTOLD_MAX: usize = 64;

/// A problem of a server that the store's promises depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAlert {
    /// The server, without credentials.
    pub server: String,
    /// The problem.
    pub trouble: AlertKind,
}

/// The problems that an engine notices.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlertKind {
    /// The clock by which the server ends claims was set, or stands still.
    Clock(ClockTrouble),
    /// The server may now evict claims that hold.
    Eviction {
        /// Its policy, in its own words.
        policy: String,
    },
}

impl From<ClockTrouble> for AlertKind {
    fn from(trouble: ClockTrouble) -> Self {
        Self::Clock(trouble)
    }
}

impl fmt::Display for AlertKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(trouble) => write!(f, "its clock {trouble}"),
            Self::Eviction { policy } => write!(f, "its eviction policy became `{policy}`"),
        }
    }
}

/// Reports that an engine has made and its client has not read yet.
#[derive(Debug, Default)]
pub(crate) struct AlertQueue {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    untold: VecDeque<ServerAlert>,
    /// The last report on each server's clock.
    clocks: BTreeMap<String, ClockTrouble>,
}

impl AlertQueue {
    /// Adds a report.
    pub(crate) fn tell(&self, server: &str, trouble: impl Into<AlertKind>) {
        let trouble = trouble.into();
        log(server, &trouble);
        let mut state = self.state();
        if let AlertKind::Clock(trouble) = trouble {
            state.clocks.insert(server.to_owned(), trouble);
        }
        if state.untold.len() == UNTOLD_MAX {
            state.untold.pop_front();
        }
        state.untold.push_back(ServerAlert { server: server.to_owned(), trouble });
        drop(state);
        self.told.notify_one();
    }

    /// Ends when there are reports, and takes them. Dropping the future loses none.
    pub(crate) async fn news(&self) -> Vec<ServerAlert> {
        loop {
            let told = self.told.notified();
            let news: Vec<ServerAlert> = self.state().untold.drain(..).collect();
            if !news.is_empty() {
                return news;
            }
            told.await;
        }
    }

    /// The last report on each clock. Other settings can be read at any time, but a step of a clock
    /// cannot be seen later.
    pub(crate) fn last(&self) -> Vec<ServerAlert> {
        let state = self.state();
        let alert = |(server, trouble): (&String, &ClockTrouble)| ServerAlert {
            server: server.clone(),
            trouble: AlertKind::Clock(*trouble),
        };
        state.clocks.iter().map(alert).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(server: &str, trouble: &AlertKind) {
    match trouble {
        AlertKind::Clock(ClockTrouble::Step { by }) => {
            tracing::warn!(server, %by, "a server's clock was set");
        }
        AlertKind::Clock(ClockTrouble::Frozen { stood }) => {
            tracing::warn!(server, ?stood, "a server's clock stands still");
        }
        AlertKind::Eviction { policy } => {
            tracing::warn!(server, policy, "a server may evict locks that are held");
        }
    }
}

/// When to check the servers again. It is separate from the future that waits for it, because the
/// client drops that future and makes a new one at every renewal.
#[derive(Debug)]
pub(crate) struct CheckTimer {
    every: Duration,
    next: Mutex<Moment>,
}

impl CheckTimer {
    /// The first round is due after `every`, as is each later one.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, next: Mutex::new(SystemClock.now() + every) }
    }

    /// Ends when the next round is due. Of several waiters, only one ends.
    pub(crate) async fn due(&self) {
        loop {
            let now = SystemClock.now();
            let next = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                if *next <= now {
                    *next = now + self.every;
                    return;
                }
                *next
            };
            SystemClock.sleep_until(next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(ms: u64) -> AlertKind {
        ClockTrouble::Frozen { stood: Duration::from_millis(ms) }.into()
    }

    #[tokio::test]
    async fn news_waits_for_a_reader_and_is_read_once() {
        let watch = AlertQueue::default();
        watch.tell("one", frozen(1));
        watch.tell("one", frozen(2));
        let news: Vec<AlertKind> =
            watch.news().await.into_iter().map(|news| news.trouble).collect();
        assert_eq!(news, [frozen(1), frozen(2)]);
        let mut next = Box::pin(watch.news());
        assert!(futures_util::poll!(&mut next).is_pending());
        watch.tell("two", frozen(3));
        assert_eq!(next.await, [ServerAlert { server: "two".into(), trouble: frozen(3) }]);
        assert_eq!(watch.last().len(), 2, "the last word on each");
    }

    #[tokio::test]
    async fn news_that_nobody_asks_for_is_bounded() {
        let watch = AlertQueue::default();
        for ms in 0..=UNTOLD_MAX as u64 {
            watch.tell("one", frozen(ms));
        }
        let news = watch.news().await;
        assert_eq!((news.len(), &news[0].trouble), (UNTOLD_MAX, &frozen(1)));
    }

    #[tokio::test]
    async fn setting_that_can_be_read_at_any_time_is_not_kept_for_later() {
        let watch = AlertQueue::default();
        watch.tell("one", AlertKind::Eviction { policy: "allkeys-lru".into() });
        assert_eq!((watch.news().await.len(), watch.last()), (1, Vec::new()));
    }

    #[tokio::test]
    async fn round_comes_although_its_waiter_is_interrupted_again_and_again() {
        let rounds = CheckTimer::new(Duration::from_millis(20));
        while tokio::time::timeout(Duration::from_millis(1), rounds.due()).await.is_err() {}
        let again = Box::pin(rounds.due());
        assert!(futures_util::poll!(again).is_pending(), "and only once");
    }
}
