//! Dumps that are restored: fences go back, and the clients notice it.

use std::process::{Command, Stdio};

use leasehold::engine::Bumped;
use leasehold::fencing::HighestSeen;
use leasehold::{Client, Error, Result, connect};
use leasehold_testkit::{Postgres, Server};

use crate::support::*;

/// The output of `pg_dump` for one schema of a database.
fn dump(server: &Server, database: &str, schema: &str) -> String {
    let database = format!("postgres://postgres@{}/{database}", server.address());
    let dumped = Command::new("pg_dump")
        .args(["--clean", "--if-exists", "--schema", schema, "--dbname", &database])
        .output()
        .expect("pg_dump is there");
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    String::from_utf8(dumped.stdout).expect("text")
}

/// Puts a dump back while clients are connected, and before they can look. If a client is in its
/// way, the server undoes all of it, and the test tries again.
fn restore(server: &Server, database: &str, dump: &str) {
    for _ in 0..5 {
        match restored(server, database, dump) {
            Ok(()) => return,
            Err(said) => assert!(said.contains("deadlock detected"), "psql refuses it: {said}"),
        }
    }
    panic!("psql met a client of ours each time");
}

/// Runs a dump with `psql`, as one transaction; the error is the message of `psql`.
fn restored(server: &Server, database: &str, dump: &str) -> std::result::Result<(), String> {
    use std::io::Write as _;
    let database = format!("postgres://postgres@{}/{database}", server.address());
    let mut psql = Command::new("psql")
        .args(["--quiet", "--single-transaction", "--set", "ON_ERROR_STOP=1", &database])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql is there");
    // A `psql` that has ended reads no more, and says why.
    let _unread = psql.stdin.take().expect("piped").write_all(dump.as_bytes());
    let ended = psql.wait_with_output().expect("it ends");
    match ended.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ended.stderr).into_owned()),
    }
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

/// Restored, refused by a client that knows, bumped, accepted; and again with the same dump.
async fn story(server: &Server, url: &str, schema: &str) {
    let place = database(url);
    let (lived, guard) = (connect(url).await.expect("connected"), HighestSeen::new(1));
    turns(&lived, 3).await;
    let dump = dump(server, place, schema);
    let mut last = turns(&lived, 5).await;
    drop(guard.enter("account", last).await.expect("the newest"));
    for _ in 0..2 {
        restore(server, place, &dump);
        let fresh = connect(url).await.expect("connected");
        let again = turn(&fresh).await.expect("it knows nothing");
        assert!(again < last, "fences went back: {again} after {last}");
        assert!(guard.enter("account", again).await.is_err(), "and what checks them refuses");
        let refused = turn(&lived).await.expect_err("it knows better");
        assert!(matches!(refused, Error::SetBack { .. }), "{refused}");
        until_free(&lived, "n").await;
        let bumped = fresh.admin().bump_epoch(None).await.expect("bumped");
        let Bumped::Raised { from, .. } = bumped else { panic!("{bumped:?}") };
        assert!(from > last, "{bumped:?} after {last}");
        last = turn(&lived).await.expect("above all it was told");
        assert!(last >= from.as_u64());
        drop(guard.enter("account", last).await.expect("the newest"));
    }
}

#[tokio::test]
async fn f129_restored_dump_gives_old_fences_until_its_epoch_is_bumped() {
    let schema = fresh_schema();
    story(server(), &format!("{}?schema={schema}", server().url()), &schema).await;
}

#[tokio::test]
async fn f129_restored_dump_of_advisory_fences_is_no_different() {
    story(server(), &advisory_on(server()), "leasehold").await;
}

#[tokio::test]
async fn f129_promoted_standby_of_a_bumped_store_stays_above_and_near_the_clock() {
    let server = Postgres::new().start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    client.admin().bump_epoch(None).await.expect("bumped");
    let last = turns(&client, 3).await;
    server.shut_down().expect("it ends");
    std::fs::write(server.folder().join("pg/standby.signal"), "").expect("written");
    server.launch().expect("it starts");
    server.wait_ready().await.expect("it answers");
    server.sql("SELECT pg_promote()").expect("promoted");
    // The last numbers of the lost server never came here.
    server
        .sql("SELECT setval('leasehold.arrivals', last_value - 100) FROM leasehold.arrivals")
        .expect("set");
    let next = soon("a turn", turn(&client)).await.expect("above all it was told");
    assert!(next > last, "{next} after {last}");
    // A step of less than half a minute, and not of half a year: a later bump starts from the
    // clock.
    assert!(next - last < 30_000_000, "{next} after {last}");
    let bumped = client.admin().bump_epoch(None).await.expect("bumped");
    assert!(matches!(bumped, Bumped::Raised { from, .. } if from > next), "{bumped:?}");
    assert!(turn(&client).await.expect("a turn") > next);
}
