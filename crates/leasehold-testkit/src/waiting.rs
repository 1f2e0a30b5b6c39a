//! Waiting for what must happen, with a limit that only a test which hangs reaches.

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use leasehold::Client;

/// How long a single event may take: far more than it takes on a machine that does ten other
/// things.
pub const EVENT_MAX: Duration = Duration::from_secs(30);

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

/// Waits until nobody is in the line of `name`.
#[track_caller]
pub fn until_free<'a>(client: &'a Client, name: &'a str) -> impl Future<Output = ()> + 'a {
    until("the name to be free", async move || matches!(client.show(name).await, Ok(None)))
}

/// Waits until exactly `count` claims wait for `name`.
#[track_caller]
pub fn until_waiting<'a>(
    client: &'a Client,
    name: &'a str,
    count: usize,
) -> impl Future<Output = ()> + 'a {
    until("the claims that wait", async move || {
        let line = client.show(name).await.ok().flatten();
        line.map_or(0, |line| line.waiting.len()) == count
    })
}
