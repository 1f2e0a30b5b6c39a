//! F01 and F70 to F80 on advisory locks: faults of a holder's process and of the server.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::engine::Level;
use leasehold::{Client, Error, LeaseState, LockOptions, Released, UnlessHeld, connect};
use leasehold_testkit::{Postgres, Worker};

use crate::support::{
    EVENT_MAX, LONG, advisory_on, database, granted, server, soon, until, until_waiting, waiter,
};

/// Set in a process that holds a lock until it is killed: the store.
const HOLDER: &str = "LEASEHOLD_TEST_HOLDER";

/// A ttl that a client on a busy machine also renews in time.
const BUSY_TTL: Duration = Duration::from_secs(5);

/// Short enough to wait for, long enough for a restart on a busy machine.
const TTL: Duration = Duration::from_secs(3);

#[test]
fn holds_until_it_is_killed_if_it_was_started_for_that() {
    let Ok(url) = std::env::var(HOLDER) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = connect(&url).await.expect("connected");
        let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
        println!("\nheld {}", lease.fence());
        std::future::pending::<()>().await;
    });
}

/// A process that asks for the lock, and then holds it.
fn holder(url: &str) -> Worker {
    let mut command = Command::new(std::env::current_exe().expect("this program is a file"));
    command.args(["--exact", "--nocapture"]).env(HOLDER, url);
    command.arg("advisory_server::holds_until_it_is_killed_if_it_was_started_for_that");
    Worker::spawn(command).expect("started")
}

#[tokio::test]
async fn f01_a_killed_holder_is_followed_at_once() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let mut holder = holder(&url);
    let fence = holder.wait_for_line("held ", EVENT_MAX).await.expect("it holds");
    let next = waiter(client.request("n").ttl(LONG));
    until_waiting(&client, "n", 1).await;
    holder.kill().expect("killed");
    // Its ttl is far beyond this wait.
    assert!(granted(next).await.fence() > fence.parse::<u64>().expect("a fence"));
}

#[tokio::test]
async fn f112_a_dead_waiter_is_passed_over() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let mut first = holder(&url);
    until_waiting(&client, "n", 1).await;
    let second = waiter(client.request("n").ttl(LONG));
    until_waiting(&client, "n", 2).await;
    first.kill().expect("killed");
    until_waiting(&client, "n", 1).await;
    lease.release().await.expect("an answer");
    let lease = granted(second).await;
    // F115: a process that dies with the grant in flight.
    let mut first = holder(&url);
    until_waiting(&client, "n", 1).await;
    let second = waiter(client.request("n").ttl(LONG));
    until_waiting(&client, "n", 2).await;
    first.stop_process().expect("stopped");
    lease.release().await.expect("an answer");
    first.kill().expect("killed");
    assert!(granted(second).await.is_held());
}

#[test]
fn f05_a_blocked_runtime_does_not_lose_the_lease() {
    let url = advisory_on(server());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = connect(&url).await.expect("connected");
        let other = connect(&url).await.expect("connected");
        let lease = client.mutex("n").ttl(BUSY_TTL).lock().await.expect("a lease");
        let begun = lease.deadline();
        // Nothing runs on this runtime meanwhile.
        while lease.deadline() == begun {
            assert!(lease.is_held());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    });
}

#[test]
fn f11_a_lease_survives_the_runtime_that_took_it() {
    let url = advisory_on(server());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let first = runtime().expect("a runtime");
    let lease = first.block_on(async {
        let client = connect(&url).await.expect("connected");
        client.mutex("n").ttl(BUSY_TTL).lock().await.expect("a lease")
    });
    drop(first);
    let begun = lease.deadline();
    while lease.deadline() == begun {
        assert!(lease.is_held());
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime().expect("a runtime").block_on(async {
        let other = connect(&url).await.expect("connected");
        assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        // Dropped after its runtime is gone.
        drop(lease);
        drop(soon("a grant", other.mutex("n").lock()).await.expect("a lease"));
    });
}

/// The effect of a restart on a lease, and on the claims after it.
async fn restarted(url: &str, ttl: Duration, restart: impl AsyncFnOnce()) {
    let client = connect(url).await.expect("connected");
    let lease = client.mutex("n").ttl(ttl).lock().await.expect("a lease");
    let granted_at = Instant::now();
    let other = client.mutex("m").ttl(ttl).lock().await.expect("a lease");
    restart().await;
    soon("the loss", lease.lost()).await;
    soon("the loss", other.lost()).await;
    let fresh = soon("a connection", async {
        loop {
            if let Ok(client) = connect(url).await {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let fresh = fresh.await;
    let tried = fresh.mutex("n").try_lock().await.unless_held().expect("an answer");
    assert!(tried.is_none(), "somebody frozen may still believe to hold it");
    let next = soon("a grant", fresh.mutex("n").lock()).await.expect("a lease");
    assert!(granted_at.elapsed() >= ttl, "granted after {:?}", granted_at.elapsed());
    assert!(
        next.fence() > other.fence().as_u64() + 1_000_000,
        "{} {}",
        next.fence(),
        other.fence()
    );
    // The old client finds the server again, and its guard.
    assert!(client.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn f70_a_restart_loses_every_lease_at_once_and_claims_wait_for_the_guard() {
    let server = Postgres::new().start().await.expect("a server");
    let url = advisory_on(&server);
    restarted(&url, TTL, async || {
        server.shut_down().expect("it ends");
        server.launch().expect("it starts");
        server.wait_ready().await.expect("it answers");
    })
    .await;
}

#[tokio::test]
async fn f70_a_crash_takes_no_fence_back_although_nobody_waits_for_the_disk() {
    let server = Postgres::new().start().await.expect("a server");
    let url = advisory_on(&server);
    restarted(&url, TTL, async || server.restart().await.expect("it starts again")).await;
}

#[tokio::test]
async fn f71_a_server_process_that_crashes_takes_all_sessions_along() {
    let server = Postgres::new().start().await.expect("a server");
    let url = advisory_on(&server);
    // The server recovers without a new start: only unlogged data shows the crash.
    restarted(&url, TTL, async || {
        let any = "SELECT max(pid) FROM pg_stat_activity \
                   WHERE application_name = 'leasehold advisory'";
        let pid = server.sql(any).expect("an answer");
        let killed = Command::new("kill").args(["-9", pid.trim()]).stdout(Stdio::null()).status();
        assert!(killed.expect("it runs").success());
    })
    .await;
}

fn terminate(url: &str) -> String {
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE application_name = 'leasehold advisory' AND datname = '{}'",
        database(url)
    );
    server().sql(&sql).expect("an answer")
}

#[tokio::test]
async fn f71_a_session_that_is_ended_is_a_lease_lost_at_once() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let unrenewed = client
        .mutex("m")
        .ttl(LONG)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("a lease");
    assert_eq!(terminate(&url), "1", "both are on one session");
    // Long before a renewal is due.
    soon("the loss", lease.lost()).await;
    soon("the loss", unrenewed.lost()).await;
    assert_eq!((lease.state(), unrenewed.state()), (LeaseState::Lost, LeaseState::Lost));
    let next = soon("a grant", client.mutex("n").lock()).await.expect("a lease");
    assert!(next.fence() > lease.fence());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn f72_fences_of_a_promoted_standby_are_above_all_before_although_it_lagged() {
    let server = Postgres::new().start().await.expect("a server");
    let url = server.url().replace("postgres://", "postgres+advisory://");
    let client = connect(&url).await.expect("connected");
    let ttl = Duration::from_secs(1);
    let last = client.mutex("n").ttl(ttl).lock().await.expect("a lease").fence();
    server.shut_down().expect("it ends");
    std::fs::write(server.folder().join("pg/standby.signal"), "").expect("written");
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
    let error = client.mutex("n").try_lock().await.unless_held().expect_err("it takes no writes");
    assert!(error.is_transient() && error.to_string().contains("standby"), "{error}");
    server.sql("SELECT pg_promote()").expect("promoted");
    // The last numbers of the lost server never came here.
    server.sql("SELECT setval('leasehold.advisory_fences', 1, false)").expect("set");
    let lease = soon("a grant", client.mutex("n").ttl(ttl).lock()).await.expect("a lease");
    assert!(lease.fence() > last.as_u64() + 1_000_000, "{} after {last}", lease.fence());
}

#[tokio::test]
async fn f72_a_promoted_standby_knows_no_lease_and_claims_wait_for_the_guard() {
    // Following and promotion take longer than a start.
    let ttl = 3 * TTL;
    let server = Postgres::new().start().await.expect("a server");
    let url = advisory_on(&server);
    restarted(&url, ttl, async || {
        server.shut_down().expect("it ends");
        std::fs::write(server.folder().join("pg/standby.signal"), "").expect("written");
        server.launch().expect("it starts");
        server.wait_ready().await.expect("it answers");
        server.sql("SELECT pg_promote()").expect("promoted");
    })
    .await;
}

#[tokio::test]
async fn f75_a_full_lock_table_refuses_and_leases_are_kept() {
    let postgres = Postgres::new().setting("max_locks_per_transaction", "10");
    let server = postgres.setting("max_connections", "10").start().await.expect("a server");
    let client = connect(advisory_on(&server)).await.expect("connected");
    let mut leases = Vec::new();
    let refused = loop {
        match client.mutex(format!("n:{}", leases.len())).ttl(LONG).lock().await {
            Ok(lease) => leases.push(lease),
            Err(error) => break error,
        }
        assert!(leases.len() < 100_000, "there is a limit");
    };
    assert!(matches!(refused, Error::Store { transient: false, .. }), "{refused:?}");
    assert!(refused.to_string().contains("max_locks_per_transaction"), "{refused}");
    assert!(leases.iter().all(|lease| lease.is_held()));
    leases.truncate(leases.len() / 2);
    until("room for another", async || client.mutex("last").lock().await.is_ok()).await;
    assert!(leases.iter().all(|lease| lease.is_held()));
    client.close().await.expect("closed");
}

#[tokio::test]
async fn f78_too_many_connections_are_refused_and_leases_are_kept() {
    let server = Postgres::new().setting("max_connections", "10").start().await.expect("a server");
    let url = advisory_on(&server);
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(Duration::from_secs(2)).lock().await.expect("a lease");
    let mut crowd: Vec<Client> = Vec::new();
    let refused = loop {
        match connect(&url).await {
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
    until("room for another", async || connect(&url).await.is_ok()).await;
}

#[tokio::test]
async fn f80_names_with_one_key_wait_for_each_other_and_the_examination_says_so() {
    let url = advisory_on(server());
    // `tooz` has 16 bits, so two names of one key are soon found.
    let keys = leasehold::advisory::Keys::Tooz;
    let mut seen = std::collections::HashMap::new();
    let (one, two) = (0..)
        .find_map(|number| {
            let name = leasehold::Name::new(format!("n{number}")).expect("a name");
            let key = keys.key(&name).expect("a key");
            seen.insert(key, name.clone()).map(|other| (other, name))
        })
        .expect("there are but 65,536");
    let client = connect(format!("{url}?keys=tooz")).await.expect("connected");
    let lease = client.mutex(&one).ttl(LONG).lock().await.expect("a lease");
    assert!(client.mutex(&two).try_lock().await.unless_held().expect("an answer").is_none());
    let next = waiter(client.request(&two).ttl(LONG));
    until("both to be seen", async || {
        let findings = client.admin().examine().await.expect("an answer");
        let found = findings.iter().find(|finding| finding.subject == "collisions");
        let found = found.expect("looked at");
        found.level == Level::Warning && found.found.contains(one.as_str())
    })
    .await;
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
}

/// Set in the process that has a small disk of its own.
const SMALL_DISK: &str = "LEASEHOLD_TEST_ADVISORY_DISK";

#[test]
fn f79_a_full_disk_loses_no_lease() {
    if std::env::var_os(SMALL_DISK).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(on_a_full_disk());
    }
    crate::server::on_a_small_disk("advisory_server::f79_a_full_disk_loses_no_lease", SMALL_DISK);
}

async fn on_a_full_disk() {
    use std::io::Write;
    let postgres = Postgres::new().setting("wal_keep_size", "0").setting("max_wal_size", "32MB");
    let server = postgres.start().await.expect("a server");
    let client = connect(advisory_on(&server)).await.expect("connected");
    let lease = client.mutex("n").ttl(BUSY_TTL).lock().await.expect("a lease");
    let filler = server.folder().join("filler");
    let mut file = std::fs::File::create(&filler).expect("made");
    let full = std::iter::repeat_with(|| file.write_all(&[0; 4096])).find_map(Result::err);
    assert_eq!(full.expect("full").kind(), std::io::ErrorKind::StorageFull);
    let begun = lease.deadline();
    until("two renewals", async || {
        assert!(lease.is_held(), "a heartbeat writes nothing");
        lease.deadline().since(begun) > BUSY_TTL
    })
    .await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}
