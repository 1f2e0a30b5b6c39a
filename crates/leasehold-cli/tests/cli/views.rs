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
    assert_eq!(keys(&show), ["held", "mode", "name", "past", "waiting", "waits"]);
    assert_eq!(keys(&list[0]), ["held", "mode", "name", "past", "waiting"]);
    assert_eq!((&show["name"], &show["mode"]), (&"job:1".into(), &"exclusive".into()));
    let held = &show["held"][0];
    let held_keys =
        ["acquired_at", "fence", "holder", "host", "note", "pid", "program", "remaining_ms"];
    assert_eq!(keys(held), held_keys);
    assert_eq!(held["fence"], holder.fence.to_string());
    assert_eq!(held["note"], "nightly");
    assert!(held["remaining_ms"].as_u64().is_some_and(|ms| ms > 0 && ms <= 30_000), "{held}");
    let at = held["acquired_at"].as_str().expect("text");
    assert!(at.len() == 24 && at.starts_with("20") && at.ends_with('Z'), "{at}");
    let waiting = &show["waiting"][0];
    let waiting_keys = ["ahead", "holder", "host", "note", "pid", "program", "waiting_ms"];
    assert_eq!(keys(waiting), waiting_keys);
    assert_eq!((&waiting["ahead"], &waiting["note"]), (&1.into(), &"later".into()));
    let pool = &list[1];
    assert_eq!(keys(pool), ["held", "limit", "mode", "name", "past", "waiting"]);
    assert_eq!(pool["held"][0]["permits"], 1);
    assert_eq!((&pool["mode"], &pool["limit"]), (&"permits".into(), &3.into()));
}

#[test]
fn note_that_is_an_object_or_a_list_is_json() {
    let place = Place::new();
    let _order = place.hold(&["--note", r#"{"order":42}"#], "a");
    let _lot = place.hold(&["--note", "[1, 2]"], "b");
    let _plain = place.hold(&["--note", "42"], "c");
    let _broken = place.hold(&["--note", "{order"], "d");
    let list = json(&place.expect(0, &["list", "--json"]).stdout);
    assert_eq!(list[0]["held"][0]["note_json"], serde_json::json!({"order": 42}));
    assert_eq!(list[1]["held"][0]["note_json"], serde_json::json!([1, 2]));
    assert_eq!(list[1]["held"][0]["note"], "[1, 2]");
    for plain in [&list[2], &list[3]] {
        assert!(!keys(&plain["held"][0]).contains(&"note_json"), "{plain}");
    }
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
        // Below it `show` lists the waits of each client, after an empty line and a heading.
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
    let all = [
        "acquired",
        "active",
        "contended",
        "expired",
        "lost",
        "periods",
        "released",
        "units",
        "waiting",
    ];
    assert_eq!(keys(&stats), all);
    assert_eq!((&stats["active"], &stats["waiting"]), (&1.into(), &1.into()));
    assert_eq!((&stats["acquired"], &stats["released"]), (&1.into(), &1.into()));
    assert_eq!(stats["contended"], 1);
    assert!(place.expect(0, &["stats"]).stdout.contains("active     1"));
    holder.end();
}

#[test]
fn finished_periods_and_spent_units_are_no_held_locks() {
    let place = Place::new();
    place.expect(0, &["--holder", "cron", "once", "report", "--every", "1h", "--", "true"]);
    place.expect(0, &["rate", "mails", "--limit", "2", "--per", "1h"]);
    let _lock = place.hold(&[], "deploy");
    let stats = json(&place.expect(0, &["stats", "--json"]).stdout);
    let counts = ["active", "periods", "units"].map(|count| stats[count].clone());
    assert_eq!(counts, [1, 1, 1].map(serde_json::Value::from));
    let [report, mails] = ["report", "mails"].map(|name| place.show(name));
    for shown in [&report, &mails] {
        assert_eq!(
            (&shown["held"], shown["past"].as_array().map(Vec::len)),
            (&json("[]"), Some(1))
        );
    }
    assert_eq!(report["past"][0]["run"], "done");
    assert_eq!(mails["past"][0]["note"], "");
    let table = place.expect(0, &["list"]).stdout;
    let row = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name)).expect("a row");
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("deploy")[1..3], ["exclusive", "held"]);
    assert_eq!(row("report")[1..3], ["once", "done"]);
    assert_eq!(row("mails")[1..5], ["rate", "of", "2", "spent"]);
}

#[test]
fn top_separates_finished_periods_and_spent_units_from_held_locks() {
    let place = Place::new();
    place.expect(0, &["--holder", "cron", "once", "report", "--every", "1h", "--", "true"]);
    place.expect(0, &["--holder", "mailer", "rate", "mails", "--limit", "2", "--per", "1h"]);
    let _lock = place.hold(&["--ttl", "5m"], "deploy");
    let top = json(&place.expect(0, &["top", "--once", "--json"]).stdout);
    assert_eq!(top["active"], 1);
    let drawn = |name: &str| place.expect(0, &["top", "--once", "--prefix", name]).stdout;
    let row = |name: &str| {
        let drawn = drawn(name);
        let row = drawn.lines().find(|line| line.trim_start().starts_with(name));
        row.expect("a row").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("deploy").starts_with("deploy exclusive "), "{}", row("deploy"));
    assert!(row("report").starts_with("report once, done 59m"), "{}", row("report"));
    assert!(row("mails").starts_with("mails rate 1 of 2 59m"), "{}", row("mails"));
    assert!(drawn("report").contains("ran by cron  "), "{}", drawn("report"));
    assert!(drawn("mails").contains("spent by mailer  "), "{}", drawn("mails"));
}

#[test]
fn refusal_of_run_and_once_names_the_rate_that_uses_the_name() {
    let place = Place::new();
    place.expect(0, &["rate", "mails", "--limit", "2", "--per", "1h"]);
    let others = [
        (&["run", "-n", "mails"][..], "a lock"),
        (&["run", "mails", "other"], "a lock"),
        (&["run", "-n", "--permits", "1/3", "mails"], "a semaphore of 3"),
        (&["once", "mails", "--every", "1h"], "a job of `once`"),
    ];
    for (command, asked) in others {
        let refused = place.expect(78, &[command, &["--", "true"]].concat()).stderr;
        let told = format!("in use as a rate of 2, not as {asked}");
        assert!(refused.contains(&told), "{command:?}: {refused}");
    }
    let refused = place.expect(78, &["rate", "mails", "--limit", "3", "--per", "1h"]).stderr;
    assert!(refused.contains("in use as a rate of 2, not as a rate of 3"), "{refused}");
    let _lock = place.hold(&[], "deploy");
    let refused = place.expect(78, &["rate", "deploy", "--limit", "2", "--per", "1h"]).stderr;
    assert!(refused.contains("in use as a lock, not as a rate of 2"), "{refused}");
}

#[test]
fn refusal_names_the_once_or_rate_that_uses_the_name() {
    let place = Place::new();
    place.expect(0, &["--holder", "cron", "once", "report", "--every", "1h", "--", "true"]);
    let refused = place.expect(75, &["run", "-n", "report", "--", "true"]).stderr;
    let told = "`report` is in use by `once`: `cron` ran it ";
    assert!(refused.contains(told) && refused.contains("(done), the period ends in"), "{refused}");
    place.expect(0, &["rate", "mails", "--limit", "1", "--per", "1h"]);
    let refused = place.expect(75, &["run", "-n", "--permits", "1/1", "mails", "--", "true"]);
    let told = "`mails` is in use by `rate`: 1 units are spent, the next comes back in ";
    assert!(refused.stderr.contains(told), "{refused:?}");
    for (name, purpose) in [("mails", "rate"), ("report", "once")] {
        let permits = if purpose == "rate" { &["--permits", "1/1"][..] } else { &[] };
        let run = [&["run", "--json", "-n"], permits, &[name, "--", "true"]].concat();
        let refused = json(&place.expect(75, &run).stderr);
        assert_eq!(refused["held_by"][0]["use"], purpose, "{refused}");
        assert_eq!(place.show(name)["past"][0]["use"], purpose);
    }
    let _waiter = place.start(&["run", "report", "--", "true"]);
    place.await_waiting("report", 1);
    let shown = place.expect(0, &["show", "report"]).stdout;
    let waits = shown.lines().last().unwrap_or_default();
    assert!(waits.ends_with(" (a finished period of `once`)"), "{shown}");
    let order = ["force-release", "report", "--fence", "1000000", "--yes", "--reason", "x"];
    let refused = place.expect(75, &order).stderr;
    assert!(refused.contains("(a finished period of `once`)"), "{refused}");
}

#[test]
fn host_process_and_program_are_shown_whatever_the_label() {
    let place = Place::new();
    let secret = "--password=hush";
    let arguments = ["--holder", "worker-3", "run", "--note", "nightly", "x", "--"];
    let script = ["/bin/sh", "-c", "echo held; read line", secret];
    let mut holder = place.start(&[&arguments[..], &script].concat());
    assert_eq!(holder.line(), "held");
    let held = place.show("x")["held"][0].clone();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!((&held["host"], &held["program"]), (&host.as_str().into(), &"sh".into()));
    assert_eq!((&held["holder"], &held["note"]), (&"worker-3".into(), &"nightly".into()));
    assert!(held["pid"].as_u64().is_some_and(|pid| pid > 0), "{held}");
    let elect = ["--holder", "web", "elect", "lead", "--payload", "10.0.0.7", "--"];
    let mut leader = place.start(&[&elect[..], &script].concat());
    assert_eq!(leader.line(), "held");
    let led = place.show("lead")["held"][0].clone();
    assert_eq!((&led["host"], &led["program"]), (&host.as_str().into(), &"sh".into()));
    assert_eq!((&led["note"], led["pid"].is_u64()), (&"10.0.0.7".into(), true));
    let told = json(&place.expect(0, &["leader", "--json", "lead"]).stdout);
    assert_eq!(told["leader"]["payload"], "10.0.0.7");
    place.expect(0, &["--holder", "script", "acquire", "--note", "by hand", "kept"]);
    let kept = place.show("kept")["held"][0].clone();
    assert_eq!((&kept["host"], &kept["note"]), (&host.as_str().into(), &"by hand".into()));
    assert_eq!(kept.get("pid"), None, "its process has ended");
    for list in [&["list"][..], &["list", "--json"], &["show", "x"]] {
        let text = place.expect(0, list).stdout;
        assert!(text.contains("worker-3") && text.contains(&host), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
    let order = ["force-release", "x", "--fence", "1000000", "--yes", "--reason", "x"];
    let refused = place.expect(75, &order).stderr;
    assert!(refused.contains(&format!("`worker-3` on {host} (fence")), "{refused}");
}

#[test]
fn permits_of_each_holder_and_absolute_times_are_shown() {
    let place = Place::new();
    let _two = place.hold(&["--permits", "2/4"], "pool");
    let _one = place.hold(&["--permits", "1/4"], "pool");
    let table = place.expect(0, &["show", "pool"]).stdout;
    assert!(table.contains("permits 2 of 4") && table.contains("permits 1 of 4"), "{table}");
    let shown = place.show("pool");
    assert_eq!(
        (&shown["held"][0]["permits"], &shown["held"][1]["permits"]),
        (&2.into(), &1.into())
    );
    let at = shown["held"][0]["acquired_at"].as_str().expect("text").to_owned();
    // To the minute: the command computes it from the age, which is rounded.
    assert!(table.contains(&at[..16]), "{table}");
}

#[test]
fn list_shows_only_what_holds_or_waits_for_long() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let _waiter = place.start(&["run", "x", "--", "true"]);
    place.await_waiting("x", 1);
    let list = |options: &[&str]| {
        let listed = place.expect(0, &[&["list", "--json"], options].concat()).stdout;
        let lines = json(&listed).as_array().cloned().expect("an array");
        lines.first().map(|line| ["held", "waiting"].map(|of| line[of].as_array().map(Vec::len)))
    };
    assert_eq!(list(&["--held-for", "1ms"]), Some([Some(1), Some(0)]));
    assert_eq!(list(&["--waiting-for", "1ms"]), Some([Some(0), Some(1)]));
    assert_eq!(list(&["--held-for", "1ms", "--waiting-for", "1ms"]), Some([Some(1), Some(1)]));
    assert_eq!(list(&["--held-for", "1h", "--waiting-for", "1h"]), None);
    let none = place.expect(0, &["list", "--held-for", "1h"]);
    assert!(none.stderr.contains("nobody holds or waits for that long"), "{none:?}");
}

#[test]
fn watch_tells_events_as_they_happen() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let mut watch = place.start(&["watch", "--json", "x"]);
    let mut plain = place.start(&["watch"]);
    // The test cannot ask whether the watcher listens yet, so it makes events until it does.
    let first = json(&await_line(&place, &mut watch));
    assert_eq!(first["name"], "x");
    assert_eq!(keys(&first), ["at", "event", "fence", "holder", "name"]);
    let line = await_line(&place, &mut plain);
    assert!(line.contains("granted") || line.contains("released"), "{line}");
    let _handle = handle(&place.expect(0, &["--holder", "loser", "acquire", "x"]));
    let order = ["--holder", "boss", "force-release", "x", "--yes", "--reason", "told\nyou"];
    place.expect(0, &order);
    let evicted = loop {
        let event = json(&watch.line());
        if event["event"] == "evicted" {
            break event;
        }
    };
    assert_eq!((&evicted["holder"], &evicted["reason"]), (&"loser".into(), &"told\nyou".into()));
    assert_eq!(evicted["by"], "boss");
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
fn force_release_with_a_fence_frees_one_permit_and_leaves_the_others() {
    let place = Place::new();
    let permits = ["--permits", "1/3"];
    let _others = [(); 2].map(|()| place.hold(&permits, "pool"));
    let hung = place.hold(&[&permits[..], &["--holder", "hung"]].concat(), "pool");
    let fence = hung.fence.to_string();
    let order = ["force-release", "pool", "--fence", &fence, "--yes", "--reason", "it hangs"];
    assert_eq!(place.expect(0, &order).stdout, "`pool` was taken from `hung`\n");
    let held = place.show("pool")["held"].as_array().cloned().expect("an array");
    assert_eq!(held.len(), 2);
    assert!(held.iter().all(|claim| claim["fence"] != fence.as_str()), "{held:?}");
}

#[test]
fn force_release_with_an_old_fence_is_refused() {
    let place = Place::new();
    let first = place.hold(&[], "x");
    let old = first.fence.to_string();
    assert_eq!(first.end().status, 0);
    let next = place.hold(&["--holder", "next"], "x");
    let order = ["force-release", "x", "--fence", &old, "--yes", "--reason", "it hung"];
    let refused = place.expect(75, &order);
    let fence = format!("(fence {})", next.fence);
    let told = "nothing was taken: `x` is held by `next` on ";
    assert!(refused.stderr.contains(told) && refused.stderr.contains(&fence), "{refused:?}");
    assert_eq!(place.show("x")["held"][0]["fence"], next.fence.to_string());
}

#[test]
fn force_release_from_a_label_leaves_the_holders_with_another_one() {
    let place = Place::new();
    let _readers = ["one", "two"].map(|label| place.hold(&["--shared", "--holder", label], "x"));
    let order = |from: &str| {
        place.finish(&["force-release", "x", "--from", from, "--yes", "--reason", "r"])
    };
    assert_eq!(order("three").status, 75);
    assert_eq!(order("two").stdout, "`x` was taken from `two`\n");
    let shown = place.show("x");
    assert_eq!(shown["held"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["held"][0]["holder"], "one");
}

#[test]
fn force_release_of_one_claim_takes_nothing_else_where_a_record_cannot_be_read() {
    let place = Place::new();
    let label = |number: usize| ["spoilt", "hung", "well"][number];
    let holders = [0, 1, 2].map(|number| {
        place.hold(&["--permits", "1/3", "--ttl", "1h", "--holder", label(number)], "pool")
    });
    let db = rusqlite::Connection::open(place.path("locks.db")).expect("a database");
    db.execute("UPDATE claims SET note = x'ff' WHERE label = 'spoilt'", []).expect("damaged");
    let order = |one: &[&str]| {
        let order = ["force-release", "pool", "--yes", "--reason", "it hangs"];
        place.finish(&[&order[..], one].concat())
    };
    let held = || {
        let held = json(&place.expect(0, &["list", "--json"]).stdout)[0]["held"].clone();
        let held = held.as_array().cloned().expect("an array");
        held.iter().map(|claim| claim["holder"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(held(), [r#""hung""#, r#""well""#]);
    assert_eq!(order(&["--fence", "1000000"]).status, 75);
    let taken = order(&["--fence", &holders[1].fence.to_string()]);
    assert_eq!(taken.stdout, "`pool` was taken from `hung`\n", "{taken:?}");
    assert_eq!(held(), [r#""well""#]);
    assert_eq!(order(&["--from", "well"]).stdout, "`pool` was taken from `well`\n");
    let refused = order(&["--from", "spoilt"]);
    assert!(refused.status == 75 && refused.stderr.contains("cannot be read"), "{refused:?}");
    assert!(place.expect(0, &["list"]).stderr.contains("`pool` cannot be read"));
    assert_eq!(order(&[]).stdout, "`pool` was taken from `unreadable record`\n");
    assert!(!place.expect(0, &["list"]).stderr.contains("cannot be read"));
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

#[test]
fn record_that_cannot_be_read_is_named_and_hides_no_other() {
    let place = Place::new();
    for name in ["good", "bad"] {
        place.expect(0, &["acquire", "--ttl", "1h", name]);
    }
    let db = rusqlite::Connection::open(place.path("locks.db")).expect("a database");
    db.execute("UPDATE claims SET expires = 'abc' WHERE name = 'bad'", []).expect("damaged");
    let list = place.expect(0, &["list"]);
    assert!(list.stdout.contains("good") && list.stderr.contains("`bad` cannot be read"));
    let lines = json(&place.expect(0, &["list", "--json"]).stdout);
    assert!(lines.as_array().expect("an array").iter().any(|line| line.get("broken").is_some()));
    let top = place.expect(0, &["top", "--once"]).stdout;
    assert!(top.contains("good") && top.contains("cannot read bad"), "{top}");
    let stats = place.expect(0, &["stats"]);
    assert!(stats.stdout.contains("active     1"), "{stats:?}");
    assert!(stats.stderr.contains("`bad` cannot be read"), "{stats:?}");
    place.expect(69, &["run", "-n", "bad", "--", "true"]);
    let found = place.expect(78, &["doctor"]);
    assert!(found.stdout.contains("`bad`"), "{found:?}");
    let released = place.expect(0, &["force-release", "bad", "--reason", "broken", "--yes"]);
    assert!(released.stdout.contains("unreadable record"), "{released:?}");
    place.expect(0, &["run", "-n", "bad", "--", "true"]);
    place.expect(0, &["doctor"]);
}
