//! The torture test finds faults of the past that are put back into the library.
//!
//! Each run is on the engine that had the fault, with real servers. The library has the faults
//! behind its feature `seeded`, and a worker has one of them. `docs/safety.md` lists what they did.

use std::process::Command;

use serde_json::Value;

/// Runs a set-up with a fault in the library, until a check finds it.
fn found_by(checks: &[&str], engine: &str, fault: &str, kinds: &str, seconds: u32) {
    let mut said = String::new();
    // The interleaving that shows a fault is likely in each run, but not certain.
    for seed in 1..=20 {
        let output = Command::new(env!("CARGO_BIN_EXE_leasehold-torture"))
            .args(["--engine", engine, "--json", "--seeded", fault, "--faults", kinds])
            .args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
            .output()
            .expect("the command starts");
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line: Value = serde_json::from_str(said.trim()).expect("a line of JSON");
        if let Some(folder) = line["history"].as_str() {
            std::fs::remove_dir_all(folder).expect("the history is there");
        }
        let found = line["violations"].as_object().expect("counts");
        if checks.iter().any(|check| found.contains_key(*check)) {
            assert!(!output.status.success());
            return;
        }
    }
    panic!("no run was found by {checks:?}: {said}");
}

/// etcd: a bell of a place that was lost granted the next one.
#[test]
fn bell_without_its_place_is_found_on_etcd_by_exclusion() {
    found_by(&["exclusion"], "etcd1", "bell-without-place", "worker-pause-long", 20);
}

/// ZooKeeper: a sweep took a claim out while its waiter heard that it is in line.
#[test]
fn sweep_of_a_claim_that_is_asked_about_is_found_on_zookeeper() {
    let checks = ["exclusion", "release"];
    found_by(&checks, "zookeeper1", "sweep-while-asked", "worker-pause-long", 20);
}

/// etcd: a heartbeat judged a claim by a line that was read before the claim came back.
#[test]
fn line_from_before_the_claim_came_back_is_found_on_etcd() {
    let checks = ["exclusion", "fences", "register"];
    found_by(&checks, "etcd1", "line-from-before", "worker-pause-long", 20);
}

/// Redis Cluster: a server stopped a script in the middle, because the slot moved.
#[test]
fn script_that_a_moving_slot_stops_is_found_on_a_cluster_by_answers() {
    found_by(&["answers"], "cluster", "script-while-slot-moves", "slot-move", 20);
}

/// Servers: a release whose answer was lost was answered as if the lease was lost before.
#[test]
fn release_whose_answer_is_lost_is_found_by_release() {
    found_by(&["release"], "redis", "lost-release-answer", "link-lost-reply", 20);
}

/// Every engine: a lease's time counted from the answer to its claim.
#[test]
fn grant_that_counts_from_the_answer_is_found() {
    let checks = ["exclusion", "register", "release"];
    found_by(&checks, "redis", "grant-from-answer", "link-cut-to-client", 20);
}

/// Every engine: a lease's time counted from the answer to its renewal.
#[test]
fn renewal_that_counts_from_the_answer_is_found_by_exclusion() {
    found_by(&["exclusion"], "redis", "renewal-from-answer", "link-late-then-cut", 20);
}

/// Every engine: the handle of a lease that was given back still renewed it.
#[test]
fn closed_name_that_is_owned_is_found_by_ownership() {
    found_by(&["ownership"], "postgres", "closed-name-is-owned", "none", 10);
}

/// ZooKeeper: what a client left stayed closed for as long as its session.
#[test]
fn name_that_stays_closed_for_a_session_is_found_on_zookeeper_by_opens() {
    found_by(&["opens"], "zookeeper1", "closed-for-the-session", "none", 20);
}

/// ZooKeeper: a name that was to stay closed for longer than the longest session opened early.
#[test]
fn span_beyond_the_longest_session_is_found_on_zookeeper_by_exclusion() {
    found_by(&["exclusion"], "zookeeper1", "span-beyond-the-session", "none", 20);
}
