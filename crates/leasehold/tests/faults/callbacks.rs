//! The callbacks of a lease, and leases that their client gives back.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leasehold::memory::Memory;
use leasehold::{Client, Lease, LeaseState, LockOptions, LostCause, Name, Released, UnlessHeld};

use crate::support::{LONG, on_every_store, soon, until, until_free, until_waiting};

const TTL: Duration = Duration::from_secs(30);

/// The causes that a lease gave for its losses.
type Losses = Arc<Mutex<Vec<LostCause>>>;

fn losses_of(lease: &Lease) -> Losses {
    let losses = Losses::default();
    let told = Arc::clone(&losses);
    lease.on_lost(move |cause| told.lock().expect("no panic").push(cause.clone()));
    losses
}

async fn until_called_with(losses: &Losses, causes: &[LostCause]) {
    until("the callback", async || *losses.lock().expect("no panic") == causes).await;
}

#[tokio::test]
async fn holder_is_called_once_when_its_lease_is_lost() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let lease = client
        .mutex("lost")
        .ttl(TTL)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("a lease");
    let losses = losses_of(&lease);
    clock.advance(TTL * 2);
    until_called_with(&losses, &[LostCause::Expired]).await;
    drop(lease.release().await.expect("an answer"));
    assert_eq!(losses.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn holder_that_asks_after_the_loss_is_called_at_once() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let lease = client
        .mutex("late")
        .ttl(TTL)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("a lease");
    clock.advance(TTL * 2);
    let losses = losses_of(&lease);
    assert_eq!(*losses.lock().expect("no panic"), [LostCause::Expired]);
}

#[tokio::test]
async fn holder_that_gives_its_lease_back_is_not_called() {
    let memory = Memory::new();
    let client = memory.client().expect("a client");
    let [released, dropped] = ["released", "dropped"].map(|name| client.mutex(name).ttl(LONG));
    let released = released.lock().await.expect("a lease");
    let dropped = dropped.lock().await.expect("a lease");
    let losses = [losses_of(&released), losses_of(&dropped)];
    released.release().await.expect("an answer");
    drop(dropped);
    client.close().await.expect("closed");
    assert!(losses.iter().all(|losses| losses.lock().expect("no panic").is_empty()));
}

#[tokio::test]
async fn holder_is_called_after_each_renewal() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let lease = client.mutex("renewed").ttl(TTL).lock().await.expect("a lease");
    let (told, mut renewed) = tokio::sync::mpsc::unbounded_channel();
    lease.on_renewed(move |left| told.send(left).expect("it is read"));
    for _ in 0..3 {
        clock.advance(TTL * 7 / 10);
        let left = soon("a renewal", renewed.recv()).await.expect("a span");
        assert!(left > TTL * 9 / 10 && left < TTL, "{left:?}");
        assert_eq!(lease.state(), LeaseState::Held);
    }
}

#[tokio::test]
async fn callback_that_panics_costs_no_other_lease() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let kept = client.mutex("kept").ttl(TTL).lock().await.expect("a lease");
    let lost = client.mutex("gone").ttl(TTL).lock().await.expect("a lease");
    lost.on_lost(|_| panic!("on purpose"));
    memory.expire_now(&Name::new("gone").expect("a name"));
    for _ in 0..3 {
        let before = kept.deadline();
        clock.advance(TTL * 7 / 10);
        until("a renewal", async || kept.deadline() > before).await;
    }
    assert!(!lost.is_held() && kept.is_held());
}

#[tokio::test]
async fn callback_may_drop_leases() {
    let memory = Memory::new();
    let client = memory.client().expect("a client");
    let other = client.mutex("other").ttl(LONG).lock().await.expect("a lease");
    let lease = client.mutex("one").ttl(LONG).lock().await.expect("a lease");
    lease.on_lost(move |_| drop(other));
    soon("the release", client.release_all()).await.expect("given back");
    until_free(&memory.client().expect("a client"), "other").await;
}

#[tokio::test]
async fn lease_knows_when_it_was_acquired() {
    let (memory, clock) = Memory::virtual_time();
    let client = memory.client().expect("a client");
    let lease = client
        .mutex("acquired")
        .ttl(TTL)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("a lease");
    clock.advance(TTL / 2);
    let acquired_at = lease.acquired_at();
    let age = SystemTime::now().duration_since(acquired_at).expect("in the past");
    assert!(age >= TTL / 2 && age < TTL, "{age:?}");
}

#[test]
fn client_gives_back_all_its_leases_and_can_be_used_on() {
    on_every_store(async |store| {
        let (client, other) = (store.client(), store.client());
        let mut leases = Vec::new();
        for index in 0..5 {
            let mutex = client.mutex(format!("all:{index}")).ttl(LONG);
            leases.push(mutex.lock().await.expect("a lease"));
        }
        let held = other.mutex("all:others").ttl(LONG).lock().await.expect("a lease");
        let waits = client.mutex("all:others").ttl(LONG);
        let waiter = tokio::spawn(async move { waits.lock().await });
        until_waiting(&other, "all:others", 1).await;
        let losses = losses_of(&leases[0]);
        let released = soon("the release", client.release_all()).await.expect("an answer");
        assert_eq!(released, leases.len());
        for lease in &leases {
            let line = other.line(lease.name()).await.expect("an answer");
            assert!(line.is_none(), "the store knows: {line:?}");
            assert_eq!(lease.lost().await, LostCause::Released);
        }
        until_called_with(&losses, &[LostCause::Released]).await;
        let first = leases.remove(0);
        let name = first.name().clone();
        assert_eq!(first.release().await.expect("an answer"), Released::Released);
        let again =
            client.mutex(&name).ttl(LONG).try_lock().await.unless_held().expect("an answer");
        drop(leases);
        assert!(again.expect("it is free").is_held(), "old leases give back nothing new");
        assert_eq!(client.release_all().await.expect("an answer"), 0);
        held.release().await.expect("an answer");
        let lease = soon("a grant", waiter).await.expect("no panic").expect("a lease");
        assert!(lease.is_held(), "a claim that waits stays in line");
        drop(lease);
        until_free(&other, "all:others").await;
    });
}

#[tokio::test]
async fn closed_client_tells_its_holders() {
    let memory = Memory::new();
    let client: Client = memory.client().expect("a client");
    let lease = client.mutex("closed").ttl(LONG).lock().await.expect("a lease");
    let losses = losses_of(&lease);
    client.close().await.expect("closed");
    assert_eq!(*losses.lock().expect("no panic"), [LostCause::Closed]);
}
