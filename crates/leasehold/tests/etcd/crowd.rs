//! Many tasks of one client at a time: the client batches their requests, and only the server
//! notices.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Lease, Released};
use leasehold_testkit::Etcd;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::support::*;

const TASKS: usize = 64;
const PROPOSALS: &str = "etcd_server_proposals_committed_total";

/// Runs `tasks` tasks side by side, and returns when all have ended.
async fn side_by_side<F>(tasks: usize, task: impl Fn(usize) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut all = JoinSet::new();
    for number in 0..tasks {
        all.spawn(task(number));
    }
    soon("all tasks", async {
        while let Some(ended) = all.join_next().await {
            ended.expect("no panic");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_names_of_their_own_cost_far_fewer_proposals_than_two_each() {
    const ROUNDS: usize = 8;
    let server = server().await;
    let client = client(server.url()).await;
    client.mutex("warm").lock().await.expect("free").release().await.expect("an answer");
    let before = metric(&server, PROPOSALS);
    let meet = Arc::new(Barrier::new(TASKS));
    side_by_side(TASKS, |number| {
        let (mutex, meet) = (client.mutex(format!("crowd:{number}")).ttl(LONG), Arc::clone(&meet));
        async move {
            let mut last = 0;
            for _ in 0..ROUNDS {
                let lease = mutex.lock().await.expect("free");
                assert!(lease.fence() > last, "fences of a name rise");
                last = lease.fence().as_u64();
                meet.wait().await;
                assert!(lease.is_held(), "all hold at once");
                assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            }
        }
    })
    .await;
    let proposals = metric(&server, PROPOSALS) - before;
    let alone = (TASKS * ROUNDS * 2) as u64;
    assert!(proposals * 3 < alone, "{proposals}, and {alone} if each went alone");
    assert!(claims(&server).is_empty());
    nothing_is_left(&server, &[client]).await;
}

/// Checks the leases of one name: one holder at a time, and rising fences.
#[derive(Default)]
struct Held {
    taken: AtomicBool,
    fence: AtomicU64,
}

impl Held {
    async fn check(&self, lease: Lease) {
        assert!(!self.taken.swap(true, Ordering::AcqRel), "two hold at once");
        let before = self.fence.swap(lease.fence().as_u64(), Ordering::AcqRel);
        assert!(lease.fence() > before, "{} after {before}", lease.fence());
        tokio::task::yield_now().await;
        assert!(self.taken.swap(false, Ordering::AcqRel));
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_that_several_tasks_want_has_one_holder_at_a_time() {
    const NAMES: usize = 8;
    const ROUNDS: usize = 20;
    let server = server().await;
    let clients = [client(server.url()).await, client(server.url()).await];
    let names: Arc<[Held; NAMES]> = Arc::default();
    side_by_side(TASKS, |number| {
        let (client, names) = (clients[number % 2].clone(), Arc::clone(&names));
        async move {
            for round in 0..ROUNDS {
                let at = (number / 2 + round) % NAMES;
                let mutex = client.mutex(format!("wanted:{at}")).ttl(LONG);
                if round % 4 == 3 {
                    // Cancelled before it is sent, in flight, or in line.
                    let wait = Duration::from_micros((number * 37 % 900) as u64);
                    drop(tokio::time::timeout(wait, mutex.lock()).await);
                    continue;
                }
                names[at].check(mutex.lock().await.expect("a lease")).await;
            }
        }
    })
    .await;
    until("an empty store", async || claims(&server).is_empty()).await;
    nothing_is_left(&server, &clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_tasks_among_many_leave_nothing() {
    let server = server().await;
    let [crowd, other] = [client(server.url()).await, client(server.url()).await];
    for round in 0..10 {
        let mut tasks = Vec::with_capacity(TASKS);
        for number in 0..TASKS {
            let mutex = crowd.mutex(format!("aborted:{number}")).ttl(LONG);
            tasks.push(tokio::spawn(async move {
                loop {
                    mutex.lock().await.expect("free").release().await.expect("an answer");
                }
            }));
        }
        for (number, task) in tasks.iter().enumerate() {
            let pause = Duration::from_micros(((number + round) * 61 % 400) as u64);
            tokio::time::sleep(pause).await;
            task.abort();
        }
        for task in tasks {
            assert!(task.await.expect_err("it had no end").is_cancelled());
        }
    }
    for number in 0..TASKS {
        let mutex = other.mutex(format!("aborted:{number}")).ttl(LONG);
        let lease = soon("a name that nobody has", mutex.lock()).await.expect("a lease");
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    until("an empty store", async || claims(&server).is_empty()).await;
    nothing_is_left(&server, &[crowd, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_whose_lease_is_gone_fails_none_of_its_batch() {
    let (few, many) = (Duration::from_secs(200), LONG);
    let server = server().await;
    let client = client(server.url()).await;
    client.mutex("warm").ttl(many).lock().await.expect("free").release().await.expect("one");
    let kept = lease_ids(&server);
    client.mutex("warm").ttl(few).lock().await.expect("free").release().await.expect("one");
    let mut ended = lease_ids(&server);
    ended.retain(|lease| !kept.contains(lease));
    ctl(&endpoint(&server), &["lease", "revoke", &ended[0]]);
    let leases: Arc<Mutex<Vec<Lease>>> = Arc::default();
    side_by_side(TASKS, |number| {
        let ttl = if number % 8 == 7 { few } else { many };
        let (mutex, leases) = (client.mutex(format!("of:{number}")).ttl(ttl), Arc::clone(&leases));
        async move {
            let lease = mutex.lock().await.expect("free");
            leases.lock().expect("nobody panics").push(lease);
        }
    })
    .await;
    let ids = lease_ids(&server);
    assert!(ids.contains(&kept[0]) && ids.len() == 2, "{ids:?}, and before {kept:?}");
    let leases = std::mem::take(&mut *leases.lock().expect("nobody panics"));
    assert!(leases.len() == TASKS && leases.iter().all(Lease::is_held));
    for lease in leases {
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    nothing_is_left(&server, &[client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f97_full_store_takes_back_leases_while_other_tasks_claim() {
    let server = Etcd::new().argument("--quota-backend-bytes=300000").start().await;
    let server = server.expect("a server");
    let client = client(server.url()).await;
    let mut leases = Vec::with_capacity(TASKS / 2);
    for number in 0..TASKS / 2 {
        let mutex = client.mutex(format!("held:{number}")).ttl(LONG);
        leases.push(Some(mutex.lock().await.expect("free")));
    }
    let value = "x".repeat(60_000);
    until("a full store", async || {
        let put = etcdctl(&endpoint(&server)).args(["put", "filler", &value]).output();
        !put.expect("etcdctl runs").status.success()
    })
    .await;
    let leases = Mutex::new(leases);
    side_by_side(TASKS, |number| {
        let lease = match number % 2 {
            0 => leases.lock().expect("nobody panics")[number / 2].take(),
            _ => None,
        };
        let mutex = client.mutex(format!("wanted:{number}")).ttl(LONG);
        async move {
            match lease {
                Some(lease) => {
                    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
                }
                // The alarm does not count writes in transactions inside a transaction, so there
                // may be room for some.
                None => drop(mutex.lock().await),
            }
        }
    })
    .await;
    until("no claims", async || !claims(&server).iter().any(|key| key != "filler")).await;
    ctl(&endpoint(&server), &["del", "filler"]);
    nothing_is_left(&server, &[client]).await;
}

/// Locks and releases a name of its own until it is stopped; counts the successful rounds.
async fn go_on(client: Client, number: usize, (done, end): (Arc<AtomicUsize>, Arc<AtomicBool>)) {
    let mutex = client.mutex(format!("on:{number}")).ttl(LONG);
    while !end.load(Ordering::Acquire) {
        // Between two leaders there may be no member that answers.
        let Ok(lease) = mutex.lock().await else { continue };
        if lease.release().await.is_ok() {
            done.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_go_on_when_a_member_stops() {
    let group = cluster().await;
    let client = client(group.url()).await;
    let (done, end) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let mut tasks = JoinSet::new();
    for number in 0..TASKS / 2 {
        let told = (Arc::clone(&done), Arc::clone(&end));
        tasks.spawn(go_on(client.clone(), number, told));
    }
    let more = async |what: &str| {
        let before = done.load(Ordering::Acquire);
        until(what, async || done.load(Ordering::Acquire) > before + TASKS).await;
    };
    more("locks").await;
    // One of them is the member that the client asks, one is the leader.
    for server in group.servers() {
        server.stop_process().expect("it runs");
        more("locks without a member").await;
        server.continue_process().expect("it is stopped");
        more("locks with all members").await;
    }
    end.store(true, Ordering::Release);
    soon("all tasks", async { while tasks.join_next().await.is_some() {} }).await;
    until("an empty store", async || claims(&group.servers()[0]).is_empty()).await;
    nothing_is_left(&group.servers()[0], &[client]).await;
}
