//! F05 to F07, F12, F14 to F16: faults of a holder while it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::clock::VirtualClock;
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::memory::Memory;
use leasehold::{Client, Error, LeaseState, LockOptions, LostCause, Name, Released, UnlessHeld};

use crate::support::{
    LONG, is_free, on_every_store, on_stores_that, soon, until, until_free, until_waiting,
};

#[tokio::test]
async fn f04_lease_is_lost_when_the_clock_jumps_past_its_end() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let ttl = Duration::from_secs(30);
    let lease = client.mutex("suspended").ttl(ttl).lock().await.expect("a lease");
    // A machine that sleeps runs no process, and its boot clock goes on.
    clock.advance(ttl - Duration::from_secs(1));
    assert!(lease.is_held(), "it slept for less than the ttl");
    clock.advance(ttl * 2);
    // The first question after waking, before any other thread could have run.
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.time_left(), Duration::ZERO);
    soon("the loss", lease.lost()).await;
    let other = memory.client().expect("a client");
    let next = soon("a grant", other.mutex("suspended").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
}

#[test]
fn f04_lease_in_any_store_is_lost_when_the_clock_jumps_past_its_end() {
    on_every_store(async |store| {
        let clock = VirtualClock::new();
        let client = store.client_with(Client::builder().clock(Arc::new(clock.clone())));
        let ttl = Duration::from_secs(1);
        let lease = client.mutex("suspended").ttl(ttl).lock().await.expect("a lease");
        assert!(lease.is_held());
        clock.advance(2 * ttl);
        assert_eq!(lease.state(), LeaseState::Lost, "before the store was asked anything");
        let other = store.client();
        let next = soon("a grant", other.mutex("suspended").lock()).await.expect("a lease");
        assert!(next.fence() > lease.fence());
    });
}

#[test]
fn f05_lease_is_kept_while_work_blocks_every_executor_thread() {
    on_every_store(async |store| {
        // Renewed early, so that a renewal may be late on a busy machine.
        let (client, _) = store.troubled(Client::builder().renew_at_percent(10));
        let other = store.client();
        let ttl = Duration::from_secs(3);
        let lease = client.mutex("blocked").ttl(ttl).lock().await.expect("a lease");
        let blockers: Vec<_> =
            (0..2).map(|_| tokio::spawn(async move { std::thread::sleep(2 * ttl) })).collect();
        // This thread drives the test itself, and is blocked with the two workers.
        std::thread::sleep(2 * ttl);
        // A renewal that is slow on a busy machine makes the lease uncertain, and it is still held.
        assert!(lease.is_held(), "{:?}", lease.state());
        assert!(
            other.mutex("blocked").try_lock().await.unless_held().expect("an answer").is_none()
        );
        for blocker in blockers {
            blocker.await.expect("the blocker slept");
        }
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    });
}

#[test]
fn f06_lease_is_kept_while_each_third_renewal_fails() {
    on_every_store(async |store| {
        let (client, chaos) = store.troubled(Client::builder().renew_at_percent(10));
        let other = store.client();
        for _ in 0..4 {
            chaos.after(2, Verb::Renew, Trouble::Refuse, 1);
        }
        let mutex = client.mutex("flaky").ttl(Duration::from_secs(3));
        let lease = mutex.lock().await.expect("a lease");
        until("twelve renewals", async || {
            assert!(lease.is_held());
            chaos.calls(Verb::Renew) >= 13
        })
        .await;
        assert!(other.mutex("flaky").try_lock().await.unless_held().expect("an answer").is_none());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        assert_eq!(client.stats().lost, 0);
    });
}

#[test]
fn f07_hung_work_is_stopped_and_its_lease_given_back_at_hold_at_most() {
    on_every_store(async |store| {
        let (client, other) = (store.client(), store.client());
        let span = Duration::from_millis(150);
        let mutex = client.mutex("hung").ttl(LONG).options(LockOptions::new().hold_at_most(span));
        let begun = Instant::now();
        let work = soon(
            "the end of the work",
            mutex.with(async |_| {
                std::future::pending::<()>().await;
            }),
        );
        let error = work.await.expect_err("the work never ends by itself");
        assert!(matches!(error, Error::Lost { cause: LostCause::HoldAtMost, .. }), "{error:?}");
        assert!(begun.elapsed() >= span);
        until_free(&other, "hung").await;
        assert_eq!(client.stats().active, 0);
    });
}

#[test]
fn f12_panic_releases_goes_on_and_marks_the_name() {
    on_every_store(async |store| {
        let (client, other) = (store.client(), store.client());
        let name = Name::new("panic").expect("a good name");
        let panicked = tokio::spawn({
            let client = client.clone();
            async move { client.with("panic", async |_| panic!("on purpose")).await }
        });
        let error = panicked.await.expect_err("the panic goes on");
        let message = error.into_panic();
        assert_eq!(message.downcast_ref::<&str>(), Some(&"on purpose"));
        until_free(&other, "panic").await;
        let lease = client.mutex("panic").lock().await.expect("a lease");
        assert!(lease.is_poisoned());
        client.clear_poison(&name);
        assert!(!lease.is_poisoned());
        lease.release().await.expect("an answer");
        let lease = other.mutex("panic").lock().await.expect("a lease");
        assert!(!lease.is_poisoned(), "the mark is the client's own");
        drop(lease);
        let lease = client.mutex("panic").lock().await.expect("a lease");
        assert!(!lease.is_poisoned(), "a plain drop is no panic");
    });
}

#[test]
fn f14_second_release_and_strange_release_leave_the_new_holder_alone() {
    on_stores_that(
        |can| can.detach,
        async |store| {
            let (one, two, three) = (store.client(), store.client(), store.client());
            let lease = one.mutex("twice").ttl(LONG).lock().await.expect("a lease");
            let again = two.adopt(&lease.handle()).await.expect("the same lease");
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            let next =
                three.mutex("twice").ttl(LONG).try_lock().await.unless_held().expect("an answer");
            let next = next.expect("it is free");
            let taken = Released::TakenBy(three.holder().clone());
            assert_eq!(again.release().await.expect("an answer"), taken);
            assert!(!is_free(&one, "twice").await);
            assert!(next.is_held());
            assert_eq!(next.release().await.expect("an answer"), Released::Released);
        },
    );
}

#[test]
fn f15_two_tasks_of_one_client_wait_for_each_other() {
    on_every_store(async |store| {
        let client = store.client();
        let inside = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (client, inside) = (client.clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..25 {
                        let work = client.with("tasks", async |_| {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                        work.await.expect("the work is done");
                    }
                })
            })
            .collect();
        for task in tasks {
            soon("the end of a task", task).await.expect("nobody met anybody");
        }
        assert_eq!(client.stats().acquired, 100);
    });
}

#[test]
fn f16_same_label_is_not_the_same_holder() {
    on_every_store(async |store| {
        let label = "web-1:1";
        let one = store.client_with(Client::builder().label(label));
        let two = store.client_with(Client::builder().label(label));
        let lease = one.mutex("label").ttl(LONG).lock().await.expect("a lease");
        let waiter = tokio::spawn({
            let mutex = two.mutex("label").ttl(LONG);
            async move { mutex.lock().await }
        });
        until_waiting(&one, "label", 1).await;
        let line = one.line("label").await.expect("an answer").expect("two are in line");
        assert_eq!(line.held[0].holder.label(), line.waiting[0].holder.label());
        assert_ne!(line.held[0].holder, line.waiting[0].holder);
        let fence = lease.fence();
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let next = soon("a grant", waiter).await.expect("no panic").expect("a lease");
        assert!(next.fence() > fence);
    });
}

#[tokio::test]
async fn lease_after_a_long_wait_behind_its_own_client_is_fresh() {
    let (memory, clock) = Memory::virtual_time();
    let (one, two) = (memory.client().expect("a client"), memory.client().expect("a client"));
    let hours = Duration::from_secs(10 * 3_600);
    let held = one.mutex("entrance").ttl(hours).lock().await.expect("a lease");
    let mutex = two.mutex("entrance").options(LockOptions::new().reentrant());
    let enter = || {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock().await })
    };
    let in_line = enter();
    until_waiting(&one, "entrance", 1).await;
    let behind = enter();
    // It has asked for the entry lock once it was polled, which the next yields ensure.
    tokio::task::yield_now().await;
    clock.advance(hours / 10);
    in_line.abort();
    drop(held);
    let lease = soon("a grant", behind).await.expect("no panic").expect("a lease");
    assert_eq!(lease.state(), LeaseState::Held);
}
