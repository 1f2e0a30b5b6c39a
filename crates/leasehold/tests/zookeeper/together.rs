//! Many tasks at once: the client batches their claims and releases, and the result of one does not
//! affect the others.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Client, Lease, Released};
use leasehold_testkit::{Direction, Proxy, Server};
use tokio::task::JoinHandle;

use super::support::*;

const CROWD: usize = 64;
/// Nodes of one claim: one that kazoo reads, one that Curator reads.
const NODES: usize = 2;

fn name(index: usize) -> String {
    format!("crowd:{index}")
}

/// Locks all names at the same time.
async fn lock_all(client: &Client) -> Vec<Lease> {
    let locks = (0..CROWD).map(|index| async move {
        client.mutex(name(index)).ttl(LONG).lock().await.expect("it is free")
    });
    soon("leases for all", join_all(locks)).await
}

async fn release_all(leases: Vec<Lease>) -> Vec<Released> {
    let releases = leases.into_iter().map(Lease::release);
    let released = soon("answers for all", join_all(releases)).await;
    released.into_iter().map(|released| released.expect("an answer")).collect()
}

/// Locks everything once, so that the client has learned everything about the store.
async fn warm(client: &Client) {
    for _ in 0..2 {
        release_all(lock_all(client).await).await;
    }
}

/// Locks each name in a task of its own.
fn crowd(client: &Client) -> Vec<JoinHandle<leasehold::Result<Lease>>> {
    let mutexes = (0..CROWD).map(|index| client.mutex(name(index)).ttl(LONG));
    mutexes.map(|mutex| tokio::spawn(async move { mutex.lock().await })).collect()
}

async fn far_from(server: &Server) -> (Proxy, Client) {
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = client(&format!("zk://{}", proxy.address())).await;
    warm(&far).await;
    (proxy, far)
}

/// Checks that each name is held once, by its lease.
async fn each_holds_its_own(client: &Client, leases: &[Lease]) {
    for lease in leases {
        let line = client.line(lease.name()).await.expect("an answer").expect("it is held");
        assert_eq!((line.held.len(), line.waiting.len()), (1, 0), "{}", lease.name());
        assert_eq!(line.held[0].fence, lease.fence(), "{}", lease.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_many_tasks_are_fewer_requests_than_two_each_and_fences_rise_by_name() {
    const ROUNDS: usize = 20;
    let server = server().await;
    let client = client(server.url()).await;
    warm(&client).await;
    let before = counted(&server, "zk_packets_received");
    let mut last: HashMap<String, u64> = HashMap::new();
    for _ in 0..ROUNDS {
        let leases = lock_all(&client).await;
        for lease in &leases {
            assert!(lease.is_held());
            let known = last.insert(lease.name().to_string(), lease.fence().as_u64());
            assert!(known.is_none_or(|known| lease.fence() > known), "{}", lease.name());
        }
        assert_eq!(release_all(leases).await, vec![Released::Released; CROWD]);
    }
    // Each alone would take two requests.
    let requests = counted(&server, "zk_packets_received") - before;
    let alone = (2 * CROWD * ROUNDS) as u64;
    assert!(requests < alone / 2, "{requests} requests, {alone} by themselves");
    assert!(claims(&server).is_empty());
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_want_few_names_never_hold_one_together() {
    const NAMES: usize = 8;
    const TURNS: usize = 10;
    let server = server().await;
    let clients = [client(server.url()).await, client(server.url()).await];
    let taken: Arc<Vec<AtomicBool>> = Arc::new((0..NAMES).map(|_| AtomicBool::default()).collect());
    let tasks = (0..CROWD).map(|task| {
        let (client, taken) = (clients[task % 2].clone(), Arc::clone(&taken));
        tokio::spawn(async move {
            let mut last = [0; NAMES];
            for turn in 0..TURNS {
                let index = (task + turn) % NAMES;
                let lease = client.mutex(name(index)).ttl(LONG).lock().await.expect("a lease");
                assert!(!taken[index].swap(true, Ordering::SeqCst), "two hold {index}");
                assert!(
                    lease.fence() > std::mem::replace(&mut last[index], lease.fence().as_u64())
                );
                tokio::task::yield_now().await;
                taken[index].store(false, Ordering::SeqCst);
                assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon("all turns of a task", task).await.expect("no panic");
    }
    until_empty(&server).await;
    leaves_nothing(&server, clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_are_aborted_at_any_moment_leave_nothing() {
    const ROUNDS: u64 = 30;
    let server = server().await;
    let client = client(server.url()).await;
    warm(&client).await;
    for round in 0..ROUNDS {
        let tasks = crowd(&client);
        // From before the first request is sent to after the last answer.
        tokio::time::sleep(Duration::from_micros(round * 300)).await;
        for task in tasks.iter().step_by(2) {
            task.abort();
        }
        for task in tasks {
            match soon("the end of a task", task).await {
                Ok(lease) => drop(lease.expect("it is free, or will be")),
                Err(error) => assert!(error.is_cancelled()),
            }
        }
    }
    until_empty(&server).await;
    release_all(lock_all(&client).await).await;
    leaves_nothing(&server, [client]).await;
}

/// The number of a server's last transaction.
fn last_transaction(server: &Server) -> u64 {
    let text = says(server.address(), "srvr").expect("it answers");
    let number = text.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    u64::from_str_radix(number.expect("a number"), 16).expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_is_cancelled_before_it_is_sent_is_never_sent() {
    /// As many claims as the client sends at once.
    const FIRST: usize = 4;
    let server = server().await;
    let (proxy, far) = far_from(&server).await;
    let before = last_transaction(&server);
    proxy.block(Direction::ToClient);
    let lock = |index| far.mutex(name(index)).ttl(LONG);
    let mut first = Vec::new();
    for index in 0..FIRST {
        let mutex = lock(index);
        first.push(tokio::spawn(async move { mutex.lock().await }));
        until("one by itself", async || claims(&server).len() == (index + 1) * NODES).await;
    }
    let others: Vec<_> = (FIRST..CROWD).map(lock).collect();
    let others = others.iter().map(leasehold::Mutex::lock);
    let mut others = Box::pin(tokio::task::unconstrained(join_all(others)));
    // They are in flight to the session, as far as they get before the first answer.
    assert!(futures_util::poll!(&mut others).is_pending());
    drop(others);
    proxy.pass().await.expect("it passes");
    for task in first {
        let lease = soon("a lease", task).await.expect("no panic").expect("a lease");
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    until_empty(&server).await;
    assert_eq!(last_transaction(&server) - before, 2 * FIRST as u64, "others were sent");
    assert_eq!(release_all(lock_all(&far).await).await, vec![Released::Released; CROWD]);
    until_empty(&server).await;
    leaves_nothing(&server, [far]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_are_found_again_by_each_and_nothing_is_made_twice() {
    let server = server().await;
    let (proxy, far) = far_from(&server).await;
    for _ in 0..5 {
        proxy.block(Direction::ToClient);
        let tasks = crowd(&far);
        until("the first of them", async || !claims(&server).is_empty()).await;
        proxy.reset_all();
        proxy.pass().await.expect("it passes");
        let mut leases = Vec::with_capacity(CROWD);
        for task in tasks {
            leases.push(soon("a lease", task).await.expect("no panic").expect("a lease"));
        }
        assert_eq!(claims(&server).len(), CROWD * NODES);
        each_holds_its_own(&far, &leases).await;
        release_all(leases).await;
        until_empty(&server).await;
    }
    leaves_nothing(&server, [far]).await;
}

/// Removes a node, as an administrator would.
fn remove(server: &Server, path: &str) {
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let hello = [&[0; 12][..], &10_000_u32.to_be_bytes(), &[0; 8], &16_u32.to_be_bytes(), &[0; 17]];
    let length = u32::try_from(path.len()).expect("short").to_be_bytes();
    let delete = [&1_u32.to_be_bytes()[..], &[0, 0, 0, 2], &length, path.as_bytes(), &[255; 4]];
    let mut answer = Vec::new();
    for request in [hello.concat(), delete.concat()] {
        let length = u32::try_from(request.len()).expect("short").to_be_bytes();
        stream.write_all(&[&length[..], &request].concat()).expect("it is read");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        answer = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut answer).expect("an answer");
    }
    assert_eq!(answer[12..16], [0; 4], "it was not removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_line_was_removed_meanwhile_is_no_matter_to_the_others() {
    let server = server().await;
    let client = client(server.url()).await;
    warm(&client).await;
    for round in 0..5 {
        remove(&server, &format!("/locks/{}", name(CROWD - 1 - round)));
        let leases = lock_all(&client).await;
        each_holds_its_own(&client, &leases).await;
        assert_eq!(release_all(leases).await, vec![Released::Released; CROWD]);
    }
    assert!(claims(&server).is_empty());
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_evicted_meanwhile_is_no_matter_to_the_others() {
    let server = server().await;
    let [client, admin] = [client(server.url()).await, client(server.url()).await];
    warm(&client).await;
    let leases = lock_all(&client).await;
    let evicted = admin.admin().force_release(name(CROWD - 1), "a test").await.expect("an answer");
    assert_eq!(evicted.len(), 1);
    let released = release_all(leases).await;
    assert_eq!(released[..CROWD - 1], vec![Released::Released; CROWD - 1]);
    assert_ne!(released[CROWD - 1], Released::Released);
    assert!(claims(&server).is_empty());
    leaves_nothing(&server, [client, admin]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bump_of_the_epoch_meanwhile_makes_all_of_them_ask_again() {
    let server = server().await;
    let [client, admin] = [client(server.url()).await, client(server.url()).await];
    warm(&client).await;
    let mut last = 0;
    for _ in 0..5 {
        let bumped = admin.admin().bump_epoch(Some((last + 1_000).into())).await.expect("bumped");
        let leases = lock_all(&client).await;
        for lease in &leases {
            assert!(lease.fence() > last + 1_000, "{} after {bumped:?}", lease.fence());
        }
        each_holds_its_own(&admin, &leases).await;
        last = leases.iter().map(Lease::fence).max().expect("some").as_u64();
        release_all(leases).await;
    }
    assert!(claims(&server).is_empty());
    leaves_nothing(&server, [client, admin]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_go_on_while_connections_are_reset() {
    let server = server().await;
    let (proxy, far) = far_from(&server).await;
    goes_on(&far, async |_| proxy.reset_all()).await;
    until_empty(&server).await;
    leaves_nothing(&server, [far]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_go_on_when_a_member_is_killed() {
    let group = ensemble().await;
    let client = client(group.url()).await;
    warm(&client).await;
    goes_on(&client, async |turns| {
        if turns == CROWD {
            let leader = leader(&group).await;
            group.servers()[leader].kill().expect("it runs");
        }
    })
    .await;
    let alive = || group.servers().iter().filter(|server| says(server.address(), "srvr").is_some());
    until("an empty store", async || alive().all(|server| claims(server).is_empty())).await;
    let server = alive().next().expect("two are left");
    leaves_nothing(server, [client]).await;
}

/// Each task takes its name again and again, while `meanwhile` runs every few turns. Whatever the
/// result of a turn, the next one is right.
async fn goes_on(client: &Client, meanwhile: impl AsyncFn(usize)) {
    const TURNS: usize = 12;
    let (tell, mut told) = tokio::sync::mpsc::channel(CROWD);
    let tasks = (0..CROWD).map(|index| {
        let (client, tell) = (client.clone(), tell.clone());
        tokio::spawn(async move {
            let (mut turns, mut last) = (0, 0);
            while turns < TURNS {
                // The client asks again for a name that it could not reach; no other client wants
                // it.
                if let Ok(lease) = client.mutex(name(index)).ttl(LONG).lock().await {
                    assert!(lease.fence() > last, "{index}");
                    last = lease.fence().as_u64();
                    drop(lease.release().await);
                    turns += 1;
                    tell.send(()).await.expect("somebody counts");
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    drop(tell);
    let mut turns = 0;
    while soon("a turn", told.recv()).await.is_some() {
        turns += 1;
        if turns % CROWD == 0 {
            meanwhile(turns).await;
        }
    }
    assert_eq!(turns, CROWD * TURNS);
    for task in tasks {
        soon("the end of a task", task).await.expect("no panic");
    }
}
