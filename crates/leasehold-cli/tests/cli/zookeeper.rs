//! The command on ZooKeeper: locks that outlive their process, and servers that cannot be used.
//!
//! What the engine does is tested with the library.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use leasehold_testkit::{Peer, PeerKind, Server, Zookeeper};

use crate::support::{BINARY, Finished, Running, bare, finish, handle, json};

const PASSWORD: &str = "hunter2secret";

fn leasehold(url: &str, arguments: &[&str]) -> Command {
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    command
}

/// Runs something that must end with this status and keep the password quiet.
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
    // Its session is half as long again as its ttl; each renewal makes it begin anew.
    for _ in 0..3 {
        assert!(left() <= 3_000);
        while left() > 1_500 {}
        expect(0, url, &["renew", &handle]);
    }
    expect(0, url, &["renew", &handle, "--ttl", "30s"]);
    assert!(left() <= 30_000);
    // Longer than the session that it began with.
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
    // The store is there and can be opened, but no line can be made.
    assert!(runtime.block_on(theirs.seal("/locks")).expect("an answer"));
    expect(78, url, &["run", "x", "--", "true"]);
    let report = json(&expect(78, url, &["doctor", "--json"]).stdout);
    let findings = report["findings"].as_array().expect("findings");
    let rights = findings.iter().find(|finding| finding["subject"] == "rights");
    assert_eq!(rights.expect("rights")["level"], "bad", "{report}");
    // And none can be made elsewhere.
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
            // Whoever asked may be gone already.
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
