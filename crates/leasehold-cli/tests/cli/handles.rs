//! Handles across processes: acquire, check, renew, release.

use std::time::{Duration, Instant};

use crate::support::{Finished, Place, handle, json};

/// Runs a command with a handle on its standard input.
fn with_input(place: &Place, arguments: &[&str], input: &str) -> Finished {
    let mut running = place.start(arguments);
    running.write(input);
    running.end()
}

#[test]
fn a_handle_is_taken_up_by_other_processes() {
    let place = Place::new();
    let acquired = place.expect(0, &["acquire", "x"]);
    assert_eq!(acquired.stderr, "");
    assert_eq!(acquired.stdout.lines().count(), 1);
    let handle = handle(&acquired);
    place.expect(75, &["run", "-n", "x", "--", "true"]);
    let checked = place.expect(0, &["check", &handle]);
    assert!(checked.stdout.contains("`x` is held"), "{checked:?}");
    place.expect(0, &["renew", &handle, "--ttl", "1h"]);
    let left = json(&place.expect(0, &["check", "--json", &handle]).stdout);
    assert!(left["remaining_ms"].as_u64().is_some_and(|ms| ms > 3_000_000), "{left}");
    place.expect(0, &["release", &handle]);
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn a_stale_handle_is_77() {
    let place = Place::new();
    let old = handle(&place.expect(0, &["acquire", "x"]));
    place.expect(0, &["release", &old]);
    for verb in ["renew", "release", "check"] {
        let finished = place.expect(77, &[verb, &old]);
        let said = finished.stdout + &finished.stderr;
        assert!(said.contains("not held any more"), "{said}");
    }
    // Also when somebody else has the lock, who must not notice.
    let new = handle(&place.expect(0, &["acquire", "x"]));
    for verb in ["renew", "release", "check"] {
        place.expect(77, &[verb, &old]);
    }
    place.expect(0, &["check", &new]);
}

#[test]
fn a_handle_of_another_store_is_77() {
    let (place, other) = (Place::new(), Place::new());
    let handle = handle(&place.expect(0, &["acquire", "x"]));
    for verb in ["renew", "release", "check"] {
        let finished = other.expect(77, &[verb, &handle]);
        assert!(finished.stderr.contains("another store"), "{finished:?}");
    }
    place.expect(0, &["check", &handle]);
}

#[test]
fn garbage_is_no_handle() {
    let place = Place::new();
    let good = handle(&place.expect(0, &["acquire", "x"]));
    let cut = &good[..good.len() - 3];
    for bad in ["garbage", "", "lh1_", cut, "--x", &format!("{good}+more=1")] {
        for verb in ["renew", "release", "check"] {
            place.expect(64, &[verb, bad]);
        }
    }
}

#[test]
fn handles_may_come_from_standard_input() {
    let place = Place::new();
    let handles = place.expect(0, &["acquire", "b", "a", "b"]).stdout;
    assert_eq!(handles.lines().count(), 2);
    let checked = with_input(&place, &["check", "-"], &handles);
    assert_eq!(checked.status, 0, "{checked:?}");
    assert_eq!(checked.stdout.lines().count(), 2);
    assert!(checked.stdout.starts_with("`a` is held"), "{checked:?}");
    let checked = with_input(&place, &["check", "--json", "-"], &handles);
    assert_eq!(json(&checked.stdout).as_array().map(Vec::len), Some(2));
    assert_eq!(with_input(&place, &["renew", "-"], &handles).status, 0);
    assert_eq!(with_input(&place, &["release", "-"], &handles).status, 0);
    assert_eq!(with_input(&place, &["release", "-"], &handles).status, 77);
    assert_eq!(with_input(&place, &["check", "-"], "\n\n").status, 64);
}

#[test]
fn one_bad_handle_does_not_keep_the_others() {
    let place = Place::new();
    let handles = place.expect(0, &["acquire", "a", "b"]).stdout;
    let first = handles.lines().next().expect("two lines");
    place.expect(0, &["release", first]);
    assert_eq!(with_input(&place, &["release", "-"], &handles).status, 77);
    place.expect(0, &["run", "-n", "a", "b", "--", "true"]);
}

#[test]
fn acquire_does_not_wait_unless_told() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let refused = place.expect(75, &["acquire", "x"]);
    assert_eq!(refused.stdout, "");
    assert!(refused.stderr.contains("`x` is held by"), "{refused:?}");
    place.expect(75, &["acquire", "-n", "x"]);
    place.expect(4, &["acquire", "--conflict-exit-code", "4", "x"]);
    let mut waiter = place.start(&["acquire", "-w", "60s", "x"]);
    place.await_waiting("x", 1);
    holder.end();
    let handle = waiter.line();
    assert_eq!(waiter.end().status, 0);
    place.expect(0, &["check", &handle]);
}

#[test]
fn acquire_takes_all_or_none() {
    let place = Place::new();
    let _holder = place.hold(&[], "b");
    place.expect(75, &["acquire", "a", "b"]);
    place.expect(0, &["run", "-n", "a", "--", "true"]);
}

#[test]
fn a_lease_that_nobody_renews_ends_after_its_ttl() {
    let place = Place::new();
    let handle = handle(&place.expect(0, &["acquire", "--ttl", "300ms", "x"]));
    place.await_free("x");
    place.expect(77, &["renew", &handle]);
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn a_lock_whose_handle_nobody_got_is_given_back() {
    let place = Place::new();
    let mut command = place.leasehold(&["acquire", "x"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let status = command.stdout(full).status().expect("it runs");
    assert_eq!(status.code(), Some(74));
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn holding_at_least_outlives_the_release_of_a_handle() {
    let place = Place::new();
    let begun = Instant::now();
    let acquired = place.expect(0, &["acquire", "--hold-at-least", "3s", "x"]);
    place.expect(0, &["release", &handle(&acquired)]);
    let refused = place.finish(&["run", "-n", "x", "--", "true"]);
    // A machine that was away for three seconds has nothing to say about it.
    if begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(refused.status, 75, "{refused:?}");
    }
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
}

#[test]
fn holding_at_most_bounds_every_renewal_of_a_handle() {
    let place = Place::new();
    let acquired = place.expect(0, &["acquire", "--hold-at-most", "2s", "x"]);
    let handle = handle(&acquired);
    let renewed = place.finish(&["renew", "--ttl", "1h", "--json", &handle]);
    if renewed.status == 0 {
        let left = json(&renewed.stdout)["remaining_ms"].as_u64();
        assert!(left.is_some_and(|ms| ms <= 2_000), "{renewed:?}");
    }
    place.await_free("x");
    place.expect(77, &["renew", &handle]);
}
