//! Runs inside runs that wait for each other across names: one of them gives up and says why.

use std::path::Path;
use std::process::Command;

use leasehold_testkit::Redis;

use crate::support::{BINARY, Finished, Place, Running, bare, finish, json};

/// Holds one name, and takes the other when it reads a line.
fn crossing(url: &str, holder: &str, own: &str, next: &str) -> Running {
    let script = format!("echo up; read line; exec {BINARY} run {next} -- echo through");
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url);
    command.args(["--holder", holder, "run", "--pass-url", own, "--", "sh", "-c", &script]);
    let mut run = Running::start(&mut command);
    assert_eq!(run.line(), "up");
    run
}

fn ends_of_a_crossing(url: &str) -> [Finished; 2] {
    let mut runs = [crossing(url, "ann", "a", "b"), crossing(url, "bob", "b", "a")];
    for run in &mut runs {
        run.write("go\n");
    }
    runs.map(Running::end)
}

#[track_caller]
fn one_gives_up_and_the_other_goes_on(url: &str) {
    let ends = ends_of_a_crossing(url);
    let (victims, others): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.status == 75);
    assert_eq!((victims.len(), others.len()), (1, 1), "{ends:?}");
    let (victim, other) = (&victims[0], &others[0]);
    assert!(victim.stderr.contains("would be a deadlock"), "{victim:?}");
    for part in ["`a` is held by `ann`", "`b` is held by `bob`"] {
        assert!(victim.stderr.contains(part), "{part}: {victim:?}");
    }
    assert_eq!((other.status, other.stdout.trim()), (0, "through"), "{other:?}");
    let mut list = Command::new(BINARY);
    let left = finish(list.env("LEASEHOLD_URL", url).args(["list", "--json"]));
    assert!(
        left.stdout.trim().is_empty() || json(&left.stdout).as_array().is_some_and(Vec::is_empty),
        "{left:?}"
    );
}

#[test]
fn f124_crossing_runs_on_sqlite_have_one_victim_that_names_the_cycle() {
    one_gives_up_and_the_other_goes_on(&Place::new().url());
}

#[test]
fn f124_crossing_runs_on_redis_have_one_victim_that_names_the_cycle() {
    let server = Redis::new().start_blocking().expect("a server starts");
    one_gives_up_and_the_other_goes_on(server.url());
}

#[test]
fn runs_side_by_side_under_one_run_are_no_part_of_each_others_waits() {
    // Both are one holder with the run around them. One waits for `b` while the other holds `c`;
    // somebody else holds `b` and waits for `c`. By holders that is a cycle, yet `c` is soon free.
    let place = Place::new();
    let held = place.path("held").display().to_string();
    let script = format!(
        "{BINARY} run c -- sh -c 'touch {held}; sleep 4' & \
         {BINARY} run b -- echo through; status=$?; wait; exit $status"
    );
    let mut other = crossing(&place.url(), "bob", "b", "c");
    let mut both =
        place.leasehold(&["--holder", "ann", "run", "--pass-url", "a", "--", "sh", "-c"]);
    let both = Running::start(both.arg(&script));
    crate::support::eventually("`c` is held", || place.file("held").is_some());
    place.await_waiting("b", 1);
    other.write("go\n");
    let ends = [both.end(), other.end()];
    assert!(ends.iter().all(|end| end.status == 0), "{ends:?}");
}
