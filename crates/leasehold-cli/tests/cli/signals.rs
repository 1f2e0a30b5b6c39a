//! Signals, before and while the lock is held, and the death of `leasehold` itself.

use rustix::process::Signal;

use crate::support::{Place, Running, await_gone, await_stopped, pid, state};

const ENDING: [(Signal, &str); 6] = [
    (Signal::INT, "INT"),
    (Signal::TERM, "TERM"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
];

#[test]
fn f135_signals_reach_the_child_while_it_runs() {
    let place = Place::new();
    for (signal, name) in ENDING {
        let script = format!(
            "trap 'echo heard {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut run = place.start(&["run", name, "--", "sh", "-c", &script]);
        assert_eq!(run.line(), "ready");
        run.signal(signal);
        assert_eq!(run.line(), format!("heard {name}"));
        let finished = run.end();
        assert_eq!(finished.status, 7, "{name}: {finished:?}");
        place.expect(0, &["run", "-n", name, "--", "true"]);
    }
}

#[test]
fn f135_the_whole_group_hears_a_signal() {
    let place = Place::new();
    let script = "sleep 1000 & echo $!; wait";
    let mut run = place.start(&["run", "x", "--", "sh", "-c", script]);
    let grandchild = pid(run.line().parse().expect("a process id"));
    run.signal(Signal::TERM);
    assert_eq!(run.end().status, 128 + 15);
    await_gone(grandchild);
}

#[test]
fn f135_a_signal_ends_the_wait_at_once_and_nothing_starts_afterwards() {
    let place = Place::new();
    let started = place.path("started").display().to_string();
    for (signal, name) in ENDING {
        let holder = place.hold(&[], "x");
        let waiter = place.start(&["run", "x", "--", "touch", &started]);
        place.await_waiting("x", 1);
        waiter.signal(signal);
        let finished = waiter.end();
        assert_eq!(finished.status, 128 + signal.as_raw(), "{name}: {finished:?}");
        place.await_waiting("x", 0);
        assert_eq!(holder.end().status, 0);
    }
    place.expect(0, &["run", "-n", "x", "--", "true"]);
    assert_eq!(place.file("started"), None);
}

#[test]
fn f135_a_signal_while_several_names_are_taken_leaves_none_of_them() {
    let place = Place::new();
    let _holder = place.hold(&[], "b");
    let waiter = place.start(&["run", "a", "b", "--", "true"]);
    place.await_waiting("b", 1);
    assert_eq!(place.show("a")["held"].as_array().map(Vec::len), Some(1));
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.end().status, 128 + 15);
    place.expect(0, &["run", "-n", "a", "--", "true"]);
}

#[test]
fn f135_acquire_leaves_the_line_on_a_signal_too() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let waiter = place.start(&["acquire", "-w", "60s", "x"]);
    place.await_waiting("x", 1);
    waiter.signal(Signal::INT);
    let finished = waiter.end();
    assert_eq!((finished.status, finished.stdout.as_str()), (130, ""));
    place.await_waiting("x", 0);
}

#[test]
fn f135_a_stop_is_passed_on_and_so_is_going_on() {
    let place = Place::new();
    let mut run =
        place.start(&["run", "x", "--", "sh", "-c", "echo $$; read line; echo went on $line"]);
    let child = pid(run.line().parse().expect("a process id"));
    run.signal(Signal::TSTP);
    await_stopped(child);
    await_stopped(run.pid());
    run.signal(Signal::CONT);
    run.write("here\n");
    assert_eq!(run.line(), "went on here");
    assert_eq!(run.end().status, 0);
}

#[test]
fn f135_a_stopped_waiter_goes_on_waiting() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let mut waiter = place.start(&["run", "x", "--", "echo", "at last"]);
    place.await_waiting("x", 1);
    waiter.signal(Signal::TSTP);
    await_stopped(waiter.pid());
    waiter.signal(Signal::CONT);
    assert_eq!(holder.end().status, 0);
    assert_eq!(waiter.line(), "at last");
    assert_eq!(waiter.end().status, 0);
}

#[test]
fn a_child_that_somebody_stops_alone_keeps_its_lock() {
    let place = Place::new();
    let script = "echo $$; read line; echo went on";
    let mut run = place.start(&["run", "--ttl", "3s", "x", "--", "sh", "-c", script]);
    let child = pid(run.line().parse().expect("a process id"));
    rustix::process::kill_process(child, Signal::STOP).expect("it is there");
    await_stopped(child);
    // Longer than the ttl: only a renewed lock is still held then.
    place.expect(75, &["run", "-w", "4s", "x", "--", "true"]);
    assert_ne!(state(run.pid()), Some('T'), "leasehold itself goes on");
    rustix::process::kill_process(child, Signal::CONT).expect("it is there");
    run.write("go\n");
    assert_eq!(run.line(), "went on");
    assert_eq!(run.end().status, 0);
}

#[test]
fn f136_child_hears_that_leasehold_was_killed() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo $LEASEHOLD_FENCE; \
                  while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "--ttl", "1s", "x", "--", "sh", "-c", script]);
    let fence: u64 = run.line().parse().expect("a fence");
    run.signal(Signal::KILL);
    assert_eq!(run.line(), "told");
    assert_eq!(run.end().status, -9);
    // Free within the ttl, and the next fence is greater.
    let next = place.expect(0, &["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]);
    assert!(next.stdout.trim().parse::<u64>().expect("a fence") > fence);
}

#[test]
fn a_waiter_that_was_killed_does_not_hold_up_the_line() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let dead = place.start(&["run", "--ttl", "1s", "x", "--", "true"]);
    place.await_waiting("x", 1);
    let mut alive = place.start(&["run", "x", "--", "echo", "served"]);
    place.await_waiting("x", 2);
    dead.signal(Signal::KILL);
    assert_eq!(dead.end().status, -9);
    assert_eq!(holder.end().status, 0);
    assert_eq!(alive.line(), "served");
    assert_eq!(alive.end().status, 0);
}

#[test]
fn f137_processes_left_behind_are_reported_and_the_lock_is_free() {
    let place = Place::new();
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!";
    let mut run = place.start(&["run", "x", "--", "sh", "-c", script]);
    // `setsid` becomes the sleep, except where it leads a group, which it does not here.
    let daemon = pid(run.line().parse().expect("a process id"));
    let finished = run.end();
    assert_eq!(finished.status, 0, "{finished:?}");
    assert!(finished.stderr.contains("1 of its processes still run"), "{finished:?}");
    assert!(state(daemon).is_some(), "it was not asked to end");
    rustix::process::kill_process(daemon, Signal::KILL).expect("it is there");
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn a_child_whose_parent_ignored_the_end_of_children_still_has_a_status() {
    let place = Place::new();
    let binary = crate::support::BINARY;
    let mut parent = crate::support::bare(std::path::Path::new("perl"));
    let script = "$SIG{CHLD} = 'IGNORE'; exec @ARGV or die $!";
    parent.env("LEASEHOLD_URL", place.url());
    parent.args(["-e", script, binary, "run", "x", "--", "sh", "-c", "exit 5"]);
    assert_eq!(Running::start(&mut parent).end().status, 5);
}
