//! `once`: three machines with one crontab, runs that die, and the record of a run.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_testkit::{Clock, Redis};
use rustix::process::Signal;

use crate::support::{BINARY, Place, Running, await_gone, bare, eventually, json, pid};

/// Wall clocks of three machines: right, an hour ahead, a day behind.
fn clocks() -> [Clock; 3] {
    let clocks = std::array::from_fn(|_| Clock::new().expect("a clock that can be moved"));
    let [_, ahead, behind] = &clocks;
    ahead.set_ahead(Duration::from_secs(3_600)).expect("moved");
    behind.set_behind(Duration::from_secs(86_400)).expect("moved");
    clocks
}

/// `once` as cron starts it on one of several machines: a home and a holder of its own, one store.
fn machine(url: &str, number: usize, home: &Path, arguments: &[&str]) -> Command {
    let home = home.join(format!("machine-{number}"));
    std::fs::create_dir_all(&home).expect("a home");
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).env("HOME", home);
    command.args(["--holder", &format!("machine-{number}")]).args(arguments);
    command
}

/// Three machines with different clocks start the same line of a crontab at the same time. They
/// repeat it until it ran three times.
fn crontab_of_three_machines(url: &str, place: &Place) {
    let every = Duration::from_secs(2);
    let line = ["once", "job", "--every", "2s", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"];
    let (mut ran, clocks) = (Vec::new(), clocks());
    let begun = Instant::now();
    while ran.len() < 3 {
        let asked = Instant::now();
        let started: Vec<Running> = (0..3)
            .map(|number| {
                let mut command = machine(url, number, &place.folder, &line);
                Running::start(command.envs(clocks[number].environment()))
            })
            .collect();
        for running in started {
            let finished = running.end();
            assert_eq!(finished.status, 0, "{finished:?}");
            match finished.stdout.trim().parse::<u64>() {
                Ok(fence) => ran.push((fence, asked, Instant::now())),
                Err(_) => assert!(finished.stderr.contains("skipped: `machine-"), "{finished:?}"),
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{ran:?}");
    }
    ran.sort_unstable();
    for pair in ran.windows(2) {
        // The first run began after its start command, the second before its end was seen.
        let span = pair[1].2.duration_since(pair[0].1);
        assert!(pair[0].0 < pair[1].0 && span >= every, "two runs within {span:?}");
    }
}

#[test]
fn a_crontab_on_three_machines_runs_once_in_each_period_on_a_file() {
    let place = Place::new();
    crontab_of_three_machines(&place.url(), &place);
}

#[test]
fn a_crontab_on_three_machines_runs_once_in_each_period_on_redis() {
    let server = Redis::new().start_blocking().expect("a server");
    crontab_of_three_machines(server.url(), &Place::new());
}

#[test]
fn a_run_that_died_half_way_is_taken_over() {
    let place = Place::new();
    let once = ["once", "job", "--every", "1h", "--ttl", "5s", "--", "sh", "-c"];
    let first = [&once[..], &["echo $$; read line"]].concat();
    let mut dies = Running::start(&mut machine(&place.url(), 1, &place.folder, &first));
    let command = pid(dies.line().parse().expect("a process id"));
    let second = [&once[..], &["echo again $LEASEHOLD_FENCE"]].concat();
    let skipped = Running::start(&mut machine(&place.url(), 2, &place.folder, &second)).end();
    assert_eq!((skipped.status, skipped.stdout.as_str()), (0, ""), "{skipped:?}");
    assert!(skipped.stderr.contains("`machine-1` runs `job`"), "{skipped:?}");
    dies.signal(Signal::KILL);
    await_gone(command);
    let mut again = String::new();
    eventually("the run is taken over", || {
        let asked = Running::start(&mut machine(&place.url(), 2, &place.folder, &second)).end();
        assert_eq!(asked.status, 0, "{asked:?}");
        again = asked.stdout;
        !again.is_empty()
    });
    assert!(again.starts_with("again "), "{again:?}");
    let after = Running::start(&mut machine(&place.url(), 3, &place.folder, &second)).end();
    assert!(after.stderr.contains("`machine-2` ran `job`"), "{after:?}");
}

#[test]
fn the_outcome_is_remembered_and_the_status_is_the_commands() {
    let place = Place::new();
    let ran =
        place.expect(3, &["once", "job", "--every", "1h", "--", "sh", "-c", "echo x; exit 3"]);
    assert_eq!(ran.stdout, "x\n");
    let skipped = place.expect(0, &["once", "job", "--every", "1h", "--", "echo", "no"]);
    assert_eq!(skipped.stdout, "");
    assert!(skipped.stderr.contains("failed after") && skipped.stderr.contains("status 3"));
    let told = place.expect(0, &["once", "--json", "job", "--every", "1h", "--", "echo", "no"]);
    let told = json(&told.stdout);
    assert_eq!((&told["name"], &told["ran"]), (&"job".into(), &false.into()));
    assert_eq!(
        (&told["last"]["state"], &told["last"]["why"]),
        (&"failed".into(), &"status 3".into())
    );
    assert!(told["last"]["took_ms"].is_u64() && told["last"]["fence"].is_string());
    assert!(told["last"]["next_in_ms"].as_u64().is_some_and(|left| left > 3_000_000));
    let done = place.expect(0, &["once", "other", "--every", "1h", "--", "true"]);
    assert_eq!(done.stderr, "");
    let skipped = place.expect(0, &["once", "other", "--every", "1h", "--", "true"]);
    assert!(skipped.stderr.contains("done in"), "{skipped:?}");
}

#[test]
fn job_on_a_name_that_is_in_use_as_a_lock_is_78_and_not_skipped() {
    let place = Place::new();
    for options in [&[][..], &["--shared"]] {
        let holder = place.hold(options, "job");
        let refused = place.expect(78, &["once", "job", "--every", "1h", "--", "echo", "no"]);
        assert!(refused.stderr.contains("in use as a lock"), "{refused:?}");
        assert_eq!((refused.stdout.as_str(), holder.end().status), ("", 0));
    }
    let ran = place.expect(0, &["once", "job", "--every", "1h", "--", "echo", "ran"]);
    assert_eq!(ran.stdout, "ran\n");
}

#[test]
fn a_failed_run_is_tried_again_if_asked_and_one_that_never_started_is_none() {
    let place = Place::new();
    for _ in 0..2 {
        place.expect(1, &["once", "--retry-failed", "job", "--every", "1h", "--", "false"]);
    }
    place.expect(127, &["once", "job", "--every", "1h", "--", "/no/such/command"]);
    let ran = place.expect(0, &["once", "job", "--every", "1h", "--", "echo", "ran"]);
    assert_eq!(ran.stdout, "ran\n");
}

#[test]
fn a_run_whose_lock_was_taken_is_ended_with_76() {
    let place = Place::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let once = ["once", "job", "--every", "1h", "--ttl", "5s", "--", "sh", "-c", script];
    let mut run = place.start(&once);
    assert_eq!(run.line(), "ready");
    place.expect(0, &["force-release", "job", "--yes", "--reason", "test"]);
    assert_eq!(run.line(), "told");
    let finished = run.end();
    assert_eq!(finished.status, 76, "{finished:?}");
    assert!(finished.stderr.contains("the lease on `job` was lost"), "{finished:?}");
}

#[test]
fn a_run_that_hangs_is_ended_and_counts_as_one_that_failed() {
    let place = Place::new();
    let once = ["once", "job", "--every", "1h", "--hold-at-most", "300ms", "--", "sleep", "1000"];
    let finished = place.expect(76, &once);
    assert!(finished.stderr.contains("as long as --hold-at-most allows"), "{finished:?}");
    let skipped = place.expect(0, &["once", "job", "--every", "1h", "--", "echo", "no"]);
    assert_eq!(skipped.stdout, "");
    assert!(skipped.stderr.contains("failed after"), "{skipped:?}");
}

#[test]
fn periods_that_cannot_be_are_wrong_usage() {
    let place = Place::new();
    let cases = [
        ("1ms", "shorter than the clock can tell"),
        ("367d", "a period must be at most"),
        ("0s", "shorter than the clock can tell"),
        ("-1h", "negative"),
    ];
    for (every, message) in cases {
        let refused = place.expect(64, &["once", "job", "--every", every, "--", "true"]);
        assert!(refused.stderr.contains(message), "{every}: {refused:?}");
    }
    let refused = place.expect(64, &["once", "job", "--every", "1h"]);
    assert!(refused.stderr.contains("there is no command"), "{refused:?}");
}

#[test]
fn weekly_run_is_remembered_listed_and_made_again_on_demand() {
    let place = Place::new();
    let run = |options: &[&str]| {
        let job = ["weekly", "--every", "7d", "--", "echo", "ran"];
        place.expect(0, &[&["--holder", "cron", "once"], options, &job].concat())
    };
    assert_eq!(run(&[]).stdout, "ran\n");
    let skipped = run(&[]);
    assert_eq!(skipped.stdout, "");
    assert!(skipped.stderr.contains("the next may run in 6d23h"), "{skipped:?}");
    assert_eq!(run(&["--again"]).stdout, "ran\n");
    let listed = json(&place.expect(0, &["once", "--list", "--json"]).stdout);
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&"weekly".into(), &"done".into()));
    assert_eq!(listed[0]["by"], "cron");
    let table = place.expect(0, &["once", "--list"]).stdout;
    assert!(table.starts_with("NAME    STATE  BY    STARTED"), "{table}");
    assert!(table.contains("weekly  done   cron"), "{table}");
    let bad = place.finish(&["once", "--list", "weekly"]);
    assert_eq!(bad.status, 64, "{bad:?}");
    assert_eq!(place.finish(&["once", "weekly", "--", "true"]).status, 64);
}
