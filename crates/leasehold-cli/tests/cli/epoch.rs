//! `bump-epoch`: fences that go on above all others after a restore.

use leasehold_testkit::Redis;

use crate::support::{Place, finish, json};

/// The fence of a run.
fn fence(place: &Place) -> u64 {
    let ran = place.expect(0, &["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]);
    ran.stdout.trim().parse().expect("a fence")
}

#[test]
fn f129_a_restored_store_is_good_again_after_bump_epoch() {
    let place = Place::new();
    fence(&place);
    let (store, copy) = (place.path("locks.db"), place.path("backup.db"));
    let log = place.path("locks.db-wal");
    std::fs::copy(&store, &copy).expect("a backup");
    std::fs::copy(&log, place.path("backup.db-wal")).expect("with its log");
    let fences: Vec<u64> = (0..5).map(|_| fence(&place)).collect();
    let last = fences[4];
    let put_back = || {
        std::fs::remove_file(place.path("locks.db-shm")).expect("nobody has it open");
        std::fs::copy(&copy, &store).expect("put back");
        std::fs::copy(place.path("backup.db-wal"), &log).expect("with its log");
    };
    put_back();
    assert!(fence(&place) <= last, "fences went back");
    let bumped = place.expect(0, &["bump-epoch"]);
    assert!(bumped.stdout.starts_with("fences go on at "), "{bumped:?}");
    let new = fence(&place);
    assert!(new > last);
    put_back();
    let bumped = json(&place.expect(0, &["bump-epoch", "--json"]).stdout);
    let number = |key: &str| bumped[key].as_str().and_then(|text| text.parse::<u64>().ok());
    assert_eq!(bumped["raised"], true);
    assert!(number("before") <= Some(last) && number("from") > Some(new), "{bumped} {new}");
    assert!(Some(fence(&place)) >= number("from"));
}

#[test]
fn bump_leaves_holders_alone_and_exceeds_the_given_fence() {
    let place = Place::new();
    let holder = place.hold(&[], "held");
    let before = place.show("held")["held"][0]["fence"].clone();
    let bumped = json(&place.expect(0, &["bump-epoch", "--json"]).stdout);
    let from: u64 = bumped["from"].as_str().expect("text").parse().expect("a fence");
    let above = (from + 1_000_000_000).to_string();
    let raised = json(&place.expect(0, &["bump-epoch", "--json", "--above", &above]).stdout);
    assert_eq!(raised["from"], (from + 1_000_000_001).to_string());
    assert_eq!(fence(&place), from + 1_000_000_001);
    assert_eq!(place.show("held")["held"][0]["fence"], before);
    assert_eq!(holder.end().status, 0);
    for bad in ["-1", "x", "", "9223372036854775808"] {
        let refused = place.expect(64, &["bump-epoch", "--above", bad]);
        assert!(refused.stderr.contains("2^62"), "{refused:?}");
    }
}

#[test]
fn bump_by_a_clock_behind_the_date_of_the_build_is_78_without_a_fence_to_exceed() {
    let place = Place::new();
    let first = fence(&place);
    let clock = leasehold_testkit::Clock::new().expect("a clock that can be moved");
    for years in [10, 60] {
        clock.set_behind(std::time::Duration::from_secs(years * 365 * 86_400)).expect("moved");
        let mut bump = place.leasehold(&["bump-epoch"]);
        let refused = finish(bump.envs(clock.environment()));
        assert_eq!(refused.status, 78, "{refused:?}");
        assert!(refused.stderr.contains("--above"), "{refused:?}");
    }
    assert_eq!(fence(&place), first + 1, "nothing was changed");
    let mut bump = place.leasehold(&["bump-epoch", "--above", "1000"]);
    let raised = finish(bump.envs(clock.environment()));
    assert_eq!(raised.status, 0, "{raised:?}");
    assert!(fence(&place) > 1_000);
}

#[test]
fn where_fences_follow_the_clock_there_is_nothing_to_be_done() {
    let server = Redis::new().start_blocking().expect("a server starts");
    let place = Place::new();
    for url in [server.url(), "memory:"] {
        let bump = |arguments: &[&str]| {
            finish(place.leasehold(&["bump-epoch"]).env("LEASEHOLD_URL", url).args(arguments))
        };
        let said = bump(&[]);
        assert_eq!((said.status, said.stdout.as_str()), (0, ""), "{said:?}");
        assert!(said.stderr.contains("nothing to be done"), "{said:?}");
        assert_eq!(json(&bump(&["--json"]).stdout)["raised"], false);
        let refused = bump(&["--above", "4000000000000000000"]);
        assert_eq!(refused.status, 78, "{refused:?}");
    }
}
