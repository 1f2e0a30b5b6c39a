//! Administrators and accidents that disturb a running server.

use std::fs;
use std::time::Duration;

use leasehold::claim::Standing;
use leasehold::engine::{Administer, Engine, Level, Query};
use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, LeaseState, LostCause, Mode, Released, UnlessHeld};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_connects_to_a_server_that_starts_meanwhile() {
    let server = server().await;
    server.kill().expect("it is killed");
    let refused = Client::builder().retry(RetryPolicy::OFF).connect(server.url()).await;
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    // The server refuses the first try before it is started: one thread does both in this order.
    let patient = RetryPolicy { times: 1_000, within: EVENT_MAX, ..RetryPolicy::default() };
    let connecting = Client::builder().retry(patient).connect(server.url());
    let starting = async { server.launch() };
    let (client, started) =
        soon("a client", futures_util::future::join(connecting, starting)).await;
    started.expect("it starts");
    assert!(client.expect("connected").mutex("n").lock().await.expect("free").is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_flushed_scripts_come_back_with_every_verb() {
    const NAMES: usize = 40;
    let server = server().await;
    let engine = engine(server.url()).await;
    let flush = || told(&server, &["SCRIPT", "FLUSH"]);
    let mut claims = Vec::new();
    for number in 0..NAMES {
        flush();
        let claim = claim(&format!("name {number}"), Mode::Exclusive);
        held(&engine, &claim).await;
        claims.push(claim);
    }
    flush();
    let waiting = claim("name 0", Mode::Exclusive);
    queued(&engine, &waiting).await;
    claims.push(waiting);
    let renewals: Vec<_> = claims.iter().map(renewal).collect();
    flush();
    let answers = engine.renew(&renewals).await.expect("an answer");
    let kept = answers.iter().filter(|answer| matches!(answer, Ok(Standing::Held { .. }))).count();
    assert_eq!((kept, answers.len()), (NAMES, NAMES + 1));
    flush();
    let page = engine.inspect(&Query::all()).await.expect("an answer");
    assert_eq!(page.lines.len(), NAMES);
    flush();
    let order = eviction(&engine, &claims[1].key.name).await.expect("an answer");
    flush();
    assert_eq!(engine.evict(&order).await.expect("an answer").len(), 1);
    let keys: Vec<_> = claims.iter().map(|claim| claim.key.clone()).collect();
    flush();
    let released = engine.release(&keys).await.expect("an answer");
    let given_back = released.iter().filter(|released| **released == Released::Released).count();
    assert_eq!(given_back, NAMES, "all but the evicted one");
    assert!(engine.inspect(&Query::all()).await.expect("an answer").lines.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_flush_in_the_middle_of_a_lease_is_not_noticed() {
    let server = server().await;
    let one = early_client(server.url()).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &one, "report", 0).await;
    told(&server, &["SCRIPT", "FLUSH"]);
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    told(&server, &["SCRIPT", "FLUSH"]);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    told(&server, &["SCRIPT", "FLUSH"]);
    drop(waiter.granted().await);
    until_free(&one, "report").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_server_that_may_evict_a_lock_is_refused_by_default() {
    let server = server().await;
    let policies = ["lru", "lfu", "random"].map(|by| format!("allkeys-{by}"));
    let volatile = ["lru", "lfu", "random", "ttl"].map(|by| format!("volatile-{by}"));
    for policy in policies.iter().chain(&volatile) {
        told(&server, &["CONFIG", "SET", "maxmemory-policy", policy]);
        let error = leasehold::connect(server.url()).await.expect_err("refused");
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(!error.is_transient());
        let text = error.to_string();
        assert!(text.contains(policy) && text.contains("allow_eviction=yes"), "{text}");
        assert!(text.contains("set `noeviction`, or"), "{text}");
        let allowed = client(format!("{}?allow_eviction=yes", server.url())).await;
        let findings = allowed.admin().examine().await.expect("an answer");
        assert_eq!(about(&findings, "eviction").level, Level::Bad);
        warm_up(&allowed).await;
    }
    told(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let findings = client(server.url()).await.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "eviction").level, Level::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f64_server_that_cannot_write_its_snapshot_refuses_and_the_lease_is_lost_in_time() {
    let server = server().await;
    let (one, two) = (early_client(server.url()).await, plain_client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    // A folder in place of the file makes every snapshot fail.
    let file = server.folder().join("dump.rdb");
    fs::create_dir(&file).expect("a folder");
    told(&server, &["CONFIG", "SET", "save", "3600 1000000"]);
    told(&server, &["BGSAVE"]);
    let info = || told(&server, &["INFO", "persistence"]);
    until("a failed snapshot", async || info().contains("rdb_last_bgsave_status:err")).await;
    let error = two.mutex("other").try_lock().await.unless_held().expect_err("refused");
    assert!(matches!(error, Error::Store { transient: true, .. }), "{error:?}");
    assert!(error.to_string().contains("MISCONF"), "{error}");
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::Expired | LostCause::Unreachable), "{cause:?}");
    // Reads still work, and the store frees the lock by itself.
    until_free(&two, "report").await;
    fs::remove_dir(&file).expect("the folder is empty");
    told(&server, &["BGSAVE"]);
    until("a snapshot", async || info().contains("rdb_last_bgsave_status:ok")).await;
    let next =
        two.mutex("report").try_lock().await.unless_held().expect("an answer").expect("free");
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_deleted_lock_is_lost_at_the_next_renewal_and_never_put_back() {
    let server = server().await;
    let one = early_client(server.url()).await;
    for (mode, command) in [
        (Mode::Exclusive, &["DEL", "lock:report"][..]),
        (Mode::Exclusive, &["FLUSHALL"]),
        (Mode::Shared, &["DEL", "lock:report"]),
        (Mode::Permits { take: 1, of: 2 }, &["DEL", "lock:report"]),
        (Mode::Permits { take: 2, of: 2 }, &["FLUSHDB"]),
    ] {
        let request = one.request("report").mode(mode).ttl(Duration::from_secs(2));
        let lease = request.acquire().await.expect("free");
        told(&server, command);
        let cause = soon("the loss", lease.lost()).await;
        assert_eq!(cause, LostCause::Removed, "{mode:?} {command:?}");
        assert_eq!(told(&server, &["EXISTS", "lock:report"]), "0", "{mode:?} {command:?}");
        let next = request.acquire().await.expect("free");
        assert!(next.fence() > lease.fence(), "{mode:?} {command:?}");
        let released = lease.release().await.expect("an answer");
        assert_ne!(released, Released::Released, "{mode:?} {command:?}");
        assert!(next.is_held());
        next.release().await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_deleted_lock_goes_to_the_next_in_line_and_the_holder_learns_of_its_loss() {
    let server = server().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    for command in [&["DEL", "lock:report"][..], &["FLUSHALL"]] {
        let mutex = one.mutex("report").ttl(Duration::from_secs(2));
        let lease = mutex.lock().await.expect("free");
        let waiter = Waiter::queue(&one, &two, "report", 0).await;
        told(&server, command);
        let next = waiter.granted().await;
        assert!(next.fence() > lease.fence());
        let cause = soon("the loss", lease.lost()).await;
        let taken = LostCause::TakenBy(two.holder().clone());
        assert!(cause == taken || cause == LostCause::Removed, "{cause:?}");
        assert_eq!(next.release().await.expect("an answer"), Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_server_that_stalls_for_longer_than_the_ttl_loses_the_lease_by_the_local_clock() {
    let server = server().await;
    let url = format!("{}?timeout_ms=500", server.url());
    let (one, two) = (early_client(&url).await, client(&url).await);
    warm_up(&two).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(1)).lock().await.expect("free");
    told(&server, &["CLIENT", "PAUSE", "2500", "ALL"]);
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    let next = soon("a grant", two.mutex("report").ttl(LONG).lock()).await.expect("a grant");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(next.fence() > lease.fence() && next.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_server_that_stalls_for_less_than_the_ttl_keeps_the_lease() {
    let server = server().await;
    let one = early_client(server.url()).await;
    let lease = one.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    // Longer than the renewal's own patience of a quarter of the ttl.
    told(&server, &["CLIENT", "PAUSE", "3000", "ALL"]);
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
}
