//! F11, and the blocking interface: leases without a runtime.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Client, LeaseState, LockOptions, Released, UnlessHeld, blocking};

use crate::support::{LONG, Store, on_every_store, runtime, stores, until, until_free};

/// Leases on an engine that answers at once, and on one that does not.
async fn leases(store: &Store) -> Vec<leasehold::Lease> {
    let (direct, (distant, _chaos)) = (store.client(), store.troubled(Client::builder()));
    vec![
        direct.mutex("direct").ttl(LONG).lock().await.expect("a lease"),
        distant.mutex("distant").ttl(LONG).lock().await.expect("a lease"),
    ]
}

async fn until_both_free(store: &Store) {
    let client = store.client();
    until_free(&client, "direct").await;
    until_free(&client, "distant").await;
}

#[test]
fn f11_lease_dropped_after_the_runtime_is_released() {
    for store in stores() {
        let gone = runtime();
        let leases = gone.block_on(leases(&store));
        drop(gone);
        drop(leases);
        runtime().block_on(until_both_free(&store));
    }
}

#[test]
fn f11_lease_dropped_in_a_plain_thread_is_released() {
    on_every_store(async |store| {
        let leases = leases(&store).await;
        std::thread::spawn(move || drop(leases)).join().expect("a drop never panics");
        until_both_free(&store).await;
    });
}

#[test]
fn f11_wait_dropped_after_the_runtime_leaves_the_line() {
    for store in stores() {
        let gone = runtime();
        let holder = store.client();
        let lease = gone.block_on(holder.mutex("waited").ttl(LONG).lock()).expect("a lease");
        let (waiter, _chaos) = store.troubled(Client::builder());
        let mutex = waiter.mutex("waited").ttl(LONG);
        let waiting = gone.spawn(async move { mutex.lock().await });
        gone.block_on(crate::support::until_waiting(&holder, "waited", 1));
        // The runtime drops the task, and with it the waiting future.
        drop(gone);
        drop(waiting);
        runtime().block_on(async {
            crate::support::until_waiting(&holder, "waited", 0).await;
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        });
    }
}

#[test]
fn f11_lease_dropped_without_a_runtime_is_released_when_the_store_is_back() {
    for store in stores() {
        let gone = runtime();
        let (client, chaos) = store.troubled(Client::builder());
        let lease = gone.block_on(client.mutex("back").ttl(LONG).lock()).expect("a lease");
        drop(gone);
        chaos.next(Verb::Release, Trouble::Refuse, 3);
        drop((lease, client));
        runtime().block_on(async {
            until("four releases", async || chaos.calls(Verb::Release) >= 4).await;
            until_free(&store.client(), "back").await;
        });
    }
}

/// The addresses of empty stores, and the guards of their folders.
fn urls() -> Vec<(String, Option<tempfile::TempDir>)> {
    let memory = format!("memory:blocking-{}", rand::random::<u64>());
    let mut urls = vec![(memory, None)];
    #[cfg(feature = "etcd")]
    urls.push((crate::support::etcd_url(), None));
    #[cfg(feature = "postgres")]
    urls.extend([(crate::support::postgres_url(), None), (crate::support::advisory_url(), None)]);
    #[cfg(feature = "redlock")]
    {
        let (redis, redlock) = crate::support::redis_urls();
        urls.extend([(redis, None), (redlock, None)]);
    }
    #[cfg(feature = "zookeeper")]
    urls.push((crate::support::zookeeper_url(), None));
    if cfg!(feature = "sqlite") {
        let folder = tempfile::tempdir().expect("a folder for the file");
        urls.push((format!("sqlite:{}", folder.path().join("locks.db").display()), Some(folder)));
    }
    urls
}

fn contend(clients: Vec<blocking::Client>) {
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for client in clients {
            let inside = &inside;
            scope.spawn(move || {
                for _ in 0..50 {
                    let lease = client.mutex("threads").ttl(LONG).lock().expect("a lease");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(lease.release().expect("an answer"), Released::Released);
                }
            });
        }
    });
}

#[test]
fn threads_with_one_blocking_client_exclude_each_other() {
    for (url, _folder) in urls() {
        let client = blocking::connect(&url).expect("a client");
        contend(vec![client.clone(), client.clone(), client]);
    }
}

#[test]
fn threads_with_blocking_clients_of_their_own_exclude_each_other() {
    for (url, _folder) in urls() {
        // Made first, so that a store in memory lives as long as all of them.
        let clients = (0..3).map(|_| blocking::connect(&url).expect("a client")).collect();
        contend(clients);
    }
}

#[test]
fn blocking_calls_do_what_their_namesakes_do() {
    for (url, _folder) in urls() {
        let one = blocking::connect(&url).expect("a client");
        let two = blocking::connect(&url).expect("a client");
        let lease = one.mutex("calls").ttl(LONG).note("by a thread").lock().expect("a lease");
        assert_eq!((lease.name().as_str(), lease.state()), ("calls", LeaseState::Held));
        assert!(two.mutex("calls").try_lock().unless_held().expect("an answer").is_none());
        // A busy store has no answer within a quarter of a second now and then.
        let span = Duration::from_millis(30);
        let mut tries = (0..20).map(|_| two.mutex("calls").lock_within(span).unless_held());
        let answered = tries.find_map(Result::ok).expect("an answer");
        assert!(answered.is_none());
        lease.extend(LONG * 2).expect("extended");
        assert!(lease.is_held() && lease.time_left() > LONG);
        // An advisory lock ends with its connection, and no client can adopt it.
        if !url.starts_with("postgres+advisory:") {
            let adopted = two.adopt(&lease.handle()).expect("the same lease");
            assert_eq!(adopted.fence(), lease.fence());
            assert_eq!(adopted.release().expect("an answer"), Released::Released);
            drop(lease);
        } else {
            assert_eq!(lease.release().expect("an answer"), Released::Released);
        }
        let short = Duration::from_millis(200);
        let lease = one
            .mutex("calls")
            .ttl(short)
            .options(LockOptions::new().renew(false))
            .lock()
            .expect("a lease");
        assert_eq!(lease.lost(), leasehold::LostCause::Expired);
        one.close().expect("closed");
        assert!(one.mutex("calls").lock().is_err());
    }
}
