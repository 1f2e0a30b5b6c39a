//! Each kind of fault is really made. The short rounds make most kinds; here are the others.
//!
//! The seeds are such that the plan of so few seconds has each kind.

mod rounds;

use rounds::good_round;

/// Runs a set-up under these kinds of faults alone, and sees that each was made.
fn made(engine: &str, kinds: &[&str], seconds: u32, seed: u32) {
    let (list, seconds, seed) = (kinds.join(","), seconds.to_string(), seed.to_string());
    let words = ["--engine", engine, "--faults", &list, "--seconds", &seconds, "--seed", &seed];
    let line = good_round(&words);
    for kind in kinds {
        assert!(line["faults"][kind].as_u64() > Some(0), "{kind}: {line}");
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
