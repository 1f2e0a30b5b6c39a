//! Servers with passwords and TLS admit the right clients, and no others.
//!
//! The tests ask with the servers' own command line clients, which share no code with the harness.

use std::path::Path;
use std::process::{Command, Output};

use leasehold_testkit::{Certificates, Etcd, Postgres, Redis, Server, Zookeeper};

const PASSWORD: &str = "two words \"and\" 'quotes' \\";

/// The output of a client that the server admitted, or its error message.
fn said(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.output().expect("`cargo xtask setup` installs the client");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (out, err) = (text(&stdout), text(&stderr));
    if status.success() && err.is_empty() { Ok(out) } else { Err(format!("{out}{err}")) }
}

fn redis_cli(server: &Server) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(["-e", "-h", "127.0.0.1", "-p", &server.port().to_string()]);
    command
}

fn redis_ping(server: &Server, more: &[&str]) -> Result<String, String> {
    said(redis_cli(server).args(more).arg("PING"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("folders of the harness have plain names")
}

#[tokio::test]
async fn redis_with_tls_lets_in_only_those_who_speak_it() {
    let made = Certificates::new().unwrap();
    let server = Redis::new().tls(&made).start().await.unwrap();
    assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
    let (ca, other) = (made.ca(), made.other_ca());
    assert_eq!(redis_ping(&server, &["--tls", "--cacert", text(&ca)]).unwrap(), "PONG");
    redis_ping(&server, &["--tls", "--cacert", text(&other)]).expect_err("an unknown authority");
    redis_ping(&server, &[]).expect_err("no TLS");
    server.restart().await.unwrap();
    assert_eq!(server.redis(&["PING"]).unwrap(), "PONG", "the harness has a way of its own");
}

#[tokio::test]
async fn redis_with_mutual_tls_asks_for_the_clients_certificate() {
    let made = Certificates::new().unwrap();
    let server = Redis::new().mutual_tls(&made).start().await.unwrap();
    let (ca, certificate, key) = (made.ca(), made.client_certificate(), made.client_key());
    let mut words = vec!["--tls", "--cacert", text(&ca)];
    redis_ping(&server, &words).expect_err("no certificate");
    words.extend(["--cert", text(&certificate), "--key", text(&key)]);
    assert_eq!(redis_ping(&server, &words).unwrap(), "PONG");
    let stranger = Certificates::new().unwrap();
    let (certificate, key) = (stranger.client_certificate(), stranger.client_key());
    words.truncate(3);
    words.extend(["--cert", text(&certificate), "--key", text(&key)]);
    redis_ping(&server, &words).expect_err("a certificate of another authority");
}

#[tokio::test]
async fn redis_cluster_and_sentinels_work_with_tls() {
    let made = Certificates::new().unwrap();
    let ca = made.ca();
    let cluster = Redis::new().mutual_tls(&made).start_cluster().await.unwrap();
    assert!(cluster.url().starts_with("rediss+cluster://127.0.0.1:"), "{}", cluster.url());
    let group = Redis::new().tls(&made).password(PASSWORD).start_sentinel().await.unwrap();
    assert!(group.url().starts_with("rediss+sentinel://:two%20words"), "{}", group.url());
    let words = ["--tls", "--cacert", text(&ca)];
    assert_eq!(redis_ping(&group.sentinels()[0], &words).unwrap(), "PONG");
    redis_ping(&group.sentinels()[0], &[]).expect_err("no TLS");
}

#[tokio::test]
async fn sentinels_fail_over_servers_with_a_password() {
    let options = Redis::new().password(PASSWORD).sentinel_password("another");
    let group = options.start_sentinel().await.unwrap();
    assert!(!format!("{group:?}").contains("words"));
    for server in group.data().iter().chain(group.sentinels()) {
        let refused = redis_ping(server, &[]).expect_err("no password");
        assert!(refused.contains("NOAUTH"), "{refused}");
    }
    let sentinel = |password| {
        let mut command = redis_cli(&group.sentinels()[0]);
        command.env("REDISCLI_AUTH", password);
        said(command.args(["SENTINEL", "CKQUORUM", "leasehold"]))
    };
    assert!(sentinel("another").unwrap().starts_with("OK 3"));
    sentinel(PASSWORD).expect_err("that is the password of the data");

    let first = group.first_master();
    first.redis(&["SET", "name", "kept"]).unwrap();
    assert_eq!(first.redis(&["WAIT", "2", "30000"]).unwrap(), "2");
    group.sentinels()[0].redis(&["SENTINEL", "FAILOVER", "leasehold"]).unwrap();
    let started = std::time::Instant::now();
    let master = loop {
        let master = group.current_master().unwrap();
        let is_another = master.port() != first.port();
        if is_another && master.redis(&["ROLE"]).unwrap().starts_with("master") {
            break master;
        }
        assert!(started.elapsed().as_secs() < 30, "no failover");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(master.redis(&["GET", "name"]).unwrap(), "kept");
}

#[tokio::test]
async fn independent_redis_servers_share_a_password_and_tls() {
    let made = Certificates::new().unwrap();
    let group = Redis::new().tls(&made).password("secret").start_many(3).await.unwrap();
    assert!(group.url().starts_with("redlock://:secret@127.0.0.1:"), "{}", group.url());
    assert!(!format!("{group:?}").contains("secret"));
    for server in group.servers() {
        let ca = made.ca();
        let mut command = redis_cli(server);
        command.args(["--tls", "--cacert", text(&ca), "PING"]).env("REDISCLI_AUTH", "secret");
        assert_eq!(said(&mut command).unwrap(), "PONG");
    }
}

/// Asks over TCP, with libpq's settings.
fn psql(server: &Server, password: &str, settings: &str) -> Result<String, String> {
    let settings =
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres {settings}", server.port());
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--tuples-only", "--no-align", "--no-password"]);
    command.arg("--command").arg("SELECT 'in', ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");
    said(command.arg(settings).env("PGPASSWORD", password))
}

#[tokio::test]
async fn postgres_asks_for_the_password() {
    let server = Postgres::new().password(PASSWORD).start().await.unwrap();
    let port = server.port();
    let login = "postgres:two%20words%20%22and%22%20%27quotes%27%20%5C";
    assert_eq!(server.url(), format!("postgres://{login}@127.0.0.1:{port}/postgres"));
    assert!(!format!("{server:?}").contains("words"));
    assert_eq!(psql(&server, PASSWORD, "").unwrap(), "in|f");
    let refused = psql(&server, "wrong", "").expect_err("a wrong password");
    assert!(refused.contains("password authentication failed"), "{refused}");
    let by_url = said(Command::new("psql").args([server.url(), "-Atc", "SELECT 1"]));
    assert_eq!(by_url.unwrap(), "1", "the address is complete");
    let stored = server.sql("SELECT left(rolpassword, 13) FROM pg_authid WHERE oid = 10").unwrap();
    assert_eq!(stored, "SCRAM-SHA-256");
}

#[tokio::test]
async fn postgres_with_tls_lets_in_only_those_who_speak_it() {
    let made = Certificates::new().unwrap();
    let server = Postgres::new().password("secret").tls(&made).start().await.unwrap();
    let ca = format!("sslmode=verify-full sslrootcert={}", made.ca().display());
    assert_eq!(psql(&server, "secret", &ca).unwrap(), "in|t");
    let other = format!("sslmode=verify-full sslrootcert={}", made.other_ca().display());
    let refused = psql(&server, "secret", &other).expect_err("an unknown authority");
    assert!(refused.contains("certificate verify failed"), "{refused}");
    let refused = psql(&server, "secret", "sslmode=disable").expect_err("no TLS");
    assert!(refused.contains("no encryption"), "{refused}");
    server.restart().await.unwrap();
    assert_eq!(psql(&server, "secret", &ca).unwrap(), "in|t");
}

#[tokio::test]
async fn postgres_with_mutual_tls_asks_for_the_clients_certificate() {
    let made = Certificates::new().unwrap();
    let server = Postgres::new().mutual_tls(&made).start().await.unwrap();
    let mut settings = format!("sslmode=verify-full sslrootcert={}", made.ca().display());
    psql(&server, "", &settings).expect_err("no certificate");
    let (certificate, key) = (made.client_certificate(), made.client_key());
    settings.push_str(&format!(" sslcert={} sslkey={}", certificate.display(), key.display()));
    assert_eq!(psql(&server, "", &settings).unwrap(), "in|t");
}

#[tokio::test]
async fn certificate_of_postgres_for_another_name_is_refused() {
    let made = Certificates::for_names(&["elsewhere.invalid"]).unwrap();
    let server = Postgres::new().tls(&made).start().await.unwrap();
    let ca = made.ca();
    let refused = psql(&server, "", &format!("sslmode=verify-full sslrootcert={}", ca.display()));
    let refused = refused.expect_err("the certificate is not for 127.0.0.1");
    assert!(refused.contains("does not match host name"), "{refused}");
    let settings = format!("sslmode=verify-ca sslrootcert={}", ca.display());
    assert_eq!(psql(&server, "", &settings).unwrap(), "in|t");
}

fn etcdctl(server: &Server, authority: &Path, more: &[&str]) -> Result<String, String> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--dial-timeout=1s", "--command-timeout=1s"]);
    command.arg(format!("--endpoints=https://{}", server.address()));
    command.arg(format!("--cacert={}", authority.display())).args(more);
    said(command.args(["get", "nothing"]))
}

#[tokio::test]
async fn etcd_with_tls_lets_in_those_who_trust_it() {
    let made = Certificates::new().unwrap();
    let server = Etcd::new().tls(&made).start().await.unwrap();
    assert_eq!(etcdctl(&server, &made.ca(), &[]).unwrap(), "");
    etcdctl(&server, &made.other_ca(), &[]).expect_err("an unknown authority");
}

#[tokio::test]
async fn etcd_cluster_with_mutual_tls_lets_in_only_those_with_a_certificate() {
    let made = Certificates::new().unwrap();
    let cluster = Etcd::new().mutual_tls(&made).start_cluster().await.unwrap();
    let server = &cluster.servers()[0];
    let (certificate, key) = (made.client_certificate(), made.client_key());
    let identity = ["--cert", text(&certificate), "--key", text(&key)];
    assert_eq!(etcdctl(server, &made.ca(), &identity).unwrap(), "");
    etcdctl(server, &made.ca(), &[]).expect_err("no certificate");
}

/// Says `ruok` over TLS with OpenSSL's client, which stays until the server closes.
fn ask_zookeeper(server: &Server, authority: &Path, more: &[&str]) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", "printf ruok | openssl s_client -quiet -verify_return_error \"$@\"", "sh"]);
    command.args(["-connect", &server.address().to_string(), "-CAfile"]).arg(authority).args(more);
    let output = command.output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    if answer == "imok" { Ok(answer) } else { Err(answer) }
}

#[tokio::test]
async fn zookeeper_ensemble_with_tls_lets_in_those_who_trust_it() {
    let made = Certificates::new().unwrap();
    let ensemble = Zookeeper::new().tls(&made).start_ensemble().await.unwrap();
    for server in ensemble.servers() {
        ask_zookeeper(server, &made.ca(), &[]).unwrap();
    }
    ask_zookeeper(&ensemble.servers()[0], &made.other_ca(), &[]).expect_err("an unknown one");
}

#[tokio::test]
async fn zookeeper_with_mutual_tls_lets_in_only_those_with_a_certificate() {
    let made = Certificates::new().unwrap();
    let server = Zookeeper::new().mutual_tls(&made).start().await.unwrap();
    let (certificate, key) = (made.client_certificate(), made.client_key());
    let identity = ["-cert", text(&certificate), "-key", text(&key)];
    ask_zookeeper(&server, &made.ca(), &identity).unwrap();
    ask_zookeeper(&server, &made.other_ca(), &identity).expect_err("an unknown authority");
    ask_zookeeper(&server, &made.ca(), &[]).expect_err("no certificate");
    server.restart().await.unwrap();
}
