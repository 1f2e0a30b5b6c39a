//! What happens to the command when its lock is lost, cannot be kept, or ran out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{BINARY, Place, await_gone, await_stopped, pid, state};

/// A command that does not listen to TERM, with a grandchild that does not either.
const DEAF: &str = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & \
                    echo $$; wait; while :; do sleep 0.05; done";

#[test]
fn f128_a_lock_that_was_force_released_ends_the_whole_group_with_76() {
    let place = Place::new();
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", DEAF]);
    let family = [run.line(), run.line()].map(|line| pid(line.parse().expect("a process id")));
    let taken = place.expect(0, &["force-release", "x", "--yes", "--reason", "test"]);
    assert!(taken.stdout.contains("`x` was taken from"), "{taken:?}");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("the lease on `x` was lost"), "{finished:?}");
    for member in family {
        assert_eq!(state(member), None, "nobody of the group is left when the status is known");
    }
}

#[test]
fn a_lost_lock_asks_first_and_the_others_are_given_back() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "1s", "a", "b", "c", "--", "sh", "-c", script]);
    assert_eq!(run.line(), "ready");
    place.expect(0, &["force-release", "b", "--yes", "--reason", "test"]);
    assert_eq!(run.line(), "told");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("`b` was lost"), "{finished:?}");
    place.expect(0, &["run", "-n", "a", "b", "c", "--", "true"]);
}

#[test]
fn a_lock_taken_away_is_76_even_if_the_command_ends_before_anybody_noticed() {
    let place = Place::new();
    let script = format!("{BINARY} force-release x --yes --reason test");
    let finished = place.expect(76, &["run", "--pass-url", "x", "--", "sh", "-c", &script]);
    assert!(finished.stderr.contains("was gone before"), "{finished:?}");
}

#[test]
fn f137_a_lost_lock_also_ends_who_left_the_group() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & wait; while :; do sleep 1; done";
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", script]);
    let daemon = pid(run.line().parse().expect("a process id"));
    place.expect(0, &["force-release", "x", "--yes", "--reason", "test"]);
    assert_eq!(run.end().status, 76);
    await_gone(daemon);
}

#[test]
fn f134_a_lock_that_cannot_be_renewed_ends_the_command_before_its_safe_end() {
    let place = Place::new();
    let stamps = place.path("stamps").display().to_string();
    // It is told, does not end, and writes down how long it was at work.
    let script = format!(
        "trap 'echo told' TERM; echo ready; while :; do date +%s%N > {stamps}; sleep 0.01; done"
    );
    let mut run = place.start(&["run", "--ttl", "8s", "x", "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "ready");
    let store = rusqlite::Connection::open(place.path("locks.db")).expect("it opens");
    store.busy_timeout(Duration::from_secs(10)).expect("set");
    store.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes for long");
    // The last renewal that can have come through was before this instant.
    let blocked_at = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    assert_eq!(run.line(), "told");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("could not be kept"), "{finished:?}");
    let last: u128 = place.file("stamps").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let safe_end = blocked_at + Duration::from_secs(8);
    assert!(last < safe_end.as_nanos(), "it worked until {last}, past {}", safe_end.as_nanos());
    store.execute_batch("ROLLBACK").expect("given up");
    place.expect(0, &["run", "-w", "30s", "x", "--", "true"]);
}

#[test]
fn a_store_that_was_replaced_ends_the_command() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", script]);
    assert_eq!(run.line(), "ready");
    std::fs::remove_file(place.path("locks.db")).expect("removed");
    assert_eq!(run.line(), "told");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("replaced"), "{finished:?}");
}

#[test]
fn f02_a_command_whose_lock_ran_out_while_leasehold_was_stopped_is_killed() {
    let place = Place::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", script]);
    let child = pid(run.line().parse().expect("a process id"));
    run.signal(Signal::STOP);
    await_stopped(run.pid());
    // Somebody else gets it, which takes as long as the ttl.
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
    assert!(state(child).is_some(), "nobody could tell the child");
    run.signal(Signal::CONT);
    assert_eq!(run.end().status, 76);
    assert_eq!(state(child), None);
}

#[test]
fn a_suspended_job_whose_lock_ran_out_is_ended_and_not_resumed() {
    let place = Place::new();
    let went_on = place.path("went-on").display().to_string();
    let script = format!("echo $$; read line; touch {went_on}");
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", &script]);
    let child = pid(run.line().parse().expect("a process id"));
    run.signal(Signal::TSTP);
    await_stopped(child);
    await_stopped(run.pid());
    run.write("go\n");
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
    run.signal(Signal::CONT);
    assert_eq!(run.end().status, 76);
    assert_eq!(state(child), None);
    assert_eq!(place.file("went-on"), None, "it did not do another thing");
}
