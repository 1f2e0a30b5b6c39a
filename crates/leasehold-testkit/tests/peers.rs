//! Every peer locks the key or node that it names, and leaves the locks of others alone.
//!
//! `SET NX PX` by hand stands for all other clients on Redis. Leasehold's own tests cover how it
//! works with the peers.

use std::time::{Duration, Instant};

use leasehold_testkit::{Clock, Error, Peer, PeerKind, Redis, Server, Zookeeper};

const TTL: Duration = Duration::from_secs(60);
const NAME: &str = "report";

async fn peer(kind: PeerKind, server: &Server) -> Peer {
    Peer::spawn(kind, &[server.url()]).await.unwrap()
}

/// Takes a key by hand; false when it exists already.
fn set(server: &Server, key: &str, ttl_ms: &str) -> bool {
    !server.redis(&["SET", key, "by hand", "NX", "PX", ttl_ms]).unwrap().is_empty()
}

fn ttl_ms(server: &Server, key: &str) -> i128 {
    server.redis(&["PTTL", key]).unwrap().parse().unwrap()
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < TTL / 2, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn peers_are_excluded_by_a_key_set_by_hand_and_exclude_it() {
    let server = Redis::new().start().await.unwrap();
    for kind in PeerKind::ON_REDIS {
        let key = kind.key(NAME);
        server.redis(&["FLUSHALL"]).unwrap();
        let mut peer = peer(kind, &server).await;
        assert!(set(&server, &key, "60000"), "{kind}");
        assert!(!peer.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        let wait = Duration::from_millis(100);
        assert!(!peer.lock(NAME, TTL, wait).await.unwrap(), "{kind}");
        assert_eq!(server.redis(&["GET", &key]).unwrap(), "by hand", "{kind}");
        server.redis(&["DEL", &key]).unwrap();

        assert!(peer.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(!set(&server, &key, "60000"), "{kind}");
        assert_eq!(server.redis(&["TYPE", &key]).unwrap(), "string", "{kind}");
        let left = ttl_ms(&server, &key);
        assert!(left > 50_000 && left <= 60_000, "{kind}: {left}");
        assert!(peer.release(NAME).await.unwrap(), "{kind}");
        assert!(set(&server, &key, "60000"), "{kind}");
    }
}

#[tokio::test]
async fn peers_exclude_themselves_and_their_like() {
    let server = Redis::new().start().await.unwrap();
    for kind in PeerKind::ON_REDIS {
        let (mut one, mut two) = (peer(kind, &server).await, peer(kind, &server).await);
        assert!(one.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(!one.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(!two.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(two.try_lock("another", TTL).await.unwrap(), "{kind}");
        assert!(one.release(NAME).await.unwrap(), "{kind}");
        assert!(two.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        server.redis(&["FLUSHALL"]).unwrap();
    }
}

#[tokio::test]
async fn peers_wait_until_the_lock_is_released() {
    let server = Redis::new().start().await.unwrap();
    for kind in PeerKind::ON_REDIS {
        let (mut one, mut two) = (peer(kind, &server).await, peer(kind, &server).await);
        assert!(one.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        let mut waiting = std::pin::pin!(two.lock(NAME, TTL, TTL / 2));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
        assert!(early.is_err(), "{kind} waits, rather than {early:?}");
        assert!(one.release(NAME).await.unwrap(), "{kind}");
        assert!(waiting.await.unwrap(), "{kind}");
        assert!(!one.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        server.redis(&["FLUSHALL"]).unwrap();
    }
}

#[tokio::test]
async fn peers_extend_what_is_theirs_and_tell_when_it_is_gone() {
    let server = Redis::new().start().await.unwrap();
    for kind in PeerKind::ON_REDIS {
        let key = kind.key(NAME);
        let mut peer = peer(kind, &server).await;
        assert!(!peer.release(NAME).await.unwrap(), "{kind}: it was never taken");
        assert!(!peer.extend(NAME, TTL).await.unwrap(), "{kind}: it was never taken");
        assert!(peer.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(peer.extend(NAME, 10 * TTL).await.unwrap(), "{kind}");
        assert!(ttl_ms(&server, &key) > 500_000, "{kind}");

        server.redis(&["SET", &key, "by hand"]).unwrap();
        assert!(!peer.extend(NAME, TTL).await.unwrap(), "{kind}: it is another's");
        assert!(!peer.release(NAME).await.unwrap(), "{kind}: it is another's");
        assert_eq!(server.redis(&["GET", &key]).unwrap(), "by hand", "{kind}");
        server.redis(&["FLUSHALL"]).unwrap();
    }
}

#[tokio::test]
async fn lock_of_a_killed_peer_lasts_until_its_ttl_ends() {
    let clock = Clock::new().unwrap();
    let server = Redis::new().clock(&clock).start().await.unwrap();
    clock.freeze();
    for kind in PeerKind::ON_REDIS {
        let key = kind.key(NAME);
        let mut peer = peer(kind, &server).await;
        assert!(peer.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        peer.kill().unwrap();
        let gone = peer.release(NAME).await;
        assert!(matches!(gone, Err(Error::NotRunning { .. } | Error::Io { .. })), "{gone:?}");
        clock.advance(TTL);
        assert!(!set(&server, &key, "60000"), "{kind}");
        clock.advance(Duration::from_millis(1));
        assert!(set(&server, &key, "60000"), "{kind}");
        server.redis(&["FLUSHALL"]).unwrap();
    }
}

#[tokio::test]
async fn redlock_needs_a_majority_of_its_servers() {
    let group = Redis::new().start_many(3).await.unwrap();
    let urls: Vec<&str> = group.servers().iter().map(Server::url).collect();
    let mut peer = Peer::spawn(PeerKind::Redlock, &urls).await.unwrap();
    let [first, second, third] = group.servers() else { panic!("three servers: {group:?}") };
    assert!(set(first, NAME, "60000"));
    assert!(peer.try_lock(NAME, TTL).await.unwrap(), "two of three are a majority");
    assert!(!set(second, NAME, "60000") && !set(third, NAME, "60000"));
    assert!(peer.release(NAME).await.unwrap());
    assert!(set(second, NAME, "60000"));
    assert!(!peer.try_lock(NAME, TTL).await.unwrap(), "one of three is none");
    eventually("the minority to be given back", || set(third, NAME, "60000")).await;
}

#[tokio::test]
async fn peers_on_zookeeper_exclude_their_like_and_end_with_their_session() {
    let server = Zookeeper::new().start().await.unwrap();
    for kind in [PeerKind::Kazoo, PeerKind::Curator] {
        let mut one = peer(kind, &server).await;
        let mut two = peer(kind, &server).await;
        assert!(one.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(!two.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        assert!(!two.lock(NAME, TTL, Duration::from_millis(100)).await.unwrap(), "{kind}");
        assert!(one.release(NAME).await.unwrap(), "{kind}");
        assert!(!one.release(NAME).await.unwrap(), "{kind}");
        assert!(two.try_lock(NAME, TTL).await.unwrap(), "{kind}");
        let refused = two.extend(NAME, TTL).await.unwrap_err().to_string();
        assert!(refused.contains("as long as the session"), "{refused}");
        two.kill().unwrap();
        assert!(one.lock(NAME, TTL, TTL / 2).await.unwrap(), "{kind}");
        assert!(one.release(NAME).await.unwrap(), "{kind}");
    }
}

#[tokio::test]
async fn answer_that_nobody_waited_for_is_not_taken_for_another() {
    let server = Redis::new().start().await.unwrap();
    let mut peer = peer(PeerKind::RedisPy, &server).await;
    assert!(set(&server, NAME, "60000"));
    let wait = Duration::from_millis(300);
    tokio::time::timeout(Duration::from_millis(1), peer.lock(NAME, TTL, wait)).await.unwrap_err();
    assert!(peer.try_lock("another", TTL).await.unwrap());
    assert!(!peer.try_lock("another", TTL).await.unwrap());
}

#[tokio::test]
async fn peer_without_a_server_is_an_error_with_its_message() {
    let error = Peer::spawn(PeerKind::RedisPy, &["redis://127.0.0.1:1"]).await.unwrap_err();
    assert!(error.to_string().contains("Connection refused"), "{error}");
    let error = Peer::spawn(PeerKind::Redlock, &["redis://127.0.0.1:1"]).await.unwrap_err();
    assert!(error.to_string().contains("ECONNREFUSED"), "{error}");
}

#[tokio::test]
async fn clients_of_postgres_are_installed_for_python() {
    let script = "import asyncpg, psycopg; assert psycopg.pq.__impl__ == 'binary'";
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/interop/venv/bin/python");
    let output = std::process::Command::new(python).args(["-c", script]).output();
    let output = output.expect("`cargo xtask setup` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
