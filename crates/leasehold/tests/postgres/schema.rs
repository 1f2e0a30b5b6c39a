//! Installing, rights, passwords, TLS: how a client connects, and its message when it cannot.

use leasehold::engine::Level;
use leasehold::postgres::LeaseTable;
use leasehold::{Client, Error, UnlessHeld, connect};
use leasehold_testkit::{Certificates, Postgres};

use crate::support::{fresh_schema, server, soon};

async fn refused(url: &str) -> Error {
    match connect(url).await {
        Ok(client) => client.mutex("n").lock().await.expect_err("refused"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn ten_clients_that_start_at_once_install_one_store() {
    let url = format!("{}?schema={}", server().url(), fresh_schema());
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let client = connect(&url).await?;
                client.admin().install().await.map(|()| client)
            })
        })
        .collect();
    let mut clients: Vec<Client> = Vec::new();
    for task in tasks {
        clients.push(soon("a client", task).await.expect("the task ends").expect("connected"));
    }
    let ids: Vec<u128> = clients.iter().map(|client| client.info().store_id).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && *id != 0), "{ids:?}");
    let _lease = clients[0].mutex("n").lock().await.expect("a lease");
    assert!(clients[9].mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
}

#[tokio::test]
async fn a_missing_right_is_answered_with_the_statement_that_gives_it() {
    let (schema, role) = (fresh_schema(), "app_without_rights");
    server().sql(&format!("CREATE ROLE {role} LOGIN")).expect("made");
    let url = format!("postgres://{role}@{}/postgres?schema={schema}", server().address());
    let error = refused(&url).await;
    let statement = format!("CREATE SCHEMA \"{schema}\" AUTHORIZATION \"{role}\";");
    assert!(error.to_string().contains(&statement), "{error}");
    assert!(!error.is_transient());
    // Anybody can print the output of `init --print` without the right.
    let engine = LeaseTable::open(&url).await.expect("enough to print");
    let script = leasehold::engine::Setup::schema(&engine);
    assert!(script.contains(&format!("CREATE SCHEMA \"{schema}\";")), "{script}");
    server().sql(&statement).expect("run by an administrator");
    drop(connect(&url).await.expect("connected").mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn a_store_installed_by_an_administrator_is_used_with_granted_rights() {
    let (schema, role) = (fresh_schema(), "app_with_grants");
    server().sql(&format!("CREATE ROLE {role} LOGIN")).expect("made");
    let admin = format!("{}?schema={schema}&install=no", server().url());
    let engine = LeaseTable::open(&admin).await.expect("connected");
    let there = format!("SELECT to_regnamespace('{schema}') IS NULL");
    assert_eq!(server().sql(&there).expect("an answer"), "t", "asking for it installs nothing");
    // By hand, as with `init --print | psql`; twice is harmless.
    server().sql(&leasehold::engine::Setup::schema(&engine)).expect("installed");
    server().sql(&leasehold::engine::Setup::schema(&engine)).expect("harmless");
    let url = format!("postgres://{role}@{}/postgres?schema={schema}", server().address());
    let error = refused(&url).await.to_string();
    let grants = error.split_once("try again: ").expect("statements").1;
    assert!(grants.starts_with("GRANT USAGE ON SCHEMA"), "{error}");
    server().sql(grants).expect("run by an administrator");
    drop(connect(&url).await.expect("connected").mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn another_version_of_the_schema_is_refused_and_untouched() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    connect(&url).await.expect("connected").admin().install().await.expect("installed");
    server().sql(&format!("UPDATE {schema}.store SET version = 99")).expect("updated");
    let error = refused(&url).await;
    assert!(matches!(error, Error::Config(_)), "trying again does not help: {error:?}");
    let error = error.to_string();
    assert!(error.contains("version 99") && error.contains("?schema="), "{error}");
    let version = server().sql(&format!("SELECT version FROM {schema}.store"));
    assert_eq!(version.expect("an answer"), "99");
}

#[tokio::test]
async fn schema_that_was_dropped_and_installed_again_is_another_store() {
    let schema = fresh_schema();
    let url = format!("{}?schema={schema}", server().url());
    let client = connect(&url).await.expect("connected");
    client.mutex("n").lock().await.expect("a lease").release().await.expect("an answer");
    server().sql(&format!("DROP SCHEMA {schema} CASCADE")).expect("dropped");
    let error = client.mutex("n").lock().await.expect_err("it is gone").to_string();
    assert!(error.contains("leasehold init"), "{error}");
    connect(&url).await.expect("connected").admin().install().await.expect("installed anew");
    crate::support::terminate(server(), &format!("query LIKE '%\"{schema}\"%'"));
    let error = refused_until_reconnected(&client).await;
    assert!(matches!(error, Error::Replaced { .. }), "{error:?}");
}

async fn refused_until_reconnected(client: &Client) -> Error {
    soon("the end of the old connection", async {
        loop {
            match client.mutex("n").try_lock().await.unless_held() {
                Err(error @ Error::Replaced { .. }) => return error,
                _ => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_database_say_what_to_check() {
    let server = Postgres::new().password("two words").start().await.expect("a server");
    drop(
        connect(server.url())
            .await
            .expect("the right password")
            .mutex("n")
            .lock()
            .await
            .expect("ok"),
    );
    let wrong = format!("postgres://postgres:hunter2@{}/postgres", server.address());
    let error = connect(&wrong).await.expect_err("refused");
    assert!(error.to_string().contains("PGPASSWORD"), "{error}");
    assert!(!error.to_string().contains("hunter2") && !error.is_transient(), "{error}");
    let absent = server.url().replace("/postgres", "/absent").replace("//absent", "//postgres");
    let error = connect(&absent).await.expect_err("refused");
    assert!(error.to_string().contains("create the database"), "{error}");
}

#[tokio::test]
async fn a_password_file_is_read_for_its_server() {
    use std::os::unix::fs::PermissionsExt;
    let server = Postgres::new().password("from:file").start().await.expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pgpass");
    let text = format!("127.0.0.1:{}:*:postgres:from\\:file\n", server.port());
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
    let url =
        format!("postgres://postgres@{}/postgres?passfile={}", server.address(), path.display());
    drop(connect(&url).await.expect("connected").mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn tls_is_used_with_the_servers_name_checked_and_never_silently_left_out() {
    let made = Certificates::new().expect("certificates");
    let server = Postgres::new().tls(&made).start().await.expect("a server");
    let url = |host: &str, options: &str| {
        format!("postgres://postgres@{host}:{}/postgres?{options}", server.port())
    };
    let ca = format!("sslmode=verify-full&sslrootcert={}", made.ca().display());
    let client = connect(url("localhost", &ca)).await.expect("connected");
    drop(client.mutex("n").lock().await.expect("a lease"));
    let findings = client.admin().examine().await.expect("an answer");
    let found = findings.iter().find(|finding| finding.subject == "encryption").expect("looked at");
    assert!(found.level == Level::Good && found.found.contains("TLS"), "{found:?}");
    let other = format!("sslmode=verify-full&sslrootcert={}", made.other_ca().display());
    let error = connect(url("localhost", &other)).await.expect_err("another authority");
    assert!(error.with_sources().contains("certificate"), "{error}");
    let error = connect(url("localhost", "sslmode=verify-full")).await.expect_err("not known");
    assert!(error.with_sources().contains("certificate"), "{error}");
    // Without TLS the server turns the client away; it does not try anything else.
    connect(url("localhost", "sslmode=disable")).await.expect_err("the server wants TLS");
    let error = connect(url("localhost", "sslmode=prefer")).await.expect_err("no such mode");
    assert!(error.to_string().contains("fall back silently"), "{error}");
    // The opposite: a server without TLS.
    let plain =
        format!("postgres://postgres@localhost:{}/postgres?{ca}", crate::support::server().port());
    connect(&plain).await.expect_err("the server has no TLS");
}

#[tokio::test]
async fn the_server_is_known_by_its_name_and_not_by_another() {
    let made = Certificates::for_names(&["db.example.com"]).expect("certificates");
    let server = Postgres::new().tls(&made).start().await.expect("a server");
    let url = format!(
        "postgres://postgres@localhost:{}/postgres?sslmode=verify-full&sslrootcert={}",
        server.port(),
        made.ca().display()
    );
    let error = connect(&url).await.expect_err("a certificate of somebody else");
    assert!(error.with_sources().contains("not valid for"), "{error}");
}

#[tokio::test]
async fn certificates_of_clients_are_shown_to_a_server_that_asks_for_them() {
    let made = Certificates::new().expect("certificates");
    let server = Postgres::new().mutual_tls(&made).start().await.expect("a server");
    let url = format!(
        "postgres://postgres@localhost:{}/postgres?sslmode=verify-full&sslrootcert={}",
        server.port(),
        made.ca().display()
    );
    connect(&url).await.expect_err("no certificate");
    let (cert, key) = (made.client_certificate(), made.client_key());
    let url = format!("{url}&sslcert={}&sslkey={}", cert.display(), key.display());
    drop(connect(&url).await.expect("connected").mutex("n").lock().await.expect("a lease"));
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable_at_once() {
    let server = Postgres::new().start().await.expect("a server");
    let client = connect(server.url()).await.expect("connected");
    server.kill().expect("killed");
    let error = connect(server.url()).await.expect_err("gone");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let error = soon("the answer", client.mutex("n").lock()).await.expect_err("gone");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn settings_that_break_promises_are_found_by_the_examination() {
    let server = Postgres::new().setting("synchronous_commit", "off").start().await.expect("one");
    let client = connect(server.url()).await.expect("connected");
    let findings = client.admin().examine().await.expect("an answer");
    let level = |subject: &str| {
        findings.iter().find(|finding| finding.subject == subject).expect("looked at").level
    };
    assert_eq!((level("commits"), level("disk")), (Level::Bad, Level::Bad), "{findings:?}");
    assert_eq!((level("bells"), level("schema")), (Level::Good, Level::Good), "{findings:?}");
}
