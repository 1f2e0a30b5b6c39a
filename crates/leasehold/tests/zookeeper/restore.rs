//! Data folders that are restored: fences go back, and the clients notice it.

use std::path::Path;
use std::time::Duration;

use leasehold::engine::Bumped;
use leasehold::fencing::HighestSeen;
use leasehold::{Client, Error, Result};
use leasehold_testkit::Server;

use super::support::*;

/// The folder of a server's snapshots and logs, below its own folder.
const DATA: &str = "version-2";

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in from.read_dir().expect("a folder").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

async fn start(server: &Server) {
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
}

/// Copies the data while the server does not run.
async fn back_up(server: &Server) {
    server.shut_down().expect("it ends");
    copy(&server.folder().join(DATA), &server.folder().join("backup"));
    start(server).await;
}

async fn restore(server: &Server) {
    server.shut_down().expect("it ends");
    std::fs::remove_dir_all(server.folder().join(DATA)).expect("removed");
    copy(&server.folder().join("backup"), &server.folder().join(DATA));
    start(server).await;
}

/// Takes a lease and gives it back; returns its fence.
async fn turn(client: &Client, ttl: Duration) -> Result<u64> {
    let lease = client.mutex("n").ttl(ttl).lock().await?;
    let fence = lease.fence();
    lease.release().await.map(|_released| fence.as_u64())
}

/// The same by a client of its own.
async fn turn_of_another(server: &Server) -> u64 {
    let client = client(server.url()).await;
    let fence = turn(&client, LONG).await.expect("it knows nothing");
    soon("the close", client.close()).await.expect("an answer");
    fence
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f129_restored_data_gives_old_fences_until_its_epoch_is_bumped() {
    let server = server().await;
    let guard = HighestSeen::new(1);
    turn_of_another(&server).await;
    back_up(&server).await;
    let lived = client(server.url()).await;
    let mut last = 0;
    for _ in 0..20 {
        last = turn(&lived, LONG).await.expect("a turn");
    }
    drop(guard.enter("account", last).await.expect("the newest"));
    // The second time the backup also takes back the bump.
    for seconds in [60, 70] {
        restore(&server).await;
        let again = turn_of_another(&server).await;
        assert!(again < last, "fences went back: {again} after {last}");
        assert!(guard.enter("account", again).await.is_err(), "and what checks them refuses");
        // On a session of another ttl: servers refuse a client that has seen later changes than
        // they have.
        let fresh = Duration::from_secs(seconds);
        let refused = turn(&lived, fresh).await.expect_err("it knows better");
        assert!(matches!(refused, Error::SetBack { .. }), "{refused}");
        until_empty(&server).await;
        let admin = client(server.url()).await;
        let bumped = admin.admin().bump_epoch(None).await.expect("bumped");
        let Bumped::Raised { before, from } = bumped else { panic!("{bumped:?}") };
        assert!(before < last && last < from.as_u64(), "{bumped:?} after {last}");
        last = turn(&lived, fresh).await.expect("above all it was told");
        assert!(last >= from.as_u64());
        drop(guard.enter("account", last).await.expect("the newest"));
        soon("the close", admin.close()).await.expect("an answer");
    }
    // Bumped before a client asks: the record has been written as often as the one that the client
    // knows.
    restore(&server).await;
    let admin = client(server.url()).await;
    admin.admin().bump_epoch(None).await.expect("bumped");
    let next = turn(&lived, Duration::from_secs(80)).await.expect("above all it was told");
    assert!(next > last);
    leaves_nothing(&server, [lived, admin]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f129_session_that_is_never_let_in_again_is_given_up_and_the_restore_noticed() {
    let server = server().await;
    turn_of_another(&server).await;
    back_up(&server).await;
    let (lived, ttl) = (client(server.url()).await, Duration::from_secs(4));
    for _ in 0..20 {
        turn(&lived, ttl).await.expect("a turn");
    }
    restore(&server).await;
    until("the restore is noticed", async || {
        let refused = turn(&lived, ttl).await.expect_err("it knows better");
        assert!(refused.is_transient() || matches!(refused, Error::SetBack { .. }), "{refused}");
        matches!(refused, Error::SetBack { .. })
    })
    .await;
    let admin = client(server.url()).await;
    admin.admin().bump_epoch(None).await.expect("bumped");
    turn(&lived, ttl).await.expect("above all it was told");
    leaves_nothing(&server, [lived, admin]).await;
}
