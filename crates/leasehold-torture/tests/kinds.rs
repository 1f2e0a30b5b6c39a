//! Each kind of fault is really made. The short rounds make most kinds; here are the others.
//!
//! The seeds are such that the plan of so few seconds has each kind.

use std::process::Command;

use serde_json::Value;

/// Runs a set-up under these kinds of faults alone, and sees that each was made.
fn made(engine: &str, kinds: &[&str], seconds: u32, seed: u32) {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-torture"))
        .args(["--engine", engine, "--json", "--faults", &kinds.join(",")])
        .args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let line: Value = serde_json::from_str(said.trim()).expect("a line of JSON");
    for kind in kinds {
        assert!(line["faults"][kind].as_u64() > Some(0), "{kind}: {said}");
    }
}

#[test]
fn file_is_full_and_loses_its_bells() {
    made("sqlite", &["file-full", "bells-removed"], 8, 1);
}

#[test]
fn redis_forgets_everything_and_its_clock_steps_ahead() {
    made("redis", &["server-empty", "clock-ahead"], 8, 2);
}

#[test]
fn sentinels_choose_another_master() {
    made("sentinel", &["fail-over"], 6, 1);
}

#[test]
fn pooler_restarts() {
    made("pgbouncer", &["pooler-restart"], 6, 1);
}

#[test]
fn leader_of_etcd_is_killed_and_members_are_cut_off_and_replaced() {
    made("etcd3", &["leader-kill", "member-cut", "member-replace"], 16, 5);
}
