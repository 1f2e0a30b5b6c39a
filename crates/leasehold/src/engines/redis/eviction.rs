//! Whether a server began to evict what is held, although it did not when it was connected to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::engine::server_alert::{AlertKind, ServerAlert};
use crate::error::Result;

use super::doctor::About;
use super::link::{Links, lock};
use super::{Inner, Odd};

/// How often the servers' settings are looked at unless said otherwise. They are changed by hand,
/// so a minute is soon; and a look is one command that takes some ten microseconds.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What is known of each server: whether it may evict locks.
#[derive(Debug)]
pub(super) struct Evictions {
    /// Whether eviction was allowed, so that a server which evicts from the start is no news.
    allowed: bool,
    servers: Mutex<BTreeMap<String, bool>>,
}

impl Evictions {
    pub(super) fn new(allowed: bool) -> Self {
        Self { allowed, servers: Mutex::default() }
    }

    /// A server said what its policy is. Answers it if the server may evict locks by it, and could
    /// not before.
    pub(super) fn read(&self, server: &str, about: &About) -> Option<String> {
        let evicts = about.evicts_locks();
        let before = lock(&self.servers).insert(server.to_owned(), evicts);
        (evicts && !before.unwrap_or(self.allowed)).then(|| about.policy().to_owned())
    }
}

/// The question for the part of what a server says of itself in which its policy is.
pub(super) fn question() -> Cmd {
    let mut question = redis::cmd("INFO");
    question.arg("memory");
    question
}

/// Awaits what is found about the servers, and looks at them when it is time.
pub(super) async fn server_alerts(inner: &Arc<Inner>) -> Vec<ServerAlert> {
    loop {
        tokio::select! {
            biased;
            server_alerts = inner.concern_watch.news() => return server_alerts,
            () = inner.rounds.due() => {
                // Apart, because whoever awaits this drops it as soon as there is something to do.
                tokio::spawn(look(Arc::clone(inner)));
            }
        }
    }
}

async fn look(inner: Arc<Inner>) {
    let told = match policies(&inner.links, &inner.info.store).await {
        Ok(told) => told,
        // It may be a right that is missing. What cannot be known is not told.
        Err(error) => return tracing::debug!(%error, "the eviction policy was not told"),
    };
    for (server, about) in told {
        if let Some(policy) = inner.evictions.read(&server, &about) {
            inner.concern_watch.tell(&server, AlertKind::Eviction { policy });
        }
    }
}

/// What each server says of its memory. A server that is alone is called by the store's name.
async fn policies(links: &Links, store: &str) -> Result<Vec<(String, About)>> {
    let odd = || links.translate(&super::shape::unreachable("INFO gave an odd answer"));
    match links.run(&question()).await? {
        Value::Map(servers) => {
            let told = |(server, about): (Value, Value)| {
                let server = redis::from_redis_value::<String>(server).map_err(|_| odd())?;
                Ok((server, About::of(about).map_err(|Odd| odd())?))
            };
            servers.into_iter().map(told).collect()
        }
        about => Ok(vec![(store.to_owned(), About::of(about).map_err(|Odd| odd())?)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(policy: &str) -> About {
        let text = format!("# Memory\r\nmaxmemory_policy:{policy}\r\n");
        About::of(Value::BulkString(text.into_bytes())).unwrap_or_else(|Odd| panic!("{policy}"))
    }

    #[test]
    fn f62_a_policy_that_becomes_worse_is_told_once_and_again_when_it_does_again() {
        let evictions = Evictions::new(false);
        let mut told = Vec::new();
        for policy in ["noeviction", "allkeys-lru", "volatile-ttl", "noeviction", "volatile-lru"] {
            told.extend(evictions.read("one", &about(policy)));
        }
        assert_eq!(told, ["allkeys-lru", "volatile-lru"]);
        assert!(evictions.read("two", &about("allkeys-lru")).is_some(), "each server for itself");
    }

    #[test]
    fn f62_a_server_that_was_allowed_to_evict_from_the_start_is_no_news() {
        let evictions = Evictions::new(true);
        let told = ["allkeys-lru", "noeviction", "allkeys-lru"]
            .map(|policy| evictions.read("one", &about(policy)).is_some());
        assert_eq!(told, [false, false, true]);
    }
}
