//! F70 to F79: faults of the server.

use std::process::Command;
use std::time::Duration;

use leasehold::{Error, LeaseState, Released, UnlessHeld, connect};
use leasehold_testkit::{Postgres, Server};

use crate::support::{
    LONG, fresh_schema, granted, server, soon, terminate, until, until_waiting, waiter,
    without_heartbeats,
};

/// Long enough for a restart, short enough to be renewed within the test.
const TTL: Duration = Duration::from_secs(20);

async fn lease_survives(server: &Server, restart: impl AsyncFn()) {
    let client = connect(server.url()).await.expect("connected");
    let other = connect(server.url()).await.expect("connected");
    let lease = client.mutex("n").ttl(TTL).lock().await.expect("a lease");
    let next = waiter(other.request("n").ttl(TTL));
    until_waiting(&client, "n", 1).await;
    restart().await;
    soon("a renewal", async {
        while lease.extend(TTL).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(!next.is_finished(), "nobody was granted in between");
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = granted(next).await;
    assert!(next.fence() > fence);
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn f70_leases_and_places_in_line_survive_a_restart() {
    let server = Postgres::new().start().await.expect("a server");
    lease_survives(&server, async || {
        server.shut_down().expect("it ends");
        server.launch().expect("it starts");
        server.wait_ready().await.expect("it answers");
    })
    .await;
    // As after a crash.
    lease_survives(&server, async || server.restart().await.expect("it starts again")).await;
}

#[tokio::test]
async fn f71_killed_server_processes_cost_a_reconnect_and_nothing_else() {
    let server = Postgres::new().start().await.expect("a server");
    lease_survives(&server, async || {
        assert!(terminate(&server, "true") >= 2, "they were there");
    })
    .await;
    lease_survives(&server, async || {
        let one = "SELECT max(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'";
        let pid = server.sql(one).expect("an answer");
        // The server kills the other processes, and then recovers as after a crash.
        let killed = Command::new("kill").args(["-9", pid.trim()]).status().expect("it runs");
        assert!(killed.success());
    })
    .await;
}

#[tokio::test]
async fn f72_fences_of_a_promoted_standby_are_above_all_before_although_it_lagged() {
    let server = Postgres::new().start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    let last = client.mutex("n").lock().await.expect("a lease").fence();
    server.shut_down().expect("it ends");
    std::fs::write(server.folder().join("pg/standby.signal"), "").expect("written");
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
    let error = client.mutex("n").try_lock().await.unless_held().expect_err("it takes no writes");
    assert!(error.is_transient() && error.to_string().contains("standby"), "{error}");
    server.sql("SELECT pg_promote()").expect("promoted");
    // The last numbers of the lost server never came here.
    server.sql("SELECT setval('leasehold.arrivals', 1, false)").expect("set");
    let lease = soon("a grant", client.mutex("n").lock()).await.expect("a lease");
    assert!(lease.fence() > last.as_u64() + 1_000_000, "{} after {last}", lease.fence());
}

#[tokio::test]
async fn f72_a_grant_that_the_standby_lacked_is_lost_at_its_next_renewal_at_the_latest() {
    let server = Postgres::new().start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    let other = connect(server.url()).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    server.shut_down().expect("it ends");
    std::fs::write(server.folder().join("pg/standby.signal"), "").expect("written");
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
    server.sql("SELECT pg_promote()").expect("promoted");
    // The grant, and its fence, never came here.
    server.sql("DELETE FROM leasehold.lines").expect("deleted");
    server.sql("SELECT setval('leasehold.arrivals', 1, false)").expect("set");
    let next = soon("a grant", other.mutex("n").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence(), "{} after {}", next.fence(), lease.fence());
    // A client that listens again for messages renews at once, so the lease may be lost already.
    let error = soon("an answer", lease.extend(LONG)).await.expect_err("it is gone");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(next.is_held());
}

#[tokio::test]
async fn f76_a_lost_listener_is_replaced_and_bells_ring_again() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let (one, two) = (connect(&url).await.expect("a"), without_heartbeats(&url).await);
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(two.request("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    let listens = format!("query LIKE 'LISTEN%{schema}%'");
    let listeners = async || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {listens}");
        server().sql(&sql).expect("an answer") == "1"
    };
    until("the listener", listeners).await;
    assert_eq!(terminate(server(), &listens), 1);
    until("another listener", listeners).await;
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
}

#[tokio::test]
async fn f78_too_many_connections_are_refused_at_once_and_leases_are_kept() {
    let server = Postgres::new().setting("max_connections", "8").start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    let lease = client.mutex("n").ttl(Duration::from_secs(2)).lock().await.expect("a lease");
    // The keeper has its own connection from the first renewal on.
    soon("a renewal", lease.extend(Duration::from_secs(2))).await.expect("renewed");
    let mut crowd = Vec::new();
    let refused = loop {
        match connect(server.url()).await {
            Ok(client) => crowd.push(client),
            Err(error) => break error,
        }
        assert!(crowd.len() < 10, "there is a limit");
    };
    assert!(matches!(refused, Error::Store { transient: true, .. }), "{refused:?}");
    assert!(refused.to_string().contains("max_connections"), "{refused}");
    soon("a renewal", lease.extend(LONG)).await.expect("renewed");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    drop(crowd);
    until("room for another", async || connect(server.url()).await.is_ok()).await;
}

/// Set in the process that has a small disk of its own.
const SMALL_DISK: &str = "LEASEHOLD_TEST_SMALL_DISK";

#[test]
fn f79_a_full_disk_refuses_claims_and_the_lease_is_lost_in_time() {
    if std::env::var_os(SMALL_DISK).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(on_a_full_disk());
    }
    on_a_small_disk(
        "server::f79_a_full_disk_refuses_claims_and_the_lease_is_lost_in_time",
        SMALL_DISK,
    );
}

/// Runs a test again in a mount namespace, where temporary folders are on a small disk.
pub(crate) fn on_a_small_disk(test: &str, variable: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "mount -t tmpfs -o size=100m,mode=711 tmpfs \"$TMPDIR\" && exec \"$@\"";
    let program = std::env::current_exe().expect("this program is a file");
    let mut command = Command::new("unshare");
    if rustix_is_root() {
        command.arg("--mount");
    } else {
        command.args(["--mount", "--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["sh", "-c", script, "sh"]).arg(program);
    command.args(["--exact", test]);
    command.env("TMPDIR", folder.path()).env(variable, "yes");
    let output = command.output().expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
}

fn rustix_is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id runs");
    id.stdout.starts_with(b"0")
}

async fn on_a_full_disk() {
    let postgres = Postgres::new().setting("wal_keep_size", "0").setting("max_wal_size", "32MB");
    let server = postgres.start().await.expect("a server");
    let (one, two) =
        (connect(server.url()).await.expect("a"), connect(server.url()).await.expect("b"));
    let lease = one.mutex("n").ttl(Duration::from_secs(3)).lock().await.expect("a lease");
    let filler = server.folder().join("filler");
    // At most one write-ahead segment is left; claims use it up, too.
    let fill = || {
        use std::io::Write;
        let mut file = std::fs::File::options().create(true).append(true).open(&filler)?;
        loop {
            file.write_all(&[0; 4096])?;
        }
    };
    let full: std::io::Result<()> = fill();
    assert_eq!(full.expect_err("full").kind(), std::io::ErrorKind::StorageFull);
    let mut claims = 0_u32;
    let refused = loop {
        match two.mutex(format!("filler:{claims}")).note("x".repeat(4000)).ttl(LONG).lock().await {
            Ok(lease) => std::mem::forget(lease),
            Err(error) => break error,
        }
        claims += 1;
        assert!(claims < 100_000, "the disk is full");
    };
    assert!(matches!(refused, Error::Store { .. } | Error::Unreachable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("No space left"), "{refused}");
    // Renewals overwrite existing rows, and the log has one segment left.
    soon("a renewal", lease.extend(Duration::from_secs(3))).await.expect("renewed");
    // Then the log has none: the server stops, and logs the reason.
    let _stopped = server.sql("SELECT pg_switch_wal(); SELECT pg_switch_wal()");
    soon("the loss", lease.lost()).await;
    assert_eq!(lease.state(), LeaseState::Lost);
    std::fs::remove_file(&filler).expect("removed");
    // Without room for its log the server may have stopped.
    if server.pid().is_none() {
        server.launch().expect("it starts");
    }
    server.wait_ready().await.expect("it answers");
    let next = soon("a grant", async {
        loop {
            if let Ok(next) = two.mutex("n").lock().await {
                return next;
            }
        }
    });
    assert!(next.await.fence() > lease.fence());
}
