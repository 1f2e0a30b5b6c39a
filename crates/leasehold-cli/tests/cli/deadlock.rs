//! Runs inside runs that wait for each other across names: one of them gives up and says why.

use std::path::Path;
use std::process::Command;

use leasehold_testkit::Redis;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    BINARY, Finished, Place, Running, await_stopped, bare, eventually, finish, json, pid,
};

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
    // The run around them makes both one holder. One waits for `b` while the other holds `c`;
    // another holder has `b` and waits for `c`. By holders that is a cycle, yet `c` is soon free.
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

/// Holds one name; `go` lets it wait for the other, in a process that can be stopped or killed
/// alone.
fn crossed(place: &Place, holder: &str, own: &str, inner: &str) -> Running {
    let script = format!("echo up; read line; {BINARY} {inner} -- echo through & echo $!; wait $!");
    let holding = ["--holder", holder, "run", "--ttl", "5s", "--pass-url", own, "--", "sh", "-c"];
    let mut run = Running::start(place.leasehold(&holding).arg(&script));
    assert_eq!(run.line(), "up");
    run
}

/// Lets a run wait, and returns its process when it is in line.
fn go(place: &Place, run: &mut Running, next: &str) -> Pid {
    run.write("go\n");
    let inner = pid(run.line().parse().expect("a process id"));
    place.await_waiting(next, 1);
    inner
}

/// Three runs that hold a name each. If each waits for the next one's name, that is a circle.
fn three(place: &Place) -> [Running; 3] {
    [("ann", "a", "b"), ("bob", "b", "c"), ("cat", "c", "a")]
        .map(|(holder, own, next)| crossed(place, holder, own, &format!("run {next}")))
}

/// Waits until a run looks for deadlocks, and has announced its wait to the others.
fn await_detector(place: &Place) {
    let db = rusqlite::Connection::open(place.path("locks.db")).expect("the store");
    let count = "SELECT count(*) FROM notices";
    eventually("a notice of a wait", || {
        db.query_row(count, [], |row| row.get::<_, i64>(0)).is_ok_and(|notices| notices > 0)
    });
}

#[test]
fn f126_a_stopped_detector_is_replaced_and_one_run_gives_up() {
    let place = Place::new();
    let [mut ann, mut bob, mut cat] = three(&place);
    // It waits first, so it would be the first to find the circle.
    let detector = go(&place, &mut cat, "a");
    await_detector(&place);
    kill_process(detector, Signal::STOP).expect("it waits");
    await_stopped(detector);
    go(&place, &mut ann, "b");
    go(&place, &mut bob, "c");
    let (bob, ann) = (bob.end(), ann.end());
    kill_process(detector, Signal::CONT).expect("it is stopped");
    let cat = cat.end();
    assert_eq!(bob.status, 75, "{bob:?}");
    for part in ["would be a deadlock", "`ann`", "`bob`", "`cat`"] {
        assert!(bob.stderr.contains(part), "{part}: {bob:?}");
    }
    for end in [ann, cat] {
        assert_eq!((end.status, end.stdout.trim()), (0, "through"), "{end:?}");
    }
}

#[test]
fn f126_a_killed_detector_is_the_only_one_that_does_not_go_on() {
    let place = Place::new();
    let [mut ann, mut bob, mut cat] = three(&place);
    go(&place, &mut ann, "b");
    go(&place, &mut bob, "c");
    // This run closes the circle, so it is the one to give up. It dies together with the run around
    // it, as when a machine dies: neither gives its lock back.
    let detector = go(&place, &mut cat, "a");
    cat.signal(Signal::KILL);
    kill_process(detector, Signal::KILL).expect("it waits");
    let ends = [ann.end(), bob.end()];
    for end in &ends {
        assert_eq!((end.status, end.stdout.trim()), (0, "through"), "{ends:?}");
    }
}

#[test]
fn f126_a_time_limit_ends_a_wait_although_nobody_detects() {
    let place = Place::new();
    let mut ann = crossed(&place, "ann", "a", "run --wait 1s b");
    let mut bob = crossed(&place, "bob", "b", "run a");
    let detector = go(&place, &mut bob, "a");
    kill_process(detector, Signal::STOP).expect("it waits");
    await_stopped(detector);
    ann.write("go\n");
    ann.line();
    let ann = ann.end();
    assert_eq!(ann.status, 75, "{ann:?}");
    kill_process(detector, Signal::CONT).expect("it is stopped");
    let bob = bob.end();
    assert_eq!((bob.status, bob.stdout.trim()), (0, "through"), "{bob:?}");
}
