//! A few seconds of torture on every set-up, as part of all tests. A long run is `cargo xtask
//! torture`.

mod rounds;

use serde_json::Value;

use rounds::good_round;

/// Long enough for some faults of several kinds. A busy machine needs longer for some grants.
const SECONDS: [&str; 3] = ["10", "30", "90"];

/// The faults of these rounds are always the same; a long run takes others.
const SEED: &str = "7";

/// A store that works makes many more; this only shows that something was done.
const GRANTS_MIN: u64 = 10;

fn round(engine: &str) {
    for seconds in SECONDS {
        let line = good_round(&["--engine", engine, "--seconds", seconds, "--seed", SEED]);
        let faults: u64 =
            line["faults"].as_object().expect("counts").values().flat_map(Value::as_u64).sum();
        assert!(faults > 3, "{line}");
        if line["grants"].as_u64() > Some(GRANTS_MIN) {
            return;
        }
    }
    panic!("no round made more than {GRANTS_MIN} grants");
}

#[test]
fn sqlite_keeps_its_promises() {
    round("sqlite");
}

#[test]
fn redis_keeps_its_promises() {
    round("redis");
}

#[test]
fn sentinel_keeps_its_promises() {
    round("sentinel");
}

#[test]
fn cluster_keeps_its_promises() {
    round("cluster");
}

#[test]
fn cluster_with_replicas_keeps_its_promises() {
    round("cluster6");
}

#[test]
fn redlock_of_three_keeps_its_promises() {
    round("redlock3");
}

#[test]
fn redlock_of_five_keeps_its_promises() {
    round("redlock5");
}

#[test]
fn postgres_keeps_its_promises() {
    round("postgres");
}

#[test]
fn postgres_with_a_standby_keeps_its_promises() {
    round("postgres2");
}

#[test]
fn pgbouncer_keeps_its_promises() {
    round("pgbouncer");
}

#[test]
fn advisory_locks_keep_their_promises() {
    round("advisory");
}

#[test]
fn etcd_keeps_its_promises() {
    round("etcd1");
}

#[test]
fn etcd_of_three_keeps_its_promises() {
    round("etcd3");
}

#[test]
fn zookeeper_keeps_its_promises() {
    round("zookeeper1");
}

#[test]
fn zookeeper_of_three_keeps_its_promises() {
    round("zookeeper3");
}
