//! The checker is itself tested: each wrong engine is found, by the check that is for it.
//!
//! The command runs a few seconds on SQLite with one fault in the engine. The faults that were once
//! found in the library are marked with their name in docs/safety.md.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold-torture");

/// What is said about a history when it is read again.
fn checked_again(mutant: &str, folder: &str) -> Value {
    let output = Command::new(PROGRAM)
        .args(["--engine", "sqlite", "--json", "--mutant", mutant, "--check", folder])
        .output()
        .expect("the command starts");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(said.trim()).expect("a line of JSON")
}

/// Runs a wrong engine for so many seconds under these kinds of faults, until a check finds it.
fn found_by(checks: &[&str], mutant: &str, seconds: u32, faults: &str) {
    let mut said = String::new();
    // The interleaving that shows a fault is likely in each run, but not certain. On a busy machine
    // a run makes few grants.
    for seed in 1..=6 {
        let output = Command::new(PROGRAM)
            .args(["--engine", "sqlite", "--json", "--mutant", mutant, "--faults", faults])
            .args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
            .output()
            .expect("the command starts");
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line: Value = serde_json::from_str(said.trim()).expect("a line of JSON");
        if let Some(folder) = line["history"].as_str() {
            let again = checked_again(mutant, folder);
            assert_eq!(again["violations"], line["violations"]);
            let target = Path::new(PROGRAM).ancestors().nth(2).expect("cargo's folder");
            assert!(Path::new(folder).starts_with(target.join("torture")), "{folder}");
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

#[test]
fn release_without_owner_check_is_found_by_ownership() {
    found_by(&["ownership"], "release-without-owner-check", 6, "none");
}

#[test]
fn renewal_that_makes_the_claim_again_is_found_by_ownership() {
    found_by(&["ownership"], "renewal-makes-the-claim-again", 6, "none");
}

#[test]
fn fence_that_restarts_is_found_by_fences() {
    found_by(&["fences"], "fence-restarts", 4, "none");
}

/// ZooKeeper: a claim that had two nodes held in the place of the first with the second's fence.
#[test]
fn fence_of_a_later_place_is_found_by_fences_or_the_register() {
    found_by(&["fences", "register"], "fence-of-a-later-place", 10, "none");
}

#[test]
fn bell_for_everybody_is_found_by_exclusion() {
    found_by(&["exclusion"], "bell-for-everybody", 6, "none");
}

/// etcd: a bell of a place that was lost granted the next one.
#[test]
fn bell_of_a_lost_place_is_found_by_exclusion_or_fences() {
    found_by(&["exclusion", "fences"], "bell-of-a-lost-place", 12, "worker-pause-long");
}

/// etcd: a heartbeat judged a claim by a line that was read before the claim came back.
#[test]
fn line_from_before_it_came_back_is_found_by_exclusion() {
    found_by(&["exclusion"], "line-from-before-it-came-back", 12, "worker-pause-long");
}

/// ZooKeeper: a sweep deleted a claim while its waiter was told that it is in line.
#[test]
fn claim_swept_while_it_waits_is_found_by_exclusion() {
    found_by(&["exclusion"], "swept-while-it-waits", 6, "none");
}

/// ZooKeeper: a second node of a claim stayed, and blocked the name.
#[test]
fn second_claim_left_behind_is_found_by_what_waits() {
    found_by(&["asleep", "progress", "left"], "second-claim-left-behind", 6, "none");
}

#[test]
fn dropped_wake_up_is_found_by_asleep_or_progress() {
    found_by(&["asleep", "progress"], "wake-up-dropped", 14, "none");
}

#[test]
fn renewal_after_the_release_is_found_by_what_waits() {
    found_by(&["asleep", "progress"], "renewed-after-release", 14, "none");
}

#[test]
fn deadline_from_the_answer_is_found_by_exclusion() {
    found_by(&["exclusion"], "deadline-from-the-answer", 14, "worker-pause-long");
}

#[test]
fn try_that_grants_what_is_held_is_found_by_exclusion() {
    found_by(&["exclusion"], "try-grants-what-is-held", 6, "none");
}

#[test]
fn place_that_is_lost_at_each_heartbeat_is_found_by_order() {
    found_by(&["order"], "place-lost-at-each-heartbeat", 10, "none");
}

/// Redis Cluster: a script that failed in the middle.
#[test]
fn script_that_fails_is_found_by_answers() {
    found_by(&["answers"], "script-fails", 4, "none");
}

#[test]
fn one_permit_too_many_is_found_by_exclusion() {
    found_by(&["exclusion"], "one-permit-too-many", 12, "none");
}

#[test]
fn writer_that_asks_as_a_reader_is_found_by_exclusion() {
    found_by(&["exclusion"], "writer-as-reader", 8, "none");
}

/// ZooKeeper: what nobody renews ended with its session, before its time.
#[test]
fn unit_that_ends_early_is_found_by_rate() {
    found_by(&["rate"], "unit-ends-early", 6, "none");
}

#[test]
fn run_that_is_forgotten_is_found_by_once() {
    found_by(&["once"], "run-is-forgotten", 6, "none");
}

/// Every engine: the handle of a lease that was given back still renewed it.
#[test]
fn closed_name_that_is_owned_is_found_by_ownership() {
    found_by(&["ownership"], "closed-name-is-owned", 8, "none");
}

#[test]
fn closed_name_that_opens_is_found_by_exclusion() {
    found_by(&["exclusion"], "closed-name-opens", 10, "none");
}

/// The command: the span of a handle counted from when its claim joined the line.
#[test]
fn span_that_counts_from_the_queue_is_found_by_exclusion() {
    found_by(&["exclusion"], "closed-from-the-queue", 10, "none");
}

/// ZooKeeper: what stays closed lasted as long as its session.
#[test]
fn name_that_stays_closed_for_a_session_is_found_by_opens() {
    found_by(&["opens"], "closed-for-a-session", 14, "none");
}

/// Every engine with a server: a release whose answer was lost was taken for a loss.
#[test]
fn release_whose_answer_is_lost_is_found_by_release() {
    found_by(&["release"], "release-answer-lost", 4, "none");
}

#[test]
fn answer_that_never_comes_is_found_by_stuck() {
    found_by(&["stuck"], "answer-never-comes", 6, "none");
}

#[test]
fn old_leader_that_is_shown_is_found_by_election() {
    found_by(&["election"], "old-leader-is-shown", 8, "none");
}
