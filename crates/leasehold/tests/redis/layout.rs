//! Keys: those of others, leasehold's own, and those that stay.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::claim::{Claim, Released};
use leasehold::engine::{Administer, Engine, Query};
use leasehold::error::Invalid;
use leasehold::{Error, LockOptions, Mode, UnlessHeld};
use leasehold_testkit::{Server, servers};

use crate::support::*;

/// Commands that put a value of each type at the key.
const FOREIGN: [(&str, &[&str]); 6] = [
    ("string", &["SET", "lock:report", "theirs"]),
    ("list", &["LPUSH", "lock:report", "theirs"]),
    ("hash", &["HSET", "lock:report", "theirs", "1"]),
    ("set", &["SADD", "lock:report", "theirs"]),
    ("zset", &["ZADD", "lock:report", "1", "theirs"]),
    ("stream", &["XADD", "lock:report", "*", "theirs", "1"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_of_any_type_means_busy_until_it_is_gone() {
    let server = server().await;
    let one = client(server.url()).await;
    for (kind, put) in FOREIGN {
        for ends in ["deleted", "expired"] {
            told(&server, put);
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
                let tried = one.request("report").mode(mode).try_acquire().await.unless_held();
                assert!(tried.expect("an answer").is_none(), "{kind} {mode:?}");
            }
            let waiter = Waiter::queue(&one, &one, "report", 0).await;
            assert_eq!(told(&server, &["TYPE", "lock:report"]), kind, "it was touched");
            assert!(waiter.is_waiting());
            match ends {
                "deleted" => told(&server, &["DEL", "lock:report"]),
                _ => told(&server, &["PEXPIRE", "lock:report", "50"]),
            };
            let lease = waiter.granted().await;
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
            assert_eq!(told(&server, &["KEYS", "*report*"]), "", "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_for_a_foreign_lock_ends_at_its_limit() {
    let server = server().await;
    let one = client(server.url()).await;
    told(&server, &["SET", "lock:report", "theirs"]);
    let waited = one.mutex("report").lock_within(Duration::from_secs(3)).await.unless_held();
    assert!(waited.expect("an answer").is_none(), "the foreign lock stays");
    assert_eq!(told(&server, &["KEYS", "*report*"]), "lock:report");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn line_behind_a_foreign_lock_is_served_in_order() {
    let server = server().await;
    let one = client(server.url()).await;
    told(&server, &["SET", "lock:report", "theirs"]);
    let first = Waiter::queue(&one, &one, "report", 0).await;
    let second = Waiter::queue(&one, &one, "report", 1).await;
    told(&server, &["DEL", "lock:report"]);
    let lease = first.granted().await;
    assert!(second.is_waiting());
    let fence = lease.fence();
    // A client of another library that comes now finds it taken.
    assert_eq!(told(&server, &["SET", "lock:report", "theirs", "NX", "PX", "60000"]), "");
    lease.release().await.expect("an answer");
    assert!(second.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_lock_put_over_ours_loses_the_lease_and_is_not_touched() {
    let server = server().await;
    let one = early_client(server.url()).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &one, "report", 0).await;
    told(&server, &["SET", "lock:report", "theirs"]);
    soon("the loss", lease.lost()).await;
    let released = lease.release().await.expect("an answer");
    assert!(matches!(released, Released::TakenBy(_)), "{released:?}");
    assert!(waiter.is_waiting());
    assert_eq!(told(&server, &["GET", "lock:report"]), "theirs");
    told(&server, &["DEL", "lock:report"]);
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_lock_is_shown_and_can_be_force_released() {
    let server = server().await;
    let one = client(server.url()).await;
    told(&server, &["SET", "lock:report", "theirs", "PX", "60000"]);
    let line = one.line("report").await.expect("an answer").expect("somebody holds it");
    assert_eq!(line.held[0].holder.label(), "a client of another library");
    assert!(line.held[0].remaining > Duration::from_secs(50));
    let evicted = one.admin().force_release("report", "a test").await.expect("an answer");
    assert_eq!(evicted.len(), 1);
    assert_eq!(evicted[0].label(), "a client of another library");
    assert_eq!(told(&server, &["EXISTS", "lock:report"]), "0");
    told(&server, &["RPUSH", "lock:report", "theirs"]);
    let waiter = Waiter::queue(&one, &one, "report", 0).await;
    one.admin().force_release("report", "a test").await.expect("an answer");
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_exclusive_lock_is_a_string_that_ends_with_the_lease() {
    let server = server().await;
    let one = client(server.url()).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(60)).lock().await.expect("free");
    assert_eq!(told(&server, &["TYPE", "lock:report"]), "string");
    let left: u64 = told(&server, &["PTTL", "lock:report"]).parse().expect("it has an end");
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(told(&server, &["STRLEN", "lock:report"]), "32");
    let waiter = Waiter::queue(&one, &one, "report", 0).await;
    assert_eq!(told(&server, &["STRLEN", "lock:report"]), "32");
    let token = told(&server, &["GET", "lock:report"]);
    lease.release().await.expect("an answer");
    let next = waiter.granted().await;
    assert_ne!(told(&server, &["GET", "lock:report"]), token);
    next.release().await.expect("an answer");
    let shared = one.request("report").mode(Mode::Shared).ttl(LONG).acquire().await.expect("free");
    assert_eq!(told(&server, &["GET", "lock:report"]), "leasehold:shared");
    shared.release().await.expect("an answer");
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_prefix_uses_names_as_they_are_and_keeps_its_own_keys_apart() {
    let server = server().await;
    let one = client(format!("{}?prefix=", server.url())).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    assert_eq!(told(&server, &["TYPE", "report"]), "string");
    assert!(one.line("report").await.expect("an answer").is_some());
    let reserved = ["leasehold:", "leasehold:line:report", "leasehold:fence:1", "leasehold:store:"];
    for name in reserved {
        let error = one.mutex(name).try_lock().await.unless_held().expect_err("it is ours");
        let Error::Invalid(Invalid::NameReserved { .. }) = error else { panic!("{error:?}") };
        let error = one.admin().force_release(name, "a test").await.expect_err("it is ours");
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    }
    for name in ["leasehold", "leasehol", "Leasehold:x", " leasehold:"] {
        assert!(
            one.mutex(name).try_lock().await.unless_held().expect("an answer").is_some(),
            "{name}"
        );
    }
    lease.release().await.expect("an answer");
    // With a prefix of its own such a name is like any other.
    let other = client(server.url()).await;
    assert!(
        other
            .mutex("leasehold:line:x")
            .try_lock()
            .await
            .unless_held()
            .expect("an answer")
            .is_some()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_with_pattern_characters_means_itself() {
    let server = server().await;
    for prefix in ["a*", "a?b", "[ab]", "a\\b", "^a-b", "{tag}", "ключ:"] {
        let encoded: String = prefix.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let one = client(format!("{}?prefix={encoded}", server.url())).await;
        for name in ["x*", "x?", "x[y]", "xyz"] {
            drop(
                one.mutex(name)
                    .ttl(LONG)
                    .options(LockOptions::new().renew(false))
                    .lock()
                    .await
                    .expect("free"),
            );
        }
        let lease = one.mutex("x*").ttl(LONG).lock().await.expect("free");
        let page = one.admin().inspect(&Query::prefix("x*")).await.expect("an answer");
        let names: Vec<_> = page.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["x*"], "{prefix}");
        assert_eq!(told(&server, &["EXISTS", &format!("{prefix}x*")]), "1");
        lease.release().await.expect("an answer");
    }
}

async fn pages_of(server: &Server, url: &str) {
    const NAMES: usize = 2_500;
    let engine = engine(url).await;
    let mut keys = Vec::new();
    for numbers in (0..NAMES).collect::<Vec<_>>().chunks(250) {
        let claims: Vec<Claim> = numbers
            .iter()
            .map(|number| claim(&format!("name {number:05}"), Mode::Exclusive))
            .collect();
        let claimed = claims.iter().map(|claim| engine.claim(claim));
        for standing in futures_util::future::join_all(claimed).await {
            standing.expect("an answer");
        }
        keys.extend(claims.into_iter().map(|claim| claim.key));
    }
    let mut query = Query { limit: 700, ..Query::prefix("name ") };
    let mut names = Vec::new();
    loop {
        let page = engine.inspect(&query).await.expect("an answer");
        assert!(page.lines.len() <= 700);
        names.extend(page.lines.iter().map(|line| line.name.as_str().to_owned()));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(names.len(), NAMES);
    assert!(names.is_sorted() && names.iter().collect::<BTreeSet<_>>().len() == NAMES);
    assert_eq!(engine.totals().await.expect("an answer").active, NAMES as u64);
    for some in keys.chunks(500) {
        engine.release(some).await.expect("an answer");
    }
    assert_eq!(calls(server, "keys"), 0, "KEYS stops the server for everybody");
    assert!(calls(server, "scan") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_come_in_pages_by_scan() {
    let server = server().await;
    pages_of(&server, &format!("{}?timeout_ms=60000", server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn companions_of_an_expired_lock_expire_too() {
    let server = servers::Redis::new().start().await.expect("a server");
    let one = client(server.url()).await;
    let request = |name: &str| {
        one.request(name).ttl(Duration::from_millis(100)).options(LockOptions::new().renew(false))
    };
    let alone = request("alone").acquire().await.expect("free");
    let shared = request("shared").mode(Mode::Shared).acquire().await.expect("free");
    soon("the end", alone.lost()).await;
    soon("the end", shared.lost()).await;
    for key in told(&server, &["KEYS", "leasehold:*"]).lines() {
        let left: i64 = told(&server, &["PTTL", key]).parse().expect("a number");
        let lasting = ["leasehold:fence:", "leasehold:store:", "leasehold:totals:"];
        let lasts = lasting.iter().any(|start| key.starts_with(start));
        assert!(lasts == (left == -1), "{key} has {left} ms left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_key_excludes_other_libraries_while_a_lease_changes_sides() {
    let server = server().await;
    let client = client(server.url()).await;
    let theirs = || told(&server, &["SET", "lock:report", "theirs", "NX", "PX", "60000"]);
    let writer = client.rwlock("report").ttl(Duration::from_secs(60)).write().await;
    let writer = writer.expect("granted");
    let token = told(&server, &["GET", "lock:report"]);
    let reader = writer.downgrade().await.expect("it reads");
    assert_eq!(told(&server, &["GET", "lock:report"]), "leasehold:shared");
    assert_eq!(theirs(), "");
    let writer = reader.try_upgrade().await.expect("an answer").expect("it is alone");
    assert_eq!(told(&server, &["GET", "lock:report"]), token);
    assert_eq!(theirs(), "");
    let left: i64 = told(&server, &["PTTL", "lock:report"]).parse().expect("a number");
    assert!((1..=60_000).contains(&left), "{left}");
    writer.release().await.expect("an answer");
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
    assert_eq!(theirs(), "OK");
}
