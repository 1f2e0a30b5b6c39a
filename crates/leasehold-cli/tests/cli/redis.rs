//! The command on Redis: servers that cannot be used, and faults that need a process of their own.
//!
//! The tests of the library cover the engine.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Clock, Redis, Server};

use crate::support::{
    BINARY, Finished, Running, await_stopped, bare, eventually, finish, json, pid,
    shows_only_what_is_known_of_a_foreign_lock, state,
};
use crate::terminal::Typist;

const PASSWORD: &str = "hunter2secret";

fn leasehold(url: &str, arguments: &[&str]) -> Command {
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    command
}

/// Runs a command that must fail with this status and not show the password.
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
    assert!(finished.stderr.contains("none was given"), "{finished:?}");
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
            // The client may be gone already.
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
    let said = finish(&mut leasehold(server.url(), &["doctor"]));
    let is_told = |line: &str| line.starts_with("bad") && line.contains("trial  ");
    assert!(said.status == 78 && said.stdout.lines().any(is_told), "{said:?}");
    let handle = acquired.stdout.trim();
    let released = finish(&mut leasehold(server.url(), &["release", handle]));
    assert_eq!(released.status, 0, "{released:?}");
    assert_eq!(server.redis(&["EXISTS", "lock:x"]).expect("an answer"), "0");
}

#[test]
fn person_sees_that_the_store_is_away_and_the_wait_goes_on() {
    let server = server(&Redis::new());
    let url = format!("{}?connect_timeout_ms=700&timeout_ms=700", server.url());
    let acquired = finish(&mut leasehold(&url, &["acquire", "--ttl", "10m", "x"]));
    assert_eq!(acquired.status, 0, "{acquired:?}");
    let waits = ["run", "-w", "100s", "x", "--", "echo", "done"];
    let mut typist = Typist::start(&mut leasehold(&url, &waits));
    typist.expect("waiting for `x` since ");
    typist.expect("next in line");
    server.stop_process().expect("stopped");
    typist.expect("store unreachable, still waiting for `x` since ");
    server.continue_process().expect("it goes on");
    typist.expect("next in line");
    let released = finish(&mut leasehold(&url, &["release", acquired.stdout.trim()]));
    assert_eq!(released.status, 0, "{released:?}");
    typist.expect("done");
    assert_eq!(typist.end(), 0);
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
    let hold = ["run", "--ttl", "60s", "x", "--", "sh", "-c", script];
    let mut holder = Running::start(&mut stepped(&hold));
    assert_eq!(holder.line(), "held");
    let hour = Duration::from_secs(3_600);
    for step in ["ahead", "behind"] {
        match step {
            "ahead" => clock.set_ahead(hour),
            _ => clock.set_behind(hour),
        }
        .expect("moved");
        // An hour is longer than the ttl: if the lease expired by wall time, this run would get it.
        let finished = finish(&mut stepped(&["run", "-n", "x", "--", "true"]));
        assert_eq!(finished.status, 75, "{step}: {finished:?}");
    }
    holder.write("done\n");
    assert_eq!(holder.end().status, 7);
    eventually("the lock is free", || {
        let shown = finish(&mut leasehold(server.url(), &["show", "--json", "x"]));
        json(&shown.stdout)["held"].as_array().is_some_and(Vec::is_empty)
    });
}

/// A waiter reads a foreign key five times a second, and each answer shows the server's clock.
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

#[test]
fn spans_of_a_handle_count_from_its_grant() {
    let server = server(&Redis::new());
    crate::support::spans_of_a_handle_count_from_its_grant(server.url());
}

#[test]
fn release_whose_answer_is_lost_is_no_lost_lock() {
    let server = server(&Redis::new());
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the proxy");
    let proxy = runtime.block_on(leasehold_testkit::Proxy::start(server.address()));
    let proxy = proxy.expect("a proxy starts");
    let url = format!("redis://{}", proxy.address());
    let run = |status: &str| {
        let script = format!("echo inside; read line; exit {status}");
        let run = ["run", "--ttl", "30s", "x", "--", "sh", "-c", &script];
        let mut running = Running::start(&mut leasehold(&url, &run));
        assert_eq!(running.line(), "inside");
        running
    };
    for status in ["0", "7"] {
        let running = run(status);
        proxy.lose_reply_to("EVALSHA", leasehold_testkit::AfterLoss::Reset);
        let finished = running.end();
        assert_eq!(finished.status.to_string(), status, "{finished:?}");
        assert_eq!(finished.stderr, "");
    }
    assert_eq!(proxy.traffic().replies_lost, 2);
    let running = run("0");
    let order = ["force-release", "x", "--yes", "--reason", "test"];
    assert_eq!(finish(&mut leasehold(server.url(), &order)).status, 0);
    let finished = running.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("was gone before"), "{finished:?}");
}

#[test]
fn lock_of_another_client_excludes_a_run_that_uses_its_key_and_doctor_finds_it_otherwise() {
    let server = server(&Redis::new());
    let url = format!("redis://{}", server.address());
    let token = "0123456789abcdef0123456789abcdef";
    let taken = server.redis(&["SET", "report", token, "NX", "PX", "60000"]);
    assert_eq!(taken.expect("an answer"), "OK");
    let run = ["run", "-n", "report", "--", "true"];
    let shared = format!("{url}?prefix=");
    assert_eq!(finish(&mut leasehold(&shared, &run)).status, 75);
    // With leasehold's prefix the lock has another key.
    assert_eq!(finish(&mut leasehold(&url, &run)).status, 0);
    let said = finish(&mut leasehold(&url, &["doctor"])).stdout;
    assert!(said.contains("other locks") && said.contains("`report`"), "{said}");
    assert!(said.contains("?prefix="), "{said}");
    let listed = finish(&mut leasehold(&url, &["list"]));
    let told = "not shown: `report`, which the prefix `lock:` does not reach";
    assert!(listed.stderr.contains(told) && listed.stderr.contains("?prefix="), "{listed:?}");
    assert_eq!(finish(&mut leasehold(&url, &["-q", "list"])).stderr, "");
    let listed = finish(&mut leasehold(&shared, &["list"])).stderr;
    assert!(!listed.contains("not shown"), "{listed}");
    let said = finish(&mut leasehold(&shared, &["doctor"])).stdout;
    assert!(!said.contains("other locks"), "{said}");
    server.redis(&["DEL", "report"]).expect("an answer");
    assert_eq!(finish(&mut leasehold(&shared, &run)).status, 0);
}

/// The command line of an engine's page with this comment.
fn line_of_page(engine: &str, comment: &str) -> String {
    let page = format!("../../docs/engines/{engine}.md");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let page = std::fs::read_to_string(page).expect("a page");
    let line = page.lines().find(|line| line.contains(comment)).expect("the command line");
    line.replace("run report", "run --no-wait report").replace("./report.sh", "true")
}

/// A shell that runs such a line with the command under test.
fn shell_with(line: &str) -> Command {
    let mut shell = bare(Path::new("/bin/sh"));
    let line = line.replace("leasehold ", "\"$LEASEHOLD\" ");
    shell.env("LEASEHOLD", BINARY).args(["-c", &line]);
    shell
}

#[test]
fn command_line_of_the_page_shares_its_lock_with_redis_py() {
    let line = line_of_page("redis", "beside redis-py's Lock(\"report\")");
    let server = server(&Redis::new());
    let mut shell = shell_with(&line.replace("HOST", &server.address().to_string()));
    // The command that redis-py's `Lock("report").acquire()` sends.
    let token = "0123456789abcdef0123456789abcdef";
    let taken = server.redis(&["SET", "report", token, "NX", "PX", "60000"]);
    assert_eq!(taken.expect("an answer"), "OK");
    assert_eq!(finish(&mut shell).status, 75, "{line}");
    server.redis(&["DEL", "report"]).expect("an answer");
    assert_eq!(finish(&mut shell).status, 0, "{line}");
}

#[test]
fn run_that_was_stopped_past_its_ttl_reports_the_lost_lock() {
    let server = server(&Redis::new());
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let run = ["run", "--ttl", "1s", "x", "--", "sh", "-c", script];
    let mut run = Running::start(&mut leasehold(server.url(), &run));
    let child = pid(run.line().parse().expect("a process id"));
    run.signal(rustix::process::Signal::STOP);
    await_stopped(run.pid());
    // Another run gets it, which takes as long as the ttl.
    let next = finish(&mut leasehold(server.url(), &["run", "-w", "60s", "x", "--", "true"]));
    assert_eq!(next.status, 0, "{next:?}");
    run.signal(rustix::process::Signal::CONT);
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    let told = "could not be kept: this process did not run";
    assert!(finished.stderr.contains(told), "{finished:?}");
    assert_eq!(state(child), None);
}

#[test]
fn command_tries_to_connect_until_a_signal_ends_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let arguments = ["--connect-wait", "10m", "run", "x", "--", "true"];
    let waiting = Running::start(&mut leasehold(&url, &arguments));
    // By default it gives up after seven tries. The server closes each connection without an
    // answer.
    for _ in 0..10 {
        drop(listener.accept().expect("it tries again"));
    }
    waiting.signal(rustix::process::Signal::TERM);
    assert_eq!(waiting.wait().status, 143);
}

#[test]
fn store_that_comes_up_while_the_command_tries_to_connect_is_used() {
    let server = server(&Redis::new());
    let url = format!("redis://{}", server.address());
    server.kill().expect("killed");
    let arguments = ["--connect-wait", "5m", "run", "x", "--", "true"];
    let waiting = Running::start(&mut leasehold(&url, &arguments));
    server.restart_blocking().expect("started");
    assert_eq!(waiting.wait().status, 0);
}

#[test]
fn command_tries_to_connect_several_times_without_being_told_to() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let (sender, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        listener.incoming().all(|each| {
            drop(each);
            sender.send(()).is_ok()
        })
    });
    let finished = finish(&mut leasehold(&url, &["run", "x", "--", "true"]));
    assert_eq!(finished.status, 69, "{finished:?}");
    // The first try, and six more.
    assert_eq!(dropped.try_iter().count(), 7, "{finished:?}");
}

#[test]
fn lock_of_another_library_is_shown_without_what_the_store_does_not_know() {
    let server = server(&Redis::new());
    let mut link = std::net::TcpStream::connect(server.address()).expect("a connection");
    link.write_all(b"SET lock:ext token NX PX 60000\r\n").expect("written");
    let url = format!("redis://{}", server.address());
    let shown = || finish(&mut leasehold(&url, &["show", "--json", "ext"])).stdout;
    eventually("the lock is shown", || !shown().contains("\"held\":[]"));
    let held = json(&shown())["held"][0].clone();
    assert_eq!((&held["fence"], &held["acquired_at"]), (&json("null"), &json("null")));
    let table = finish(&mut leasehold(&url, &["show", "ext"]));
    let row: Vec<&str> = table.stdout.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[row.len() - 3..row.len() - 1], ["?", "?"], "{table:?}");
    assert!(table.stderr.contains("`list` and `stats` have such a lock only"), "{table:?}");
}

#[test]
fn lock_of_another_library_at_a_quorum_is_shown_without_an_age_and_a_fence() {
    let group = Redis::new().start_many_blocking(3).expect("servers start");
    let hosts = group.servers().iter().map(|server| server.address().to_string());
    let url = format!("redlock://{}", hosts.collect::<Vec<_>>().join(","));
    for server in group.servers() {
        server.redis(&["SET", "lock:ext", "token", "NX", "PX", "600000"]).expect("set");
    }
    shows_only_what_is_known_of_a_foreign_lock(&url, "ext", false);
}

/// Three nodes, and their addresses as a URL has them.
fn quorum() -> (leasehold_testkit::Group, String) {
    let group = Redis::new().start_many_blocking(3).expect("servers start");
    let hosts = group.servers().iter().map(|server| server.address().to_string());
    let hosts = hosts.collect::<Vec<_>>().join(",");
    (group, hosts)
}

#[test]
fn command_line_of_the_page_shares_its_lock_with_node_redlock_and_another_prefix_is_told() {
    let line = line_of_page("redlock", "beside node-redlock's acquire([\"report\"])");
    let (group, hosts) = quorum();
    let mut shell = shell_with(&line.replace("HOST1,HOST2,HOST3", &hosts));
    // What node-redlock's `acquire(["report"])` leaves at each node.
    for server in group.servers() {
        let token = "0123456789abcdef0123456789abcdef";
        let taken = server.redis(&["SET", "report", token, "NX", "PX", "60000"]);
        assert_eq!(taken.expect("an answer"), "OK");
    }
    assert_eq!(finish(&mut shell).status, 75, "{line}");
    let url = format!("redlock://{hosts}");
    let listed = finish(&mut leasehold(&url, &["list"])).stderr;
    let told = "not shown: `report`, which the prefix `lock:` does not reach";
    assert_eq!(listed.matches(told).count(), 1, "{listed}");
    let said = finish(&mut leasehold(&url, &["doctor"])).stdout;
    assert!(said.contains("other locks") && said.contains("?prefix="), "{said}");
    for server in group.servers() {
        server.redis(&["DEL", "report"]).expect("an answer");
    }
    assert_eq!(finish(&mut shell).status, 0, "{line}");
}

#[test]
fn run_on_a_quorum_has_the_connections_that_the_page_says() {
    let (group, hosts) = quorum();
    let url = format!("redlock://{hosts}");
    let run = ["run", "--ttl", "2s", "x", "--", "sh", "-c", "echo in; read line"];
    let count = |server: &Server| {
        let clients = server.redis(&["CLIENT", "LIST"]).expect("an answer");
        // The one that asks is among them.
        clients.lines().filter(|line| line.contains("addr=")).count() - 1
    };
    let all_have = |connections: usize| {
        eventually(&format!("{connections} connections at each node"), || {
            group.servers().iter().all(|server| count(server) == connections)
        });
    };
    let mut holder = Running::start(&mut leasehold(&url, &run));
    assert_eq!(holder.line(), "in");
    all_have(2);
    let mut waiter = Running::start(&mut leasehold(&url, &run));
    all_have(5);
    holder.write("\n");
    assert_eq!((waiter.line().as_str(), holder.end().status), ("in", 0));
    all_have(3);
    waiter.write("\n");
    assert_eq!(waiter.end().status, 0);
}
