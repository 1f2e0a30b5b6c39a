//! The keeper under stress: requests that hang or race must not lose a lease, nor leave one behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::FutureExt;
use leasehold::claim::{Claim, ClaimKey, Renewal, Standing};
use leasehold::clock::{Clock, Moment, Sleep, VirtualClock};
use leasehold::engine::{Alert, Alerts, Engine, Info, Page, Parts, Query, Wake};
use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::memory::Memory;
use leasehold::{Client, Error, LeaseState, LockOptions, Released, Result, UnlessHeld};
use tokio::sync::Notify;

use crate::support::{Hooks, LONG, on_every_store, soon, until, until_free, until_waiting};

#[test]
fn hanging_releases_do_not_stop_renewals() {
    on_every_store(async |store| {
        let (client, chaos) = store.troubled(Client::builder());
        chaos.next(Verb::Release, Trouble::Hang, u32::MAX);
        let mutex = client.mutex("kept").ttl(Duration::from_millis(1_500));
        let kept = mutex.lock().await.expect("a lease");
        for index in 0..8 {
            let name = format!("given back:{index}");
            drop(client.mutex(&name).ttl(LONG).lock().await.expect("a lease"));
            // One exchange for each, not one for all.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let before = kept.deadline();
        until("a renewal, or the loss", async || kept.deadline() > before || !kept.is_held()).await;
        assert!(kept.is_held(), "hanging releases kept the renewals from going out");
        chaos.heal();
        client.close().await.expect("nothing hangs any more");
    });
}

#[test]
fn claim_that_arrives_after_the_close_leaves_nothing() {
    on_every_store(async |store| {
        let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, gate) = (Arc::clone(&arrived), Arc::clone(&go_on));
        let hooks = Hooks::before(move |verb| {
            let (tell, gate) = (Arc::clone(&tell), Arc::clone(&gate));
            async move {
                if verb == Verb::Claim {
                    tell.notify_one();
                    gate.notified().await;
                }
                Ok(())
            }
            .boxed()
        });
        let client = Client::builder().engine(store.hooked(hooks)).expect("a client");
        let other = store.client();
        let mutex = client.mutex("late").ttl(LONG);
        let asked = tokio::spawn(async move { mutex.lock().await });
        soon("the claim on its way", arrived.notified()).await;
        soon("the close", client.close()).await.expect("closed");
        go_on.notify_one();
        let answer = soon("the answer", asked).await.expect("no panic");
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
        until_free(&other, "late").await;
    });
}

#[test]
fn close_ends_although_the_store_is_silent() {
    on_every_store(async |store| {
        let (client, chaos) = store.troubled(Client::builder());
        let ttl = Duration::from_millis(500);
        let lease = client.mutex("silent").ttl(ttl).lock().await.expect("a lease");
        chaos.next(Verb::Release, Trouble::Hang, u32::MAX);
        // After the ttl the store has freed it by itself, and the close need not wait.
        let closed = tokio::time::timeout(ttl * 20, client.close()).await;
        assert!(closed.is_ok(), "still waiting for the store after {:?}", ttl * 20);
        drop(lease);
        chaos.heal();
    });
}

#[test]
fn closing_a_client_leaves_another_one_of_the_same_engine_alone() {
    on_every_store(async |store| {
        let ([one, two], other) = (store.twins(), store.client());
        let held = two.mutex("twin:held").ttl(LONG).lock().await.expect("a lease");
        let lease = other.mutex("twin").ttl(LONG).lock().await.expect("a lease");
        let mutex = two.mutex("twin").ttl(LONG);
        let waiter = tokio::spawn(async move { mutex.lock().await });
        until_waiting(&other, "twin", 1).await;
        one.close().await.expect("closed");
        assert!(matches!(one.mutex("twin").try_lock().await.unless_held(), Err(Error::Closed)));
        assert!(!waiter.is_finished() && held.is_held());
        lease.release().await.expect("an answer");
        let lease = soon("a grant", waiter).await.expect("no panic").expect("a lease");
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        assert_eq!(held.release().await.expect("an answer"), Released::Released);
        let lease = other.mutex("twin").ttl(LONG).lock().await.expect("a lease");
        let mutex = two.mutex("twin").ttl(LONG);
        let waiter = tokio::spawn(async move { mutex.lock().await });
        until_waiting(&other, "twin", 1).await;
        lease.release().await.expect("an answer");
        drop(soon("a grant", waiter).await.expect("no panic").expect("a lease"));
    });
}

/// A virtual clock that writes down when the keeper wants to wake.
#[derive(Debug, Clone)]
struct Diary {
    clock: VirtualClock,
    alarms: Arc<Mutex<Vec<(Moment, Moment)>>>,
    written: Arc<Notify>,
}

impl Clock for Diary {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.clock.sleep_until(at)
    }

    fn alarm(&self, at: Moment) -> Sleep {
        self.alarms.lock().expect("nobody panics here").push((self.now(), at));
        self.written.notify_one();
        self.clock.alarm(at)
    }
}

impl Diary {
    /// The instant until which the keeper sleeps, once it sleeps.
    async fn alarm(&self) -> Moment {
        // The keeper may still be at work; it has written its last line when it rests.
        loop {
            let quiet = Duration::from_millis(20);
            if tokio::time::timeout(quiet, self.written.notified()).await.is_err()
                && let Some((_, at)) = self.alarms.lock().expect("nobody panics here").last()
                && *at > self.now()
            {
                return *at;
            }
        }
    }
}

#[tokio::test]
async fn keeper_never_sleeps_past_the_end_of_a_lease() {
    let (memory, clock) = Memory::virtual_time();
    let diary = Diary { clock: clock.clone(), alarms: Arc::default(), written: Arc::default() };
    let chaos = Chaos::default();
    let builder = Client::builder().clock(Arc::new(diary.clone()));
    let client = builder.engine(chaos.trouble(memory)).expect("a client");
    let lease = client.mutex("end").ttl(Duration::from_secs(30)).lock().await.expect("a lease");
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let end = lease.deadline();
    // Renewals fail until the next one would come too late; the keeper then waits for the end.
    loop {
        let at = soon("the keeper to rest", diary.alarm()).await;
        if at >= end {
            break;
        }
        clock.advance(at.since(clock.now()));
    }
    // Another event may wake it, but it must not sleep past the end.
    clock.advance(end.since(clock.now()) - Duration::from_millis(1));
    drop(client.mutex("other").lock().await.expect("a lease"));
    soon("the keeper to rest", diary.alarm()).await;
    for (now, at) in diary.alarms.lock().expect("nobody panicked").iter() {
        assert!(*at <= end || *now >= end, "at {now:?} it would sleep until {at:?}, past {end:?}");
    }
    clock.advance(Duration::from_millis(1));
    soon("the loss", lease.lost()).await;
}

#[test]
fn loss_is_counted_once_although_release_and_hold_at_most_meet() {
    on_every_store(async |store| {
        let client = store.client();
        let span = Duration::from_millis(2);
        for round in 0..600 {
            let lease = client
                .mutex("meet")
                .ttl(LONG)
                .options(LockOptions::new().hold_at_most(span))
                .lock()
                .await
                .expect("free");
            tokio::time::sleep(span - Duration::from_micros(round % 200 * 10)).await;
            lease.release().await.expect("an answer");
        }
        client.close().await.expect("nothing hangs");
        let stats = client.stats();
        assert_eq!(stats.acquired, 600);
        assert_eq!(stats.released + stats.lost, 600, "{stats:?}");
    });
}

/// A store that reports its last claim as lost when it is told to.
#[derive(Debug, Clone, Default)]
struct Alarmed {
    store: Memory,
    claimed: Arc<Mutex<Option<ClaimKey>>>,
    alarm: Arc<Notify>,
    renewals: Arc<AtomicUsize>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Engine for Alarmed {
    fn info(&self) -> &Info {
        self.store.info()
    }

    async fn claim(&self, claim: &Claim) -> Result<Standing> {
        *self.claimed.lock().expect("nobody panics") = Some(claim.key.clone());
        self.store.claim(claim).await
    }

    async fn wait(&self, key: &ClaimKey) -> Result<Wake> {
        self.store.wait(key).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Result<Standing>>> {
        let answers = self.store.renew(renewals).await;
        self.renewals.fetch_add(1, Ordering::SeqCst);
        answers
    }

    async fn release(&self, keys: &[ClaimKey]) -> Result<Vec<Released>> {
        self.store.release(keys).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }

    fn parts(self: Arc<Self>) -> Parts {
        let mut parts = Parts::default();
        parts.alerts = Some(self);
        parts
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Alerts for Alarmed {
    async fn alerts(&self) -> Vec<Alert> {
        self.alarm.notified().await;
        let claimed = self.claimed.lock().expect("nobody panics");
        claimed.iter().cloned().map(Alert::Lost).collect()
    }
}

#[tokio::test]
async fn alert_that_is_late_costs_one_renewal_and_no_lease() {
    let store = Alarmed::default();
    let client = Client::builder().engine(store.clone()).expect("a client");
    let lease = client.mutex("alarmed").ttl(LONG).lock().await.expect("free");
    for renewals in 1..=3 {
        let before = lease.deadline();
        store.alarm.notify_one();
        until("a renewal", async || lease.deadline() > before).await;
        assert_eq!(store.renewals.load(Ordering::SeqCst), renewals);
        assert_eq!(lease.state(), LeaseState::Held);
    }
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}
