//! `steal`: the holder loses the lock, the thief gets a handle, and the others go on waiting.

use leasehold_testkit::Etcd;

use crate::support::{BINARY, Place, bare, finish, handle, json};

#[test]
fn steal_prints_a_handle_and_those_who_wait_go_on_waiting() {
    let place = Place::new();
    let mut run = place.start(&["run", "--ttl", "10m", "x", "--", "sh", "-c", "echo; sleep 900"]);
    run.line();
    let waiting = place.start(&["run", "x", "--", "echo", "it runs"]);
    place.await_waiting("x", 1);
    let order = ["steal", "x", "--yes", "--reason", "host db3 is gone", "--ttl", "1h"];
    let stolen = place.expect(0, &[&["--holder", "ada"], &order[..]].concat());
    let lost = run.end();
    assert_eq!(lost.status, 76, "{lost:?}");
    let (who, why) = ("`ada` force-released it at ", "host db3 is gone");
    assert!(lost.stderr.contains(who) && lost.stderr.contains(why), "{lost:?}");
    let handle = handle(&stolen);
    let left = json(&place.expect(0, &["check", "--json", &handle]).stdout);
    assert!(left["remaining_ms"].as_u64().is_some_and(|ms| ms > 3_000_000), "{left}");
    place.await_waiting("x", 1);
    assert!(place.expect(0, &["show", "x"]).stdout.contains("FORCE-RELEASED"));
    place.expect(0, &["release", &handle]);
    let finished = waiting.end();
    assert_eq!((finished.status, &*finished.stdout), (0, "it runs\n"), "{finished:?}");
}

#[test]
fn steal_takes_a_free_lock_and_prints_it_as_json() {
    let place = Place::new();
    let order = ["steal", "--json", "x", "--yes", "--reason", "repair", "--note", "ticket 7"];
    let stolen = json(&place.expect(0, &order).stdout);
    assert_eq!(stolen["name"], "x");
    assert_eq!(place.show("x")["held"][0]["note"], "ticket 7");
    assert!(!place.expect(0, &["show", "x"]).stdout.contains("FORCE-RELEASED"));
    let handle = stolen["handle"].as_str().expect("a handle");
    place.expect(0, &["release", handle]);
}

#[test]
fn steal_of_a_semaphore_is_78_and_takes_nothing() {
    let place = Place::new();
    let permit = handle(&place.expect(0, &["acquire", "--permits", "1/3", "x"]));
    let refused = place.expect(78, &["steal", "x", "--yes", "--reason", "r"]);
    assert!(refused.stderr.contains("semaphore"), "{refused:?}");
    place.expect(0, &["check", &permit]);
    assert!(!place.expect(0, &["show", "x"]).stdout.contains("FORCE-RELEASED"));
}

#[test]
fn steal_on_a_store_that_cannot_is_78_and_takes_nothing() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let order = |arguments: &[&str]| {
        let mut command = bare(std::path::Path::new(BINARY));
        finish(command.env("LEASEHOLD_URL", server.url()).args(arguments))
    };
    let held = handle(&order(&["acquire", "x", "--ttl", "10m"]));
    let refused = order(&["steal", "x", "--yes", "--reason", "r"]);
    assert_eq!(refused.status, 78, "{refused:?}");
    assert!(refused.stderr.contains("etcd cannot take a name before those who wait"));
    assert_eq!(order(&["check", &held]).status, 0);
}
