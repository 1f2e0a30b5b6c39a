//! `elect` and `leader`: terms that rise, leaders that lose, and watchers.

use leasehold_testkit::Redis;
use rustix::process::Signal;

use crate::support::{Place, Running, await_gone, eventually, json, pid};

/// Prints its term, then works until a signal ends it.
const WORK: &str = "echo $LEASEHOLD_FENCE $$; while :; do sleep 0.05; done";

fn elect(place: &Place, holder: &str, options: &[&str], script: &str) -> Running {
    let mut arguments = vec!["--holder", holder, "elect", "--ttl", "5s", "--payload", holder];
    arguments.extend(options);
    arguments.extend(["office", "--", "sh", "-c", script]);
    place.start(&arguments)
}

fn term(candidate: &mut Running) -> (u64, i64) {
    let line = candidate.line();
    let (term, pid) = line.split_once(' ').expect("a term and a process id");
    (term.parse().expect("a term"), pid.parse().expect("a process id"))
}

#[test]
fn one_leads_the_next_follows_with_a_larger_term() {
    let place = Place::new();
    let nobody = place.expect(75, &["leader", "office"]);
    assert_eq!(nobody.stdout, "");
    assert!(nobody.stderr.contains("nobody leads `office`"), "{nobody:?}");
    let mut one = elect(&place, "one", &[], WORK);
    let (first, command) = term(&mut one);
    let mut two = elect(&place, "two", &[], WORK);
    place.await_waiting("office", 1);
    let shown = place.expect(0, &["leader", "office"]).stdout;
    assert_eq!(shown, format!("one  term {first}  one\n"));
    let shown = json(&place.expect(0, &["leader", "--json", "office"]).stdout);
    assert_eq!(shown["leader"]["term"], first.to_string());
    assert_eq!(shown["leader"]["payload"], "one");
    one.signal(Signal::TERM);
    assert_eq!(one.wait().status, 143, "it ends as its command did");
    await_gone(pid(command));
    let (second, _) = term(&mut two);
    assert!(second > first, "{second} after {first}");
    two.signal(Signal::TERM);
    assert_eq!(two.wait().status, 143);
    let none = place.expect(75, &["leader", "--json", "office"]);
    assert!(json(&none.stdout)["leader"].is_null());
}

#[test]
fn a_command_that_ends_or_a_lost_office_leads_to_another_campaign() {
    let place = Place::new();
    let file = place.path("terms").display().to_string();
    // The first term ends by itself, the second by force, the third by a signal.
    let script = format!(
        "echo x >> {file}; [ $(wc -l < {file}) = 1 ] && echo $LEASEHOLD_FENCE 1 && exit 5; {WORK}"
    );
    let mut candidate = elect(&place, "one", &[], &script);
    let (first, _) = term(&mut candidate);
    let (second, command) = term(&mut candidate);
    place.expect(0, &["force-release", "office", "--yes", "--reason", "test"]);
    let (third, _) = term(&mut candidate);
    await_gone(pid(command));
    assert!(first < second && second < third, "{first} {second} {third}");
    candidate.signal(Signal::INT);
    let finished = candidate.wait();
    assert_eq!(finished.status, 130, "{finished:?}");
    assert!(finished.stderr.contains("ended with status 5; campaigns again"), "{finished:?}");
    assert!(finished.stderr.contains("the lease on `office` was lost"), "{finished:?}");
}

#[test]
fn a_command_that_survives_hup_was_not_asked_to_end() {
    let place = Place::new();
    let script = "trap 'echo again; exit 0' HUP; echo $LEASEHOLD_FENCE $$; \
                  while :; do sleep 0.05; done";
    let mut candidate = elect(&place, "one", &[], script);
    let (first, _) = term(&mut candidate);
    candidate.signal(Signal::HUP);
    assert_eq!(candidate.line(), "again");
    let (second, _) = term(&mut candidate);
    assert!(second > first);
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.wait().status, 143);
    let mut deaf = elect(&place, "two", &[], WORK);
    term(&mut deaf);
    deaf.signal(Signal::HUP);
    assert_eq!(deaf.wait().status, 129, "its command ended by it, and so does it");
}

#[test]
fn a_signal_ends_a_candidate_that_waits() {
    let place = Place::new();
    let leader = place.hold(&[], "office");
    let candidate = elect(&place, "two", &[], WORK);
    place.await_waiting("office", 1);
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.wait().status, 143);
    place.await_waiting("office", 0);
    assert_eq!(leader.end().status, 0);
}

#[test]
fn f127_a_leader_that_was_paused_is_followed_and_its_command_does_nothing_more() {
    let place = Place::new();
    let stamps = place.path("stamps").display().to_string();
    let script = format!("{}; date +%s%N > {stamps}; done", "echo $LEASEHOLD_FENCE $$; while :");
    let script = script.replace("while :;", "while :; do sleep 0.02;");
    let mut one = elect(&place, "one", &["-q"], &script);
    let (first, command) = term(&mut one);
    // The candidate and its command both stand still, as on a machine that sleeps.
    one.signal(Signal::STOP);
    rustix::process::kill_process_group(pid(command), Signal::STOP).expect("it is there");
    let mut two = elect(&place, "two", &["-q"], WORK);
    let (second, _) = term(&mut two);
    assert!(second > first);
    let before = place.file("stamps");
    one.signal(Signal::CONT);
    await_gone(pid(command));
    assert_eq!(place.file("stamps"), before, "not another step of work");
    let shown = place.expect(0, &["leader", "office"]).stdout;
    assert!(shown.starts_with(&format!("two  term {second}")), "{shown}");
    one.signal(Signal::TERM);
    assert_eq!(one.wait().status, 143, "it waits for its next term, and may be asked to end");
    two.signal(Signal::TERM);
    assert_eq!(two.wait().status, 143);
}

#[test]
fn a_leader_whose_store_is_silent_stops_in_time_and_leads_again_when_it_is_back() {
    let place = Place::new();
    let server = Redis::new().start_blocking().expect("a server");
    let url = format!("{}?connect_timeout_ms=300&timeout_ms=300", server.url());
    let mut command = place.leasehold(&["elect", "--ttl", "2s", "office", "--", "sh", "-c", WORK]);
    let mut candidate = Running::start(command.env("LEASEHOLD_URL", url));
    let (first, worker) = term(&mut candidate);
    server.stop_process().expect("it stops");
    await_gone(pid(worker));
    server.continue_process().expect("it goes on");
    let (second, _) = term(&mut candidate);
    assert!(second > first, "{second} after {first}");
    candidate.signal(Signal::TERM);
    let finished = candidate.wait();
    assert_eq!(finished.status, 143, "{finished:?}");
    assert!(finished.stderr.contains("the lease on `office` could not be kept"), "{finished:?}");
}

#[test]
fn watcher_sees_every_leader() {
    let place = Place::new();
    let mut watch = place.start(&["leader", "--watch", "--json", "office"]);
    let mut next = || json(&watch.line())["leader"].clone();
    assert!(next().is_null());
    let mut one = elect(&place, "one", &[], WORK);
    let (first, _) = term(&mut one);
    let seen = next();
    assert_eq!((&seen["holder"], &seen["term"]), (&"one".into(), &first.to_string().into()));
    one.signal(Signal::TERM);
    one.wait();
    assert!(next().is_null());
    watch.signal(Signal::INT);
    assert_eq!(watch.wait().status, 130);
}

#[test]
fn a_command_that_cannot_be_started_ends_the_candidate() {
    let place = Place::new();
    let refused = place.expect(127, &["elect", "office", "--", "/no/such/command"]);
    assert!(refused.stderr.contains("was not found"), "{refused:?}");
    eventually("nobody leads", || place.finish(&["leader", "office"]).status == 75);
    place.expect(64, &["elect", "office"]);
    place.expect(64, &["elect", "--payload", &"x".repeat(5_000), "office", "--", "true"]);
}
