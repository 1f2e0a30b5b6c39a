//! The command on Redis: servers that cannot be used, and faults that need a process of their own.
//!
//! What the engine does is tested with the library.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Clock, Redis, Server};

use crate::support::{BINARY, Finished, Running, bare, eventually, finish, json};

const PASSWORD: &str = "hunter2secret";

fn leasehold(url: &str, arguments: &[&str]) -> Command {
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    command
}

/// Runs something that must fail with this status and keep the password quiet.
#[track_caller]
fn fails(status: i32, url: &str, arguments: &[&str]) -> Finished {
    let url = format!("{url}?connect_timeout_ms=700&timeout_ms=700");
    let finished = finish(&mut leasehold(&url, arguments));
    assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
    assert!(!format!("{finished:?}").contains(PASSWORD), "{finished:?}");
    finished
}

fn server(options: &Redis) -> Server {
    options.start_blocking().expect("a server starts")
}

const VERBS: [&[&str]; 4] =
    [&["run", "x", "--", "true"], &["acquire", "x"], &["list"], &["doctor"]];

#[test]
fn a_wrong_password_is_78_and_not_repeated() {
    let server = server(&Redis::new().password("right").user("app", "right", "~* &* +@all"));
    for user in ["", "app"] {
        let url = format!("redis://{user}:{PASSWORD}@{}", server.address());
        for arguments in VERBS {
            let finished = fails(78, &url, arguments);
            assert!(finished.stderr.contains("password"), "{finished:?}");
        }
    }
    let finished = fails(78, &format!("redis://{}", server.address()), &["list"]);
    assert!(finished.stderr.contains("password"), "{finished:?}");
}

#[test]
fn a_missing_right_is_78_and_the_page_is_named() {
    let server = server(&Redis::new().user("app", PASSWORD, "~lock:* &* +@all -evalsha -eval"));
    let url = format!("redis://app:{PASSWORD}@{}", server.address());
    let finished = fails(78, &url, &["run", "x", "--", "true"]);
    assert!(finished.stderr.contains("docs/engines/redis.md"), "{finished:?}");
}

#[test]
fn nobody_at_the_address_is_69() {
    let port = leasehold_testkit::ports::Port::reserve().expect("a port that nobody uses");
    for arguments in VERBS {
        let url = format!("redis://app:{PASSWORD}@{}", port.address());
        let finished = fails(69, &url, arguments);
        assert!(finished.stderr.contains(&port.address().to_string()), "{finished:?}");
    }
}

#[test]
fn a_server_that_is_no_redis_is_69_and_said_to_be_none() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            // Whoever asked may be gone already.
            let _unheard = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let finished = fails(69, &format!("redis://app:{PASSWORD}@{address}"), &["list"]);
    assert!(finished.stderr.contains("Redis"), "{finished:?}");
}

#[test]
fn a_server_that_never_answers_is_69_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    fails(69, &format!("redis://app:{PASSWORD}@{address}"), &["list"]);
}

#[test]
fn f62_a_server_that_may_evict_any_key_is_78() {
    let server = server(&Redis::new());
    server.redis(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).expect("set");
    let finished = fails(78, server.url(), &["run", "x", "--", "true"]);
    assert!(finished.stderr.contains("allow_eviction"), "{finished:?}");
}

#[test]
fn a_handle_releases_on_a_server_without_memory() {
    let server = server(&Redis::new());
    let acquired = finish(&mut leasehold(server.url(), &["acquire", "x"]));
    assert_eq!(acquired.status, 0, "{acquired:?}");
    server.redis(&["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    fails(69, server.url(), &["acquire", "y"]);
    let handle = acquired.stdout.trim();
    let released = finish(&mut leasehold(server.url(), &["release", handle]));
    assert_eq!(released.status, 0, "{released:?}");
    assert_eq!(server.redis(&["EXISTS", "lock:x"]).expect("an answer"), "0");
}

#[test]
fn f22_a_holder_that_is_killed_behind_a_dead_link_is_followed_after_its_ttl() {
    let server = server(&Redis::new());
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the proxy");
    let proxy = runtime.block_on(leasehold_testkit::Proxy::start(server.address()));
    let proxy = proxy.expect("a proxy starts");
    let url = format!("redis://{}", proxy.address());
    let script = "echo $LEASEHOLD_FENCE; read line";
    let hold = ["run", "--ttl", "2s", "x", "--", "sh", "-c", script];
    let mut holder = Running::start(&mut leasehold(&url, &hold));
    let fence: u64 = holder.line().parse().expect("a fence");
    proxy.block(leasehold_testkit::Direction::Both);
    holder.signal(rustix::process::Signal::KILL);
    let next = ["run", "--wait", "20s", "x", "--", "printenv", "LEASEHOLD_FENCE"];
    let finished = finish(&mut leasehold(server.url(), &next));
    assert_eq!(finished.status, 0, "{finished:?}");
    assert!(finished.stdout.trim().parse::<u64>().expect("a fence") > fence);
}

#[test]
fn f42_a_step_of_a_clients_wall_clock_frees_nothing_and_loses_nothing() {
    let server = server(&Redis::new());
    let clock = Clock::new().expect("a clock that can be moved");
    let stepped = |arguments: &[&str]| {
        let mut command = leasehold(server.url(), arguments);
        command.envs(clock.environment());
        command
    };
    let script = "echo held; read line; exit 7";
    let hold = ["run", "--ttl", "600ms", "x", "--", "sh", "-c", script];
    let mut holder = Running::start(&mut stepped(&hold));
    assert_eq!(holder.line(), "held");
    let hour = Duration::from_secs(3_600);
    for step in ["ahead", "behind"] {
        match step {
            "ahead" => clock.set_ahead(hour),
            _ => clock.set_behind(hour),
        }
        .expect("moved");
        // Twice the ttl: were the lease to end by wall time, somebody would get it.
        let finished = finish(&mut stepped(&["run", "--wait", "1200ms", "x", "--", "true"]));
        assert_eq!(finished.status, 75, "{step}: {finished:?}");
    }
    holder.write("done\n");
    assert_eq!(holder.end().status, 7);
    eventually("the lock is free", || {
        let shown = finish(&mut leasehold(server.url(), &["show", "--json", "x"]));
        json(&shown.stdout)["held"].as_array().is_some_and(Vec::is_empty)
    });
}

/// A foreign key is looked at five times a second, and each answer shows the server's clock.
#[test]
fn f40_a_command_that_was_paused_tells_of_no_step_and_of_one_that_was() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = server(&Redis::new().clock(&clock));
    let foreign = || server.redis(&["SET", "lock:x", "theirs"]).expect("set");
    let look = || {
        let claims = server.redis(&["HLEN", "leasehold:line:lock:x"]).expect("an answer");
        claims.parse::<u32>().is_ok_and(|claims| claims > 0)
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the proxy");
    let proxy = runtime.block_on(leasehold_testkit::Proxy::start(server.address()));
    let proxy = proxy.expect("a proxy starts");
    // So that some of the pauses fall between a question and its answer.
    proxy.delay(leasehold_testkit::Direction::Both, Duration::from_millis(60));
    let url = format!("redis://{}", proxy.address());
    for step in [Duration::ZERO, Duration::from_secs(5)] {
        foreign();
        let waiting = ["-v", "run", "--wait", "60s", "x", "--", "true"];
        let waiter = Running::start(&mut leasehold(&url, &waiting));
        eventually("it waits", look);
        for _ in 0..5 {
            waiter.signal(rustix::process::Signal::STOP);
            std::thread::sleep(Duration::from_millis(300));
            waiter.signal(rustix::process::Signal::CONT);
            std::thread::sleep(Duration::from_millis(250));
        }
        clock.set_ahead(step).expect("moved");
        std::thread::sleep(Duration::from_millis(1_500));
        server.redis(&["DEL", "lock:x"]).expect("gone");
        let finished = waiter.wait();
        assert_eq!(finished.status, 0, "{finished:?}");
        let told = finished.stderr.contains("clock was set");
        assert_eq!(told, !step.is_zero(), "{finished:?}");
    }
}
