//! The command on etcd. The tests of the library cover the engine.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Clock, Etcd, Server};

use crate::support::{
    BINARY, Finished, Running, bare, finish, handle, json,
    shows_only_what_is_known_of_a_foreign_lock,
};

/// Runs a command that must end with this status.
#[track_caller]
fn expect(status: i32, server: &Server, arguments: &[&str]) -> Finished {
    let mut command = bare(Path::new(BINARY));
    let finished = finish(command.env("LEASEHOLD_URL", server.url()).args(arguments));
    assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
    finished
}

/// The lines that etcd's own command prints.
fn etcdctl(server: &Server, words: &[&str]) -> Vec<String> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", server.address()));
    let output = command.args(words).output().expect("`cargo xtask setup` installs etcdctl");
    assert!(output.status.success(), "{words:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("etcdctl writes text");
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The ids of all leases.
fn leases(server: &Server) -> Vec<String> {
    // The first line says how many.
    etcdctl(server, &["lease", "list"]).split_off(1)
}

/// All keys but those that stay for good: the store's id, and the sums of `stats`.
fn keys(server: &Server) -> Vec<String> {
    let mut keys = etcdctl(server, &["get", "", "--prefix", "--keys-only"]);
    let stays = |key: &str| key == "leasehold:store" || key.starts_with("leasehold:totals:");
    keys.retain(|key| !stays(key));
    keys
}

#[test]
fn a_lock_goes_from_process_to_process_by_its_handle_and_its_release_leaves_nothing() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let handle = handle(&expect(0, &server, &["acquire", "x", "--ttl", "10m"]));
    let first = leases(&server);
    assert_eq!(first.len(), 1, "its own");
    expect(75, &server, &["run", "-n", "x", "--", "true"]);
    let left = || {
        let checked = json(&expect(0, &server, &["check", "--json", &handle]).stdout);
        checked["remaining_ms"].as_u64().expect("how long it is held")
    };
    assert!((500_000..=600_000).contains(&left()));
    assert_eq!(leases(&server), first, "who only looks leaves nothing");
    expect(0, &server, &["renew", &handle, "--ttl", "1h"]);
    assert!((3_500_000..=3_600_000).contains(&left()));
    let second = leases(&server);
    assert!(
        second.len() == 1 && second != first,
        "it moved to the lease of the client that renewed it"
    );
    expect(75, &server, &["run", "-n", "x", "--", "true"]);
    expect(0, &server, &["release", &handle]);
    assert_eq!((keys(&server), leases(&server)), (Vec::new(), Vec::new()));
    for verb in ["check", "renew", "release"] {
        expect(77, &server, &[verb, &handle]);
    }
    expect(0, &server, &["run", "-n", "x", "--", "true"]);
    assert_eq!((keys(&server), leases(&server)), (Vec::new(), Vec::new()));
}

#[test]
fn doctor_warns_of_a_clock_that_is_an_hour_off_either_way() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let clock = Clock::new().expect("a clock that can be moved");
    let hour = Duration::from_secs(3_600);
    for step in ["none", "ahead", "behind"] {
        match step {
            "none" => Ok(()),
            "ahead" => clock.set_ahead(hour),
            _ => clock.set_behind(hour),
        }
        .expect("moved");
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", server.url()).args(["doctor", "--json"]);
        let finished = finish(command.envs(clock.environment()));
        let findings = json(&finished.stdout);
        let findings = findings["findings"].as_array().expect("findings");
        let told = findings.iter().find(|finding| finding["subject"] == "clock").expect("a clock");
        let found = told["found"].as_str().expect("a text");
        if step == "none" {
            assert_eq!((found, &told["level"]), ("less than 1 s apart", &"good".into()));
            continue;
        }
        assert_eq!(told["level"], "warning", "{step}: {told}");
        let seconds = found.strip_prefix("number 1 of the url is ");
        let seconds = seconds.and_then(|rest| rest.strip_suffix(" s apart"));
        let seconds = seconds.and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| (3_590..3_610).contains(&seconds)), "{told}");
    }
}

#[test]
fn spans_of_a_handle_count_from_its_grant() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    crate::support::spans_of_a_handle_count_from_its_grant(server.url());
}

#[test]
fn spans_of_a_handle_do_not_follow_a_wall_clock_that_is_set() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    crate::support::spans_of_a_handle_do_not_follow_a_wall_clock_that_is_set(server.url());
}

#[test]
fn release_whose_answer_is_lost_is_no_lost_lock() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let url_at = |address| format!("etcd://{address}");
    crate::support::release_whose_answer_is_lost_is_no_lost_lock(server.address(), url_at);
}

#[test]
fn lock_of_etcdctl_is_shown_without_an_age() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let mut theirs = bare(Path::new("etcdctl"));
    theirs.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", server.address()));
    let mut theirs = Running::start(theirs.args(["lock", "ext"]));
    assert!(theirs.line().starts_with("ext/"));
    // The revision of its key is a fence.
    shows_only_what_is_known_of_a_foreign_lock(server.url(), "ext", true);
}
