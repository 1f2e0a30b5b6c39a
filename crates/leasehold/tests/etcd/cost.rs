//! The cost of operations, counted in revisions. Each revision is one proposal to the cluster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::engine::Query;
use leasehold::etcd::Etcd;
use leasehold::observe::{Measure, Observer};
use leasehold::{Client, LeaseState, Mode, Name, Released, UnlessHeld};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_is_two_proposals_contended_or_not() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let mutex = one.mutex("cost");
    mutex.lock().await.expect("free").release().await.expect("an answer");
    let before = revision(&server);
    for _ in 0..50 {
        mutex.lock().await.expect("free").release().await.expect("an answer");
    }
    assert_eq!(revision(&server) - before, 100, "a put and a delete each");
    let mut held = one.mutex("cost").lock().await.expect("free");
    for round in 0..20 {
        let client = if round % 2 == 0 { &two } else { &one };
        let mut next = Waiter::start(client.request("cost"));
        until_waiting(&one, "cost", 1).await;
        held.release().await.expect("an answer");
        held = next.granted().await;
    }
    held.release().await.expect("an answer");
    assert_eq!(revision(&server) - before, 142, "and no more when others wait");
    one.admin().bump_epoch(None).await.expect("bumped");
    for _ in 0..50 {
        mutex.lock().await.expect("free").release().await.expect("an answer");
    }
    assert_eq!(revision(&server) - before, 243, "nor in another epoch, but for its beginning");
    nothing_is_left(&server, &[one, two]).await;
}

/// etcd remembers deleted keys until it is compacted, and reads past them. With a key for each
/// claim, a name would get slower with every lock it ever had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_uses_its_keys_on_a_name_again() {
    let server = server().await;
    let client = client(server.url()).await;
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let lease = client.mutex("again").lock().await.expect("free");
        let mut next = Waiter::start(client.request("again"));
        until_waiting(&client, "again", 1).await;
        keys.extend(claims(&server));
        lease.release().await.expect("an answer");
        next.granted().await.release().await.expect("an answer");
        let permit = client.semaphore("permits", 2).acquire().await.expect("free");
        keys.extend(claims(&server));
        permit.release().await.expect("an answer");
        assert!(claims(&server).is_empty());
    }
    assert_eq!(keys.len(), 3, "two at a time on the one name, one on the other: {keys:?}");
    assert!(client.mutex("again").try_lock().await.unless_held().expect("an answer").is_some());
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_never_waits_does_not_watch() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    for _ in 0..3 {
        one.mutex("free").lock().await.expect("free").release().await.expect("an answer");
    }
    assert_eq!(metric(&server, "etcd_debugging_mvcc_watcher_total"), 0);
    let lease = one.mutex("taken").ttl(LONG).lock().await.expect("free");
    let mut next = Waiter::start(two.request("taken").ttl(LONG));
    until_waiting(&one, "taken", 1).await;
    until("a watch", async || metric(&server, "etcd_debugging_mvcc_watcher_total") == 1).await;
    lease.release().await.expect("an answer");
    next.granted().await.release().await.expect("an answer");
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_watches_once_however_many_of_its_claims_wait() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let (mut leases, mut waiters) = (Vec::new(), Vec::new());
    for name in 0..50 {
        let name = format!("taken:{name}");
        leases.push(one.mutex(&name).ttl(LONG).lock().await.expect("free"));
        waiters.push(Waiter::start(two.request(&name).ttl(LONG)));
        until_waiting(&one, &name, 1).await;
    }
    // One for all claims that wait, and one for messages to the client that holds.
    until("two watches", async || metric(&server, "etcd_debugging_mvcc_watcher_total") == 2).await;
    for (lease, waiter) in leases.into_iter().zip(&mut waiters) {
        lease.release().await.expect("an answer");
        waiter.granted().await.release().await.expect("an answer");
    }
    nothing_is_left(&server, &[one, two]).await;
}

/// Takes a minute: in it the client checks twice whether a claim waited, and at first one did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_closes_after_half_a_minute_unless_somebody_waits() {
    const WATCHES: &str = "etcd_debugging_mvcc_watcher_total";
    let server = server().await;
    let [one, two, three] =
        [client(server.url()).await, client(server.url()).await, client(server.url()).await];
    let held = [one.mutex("waits"), one.mutex("waited")].map(|mutex| mutex.ttl(LONG));
    let [waits, waited] = [held[0].lock().await, held[1].lock().await].map(|it| it.expect("free"));
    let (begun, mut meter) = (tokio::time::Instant::now(), Meter::of(&server));
    let mut next = Waiter::start(three.request("waited").ttl(LONG));
    until_waiting(&one, "waited", 1).await;
    let mut stays = Waiter::start(two.request("waits").ttl(LONG));
    until_waiting(&one, "waits", 1).await;
    // The client that holds has one for messages.
    until("their watches", async || metric(&server, WATCHES) == 3).await;
    waited.release().await.expect("an answer");
    next.granted().await.release().await.expect("an answer");
    let closed = async {
        while metric(&server, WATCHES) > 2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(90), closed).await;
    closed.expect("the watch that nobody needs is closed");
    assert!(begun.elapsed() >= Duration::from_secs(30), "{:?}", begun.elapsed());
    // By then the client has checked twice whether it still needs the other watch.
    tokio::time::sleep_until(begun + Duration::from_secs(65)).await;
    assert_eq!(metric(&server, WATCHES), 2);
    let spent = meter.spent();
    assert!(spent.contains("Watch 3;"), "it is not closed and opened again: {spent}");
    waits.release().await.expect("an answer");
    stays.granted().await.release().await.expect("an answer");
    // A client that has to wait once more opens it again.
    let lease = one.mutex("waited").ttl(LONG).lock().await.expect("free");
    let mut next = Waiter::start(three.request("waited").ttl(LONG));
    until("another watch", async || metric(&server, WATCHES) == 2).await;
    until_waiting(&one, "waited", 1).await;
    lease.release().await.expect("an answer");
    next.granted().await.release().await.expect("an answer");
    nothing_is_left(&server, &[one, two, three]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_try_writes_nothing() {
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("cost").ttl(LONG).lock().await.expect("free");
    let reader = client.request("cost:rw").mode(Mode::Shared).ttl(LONG).acquire().await;
    let before = revision(&server);
    for _ in 0..5 {
        assert!(client.mutex("cost").try_lock().await.unless_held().expect("an answer").is_none());
        assert!(
            client.mutex("cost:rw").try_lock().await.unless_held().expect("an answer").is_none()
        );
    }
    assert_eq!(revision(&server), before);
    drop((lease, reader));
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewing_writes_nothing() {
    let server = server().await;
    let client = client(server.url()).await;
    let ttl = Duration::from_secs(2);
    let lease = client.mutex("cost").ttl(ttl).lock().await.expect("free");
    let (before, begun) = (revision(&server), lease.deadline());
    until("several renewals", async || lease.deadline().since(begun) > ttl * 2).await;
    assert_eq!(revision(&server), before);
    assert_eq!(lease.state(), LeaseState::Held);
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f95_a_thousand_locks_cost_one_lease_and_stay_held() {
    const LOCKS: usize = 1_000;
    let server = server().await;
    let client = client(server.url()).await;
    // Renewing all of them takes a while on a busy machine, and begins at 60 % of this.
    let ttl = Duration::from_secs(12);
    let mut leases = Vec::with_capacity(LOCKS);
    for index in 0..LOCKS {
        leases.push(client.mutex(format!("many:{index}")).ttl(ttl).lock().await.expect("free"));
    }
    assert_eq!(lease_ids(&server).len(), 1, "all share it");
    let begun = leases[0].deadline();
    until("renewals of all", async || {
        assert!(leases.iter().all(|lease| lease.is_held()));
        leases.iter().all(|lease| lease.deadline().since(begun) > ttl * 2)
    })
    .await;
    assert_eq!(lease_ids(&server).len(), 1);
    for lease in leases {
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    nothing_is_left(&server, &[client]).await;
}

/// The measures of renewals, as a client reports them to its observer.
#[derive(Debug, Clone, Default)]
struct Renewals(Arc<Mutex<Vec<(usize, Duration)>>>);

impl Observer for Renewals {
    fn observe(&self, measure: &Measure<'_>) {
        if let Measure::Renewed { claims, took } = measure {
            self.0.lock().expect("nobody panics").push((*claims, *took));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f95_twenty_thousand_locks_are_on_one_lease_and_all_stay_held() {
    const LOCKS: usize = 20_000;
    const AT_ONCE: usize = 40;
    let server = server().await;
    let seen = Renewals::default();
    let engine = Etcd::open(server.url()).await.expect("a connection");
    let client = Client::builder().observer(seen.clone()).engine(engine).expect("a client");
    // Renewing all of them takes a while on a busy machine, and begins at 60 % of this.
    let (ttl, mut leases) = (Duration::from_secs(15), Vec::with_capacity(LOCKS));
    for first in (0..LOCKS).step_by(AT_ONCE) {
        let indices = first..first + AT_ONCE;
        let all = client.all(indices.map(|index| client.request(format!("very:{index}")).ttl(ttl)));
        leases.extend(all.lock().await.expect("free").into_vec());
    }
    assert_eq!((leases.len(), lease_ids(&server).len()), (LOCKS, 1), "all share one");
    let begun = leases[LOCKS - 1].deadline();
    until("several renewals of all", async || {
        assert!(leases.iter().all(|lease| lease.is_held()));
        leases.iter().all(|lease| lease.deadline().since(begun) > ttl)
    })
    .await;
    assert_eq!((claims(&server).len(), lease_ids(&server).len()), (LOCKS, 1));
    let renewals = std::mem::take(&mut *seen.0.lock().expect("nobody panics"));
    let renewed: usize = renewals.iter().map(|(claims, _)| claims).sum();
    assert!(renewed >= LOCKS * 2, "{renewed} claims in {} exchanges", renewals.len());
    let slowest = renewals.iter().map(|(_, took)| took).max().expect("some");
    println!("{renewed} claims in {} renewals, the slowest took {slowest:?}", renewals.len());
    drop(leases);
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_line_is_served_in_order_and_joined_with_bounded_reads() {
    const WAITERS: usize = 300;
    let server = server().await;
    let [one, crowd] = [client(server.url()).await, client(server.url()).await];
    let first = one.mutex("long").ttl(LONG).lock().await.expect("free");
    let mut waiters = Vec::with_capacity(WAITERS);
    for index in 0..WAITERS {
        waiters.push(Waiter::start(crowd.request("long").ttl(LONG)));
        if index % 50 == 0 {
            until_waiting(&one, "long", index + 1).await;
        }
    }
    until_waiting(&one, "long", WAITERS).await;
    let page =
        one.admin().inspect(&Query::name(Name::new("long").expect("good"))).await.expect("a page");
    let line: Vec<u64> = page.lines[0].waiting.iter().map(|claim| claim.fence.as_u64()).collect();
    let mut last = first.fence();
    first.release().await.expect("an answer");
    for fence in line {
        let (at, lease) = {
            let at = async {
                loop {
                    let done = waiters.iter().position(|waiter| !waiter.is_waiting());
                    match done {
                        Some(at) => break at,
                        None => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            };
            let at = soon("the next in line", at).await;
            (at, waiters[at].granted().await)
        };
        waiters.swap_remove(at);
        assert!(lease.fence() > last);
        assert_eq!(lease.fence(), fence, "nobody overtakes");
        last = fence.into();
        lease.release().await.expect("an answer");
    }
    // Readers behind many readers hold without waiting, however many there are.
    let reader = crowd.request("readers").mode(Mode::Shared).ttl(LONG);
    let mut readers = Vec::new();
    for _ in 0..WAITERS {
        readers.push(soon("a reader", reader.acquire()).await.expect("readers share"));
    }
    let mut writer = Waiter::start(one.request("readers").ttl(LONG));
    until_waiting(&one, "readers", 1).await;
    drop(readers);
    drop(writer.granted().await);
    nothing_is_left(&server, &[one, crowd]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_on_a_name_that_was_long_free_costs_one_more_exchange_once_it_is_contended() {
    const PROPOSALS: &str = "etcd_server_proposals_committed_total";
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let contended = async |name: &str| {
        let lease = two.mutex(name).ttl(LONG).lock().await.expect("free");
        let mut next = Waiter::start(one.request(name).ttl(LONG));
        until_waiting(&two, name, 1).await;
        lease.release().await.expect("an answer");
        next.granted().await.release().await.expect("an answer");
    };
    // From here on both clients have their leases, and `one` watches for claims that leave.
    contended("warm").await;
    let before = metric(&server, PROPOSALS);
    for _ in 0..10 {
        one.mutex("quiet").ttl(LONG).lock().await.expect("free").release().await.expect("one");
    }
    assert_eq!(metric(&server, PROPOSALS) - before, 20);
    contended("quiet").await;
    assert_eq!(metric(&server, PROPOSALS) - before, 25, "it was sent without a place in line");
    contended("quiet").await;
    assert_eq!(metric(&server, PROPOSALS) - before, 29);
    assert!(claims(&server).is_empty());
    nothing_is_left(&server, &[one, two]).await;
}
