//! Guarded keys on real servers: one, and a Cluster.

use leasehold::fencing::{GuardError, GuardedRedis, GuardedScript};
use leasehold_testkit::servers;
use redis::AsyncCommands as _;

use crate::support::*;

async fn connection(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a good address");
    soon("a connection", client.get_multiplexed_async_connection()).await.expect("connected")
}

#[tokio::test]
async fn an_old_fence_neither_sets_nor_gets_and_an_equal_one_does_both() {
    let server = server().await;
    let mut db = connection(server.url()).await;
    let guard = GuardedRedis::new();
    // Different numbers that are equal as floating point.
    let (older, old, new) = (9_007_199_254_740_992, 9_007_199_254_740_993, u64::MAX);
    guard.set(&mut db, "k", "one", old).await.expect("the first");
    guard.set(&mut db, "k", "two", old).await.expect("the same lease");
    let late = guard.set(&mut db, "k", "late", older).await.expect_err("one less");
    assert_eq!(late.refused().expect("a refusal").highest, old);
    let read: String = guard.get(&mut db, "k", new).await.expect("newer");
    assert_eq!(read, "two");
    let late = guard.get::<String>(&mut db, "k", old).await.expect_err("it was read since");
    let refused = late.refused().expect("a refusal");
    assert_eq!(
        (refused.given, refused.highest, refused.resource.as_str()),
        (old.into(), new.into(), "k")
    );
    guard.set(&mut db, "other", "x", 1).await.expect("another resource");
    let plain: String = db.get("k").await.expect("an answer");
    assert_eq!(plain, "two");
}

#[tokio::test]
async fn a_script_runs_with_a_fence_that_is_not_old_and_fails_as_it_would() {
    let server = server().await;
    let mut db = connection(server.url()).await;
    let withdraw = GuardedScript::new("return redis.call('DECRBY', KEYS[2], ARGV[2])");
    let left: i64 = withdraw.run(&mut db, "account", 7, &["account"], &[10]).await.expect("runs");
    assert_eq!(left, -10);
    let late = withdraw.run::<i64>(&mut db, "account", 6, &["account"], &[10]).await;
    assert!(late.is_err_and(|error| error.refused().is_some()));
    let spoilt = withdraw.run::<i64>(&mut db, "account", 8, &["account"], &["x"]).await;
    assert!(matches!(spoilt, Err(GuardError::Store(_))), "{spoilt:?}");
    let left: i64 = db.get("account").await.expect("an answer");
    assert_eq!(left, -10);
}

#[tokio::test]
async fn unreadable_fence_at_its_key_lets_nobody_in() {
    let server = server().await;
    let mut db = connection(server.url()).await;
    let () = db.set(GuardedRedis::fence_key("k"), "nonsense").await.expect("an answer");
    let refused = GuardedRedis::new().set(&mut db, "k", "x", 7).await;
    assert!(matches!(refused, Err(GuardError::Unusable { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn among_many_connections_what_is_accepted_never_goes_back() {
    let server = server().await;
    let append = "redis.call('RPUSH', KEYS[2], ARGV[1])";
    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let mut db = connection(server.url()).await;
        let script = GuardedScript::new(append);
        tasks.push(tokio::spawn(async move {
            for round in 0..100_u64 {
                let fence = 90 + round * 8 + (task * 5) % 8;
                let none: &[&str] = &[];
                match script.run::<()>(&mut db, "list", fence, &["list"], none).await {
                    Ok(()) => {}
                    Err(error) => assert!(error.refused().is_some(), "{error}"),
                }
            }
        }));
    }
    for task in tasks {
        soon("a task", task).await.expect("no panic");
    }
    let mut db = connection(server.url()).await;
    let fences: Vec<u64> = db.lrange("list", 0, -1).await.expect("an answer");
    assert!(fences.is_sorted() && fences.len() > 1, "{fences:?}");
    let highest: u64 = db.get(GuardedRedis::fence_key("list")).await.expect("an answer");
    assert_eq!(Some(&highest), fences.last());
}

#[tokio::test]
async fn greatest_fence_seen_outlives_a_restart_of_the_server() {
    let server = servers::Redis::new().append_only().start().await.expect("a server starts");
    let guard = GuardedRedis::new();
    guard.set(&mut connection(server.url()).await, "k", "nine", 9).await.expect("written");
    server.restart().await.expect("started again");
    let mut db = connection(server.url()).await;
    let late = guard.set(&mut db, "k", "late", 8).await;
    assert!(late.is_err_and(|error| error.refused().is_some()));
}

#[tokio::test]
async fn in_a_cluster_the_fence_is_where_its_key_is() {
    let group = servers::Redis::new().start_cluster().await.expect("a cluster starts");
    let nodes: Vec<String> =
        group.servers().iter().map(|server| format!("redis://{}", server.address())).collect();
    let client = redis::cluster::ClusterClient::new(nodes).expect("good addresses");
    let mut db = soon("a connection", client.get_async_connection()).await.expect("connected");
    let guard = GuardedRedis::new();
    for key in ["plain", "with {a tag}", "odd }{", "a", "b", "c"] {
        guard.set(&mut db, key, "x", 5).await.expect("one slot");
        let late = guard.get::<String>(&mut db, key, 4).await;
        assert!(late.is_err_and(|error| error.refused().is_some()), "{key}");
    }
}
