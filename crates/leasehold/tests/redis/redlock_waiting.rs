//! Waiting for a majority of nodes: bells that do not arrive, and how many claims wake.

use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::redlock::Redlock;
use leasehold::{Client, Released};
use leasehold_testkit::servers::{self, Group};

use crate::redlock::{long_url, memory_only};
use crate::support::*;

/// Three nodes with a user whose right to hear messages can be taken away.
async fn deafening() -> (Group, String) {
    let options = servers::Redis::new().user("deaf", "hush", "~* &leasehold:* +@all");
    let group = options.start_many(3).await.expect("servers start");
    let url = long_url(&group).replacen("redlock://", "redlock://deaf:hush@", 1);
    (group, url)
}

fn mailboxes(group: &Group) -> usize {
    let count =
        |server| told(server, &["PUBSUB", "CHANNELS", "leasehold:mailbox:*"]).lines().count();
    group.servers().iter().map(count).sum()
}

/// The number of mailboxes once the only client has one at each node. Its first lease needs a
/// majority of them, so the last may open later.
async fn opened_mailboxes(group: &Group) -> usize {
    let nodes = group.servers().len();
    until("a mailbox at each node", async || mailboxes(group) == nodes).await;
    nodes
}

/// Ends the mailboxes of the user, and forbids it to open new ones.
fn deafen(group: &Group) {
    for server in group.servers() {
        told(server, &["ACL", "SETUSER", "deaf", "resetchannels"]);
    }
}

fn let_hear(group: &Group) {
    for server in group.servers() {
        told(server, &["ACL", "SETUSER", "deaf", "&leasehold:*"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f110_waiter_that_hears_no_node_is_granted_by_its_heartbeat() {
    let (group, url) = deafening().await;
    let (holder, deaf) = (client(long_url(&group)).await, client(url).await);
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let own = opened_mailboxes(&group).await;
    let waiter = Waiter::queue(&holder, &deaf, "report", 0).await;
    until("mailboxes at all nodes", async || mailboxes(&group) == own + 3).await;
    deafen(&group);
    assert_eq!(mailboxes(&group), own, "the holder's own");
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.is_held() && next.fence() > fence);
    assert_eq!(mailboxes(&group), own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_waiter_asks_every_node_when_its_mailboxes_come_back() {
    let (group, url) = deafening().await;
    let holder = client(long_url(&group)).await;
    let (chaos, engine) = (Chaos::default(), Redlock::open(&url).await.expect("the store opens"));
    let waiting = Client::builder().engine(chaos.trouble(engine)).expect("a client");
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let own = opened_mailboxes(&group).await;
    // Without heartbeats nothing but a mailbox can bring the waiter back before the ttl.
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let waiter = Waiter::queue(&holder, &waiting, "report", 0).await;
    until("mailboxes at all nodes", async || mailboxes(&group) == own + 3).await;
    deafen(&group);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let_hear(&group);
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_mailboxes_cut_at_the_release_lose_nobody() {
    let group = memory_only(3).await;
    let (holder, waiting) = (client(long_url(&group)).await, client(long_url(&group)).await);
    let cut = || {
        for server in group.servers() {
            told(server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
    };
    for round in 0..10 {
        let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
        let waiter = Waiter::queue(&holder, &waiting, "report", 0).await;
        // Before the release and beside it, alternately.
        if round % 2 == 0 {
            cut();
        }
        let released = tokio::spawn(async move { lease.release().await });
        if round % 2 == 1 {
            cut();
        }
        released.await.expect("no panic").expect("an answer");
        waiter.granted().await.release().await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f116_one_release_wakes_one_of_two_hundred() {
    const WAITERS: usize = 200;
    let group = memory_only(3).await;
    // On a busy machine a late answer must not make a client ask again.
    let url = format!("{}&node_timeout_ms=60000", long_url(&group));
    let holder = client(&url).await;
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(&url).await);
    }
    let waiters: Vec<Waiter> = (0..WAITERS)
        .map(|number| Waiter::start(clients[number % 4].request("report").ttl(LONG)))
        .collect();
    until_waiting(&holder, "report", WAITERS).await;
    let [first, ..] = group.servers() else { panic!("three nodes") };
    let bells = || group.servers().iter().map(|server| calls(server, "publish")).sum::<u64>();
    let (heard, before) = (calls(first, "zadd"), bells());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until("one grant", async || waiters.iter().any(|waiter| !waiter.is_waiting())).await;
    // Heartbeats of all waiters come and go meanwhile; they must not wake a claim either.
    until("heartbeats", async || calls(first, "zadd") >= heard + WAITERS as u64).await;
    let woken = waiters.iter().filter(|waiter| !waiter.is_waiting()).count();
    assert_eq!(woken, 1);
    // One bell at each node, if all put the same claim first.
    assert!((3..=6).contains(&(bells() - before)), "{} bells", bells() - before);
}
