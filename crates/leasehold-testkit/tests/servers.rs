//! Every server shape starts, answers, stops, continues, restarts, and leaves nothing behind.
//!
//! The tests of the engines use the servers.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_testkit::conformance::Failure;
use leasehold_testkit::process::is_alive;
use leasehold_testkit::servers::UNIX_SOCKET;
use leasehold_testkit::{
    Direction, Error, Etcd, Group, Postgres, Proxy, Redis, Server, Worker, Zookeeper,
    remove_orphans,
};

const LIMIT: Duration = Duration::from_secs(30);

/// The traces that must be gone after a server was dropped.
struct Trace {
    pids: Vec<u32>,
    folder: PathBuf,
    server: String,
}

impl Trace {
    fn of(server: &Server) -> Trace {
        let pid = server.pid().expect("the server runs");
        let pids = [vec![pid], children_of(pid)].concat();
        Trace { pids, folder: server.folder().to_owned(), server: format!("{server:?}") }
    }

    fn assert_gone(&self) {
        for pid in &self.pids {
            assert!(!is_alive(*pid), "process {pid} of {} is left", self.server);
        }
        assert!(!self.folder.exists(), "the folder of {} is left", self.server);
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits for a condition that no event reports.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Stops, continues, kills and restarts a server that does not need others.
async fn survives_faults(server: &Server) {
    server.check_ready().unwrap();
    let (port, pid) = (server.port(), server.pid().unwrap());

    server.stop_process().unwrap();
    server.check_ready().expect_err("a stopped server cannot answer");
    server.continue_process().unwrap();
    server.wait_ready().await.unwrap();
    assert_eq!(server.pid(), Some(pid), "it is still the same process");

    server.kill().unwrap();
    assert_eq!(server.pid(), None);
    assert!(!is_alive(pid));
    assert!(matches!(server.stop_process(), Err(Error::NotRunning { .. })));
    TcpStream::connect(server.address()).expect_err("a killed server does not listen");

    server.restart().await.unwrap();
    server.check_ready().unwrap();
    assert_eq!(server.port(), port);

    server.shut_down().unwrap();
    assert_eq!(server.pid(), None);
    server.restart().await.unwrap();
}

async fn survives_faults_and_leaves_nothing(server: Server) {
    survives_faults(&server).await;
    let trace = Trace::of(&server);
    drop(server);
    trace.assert_gone();
}

/// A group must go on without one member, and take it back.
async fn survives_the_loss_of_a_member(group: Group) {
    let [first, second, third] = group.servers() else { panic!("three members: {group:?}") };
    second.kill().unwrap();
    for other in [first, third] {
        other.wait_ready().await.unwrap();
    }
    second.restart().await.unwrap();
    group.restart().await.unwrap();
    for server in group.servers() {
        server.check_ready().unwrap();
    }
    let traces: Vec<Trace> = group.servers().iter().map(Trace::of).collect();
    drop(group);
    traces.iter().for_each(Trace::assert_gone);
}

#[tokio::test]
async fn one_redis_survives_faults_and_leaves_nothing() {
    let server = Redis::new().start().await.unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    survives_faults_and_leaves_nothing(server).await;
}

#[tokio::test]
async fn one_postgres_survives_faults_and_leaves_nothing() {
    let options = Postgres::new().fsync(true).setting("max_connections", "20");
    let server = options.start().await.unwrap();
    assert_eq!(server.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", server.port()));
    assert!(!children_of(server.pid().unwrap()).is_empty(), "it works in processes of its own");
    survives_faults_and_leaves_nothing(server).await;
}

#[tokio::test]
async fn one_zookeeper_survives_faults_and_leaves_nothing() {
    let server = Zookeeper::new().start().await.unwrap();
    assert_eq!(server.url(), format!("zk://127.0.0.1:{}", server.port()));
    survives_faults_and_leaves_nothing(server).await;
}

#[tokio::test]
async fn one_etcd_survives_faults_and_leaves_nothing() {
    let server = Etcd::new().start().await.unwrap();
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
    survives_faults_and_leaves_nothing(server).await;
}

#[tokio::test]
async fn zookeeper_ensemble_survives_the_loss_of_a_member() {
    survives_the_loss_of_a_member(Zookeeper::new().start_ensemble().await.unwrap()).await;
}

#[tokio::test]
async fn etcd_cluster_survives_the_loss_of_a_member() {
    survives_the_loss_of_a_member(Etcd::new().start_cluster().await.unwrap()).await;
}

#[tokio::test]
async fn independent_redis_servers_know_nothing_of_each_other() {
    let group = Redis::new().start_many(5).await.unwrap();
    assert!(group.url().starts_with("redlock://127.0.0.1:"));
    assert_eq!(group.url().split(',').count(), 5);
    let servers = group.servers();
    servers[0].redis(&["SET", "name", "first"]).unwrap();
    assert_eq!(servers[0].redis(&["GET", "name"]).unwrap(), "first");
    assert!(servers[1..].iter().all(|server| server.redis(&["GET", "name"]).unwrap().is_empty()));
    let traces: Vec<Trace> = servers.iter().map(Trace::of).collect();
    drop(group);
    traces.iter().for_each(Trace::assert_gone);
}

#[tokio::test]
async fn redis_cluster_serves_all_slots_and_takes_a_member_back() {
    let group = Redis::new().start_cluster().await.unwrap();
    assert!(group.url().starts_with("redis+cluster://127.0.0.1:"));
    let [first, second, third] = group.servers() else { panic!("three masters: {group:?}") };
    // The slot of `foo` is 12182, that of `bar` 5061.
    third.redis(&["SET", "foo", "1"]).unwrap();
    first.redis(&["SET", "bar", "1"]).unwrap();
    let moved = second.redis(&["GET", "bar"]).unwrap_err().to_string();
    assert!(moved.contains(&format!("MOVED 5061 {}", first.address())), "{moved}");
    second.restart().await.unwrap();
    eventually("the cluster to be whole", || {
        let state = second.redis(&["CLUSTER", "INFO"]).unwrap();
        state.contains("cluster_state:ok") && state.contains("cluster_size:3")
    })
    .await;
}

#[tokio::test]
async fn sentinels_fail_over_to_a_replica() {
    let group = Redis::new().start_sentinel().await.unwrap();
    assert!(group.url().ends_with("/leasehold"), "{}", group.url());
    let first = group.first_master();
    assert_eq!(group.current_master().unwrap().port(), first.port());
    first.redis(&["SET", "name", "kept"]).unwrap();
    assert_eq!(first.redis(&["WAIT", "2", "30000"]).unwrap(), "2");
    first.kill().unwrap();
    eventually("another master", || group.current_master().unwrap().port() != first.port()).await;
    let master = group.current_master().unwrap();
    eventually("its promotion", || master.redis(&["ROLE"]).unwrap().starts_with("master")).await;
    assert_eq!(master.redis(&["GET", "name"]).unwrap(), "kept");
    let traces: Vec<Trace> =
        group.sentinels().iter().chain(&group.data()[1..]).map(Trace::of).collect();
    drop(group);
    traces.iter().for_each(Trace::assert_gone);
}

#[tokio::test]
async fn redis_keeps_data_over_a_kill_only_with_append_only() {
    let kept = Redis::new().append_only().start().await.unwrap();
    let lost = Redis::new().start().await.unwrap();
    for server in [&kept, &lost] {
        server.redis(&["SET", "name", "value"]).unwrap();
        server.restart().await.unwrap();
    }
    assert_eq!(kept.redis(&["GET", "name"]).unwrap(), "value");
    assert_eq!(lost.redis(&["GET", "name"]).unwrap(), "");
}

#[tokio::test]
async fn redis_asks_for_the_password_and_knows_its_users() {
    let options = Redis::new().password("secret 1").user("reader", "pass", "~* +get");
    let server = options.start().await.unwrap();
    assert!(server.url().starts_with("redis://:secret%201@"), "{}", server.url());
    assert_eq!(server.redis(&["ACL", "WHOAMI"]).unwrap(), "default");
    let users = server.redis(&["ACL", "LIST"]).unwrap();
    assert!(users.contains("user reader on") && users.contains("+get"), "{users}");
    assert!(!format!("{server:?}").contains("secret"));
}

#[tokio::test]
async fn redis_listens_on_a_socket_file() {
    let server = Redis::new().unix_socket().start().await.unwrap();
    UnixStream::connect(server.folder().join(UNIX_SOCKET)).unwrap();
}

#[tokio::test]
async fn option_that_the_server_refuses_is_an_error_with_the_log() {
    let error = Redis::new().argument("--no-such-option").argument("1").start().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::EarlyExit { .. }), "{text}");
    assert!(text.contains("no-such-option"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_stands_between_a_client_and_a_real_server() {
    let server = Redis::new().start().await.unwrap();
    let proxy = Proxy::start(server.address()).await.unwrap();
    proxy.block(Direction::ToClient);
    let mut client = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut client, b"SET name value\r\n").await.unwrap();
    proxy.wait_for("the reply", LIMIT, |traffic| traffic.to_client.held == 5).await.unwrap();
    assert_eq!(server.redis(&["GET", "name"]).unwrap(), "value");
    proxy.pass().await.unwrap();
    let mut reply = [0; 5];
    tokio::io::AsyncReadExt::read_exact(&mut client, &mut reply).await.unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

/// This test runs itself again in a process of its own, which it kills.
#[tokio::test]
async fn servers_and_data_go_with_a_killed_test_process() {
    const CHILD: &str = "LEASEHOLD_TESTKIT_CHILD";
    const NAME: &str = "servers_and_data_go_with_a_killed_test_process";
    if std::env::var_os(CHILD).is_some() {
        let redis = Redis::new().start().await.unwrap();
        let postgres = Postgres::new().start().await.unwrap();
        let pids = [redis.pid(), postgres.pid()].map(|pid| pid.unwrap().to_string());
        println!("\npids {} {}", pids.join(" "), redis.folder().display());
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1");
    let mut worker = Worker::spawn(command).unwrap();
    let line = worker.wait_for_line("pids ", LIMIT).await.unwrap();
    let pids: Vec<u32> = line.split(' ').take(2).map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    let family = [pids.clone(), children_of(pids[1])].concat();
    assert!(family.len() > pids.len(), "PostgreSQL works in processes of its own");
    worker.kill().unwrap();
    eventually("the servers to end", || !family.iter().any(|pid| is_alive(*pid))).await;
    let folder = Path::new(line.split(' ').nth(2).unwrap());
    // Another test process may be removing it right now; then this one leaves it alone.
    remove_orphans();
    eventually("the data to be removed", || !folder.exists()).await;
}

/// How the server below belongs to its test.
const FAILS_WITH: &str = "LEASEHOLD_TEST_FAILS_WITH";

/// The test that fails. It does nothing when all tests run.
#[test]
fn program_that_fails_with_a_server() {
    let start = || Redis::new().start_blocking().expect("a server");
    match std::env::var(FAILS_WITH).as_deref() {
        Ok("own") => {
            let _own = start();
            panic!("this test fails");
        }
        Ok("shared") => {
            static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
            SERVER.get_or_init(|| start().shared());
            panic!("this test fails");
        }
        Ok("own, without a panic") => {
            let own = start();
            let _failure = Failure::new("this case fails");
            drop(own);
            std::process::exit(1);
        }
        _ => {}
    }
}

#[test]
fn failed_test_shows_the_last_lines_of_its_servers_log() {
    for server in ["own", "shared", "own, without a panic"] {
        let mut program = Command::new(std::env::current_exe().expect("a file"));
        program.args(["--exact", "--nocapture", "program_that_fails_with_a_server"]);
        program.env(FAILS_WITH, server);
        let output = program.output().expect("it runs");
        // Without capture the log goes to standard error.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(!output.status.success(), "{text}");
        let (_, shown) = text.split_once("-- the last lines of the log of `redis").expect(&text);
        assert!(shown.contains("Server initialized"), "{server}: {text}");
    }
}
