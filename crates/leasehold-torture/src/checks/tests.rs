//! Each kind of fault is found by the check that is for it, and good histories pass.

use super::sample::Sample;
use crate::event::{RUN, SEVERAL, Want, What, ms};

const READ: Want = Want::Shared;
const PERMIT: Want = Want::Permits { take: 1, of: 2 };
const ONCE: Want = Want::Once { period_ms: 1_000 };
const UNIT: Want = Want::Unit { units: 2, period_ms: 1_000 };

#[test]
fn tenures_one_after_the_other_pass() {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 10, 20).tenure(2, 2, 22, 30).tenure(1, 3, 40, 50);
    assert_eq!(sample.found(), []);
}

#[test]
fn overlap_of_two_exclusive_leases_is_found() {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 10, 20).tenure(2, 2, 15, 30);
    assert_eq!(sample.checks(), ["exclusion", "ownership"]);
    assert_eq!(sample.found()[0].attempts, [(1, 1), (2, 5)]);
}

#[test]
fn lease_of_a_paused_worker_counts_until_its_safe_end() {
    let mut sample = Sample::default();
    sample.asks(1, 9).granted(10, 1).lost(5_000);
    sample.tenure(2, 2, 1_000, 1_100);
    assert_eq!(sample.checks(), ["exclusion"]);
    sample.terms.lasts_to_safe_end = false;
    assert_eq!(sample.found(), []);
}

#[test]
fn lease_of_a_dead_worker_ends_with_it() {
    let mut sample = Sample::default();
    sample.asks(1, 9).granted(10, 1);
    sample.run(500, What::Ended { target: 1 }).tenure(2, 2, 1_000, 1_100);
    assert_eq!(sample.found(), []);
}

#[test]
fn overlap_after_the_store_forgot_is_excused_until_the_next_renewal() {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 10, 1_900).fault(RUN, true, 100, 200).tenure(2, 2, 300, 400);
    assert_eq!(sample.found(), []);
    let mut sample = Sample::default();
    sample.asks(1, 9).granted(10, 1).held(8_900).released(9_100);
    sample.fault(RUN, true, 100, 200).tenure(2, 2, 9_000, 9_200);
    assert_eq!(sample.checks(), ["exclusion", "ownership"]);
}

/// The answer to its claim was held up, and its session was ended meanwhile.
#[test]
fn lease_that_its_client_hears_of_late_may_be_forgotten_by_then() {
    for (target, checks) in [(1, &[][..]), (2, &["exclusion"])] {
        let mut sample = Sample::default();
        sample.fault(target, true, 100, 200).tenure(2, 2, 290, 400);
        let granted = What::Granted { fence: 1, until: ms(2_010) };
        sample.asks(1, 9).add(300, granted).released(350);
        assert_eq!(sample.checks(), checks, "{target}");
    }
}

#[test]
fn reader_beside_a_writer_is_found_and_beside_a_reader_is_not() {
    let mut sample = Sample::default();
    sample.wants(1, 9, READ).granted(10, 1).released(50);
    sample.wants(2, 9, READ).granted(12, 2).released(30);
    assert_eq!(sample.found(), []);
    sample.tenure(3, 3, 40, 60);
    assert_eq!(sample.checks(), ["exclusion"]);
}

#[test]
fn more_permits_than_there_are_is_found() {
    let mut sample = Sample::default();
    sample.wants(1, 9, PERMIT).granted(10, 1).released(50);
    sample.wants(2, 9, PERMIT).granted(12, 2).released(50);
    assert_eq!(sample.found(), []);
    sample.wants(3, 9, PERMIT).granted(14, 3).released(50);
    assert_eq!(sample.checks(), ["exclusion"]);
}

#[test]
fn name_that_must_stay_closed_and_is_granted_is_found() {
    let mut sample = Sample::default();
    sample.asks(1, 9).closed(1_000).granted(10, 1).released(20);
    sample.tenure(2, 2, 500, 510);
    assert_eq!(sample.checks(), ["exclusion"]);
}

#[test]
fn release_that_is_answered_after_the_safe_end_may_close_nothing() {
    for (answered, checks) in [(20, &["exclusion"][..]), (2_900, &[])] {
        let mut sample = Sample::default();
        sample.asks(1, 9).closed(5_000).granted(10, 1).released(answered);
        sample.tenure(2, 2, 3_000, 3_010);
        assert_eq!(sample.checks(), checks);
    }
}

#[test]
fn adopted_lease_counts_while_it_was_a_handle() {
    let mut sample = Sample::default();
    let step = sample.asks(1, 9).granted(10, 1).add(20, What::Detached);
    step.add(40, What::Adopted { until: 2_000_000_000 }).released(50);
    sample.tenure(2, 2, 30, 35);
    assert_eq!(sample.checks(), ["exclusion", "ownership"]);
}

#[test]
fn equal_fence_is_found() {
    let mut sample = Sample::default();
    sample.tenure(1, 7, 10, 20).tenure(2, 7, 15, 16);
    assert!(sample.checks().contains(&"fences"));
}

#[test]
fn fence_that_falls_is_found_and_concurrent_ones_may_differ() {
    let mut sample = Sample::default();
    sample.wants(1, 1, READ).granted(30, 2).released(31);
    sample.wants(2, 2, READ).granted(20, 3).released(31);
    assert_eq!(sample.found(), []);
    sample.wants(3, 40, READ).granted(50, 1).released(51);
    assert_eq!(sample.checks(), ["fences"]);
}

#[test]
fn register_that_accepts_a_smaller_fence_is_found() {
    let mut sample = Sample::default();
    sample.access(10, 1, 5, None).access(11, 2, 6, None).access(12, 1, 5, None);
    assert_eq!(sample.checks(), ["register"]);
}

#[test]
fn lost_write_and_shared_fence_are_found() {
    let mut sample = Sample::default();
    sample.access(10, 1, 5, Some(1)).access(11, 1, 5, Some(2));
    assert_eq!(sample.found(), []);
    sample.access(12, 2, 6, Some(2));
    assert_eq!(sample.checks(), ["register"]);
    let mut sample = Sample::default();
    sample.access(10, 1, 5, None).access(11, 2, 5, None);
    assert_eq!(sample.checks(), ["register"]);
}

#[test]
fn valid_lease_that_the_register_refuses_is_found() {
    let turned = What::Turned { fence: 1, seen: 2 };
    let mut sample = Sample::default();
    sample.asks(1, 9).granted(10, 1).add(12, turned.clone()).lost(13);
    assert_eq!(sample.found(), []);
    sample.asks(2, 19).granted(2_010, 2).add(2_012, turned).held(2_013).released(2_014);
    assert_eq!(sample.checks(), ["register"]);
}

#[test]
fn stale_handle_that_works_is_found() {
    let mut sample = Sample::default();
    let stale = |worked| What::Stale { call: "release".to_owned(), worked };
    sample.asks(1, 9).granted(10, 1).released(12).add(20, stale(false));
    assert_eq!(sample.found(), []);
    sample.asks(1, 29).granted(30, 2).released(32).add(40, stale(true));
    assert_eq!(sample.checks(), ["ownership"]);
}

#[test]
fn server_that_missed_a_release_answers_the_second_one_only_after_a_fault() {
    for (call, has_copies, from, checks) in [
        ("release", true, 11, &[][..]),
        ("release", true, 60, &["ownership"]),
        ("release", false, 11, &["ownership"]),
        ("adopt", true, 11, &["ownership"]),
    ] {
        let mut sample = Sample::default();
        sample.terms.has_copies = has_copies;
        sample.fault(1, false, from, from + 2);
        let stale = What::Stale { call: call.to_owned(), worked: true };
        sample.asks(1, 9).granted(10, 1).released(12).add(40, stale);
        assert_eq!(sample.checks(), checks, "{call}, {has_copies}, {from}");
    }
}

#[test]
fn release_after_the_next_grant_is_found() {
    let mut sample = Sample::default();
    sample.asks(1, 9).granted(10, 1).held(20).released(5_000);
    sample.tenure(2, 2, 3_000, 3_100);
    assert_eq!(sample.checks(), ["ownership"]);
}

#[test]
fn claim_that_is_overtaken_is_found_unless_it_was_disturbed() {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 5_000, 5_100);
    sample.asks(2, 5_001).queued(5_010).granted(5_900, 3).released(5_950);
    sample.asks(3, 5_020).queued(5_030).granted(5_110, 2).released(5_200);
    assert_eq!(sample.checks(), ["order"]);
    sample.fault(3, false, 5_050, 5_060);
    assert_eq!(sample.checks(), ["order"], "the one that overtook may be disturbed");
    sample.fault(2, false, 5_050, 5_060);
    assert_eq!(sample.found(), []);
}

#[test]
fn order_is_not_asked_of_a_store_that_does_not_promise_it() {
    let mut sample = Sample::default();
    sample.terms.fifo = false;
    sample.asks(2, 1).queued(10).granted(900, 3).released(950);
    sample.asks(3, 20).granted(30, 2).released(40);
    assert_eq!(sample.found(), []);
}

/// A name that is given back while another claim waits; granted so many milliseconds later.
fn hand_over(late: u64) -> Sample {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 10_000, 10_100);
    let granted = 10_101 + late;
    sample.asks(2, 10_010).queued(10_020).granted(granted, 2).released(granted + 10);
    sample.run(granted + 10_000, What::Closed);
    sample
}

#[test]
fn claim_that_sleeps_beside_a_free_name_is_found() {
    assert_eq!(hand_over(1_000).found(), []);
    assert_eq!(hand_over(9_000).checks(), ["asleep"]);
}

#[test]
fn claim_that_waits_behind_a_dead_one_does_not_sleep() {
    let mut sample = hand_over(9_000);
    sample.asks(3, 10_005).queued(10_008);
    sample.run(10_050, What::Ended { target: 3 });
    assert_eq!(sample.found(), []);
    let mut sample = hand_over(8_000);
    sample.fault(RUN, false, 9_000, 9_100);
    assert_eq!(sample.found(), []);
}

/// A fault puts off the instant from which on a name is surely free, and no more than that.
#[test]
fn claim_that_sleeps_long_after_a_fault_is_found() {
    for (late, checks) in [(9_000, &[][..]), (12_000, &["asleep"])] {
        let mut sample = hand_over(late);
        sample.fault(1, false, 9_000, 10_050);
        sample.asks(3, 10_040).queued(10_060);
        sample.run(10_070, What::Ended { target: 3 });
        assert_eq!(sample.checks(), checks, "{late}");
    }
}

/// The first holder dies, so nobody gives the name back.
#[test]
fn claim_that_sleeps_behind_a_dead_holder_is_found() {
    for (granted, checks) in [(15_000, &[][..]), (22_000, &["asleep"])] {
        let mut sample = Sample::default();
        sample.asks(1, 9_990).granted(10_000, 1);
        sample.run(10_100, What::Ended { target: 1 });
        sample.asks(2, 10_010).queued(10_020).granted(granted, 2).released(granted + 10);
        sample.run(30_000, What::Closed);
        assert_eq!(sample.checks(), checks);
    }
}

/// A claim of several names may have this one while it waits for another.
#[test]
fn claim_that_waits_behind_one_of_several_names_does_not_sleep() {
    let mut sample = hand_over(9_000);
    sample.asks(3, 10_005).how(SEVERAL).add(18_000, What::Refused);
    assert_eq!(sample.found(), []);
}

#[test]
fn name_that_stays_closed_for_too_long_is_found() {
    for (granted, checks) in [(16_400, &[][..]), (17_000, &["opens"])] {
        let mut sample = Sample::default();
        sample.terms.opens_late = ms(1_000);
        sample.asks(1, 9_990).closed(1_500).granted(10_000, 1).released(10_010);
        sample.asks(2, 10_010).queued(10_020).granted(granted, 2).released(granted + 10);
        sample.run(30_000, What::Closed);
        assert_eq!(sample.checks(), checks);
    }
}

/// The time in which the name is closed by those before is not the waiter's.
#[test]
fn progress_does_not_count_the_time_in_which_a_name_is_closed() {
    for (span, checks) in [(1_500, &[][..]), (10, &["progress"])] {
        let mut sample = Sample::default();
        (sample.terms.opens_late, sample.terms.fifo) = (ms(span), false);
        sample.run(10, What::Calm);
        sample.asks(99, 20).queued(30).granted(40_000, 99).released(40_010);
        for number in 0..20 {
            let at = 1_000 + u64::from(number) * 1_950;
            sample.asks(number, at - 10).closed(400).granted(at, number.into()).released(at + 10);
        }
        assert_eq!(sample.checks(), checks);
    }
}

#[test]
fn release_that_is_denied_before_the_safe_end_is_found() {
    let released = |at: u64, answer: &str| {
        let mut sample = Sample::default();
        let answer = What::Released { answer: answer.to_owned() };
        sample.asks(1, 9).granted(10, 1).add(at - 5, What::Releases).add(at, answer);
        sample
    };
    assert_eq!(released(500, "released").found(), []);
    assert_eq!(released(2_011, "expired").found(), []);
    assert_eq!(released(500, "expired").checks(), ["release"]);
    assert_eq!(released(500, "taken").checks(), ["release"]);
    let mut forgotten = released(500, "expired");
    forgotten.fault(RUN, true, 100, 200);
    assert_eq!(forgotten.found(), []);
    let mut unsafe_store = released(500, "expired");
    unsafe_store.terms.lasts_to_safe_end = false;
    assert_eq!(unsafe_store.found(), []);
}

#[test]
fn two_leaders_at_once_are_found() {
    let mut sample = Sample::default();
    sample.wants(1, 9, Want::Leader).granted(10, 1).released(50);
    sample.wants(2, 59, Want::Leader).granted(60, 2).released(90);
    assert_eq!(sample.found(), []);
    sample.wants(3, 79, Want::Leader).granted(80, 3).released(95);
    assert_eq!(sample.checks(), ["election", "ownership"]);
}

#[test]
fn observer_that_sees_an_earlier_leader_is_found() {
    let mut sample = Sample::default();
    for (at, worker, term) in [(10, 1, 5), (11, 2, 4), (12, 1, 7), (13, 2, 7), (14, 1, 7)] {
        sample.sees(at, worker, term);
    }
    assert_eq!(sample.found(), []);
    sample.sees(20, 1, 5);
    assert_eq!(sample.checks(), ["election"]);
    sample.terms.has_copies = true;
    assert_eq!(sample.found(), [], "the servers were not read at one instant");
    sample.terms.has_copies = false;
    sample.fault(RUN, true, 15, 19);
    assert_eq!(sample.found(), []);
}

#[test]
fn claim_that_is_never_answered_after_the_faults_is_found() {
    let mut sample = Sample::default();
    sample.asks(1, 10).queued(20).granted(40_000, 1).released(40_010);
    sample.run(20_000, What::Calm);
    assert_eq!(sample.found(), []);
    sample.asks(2, 30).queued(40).granted(90_000, 2).released(90_010);
    assert_eq!(sample.checks(), ["asleep", "progress"]);
}

#[test]
fn worker_that_is_stuck_and_claims_that_are_left_are_found() {
    let mut sample = Sample::default();
    sample.run(1, What::Stuck { target: 1, said: String::new() });
    sample.run(2, What::Left { name: "n".to_owned(), held: 1, waiting: 0 });
    sample.run(3, What::Rest { found: "the key lock:n".to_owned() });
    assert_eq!(sample.checks(), ["stuck", "left", "left"]);
}

#[test]
fn blocked_name_is_reported_with_what_the_store_has_of_it() {
    let mut sample = Sample::default();
    sample.asks(1, 10).queued(20);
    sample.run(30, What::Calm);
    let (name, held) = ("n".to_owned(), vec!["Shared of w4".to_owned()]);
    sample.run(60_000, What::Line { name, held, waiting: Vec::new() });
    sample.run(60_010, What::Stuck { target: 1, said: String::new() });
    let found = sample.found();
    let progress = found.iter().find(|one| one.check == "progress").expect("it is found");
    assert!(progress.text.ends_with("in the store hold [Shared of w4] and wait []"), "{found:?}");
}

#[test]
fn failed_script_is_found_and_a_store_that_is_away_is_not() {
    let failed = |kind: &str, text: &str| {
        let (kind, text) = (kind.to_owned(), text.to_owned());
        What::Failed { call: "claim".to_owned(), kind, text }
    };
    let mut sample = Sample::default();
    sample.asks(1, 1).add(2, failed("Unreachable", "no answer"));
    sample.asks(1, 3).add(4, failed("Store (transient)", "LOADING"));
    assert_eq!(sample.found(), []);
    sample.asks(1, 5).add(6, failed("Store", "ERR attempt to compare"));
    let script = "ERR Script attempted to access a non local key";
    sample.asks(1, 7).add(8, failed("Store (transient)", script));
    sample.asks(1, 9).add(10, failed("Mismatch", "in use as a semaphore"));
    assert_eq!(sample.checks(), ["answers"; 3]);
}

#[test]
fn unit_too_many_in_a_period_is_found() {
    let mut sample = Sample::default();
    for at in [100, 200, 1_300, 1_400] {
        sample.wants(1, at, UNIT).how("try").granted(at + 10, 0);
    }
    assert_eq!(sample.found(), []);
    sample.wants(1, 1_500, UNIT).how("try").granted(1_510, 0);
    assert_eq!(sample.checks(), ["rate"]);
}

#[test]
fn second_run_within_a_period_is_found_unless_the_first_was_not_told() {
    let mut sample = Sample::default();
    sample.wants(1, 10, ONCE).granted(12, 1).released(20);
    sample.wants(2, 1_100, ONCE).granted(1_110, 2).lost(1_120);
    sample.wants(1, 1_300, ONCE).granted(1_310, 3).released(1_320);
    assert_eq!(sample.found(), []);
    sample.wants(2, 1_500, ONCE).granted(1_510, 4).released(1_520);
    assert_eq!(sample.checks(), ["once"]);
}

/// What happens to a worker that has nothing to do with a name does not disturb it.
#[test]
fn claim_that_sleeps_while_a_worker_of_other_names_is_disturbed_is_found() {
    let mut sample = hand_over(9_000);
    sample.fault(3, false, 10_000, 19_000);
    assert_eq!(sample.checks(), ["asleep"]);
    sample.asks(3, 10_500).queued(10_510);
    sample.run(24_000, What::Ended { target: 3 });
    assert_eq!(sample.found(), []);
}

#[test]
fn time_in_which_threads_wait_for_a_processor_does_not_count() {
    let delayed = |by| What::Delayed { since: ms(10_000), by: ms(by) };
    for (by, checks) in [(4_000, &["asleep"][..]), (6_000, &[])] {
        let mut sample = hand_over(9_000);
        sample.run(20_000, delayed(by));
        assert_eq!(sample.checks(), checks, "{by}");
    }
    for (by, checks) in [(9_000, &["progress"][..]), (11_000, &[])] {
        let mut sample = Sample::default();
        sample.terms.fifo = false;
        sample.asks(1, 10).queued(20).granted(60_000, 1).released(60_010);
        sample.run(20_000, What::Calm);
        let since = ms(30_000);
        sample.run(45_000, What::Delayed { since, by: ms(by) });
        assert_eq!(sample.checks(), checks, "{by}");
    }
}

/// A connection that is cut costs the leases of its client alone.
#[test]
fn only_the_leases_of_the_worker_that_a_fault_is_about_may_be_forgotten() {
    for (target, checks) in [(1, &[][..]), (2, &["exclusion", "ownership"])] {
        let mut sample = Sample::default();
        sample.tenure(1, 1, 10, 1_900).fault(target, true, 100, 200).tenure(2, 2, 300, 400);
        assert_eq!(sample.checks(), checks, "{target}");
    }
}

/// A worker that is stopped learns of it when it goes on.
#[test]
fn owner_that_is_stopped_sees_late_that_its_connection_is_gone() {
    for (stopped, checks) in [(false, &["exclusion", "ownership"][..]), (true, &[])] {
        let mut sample = Sample::default();
        (sample.terms.lasts_to_safe_end, sample.terms.unaware) = (false, ms(500));
        sample.asks(1, 9).granted(10, 1).held(2_200).released(2_300);
        sample.fault(1, true, 100, 150);
        sample.asks(2, 999).granted(1_000, 2).held(1_050).released(1_100);
        if stopped {
            sample.fault(1, false, 90, 2_100);
        }
        assert_eq!(sample.checks(), checks, "{:?}", sample.found());
    }
}

#[test]
fn name_that_opens_in_time_for_a_claim_that_waits_is_judged() {
    let mut sample = Sample::default();
    sample.terms.opens_late = ms(200);
    sample.asks(1, 9).closed(400).granted(10, 1).released(20);
    sample.asks(2, 15).queued(16).granted(420, 2).released(430);
    assert_eq!((sample.found(), sample.judged("opens")), (vec![], (1, 0)));
}

#[test]
fn what_is_excused_is_counted_apart() {
    let mut sample = Sample::default();
    sample.tenure(1, 1, 10, 20).tenure(2, 2, 22, 30).tenure(1, 3, 10_040, 10_050);
    assert_eq!(sample.judged("exclusion"), (2, 0));
    assert_eq!(sample.judged("release"), (3, 0));
    sample.fault(RUN, true, 10_030, 10_035);
    assert_eq!(sample.judged("exclusion"), (1, 1));
    assert_eq!(sample.judged("fences"), (2, 0));
    assert_eq!(sample.judged("order"), (0, 0));
    let mut sample = hand_over(1_000);
    assert_eq!((sample.judged("order"), sample.judged("asleep")), ((0, 0), (1, 0)));
    sample.fault(RUN, false, 9_000, 9_100);
    assert_eq!(sample.judged("asleep"), (0, 1));
}
