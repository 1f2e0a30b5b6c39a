//! Servers that are away for longer than the patience of waiters, and come back before the sessions
//! end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use leasehold::{Client, Lease};

use super::support::*;

const CLIENTS: usize = 10;
const RESTARTS: usize = 2;
const TTL: Duration = Duration::from_secs(2);
/// Longer than the ttl. A session lasts half as long again, and starts again with the server.
const OUTAGE: Duration = Duration::from_millis(2_500);

/// The resource: the lease that is inside, and the faults it saw.
#[derive(Debug, Default)]
struct Resource {
    stop: AtomicBool,
    entered: AtomicUsize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    /// The fence of the lease that is inside, and until when the lease is valid.
    lease: Option<(u64, Moment)>,
    greatest: u64,
    faults: Vec<String>,
}

impl Resource {
    fn enter(&self, lease: &Lease) {
        let mut inside = self.inside.lock().expect("no panic");
        let (fence, now) = (lease.fence(), SystemClock.now());
        if let Some((other, _)) = inside.lease.filter(|(_, until)| *until > now) {
            inside.faults.push(format!("{fence} is beside {other}"));
        }
        let greatest = inside.greatest;
        if fence <= greatest {
            inside.faults.push(format!("{fence} comes after {greatest}"));
        }
        inside.greatest = greatest.max(fence.as_u64());
        inside.lease = Some((fence.as_u64(), lease.deadline()));
        drop(inside);
        self.entered.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self, lease: &Lease) {
        let mut inside = self.inside.lock().expect("no panic");
        if inside.lease.is_some_and(|(fence, _)| lease.fence() == fence) {
            inside.lease = None;
        }
    }

    async fn is_used(&self, times: usize) {
        let before = self.entered.load(Ordering::SeqCst);
        until("more grants", async || self.entered.load(Ordering::SeqCst) >= before + times).await;
    }
}

/// Takes the lock again and again, whatever happens to the servers.
async fn work(client: Client, resource: Arc<Resource>) -> Client {
    let mutex = client.mutex("restarted").ttl(TTL);
    while !resource.stop.load(Ordering::SeqCst) {
        let Ok(lease) = mutex.lock().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        resource.enter(&lease);
        tokio::time::sleep(Duration::from_millis(50)).await;
        resource.leave(&lease);
        // If the release does not reach the store, the keeper gives the lease back.
        let _unheard = lease.release().await;
    }
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_server_that_was_away_for_longer_than_their_patience_come_in_one_by_one() {
    let server = server().await;
    let resource = Arc::new(Resource::default());
    let mut working = Vec::new();
    for _ in 0..CLIENTS {
        let client = client(server.url()).await;
        working.push(tokio::spawn(work(client, Arc::clone(&resource))));
    }
    for _ in 0..RESTARTS {
        resource.is_used(CLIENTS).await;
        server.kill().expect("it is killed");
        tokio::time::sleep(OUTAGE).await;
        server.restart().await.expect("it starts");
        resource.is_used(CLIENTS * 2).await;
    }
    resource.stop.store(true, Ordering::SeqCst);
    let mut clients = Vec::new();
    for worker in working {
        clients.push(soon("the end of its work", worker).await.expect("no panic"));
    }
    let faults = std::mem::take(&mut resource.inside.lock().expect("no panic").faults);
    assert!(faults.is_empty(), "{faults:?}");
    leaves_nothing(&server, clients).await;
}

/// A server that was away gives each session its whole time again, with every claim on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_on_a_session_that_its_client_gave_up_does_not_block_the_name() {
    const TTL: Duration = Duration::from_secs(3);
    // A session for this ttl has 4.6 s, and a client gives one up after twice that.
    const OUTAGE: Duration = Duration::from_secs(11);
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("given-up").ttl(TTL).lock().await.expect("free");
    let mut waiter = Waiter::start(client.request("given-up").ttl(TTL));
    until_waiting(&client, "given-up", 1).await;
    server.kill().expect("it is killed");
    soon("the loss", lease.lost()).await;
    drop(lease);
    tokio::time::sleep(OUTAGE).await;
    server.restart().await.expect("it starts");
    let next = waiter.granted().await;
    assert!(next.is_held());
    next.release().await.expect("an answer");
    leaves_nothing(&server, [client]).await;
}
