//! The fate of the command when its lock is lost, cannot be kept, or expired.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{BINARY, Place, Running, await_gone, await_stopped, pid, state};

/// A command that ignores TERM, with a grandchild that ignores it too.
const DEAF: &str = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & \
                    echo $$; wait; while :; do sleep 0.05; done";

#[test]
fn f128_a_lock_that_was_force_released_ends_the_whole_group_with_76() {
    let place = Place::new();
    let mut run = place.start(&["run", "--ttl", "5s", "x", "--", "sh", "-c", DEAF]);
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
fn command_whose_lock_is_force_released_ends_at_once_and_says_by_whom_and_why() {
    let place = Place::new();
    // Its next renewal is six minutes away.
    let mut run = place.start(&["run", "--ttl", "10m", "x", "--", "sh", "-c", "echo; sleep 900"]);
    run.line();
    let order = ["force-release", "x", "--yes", "--reason", "host db3 is gone"];
    place.expect(0, &[&["--holder", "ada"], &order[..]].concat());
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    let (who, why) = ("the lease on `x` was lost: `ada` force-released it at ", "host db3 is gone");
    assert!(finished.stderr.contains(who) && finished.stderr.contains(why), "{finished:?}");
}

#[test]
fn command_is_asked_by_a_signal_and_ends_by_itself_when_its_lock_is_revoked() {
    let place = Place::new();
    let script = "trap 'echo asked; exit 7' USR1; echo; while :; do sleep 0.05; done";
    let options = ["run", "--ttl", "10m", "--on-revoke", "usr1", "x", "--", "sh", "-c", script];
    let mut run = place.start(&options);
    run.line();
    let order = ["--holder", "ada", "revoke", "x", "--within", "10m", "--reason", "maintenance"];
    let revoked = place.expect(0, &order);
    assert!(revoked.stderr.contains("`x` was given back"), "{revoked:?}");
    assert_eq!(run.line(), "asked");
    let finished = run.end();
    assert_eq!(finished.status, 7, "its own status: {finished:?}");
    let told = "`ada` asks for `x` within ";
    assert!(finished.stderr.contains(told) && finished.stderr.contains("maintenance"));
    assert!(!place.expect(0, &["show", "x"]).stdout.contains("FORCE-RELEASED"));
}

#[test]
fn command_that_does_not_end_when_it_is_asked_loses_its_lock() {
    let place = Place::new();
    let script = "trap '' TERM; echo; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "10m", "x", "--", "sh", "-c", script]);
    run.line();
    let order = ["revoke", "x", "--within", "2s", "--reason", "maintenance"];
    let revoked = place.expect(0, &order);
    assert!(revoked.stdout.contains("`x` was taken from"), "{revoked:?}");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("force-released it"), "{finished:?}");
    assert!(place.expect(0, &["show", "x"]).stdout.contains("FORCE-RELEASED"));
}

#[test]
fn record_of_a_force_release_is_shown_with_the_name_and_counts_as_no_lock() {
    let place = Place::new();
    let held = place.hold(&["--holder", "web1"], "x");
    let order = ["--holder", "ada", "force-release", "x", "--yes", "--reason", "it\nhangs"];
    place.expect(0, &order);
    let shown = place.expect(0, &["show", "x"]).stdout;
    let (start, fence) = ("`x` is free\n\nFORCE-RELEASED\n", held.fence);
    let end = format!("  fence {fence}  by ada: it\\nhangs\n");
    assert!(shown.starts_with(start) && shown.ends_with(&end), "{shown}");
    let record = &place.show("x")["force_released"][0];
    assert_eq!((&record["by"], &record["reason"]), (&"ada".into(), &"it\nhangs".into()));
    assert_eq!(record["fences"][0], fence.to_string());
    assert_eq!(place.expect(0, &["list", "--json"]).stdout, "[]\n");
    let stats = place.expect(0, &["stats", "--json"]).stdout;
    assert!(stats.contains("\"active\":0,") && stats.contains("\"periods\":0,"), "{stats}");
}

#[test]
fn a_lost_lock_asks_first_and_the_others_are_given_back() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "5s", "a", "b", "c", "--", "sh", "-c", script]);
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

/// Writes down the variables of a command of `--on-lost`, one line for each run.
fn on_lost_script(place: &Place) -> String {
    let told = place.path("told").display().to_string();
    format!(
        "echo \"$LEASEHOLD_NAME $LEASEHOLD_FENCE $LEASEHOLD_LOST_CAUSE \
         ${{LEASEHOLD_HANDLE-none}} $LEASEHOLD_LOST_REASON\" >> {told}; exit 3"
    )
}

#[test]
fn on_lost_command_runs_once_and_knows_which_lock_was_lost_and_why() {
    let place = Place::new();
    let on_lost = on_lost_script(&place);
    let script = "echo \"$LEASEHOLD_FENCE\"; while :; do sleep 0.05; done";
    let command = ["--", "sh", "-c", script];
    let options = ["run", "--ttl", "5s", "--on-lost", &on_lost, "a", "b"];
    let mut run = place.start(&[&options[..], &command].concat());
    let fences = [run.line(), run.line()];
    place.expect(0, &["force-release", "b", "--yes", "--reason", "test"]);
    let finished = run.end();
    assert_eq!(finished.status, 76, "its own status does not count: {finished:?}");
    let told = format!("b {} evicted none test\n", fences[1]);
    assert_eq!(place.file("told").as_deref(), Some(&*told));
}

#[test]
fn on_lost_command_runs_for_a_lock_that_was_gone_before_the_command_ended() {
    let place = Place::new();
    let on_lost = on_lost_script(&place);
    let script = format!("{BINARY} force-release x --yes --reason test");
    let command = ["--", "sh", "-c", &script];
    let options = ["run", "--pass-url", "--on-lost", &on_lost, "x"];
    place.expect(76, &[&options[..], &command].concat());
    let told = place.file("told").unwrap_or_default();
    assert!(told.starts_with("x ") && told.ends_with(" evicted none test\n"), "{told:?}");
    assert_eq!(told.lines().count(), 1, "{told:?}");
}

#[test]
fn on_lost_command_on_another_store_than_the_run_is_78_and_makes_no_store() {
    let place = Place::new();
    let told = place.path("told").display().to_string();
    let inner = format!("{BINARY} run -n cleanup -- echo ran > {told}; echo $? >> {told}");
    let end = |options: &[&str]| {
        let command = ["--on-lost", &inner, "x", "--", "sh", "-c", "echo in; read line"];
        let mut run = place.leasehold(&[&["run", "--ttl", "1s"], options, &command].concat());
        let mut run = Running::start(run.env("XDG_STATE_HOME", &place.folder));
        assert_eq!(run.line(), "in");
        place.expect(0, &["force-release", "x", "--yes", "--reason", "test"]);
        let finished = run.end();
        assert_eq!(finished.status, 76, "{finished:?}");
        finished.stderr
    };
    let errors = end(&[]);
    assert_eq!(place.file("told").as_deref(), Some("78\n"), "{errors}");
    assert!(errors.contains("--pass-url"), "{errors}");
    assert!(!place.path("leasehold/locks.db").exists(), "nothing was made");
    let errors = end(&["--pass-url"]);
    assert_eq!(place.file("told").as_deref(), Some("ran\n0\n"), "{errors}");
}

#[test]
fn on_lost_command_does_not_run_for_a_lock_that_was_kept() {
    let place = Place::new();
    let on_lost = on_lost_script(&place);
    place.expect(5, &["run", "--on-lost", &on_lost, "x", "--", "sh", "-c", "exit 5"]);
    // The time that the user gave is over. The lock was kept until the command ended.
    let held = ["run", "--hold-at-most", "100ms", "--on-lost", &on_lost, "x", "--", "sleep", "60"];
    place.expect(76, &held);
    assert_eq!(place.file("told"), None);
}

#[test]
fn f137_a_lost_lock_also_ends_who_left_the_group() {
    let place = Place::new();
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & wait; while :; do sleep 1; done";
    let mut run = place.start(&["run", "--ttl", "5s", "x", "--", "sh", "-c", script]);
    let daemon = pid(run.line().parse().expect("a process id"));
    place.expect(0, &["force-release", "x", "--yes", "--reason", "test"]);
    assert_eq!(run.end().status, 76);
    await_gone(daemon);
}

#[test]
fn f134_a_lock_that_cannot_be_renewed_ends_the_command_before_its_safe_end() {
    let place = Place::new();
    let stamps = place.path("stamps").display().to_string();
    // It gets TERM, does not end, and writes down how long it was at work.
    let script = format!(
        "trap 'echo told' TERM; echo ready; while :; do date +%s%N > {stamps}; sleep 0.01; done"
    );
    let mut run = place.start(&["run", "--ttl", "8s", "x", "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "ready");
    let store = rusqlite::Connection::open(place.path("locks.db")).expect("it opens");
    store.busy_timeout(Duration::from_secs(10)).expect("set");
    store.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes for long");
    // The last renewal that can have reached the store was before this instant.
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
    // Another run gets it, which takes as long as the ttl.
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
    assert!(state(child).is_some(), "nobody could tell the child");
    run.signal(Signal::CONT);
    let finished = run.end();
    assert_eq!(finished.status, 76);
    assert!(
        finished.stderr.contains("could not be kept: this process did not run"),
        "{finished:?}"
    );
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
    let ended = run.end();
    assert_eq!(ended.status, 76);
    assert!(ended.stderr.contains("this process did not run"), "{ended:?}");
    assert_eq!(state(child), None);
    assert_eq!(place.file("went-on"), None, "it did not do another thing");
}
