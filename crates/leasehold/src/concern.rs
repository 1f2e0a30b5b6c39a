//! What an engine found about the clocks of its store, kept until the client asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::remote::ClockTrouble;

/// The most that is kept for a client who does not ask. The oldest is forgotten first: it was
/// logged, and the last word on each server stays.
const UNTOLD_MAX: usize = 64;

/// Something was found about the clock of a server that ends claims by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClockNews {
    /// Which server, without credentials.
    pub server: String,
    /// What.
    pub trouble: ClockTrouble,
}

/// News of clocks, on their way from an engine to its client.
#[derive(Debug, Default)]
pub struct ClockWatch {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    untold: VecDeque<ClockNews>,
    /// The last that was found about each server.
    last: BTreeMap<String, ClockTrouble>,
}

impl ClockWatch {
    /// Something was found.
    pub fn tell(&self, server: &str, trouble: ClockTrouble) {
        match trouble {
            ClockTrouble::Step { by } => tracing::warn!(server, %by, "a server's clock was set"),
            ClockTrouble::Frozen { stood } => {
                tracing::warn!(server, ?stood, "a server's clock stands still");
            }
        }
        let mut state = self.state();
        state.last.insert(server.to_owned(), trouble);
        if state.untold.len() == UNTOLD_MAX {
            state.untold.pop_front();
        }
        state.untold.push_back(ClockNews { server: server.to_owned(), trouble });
        drop(state);
        self.told.notify_one();
    }

    /// Ends when there is news. Dropping the future loses nothing.
    pub async fn news(&self) -> Vec<ClockNews> {
        loop {
            let told = self.told.notified();
            let news: Vec<ClockNews> = self.state().untold.drain(..).collect();
            if !news.is_empty() {
                return news;
            }
            told.await;
        }
    }

    /// The last that was found about each server.
    pub fn last(&self) -> Vec<ClockNews> {
        let state = self.state();
        let news = |(server, trouble): (&String, &ClockTrouble)| ClockNews {
            server: server.clone(),
            trouble: *trouble,
        };
        state.last.iter().map(news).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frozen(ms: u64) -> ClockTrouble {
        ClockTrouble::Frozen { stood: Duration::from_millis(ms) }
    }

    #[tokio::test]
    async fn news_waits_for_whoever_asks_and_is_told_once() {
        let watch = ClockWatch::default();
        watch.tell("one", frozen(1));
        watch.tell("one", frozen(2));
        let news = watch.news().await;
        assert_eq!(
            news.iter().map(|news| news.trouble).collect::<Vec<_>>(),
            [frozen(1), frozen(2)]
        );
        let mut next = Box::pin(watch.news());
        assert!(futures_util::poll!(&mut next).is_pending());
        watch.tell("two", frozen(3));
        assert_eq!(next.await, [ClockNews { server: "two".into(), trouble: frozen(3) }]);
        assert_eq!(watch.last().len(), 2, "the last word on each");
    }

    #[tokio::test]
    async fn news_that_nobody_asks_for_is_bounded() {
        let watch = ClockWatch::default();
        for ms in 0..=UNTOLD_MAX as u64 {
            watch.tell("one", frozen(ms));
        }
        let news = watch.news().await;
        assert_eq!((news.len(), news[0].trouble), (UNTOLD_MAX, frozen(1)));
    }
}
