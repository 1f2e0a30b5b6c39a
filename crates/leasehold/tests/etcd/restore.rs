//! Snapshots that are restored: fences go back, and the clients notice it.

use std::path::Path;

use leasehold::engine::Bumped;
use leasehold::fencing::HighestSeen;
use leasehold::{Client, Error, Result};
use leasehold_testkit::Server;

use super::support::*;

/// The value of a flag on the server's command line.
fn argument(server: &Server, name: &str) -> String {
    let pid = server.pid().expect("it runs");
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).expect("its command line");
    let words = String::from_utf8(words).expect("text");
    let word = words.split('\0').find_map(|word| word.strip_prefix(&format!("--{name}=")));
    word.expect("it was started with that").to_owned()
}

/// Ends the server and starts it from a snapshot, as etcd's manual describes.
async fn restore(server: &Server, snapshot: &Path) {
    let told = ["name", "initial-cluster", "initial-advertise-peer-urls"];
    let told = told.map(|name| format!("--{name}={}", argument(server, name)));
    let data = server.folder().join("data");
    server.shut_down().expect("it ends");
    std::fs::remove_dir_all(&data).expect("removed");
    let (snapshot, into) =
        (snapshot.display().to_string(), format!("--data-dir={}", data.display()));
    let mut words = vec!["snapshot", "restore", &snapshot, &into];
    words.extend(told.iter().map(String::as_str));
    ctl("unused:1", &words);
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
}

/// Takes a lease and gives it back; returns its fence.
async fn turn(client: &Client) -> Result<u64> {
    let lease = client.mutex("n").ttl(LONG).lock().await?;
    let fence = lease.fence();
    lease.release().await.map(|_released| fence.as_u64())
}

async fn turns(client: &Client, count: usize) -> u64 {
    let mut last = 0;
    for _ in 0..count {
        last = turn(client).await.expect("a turn");
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f129_restored_snapshot_gives_old_fences_until_its_epoch_is_bumped() {
    let server = server().await;
    let (lived, guard) = (client(server.url()).await, HighestSeen::new(1));
    turns(&lived, 3).await;
    let snapshot = server.folder().join("snapshot.db");
    ctl(&endpoint(&server), &["snapshot", "save", &snapshot.display().to_string()]);
    let mut last = turns(&lived, 20).await;
    drop(guard.enter("account", last).await.expect("the newest"));
    // The second time the snapshot also takes back the bump.
    for _ in 0..2 {
        restore(&server, &snapshot).await;
        let fresh = client(server.url()).await;
        let again = turn(&fresh).await.expect("it knows nothing");
        assert!(again < last, "fences went back: {again} after {last}");
        assert!(guard.enter("account", again).await.is_err(), "and what checks them refuses");
        let refused = turn(&lived).await.expect_err("it knows better");
        assert!(matches!(refused, Error::SetBack { .. }), "{refused}");
        until("the claim was given back", async || claims(&server).is_empty()).await;
        let bumped = fresh.admin().bump_epoch(None).await.expect("bumped");
        let Bumped::Raised { before, from } = bumped else { panic!("{bumped:?}") };
        assert!(before < last && last < from.as_u64(), "{bumped:?} after {last}");
        last = turn(&lived).await.expect("above all it was told");
        assert!(last >= from.as_u64());
        drop(guard.enter("account", last).await.expect("the newest"));
        // Not empty yet: the lease of the client that lived is older than the snapshot.
        soon("the close", fresh.close()).await.expect("an answer");
    }
    nothing_is_left(&server, &[lived]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_etcds_own_command_are_in_line_across_a_bump() {
    let server = server().await;
    let one = client(server.url()).await;
    let first = one.mutex("n").ttl(LONG).lock().await.expect("free");
    let mut other = lock(&server, "n", 2);
    until_waiting(&one, "n", 1).await;
    one.admin().bump_epoch(None).await.expect("bumped");
    let mut last = Waiter::start(one.request("n").ttl(LONG));
    until_waiting(&one, "n", 2).await;
    let line = one.line("n").await.expect("an answer").expect("a line");
    let fences: Vec<u64> =
        line.held.iter().chain(&line.waiting).map(|claim| claim.fence.as_u64()).collect();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    first.release().await.expect("an answer");
    locked(&mut other).await;
    assert!(last.is_waiting());
    drop(other);
    assert_eq!(last.granted().await.fence(), fences[2]);
    nothing_is_left(&server, &[one]).await;
}
