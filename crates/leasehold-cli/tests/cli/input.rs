//! Bad input of every kind, help, and odd but good names.

use std::os::unix::ffi::OsStrExt as _;

use crate::support::{Place, bare, finish};

#[test]
fn f130_f131_f132_bad_input_is_64_and_says_why() {
    let place = Place::new();
    let long_name = "n".repeat(513);
    let long_note = "x".repeat(4097);
    let long_label = "l".repeat(301);
    let run = |options: &[&str]| -> Vec<String> {
        let line = [&["run"], options, &["x", "--", "true"]].concat();
        line.into_iter().map(str::to_owned).collect()
    };
    let table: Vec<(Vec<String>, &str)> = vec![
        (["run", "", "--", "true"].map(String::from).to_vec(), "this one is empty"),
        (["run", &long_name, "--", "true"].map(String::from).to_vec(), "this one has 513"),
        (run(&["--ttl", "0"]), "no unit"),
        (run(&["--ttl", "0s"]), "between 100ms and 24h"),
        (run(&["--ttl", "99ms"]), "between 100ms and 24h"),
        (run(&["--ttl", "1ns"]), "ms, s, m, h and d"),
        (run(&["--ttl", "25h"]), "between 100ms and 24h"),
        (run(&["--ttl", "-5s"]), "negative"),
        (run(&["--ttl=-5s"]), "negative"),
        (run(&["--ttl", "abc"]), "not a duration"),
        (run(&["--ttl", "1.5s"]), "fractions"),
        (run(&["--ttl", "9223372036854775808ms"]), "ten years"),
        (run(&["--wait", "soon"]), "not a duration"),
        (run(&["--grace", "x"]), "not a duration"),
        (run(&["--hold-at-most", "0s"]), "between 100ms and 24h"),
        (run(&["--hold-at-least", "2m", "--hold-at-most", "1m"]), "longer than"),
        (run(&["--ttl", "23h", "--lock-delay", "2h"]), "together at most 24 h"),
        (run(&["--permits", "0/3"]), "cannot take 0 of 3"),
        (run(&["--permits", "4/3"]), "cannot take 4 of 3"),
        (run(&["--permits", "x/y"]), "two numbers"),
        (run(&["--permits", "1/3", "--shared"]), "cannot be used with"),
        (run(&["--no-wait", "--wait", "1s"]), "cannot be used with"),
        (run(&["--note", &long_note]), "this one has 4097"),
        (run(&["--conflict-exit-code", "256"]), "256"),
        (run(&["--holder", &long_label]), "label"),
        (run(&["--holder", "a\nb"]), "label"),
        (run(&["--holder", ""]), "label"),
        (run(&["--unknown"]), "leasehold: error: unexpected argument '--unknown'"),
        (run(&["--timeout", "5s"]), "--wait"),
        (["ru"].map(String::from).to_vec(), "leasehold: error:"),
        (["release", "foo"].map(String::from).to_vec(), "does not begin with `lh1_`"),
        (run(&["-q", "-v"]), "cannot be used with"),
        (["run", "x"].map(String::from).to_vec(), "after `--`"),
        (["run", "x", "true"].map(String::from).to_vec(), "after `--`"),
        (["run", "--", "true"].map(String::from).to_vec(), "NAME"),
        (["frobnicate"].map(String::from).to_vec(), "frobnicate"),
        (["show", ""].map(String::from).to_vec(), "empty"),
        (["watch", ""].map(String::from).to_vec(), "empty"),
        (["acquire"].map(String::from).to_vec(), "NAME"),
        (["check"].map(String::from).to_vec(), "HANDLE"),
        (["force-release", "x"].map(String::from).to_vec(), "--reason"),
        (["force-release", "x", "--reason", "r"].map(String::from).to_vec(), "--yes"),
        (["force-release", "x", "--yes", "--reason", " "].map(String::from).to_vec(), "empty"),
        (["steal", "x"].map(String::from).to_vec(), "--reason"),
        (["steal", "x", "--reason", "r"].map(String::from).to_vec(), "--yes"),
        (["steal", "x", "--yes", "--reason", " "].map(String::from).to_vec(), "empty"),
        (["completions", "csh"].map(String::from).to_vec(), "csh"),
    ];
    for (arguments, reason) in table {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let finished = place.expect(64, &arguments);
        assert!(finished.stderr.contains(reason), "{arguments:?}: {finished:?}");
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
    assert!(!place.path("locks.db").exists() || place.show("x")["held"] == serde_json::json!([]));
}

#[test]
fn f132_a_name_or_note_that_is_not_utf_8_is_refused() {
    let place = Place::new();
    let bad = std::ffi::OsStr::from_bytes(b"\xff");
    let finished = finish(place.leasehold(&["run"]).arg(bad).args(["--", "true"]));
    assert_eq!(finished.status, 64, "{finished:?}");
    let note = place.leasehold(&["run", "x", "--note"]).arg(bad).args(["--", "true"]).status();
    assert_eq!(note.expect("it runs").code(), Some(64));
}

#[test]
fn f130_odd_names_are_good_and_kept_apart() {
    let place = Place::new();
    let long = "n".repeat(512);
    let odd = [
        "/", "..", "{a}", "%00", "a\nb", "😀", "e\u{301}", "é", " a", "a ", "A", "a", "$(id)",
        &long,
    ];
    let holders: Vec<_> = odd.iter().map(|name| place.hold(&[], name)).collect();
    let listed = crate::support::json(&place.expect(0, &["list", "--json"]).stdout);
    let mut names: Vec<&str> =
        listed.as_array().expect("lines").iter().filter_map(|line| line["name"].as_str()).collect();
    names.sort_unstable();
    let mut expected = odd.to_vec();
    expected.sort_unstable();
    assert_eq!(names, expected);
    drop(holders);
}

#[test]
fn a_note_of_the_longest_length_is_kept_whole() {
    let place = Place::new();
    let note = "ü".repeat(2048);
    let _holder = place.hold(&["--note", &note], "x");
    assert_eq!(place.show("x")["held"][0]["note"], note.as_str());
}

#[test]
fn help_names_every_store_there_is() {
    let place = Place::new();
    let told = place.expect(78, &["--url", "nothing", "list"]).stderr;
    let (_, examples) = told.split_once("examples: ").expect("schemes in the message");
    let schemes: Vec<&str> = examples.split('`').skip(1).step_by(2).collect();
    assert!(schemes.len() >= 10, "{told}");
    let help = place.expect(0, &["--help"]).stdout;
    for scheme in schemes {
        assert!(help.contains(&format!("  {scheme} ")), "{scheme}: {help}");
    }
}

#[test]
fn help_and_version_are_answers() {
    let place = Place::new();
    for arguments in
        [&["--help"][..], &["-h"], &["--version"], &["help", "run"], &["run", "--help"]]
    {
        let finished = place.expect(0, arguments);
        assert!(!finished.stdout.is_empty() && finished.stderr.is_empty(), "{finished:?}");
    }
    let all = place.expect(0, &["--help"]).stdout;
    let (_, commands) = all.split_once("Commands:\n").expect("a list of commands");
    // A line that continues a description is indented further.
    let named = |line: &str| Some(line.strip_prefix("  ")?.split(' ').next()?.to_owned());
    let commands: Vec<String> =
        commands.lines().take_while(|line| !line.is_empty()).filter_map(named).collect();
    let commands: Vec<String> = commands.into_iter().filter(|word| !word.is_empty()).collect();
    assert!(commands.len() >= 19, "{all}");
    for command in commands.iter().filter(|command| *command != "help") {
        let help = place.expect(0, &[command, "--help"]).stdout;
        assert!(help.contains("Examples:"), "{command}: {help}");
    }
    let bare = place.finish(&[]);
    assert_eq!((bare.status, bare.stdout.as_str()), (64, ""));
    assert!(!place.path("locks.db").exists(), "help touches no store");
}

#[test]
fn completions_need_no_store_and_forgive_a_reader_that_leaves() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.expect(0, &["completions", shell]).stdout;
        assert!(script.contains("LEASEHOLD_COMPLETE"), "{shell}");
    }
    assert!(!place.path("locks.db").exists());
    let mut shell = bare(std::path::Path::new("bash"));
    let pipe =
        format!("{} completions zsh | head -1; echo ${{PIPESTATUS[0]}}", crate::support::BINARY);
    let finished = finish(shell.args(["-c", &pipe]));
    assert!(finished.stdout.ends_with("\n0\n"), "{finished:?}");
    assert_eq!(finished.stderr, "");
}

/// The words that a shell offers for the last word.
fn completed(place: &Place, words: &[&str]) -> Vec<String> {
    let mut command = place.leasehold(&["--"]);
    command.args(words).env("LEASEHOLD_COMPLETE", "fish");
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "{finished:?}");
    let word = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    finished.stdout.lines().map(word).collect()
}

#[test]
fn shell_completes_commands_options_and_names_of_locks() {
    let place = Place::new();
    let _holder = place.hold(&[], "cron:report");
    assert_eq!(completed(&place, &["leasehold", "forc"]), ["force-release"]);
    assert_eq!(completed(&place, &["leasehold", "run", "--hold-at-l"]), ["--hold-at-least"]);
    assert_eq!(completed(&place, &["leasehold", "show", "cr"]), ["cron:report"]);
    assert_eq!(completed(&place, &["leasehold", "run", "a", "cr"]), ["cron:report"]);
}

#[test]
fn completing_a_name_makes_no_store() {
    let place = Place::new();
    let names = completed(&place, &["leasehold", "show", "cr"]);
    assert!(names.is_empty() && !place.path("locks.db").exists(), "{names:?}");
}

#[test]
fn shell_gets_no_names_from_a_store_that_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = Place::new();
    let mut command = place.leasehold(&["--", "leasehold", "show", "cr"]);
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    let finished = finish(command.env("LEASEHOLD_COMPLETE", "fish").env("LEASEHOLD_URL", url));
    let names = finished.stdout.lines().filter(|line| !line.starts_with('-')).count();
    assert_eq!((finished.status, names), (0, 0), "{finished:?}");
}

#[test]
fn manual_has_a_page_with_examples_for_each_command() {
    let place = Place::new();
    let folder = place.path("man");
    place.expect(0, &["man", folder.to_str().expect("text")]);
    for page in ["leasehold.1", "leasehold-run.1", "leasehold-force-release.1"] {
        let text = std::fs::read_to_string(folder.join(page)).expect(page);
        assert!(text.contains("Examples:") && text.contains("leasehold"), "{page}: {text}");
    }
    assert!(std::fs::read_dir(&folder).expect("it is there").count() > 20);
}
