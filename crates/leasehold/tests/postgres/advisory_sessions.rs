//! F27 and the use of sessions: one for many locks, one for each wait, and a limit.

use std::time::Duration;

use leasehold::advisory::{Keys, lock_in, try_lock_in};
use leasehold::{Error, Mode, Name, Released, UnlessHeld, connect};

use crate::support::{
    Crowd, LONG, advisory_on, carried_out, database, granted, number, plain, server, soon, truth,
    until, until_waiting, waiter,
};

async fn sessions(url: &str) -> i64 {
    let statement = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE application_name = 'leasehold advisory' AND datname = '{}'",
        database(url)
    );
    number(&plain(url).await, &statement).await
}

#[tokio::test]
async fn many_locks_are_on_one_session() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let tasks: Vec<_> = (0..100)
        .map(|task| {
            let mutex = client.mutex(format!("task:{task}"));
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(soon("a grant", task).await.expect("the task ends").expect("a lease"));
    }
    assert_eq!(sessions(&url).await, 1);
    // A lease with another ttl is on another session, so that the server ends each in its own time.
    let _other = client.mutex("other").ttl(LONG).lock().await.expect("a lease");
    assert_eq!(sessions(&url).await, 2);
    assert!(leases.iter().all(|lease| lease.is_held()));
}

#[tokio::test]
async fn f116_a_release_wakes_one_of_many_that_wait() {
    const WAITERS: usize = 30;
    let url = format!("{}?connections=64", advisory_on(server()));
    let client = connect(&url).await.expect("connected");
    let mut held = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let mut waiters = Crowd::of(WAITERS, &client.request("n").ttl(LONG));
    waiters.until_waiting(&client, "n", WAITERS).await;
    let observer = plain(&url).await;
    for release in 1..=5 {
        let since = "SELECT clock_timestamp()::text";
        let since: String = observer.query_one(since, &[]).await.expect("an answer").get(0);
        held.release().await.expect("an answer");
        held = waiters.next().await;
        // The remaining waiters have asked the server nothing since.
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = 'leasehold advisory' AND datname = '{}' \
             AND wait_event = 'advisory' AND query_start < '{since}'",
            database(&url)
        );
        let waits = number(&observer, &waits).await;
        assert_eq!(waits, (WAITERS - release) as i64, "release {release}");
        until_waiting(&client, "n", WAITERS - release).await;
        assert!(!waiters.has_next(), "release {release} woke a second one");
    }
    soon("the close", client.close()).await.expect("closed");
}

#[tokio::test]
async fn claims_of_one_client_exclude_each_other_although_a_session_may_lock_twice() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    // The same ttl, so that all of them could use the same session.
    let writer = client.request("n");
    let reader = client.request("n").mode(Mode::Shared);
    let lease = writer.acquire().await.expect("a lease");
    assert!(writer.try_acquire().await.unless_held().expect("an answer").is_none());
    assert!(reader.try_acquire().await.unless_held().expect("an answer").is_none());
    let next = waiter(writer.clone());
    until_waiting(&client, "n", 1).await;
    lease.release().await.expect("an answer");
    let lease = granted(next).await;
    assert!(writer.try_acquire().await.unless_held().expect("an answer").is_none());
    lease.release().await.expect("an answer");
    let first = reader.acquire().await.expect("a lease");
    let second = reader.acquire().await.expect("a lease");
    assert!(writer.try_acquire().await.unless_held().expect("an answer").is_none());
    first.release().await.expect("an answer");
    assert!(
        writer.try_acquire().await.unless_held().expect("an answer").is_none(),
        "one still reads"
    );
    second.release().await.expect("an answer");
    assert!(writer.try_acquire().await.unless_held().expect("an answer").is_some());
}

#[tokio::test]
async fn f27_a_wait_without_a_session_left_is_refused_at_once_and_the_others_go_on() {
    let url = format!("{}?connections=3", advisory_on(server()));
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").lock().await.expect("a lease");
    let mut waiters = Vec::new();
    for place in 1..=2 {
        waiters.push(waiter(client.request("n")));
        until_waiting(&client, "n", place).await;
    }
    let refused = soon("the refusal", client.mutex("n").lock()).await.expect_err("refused");
    assert!(matches!(refused, Error::Limit { limit: 3, .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("`connections`") && text.contains("`postgres://`"), "{text}");
    // Claims that need no session of their own still work.
    assert!(client.mutex("m").try_lock().await.unless_held().expect("an answer").is_some());
    lease.release().await.expect("an answer");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("an answer");
    }
}

#[tokio::test]
async fn readers_of_one_client_share_a_session_when_none_is_left() {
    let url = format!("{}?connections=2", advisory_on(server()));
    let client = connect(&url).await.expect("connected");
    let other = connect(&url).await.expect("connected");
    let request = client.request("n").mode(Mode::Shared);
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(
            request.try_acquire().await.unless_held().expect("an answer").expect("readers share"),
        );
    }
    while let Some(reader) = readers.pop() {
        assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        assert_eq!(reader.release().await.expect("an answer"), Released::Released);
    }
    assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test]
async fn a_cancelled_wait_leaves_a_session_that_is_used_again() {
    let url = advisory_on(server());
    let (client, other) =
        (connect(&url).await.expect("connected"), connect(&url).await.expect("connected"));
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    for _ in 0..10 {
        let next = waiter(client.request("n"));
        until_waiting(&other, "n", 1).await;
        next.abort();
        until_waiting(&other, "n", 0).await;
    }
    assert!(sessions(&url).await <= 4, "{}", sessions(&url).await);
    lease.release().await.expect("an answer");
    drop(client.mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn session_gives_the_server_timeouts_for_the_longest_ttl() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(Duration::from_secs(10)).lock().await.expect("a lease");
    let findings = client.admin().examine().await.expect("an answer");
    let found = |subject: &str| {
        let finding = findings.iter().find(|finding| finding.subject == subject);
        finding.expect("looked at").found.clone()
    };
    assert!(found("timeouts").contains("11.1s"), "{}", found("timeouts"));
    assert!(found("sessions").contains("this client has 1"), "{}", found("sessions"));
    assert!(found("proxy").contains("none"), "{}", found("proxy"));
    soon("a longer ttl", lease.extend(Duration::from_secs(100))).await.expect("extended");
    let findings = client.admin().examine().await.expect("an answer");
    assert!(findings.iter().any(|finding| finding.found.contains("110.1s")), "{findings:?}");
}

#[tokio::test]
async fn a_lock_in_a_transaction_excludes_leases_and_ends_with_it() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    let key = Keys::Sha256.key(&Name::new("n").expect("a name")).expect("a key");
    let mut connection = plain(&url).await;
    for commit in [true, false] {
        let transaction = connection.transaction().await.expect("begun");
        lock_in(&transaction, key, false).await.expect("locked");
        assert!(client.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
        match commit {
            true => transaction.commit().await.expect("committed"),
            false => transaction.rollback().await.expect("rolled back"),
        }
        let lease = client
            .mutex("n")
            .try_lock()
            .await
            .unless_held()
            .expect("an answer")
            .expect("it is free");
        let transaction = connection.transaction().await.expect("begun");
        assert!(!try_lock_in(&transaction, key, false).await.expect("an answer"));
        assert!(!try_lock_in(&transaction, key, true).await.expect("an answer"));
        lease.release().await.expect("an answer");
        assert!(try_lock_in(&transaction, key, true).await.expect("an answer"));
        let reader = client
            .request("n")
            .mode(Mode::Shared)
            .try_acquire()
            .await
            .unless_held()
            .expect("an answer");
        assert!(reader.is_some(), "readers share");
    }
    // The same through any other client, with the statement.
    let statement = format!("BEGIN; {}; SELECT 1", key.lock_statement(false));
    let other = plain(&url).await;
    other.batch_execute(&statement).await.expect("locked");
    assert!(client.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    other.batch_execute("ROLLBACK").await.expect("rolled back");
    assert!(client.mutex("n").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test]
async fn server_ends_one_of_two_transactions_that_wait_in_a_circle() {
    let url = advisory_on(server());
    let key = |name: &str| Keys::Sha256.key(&Name::new(name).expect("a name")).expect("a key");
    let (mut one, mut two) = (plain(&url).await, plain(&url).await);
    for client in [&one, &two] {
        client.batch_execute("SET deadlock_timeout = '50ms'").await.expect("set");
    }
    let (first, second) =
        (one.transaction().await.expect("begun"), two.transaction().await.expect("begun"));
    lock_in(&first, key("a"), false).await.expect("locked");
    lock_in(&second, key("b"), false).await.expect("locked");
    let circle = async {
        tokio::join!(lock_in(&first, key("b"), false), async {
            let ended = lock_in(&second, key("a"), false).await;
            drop(second);
            ended
        })
    };
    // The server ends one of the two, and the other goes on.
    let ended = tokio::select! {
        ended = circle => vec![ended.0, ended.1],
        () = tokio::time::sleep(crate::support::EVENT_MAX) => panic!("nobody was told"),
    };
    let told: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert!(matches!(told.as_slice(), [Error::Deadlock { .. }]), "{told:?}");
}

#[tokio::test]
async fn closed_or_dropped_client_leaves_no_session_and_no_lock() {
    let url = advisory_on(server());
    let watcher = plain(&url).await;
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    client.close().await.expect("closed");
    drop(lease);
    until("no session", async || sessions(&url).await == 0).await;
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    drop((lease, client));
    until("no session", async || sessions(&url).await == 0).await;
    let none = "SELECT count(*) = 0 FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    assert!(truth(&watcher, none).await);
}

#[tokio::test]
async fn a_cycle_is_two_exchanges_alone_and_among_waiters() {
    let postgres = leasehold_testkit::Postgres::new().setting("log_statement", "all");
    let server = postgres.start().await.expect("a server");
    let client = connect(advisory_on(&server)).await.expect("connected");
    for _ in 0..50 {
        let lease = client.mutex("n").lock().await.expect("a lease");
        lease.release().await.expect("an answer");
    }
    let statements = ["pg_try_advisory_lock", "pg_advisory_lock(", "pg_advisory_unlock"];
    let counts = || statements.map(|text| carried_out(&server, text));
    assert_eq!(counts(), [50, 0, 50]);
    // On a contended name no claim tries first: each waits at once, and is granted so.
    let mut held = client.mutex("n").lock().await.expect("a lease");
    for _ in 0..20 {
        let next = waiter(client.request("n"));
        until_waiting(&client, "n", 1).await;
        held.release().await.expect("an answer");
        held = granted(next).await;
    }
    held.release().await.expect("an answer");
    assert_eq!(counts(), [51, 20, 71]);
}
