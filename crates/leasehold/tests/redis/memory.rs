//! A server at its memory limit: holders renew and release, and new claims are refused.

use std::time::Duration;

use leasehold::claim::{Claim, Released, Standing};
use leasehold::engine::Engine;
use leasehold::{Client, Error, LeaseState, Mode, UnlessHeld};
use leasehold_testkit::Server;

use crate::support::*;

/// Leaves the server no memory for new data.
fn starve(server: &Server) {
    told(server, &["CONFIG", "SET", "maxmemory", "1"]);
}

fn feed(server: &Server) {
    told(server, &["CONFIG", "SET", "maxmemory", "0"]);
}

async fn is_held(engine: &impl Engine, claim: &Claim) -> bool {
    let answers = engine.renew(&[renewal(claim)]).await.expect("renewing needs no memory");
    matches!(answers[0], Ok(Standing::Held { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewing_and_releasing_work_without_memory() {
    let server = server().await;
    let engine = engine(server.url()).await;
    let alone = claim("alone", Mode::Exclusive);
    let (first, next) = (claim("line", Mode::Exclusive), claim("line", Mode::Exclusive));
    let readers = [claim("shared", Mode::Shared), claim("shared", Mode::Shared)];
    let permits = Mode::Permits { take: 1, of: 2 };
    let takers = [claim("permits", permits), claim("permits", permits)];
    let (third, left) = (claim("permits", permits), claim("permits", permits));
    for claim in [&alone, &first, &readers[0], &readers[1], &takers[0], &takers[1]] {
        held(&engine, claim).await;
    }
    for claim in [&next, &third, &left] {
        queued(&engine, claim).await;
    }
    starve(&server);
    for claim in [&alone, &first, &readers[0], &readers[1], &takers[0], &takers[1]] {
        assert!(is_held(&engine, claim).await, "{claim:?}");
    }
    for claim in [&next, &third] {
        assert!(!is_held(&engine, claim).await, "{claim:?} waits");
    }
    let gone = [&alone, &first, &readers[0], &takers[0], &left].map(|claim| claim.key.clone());
    for released in engine.release(&gone).await.expect("releasing needs no memory") {
        assert_eq!(released, Released::Released);
    }
    // The waiters hold now, although the server could not store a byte more.
    for claim in [&next, &third, &readers[1], &takers[1]] {
        assert!(is_held(&engine, claim).await, "{claim:?}");
    }
    assert_eq!(told(&server, &["EXISTS", "lock:alone", "lock:line", "lock:permits"]), "2");
    let gone = [&next, &third, &readers[1], &takers[1]].map(|claim| claim.key.clone());
    engine.release(&gone).await.expect("releasing needs no memory");
    assert_eq!(told(&server, &["KEYS", "lock:*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_refused_without_memory_and_granted_when_there_is_some() {
    let server = server().await;
    let one = plain_client(server.url()).await;
    warm_up(&one).await;
    starve(&server);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
        let error = one
            .request("report")
            .mode(mode)
            .try_acquire()
            .await
            .unless_held()
            .expect_err("no memory");
        assert!(matches!(error, Error::Store { transient: true, .. }), "{error:?}");
        assert!(error.to_string().contains("no memory left"), "{error}");
    }
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
    feed(&server);
    assert!(one.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_and_waiter_live_through_a_time_without_memory() {
    let server = server().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    starve(&server);
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    lease.release().await.expect("releasing needs no memory");
    let next = waiter.granted().await;
    until_renewed(&next).await;
    next.release().await.expect("releasing needs no memory");
    assert_eq!(told(&server, &["KEYS", "*report*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_name_is_granted_to_nobody_else_when_the_memory_is_full_of_other_keys() {
    let server = server().await;
    for policy in ["volatile-ttl", "allkeys-lru", "noeviction"] {
        told(&server, &["CONFIG", "SET", "maxmemory-policy", policy]);
        let Ok(one) = leasehold::connect(server.url()).await else { continue };
        let other = plain_client(server.url()).await;
        let lease = one.mutex("invoice").lock().await.expect("free");
        let used = told(&server, &["INFO", "memory"]);
        let used = used.lines().find_map(|line| line.trim().strip_prefix("used_memory:"));
        let used: u64 = used.expect("it says so").parse().expect("a number");
        let limit = (used + 200_000).to_string();
        told(&server, &["CONFIG", "SET", "maxmemory", &limit]);
        // Keys that live longer than the lease: with `volatile-ttl` the server evicts the lease
        // first.
        let value = "x".repeat(20_000);
        for number in 0..40 {
            // A server that evicts nothing refuses the keys that do not fit.
            drop(server.redis(&["SET", &format!("other:{number}"), &value, "EX", "3600"]));
        }
        let next = other.mutex("invoice").try_lock().await.unless_held();
        assert!(!matches!(next, Ok(Some(_))), "{policy}: two hold");
        assert_eq!(told(&server, &["EXISTS", "lock:invoice"]), "1", "{policy}");
        lease.release().await.expect("releasing needs no memory");
        feed(&server);
        told(&server, &["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_can_be_opened_and_looked_at_without_memory() {
    let server = server().await;
    let lease = client(server.url()).await.mutex("report").ttl(LONG).lock().await.expect("free");
    starve(&server);
    let builder = Client::builder();
    let late =
        soon("an answer", builder.connect(server.url())).await.expect("it was opened before");
    assert!(late.line("report").await.expect("an answer").is_some());
    let evicted = late.admin().force_release("report", "a test").await.expect("it needs no memory");
    assert_eq!(evicted.len(), 1);
    drop(lease);
}
