//! The command on ZooKeeper: locks that outlive their process, and servers that cannot be used.
//!
//! The tests of the library cover the engine.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use leasehold_testkit::{Peer, PeerKind, Server, Zookeeper};

use crate::support::{
    BINARY, Finished, Running, bare, finish, handle, json,
    shows_only_what_is_known_of_a_foreign_lock,
};

const PASSWORD: &str = "hunter2secret";

fn leasehold(url: &str, arguments: &[&str]) -> Command {
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    command
}

/// Runs a command that must end with this status and not show the password.
#[track_caller]
fn expect(status: i32, url: &str, arguments: &[&str]) -> Finished {
    let finished = finish(&mut leasehold(url, arguments));
    assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
    assert!(!format!("{finished:?}").contains(PASSWORD), "{finished:?}");
    finished
}

fn server() -> Server {
    Zookeeper::new().start_blocking().expect("a server starts")
}

const VERBS: [&[&str]; 4] =
    [&["run", "x", "--", "true"], &["acquire", "x"], &["list"], &["doctor"]];

#[test]
fn a_lock_outlives_its_process_and_its_session_as_long_as_its_handle_is_used() {
    let server = server();
    let url = server.url();
    let handle = handle(&expect(0, url, &["acquire", "x", "--ttl", "3s"]));
    expect(75, url, &["run", "-n", "x", "--", "true"]);
    let left = || {
        let checked = json(&expect(0, url, &["check", "--json", &handle]).stdout);
        checked["remaining_ms"].as_u64().expect("how long it is held")
    };
    // Its session is half as long again as its ttl; each renewal starts it again.
    for _ in 0..3 {
        assert!(left() <= 3_000);
        while left() > 1_500 {}
        expect(0, url, &["renew", &handle]);
    }
    expect(0, url, &["renew", &handle, "--ttl", "30s"]);
    assert!(left() <= 30_000);
    // Longer than its first session.
    while left() > 25_000 {}
    expect(75, url, &["run", "-n", "x", "--", "true"]);
    expect(0, url, &["release", &handle]);
    expect(0, url, &["run", "-n", "x", "--", "true"]);
    expect(77, url, &["renew", &handle]);
}

#[test]
fn a_lock_whose_process_was_killed_is_free_after_its_session() {
    let server = server();
    let script = "echo $LEASEHOLD_FENCE; read line";
    let hold = ["run", "--ttl", "2s", "x", "--", "sh", "-c", script];
    let mut holder = Running::start(&mut leasehold(server.url(), &hold));
    let fence: u64 = holder.line().parse().expect("a fence");
    holder.signal(rustix::process::Signal::KILL);
    let next = ["run", "--wait", "20s", "x", "--", "printenv", "LEASEHOLD_FENCE"];
    let finished = expect(0, server.url(), &next);
    assert!(finished.stdout.trim().parse::<u64>().expect("a fence") > fence);
}

#[test]
fn command_refuses_a_time_that_no_session_lasts_for_with_78_and_names_the_setting() {
    let server = Zookeeper::new().setting("maxSessionTimeout", "12000").start_blocking();
    let server = server.expect("a server starts");
    let url = server.url();
    let refused = |arguments: &[&str]| {
        let finished = expect(78, url, arguments);
        assert!(finished.stderr.contains("`maxSessionTimeout`"), "{arguments:?}: {finished:?}");
        assert_eq!(finished.stdout, "", "{arguments:?}");
    };
    refused(&["once", "x", "--every", "9001ms", "--", "echo", "ran"]);
    refused(&["rate", "x", "--limit", "1", "--per", "9001ms"]);
    refused(&["run", "--hold-at-least", "9001ms", "x", "--", "echo", "ran"]);
    refused(&["acquire", "--ttl", "9001ms", "x"]);
    refused(&["acquire", "x"]);
    refused(&["acquire", "--ttl", "1s", "--hold-at-least", "9001ms", "x"]);
    expect(0, url, &["run", "-n", "x", "--", "true"]);
    // A lease with a shorter time stays as it is.
    let handle = handle(&expect(0, url, &["acquire", "x", "--ttl", "9s"]));
    refused(&["renew", &handle, "--ttl", "9001ms"]);
    expect(0, url, &["renew", &handle]);
    expect(0, url, &["release", &handle]);
    // A claim that a session can outlast is kept although its process is gone.
    let fit: [(&str, &[&str]); 3] = [
        ("o", &["once", "o", "--every", "9s", "--", "true"]),
        ("r", &["rate", "r", "--limit", "1", "--per", "9s"]),
        ("h", &["run", "--hold-at-least", "9s", "h", "--", "true"]),
    ];
    for (name, arguments) in fit {
        expect(0, url, arguments);
        let shown = json(&expect(0, url, &["show", "--json", name]).stdout);
        let kept = [&shown["held"][0], &shown["past"][0]].map(|claim| &claim["remaining_ms"]);
        let left = kept.iter().find_map(|left| left.as_u64()).expect("it is kept");
        assert!(left <= 9_000, "{shown}");
    }
}

#[test]
fn name_that_run_leaves_closed_is_free_soon_after_its_time_however_long_the_ttl_was() {
    let server = server();
    let url = server.url();
    for options in [&["--ttl", "20s"][..], &["--ttl", "20s", "--lock-delay", "5s"]] {
        let hold = ["--hold-at-least", "6s", "x", "--", "true"];
        expect(0, url, &[&["run"], options, &hold].concat());
        let shown = json(&expect(0, url, &["show", "--json", "x"]).stdout);
        let left = shown["held"][0]["remaining_ms"].as_u64().expect("it is held");
        assert!(left <= 6_000, "{shown}");
        expect(75, url, &["run", "-n", "x", "--", "true"]);
        expect(0, url, &["run", "--wait", "12s", "x", "--", "true"]);
    }
}

#[test]
fn a_wrong_password_is_78_and_not_repeated() {
    let server = server();
    let url = |login: &str| format!("zk://{login}{}/app", server.address());
    expect(0, &url("me:right@"), &["run", "x", "--", "true"]);
    for arguments in VERBS {
        let finished = expect(78, &url(&format!("me:{PASSWORD}@")), arguments);
        assert!(finished.stderr.contains("docs/engines/zookeeper.md"), "{finished:?}");
    }
}

#[test]
fn a_missing_right_to_create_is_78_and_doctor_calls_it_bad() {
    let server = server();
    let url = server.url();
    expect(0, url, &["doctor"]);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the peer");
    let mut theirs = runtime.block_on(Peer::spawn(PeerKind::Kazoo, &[url])).expect("a peer");
    // The command can open the store, but it cannot make a line there.
    assert!(runtime.block_on(theirs.seal("/locks")).expect("an answer"));
    expect(78, url, &["run", "x", "--", "true"]);
    let report = json(&expect(78, url, &["doctor", "--json"]).stdout);
    let findings = report["findings"].as_array().expect("findings");
    let rights = findings.iter().find(|finding| finding["subject"] == "rights");
    assert_eq!(rights.expect("rights")["level"], "bad", "{report}");
    // And it cannot make one elsewhere.
    assert!(runtime.block_on(theirs.seal("/")).expect("an answer"));
    for arguments in VERBS {
        let finished = expect(78, &format!("{url}/app"), arguments);
        assert!(finished.stderr.contains("docs/engines/zookeeper.md"), "{finished:?}");
    }
}

#[test]
fn nobody_at_the_address_and_a_server_that_is_no_zookeeper_are_69() {
    let port = leasehold_testkit::ports::Port::reserve().expect("a port that nobody uses");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let other = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            // The client may be gone already.
            let _unheard = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for address in [port.address(), other] {
        let limits = "connect_timeout_ms=300&timeout_ms=300";
        let url = format!("zk://app:{PASSWORD}@{address}?{limits}");
        for arguments in VERBS {
            let finished = expect(69, &url, arguments);
            assert!(finished.stderr.contains(&address.to_string()), "{finished:?}");
        }
    }
}

#[test]
fn server_that_takes_no_further_connection_names_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("zk://{}", listener.local_addr().expect("an address"));
    // As a server treats a client with too many connections.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let finished = expect(69, &url, &["list"]);
    assert!(finished.stderr.contains("maxClientCnxns"), "{finished:?}");
}

#[test]
fn spans_of_a_handle_count_from_its_grant() {
    let server = server();
    crate::support::spans_of_a_handle_count_from_its_grant(server.url());
}

#[test]
fn spans_of_a_handle_do_not_follow_a_wall_clock_that_is_set() {
    let server = server();
    crate::support::spans_of_a_handle_do_not_follow_a_wall_clock_that_is_set(server.url());
}

#[test]
fn release_whose_answer_is_lost_is_no_lost_lock() {
    let server = server();
    let url_at = |address| format!("zk://{address}");
    crate::support::release_whose_answer_is_lost_is_no_lost_lock(server.address(), url_at);
}

#[test]
fn lock_of_kazoo_is_shown_without_an_age() {
    let server = server();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the peer");
    let url = server.url();
    let mut theirs = runtime.block_on(Peer::spawn(PeerKind::Kazoo, &[url])).expect("a peer");
    let long = std::time::Duration::from_secs(300);
    assert!(runtime.block_on(theirs.try_lock("locks/ext", long)).expect("an answer"));
    // The transaction that made its node is a fence.
    shows_only_what_is_known_of_a_foreign_lock(server.url(), "ext", true);
}
