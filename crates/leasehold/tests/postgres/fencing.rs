//! Guarded rows, in a user's own transactions.

use leasehold::fencing::{GuardError, GuardedPostgres};
use tokio_postgres::{Client, NoTls};

use crate::support::*;

async fn db() -> Client {
    let (client, connection) =
        tokio_postgres::connect(server().url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// A guard in a schema of its own, without a lease table.
async fn guard(db: &mut Client) -> GuardedPostgres {
    let guard = GuardedPostgres::new(&format!("{} \"guards\"", fresh_schema()));
    for _ in 0..2 {
        let change = db.transaction().await.expect("begun");
        guard.install(&change).await.expect("installed, also twice");
        change.commit().await.expect("committed");
    }
    guard
}

async fn check(
    db: &mut Client,
    guard: &GuardedPostgres,
    fence: u64,
) -> Result<(), GuardError<tokio_postgres::Error>> {
    let change = db.transaction().await.expect("begun");
    guard.check(&change, "account 7", fence).await?;
    change.commit().await.map_err(GuardError::Store)
}

#[tokio::test]
async fn an_old_fence_is_refused_and_an_equal_one_is_not() {
    let mut db = db().await;
    let guard = guard(&mut db).await;
    for fence in [5, 5, 8] {
        check(&mut db, &guard, fence).await.expect("not old");
    }
    let late = check(&mut db, &guard, 7).await.expect_err("8 was here");
    let refused = late.refused().expect("a refusal");
    assert_eq!((refused.given.as_u64(), refused.highest.as_u64()), (7, 8));
    assert!(matches!(check(&mut db, &guard, u64::MAX).await, Err(GuardError::Unusable { .. })));
    let change = db.transaction().await.expect("begun");
    guard.check(&change, "other", 1).await.expect("another resource");
    guard.forget(&change, "account 7").await.expect("forgotten");
    guard.check(&change, "account 7", 1).await.expect("nothing is known of it");
    change.rollback().await.expect("rolled back");
    assert!(check(&mut db, &guard, 7).await.is_err(), "nothing was forgotten");
}

#[tokio::test]
async fn the_statement_for_other_clients_checks_the_same() {
    let mut db = db().await;
    let guard = guard(&mut db).await;
    check(&mut db, &guard, 8).await.expect("not old");
    let statement = guard.statement();
    let late = db.query(&statement, &[&"account 7", &7_i64]).await.expect_err("8 was here");
    assert_eq!(late.code().expect("a status").code(), "55000");
    db.query(&statement, &[&"account 7", &9_i64]).await.expect("newer");
    assert!(check(&mut db, &guard, 8).await.is_err());
}

#[tokio::test]
async fn the_lease_tables_schema_has_the_guard() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let client = leasehold::connect(&url).await.expect("connected");
    let lease = client.mutex("account 7").lock().await.expect("granted");
    let (mut db, guard) = (db().await, GuardedPostgres::new(&schema));
    check(&mut db, &guard, lease.fence().as_u64()).await.expect("the lease's fence");
    assert!(check(&mut db, &guard, lease.fence().as_u64() - 1).await.is_err());
}

#[tokio::test]
async fn a_newer_fence_waits_for_the_transaction_that_was_let_in() {
    let (mut one, mut two) = (db().await, db().await);
    let guard = guard(&mut one).await;
    let slow = one.transaction().await.expect("begun");
    guard.check(&slow, "account 7", 7).await.expect("let in");
    let newer = tokio::spawn({
        let guard = guard.clone();
        async move { check(&mut two, &guard, 8).await }
    });
    let three = db().await;
    until("the newer one waiting", async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND query LIKE '%.guards AS g%'";
        three.query_one(sql, &[]).await.expect("an answer").get::<_, i64>(0) > 0
    })
    .await;
    slow.commit().await.expect("its write was not late");
    soon("the newer one", newer).await.expect("no panic").expect("let in");
    assert!(check(&mut one, &guard, 7).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn among_many_connections_what_is_accepted_never_goes_back() {
    let mut db = db().await;
    let guard = guard(&mut db).await;
    let table = fresh_schema();
    let sql = format!("CREATE TABLE {table} (id bigserial, fence bigint)");
    db.batch_execute(&sql).await.expect("a table");
    let mut tasks = Vec::new();
    for task in 0..6_u64 {
        let (mut db, guard, table) = (self::db().await, guard.clone(), table.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..40_u64 {
                let fence = round * 6 + (task * 5) % 6;
                let change = db.transaction().await.expect("begun");
                match guard.check(&change, "r", fence).await {
                    Ok(()) => {
                        let sql = format!("INSERT INTO {table} (fence) VALUES ({fence})");
                        change.batch_execute(&sql).await.expect("written");
                        change.commit().await.expect("committed");
                    }
                    Err(error) => assert!(error.refused().is_some(), "{error}"),
                }
            }
        }));
    }
    for task in tasks {
        soon("a task", task).await.expect("no panic");
    }
    let rows = db.query(&format!("SELECT fence FROM {table} ORDER BY id"), &[]).await;
    let fences: Vec<i64> = rows.expect("an answer").iter().map(|row| row.get(0)).collect();
    assert!(fences.is_sorted() && fences.len() > 1, "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twelve_clients_that_start_at_once_install_guards_and_stores_in_one_schema() {
    const REPLICAS: usize = 12;
    for _ in 0..3 {
        let schema = fresh_schema();
        let start = std::sync::Arc::new(tokio::sync::Barrier::new(REPLICAS));
        let replicas = (0..REPLICAS).map(|replica| {
            let (schema, start) = (schema.clone(), std::sync::Arc::clone(&start));
            tokio::spawn(async move {
                let mut db = db().await;
                start.wait().await;
                let change = db.transaction().await.expect("begun");
                let guard = GuardedPostgres::new(&schema);
                guard.install(&change).await.expect("installed");
                change.commit().await.expect("committed");
                check(&mut db, &guard, 5).await.expect("it works");
                let scheme = if replica % 2 == 0 { "postgres" } else { "postgres+advisory" };
                let address = server().address();
                let url = format!("{scheme}://postgres@{address}/postgres?schema={schema}");
                let client = leasehold::connect(url).await.expect("connected");
                client.admin().install().await.expect("installed");
            })
        });
        for replica in replicas.collect::<Vec<_>>() {
            soon("a replica", replica).await.expect("it started");
        }
    }
}

#[tokio::test]
async fn guards_of_the_schema_leasehold_wait_for_the_lock_of_the_lease_table() {
    let lock = "pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738))";
    let statements = GuardedPostgres::new("leasehold").schema_statements();
    assert!(statements.contains(lock), "{statements}");
    let url = format!("{}?install=no", server().url());
    let engine = leasehold::postgres::LeaseTable::open(&url).await.expect("connected");
    assert!(leasehold::engine::Setup::schema(&engine).contains(lock));
}
