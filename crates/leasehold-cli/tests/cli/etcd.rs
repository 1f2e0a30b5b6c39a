//! The command on etcd. What the engine does is tested with the library.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::{Clock, Etcd, Server};

use crate::support::{BINARY, Finished, bare, finish, handle, json};

/// Runs something that must end with this status.
#[track_caller]
fn expect(status: i32, server: &Server, arguments: &[&str]) -> Finished {
    let mut command = bare(Path::new(BINARY));
    let finished = finish(command.env("LEASEHOLD_URL", server.url()).args(arguments));
    assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
    finished
}

/// The lines of what etcd's own command says.
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
    assert!(second.len() == 1 && second != first, "it moved to the lease of whoever renewed it");
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
