//! The cost of operations, in requests, as the server counts them.

use std::time::{Duration, Instant};

use leasehold::claim::{Claim, Holder, Note, Standing};
use leasehold::engine::{
    Amend, Bump, Engine, Notice, Query, RaiseFences, Select, Wait, WaitNotices, Wake,
};
use leasehold::zookeeper::ZooKeeper;
use leasehold::{LeaseState, Released, UnlessHeld};
use leasehold_testkit::bare::{claim, renewal};
use leasehold_testkit::{Peer, PeerKind, Server};

use super::support::*;

async fn engines(server: &Server, count: usize) -> Vec<ZooKeeper> {
    let mut engines = Vec::with_capacity(count);
    for _ in 0..count {
        engines.push(ZooKeeper::open(server.url()).await.expect("a connection"));
    }
    engines
}

/// The questions of tests to a server between two readings of a meter, and the second reading. The
/// server counts these as well, and each is on a connection of its own.
const WORDS_MAX: u64 = 3;

/// Counts requests to a server since its start, without the pings of idle sessions.
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

    /// The least and the most requests since the start.
    fn read(&self) -> (u64, u64) {
        let all = counted(self.server, "zk_packets_received") - self.before;
        // The shortest sessions here are for the default ttl, and send a ping every 2.8 s.
        let pings = self.sessions * (self.begun.elapsed().as_millis() as u64 / 2_800 + 1);
        (all.saturating_sub(pings + WORDS_MAX), all)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_requests_both_agreed_on() {
    let server = server().await;
    pairs(&server, 2).await;
}

/// A client of another library that made a line's node may have data in it. So leasehold does not
/// write to that node, and reads the line.
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

/// Locks a free name and gives it back, again and again. Checks the requests of each round, also in
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
    close([engine]).await;
    leaves_nothing(server, []).await;
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
        until_empty(&server).await;
        close(&engines).await;
        leaves_nothing(&server, []).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_note_is_one_request_and_so_is_a_notice_that_is_repeated() {
    let server = server().await;
    let engine = &engines(&server, 1).await[0];
    let held = claim("noted");
    assert!(matches!(engine.claim(&held).await, Ok(Standing::Held { .. })));
    let note = Note::new("new").expect("good");
    let waits = vec![Wait { name: held.key.name.clone(), fence: 1, keeps: Vec::new() }];
    let notice = Notice { holder: held.holder.id(), client: 1, waits, keep: LONG };
    for warm in [true, false] {
        let meter = Meter::start(&server);
        for _ in 0..200 {
            engine.set_note(&held.key, &note).await.expect("an answer");
            engine.announce(&notice).await.expect("an answer");
            // A question, a read, and a request for the client that announced it.
            assert_eq!(engine.waits_of(notice.holder).await.expect("an answer").len(), 1);
        }
        let (least, most) = meter.read();
        assert!(warm || (least <= 1_000 && most >= 1_000), "{least} to {most} for 200 of each");
    }
    engine.release(&[held.key]).await.expect("an answer");
    close([engine]).await;
    leaves_nothing(&server, []).await;
}

/// The number of watches, and of those that fired so far.
fn watches(server: &Server) -> (u64, u64) {
    let off = ["created", "deleted", "changed", "children"]
        .map(|change| counted(server, &format!("zk_sum_node_{change}_watch_count")));
    (counted(server, "zk_watch_count"), off.iter().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f116_a_release_wakes_one_of_many_waiters() {
    const SESSIONS: usize = 30;
    const WAITERS: usize = 300;
    // The last waiter waits for longer than a default session may last on a busy machine.
    let server = server_with_long_sessions().await;
    let waiting = || Claim { patience: LONG, ..claim("herd") };
    // Each waiter is on a session of its own, so that a herd would wake one by one.
    let engines = engines(&server, SESSIONS).await;
    let mut holds = (&engines[0], waiting());
    holds.0.claim(&holds.1).await.expect("free");
    let mut waiters = std::collections::VecDeque::new();
    for index in 0..WAITERS {
        let (engine, asked) = (&engines[index % SESSIONS], waiting());
        engine.claim(&asked).await.expect("a place");
        waiters.push_back((engine, asked));
    }
    while let Some((next, waits)) = waiters.pop_front() {
        let (watches_before, before) = watches(&server);
        assert_eq!(watches_before, waiters.len() as u64 + 1, "each watches one");
        holds.0.release(&[holds.1.key]).await.expect("an answer");
        let woken = soon("the hand-off", next.wait(&waits.key)).await.expect("a bell");
        assert!(matches!(woken, Wake::Holds { .. }), "{woken:?}");
        let (left, now) = watches(&server);
        assert_eq!((now - before, left), (1, waiters.len() as u64), "one was woken");
        holds = (next, waits);
    }
    holds.0.release(&[holds.1.key]).await.expect("an answer");
    close(&engines).await;
    leaves_nothing(&server, []).await;
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
    // One for the locks, the one that opened the store, and the one that asks here.
    assert_eq!(counted(&server, "zk_num_alive_connections"), 3);
    let begun = leases[0].deadline();
    until("renewals of all", async || {
        assert!(leases.iter().all(|lease| lease.state() != LeaseState::Lost));
        leases.iter().all(|lease| lease.deadline().since(begun) > ttl * 2)
    })
    .await;
    for lease in leases {
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    leaves_nothing(&server, [client]).await;
}

/// The latest transaction of a server: every change that the ensemble agrees on makes one.
fn transaction(server: &Server) -> u64 {
    let text = says(server.address(), "srvr").expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix("Zxid: 0x"));
    u64::from_str_radix(line.expect("a transaction"), 16).expect("a number")
}

/// Runs `what` many times, after a first time. Checks the requests of each run, and how many of
/// them the ensemble agreed on.
async fn costs(server: &Server, (requests, agreed): (u64, u64), what: &str, verb: impl AsyncFn()) {
    const TIMES: u64 = 100;
    verb().await;
    let (meter, before) = (Meter::start(server), transaction(server));
    for _ in 0..TIMES {
        verb().await;
    }
    let made = transaction(server) - before;
    let ((least, most), expected) = (meter.read(), TIMES * requests);
    let fits = least <= expected && expected <= most;
    assert!(fits, "{least} to {most} requests for {TIMES} times {what}, not {expected}");
    assert_eq!(made, TIMES * agreed, "transactions for {TIMES} times {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewing_is_one_agreed_request_for_each_two_hundred_leases() {
    let server = server().await;
    let engine = &engines(&server, 1).await[0];
    let mut held = Vec::new();
    for (locks, requests) in [(1, 1), (200, 1), (201, 2), (400, 2), (401, 3)] {
        while held.len() < locks {
            let asked = claim(&format!("renewed:{}", held.len()));
            assert!(matches!(engine.claim(&asked).await, Ok(Standing::Held { .. })));
            held.push(asked);
        }
        let renewals: Vec<_> = held.iter().map(renewal).collect();
        costs(&server, (requests, requests), &format!("{locks} renewals"), async || {
            let standings = engine.renew(&renewals).await.expect("an answer");
            let held = |standing: &_| matches!(standing, Ok(Standing::Held { .. }));
            assert!(standings.iter().all(held), "{standings:?}");
        })
        .await;
    }
    let keys: Vec<_> = held.into_iter().map(|claim| claim.key).collect();
    engine.release(&keys).await.expect("an answer");
    close([engine]).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_try_is_four_requests_and_none_is_agreed_on() {
    let server = server().await;
    let engines = engines(&server, 2).await;
    let held = claim("refused");
    assert!(matches!(engines[0].claim(&held).await, Ok(Standing::Held { .. })));
    costs(&server, (4, 0), "a refused try", async || {
        let asked = Claim { join: false, ..claim("refused") };
        let standing = engines[1].claim(&asked).await.expect("an answer");
        assert!(matches!(standing, Standing::Out { by: Some(_), .. }), "{standing:?}");
    })
    .await;
    engines[0].release(&[held.key]).await.expect("an answer");
    close(&engines).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_of_waiters_is_one_request_for_each_name_and_none_is_agreed_on() {
    let server = server().await;
    let engines = engines(&server, 2).await;
    let mut waits = Vec::new();
    // One waiter, then three of one name, then two names.
    for (name, requests) in [("one", 1), ("one", 1), ("one", 1), ("two", 2)] {
        let (first, second) = (claim(name), claim(name));
        engines[0].claim(&first).await.expect("a place");
        let standing = engines[1].claim(&second).await.expect("a place");
        assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
        waits.push((first, second));
        let beats: Vec<_> = waits.iter().map(|(_, waits)| renewal(waits)).collect();
        costs(&server, (requests, 0), &format!("{} heartbeats", beats.len()), async || {
            let standings = engines[1].renew(&beats).await.expect("an answer");
            let queued = |standing: &_| matches!(standing, Ok(Standing::Queued { .. }));
            assert!(standings.iter().all(queued), "{standings:?}");
        })
        .await;
    }
    for (first, second) in waits {
        engines[0].release(&[first.key]).await.expect("an answer");
        engines[1].release(&[second.key]).await.expect("an answer");
    }
    close(&engines).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_is_agreed_on_when_what_was_proven_does_not_last() {
    let server = server().await;
    let engines = engines(&server, 2).await;
    let first = claim("patient");
    engines[0].claim(&first).await.expect("a place");
    // No session here proves that long a time.
    let waits = Claim { patience: LONG, ..claim("patient") };
    engines[1].claim(&waits).await.expect("a place");
    costs(&server, (2, 1), "a heartbeat", async || {
        let standings = engines[1].renew(&[renewal(&waits)]).await.expect("an answer");
        assert!(matches!(standings[..], [Ok(Standing::Queued { .. })]), "{standings:?}");
    })
    .await;
    engines[0].release(&[first.key]).await.expect("an answer");
    engines[1].release(&[waits.key]).await.expect("an answer");
    close(&engines).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspecting_costs_two_requests_one_for_each_line_and_two_for_each_claim() {
    let server = server().await;
    let engine = &engines(&server, 1).await[0];
    let mut claims = Vec::new();
    for (line, count) in [("a", 1), ("b", 3)] {
        for _ in 0..count {
            let asked = claim(line);
            engine.claim(&asked).await.expect("a place");
            claims.push(asked);
        }
    }
    let inspected = async |query: &Query, count: usize| {
        let page = engine.inspect(query).await.expect("an answer");
        let seen = page.lines.iter().map(|line| line.held.len() + line.waiting.len());
        assert_eq!(seen.sum::<usize>(), count, "{page:?}");
    };
    let one = Query { select: Select::Name(claims[0].key.name.clone()), ..Query::all() };
    costs(&server, (1 + 1 + 2, 0), "a look at one name", async || inspected(&one, 1).await).await;
    let all = Query::all();
    costs(&server, (2 + 2 + 2 * 4, 0), "a look at all", async || inspected(&all, 4).await).await;
    let note = Note::new("new").expect("good");
    engine.set_note(&claims[0].key, &note).await.expect("an answer");
    let with_note = 1 + 1 + 2 + 1;
    costs(&server, (with_note, 0), "a note too", async || inspected(&one, 1).await).await;
    let keys: Vec<_> = claims.into_iter().map(|claim| claim.key).collect();
    engine.release(&keys).await.expect("an answer");
    close([engine]).await;
    leaves_nothing(&server, []).await;
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
        assert!(
            client
                .mutex("cost")
                .ttl(LONG)
                .try_lock()
                .await
                .unless_held()
                .expect("an answer")
                .is_none()
        );
    }
    assert_eq!(zxid(), before);
    drop(lease);
    leaves_nothing(&server, [client]).await;
}
