//! What things cost: counted in requests, as the server counts them.

use std::time::{Duration, Instant};

use leasehold::claim::{Amendment, Claim, ClaimKey, Holder, Mode, Note, Standing, Token};
use leasehold::engine::{Bump, Engine, Notice, Wait, Wake};
use leasehold::zookeeper::ZooKeeper;
use leasehold::{LeaseState, Name, Released};
use leasehold_testkit::{Peer, PeerKind, Server};

use super::support::*;

/// A claim as an engine sees it: without a keeper there are no heartbeats to be counted.
fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("good"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: LONG,
        patience: Duration::from_secs(10),
        join: true,
    }
}

async fn engines(server: &Server, count: usize) -> Vec<ZooKeeper> {
    let mut engines = Vec::with_capacity(count);
    for _ in 0..count {
        engines.push(ZooKeeper::open(server.url()).await.expect("a connection"));
    }
    engines
}

/// Requests that a server got since, without the pings of idle sessions.
struct Meter<'a> {
    server: &'a Server,
    before: u64,
    begun: Instant,
    sessions: u64,
}

impl<'a> Meter<'a> {
    fn start(server: &'a Server) -> Self {
        let sessions = counted(server, "zk_num_alive_connections");
        let before = counted(server, "zk_packets_received");
        Self { server, before, begun: Instant::now(), sessions }
    }

    /// At least and at most so many.
    fn read(&self) -> (u64, u64) {
        let all = counted(self.server, "zk_packets_received") - self.before;
        // The shortest sessions here are for the default ttl, and ping every 2.8 s.
        let pings = self.sessions * (self.begun.elapsed().as_millis() as u64 / 2_800 + 1);
        (all.saturating_sub(pings), all)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_requests_both_agreed_on() {
    let server = server().await;
    pairs(&server, 2).await;
}

/// Whoever made a line's node may have something in it: it is not written, and the line is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_three_requests_in_a_line_that_others_made() {
    let server = server().await;
    let mut theirs = Peer::spawn(PeerKind::Kazoo, &[server.url()]).await.expect("a peer");
    assert!(theirs.try_lock("locks/pair", LONG).await.expect("an answer"));
    assert!(theirs.release("locks/pair").await.expect("an answer"));
    drop(theirs);
    until_empty(&server).await;
    pairs(&server, 3).await;
}

/// Locks a free name and gives it back, again and again, in so many requests each time, also in
/// another epoch.
async fn pairs(server: &Server, requests: u64) {
    let engine = &engines(server, 1).await[0];
    for (warm, bump) in [(true, false), (false, false), (true, true), (false, false)] {
        if bump {
            let order = Bump { above: 0, now_us: 1, by: Holder::fresh() };
            engine.bump_epoch(&order).await.expect("bumped");
        }
        let meter = Meter::start(server);
        for _ in 0..200 {
            let asked = claim("pair");
            assert!(matches!(engine.claim(&asked).await, Ok(Standing::Held { .. })));
            engine.release(&[asked.key]).await.expect("an answer");
        }
        let (least, most) = meter.read();
        let expected = 200 * requests;
        let fits = least <= expected && most >= expected;
        assert!(warm || fits, "{least} to {most} for 200 pairs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_cycle_is_four_requests_however_long_the_line() {
    const CYCLES: u64 = 200;
    let server = server().await;
    for waiting in [1, 7] {
        let engines = engines(&server, waiting + 1).await;
        let mut line = std::collections::VecDeque::new();
        for engine in &engines {
            let asked = claim("cycle");
            engine.claim(&asked).await.expect("a place");
            line.push_back((engine, asked));
        }
        let meter = Meter::start(&server);
        for _ in 0..CYCLES {
            let (engine, holds) = line.pop_front().expect("a holder");
            let (next, waits) = line.front().expect("a waiter");
            engine.release(&[holds.key]).await.expect("an answer");
            let woken = soon("the hand-off", next.wait(&waits.key)).await.expect("a bell");
            assert!(matches!(woken, Wake::Holds { .. }), "it need not ask");
            let again = claim("cycle");
            let standing = engine.claim(&again).await.expect("a place");
            assert!(matches!(standing, Standing::Queued { ahead, .. } if ahead == waiting));
            line.push_back((engine, again));
        }
        let (least, most) = meter.read();
        assert!(least <= 4 * CYCLES, "{least} to {most} requests for {CYCLES} cycles");
        while let Some((engine, asked)) = line.pop_front() {
            engine.release(&[asked.key]).await.expect("an answer");
        }
    }
    until_empty(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_note_is_one_request_and_so_is_a_notice_that_is_repeated() {
    let server = server().await;
    let engine = &engines(&server, 1).await[0];
    let held = claim("noted");
    assert!(matches!(engine.claim(&held).await, Ok(Standing::Held { .. })));
    let amendment = Amendment::note(Note::new("new").expect("good"));
    let waits = vec![Wait { name: held.key.name.clone(), fence: 1, keeps: Vec::new() }];
    let notice = Notice { holder: held.holder.id(), client: 1, waits, keep: LONG };
    for warm in [true, false] {
        let meter = Meter::start(&server);
        for _ in 0..200 {
            engine.amend(&held.key, &amendment).await.expect("an answer");
            engine.announce(&notice).await.expect("an answer");
            // Asked about, read, and one for the client that said it.
            assert_eq!(engine.waits_of(notice.holder).await.expect("an answer").len(), 1);
        }
        let (least, most) = meter.read();
        assert!(warm || (least <= 1_000 && most >= 1_000), "{least} to {most} for 200 of each");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f116_a_release_wakes_one_of_many_waiters() {
    const WAITERS: usize = 300;
    let server = server().await;
    let engines = engines(&server, 3).await;
    let first = claim("herd");
    engines[0].claim(&first).await.expect("free");
    let mut waiters = Vec::new();
    for index in 0..WAITERS {
        let asked = claim("herd");
        engines[index % 3].claim(&asked).await.expect("a place");
        waiters.push((&engines[index % 3], asked));
    }
    let sessions = counted(&server, "zk_num_alive_connections");
    let (before, begun) = (counted(&server, "zk_packets_sent"), Instant::now());
    engines[0].release(&[first.key]).await.expect("an answer");
    let (next, waits) = &waiters[0];
    soon("the hand-off", next.wait(&waits.key)).await.expect("a bell");
    let sent = counted(&server, "zk_packets_sent") - before;
    let pings = sessions * (begun.elapsed().as_millis() as u64 / 2_800 + 1);
    assert!(sent <= 4 + pings, "{sent} messages for one release, up to {pings} of them pings");
    for engine in &engines {
        let own: Vec<_> = waiters.iter().filter(|(of, _)| std::ptr::eq(*of, engine)).collect();
        let keys: Vec<ClaimKey> = own.iter().map(|(_, asked)| asked.key.clone()).collect();
        engine.release(&keys).await.expect("answers");
    }
    until_empty(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_share_one_session_and_one_request_renews_them() {
    const LOCKS: usize = 400;
    let server = server().await;
    let client = client(server.url()).await;
    let ttl = Duration::from_secs(4);
    let mut leases = Vec::with_capacity(LOCKS);
    for index in 0..LOCKS {
        leases.push(client.mutex(format!("many:{index}")).ttl(ttl).lock().await.expect("free"));
    }
    // One for the locks, the one the store was opened with, and the one that asks here.
    assert_eq!(counted(&server, "zk_num_alive_connections"), 3);
    let begun = leases[0].safe_until();
    until("renewals of all", async || {
        assert!(leases.iter().all(|lease| lease.state() != LeaseState::Lost));
        leases.iter().all(|lease| lease.safe_until().since(begun) > ttl * 2)
    })
    .await;
    for lease in leases {
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    soon("the close", client.close()).await.expect("an answer");
    until_empty(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_try_writes_nothing() {
    let server = server().await;
    let client = client(server.url()).await;
    let lease = client.mutex("cost").ttl(LONG).lock().await.expect("free");
    let zxid = || {
        let text = says(server.address(), "srvr").expect("it answers");
        let line = text.lines().find_map(|line| line.strip_prefix("Zxid: "));
        line.expect("a transaction").to_owned()
    };
    let before = zxid();
    for _ in 0..5 {
        assert!(client.mutex("cost").ttl(LONG).try_lock().await.expect("an answer").is_none());
    }
    assert_eq!(zxid(), before);
    drop(lease);
}
