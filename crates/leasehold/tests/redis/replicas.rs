//! `wait_replicas`: a grant that counts only when replicas have it.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{Client, Error, LeaseState, Released};
use leasehold_testkit::Server;

use crate::support::*;

/// A master and its replicas.
async fn master_with(count: usize) -> (Server, Vec<Server>) {
    let master = server().await;
    told(&master, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let mut replicas = Vec::new();
    for _ in 0..count {
        let replica = server().await;
        told(&replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        replicas.push(replica);
    }
    // Without a write on its connection, WAIT counts the replicas that confirm what they get.
    until("replicas in step", async || {
        told(&master, &["WAIT", &count.to_string(), "100"]) == count.to_string()
    })
    .await;
    (master, replicas)
}

fn waiting_for(master: &Server, replicas: usize) -> String {
    format!("{}?wait_replicas={replicas}&wait_ms=300", master.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_is_on_the_replicas_that_were_asked_for() {
    let (master, replicas) = master_with(2).await;
    let one = client(format!("{}?wait_replicas=2&wait_ms=5000", master.url())).await;
    for round in 0..20 {
        let lease = one.mutex("report").ttl(LONG).lock().await.expect("a grant");
        for replica in &replicas {
            assert_eq!(told(replica, &["EXISTS", "lock:report"]), "1", "round {round}");
        }
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    }
    let findings = one.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "replicas").level, Level::Good);
    let other = client(master.url()).await;
    let findings = other.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "replicas").level, Level::Warning);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_refuse_and_leave_nothing() {
    let (master, _replicas) = master_with(1).await;
    let one = plain_client(waiting_for(&master, 2)).await;
    let other = client(master.url()).await;
    for _ in 0..2 {
        let error = one.mutex("report").ttl(LONG).lock().await.expect_err("too few");
        assert!(matches!(error, Error::Store { transient: true, .. }), "{error:?}");
        assert!(error.to_string().contains("of 2 replicas"), "{error}");
        assert!(other.line("report").await.expect("an answer").is_none());
        assert_eq!(told(&master, &["KEYS", "*report*"]), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rung_waiter_is_granted_only_when_the_replicas_have_it() {
    let (master, replicas) = master_with(1).await;
    let holder = client(master.url()).await;
    let builder = Client::builder();
    let waiting = builder.connect(waiting_for(&master, 1)).await.expect("the store opens");
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&holder, &waiting, "report", 0).await;
    let before = calls(&master, "wait");
    lease.release().await.expect("an answer");
    let lease = waiter.granted().await;
    assert!(calls(&master, "wait") > before, "it was not confirmed");
    let token = told(&master, &["GET", "lock:report"]);
    assert_eq!(told(&replicas[0], &["GET", "lock:report"]), token);
    lease.release().await.expect("an answer");
    // A stopped replica prevents every grant, and the line goes on behind it.
    replicas[0].stop_process().expect("it stops");
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let impatient = plain_client(waiting_for(&master, 1)).await;
    let waiter = Waiter::start(impatient.request("report").ttl(LONG));
    until_waiting(&holder, "report", 1).await;
    let behind = Waiter::queue(&holder, &holder, "report", 1).await;
    lease.release().await.expect("an answer");
    let next = behind.granted().await;
    assert!(waiter.is_waiting(), "granted without its replica");
    // The waiter still waits, and is granted when the replica is back.
    replicas[0].continue_process().expect("it goes on");
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn theft_that_the_replicas_do_not_get_takes_the_name_from_no_waiter() {
    let (master, replicas) = master_with(1).await;
    let holder = client(master.url()).await;
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&holder, &holder, "report", 0).await;
    let behind = Waiter::queue(&holder, &holder, "report", 1).await;
    replicas[0].stop_process().expect("it stops");
    // It tries again by itself.
    let thief = client(waiting_for(&master, 1)).await;
    let refused = thief.admin().steal("report", "stuck").await;
    assert!(matches!(&refused, Err(Error::Store { transient: true, .. })), "{refused:?}");
    let next = waiter.granted().await;
    assert!(next.fence() > lease.fence());
    next.extend(LONG).await.expect("it was not taken");
    assert!(behind.is_waiting());
    replicas[0].continue_process().expect("it goes on");
    let stolen = thief.admin().steal("report", "stuck").await.expect("the replica has it");
    let token = told(&master, &["GET", "lock:report"]);
    assert_eq!(told(&replicas[0], &["GET", "lock:report"]), token);
    stolen.release().await.expect("an answer");
    assert!(behind.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_kept_although_its_replica_is_gone() {
    let (master, replicas) = master_with(1).await;
    let builder = Client::builder().renew_at_percent(20);
    let one = builder.connect(waiting_for(&master, 1)).await.expect("the store opens");
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("a grant");
    replicas[0].kill().expect("it is killed");
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_becomes_the_writer_only_when_the_replicas_have_it() {
    let (master, replicas) = master_with(1).await;
    let one = plain_client(format!("{}?wait_replicas=1&wait_ms=5000", master.url())).await;
    let reader = one.rwlock("report").ttl(LONG).read().await.expect("a grant");
    let writer = reader.try_upgrade().await.expect("an answer").expect("it is alone");
    let token = told(&master, &["GET", "lock:report"]);
    assert_eq!(told(&replicas[0], &["GET", "lock:report"]), token);
    writer.release().await.expect("an answer");
    let impatient = plain_client(waiting_for(&master, 1)).await;
    let reader = impatient.rwlock("report").ttl(LONG).read().await.expect("a grant");
    replicas[0].stop_process().expect("it stops");
    let refused = reader.try_upgrade().await;
    assert!(matches!(&refused, Err(Error::Store { transient: true, .. })), "{refused:?}");
    until("it is given back", async || told(&master, &["KEYS", "*report*"]).is_empty()).await;
    replicas[0].continue_process().expect("it goes on");
}
