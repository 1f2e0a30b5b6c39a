//! Waiting for what must happen, with a limit that only a hanging test reaches.

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use leasehold::Client;
use tokio::time::Instant;

/// How long a single event may take: far more than it takes on a machine that does ten other
/// things.
pub const EVENT_MAX: Duration = Duration::from_secs(180);

/// How often a fact that has no event is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Awaits an event; panics when it does not come.
#[track_caller]
pub fn soon<T>(what: &str, event: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let event = tokio::time::timeout(EVENT_MAX, event).await;
        event.unwrap_or_else(|_| panic!("{place}: waited {EVENT_MAX:?} for {what}"))
    }
}

/// Looks at a fact until it is true; panics when it does not become true.
#[track_caller]
pub fn until(what: &str, fact: impl AsyncFn() -> bool) -> impl Future<Output = ()> {
    soon(what, async move {
        while !fact().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

/// Waits until no claim is in the line of `name`.
#[track_caller]
pub fn until_free<'a>(client: &'a Client, name: &'a str) -> impl Future<Output = ()> + 'a {
    until("the name to be free", async move || matches!(client.line(name).await, Ok(None)))
}

/// Waits until exactly `count` claims wait for `name`. Panics when the number of waiters has not
/// come closer for [`EVENT_MAX`].
#[track_caller]
pub fn until_waiting<'a>(
    client: &'a Client,
    name: &'a str,
    count: usize,
) -> impl Future<Output = ()> + 'a {
    let place = Location::caller();
    async move {
        let mut waiting = 0;
        let mut closest = usize::MAX;
        let mut closer_at = Instant::now();
        let mut failed = "none".to_owned();
        loop {
            let asked_at = Instant::now();
            match tokio::time::timeout(EVENT_MAX, client.line(name)).await {
                Ok(Ok(line)) => {
                    waiting = line.map_or(0, |line| line.waiting.len());
                    let missing = waiting.abs_diff(count);
                    if missing == 0 {
                        return;
                    }
                    if missing < closest {
                        closest = missing;
                        closer_at = Instant::now();
                    }
                }
                Ok(Err(error)) => failed = error.to_string(),
                Err(_) => failed = format!("no answer within {EVENT_MAX:?}"),
            }
            assert!(
                closer_at.elapsed() < EVENT_MAX,
                "{place}: {count} claims are to wait for `{name}`, {waiting} do, and the number \
                 has come no closer for {EVENT_MAX:?}; last error: {failed}"
            );
            // Showing a long line takes the store a while.
            tokio::time::sleep(asked_at.elapsed().max(LOOK_EVERY)).await;
        }
    }
}
