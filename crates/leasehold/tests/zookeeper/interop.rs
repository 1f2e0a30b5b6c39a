//! The real kazoo `Lock` and Curator `InterProcessMutex`. Each excludes leasehold, and leasehold
//! excludes each, in the dialects that promise it.

use std::time::Duration;

use leasehold::engine::Query;
use leasehold::{Mode, Released, UnlessHeld};
use leasehold_testkit::{Peer, PeerKind, Server};

use super::support::*;

/// A peer's name for leasehold's `demo`: a peer locks the node with this path.
const THEIRS: &str = "locks/demo";

const WAIT: Duration = Duration::from_secs(30);

async fn peer(kind: PeerKind, server: &Server) -> Peer {
    Peer::spawn(kind, &[server.url()]).await.expect("a peer")
}

/// Each dialect with the packages that it excludes.
fn dialects() -> Vec<(&'static str, PeerKind)> {
    vec![
        ("", PeerKind::Kazoo),
        ("", PeerKind::Curator),
        ("?dialect=both", PeerKind::Kazoo),
        ("?dialect=kazoo", PeerKind::Kazoo),
        ("?dialect=curator", PeerKind::Curator),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_are_excluded_by_our_lease_and_get_the_lock_after_it() {
    let server = server().await;
    for (dialect, kind) in dialects() {
        let client = client(&format!("{}{dialect}", server.url())).await;
        let mut theirs = peer(kind, &server).await;
        let lease = client.mutex("demo").ttl(LONG).lock().await.expect("it is free");
        assert!(!theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
        let taken = tokio::spawn(async move {
            let taken = theirs.lock(THEIRS, LONG, WAIT).await.expect("an answer");
            (theirs, taken)
        });
        until_waiting(&client, "demo", 1).await;
        assert!(!taken.is_finished(), "two hold at once: {kind} {dialect}");
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let (mut theirs, taken) = soon("their turn", taken).await.expect("no panic");
        assert!(taken, "{kind} {dialect}");
        let line = client.line("demo").await.expect("an answer").expect("it is held");
        assert_eq!(line.held[0].holder.label(), "a client of another library");
        assert!(theirs.release(THEIRS).await.expect("an answer"));
        leaves_nothing(&server, [client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_are_excluded_by_peers_and_get_the_lock_after_them() {
    let server = server().await;
    for (dialect, kind) in dialects() {
        let client = client(&format!("{}{dialect}", server.url())).await;
        let mut theirs = peer(kind, &server).await;
        assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
        assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_none());
        let mut ours = Waiter::start(client.request("demo").ttl(LONG));
        until_waiting(&client, "demo", 1).await;
        assert!(theirs.release(THEIRS).await.expect("an answer"));
        let lease = ours.granted().await;
        assert!(!theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
        lease.release().await.expect("an answer");
        leaves_nothing(&server, [client]).await;
    }
}

/// In another dialect than the peer's, leasehold waits for the peer, and the peer does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_another_dialect_are_waited_for_and_do_not_wait() {
    let server = server().await;
    let others = [("?dialect=kazoo", PeerKind::Curator), ("?dialect=curator", PeerKind::Kazoo)];
    for (dialect, kind) in others {
        let client = client(&format!("{}{dialect}", server.url())).await;
        let mut theirs = peer(kind, &server).await;
        assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
        assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_none());
        let mut ours = Waiter::start(client.request("demo").ttl(LONG));
        until_waiting(&client, "demo", 1).await;
        assert!(theirs.release(THEIRS).await.expect("an answer"));
        let lease = ours.granted().await;
        // Both have it now, and the page says so.
        assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
        assert!(lease.is_held());
        assert!(theirs.release(THEIRS).await.expect("an answer"));
        lease.release().await.expect("an answer");
        leaves_nothing(&server, [client]).await;
    }
}

/// Leasehold's mode, kazoo's half of the read/write lock, and whether both may hold.
const HALVES: [(Mode, PeerKind, bool); 4] = [
    (Mode::Shared, PeerKind::KazooRead, true),
    (Mode::Shared, PeerKind::KazooWrite, false),
    (Mode::Exclusive, PeerKind::KazooRead, false),
    (Mode::Exclusive, PeerKind::KazooWrite, false),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoos_readers_and_writers_are_kept_off_by_ours_and_follow_them() {
    let server = server().await;
    for dialect in ["", "?dialect=kazoo"] {
        let client = client(&format!("{}{dialect}", server.url())).await;
        for (mode, kind, together) in HALVES {
            let mut theirs = peer(kind, &server).await;
            let lease = client.request("demo").mode(mode).ttl(LONG).acquire().await.expect("free");
            let taken = theirs.try_lock(THEIRS, LONG).await.expect("an answer");
            assert_eq!(taken, together, "{kind} beside our {mode:?} {dialect}");
            if together {
                assert!(theirs.release(THEIRS).await.expect("an answer"));
                lease.release().await.expect("an answer");
                continue;
            }
            let taken = tokio::spawn(async move {
                let taken = theirs.lock(THEIRS, LONG, WAIT).await.expect("an answer");
                (theirs, taken)
            });
            until_waiting(&client, "demo", 1).await;
            assert!(!taken.is_finished(), "{kind} beside our {mode:?} {dialect}");
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            let (mut theirs, taken) = soon("their turn", taken).await.expect("no panic");
            assert!(taken, "{kind} after our {mode:?} {dialect}");
            assert!(theirs.release(THEIRS).await.expect("an answer"));
        }
        leaves_nothing(&server, [client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ours_are_kept_off_by_kazoos_readers_and_writers_and_follow_them() {
    let server = server().await;
    for dialect in ["", "?dialect=kazoo"] {
        let client = client(&format!("{}{dialect}", server.url())).await;
        for (mode, kind, together) in HALVES {
            let mut theirs = peer(kind, &server).await;
            assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"), "{kind} {dialect}");
            let ours = || client.request("demo").mode(mode).ttl(LONG);
            let tried = ours().try_acquire().await.unless_held().expect("an answer");
            assert_eq!(tried.is_some(), together, "our {mode:?} beside {kind} {dialect}");
            if let Some(lease) = tried {
                lease.release().await.expect("an answer");
                assert!(theirs.release(THEIRS).await.expect("an answer"));
                continue;
            }
            let mut waiter = Waiter::start(ours());
            until_waiting(&client, "demo", 1).await;
            assert!(waiter.is_waiting(), "our {mode:?} beside {kind} {dialect}");
            assert!(theirs.release(THEIRS).await.expect("an answer"));
            waiter.granted().await.release().await.expect("an answer");
        }
        leaves_nothing(&server, [client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_curator_and_we_take_turns_and_nobody_is_beside_another() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const ROUNDS: usize = 15;
    let server = server().await;
    let inside = Arc::new(AtomicUsize::new(0));
    // kazoo and Curator do not see each other, so each meets leasehold alone.
    for kind in [PeerKind::Kazoo, PeerKind::Curator] {
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let (alone, mut theirs) = (Arc::clone(&inside), peer(kind, &server).await);
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    assert!(theirs.lock(THEIRS, LONG, WAIT).await.expect("an answer"));
                    assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0, "{kind} beside us");
                    tokio::task::yield_now().await;
                    alone.fetch_sub(1, Ordering::SeqCst);
                    assert!(theirs.release(THEIRS).await.expect("an answer"));
                }
            }));
            let (alone, ours) = (Arc::clone(&inside), client(server.url()).await);
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let lease = ours.mutex("demo").ttl(LONG).lock().await.expect("a lease");
                    assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0, "we beside {kind}");
                    tokio::task::yield_now().await;
                    alone.fetch_sub(1, Ordering::SeqCst);
                    lease.release().await.expect("an answer");
                }
                ours.close().await.expect("an answer");
            }));
        }
        for task in tasks {
            soon("all rounds", task).await.expect("no panic");
        }
    }
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_peer_is_followed_by_us_after_its_session() {
    let server = server().await;
    let client = client(server.url()).await;
    let mut theirs = peer(PeerKind::Kazoo, &server).await;
    assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"));
    let mut ours = Waiter::start(client.request("demo").ttl(LONG));
    until_waiting(&client, "demo", 1).await;
    theirs.kill().expect("it runs");
    assert!(ours.granted().await.is_held());
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_others_are_listed_and_can_be_taken_from_them() {
    let server = server().await;
    let client = client(server.url()).await;
    let mut theirs = peer(PeerKind::Kazoo, &server).await;
    assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"));
    let page = client.admin().inspect(&Query::all()).await.expect("an answer");
    let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["demo"]);
    let evicted = client.admin().force_release("demo", "stuck").await.expect("an answer");
    assert_eq!(evicted.len(), 1);
    assert!(client.mutex("demo").try_lock().await.unless_held().expect("an answer").is_some());
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_on_a_name_that_a_peer_locks_are_a_mismatch() {
    let server = server().await;
    let client = client(server.url()).await;
    let mut theirs = peer(PeerKind::Kazoo, &server).await;
    assert!(theirs.try_lock(THEIRS, LONG).await.expect("an answer"));
    let permits = client.request("demo").mode(Mode::Permits { take: 1, of: 3 });
    let refused = permits.try_acquire().await.unless_held();
    assert!(matches!(refused, Err(leasehold::Error::Mismatch { .. })), "{refused:?}");
    assert!(theirs.release(THEIRS).await.expect("an answer"));
    leaves_nothing(&server, [client]).await;
}
