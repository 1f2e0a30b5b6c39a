//! `list`, `show`, `stats`, `watch`, `force-release`, `doctor`, `init`: for people and as JSON.

use std::io::BufRead as _;
use std::process::Stdio;

use leasehold::Mode;
use rustix::process::Signal;

use crate::support::{Claims, Place, handle, holder, json};

fn keys(value: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> =
        value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn the_json_of_list_and_show_is_as_the_contract_says() {
    let place = Place::new();
    assert_eq!(place.expect(0, &["list", "--json"]).stdout, "[]\n");
    let holder = place.hold(&["--note", "nightly"], "job:1");
    let _waiter = place.start(&["run", "--note", "later", "job:1", "--", "true"]);
    let _permits = place.hold(&["--permits", "1/3"], "pool");
    place.await_waiting("job:1", 1);
    let list = json(&place.expect(0, &["list", "--json"]).stdout);
    let show = place.show("job:1");
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert_eq!(keys(&show), ["held", "mode", "name", "waiting", "waits"]);
    assert_eq!(keys(&list[0]), ["held", "mode", "name", "waiting"]);
    assert_eq!((&show["name"], &show["mode"]), (&"job:1".into(), &"exclusive".into()));
    let held = &show["held"][0];
    assert_eq!(keys(held), ["acquired_at", "fence", "holder", "note", "remaining_ms"]);
    assert_eq!(held["fence"], holder.fence.to_string());
    assert_eq!(held["note"], "nightly");
    assert!(held["remaining_ms"].as_u64().is_some_and(|ms| ms > 0 && ms <= 30_000), "{held}");
    let at = held["acquired_at"].as_str().expect("text");
    assert!(at.len() == 24 && at.starts_with("20") && at.ends_with('Z'), "{at}");
    let waiting = &show["waiting"][0];
    assert_eq!(keys(waiting), ["ahead", "holder", "note", "waiting_ms"]);
    assert_eq!((&waiting["ahead"], &waiting["note"]), (&1.into(), &"later".into()));
    let pool = &list[1];
    assert_eq!(keys(pool), ["held", "limit", "mode", "name", "waiting"]);
    assert_eq!((&pool["mode"], &pool["limit"]), (&"permits".into(), &3.into()));
}

#[test]
fn a_free_name_is_shown_as_free() {
    let place = Place::new();
    assert_eq!(place.expect(0, &["show", "x"]).stdout, "`x` is free\n");
    let free = place.show("x");
    assert_eq!((&free["held"], &free["waiting"]), (&serde_json::json!([]), &serde_json::json!([])));
}

#[test]
fn show_says_who_waits_for_whom() {
    let place = Place::new();
    let alone = place.hold(&["--holder", "worker-1"], "a");
    let table = place.expect(0, &["show", "a"]).stdout;
    assert!(!table.contains("WAITS"), "nobody waits: {table}");
    let _waiter = place.start(&["run", "--holder", "worker-2", "a", "--", "true"]);
    place.await_waiting("a", 1);
    let table = place.expect(0, &["show", "a"]).stdout;
    let (fence, waits) = (alone.fence, "`worker-2` waits for `a`, held by `worker-1`");
    assert!(table.ends_with(&format!("\nWAITS\n{waits} (fence {fence})\n")), "{table}");
    let edge = &place.show("a")["waits"][0];
    assert_eq!(keys(edge), ["ahead", "cycle", "fence", "for", "holder", "name"]);
    assert_eq!((&edge["name"], &edge["holder"]), (&"a".into(), &"worker-2".into()));
    assert_eq!((&edge["ahead"], &edge["cycle"]), (&1.into(), &false.into()));
    let what_for = &edge["for"][0];
    assert_eq!(keys(what_for), ["fence", "held", "holder"]);
    assert_eq!((&what_for["holder"], &what_for["held"]), (&"worker-1".into(), &true.into()));
    assert_eq!(what_for["fence"], fence.to_string());
}

#[test]
fn show_follows_holders_that_wait_elsewhere_and_calls_a_cycle_one() {
    let place = Place::new();
    let claims = Claims::on(&place);
    let [one, two, three] = ["worker-1", "worker-2", "worker-3"].map(holder);
    let stand = |holder, name| claims.stand(holder, Mode::Exclusive, name);
    assert!(stand(&one, "b") && stand(&two, "a") && !stand(&three, "b"));
    assert!(!stand(&one, "a"));
    let told = || place.expect(0, &["show", "b"]).stdout;
    let chain = told();
    let start = "`worker-3` waits for `b`, held by `worker-1` (fence ";
    let middle = "), who waits for `a`, held by `worker-2` (fence ";
    assert!(chain.contains(start) && chain.contains(middle), "{chain}");
    assert!(!chain.contains("cycle"), "{chain}");
    assert!(!stand(&two, "b"));
    let cycle = told();
    let own = cycle.lines().find(|line| line.starts_with("`worker-2` waits for `b`"));
    let own = own.expect("the last to come");
    assert!(own.contains(", who waits for `a`, held by `worker-2`"), "{own}");
    assert!(own.ends_with(": a cycle"), "{own}");
    let waits = place.show("b")["waits"].as_array().expect("an array").clone();
    let edge = |label: &str| waits.iter().find(|edge| edge["holder"] == label).expect("an edge");
    assert_eq!(edge("worker-3")["cycle"], false);
    assert_eq!(edge("worker-2")["cycle"], true);
    assert_eq!(
        (&edge("worker-1")["name"], &edge("worker-1")["cycle"]),
        (&"a".into(), &true.into())
    );
}

#[test]
fn tables_are_for_reading_and_cannot_be_forged() {
    let place = Place::new();
    let _holder = place.hold(&["--note", "red \u{1b}[31m\nforged"], "evil\u{1b}[2J\nname");
    let _waiter = place.start(&["run", "evil\u{1b}[2J\nname", "--", "true"]);
    place.await_waiting("evil\u{1b}[2J\nname", 1);
    for arguments in [&["list"][..], &["show", "evil\u{1b}[2J\nname"]] {
        let table = place.expect(0, arguments).stdout;
        let lines: Vec<&str> = table.lines().collect();
        // `show` says below it who waits for whom, after an empty line and a heading.
        let below = if arguments[0] == "show" { 3 } else { 0 };
        assert_eq!(lines.len(), 3 + below, "{table}");
        assert!(lines[0].starts_with("NAME"), "{table}");
        assert!(lines[1].contains("held") && lines[1].contains("red \\u{1b}[31m\\nforged"));
        assert!(lines[2].contains("waits 1"), "{table}");
        assert!(!table.contains('\u{1b}'), "{table}");
    }
    let refused = place.expect(75, &["run", "-n", "evil\u{1b}[2J\nname", "--", "true"]);
    assert!(!refused.stderr.contains('\u{1b}'), "{refused:?}");
}

#[test]
fn list_filters_by_prefix_and_follows_its_pages() {
    let place = Place::new();
    let names: Vec<String> = (0..1_203).map(|number| format!("many:{number:05}")).collect();
    let mut arguments = vec!["acquire", "--ttl", "1h", "other"];
    arguments.extend(names.iter().map(String::as_str));
    place.expect(0, &arguments);
    let list = json(&place.expect(0, &["list", "--json", "--prefix", "many:"]).stdout);
    assert_eq!(list.as_array().map(Vec::len), Some(names.len()));
    let table = place.expect(0, &["list"]).stdout;
    assert_eq!(table.lines().count(), names.len() + 2, "a header, and one more");
    assert_eq!(place.expect(0, &["list", "--prefix", "none:"]).stdout, "");
}

#[test]
fn the_json_of_acquire_and_check_is_as_the_contract_says() {
    let place = Place::new();
    let acquired = json(&place.expect(0, &["--holder", "me", "acquire", "--json", "x"]).stdout);
    let acquire_keys = ["fence", "handle", "holder", "name", "remaining_ms", "ttl_ms"];
    assert_eq!(keys(&acquired), acquire_keys);
    assert_eq!((&acquired["name"], &acquired["holder"]), (&"x".into(), &"me".into()));
    assert_eq!(acquired["ttl_ms"], 30_000);
    assert!(acquired["fence"].is_string());
    let refused = json(&place.expect(75, &["acquire", "--json", "x"]).stdout);
    assert_eq!(refused["acquired"], false);
    assert_eq!(refused["held_by"][0]["holder"], "me");
    let handle = acquired["handle"].as_str().expect("text");
    let checked = json(&place.expect(0, &["check", "--json", handle]).stdout);
    assert_eq!(keys(&checked), ["fence", "held", "remaining_ms"]);
    assert_eq!((&checked["held"], &checked["fence"]), (&true.into(), &acquired["fence"]));
    place.expect(0, &["release", handle]);
    let checked = json(&place.expect(77, &["check", "--json", handle]).stdout);
    assert_eq!(checked["held"], false);
    let several = json(&place.expect(0, &["acquire", "--json", "a", "b"]).stdout);
    assert_eq!((&several[0]["name"], &several[1]["name"]), (&"a".into(), &"b".into()));
}

#[test]
fn stats_count_all_processes() {
    let place = Place::new();
    place.expect(0, &["run", "x", "--", "true"]);
    let holder = place.hold(&[], "x");
    place.expect(75, &["run", "-n", "x", "--", "true"]);
    let _waiter = place.start(&["run", "x", "--", "true"]);
    place.await_waiting("x", 1);
    let stats = json(&place.expect(0, &["stats", "--json"]).stdout);
    let all = ["acquired", "active", "contended", "expired", "lost", "released", "waiting"];
    assert_eq!(keys(&stats), all);
    assert_eq!((&stats["active"], &stats["waiting"]), (&1.into(), &1.into()));
    assert_eq!((&stats["acquired"], &stats["released"]), (&1.into(), &1.into()));
    assert_eq!(stats["contended"], 1);
    assert!(place.expect(0, &["stats"]).stdout.contains("active     1"));
    holder.end();
}

#[test]
fn watch_tells_events_as_they_happen() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let mut watch = place.start(&["watch", "--json", "x"]);
    let mut plain = place.start(&["watch"]);
    // Whether they listen yet cannot be asked, so there are events until they do.
    let first = json(&await_line(&place, &mut watch));
    assert_eq!(first["name"], "x");
    assert_eq!(keys(&first), ["at", "event", "fence", "holder", "name"]);
    let line = await_line(&place, &mut plain);
    assert!(line.contains("granted") || line.contains("released"), "{line}");
    let _handle = handle(&place.expect(0, &["--holder", "loser", "acquire", "x"]));
    place.expect(0, &["force-release", "x", "--yes", "--reason", "told\nyou"]);
    let evicted = loop {
        let event = json(&watch.line());
        if event["event"] == "evicted" {
            break event;
        }
    };
    assert_eq!((&evicted["holder"], &evicted["reason"]), (&"loser".into(), &"told\nyou".into()));
    watch.signal(Signal::INT);
    let finished = watch.end();
    assert_eq!((finished.status, finished.stderr.as_str()), (130, ""));
    plain.signal(Signal::TERM);
    assert_eq!(plain.end().status, 143);
}

fn await_line(place: &Place, watch: &mut crate::support::Running) -> String {
    std::thread::scope(|scope| {
        let (done, listening) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while listening.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                place.expect(0, &["run", "x", "--", "true"]);
            }
        });
        let line = watch.line();
        drop(done);
        line
    })
}

#[test]
fn watch_ends_when_its_reader_leaves_even_without_another_event() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let mut command = place.leasehold(&["watch"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(watch.stdout.take());
    assert_eq!(crate::support::await_end(&mut watch), 0);
    let errors: Vec<_> =
        std::io::BufReader::new(watch.stderr.take().expect("piped")).lines().collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn force_release_says_who_lost_it_and_that_nobody_did() {
    let place = Place::new();
    let handle = handle(&place.expect(0, &["--holder", "loser", "acquire", "x"]));
    let taken = place.expect(0, &["force-release", "x", "--yes", "--reason", "gone"]);
    assert_eq!(taken.stdout, "`x` was taken from `loser`\n");
    place.expect(77, &["check", &handle]);
    let nobody = place.expect(0, &["force-release", "x", "--yes", "--reason", "gone"]);
    assert_eq!(nobody.stdout, "");
    assert!(nobody.stderr.contains("nobody held `x`"), "{nobody:?}");
    let nobody = place.expect(0, &["force-release", "--json", "x", "--yes", "--reason", "gone"]);
    assert_eq!(json(&nobody.stdout)["taken_from"], serde_json::json!([]));
}

#[test]
fn doctor_tells_promises_and_findings() {
    let place = Place::new();
    let report = place.expect(0, &["doctor"]).stdout;
    assert!(report.contains("engine sqlite") && report.contains("fifo"), "{report}");
    let report = json(&place.expect(0, &["doctor", "--json"]).stdout);
    assert_eq!(keys(&report), ["engine", "findings", "promises", "store"]);
    assert_eq!(report["promises"][0]["given"], true);
    let finding = &report["findings"][0];
    assert_eq!(keys(finding), ["advice", "found", "level", "subject"]);
}

#[test]
fn doctor_is_78_when_a_promise_is_broken() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.expect(0, &["init"]);
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(place.path("locks.db"), open).expect("it is ours");
    let report = place.expect(78, &["doctor"]).stdout;
    assert!(report.contains("bad") && report.contains("chmod 600"), "{report}");
}

#[test]
fn init_is_harmless_and_prints_what_it_would_do() {
    let place = Place::new();
    let printed = place.expect(0, &["init", "--print"]).stdout;
    assert!(printed.to_uppercase().contains("CREATE TABLE"), "{printed}");
    let _holder = place.hold(&[], "x");
    let finished = place.expect(0, &["init"]);
    assert!(finished.stdout.is_empty() && finished.stderr.contains("is ready"), "{finished:?}");
    place.expect(75, &["run", "-n", "x", "--", "true"]);
}
