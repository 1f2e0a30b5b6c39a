//! Handles across processes: acquire, check, renew, release.

use std::time::{Duration, Instant};

use crate::support::{BINARY, Finished, Place, handle, json};

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
    // Also when another holder has the lock, which must not notice.
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
fn acquire_does_not_wait_by_default() {
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
    // A machine that was away for three seconds may have let the lock expire.
    if begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(refused.status, 75, "{refused:?}");
    }
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
}

#[test]
fn handle_is_77_while_holding_at_least_keeps_its_name_closed() {
    let place = Place::new();
    let begun = Instant::now();
    let acquired = place.expect(0, &["acquire", "--ttl", "60s", "--hold-at-least", "4s", "x"]);
    let handle = handle(&acquired);
    place.expect(0, &["release", &handle]);
    for verb in ["check", "renew", "release"] {
        let finished = place.expect(77, &[verb, &handle]);
        let said = finished.stdout + &finished.stderr;
        assert!(said.contains("not held any more"), "{said}");
    }
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
    assert!(begun.elapsed() >= Duration::from_secs(4), "open after {:?}", begun.elapsed());
}

#[test]
fn renewal_after_once_does_not_shorten_its_period() {
    let place = Place::new();
    let handle = place.path("handle");
    let script = format!("echo $LEASEHOLD_HANDLE > {}", handle.display());
    place.expect(0, &["once", "o", "--every", "1h", "--ttl", "1s", "--", "sh", "-c", &script]);
    let handle = std::fs::read_to_string(handle).expect("the handle of the run");
    for verb in ["check", "renew", "release"] {
        place.expect(77, &[verb, handle.trim()]);
    }
    let again = place.expect(0, &["once", "o", "--every", "1h", "--", "echo", "again"]);
    assert!(again.stdout.is_empty() && again.stderr.contains("skipped"), "{again:?}");
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

#[test]
fn spans_of_a_handle_count_from_its_grant() {
    crate::support::spans_of_a_handle_count_from_its_grant(&Place::new().url());
}

#[test]
fn handle_without_its_age_is_still_read() {
    let place = Place::new();
    let handle = handle(&place.expect(0, &["acquire", "--hold-at-least", "1h", "x"]));
    let (old, _age) = handle.split_once("+age=").expect("it carries its age");
    place.expect(0, &["check", old]);
    place.expect(0, &["release", old]);
    place.expect(75, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn renewal_by_handle_does_not_shorten_what_run_counts_on() {
    let place = Place::new();
    let script =
        format!("{BINARY} renew $LEASEHOLD_HANDLE --ttl 1s >&2; echo renewed; read line; true");
    let run = ["run", "--pass-url", "--ttl", "30s", "x", "--", "sh", "-c", &script];
    let mut run = place.start(&run);
    assert_eq!(run.line(), "renewed");
    let left = place.show("x")["held"][0]["remaining_ms"].as_u64().expect("it is held");
    assert!(left > 15_000, "{left} ms of 30 s are left");
    assert_eq!(run.end().status, 0);
}
