//! Each kind of fault is really made. The short rounds make most kinds; here are the others.
//!
//! The seeds are such that the plan of so few seconds has each kind.

mod rounds;

use rounds::good_round;
use serde_json::Value;

/// Runs a set-up under these kinds of faults alone, and sees that each was made.
fn made(engine: &str, kinds: &[&str], seconds: u32, seed: u32) -> Value {
    let (list, seconds, seed) = (kinds.join(","), seconds.to_string(), seed.to_string());
    let words = ["--engine", engine, "--faults", &list, "--seconds", &seconds, "--seed", &seed];
    let line = good_round(&words);
    for kind in kinds {
        assert!(line["faults"][kind].as_u64() > Some(0), "{kind}: {line}");
    }
    line
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

/// A client of these finds the servers by itself.
#[test]
fn links_to_servers_that_a_client_finds_are_cut() {
    for engine in ["sentinel", "cluster"] {
        let line = made(engine, &["link-cut", "link-late-then-cut"], 10, 1);
        assert!(line["errors"]["Unreachable"].as_u64() > Some(0), "{line}");
    }
}

#[test]
fn node_of_a_quorum_forgets_and_a_clock_steps_back() {
    made("redlock3", &["node-empty", "clock-back"], 10, 1);
}

#[test]
fn standby_of_postgres_takes_over() {
    made("postgres2", &["fail-over"], 10, 1);
}

#[test]
fn pooler_restarts() {
    made("pgbouncer", &["pooler-restart"], 6, 1);
}

#[test]
fn leader_of_etcd_is_killed_and_members_are_cut_off_and_replaced() {
    made("etcd3", &["leader-kill", "member-cut", "member-replace"], 16, 5);
}

#[test]
fn leader_of_zookeeper_is_stopped() {
    made("zookeeper3", &["leader-pause"], 8, 1);
}
