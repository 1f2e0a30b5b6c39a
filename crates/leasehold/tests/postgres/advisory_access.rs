//! Installing, rights, passwords and TLS for advisory locks: how a client connects.

use std::time::Duration;

use leasehold::engine::{Level, Setup};
use leasehold::postgres::Advisory;
use leasehold::{Client, Error, UnlessHeld, connect};
use leasehold_testkit::{Certificates, Postgres};

use crate::support::{LONG, advisory_on, database, plain, server, soon, truth};

async fn refused(url: &str) -> Error {
    match connect(url).await {
        Ok(client) => client.mutex("n").lock().await.expect_err("refused"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn ten_clients_that_start_at_once_install_one_store() {
    let url = advisory_on(server());
    let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(connect(url.clone()))).collect();
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(soon("a client", task).await.expect("the task ends").expect("connected"));
    }
    let ids: Vec<u128> = clients.iter().map(|client| client.info().store_id).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && *id != 0), "{ids:?}");
    let _lease = clients[0].mutex("n").lock().await.expect("a lease");
    assert!(clients[9].mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
}

#[tokio::test]
async fn a_missing_right_is_answered_with_the_statements_that_give_it() {
    let role = "advisory_without_rights";
    server().sql(&format!("CREATE ROLE {role} LOGIN")).expect("made");
    let admin = advisory_on(server());
    let url = admin.replace("postgres@", &format!("{role}@"));
    let error = refused(&url).await;
    let statement = format!("CREATE SCHEMA \"leasehold\" AUTHORIZATION \"{role}\";");
    assert!(error.to_string().contains(&statement), "{error}");
    assert!(!error.is_transient());
    // An administrator installs the output of `init --print`, which needs no rights.
    let script = Advisory::open(&url).await.expect("enough to print").schema();
    let by_hand = plain(&admin).await;
    by_hand.batch_execute(&script).await.expect("installed");
    by_hand.batch_execute(&script).await.expect("harmless");
    let error = refused(&url).await.to_string();
    let grants = error.split_once("try again: ").expect("statements").1;
    by_hand.batch_execute(grants).await.expect("run by an administrator");
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    // A client also needs a right to end another client's session.
    let boss = connect(&admin).await.expect("connected");
    let held = boss.mutex("m").ttl(LONG).lock().await.expect("a lease");
    let error = client.admin().force_release("m", "stuck").await.expect_err("refused").to_string();
    assert!(error.contains("pg_signal_backend"), "{error}");
    assert!(lease.is_held() && held.is_held());
}

#[tokio::test]
async fn nothing_is_installed_where_the_url_says_so() {
    let url = advisory_on(server());
    let client = connect(format!("{url}?install=no")).await.expect("connected");
    let error = client.mutex("n").lock().await.expect_err("not there").to_string();
    assert!(error.contains("leasehold init"), "{error}");
    let none = "SELECT to_regnamespace('leasehold') IS NULL";
    assert!(truth(&plain(&url).await, none).await, "asking for it installs nothing");
    client.admin().install().await.expect("installed");
    drop(client.mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_database_say_what_to_check() {
    let server = Postgres::new().password("two words").start().await.expect("a server");
    let url = server.url().replace("postgres://", "postgres+advisory://");
    drop(connect(&url).await.expect("connected").mutex("n").lock().await.expect("a lease"));
    let wrong = format!("postgres+advisory://postgres:hunter2@{}/postgres", server.address());
    let error = connect(&wrong).await.expect_err("refused");
    assert!(error.to_string().contains("PGPASSWORD"), "{error}");
    assert!(!error.to_string().contains("hunter2") && !error.is_transient(), "{error}");
    let database = database(&url);
    let absent = format!("{}absent", url.strip_suffix(database).expect("it ends with it"));
    let error = connect(&absent).await.expect_err("refused");
    assert!(error.to_string().contains("create the database"), "{error}");
}

#[tokio::test]
async fn tls_is_used_with_the_servers_name_checked() {
    let made = Certificates::new().expect("certificates");
    let server = Postgres::new().tls(&made).start().await.expect("a server");
    let url = |ca: &std::path::Path| {
        format!(
            "postgres+advisory://postgres@localhost:{}/postgres?sslmode=verify-full&sslrootcert={}",
            server.port(),
            ca.display()
        )
    };
    let client = connect(url(&made.ca())).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = tokio::spawn({
        let mutex = client.mutex("n");
        async move { mutex.lock().await }
    });
    crate::support::until_waiting(&client, "n", 1).await;
    lease.release().await.expect("an answer");
    drop(soon("a grant", next).await.expect("the task ends").expect("a lease"));
    let error = connect(url(&made.other_ca())).await.expect_err("another authority");
    assert!(error.with_sources().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable_and_its_leases_are_lost() {
    let server = Postgres::new().start().await.expect("a server");
    let url = advisory_on(&server);
    let client = connect(&url).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    server.kill().expect("killed");
    soon("the loss", lease.lost()).await;
    let error = connect(&url).await.expect_err("gone");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let error = soon("the answer", client.mutex("n").lock()).await.expect_err("gone");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

/// The finding of `doctor` about a subject.
async fn said(client: &Client, subject: &str) -> (Level, String) {
    let findings = client.admin().examine().await.expect("an answer");
    let finding = findings.into_iter().find(|finding| finding.subject == subject);
    finding.map(|finding| (finding.level, finding.found)).expect("looked at")
}

#[tokio::test]
async fn the_session_of_a_lock_says_itself_how_long_it_lives_in_silence() {
    let url = advisory_on(server());
    let client = connect(&url).await.expect("connected");
    // The session of this lease is the only one with this timeout: the ttl, a tenth of it and 0.1
    // s.
    let _lease = client.mutex("n").ttl(Duration::from_secs(20)).lock().await.expect("a lease");
    let (level, found) = said(&client, "timeouts").await;
    assert_eq!(level, Level::Good, "{found}");
    assert!(found.contains("22.1s") && found.contains("every 250ms"), "{found}");
    let (level, found) = said(&client, "keep-alives").await;
    assert_eq!(level, Level::Good, "{found}");
    assert_eq!(found, "after 6s of silence; the server gives up after 15s");
    let (level, found) = said(&client, "proxy").await;
    assert!(level == Level::Good && found.contains("none"), "{found}");
    // The check left as many sessions as before, and the client can use all of them.
    let next = client.mutex("m").ttl(Duration::from_secs(20)).lock().await.expect("a lease");
    assert!(next.is_held());
}

#[tokio::test]
async fn a_session_over_a_socket_file_has_no_keep_alives_and_says_so() {
    let url = advisory_on(server());
    let (folder, port) = (server().folder().join("pg"), server().port());
    let folder = folder.display();
    let url = format!("postgres+advisory://postgres@:{port}/{}?host={folder}", database(&url));
    let client = connect(&url).await.expect("connected");
    let (level, found) = said(&client, "keep-alives").await;
    assert!(level == Level::Good && found.contains("none over a socket file"), "{found}");
    let (level, found) = said(&client, "timeouts").await;
    assert!(level == Level::Good && found.contains("33.1s"), "{found}");
    drop(client.mutex("n").lock().await.expect("a lease"));
}
