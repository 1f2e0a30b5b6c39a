//! F08 to F10: a release races a renewal, and tests drop futures at every possible point.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::FutureExt;
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Client, Lease, LockOptions, Released};
use tokio::sync::Notify;

use crate::support::{
    Hooks, LONG, is_free, on_every_store, on_stores_that, soon, until, until_free, until_waiting,
};

/// More points than an acquire or release on these engines has; a future that is done earlier ends
/// the count.
const POINTS_MAX: usize = 24;

/// Pending once before and once after each verb, like an exchange over a network.
fn pending_points() -> Hooks {
    Hooks::around(|_| {
        let mut yielded = false;
        poll_fn(move |context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(Ok(()));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .boxed()
    })
}

/// Polls a future `count` times and drops it; returns whether it was done by then.
fn poll_and_drop<T>(count: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..count {
        if let Some(value) = future.as_mut().now_or_never() {
            return Some(value);
        }
    }
    None
}

#[test]
fn f08_release_during_a_renewal_leaves_nothing_whichever_is_first() {
    on_every_store(async |store| {
        for trouble in [Trouble::HangAfter, Trouble::Hang] {
            let (client, chaos) = store.troubled(Client::builder().renew_at_percent(10));
            let other = store.client();
            chaos.next(Verb::Renew, trouble, 1);
            let mutex = client.mutex("race").ttl(Duration::from_secs(4));
            let lease = mutex.lock().await.expect("a lease");
            soon("a renewal under way", chaos.hanging(1)).await;
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            assert!(is_free(&other, "race").await);
            chaos.heal();
            client.close().await.expect("the keeper read the late answer");
            assert!(is_free(&other, "race").await, "{trouble:?} brought it back");
            assert_eq!((client.stats().lost, client.stats().released), (0, 1));
        }
    });
}

#[test]
fn f08_renewal_that_arrives_after_the_release_brings_nothing_back() {
    on_every_store(async |store| {
        let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, gate) = (Arc::clone(&arrived), Arc::clone(&go_on));
        let hooks = Hooks::before(move |verb| {
            let (tell, gate) = (Arc::clone(&tell), Arc::clone(&gate));
            async move {
                if verb == Verb::Renew {
                    tell.notify_one();
                    gate.notified().await;
                }
                Ok(())
            }
            .boxed()
        });
        let builder = Client::builder().renew_at_percent(10);
        let client = builder.engine(store.hooked(hooks)).expect("a client");
        let other = store.client();
        let mutex = client.mutex("late").ttl(Duration::from_secs(4));
        let lease = mutex.lock().await.expect("a lease");
        soon("a renewal on its way", arrived.notified()).await;
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        go_on.notify_one();
        client.close().await.expect("the keeper read the late answer");
        assert!(is_free(&other, "late").await);
        assert_eq!(client.stats().lost, 0);
    });
}

#[test]
fn f08_late_renewal_does_not_shorten_what_is_to_stay_closed() {
    late_renewal_meets(async |lease| drop(lease.release().await));
}

#[test]
fn f08_late_renewal_does_not_shorten_what_was_dropped_and_is_to_stay_closed() {
    late_renewal_meets(async |lease| drop(lease));
}

/// Gives back a lease whose name is to stay closed, while a renewal of it is held up.
fn late_renewal_meets(give_back: impl AsyncFn(Lease) + Sync) {
    on_stores_that(
        |can| can.detach,
        async |store| {
            let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let (tell, gate) = (Arc::clone(&arrived), Arc::clone(&go_on));
            let (closed, renewed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let mut hooks = Hooks::before(move |verb| {
                let (tell, gate) = (Arc::clone(&tell), Arc::clone(&gate));
                async move {
                    if verb == Verb::Renew {
                        tell.notify_one();
                        gate.notified().await;
                    }
                    Ok(())
                }
                .boxed()
            });
            let (tell_closed, tell_renewed) = (Arc::clone(&closed), Arc::clone(&renewed));
            hooks.after = Some(Arc::new(move |verb| {
                match verb {
                    Verb::Release => tell_closed.notify_one(),
                    Verb::Renew => tell_renewed.notify_one(),
                    _ => {}
                }
                std::future::ready(Ok(())).boxed()
            }));
            let builder = Client::builder().renew_at_percent(10);
            let client = builder.engine(store.hooked(hooks)).expect("a client");
            let mutex = client
                .mutex("kept")
                .ttl(Duration::from_secs(4))
                .options(LockOptions::new().hold_at_least(LONG));
            let lease = mutex.lock().await.expect("a lease");
            soon("a renewal in flight", arrived.notified()).await;
            soon("the release", give_back(lease)).await;
            soon("the closed name", closed.notified()).await;
            go_on.notify_one();
            soon("the late renewal", renewed.notified()).await;
            let line = store.client().line("kept").await.expect("an answer").expect("it is kept");
            let left = line.held[0].remaining;
            assert!(left > LONG / 2, "{left:?} of {LONG:?}");
            client.close().await.expect("closed");
        },
    );
}

#[test]
fn f08_release_at_random_points_of_renewal_leaves_nothing() {
    on_every_store(async |store| {
        let hooks = Hooks::around(|_| {
            let pause = Duration::from_micros(rand::random_range(0..3_000));
            tokio::time::sleep(pause).map(Ok).boxed()
        });
        let builder = Client::builder().renew_at_percent(10);
        let client = builder.engine(store.hooked(hooks)).expect("a client");
        let other = store.client();
        // Renewed every 40 ms or so, released within the first two renewals.
        let mutex = client.mutex("random").ttl(Duration::from_millis(400));
        for round in 0..40 {
            let lease = soon("a lease", mutex.lock()).await.expect("a lease");
            let pause = Duration::from_micros(rand::random_range(0..90_000));
            tokio::time::sleep(pause).await;
            lease.release().await.expect("an answer");
            assert!(is_free(&other, "random").await, "round {round} left something");
        }
        client.close().await.expect("nothing hangs");
        assert!(is_free(&other, "random").await);
    });
}

#[test]
fn f09_acquire_dropped_at_any_point_leaves_nothing() {
    on_every_store(async |store| {
        let client = Client::builder().engine(store.hooked(pending_points())).expect("a client");
        let other = store.client();
        let mut done = false;
        for points in 0..POINTS_MAX {
            let name = format!("free:{points}");
            let mutex = client.mutex(&name).ttl(LONG);
            let granted = poll_and_drop(points, mutex.lock());
            done |= granted.is_some();
            drop(granted);
            until_free(&other, &name).await;
        }
        assert!(done || store.is_remote(), "more points than {POINTS_MAX}");
        until("nothing active", async || client.stats().active == 0).await;
        client.close().await.expect("nothing hangs");
    });
}

#[test]
fn f09_wait_dropped_at_any_point_leaves_the_line() {
    on_every_store(async |store| {
        let client = Client::builder().engine(store.hooked(pending_points())).expect("a client");
        let other = store.client();
        let lease = other.mutex("held").ttl(LONG).lock().await.expect("a lease");
        for points in 0..POINTS_MAX {
            let mutex = client.mutex("held").ttl(LONG);
            assert!(poll_and_drop(points, mutex.lock()).is_none(), "it is held");
            until_waiting(&other, "held", 0).await;
            let mutex = client.mutex("held").ttl(LONG);
            let tried = poll_and_drop(points, mutex.try_lock());
            assert!(!matches!(tried, Some(Ok(_))), "it is held");
            until_waiting(&other, "held", 0).await;
        }
        assert_eq!(client.stats().waiting, 0);
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        until_free(&other, "held").await;
    });
}

#[test]
fn f09_acquire_timed_out_within_two_round_trips_leaves_nothing() {
    on_every_store(async |store| {
        let hooks = Hooks::around(|_| tokio::time::sleep(Duration::from_millis(1)).map(Ok).boxed());
        let client = Client::builder().engine(store.hooked(hooks)).expect("a client");
        let other = store.client();
        for micros in (0..5_000).step_by(100) {
            let mutex = client.mutex("timeout").ttl(LONG);
            // Granted or not, the future and its lease are dropped at once.
            drop(tokio::time::timeout(Duration::from_micros(micros), mutex.lock()).await);
        }
        until_free(&other, "timeout").await;
        client.close().await.expect("nothing hangs");
        assert!(is_free(&other, "timeout").await);
    });
}

#[test]
fn f10_release_dropped_at_any_point_is_finished() {
    on_every_store(async |store| {
        let client = Client::builder().engine(store.hooked(pending_points())).expect("a client");
        let other = store.client();
        let mut done = false;
        for points in 0..POINTS_MAX {
            let name = format!("release:{points}");
            let lease = client.mutex(&name).ttl(LONG).lock().await.expect("a lease");
            done |= poll_and_drop(points, lease.release()).is_some();
            until_free(&other, &name).await;
        }
        assert!(done || store.is_remote(), "more points than {POINTS_MAX}");
        assert_eq!(client.stats().active, 0);
    });
}
