//! `run`: statuses, environment, several names, contention, holding least and most.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{BINARY, Place, Running, bare, eventually, finish, json};

#[test]
fn f138_the_childs_status_is_passed_on() {
    let place = Place::new();
    for status in [0, 1, 3, 64, 75, 126, 128, 200, 255] {
        place.expect(status, &["run", "x", "--", "sh", "-c", &format!("exit {status}")]);
    }
}

#[test]
fn f138_a_child_that_a_signal_ended_is_128_and_the_number() {
    let place = Place::new();
    for signal in [1, 2, 3, 6, 9, 15] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        place.expect(128 + signal, &["run", "x", "--", "sh", "-c", &script]);
    }
}

#[test]
fn a_command_that_cannot_be_run_leaves_the_lock_free() {
    let place = Place::new();
    let finished = place.expect(127, &["run", "x", "--", "no-such-command"]);
    assert!(finished.stderr.contains("`no-such-command` was not found"), "{finished:?}");
    std::fs::write(place.path("plain"), "text").expect("written");
    let plain = place.path("plain").display().to_string();
    let finished = place.expect(126, &["run", "x", "--", &plain]);
    assert!(finished.stderr.contains("Permission denied"), "{finished:?}");
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn output_of_the_child_is_its_own_and_talk_goes_to_standard_error() {
    let place = Place::new();
    let finished = place.expect(0, &["-v", "run", "x", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(finished.stdout, "out\n");
    assert!(finished.stderr.contains("err\n"));
    let finished = place.expect(0, &["run", "x", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
}

#[test]
fn standard_input_reaches_the_child() {
    let place = Place::new();
    let mut cat = place.start(&["run", "x", "--", "cat"]);
    cat.write("one\n");
    assert_eq!(cat.line(), "one");
    assert_eq!(cat.end().status, 0);
}

#[test]
fn arguments_of_the_child_are_not_touched() {
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff * $HOME");
    let mut command = place.leasehold(&["run", "x", "--", "printf", "%s|", "-n", "--ttl", "--"]);
    let finished = finish(command.arg(odd));
    assert_eq!(finished.status, 0, "{finished:?}");
    assert_eq!(finished.stdout, "-n|--ttl|--|\u{fffd} * $HOME|");
}

#[test]
fn the_child_knows_its_lock_and_not_the_store() {
    let place = Place::new();
    let script = "printf '%s\\n' \"$LEASEHOLD_NAME\" \"$LEASEHOLD_FENCE\" \
                  \"$LEASEHOLD_HOLDER\" \"$LEASEHOLD_HANDLE\" \"url=$LEASEHOLD_URL\"";
    let run = ["--holder", "me", "run", "job:1", "--", "sh", "-c", script];
    let finished = place.expect(0, &run);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "job:1");
    assert!(lines[1].parse::<u64>().is_ok_and(|fence| fence > 0), "{lines:?}");
    assert!(lines[2].ends_with("@me"), "{lines:?}");
    assert!(lines[3].starts_with("lh1_"), "{lines:?}");
    assert_eq!(lines[4], "url=");
    let finished =
        place.expect(0, &["run", "--pass-url", "x", "--", "sh", "-c", "echo $LEASEHOLD_URL"]);
    assert_eq!(finished.stdout.trim(), place.url());
}

#[test]
fn the_child_can_check_its_own_lock_by_its_handle() {
    let place = Place::new();
    let script = format!("echo \"$LEASEHOLD_HANDLE\" | {BINARY} check --json -");
    let finished = place.expect(0, &["run", "--pass-url", "x", "--", "sh", "-c", &script]);
    assert_eq!(json(&finished.stdout)["held"], true);
}

#[test]
fn run_takes_each_of_several_names_once_and_lists_them_in_order() {
    let place = Place::new();
    let script = "echo \"$LEASEHOLD_NAME\"; echo \"$LEASEHOLD_FENCE\" | wc -l; \
                  echo \"$LEASEHOLD_HANDLE\" | wc -l";
    let finished = place.expect(0, &["run", "c", "a", "b", "a", "--", "sh", "-c", script]);
    assert_eq!(finished.stdout, "a\nb\nc\n3\n3\n");
}

#[test]
fn several_names_are_taken_all_or_none() {
    let place = Place::new();
    let holder = place.hold(&[], "b");
    let started = place.path("started").display().to_string();
    let finished = place.expect(75, &["run", "-n", "a", "b", "c", "--", "touch", &started]);
    assert!(finished.stderr.contains("`b` is held by"), "{finished:?}");
    place.expect(75, &["run", "-w", "300ms", "a", "b", "c", "--", "true"]);
    for free in ["a", "c"] {
        place.expect(0, &["run", "-n", free, "--", "true"]);
    }
    assert_eq!(place.file("started"), None);
    assert_eq!(holder.end().status, 0);
    place.expect(0, &["run", "-n", "a", "b", "c", "--", "true"]);
}

#[test]
fn two_commands_that_name_the_same_locks_in_another_order_do_not_block_each_other() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for names in [["a", "b"], ["b", "a"]] {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..10 {
                    place.expect(0, &["run", names[0], names[1], "--", "true"]);
                }
            });
        }
    });
}

#[test]
fn a_held_lock_is_75_or_what_the_caller_wants() {
    let place = Place::new();
    let _holder = place.hold(&["--note", "nightly"], "x");
    let finished = place.expect(75, &["run", "-n", "x", "--", "true"]);
    let told = finished.stderr.trim_start_matches("leasehold: `x` is held by `");
    // Since when, not for how long: that could be read as a plan.
    assert!(told.contains("` since ") && told.contains("Z ("), "{finished:?}");
    assert!(told.contains("unless it is renewed: nightly"), "{finished:?}");
    assert_eq!(finished.stdout, "");
    place.expect(75, &["run", "--wait", "200ms", "x", "--", "true"]);
    place.expect(75, &["run", "-w", "0s", "x", "--", "true"]);
    place.expect(9, &["run", "-n", "--conflict-exit-code", "9", "x", "--", "true"]);
    place.expect(0, &["run", "-n", "-E", "0", "x", "--", "false"]);
    let finished = place.expect(75, &["-q", "run", "-n", "x", "--", "true"]);
    assert_eq!(finished.stderr, "");
}

#[test]
fn waiter_is_served_when_the_holder_is_done() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let fence = holder.fence;
    let mut waiter = place.start(&["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]);
    place.await_waiting("x", 1);
    assert_eq!(holder.end().status, 0);
    assert!(waiter.line().parse::<u64>().expect("a fence") > fence);
    assert_eq!(waiter.end().status, 0);
}

#[test]
fn readers_share_and_writers_do_not() {
    let place = Place::new();
    let reader = place.hold(&["--shared"], "x");
    let other = place.hold(&["--shared"], "x");
    place.expect(75, &["run", "-n", "x", "--", "true"]);
    assert_eq!(place.show("x")["mode"], "shared");
    reader.end();
    other.end();
    let _writer = place.hold(&[], "x");
    place.expect(75, &["run", "-n", "--shared", "x", "--", "true"]);
}

#[test]
fn permits_are_given_up_to_their_limit_and_everybody_must_agree_on_it() {
    let place = Place::new();
    let two = place.hold(&["--permits", "2/3"], "x");
    let one = place.hold(&["--permits", "1/3"], "x");
    place.expect(75, &["run", "-n", "--permits", "1/3", "x", "--", "true"]);
    let line = place.show("x");
    assert_eq!((&line["mode"], &line["limit"]), (&"permits".into(), &3.into()));
    two.end();
    place.expect(0, &["run", "-n", "--permits", "2/3", "x", "--", "true"]);
    let finished = place.expect(78, &["run", "-n", "--permits", "1/4", "x", "--", "true"]);
    assert!(finished.stderr.contains("semaphore of 3"), "{finished:?}");
    place.expect(78, &["run", "-n", "x", "--", "true"]);
    one.end();
}

#[test]
fn sixteen_contending_processes_lose_no_increment() {
    let place = Place::new();
    std::fs::write(place.path("counter"), "0").expect("written");
    let counter = place.path("counter").display().to_string();
    let script = format!("read n < {counter}; echo $((n + 1)) > {counter}");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..5 {
                    place.expect(0, &["run", "counter", "--", "sh", "-c", &script]);
                }
            });
        }
    });
    assert_eq!(place.file("counter").as_deref(), Some("80\n"));
}

#[test]
fn run_that_waits_for_its_own_name_reports_a_deadlock() {
    let place = Place::new();
    let nested = ["run", "--pass-url", "x", "--", BINARY, "run", "x", "--", "true"];
    let finished = place.expect(75, &nested);
    assert!(finished.stderr.contains("deadlock"), "{finished:?}");
    assert!(finished.stderr.contains("`x` is held by"), "{finished:?}");
    // Also through a run between them, and for all permits.
    let deep = ["run", "--pass-url", "x", "--", BINARY, "run", "--pass-url", "y", "--"];
    place.expect(75, &[&deep[..], &[BINARY, "run", "x", "--", "true"]].concat());
    let all = ["run", "--permits", "2/2", "--pass-url", "s", "--", BINARY, "run"];
    place.expect(75, &[&all[..], &["--permits", "2/2", "s", "--", "true"]].concat());
}

#[test]
fn two_commands_inside_one_run_may_wait_for_each_other() {
    let place = Place::new();
    let inner = format!(
        "{BINARY} run inner -- sh -c 'echo one; read go' <&3 & \
         {BINARY} run inner -- echo two; wait"
    );
    let script = format!("exec 3<&0; {inner}");
    let mut both = place.start(&["run", "--pass-url", "outer", "--", "sh", "-c", &script]);
    let first = both.line();
    if first == "one" {
        place.await_waiting("inner", 1);
        both.write("go\n");
        assert_eq!(both.line(), "two");
    } else {
        assert_eq!(both.line(), "one");
        both.write("go\n");
    }
    let finished = both.end();
    assert_eq!(finished.status, 0, "{finished:?}");
}

#[test]
fn a_nested_run_is_the_same_holder() {
    let place = Place::new();
    let inner = format!("{BINARY} run y -- {BINARY} list --json");
    let inner = inner.replace("run y", "run --pass-url y");
    let outer = ["run", "--pass-url", "x", "--", "sh", "-c", &inner];
    let lines = json(&place.expect(0, &outer).stdout);
    assert_eq!(lines[0]["held"][0]["holder"], lines[1]["held"][0]["holder"]);
}

#[test]
fn holding_at_least_keeps_the_name_closed_after_the_command() {
    let place = Place::new();
    let begun = Instant::now();
    place.expect(0, &["run", "--hold-at-least", "3s", "x", "--", "true"]);
    let refused = place.finish(&["run", "-n", "x", "--", "true"]);
    // If the machine was away for three seconds, the name may be free again.
    if begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(refused.status, 75, "{refused:?}");
    }
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
}

#[test]
fn lock_delay_keeps_the_lock_of_a_dead_run_closed() {
    let place = Place::new();
    let mut run = place.start(&[
        "run",
        "--ttl",
        "1s",
        "--lock-delay",
        "3s",
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; sleep 100",
    ]);
    assert_eq!(run.line(), "ready");
    run.signal(Signal::KILL);
    // It was renewed until now, or longer.
    let killed = Instant::now();
    run.wait();
    place.expect(0, &["run", "-w", "60s", "x", "--", "true"]);
    assert!(killed.elapsed() >= Duration::from_secs(3), "{:?}", killed.elapsed());
    // A released name is free at once.
    place.expect(0, &["run", "--lock-delay", "1h", "x", "--", "true"]);
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn holding_at_most_ends_the_command() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let options = ["run", "--hold-at-most", "300ms", "x", "--", "sh", "-c", script];
    let mut run = place.start(&options);
    assert_eq!(run.line(), "ready");
    assert_eq!(run.line(), "told");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("--hold-at-most"), "{finished:?}");
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn holding_at_most_kills_a_command_that_does_not_listen() {
    let place = Place::new();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let bounds = ["--hold-at-most", "200ms", "--grace", "200ms"];
    let arguments = [&["run"], &bounds[..], &["x", "--", "sh", "-c", script]].concat();
    let mut run = place.start(&arguments);
    assert_eq!(run.line(), "ready");
    assert_eq!(run.end().status, 76);
    place.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn a_lock_of_one_store_is_nothing_in_another() {
    let (one, other) = (Place::new(), Place::new());
    let _holder = one.hold(&[], "x");
    other.expect(0, &["run", "-n", "x", "--", "true"]);
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let place = Place::new();
    // As `nohup` does it, and as a shell does for background jobs of a script.
    let script = format!("trap '' HUP; exec {BINARY} run x -- sh -c 'echo ready; read line'");
    let mut shell = crate::support::bare(std::path::Path::new("sh"));
    shell.env("LEASEHOLD_URL", place.url()).args(["-c", &script]);
    let mut run = Running::start(&mut shell);
    assert_eq!(run.line(), "ready");
    run.signal(rustix::process::Signal::HUP);
    run.write("go\n");
    assert_eq!(run.end().status, 0);
}

#[test]
fn file_that_may_not_grow_is_69_and_the_command_gets_the_signal() {
    let place = Place::new();
    let limited = |limit: &str, then: &str| {
        let mut shell = bare(Path::new("sh"));
        let script = format!("ulimit -f {limit}; ulimit -c 0; exec {BINARY} {then}");
        shell.env("LEASEHOLD_URL", place.url()).current_dir(&place.folder);
        finish(shell.args(["-c", &script]))
    };
    let refused = limited("0", "run x -- true");
    assert_eq!(refused.status, 69, "{refused:?}");
    assert!(refused.stderr.contains("ulimit -f"), "{refused:?}");
    place.expect(0, &["init"]);
    let refused = limited("0", "run x -- true");
    assert_eq!(refused.status, 69, "{refused:?}");
    assert!(refused.stderr.contains("ulimit -f"), "{refused:?}");
    let ended = limited("8192", "run x -- sh -c 'yes > large'");
    assert_eq!(ended.status, 128 + 25, "{ended:?}");
}

#[test]
fn names_that_do_not_fit_the_environment_are_64_and_nothing_is_taken() {
    let place = Place::new();
    let many: Vec<String> = (0..1_200).map(|index| format!("n{index:05}")).collect();
    let long: Vec<String> = (0..180).map(|index| format!("{index:0>500}")).collect();
    let broken = ["a\nb".to_owned(), "z".to_owned()];
    for (names, word) in [(many.as_slice(), "too many"), (&long, "too many"), (&broken, "a line")] {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let run = [&["-v", "run"], names.as_slice(), &["--", "true"]].concat();
        let refused = place.expect(64, &run);
        assert!(refused.stderr.contains(word), "{refused:?}");
        assert_eq!(json(&place.expect(0, &["stats", "--json"]).stdout)["acquired"], 0);
    }
    let enough: Vec<&str> = many.iter().take(800).map(String::as_str).collect();
    place.expect(0, &[&["run"], enough.as_slice(), &["--", "true"]].concat());
    let alone = place.expect(0, &["run", "a\nb", "--", "printenv", "LEASEHOLD_NAME"]);
    assert_eq!(alone.stdout, "a\nb\n");
}

#[test]
fn grace_that_a_lost_lock_does_not_leave_is_said() {
    let place = Place::new();
    let told = place.expect(0, &["run", "--ttl", "3s", "--grace", "20s", "x", "--", "true"]);
    assert!(told.stderr.contains("--grace 20s is 1s when the lock is lost"), "{told:?}");
    let quiet = place.expect(0, &["run", "--ttl", "3s", "x", "--", "true"]);
    assert_eq!(quiet.stderr, "", "the default is nobody's wish");
}

/// Starts a waiter for `x` whose standard error goes to the file `log`.
fn wait_with_a_log(place: &Place, option: &str) -> Running {
    let log = place.path("log").display().to_string();
    let script = format!("exec {BINARY} {option} run --holder me x -- true 2>'{log}'");
    let mut shell = crate::support::bare(std::path::Path::new("sh"));
    shell.env("LEASEHOLD_URL", place.url()).args(["-c", &script]);
    let waiter = Running::start(&mut shell);
    place.await_waiting("x", 1);
    waiter
}

#[test]
fn long_wait_without_a_terminal_says_for_whom_and_at_which_place() {
    let place = Place::new();
    let holder = place.hold(&["--holder", "the-holder"], "x");
    let waiter = wait_with_a_log(&place, "");
    eventually("it says what it waits for", || {
        place.file("log").is_some_and(|log| log.ends_with('\n'))
    });
    let log = place.file("log").expect("written");
    assert!(log.starts_with("leasehold: waiting for `x` since "), "{log}");
    assert!(log.contains(", next in line; held by `the-holder` for "), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
    holder.end();
    assert_eq!(waiter.end().status, 0);
}

#[test]
fn quiet_wait_without_a_terminal_says_nothing() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let waiter = wait_with_a_log(&place, "-q");
    // Longer than the first line takes by default.
    std::thread::sleep(Duration::from_secs(6));
    holder.end();
    assert_eq!(waiter.end().status, 0);
    assert_eq!(place.file("log").as_deref(), Some(""));
}

#[test]
fn log_tells_of_a_loss_with_name_and_fence() {
    let place = Place::new();
    let script = "echo $LEASEHOLD_FENCE; read line";
    let run = ["run", "--ttl", "5s", "x", "--", "sh", "-c", script];
    let mut run = Running::start(place.leasehold(&run).env("LEASEHOLD_LOG", "warn"));
    let fence = run.line();
    place.expect(0, &["force-release", "x", "--yes", "--reason", "test"]);
    let finished = run.wait();
    let line = format!("lost name=x fence={fence} cause=");
    assert!(finished.status == 76 && finished.stderr.contains(&line), "{finished:?}");
}

#[test]
fn log_tells_of_grants_renewals_and_releases_with_name_and_fence() {
    let place = Place::new();
    for variable in ["LEASEHOLD_LOG", "RUST_LOG"] {
        let log = place.folder.join(variable);
        let until_renewed = "until grep -q renewed \"$0\"; do sleep 0.05; done; \
             echo $LEASEHOLD_FENCE";
        let mut command =
            place.leasehold(&["run", "--ttl", "3s", "x", "--", "sh", "-c", until_renewed]);
        command.arg(&log).env(variable, "debug");
        command.stderr(File::create(&log).expect("created")).stdout(Stdio::piped());
        let finished = command.output().expect("it runs");
        let fence = String::from_utf8_lossy(&finished.stdout).trim().to_owned();
        let text = std::fs::read_to_string(&log).expect("read");
        for event in ["granted", "renewed", "released"] {
            let line = format!("debug: {event} name=x fence={fence}");
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
    let finished =
        finish(place.leasehold(&["run", "x", "--", "true"]).env("LEASEHOLD_LOG", "warn"));
    assert_eq!(finished.stderr, "");
}

#[test]
fn refusals_and_failures_are_json_with_json() {
    let place = Place::new();
    let holder = place.hold(&["--holder", "me"], "x");
    let refused = place.expect(75, &["run", "--json", "-n", "x", "--", "true"]);
    assert_eq!(refused.stdout, "");
    let told = json(&refused.stderr);
    assert_eq!((&told["acquired"], &told["held_by"][0]["holder"]), (&false.into(), &"me".into()));
    assert_eq!(told["held_by"][0]["fence"], holder.fence.to_string());
    let failed = place.expect(78, &["--json", "--url", "gopher://x", "list"]);
    let told = json(&failed.stderr);
    assert_eq!(told["status"], 78);
    assert!(told["error"].as_str().is_some_and(|error| error.contains("gopher")), "{failed:?}");
}
