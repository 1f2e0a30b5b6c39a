//! What an engine found about its servers while it used them, kept until the client asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::remote::ClockTrouble;
use crate::clock::{Clock, Moment, SystemClock};

/// The most that is kept for a client who does not ask. The oldest is forgotten first: it was
/// logged, and the last word on each server stays.
const UNTOLD_MAX: usize = 64;

/// Something was found about a server that the store's promises rest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concern {
    /// Which server, without credentials.
    pub server: String,
    /// What.
    pub trouble: Trouble,
}

/// What may be found about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The clock by which it ends claims was set, or stands still.
    Clock(ClockTrouble),
    /// It may evict claims that hold, which it could not before.
    Eviction {
        /// Its policy, in its own words.
        policy: String,
    },
}

impl From<ClockTrouble> for Trouble {
    fn from(trouble: ClockTrouble) -> Self {
        Self::Clock(trouble)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clock(trouble) => write!(f, "its clock {trouble}"),
            Self::Eviction { policy } => write!(f, "its eviction policy became `{policy}`"),
        }
    }
}

/// Concerns, on their way from an engine to its client.
#[derive(Debug, Default)]
pub struct ConcernWatch {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    untold: VecDeque<Concern>,
    /// The last that was found about the clock of each server.
    clocks: BTreeMap<String, ClockTrouble>,
}

impl ConcernWatch {
    /// Something was found.
    pub fn tell(&self, server: &str, trouble: impl Into<Trouble>) {
        let trouble = trouble.into();
        log(server, &trouble);
        let mut state = self.state();
        if let Trouble::Clock(trouble) = trouble {
            state.clocks.insert(server.to_owned(), trouble);
        }
        if state.untold.len() == UNTOLD_MAX {
            state.untold.pop_front();
        }
        state.untold.push_back(Concern { server: server.to_owned(), trouble });
        drop(state);
        self.told.notify_one();
    }

    /// Ends when there is something to tell. Dropping the future loses nothing.
    pub async fn news(&self) -> Vec<Concern> {
        loop {
            let told = self.told.notified();
            let news: Vec<Concern> = self.state().untold.drain(..).collect();
            if !news.is_empty() {
                return news;
            }
            told.await;
        }
    }

    /// The last that was found about each clock. Other settings can be looked at any time; that a
    /// clock was set cannot be seen later.
    pub fn last(&self) -> Vec<Concern> {
        let state = self.state();
        let concern = |(server, trouble): (&String, &ClockTrouble)| Concern {
            server: server.clone(),
            trouble: Trouble::Clock(*trouble),
        };
        state.clocks.iter().map(concern).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(server: &str, trouble: &Trouble) {
    match trouble {
        Trouble::Clock(ClockTrouble::Step { by }) => {
            tracing::warn!(server, %by, "a server's clock was set");
        }
        Trouble::Clock(ClockTrouble::Frozen { stood }) => {
            tracing::warn!(server, ?stood, "a server's clock stands still");
        }
        Trouble::Eviction { policy } => {
            tracing::warn!(server, policy, "a server may evict locks that are held");
        }
    }
}

/// When to look at the servers again. It is kept apart from whoever waits for it, because that
/// future is dropped and made anew with every renewal.
#[derive(Debug)]
pub struct Rounds {
    every: Duration,
    next: Mutex<Moment>,
}

impl Rounds {
    /// Rounds of which the first is due after the same while as every other.
    pub fn new(every: Duration) -> Self {
        Self { every, next: Mutex::new(SystemClock.now() + every) }
    }

    /// Ends when the next round is due, for one of those who wait.
    pub async fn due(&self) {
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

    fn frozen(ms: u64) -> Trouble {
        ClockTrouble::Frozen { stood: Duration::from_millis(ms) }.into()
    }

    #[tokio::test]
    async fn news_waits_for_whoever_asks_and_is_told_once() {
        let watch = ConcernWatch::default();
        watch.tell("one", frozen(1));
        watch.tell("one", frozen(2));
        let news: Vec<Trouble> = watch.news().await.into_iter().map(|news| news.trouble).collect();
        assert_eq!(news, [frozen(1), frozen(2)]);
        let mut next = Box::pin(watch.news());
        assert!(futures_util::poll!(&mut next).is_pending());
        watch.tell("two", frozen(3));
        assert_eq!(next.await, [Concern { server: "two".into(), trouble: frozen(3) }]);
        assert_eq!(watch.last().len(), 2, "the last word on each");
    }

    #[tokio::test]
    async fn news_that_nobody_asks_for_is_bounded() {
        let watch = ConcernWatch::default();
        for ms in 0..=UNTOLD_MAX as u64 {
            watch.tell("one", frozen(ms));
        }
        let news = watch.news().await;
        assert_eq!((news.len(), &news[0].trouble), (UNTOLD_MAX, &frozen(1)));
    }

    #[tokio::test]
    async fn what_can_be_looked_at_any_time_is_not_kept_for_later() {
        let watch = ConcernWatch::default();
        watch.tell("one", Trouble::Eviction { policy: "allkeys-lru".into() });
        assert_eq!((watch.news().await.len(), watch.last()), (1, Vec::new()));
    }

    #[tokio::test]
    async fn a_round_comes_although_whoever_waits_for_it_is_interrupted_again_and_again() {
        let rounds = Rounds::new(Duration::from_millis(20));
        while tokio::time::timeout(Duration::from_millis(1), rounds.due()).await.is_err() {}
        let again = Box::pin(rounds.due());
        assert!(futures_util::poll!(again).is_pending(), "and only once");
    }
}
