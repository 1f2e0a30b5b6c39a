//! Advisory locks of other programs and leasehold's, in both directions.

use leasehold::advisory::Keys;
use leasehold::{Error, Mode, Name, UnlessHeld, connect};
use leasehold_testkit::{Peer, PeerKind};

use crate::support::{
    EVENT_MAX, LONG, advisory_on, granted, number, plain, server, truth, until, until_waiting,
    waiter,
};

#[tokio::test]
async fn plain_advisory_locks_and_ours_exclude_each_other() {
    let url = advisory_on(server());
    let other = plain(&url).await;
    for (keys, name, key) in [("number", "-42", "-42"), ("pair", "7:-8", "7, -8")] {
        let client = connect(format!("{url}?keys={keys}")).await.expect("connected");
        other.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.expect("locked");
        assert!(client.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
        let next = waiter(client.request(name).ttl(LONG));
        until_waiting(&client, name, 1).await;
        let line = client.line(name).await.expect("an answer").expect("a line");
        assert!(line.held[0].holder.label().contains("pid"), "{line:?}");
        assert!(truth(&other, &format!("SELECT pg_advisory_unlock({key})")).await);
        let lease = granted(next).await;
        assert!(!truth(&other, &format!("SELECT pg_try_advisory_lock({key})")).await);
        assert!(!truth(&other, &format!("SELECT pg_try_advisory_lock_shared({key})")).await);
        lease.release().await.expect("an answer");
        assert!(truth(&other, &format!("SELECT pg_try_advisory_lock_shared({key})")).await);
        let reader = client.request(name).mode(Mode::Shared).try_acquire().await.unless_held();
        assert!(reader.expect("an answer").is_some(), "readers share");
        assert!(client.mutex(name).try_lock().await.unless_held().expect("an answer").is_none());
        other.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
        client.close().await.expect("closed");
    }
}

#[tokio::test]
async fn names_that_are_no_numbers_are_refused_before_anything_is_sent() {
    let url = advisory_on(server());
    for (keys, name) in [("number", "report"), ("pair", "1")] {
        let client = connect(format!("{url}?keys={keys}")).await.expect("connected");
        let refused = client.mutex(name).lock().await.expect_err("refused");
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    }
    let error = connect(format!("{url}?keys=md4")).await.expect_err("refused").to_string();
    assert!(error.contains("`with_advisory_lock`"), "{error}");
}

#[tokio::test]
async fn hashes_of_the_server_are_ours() {
    let other = plain(&advisory_on(server())).await;
    let long = "n".repeat(512);
    let texts =
        ["a", "ab", "abc", "report", "order:42:settle", "elf Zeichen", "zwölf Zeich", &long];
    for text in texts {
        let name = Name::new(text).expect("a name");
        for (keys, statement) in [
            (Keys::HashText, format!("SELECT hashtext('{text}')::bigint")),
            (Keys::HashTextExtended, format!("SELECT hashtextextended('{text}', 0)")),
        ] {
            let key = leasehold::advisory::AdvisoryKey::Number(number(&other, &statement).await);
            assert_eq!(keys.key(&name).expect("a key"), key, "{statement}");
        }
    }
}

#[tokio::test]
async fn locks_by_the_hash_of_the_server_exclude_ours() {
    let url = advisory_on(server());
    let other = plain(&url).await;
    let client = connect(format!("{url}?keys=hashtextextended")).await.expect("connected");
    other
        .batch_execute("SELECT pg_advisory_lock(hashtextextended('report', 0))")
        .await
        .expect("ok");
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
    let _lease =
        client.mutex("report").try_lock().await.unless_held().expect("an answer").expect("free");
    let tried = "SELECT pg_try_advisory_lock(hashtextextended('report', 0))";
    assert!(!truth(&other, tried).await);
}

#[tokio::test]
async fn psycopg_on_the_keys_of_django_pglock_and_ours_exclude_each_other() {
    let url = advisory_on(server());
    let client = connect(format!("{url}?keys=django-pglock")).await.expect("connected");
    let plain = url.replace("postgres+advisory", "postgres");
    let mut peer = Peer::spawn(PeerKind::PsycopgAdvisory, &[&plain]).await.expect("a peer");
    assert!(peer.try_lock("report", LONG).await.expect("an answer"));
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let next = waiter(client.request("report").ttl(LONG));
    until_waiting(&client, "report", 1).await;
    assert!(peer.release("report").await.expect("an answer"));
    let lease = granted(next).await;
    assert!(!peer.try_lock("report", LONG).await.expect("an answer"));
    let waits = tokio::spawn(async move {
        let held = peer.lock("report", LONG, EVENT_MAX).await.expect("an answer");
        (peer, held)
    });
    until_waiting(&client, "report", 1).await;
    lease.release().await.expect("an answer");
    let (mut peer, held) = waits.await.expect("the task ends");
    assert!(held);
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    assert!(peer.release("report").await.expect("an answer"));
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test]
async fn locks_of_others_are_listed_by_their_key() {
    let url = advisory_on(server());
    let other = plain(&url).await;
    let client = connect(&url).await.expect("connected");
    let _lease = client.mutex("report").ttl(LONG).note("mine").lock().await.expect("a lease");
    other.batch_execute("SELECT pg_advisory_lock(5), pg_advisory_lock(6, 7)").await.expect("ok");
    let names = async || {
        let page =
            client.admin().inspect(&leasehold::engine::Query::all()).await.expect("an answer");
        page.lines.into_iter().map(|line| line.name.to_string()).collect::<Vec<_>>()
    };
    until("all three", async || names().await.len() == 3).await;
    assert_eq!(names().await, ["advisory:5", "advisory:6:7", "report"]);
    // Another client also sees the name, the holder and the note.
    let second = connect(&url).await.expect("connected");
    let line = second.line("report").await.expect("an answer").expect("a line");
    assert_eq!(line.held[0].note.as_str(), "mine");
    assert_eq!(line.held[0].holder, *client.holder());
    let label = second.line("advisory:5").await.expect("an answer").expect("a line");
    assert!(label.held[0].holder.label().starts_with("postgres pid "), "{label:?}");
}

#[tokio::test]
async fn locks_of_sqlx_and_ours_exclude_each_other() {
    use sqlx::postgres::PgAdvisoryLock;
    use sqlx::{Connection, Either, PgConnection};

    let url = advisory_on(server());
    let client = connect(format!("{url}?keys=sqlx")).await.expect("connected");
    let theirs = url.replace("postgres+advisory", "postgres");
    let connection = PgConnection::connect(&theirs).await.expect("connected");
    let lock = PgAdvisoryLock::new("report");
    let guard = lock.acquire(connection).await.expect("locked");
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let next = waiter(client.request("report").ttl(LONG));
    until_waiting(&client, "report", 1).await;
    let connection = guard.release_now().await.expect("unlocked");
    let lease = granted(next).await;
    let connection = match lock.try_acquire(connection).await.expect("an answer") {
        Either::Left(_) => panic!("two hold at once"),
        Either::Right(connection) => connection,
    };
    let waits = tokio::spawn(async move {
        let guard = lock.acquire(connection).await.expect("locked");
        guard.release_now().await.expect("unlocked");
    });
    until_waiting(&client, "report", 1).await;
    lease.release().await.expect("an answer");
    waits.await.expect("it gets the lock");
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}
