//! `rate` and `resize`: units that come back with time, and limits that change.

use std::time::{Duration, Instant};

use leasehold_testkit::Redis;

use crate::support::{Place, bare, finish, json};

#[test]
fn so_many_units_in_a_period_and_the_next_one_is_named() {
    let place = Place::new();
    let rate = ["rate", "api", "--limit", "2", "--per", "1h"];
    for _ in 0..2 {
        let taken = place.expect(0, &rate);
        assert_eq!((taken.stdout.as_str(), taken.stderr.as_str()), ("", ""));
    }
    let refused = place.expect(75, &rate);
    assert!(refused.stderr.contains("the next unit of `api` is due in 59m"), "{refused:?}");
    let refused = place.expect(9, &[&rate[..], &["--json", "-E", "9", "-n"]].concat());
    let told = json(&refused.stdout);
    assert_eq!((&told["name"], &told["taken"]), (&"api".into(), &false.into()));
    assert!(told["due_in_ms"].as_u64().is_some_and(|due| due > 3_500_000), "{told}");
    let refused = place.expect(78, &["rate", "api", "--limit", "3", "--per", "1h"]);
    assert!(refused.stderr.contains("in use as a rate of 2, not as a rate of 3"), "{refused:?}");
}

#[test]
fn waiter_gets_the_unit_when_it_is_due() {
    let server = Redis::new().start_blocking().expect("a server");
    let mut rate = bare(std::path::Path::new(crate::support::BINARY));
    rate.env("LEASEHOLD_URL", server.url());
    rate.args(["-v", "rate", "--json", "-w", "30s", "api", "--limit", "1", "--per", "2s"]);
    let begun = Instant::now();
    let mut said = String::new();
    for _ in 0..3 {
        let taken = finish(&mut rate);
        assert_eq!(taken.status, 0, "{taken:?}");
        assert_eq!(json(&taken.stdout)["taken"], true);
        said += &taken.stderr;
    }
    assert!(said.contains("waiting for `api` since "), "{said}");
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn rates_that_cannot_be_are_wrong_usage() {
    let place = Place::new();
    let cases = [
        ("0", "1s", "at least 1"),
        ("-1", "1s", "at least 1"),
        ("x", "1s", "at least 1"),
        ("4294967295", "1s", "at least 1"),
        ("6000", "1s", "1 to 5000 units"),
        ("1", "1ms", "shorter than the clock can tell"),
        ("1", "25h", "at most"),
    ];
    for (limit, per, message) in cases {
        let refused = place.expect(64, &["rate", "api", "--limit", limit, "--per", per]);
        assert!(refused.stderr.contains(message), "{limit} per {per}: {refused:?}");
    }
}

#[test]
fn a_limit_is_changed_for_those_in_line_and_not_below_what_is_held() {
    let place = Place::new();
    let unused = place.expect(0, &["resize", "encoder", "--permits", "3"]);
    assert!(unused.stderr.contains("the next client sets its limit"), "{unused:?}");
    let holder = place.hold(&["--permits", "2/3"], "encoder");
    let refused = place.expect(75, &["resize", "encoder", "--permits", "1"]);
    assert!(refused.stderr.contains("2 permits are held"), "{refused:?}");
    let done = place.expect(0, &["resize", "encoder", "--permits", "5"]);
    assert_eq!(done.stdout, "`encoder` has 5 permits, 3 before\n");
    place.expect(78, &["run", "-n", "--permits", "1/3", "encoder", "--", "true"]);
    place.expect(0, &["run", "-n", "--permits", "3/5", "encoder", "--", "true"]);
    let done = json(&place.expect(0, &["resize", "--json", "encoder", "--permits", "2"]).stdout);
    assert_eq!((&done["limit"], &done["before"]), (&2.into(), &5.into()));
    for bad in ["0", "-3", "x"] {
        place.expect(64, &["resize", "encoder", "--permits", bad]);
    }
    assert_eq!(holder.end().status, 0);
    let lock = place.hold(&[], "lock");
    place.expect(78, &["resize", "lock", "--permits", "3"]);
    assert_eq!(lock.end().status, 0);
}
