//! Deadlock detection above the engines: its period, tasks, and clients apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::claim::{Claim, Holder};
use leasehold::engine::{Engine, Kept, Notice, Wait, WaitNotices};
use leasehold::error::Invalid;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::memory::Memory;
use leasehold::{Client, Error, Lease, Result, UnlessHeld};
use leasehold_testkit::bare;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

use crate::support::{Hook, Hooks, LONG, Store, soon, until, until_waiting};

const PERIOD: Duration = Duration::from_millis(50);

fn looker(memory: &Memory) -> (Client, Chaos) {
    let chaos = Chaos::default();
    let engine = chaos.trouble(memory.clone());
    let client = Client::builder().deadlock_period(PERIOD).engine(engine);
    (client.expect("a client"), chaos)
}

async fn lock(client: &Client, name: &str) -> Lease {
    client.mutex(name).ttl(LONG).lock().await.expect("free")
}

fn wait(client: &Client, name: &str) -> JoinHandle<Result<Lease>> {
    let mutex = client.mutex(name).ttl(LONG);
    tokio::spawn(async move { mutex.lock().await })
}

/// F124, L6, on a clock that moves by hand: after two periods one member of the cycle has given up.
#[tokio::test]
async fn f124_a_cycle_is_broken_within_two_detection_periods_and_not_within_one() {
    for size in 2..=5 {
        let (memory, clock) = Memory::virtual_time();
        let clients: Vec<Client> = (0..size).map(|_| memory.client().expect("a client")).collect();
        let mut leases = Vec::new();
        for (place, client) in clients.iter().enumerate() {
            leases.push(lock(client, &place.to_string()).await);
        }
        let mut waits = Vec::new();
        for (place, client) in clients.iter().enumerate() {
            let next = ((place + 1) % size).to_string();
            waits.push(wait(client, &next));
            until_waiting(client, &next, 1).await;
        }
        clock.advance(Duration::from_millis(999));
        tokio::task::yield_now().await;
        for client in &clients {
            let said = memory.waits_of(client.holder().id()).await.expect("an answer");
            assert!(said.is_empty(), "nothing is said in the first second");
        }
        // Each has its period from the instant at which it began to wait.
        clock.advance(Duration::from_millis(1));
        until("everybody has told of its wait, or one has given up", async || {
            let mut told = 0;
            for client in &clients {
                let said = memory.waits_of(client.holder().id()).await.expect("an answer");
                told += said.len();
            }
            told == size || waits.iter().any(JoinHandle::is_finished)
        })
        .await;
        clock.advance(Duration::from_secs(1));
        until("a victim", async || waits.iter().any(JoinHandle::is_finished)).await;
        let over: Vec<bool> = waits.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(over.iter().filter(|over| **over).count(), 1, "one victim of {size}");
        let place = over.iter().position(|over| *over).expect("one");
        let ended = waits.swap_remove(place).await.expect("no panic");
        assert!(matches!(ended, Err(Error::Deadlock { .. })), "{ended:?}");
        // Its time has not come: the clock stands still.
        until("the victim's notice to be taken back", async || {
            memory.waits_of(clients[place].holder().id()).await.expect("an answer").is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_look_that_finds_nothing_says_one_thing_and_asks_one_for_each_holder() {
    let (memory, clock) = Memory::virtual_time();
    let (other, chaos) = (memory.client().expect("a client"), Chaos::default());
    let builder = Client::builder().clock(memory.clock());
    let client = builder.engine(chaos.trouble(memory.clone())).expect("a client");
    let (_own, held) = (lock(&client, "own").await, lock(&other, "held").await);
    let waiter = wait(&client, "held");
    until_waiting(&other, "held", 1).await;
    for look in 1..=3 {
        clock.advance(Duration::from_secs(1));
        until("a look", async || chaos.calls(Verb::WaitsOf) >= look).await;
        let calls = [Verb::Announce, Verb::WaitsOf].map(|verb| chaos.calls(verb));
        assert_eq!(calls, [look, look]);
    }
    held.release().await.expect("an answer");
    drop(soon("a grant", waiter).await.expect("no panic").expect("no deadlock"));
}

/// A claim at the store itself. No client looks for deadlocks for it or sends heartbeats.
fn bare(name: &str, holder: &Holder) -> Claim {
    Claim { holder: holder.clone(), patience: LONG, ..bare::claim(name) }
}

/// S12: between the two readings a claim leaves, and the cycle of the first reading is gone.
#[tokio::test]
async fn a_cycle_that_only_the_first_of_two_readings_saw_has_no_victim() {
    let memory = Memory::new();
    let other = Holder::fresh();
    let (held, waiting) = (bare("b", &other), bare("a", &other));
    let (reads, leaving) = (Arc::new(AtomicUsize::new(0)), waiting.key.clone());
    let (count, store) = (Arc::clone(&reads), memory.clone());
    let after: Hook = Arc::new(move |verb| {
        // A reading asks what the other waits for, and then what this one does.
        let ends = verb == Verb::WaitsOf && count.fetch_add(1, Ordering::SeqCst) == 1;
        let (store, leaving) = (store.clone(), leaving.clone());
        Box::pin(async move {
            if ends {
                store.release(&[leaving]).await?;
            }
            Ok(())
        })
    });
    let hooks = Hooks { before: None, after: Some(after) };
    let engine = Store::Memory(memory.clone()).hooked(hooks);
    let builder = Client::builder().deadlock_period(PERIOD);
    let client = builder.engine(engine).expect("a client");
    // The fences of `b` must be the greater ones, so that this client is the one to give up.
    for _ in 0..5 {
        drop(lock(&client, "b").await);
    }
    let own = lock(&client, "a").await;
    memory.claim(&held).await.expect("an answer");
    memory.claim(&waiting).await.expect("an answer");
    let line = client.line("a").await.expect("an answer").expect("in use");
    let keeps = vec![Kept { name: held.key.name.clone(), fence: 0 }];
    let wait_of_other =
        Wait { name: waiting.key.name.clone(), fence: line.waiting[0].fence.as_u64(), keeps };
    let (holder, waits) = (other.id(), vec![wait_of_other]);
    memory.announce(&Notice { holder, client: 1, waits, keep: LONG }).await.expect("an answer");
    let waiter = wait(&client, "b");
    until("some looks", async || reads.load(Ordering::SeqCst) >= 10).await;
    assert!(!waiter.is_finished(), "it had gone before the second reading");
    memory.release(&[held.key]).await.expect("an answer");
    drop(soon("a grant", waiter).await.expect("no panic").expect("no deadlock"));
    drop(own);
}

/// A client that takes a lock and hands it to a task that works under it goes on; so does the task.
#[tokio::test]
async fn a_lease_that_is_used_in_another_task_belongs_to_that_task() {
    let memory = Memory::new();
    let (members, names) = ([looker(&memory), looker(&memory)], ["a", "b"]);
    let mut workers = Vec::new();
    for ((client, _), name) in members.iter().zip(names) {
        let lease = lock(client, name).await;
        let (ready, begun) = tokio::sync::oneshot::channel();
        let (stop, ended) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            ready.send(lease.fence()).expect("awaited");
            let _told = ended.await;
            lease.release().await
        });
        soon("the worker", begun).await.expect("a fence");
        workers.push(stop);
    }
    let mut waits = Vec::new();
    for (place, (client, _)) in members.iter().enumerate() {
        // A lease that is kept, so that there is a reason to look.
        let (kept, next) = (client.mutex(place.to_string()), client.mutex(names[1 - place]));
        waits.push(tokio::spawn(async move {
            let _kept = kept.lock().await?;
            next.lock().await
        }));
    }
    until("some looks", async || members.iter().all(|(_, board)| board.calls(Verb::WaitsOf) >= 4))
        .await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    drop(workers);
    for wait in waits {
        drop(soon("a grant", wait).await.expect("no panic").expect("no deadlock"));
    }
}

/// To other clients, futures joined in one task are one task. The work uses a lease while the other
/// future waits. That use shows that this wait does not keep the lease.
#[tokio::test]
async fn a_lease_that_is_used_during_the_wait_is_no_part_of_a_cycle() {
    let memory = Memory::new();
    let (members, names) = ([looker(&memory), looker(&memory)], ["a", "b"]);
    let mut tasks = Vec::new();
    let (looked, together) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    for (place, (client, board)) in members.iter().enumerate() {
        let (client, board) = (client.clone(), board.clone());
        let (looked, together) = (Arc::clone(&looked), Arc::clone(&together));
        tasks.push(tokio::spawn(async move {
            let kept = lock(&client, &place.to_string()).await;
            let own = lock(&client, names[place]).await;
            together.wait().await;
            let works = async {
                // Each step of the work asks whether the lease is held.
                while looked.load(Ordering::SeqCst) < 2 {
                    assert!(own.is_held());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                own.release().await
            };
            let other = client.mutex(names[1 - place]).ttl(LONG);
            let looks = async {
                while board.calls(Verb::WaitsOf) < 4 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                looked.fetch_add(1, Ordering::SeqCst);
            };
            let (_released, waited, ()) = tokio::join!(works, other.lock(), looks);
            drop(kept);
            waited.map(|_lease| ())
        }));
    }
    for task in tasks {
        soon("both to be through", task).await.expect("no panic").expect("no deadlock");
    }
}

#[tokio::test]
async fn a_client_apart_is_another_holder_and_lives_on_by_itself() {
    let memory = Memory::new();
    let client = Client::builder().engine(memory.clone()).expect("a client");
    let apart = client.with_own_identity("worker").expect("a good label");
    assert_ne!(apart.holder(), client.holder());
    assert_eq!(apart.holder().label(), "worker");
    let ttl = Duration::from_millis(300);
    let lease = apart.mutex("n").ttl(ttl).lock().await.expect("free");
    assert!(client.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    drop(client);
    let before = lease.deadline();
    until("a renewal", async || lease.deadline() > before || !lease.is_held()).await;
    assert!(lease.is_held());
    drop(lease);
    assert!(apart.mutex("n").try_lock().await.unless_held().expect("an answer").is_some());
    assert!(matches!(apart.with_own_identity(""), Err(Error::Invalid(Invalid::Label))));
}

#[test]
fn a_period_out_of_bounds_is_refused() {
    for period in [Duration::ZERO, Duration::from_millis(9), Duration::from_secs(3601)] {
        let built = Client::builder().deadlock_period(period).engine(Memory::new());
        assert!(matches!(built, Err(Error::Invalid(Invalid::Setting { .. }))), "{period:?}");
    }
    for period in [None, Some(Duration::from_millis(10)), Some(Duration::from_secs(3600))] {
        Client::builder().deadlock_period(period).engine(Memory::new()).expect("in bounds");
    }
}

/// Threads without a runtime of their own are distinguished as tasks are.
#[test]
fn f124_threads_of_the_blocking_interface_that_wait_for_each_other_are_found() {
    let url = "memory:deadlock-of-threads";
    let together = std::sync::Barrier::new(2);
    let cross = |own: &str, next: &str| {
        let builder = Client::builder().deadlock_period(PERIOD);
        let client = leasehold::blocking::Client::connect(builder, url).expect("connected");
        let _own = client.mutex(own).lock().expect("free");
        together.wait();
        client.mutex(next).lock().map(|_lease| ())
    };
    let ends = std::thread::scope(|scope| {
        let one = scope.spawn(|| cross("a", "b"));
        let two = scope.spawn(|| cross("b", "a"));
        [one, two].map(|thread| thread.join().expect("no panic"))
    });
    let victims = ends.iter().filter(|end| matches!(end, Err(Error::Deadlock { .. })));
    assert_eq!(victims.count(), 1, "{ends:?}");
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 1, "{ends:?}");
}
