//! Events of leases that end with their client, or after it.
//!
//! A watcher asks for each key that goes whether its lease lives. These tests read the events last,
//! so the watcher asks when all is over.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _};
use leasehold::engine::{Event, EventKind, Query};
use leasehold::{Fence, Released};

use super::support::*;

type Events = Pin<Box<dyn Stream<Item = leasehold::Result<Event>> + Send>>;

async fn next(events: &mut Events) -> (EventKind, Fence) {
    let event = soon("an event", events.next()).await.expect("it goes on").expect("an event");
    (event.kind, event.fence)
}

/// Removes what was left to end by itself.
async fn clear(server: &leasehold_testkit::Server) {
    for id in lease_ids(server) {
        ctl(&endpoint(server), &["lease", "revoke", &id]);
    }
    until_empty(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_sees_the_lease_of_a_closed_client_as_released() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut events = Box::pin(two.admin().watch(&Query::all()).await.expect("a watch")) as Events;
    let lease = one.mutex("held").ttl(LONG).lock().await.expect("free");
    let fence = lease.fence();
    soon("the close", one.close()).await.expect("an answer");
    assert!(claims(&server).is_empty());
    assert_eq!(next(&mut events).await, (EventKind::Granted, fence));
    assert_eq!(next(&mut events).await, (EventKind::Released, fence));
    drop(events);
    until_unwatched(&server).await;
    soon("the close", two.close()).await.expect("an answer");
    clear(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_sees_the_release_of_a_detached_claim_of_a_closed_client() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mut events = Box::pin(two.admin().watch(&Query::all()).await.expect("a watch")) as Events;
    let lease = one.mutex("left").ttl(LONG).lock().await.expect("free");
    let fence = lease.fence();
    let handle = lease.detach().await.expect("a handle");
    soon("the close", one.close()).await.expect("an answer");
    assert_eq!(two.release(&handle).await.expect("an answer"), Released::Released);
    assert!(claims(&server).is_empty());
    assert_eq!(next(&mut events).await, (EventKind::Granted, fence));
    assert_eq!(next(&mut events).await, (EventKind::Released, fence));
    drop(events);
    until_unwatched(&server).await;
    soon("the close", two.close()).await.expect("an answer");
    clear(&server).await;
}
