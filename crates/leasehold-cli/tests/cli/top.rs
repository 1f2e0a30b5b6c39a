//! `top` on real terminals and without one. In tmux a test can read the screen back. On a terminal
//! of its own a test can read everything that `top` sent.

use std::path::Path;
use std::process::{Command, Stdio};

use leasehold::Mode;
use leasehold_testkit::{Etcd, Postgres, Redis};
use rustix::process::Signal;

use crate::support::{BINARY, Claims, Place, Running, bare, eventually, finish, holder, json};
use crate::terminal::Typist;

const ENTER_SCREEN: &str = "\u{1b}[?1049h";
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";

/// A word of the screen without holders and waiters. One word, because `top` often does not send
/// blanks between words: they are there already.
const NOBODY: &str = "anything";

/// A tmux server of the test's own, with one window.
struct Tmux<'a> {
    place: &'a Place,
}

impl<'a> Tmux<'a> {
    /// Runs a script of the shell in a window of this size.
    fn start(place: &'a Place, url: &str, size: (u16, u16), script: &str) -> Self {
        let tmux = Self { place };
        let (columns, rows) = (size.0.to_string(), size.1.to_string());
        let url = format!("LEASEHOLD_URL={url}");
        // The window stays when the script has ended, so that the test can read it.
        let script = format!("{script}; sleep 1000");
        let window = ["new-session", "-d", "-x", &columns, "-y", &rows, "-e", &url, "sh", "-c"];
        tmux.tell(&[&window[..], &[&script]].concat());
        tmux.tell(&["set-option", "-g", "status", "off"]);
        tmux.tell(&["resize-window", "-x", &columns, "-y", &rows]);
        tmux
    }

    fn tell(&self, words: &[&str]) -> String {
        let mut command = bare(Path::new("tmux"));
        command.arg("-S").arg(self.place.path("tmux")).args(["-f", "/dev/null", "-u"]);
        let finished = finish(command.env_remove("TMUX").env("TERM", "xterm").args(words));
        assert_eq!(finished.status, 0, "{words:?}: {finished:?}");
        finished.stdout
    }

    fn screen(&self) -> String {
        self.tell(&["capture-pane", "-p"])
    }

    /// Waits until the screen satisfies a condition.
    #[track_caller]
    fn await_screen(&self, what: &str, mut holds: impl FnMut(&str) -> bool) -> String {
        let mut screen = String::new();
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(what, || {
                screen = self.screen();
                holds(&screen)
            });
        }));
        assert!(seen.is_ok(), "not seen: {what}; the screen is\n{screen}");
        screen
    }

    #[track_caller]
    fn expect(&self, text: &str) -> String {
        self.await_screen(text, |screen| screen.contains(text))
    }

    fn press(&self, keys: &[&str]) {
        self.tell(&[&["send-keys"], keys].concat());
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let mut command = bare(Path::new("tmux"));
        command.arg("-S").arg(self.place.path("tmux")).arg("kill-server");
        let _ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Prints the screen before, runs the view, and prints how it ended and whether the terminal is as
/// before.
fn around(arguments: &str) -> String {
    format!(
        "echo before the view; before=$(stty -g); {BINARY} top {arguments}; echo status $?; \
         [ \"$before\" = \"$(stty -g)\" ] && echo as before"
    )
}

#[test]
fn top_shows_who_holds_and_who_waits_follows_keys_and_gives_the_terminal_back() {
    let place = Place::new();
    let held = place.hold(&["--holder", "worker-1", "--note", "release 42"], "deploy");
    let _other = place.hold(&["--holder", "worker-9"], "other");
    let _waiter = place.start(&["run", "--holder", "worker-2", "deploy", "--", "true"]);
    place.await_waiting("deploy", 1);
    let tmux = Tmux::start(&place, &place.url(), (100, 30), &around("--interval 100ms"));
    let screen = tmux.expect("waits 1  worker-2");
    assert!(!screen.contains("before the view"), "{screen}");
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0].starts_with("leasehold top  sqlite:"), "{screen}");
    assert!(lines[1].starts_with("active 2  waiting 1  names 2"), "{screen}");
    assert!(lines[3].starts_with("> deploy  exclusive  worker-1"), "{screen}");
    assert!(lines[4].starts_with("  other   exclusive  worker-9"), "{screen}");
    assert!(screen.contains("held by worker-1  fence ") && screen.contains("\"release 42\""));
    tmux.press(&["Down"]);
    tmux.expect("who waits for whom: other");
    tmux.press(&["Enter"]);
    tmux.await_screen("no picture", |screen| !screen.contains("who waits for whom"));
    tmux.press(&["/", "d", "e", "p"]);
    tmux.await_screen("filtered", |screen| {
        screen.contains("/dep_  1 of 2") && !screen.contains("other ")
    });
    tmux.press(&["Escape"]);
    tmux.expect("> other ");
    tmux.press(&["s"]);
    tmux.expect("by held for  ");
    tmux.press(&["?"]);
    tmux.expect("pause; nothing is read meanwhile");
    tmux.press(&["Escape"]);
    tmux.await_screen("no help", |screen| !screen.contains("nothing is read meanwhile"));
    tmux.tell(&["resize-window", "-x", "24", "-y", "5"]);
    tmux.expect("NAME    WAITING");
    tmux.tell(&["resize-window", "-x", "100", "-y", "30"]);
    tmux.expect("HELD BY");
    // The view is live: the waiter gets the lock, and is gone.
    held.end();
    tmux.await_screen("the lock is free", |screen| {
        screen.contains("  names 1") && !screen.contains("deploy")
    });
    tmux.press(&["q"]);
    let screen = tmux.expect("as before");
    assert!(screen.starts_with("before the view\nstatus 0\nas before"), "{screen}");
}

#[test]
fn a_pause_freezes_the_picture_and_reading_now_thaws_it_once() {
    let place = Place::new();
    let claims = Claims::on(&place);
    assert!(claims.stand(&holder("worker-1"), Mode::Exclusive, "first"));
    let tmux = Tmux::start(&place, &place.url(), (100, 20), &around("--interval 100ms"));
    tmux.expect("> first");
    tmux.press(&["p"]);
    tmux.expect("PAUSED");
    assert!(claims.stand(&holder("worker-2"), Mode::Exclusive, "second"));
    // A second later, after ten intervals, the screen is still the same.
    let screen = tmux.await_screen("a second later", |screen| {
        screen.contains("PAUSED, read ") && !screen.contains("PAUSED, read 0s ago")
    });
    assert!(!screen.contains("second"), "{screen}");
    tmux.press(&["r"]);
    tmux.expect("second");
    tmux.expect("PAUSED");
    tmux.press(&["Space"]);
    tmux.expect("read 0s ago, every 100ms");
    tmux.press(&["C-c"]);
    tmux.expect("status 0\nas before");
}

#[test]
fn a_cycle_across_names_is_drawn_even_where_a_prefix_hides_half_of_it() {
    let place = Place::new();
    let claims = Claims::on(&place);
    let (one, two) = (holder("worker-1"), holder("worker-2"));
    let stand = |holder, name| claims.stand(holder, Mode::Exclusive, name);
    assert!(stand(&one, "job:a") && stand(&two, "other:b"));
    assert!(!stand(&two, "job:a") && !stand(&one, "other:b"));
    let tmux = Tmux::start(&place, &place.url(), (100, 20), &around("--prefix job:"));
    let screen = tmux.expect("<- a cycle");
    assert!(screen.contains("└─ waits for other:b"), "{screen}");
    assert!(screen.contains("  names 1"), "{screen}");
    tmux.press(&["q"]);
    tmux.expect("status 0");
    let text = place.expect(0, &["top", "--once", "--prefix", "job:"]).stdout;
    assert!(text.contains("<- a cycle"), "{text}");
}

#[test]
fn a_store_that_is_gone_leaves_the_picture_and_the_keys() {
    let place = Place::new();
    let server = Redis::new().start_blocking().expect("a server starts");
    let url = format!("redis://{}?connect_timeout_ms=300&timeout_ms=300", server.address());
    let mut order = bare(Path::new(BINARY));
    order.env("LEASEHOLD_URL", &url).args(["acquire", "--ttl", "1h", "deploy"]);
    assert_eq!(finish(&mut order).status, 0);
    let tmux = Tmux::start(&place, &url, (120, 20), &around("--interval 100ms"));
    tmux.expect("> deploy");
    // A stopped server accepts connections and answers nothing; a killed one refuses them.
    server.stop_process().expect("it stops");
    let screen = tmux.expect("!! cannot be read since ");
    assert!(screen.contains("> deploy"), "the last picture stays: {screen}");
    tmux.press(&["?"]);
    tmux.expect("pause; nothing is read meanwhile");
    tmux.press(&["?"]);
    server.kill().expect("it is killed");
    tmux.await_screen("the picture is back", |screen| {
        screen.contains("> deploy") && screen.contains("!! cannot be read since ")
    });
    server.restart_blocking().expect("it starts again");
    tmux.await_screen("it is read again", |screen| !screen.contains("cannot be read"));
    tmux.expect("nobody holds or waits for anything here");
    tmux.press(&["q"]);
    tmux.expect("status 0\nas before");
}

#[test]
fn signals_end_it_with_the_terminal_as_it_was() {
    let place = Place::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut typist = Typist::start(&mut place.leasehold(&["top"]));
        typist.expect(ENTER_SCREEN);
        typist.expect(NOBODY);
        assert!(!typist.is_as_before(), "keys are read one by one");
        typist.signal(signal);
        assert_eq!(typist.await_end(), status);
        typist.expect(LEAVE_SCREEN);
        assert!(typist.is_as_before(), "{signal:?}");
    }
}

#[test]
fn every_key_that_ends_it_does() {
    let place = Place::new();
    for key in ["q", "\u{1b}", "\u{3}"] {
        let mut typist = Typist::start(&mut place.leasehold(&["top"]));
        typist.expect(NOBODY);
        typist.press(key);
        assert_eq!(typist.await_end(), 0, "{key:?}");
        typist.expect(LEAVE_SCREEN);
        assert!(typist.is_as_before(), "{key:?}");
    }
}

#[test]
fn it_can_be_suspended_and_resumed_from_a_shell_and_waits_in_the_background() {
    let place = Place::new();
    let mut shell = bare(Path::new("bash"));
    shell.env("LEASEHOLD_URL", place.url()).env("PS1", "prompt> ");
    let mut typist = Typist::start(shell.args(["--norc", "--noprofile", "-i"]));
    typist.expect("prompt> ");
    typist.press(&format!("{BINARY} top\n"));
    for _ in 0..2 {
        typist.expect(NOBODY);
        typist.press("\u{1a}");
        typist.expect(LEAVE_SCREEN);
        typist.expect("Stopped");
        typist.expect("prompt> ");
        typist.press("fg\n");
        typist.expect(ENTER_SCREEN);
    }
    typist.press("q");
    typist.expect("prompt> ");
    typist.press("echo status $?\n");
    typist.expect("status 0");
    // In the background it must not draw over the user's work.
    typist.press(&format!("{BINARY} top &\n"));
    typist.expect("prompt> ");
    typist.press("echo mine $((6 * 7))\n");
    let meanwhile = typist.expect("mine 42");
    assert!(!meanwhile.contains(ENTER_SCREEN), "{meanwhile:?}");
    typist.press("fg\n");
    typist.expect(ENTER_SCREEN);
    typist.expect(NOBODY);
    typist.press("q");
    typist.expect("prompt> ");
    typist.press("exit\n");
    assert_eq!(typist.end(), 0);
}

#[test]
fn a_stop_that_nobody_announced_is_drawn_over_afterwards() {
    let place = Place::new();
    let mut typist = Typist::start(&mut place.leasehold(&["top"]));
    typist.expect(NOBODY);
    typist.signal(Signal::STOP);
    typist.signal(Signal::CONT);
    typist.expect(ENTER_SCREEN);
    typist.expect(NOBODY);
    typist.resize(60, 10);
    typist.expect(NOBODY);
    typist.press("q");
    assert_eq!(typist.await_end(), 0);
    assert!(typist.is_as_before());
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let place = Place::new();
    for (value, coloured) in [("1", false), ("", true)] {
        let mut typist = Typist::start(place.leasehold(&["top"]).env("NO_COLOR", value));
        let sent = typist.expect(NOBODY);
        typist.press("q");
        let sent = sent + &typist.expect(LEAVE_SCREEN);
        assert_eq!(typist.await_end(), 0);
        assert_eq!(sent.contains("\u{1b}[38;5;"), coloured, "{value:?}: {sent:?}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let place = Place::new();
    let finished = place.expect(64, &["top"]);
    assert!(finished.stderr.contains("no terminal"), "{finished:?}");
    assert!(finished.stderr.contains("--once") && finished.stderr.contains("--json"));
    for interval in ["0s", "2h", "fast"] {
        place.expect(64, &["top", "--once", "--interval", interval]);
    }
}

#[test]
fn one_picture_as_text_needs_no_terminal() {
    let place = Place::new();
    let text = place.expect(0, &["top", "--once"]).stdout;
    assert!(text.contains("nobody holds or waits for anything here"), "{text}");
    let _holder = place.hold(&["--holder", "worker-1"], "evil\u{1b}[2J\nname");
    let _waiter = place.start(&["run", "evil\u{1b}[2J\nname", "--", "true"]);
    place.await_waiting("evil\u{1b}[2J\nname", 1);
    let text = place.expect(0, &["top", "--once"]).stdout;
    assert!(text.contains("active 1  waiting 1  names 1\n"), "{text}");
    assert!(text.contains("\nevil\\u{1b}[2J\\nname  exclusive  worker-1"), "{text}");
    assert!(text.contains("\n├─ held by worker-1  fence "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let nobody = leasehold_testkit::ports::Port::reserve().expect("a port that nobody uses");
    let url = format!("redis://{}?connect_timeout_ms=700", nobody.address());
    let mut order = bare(Path::new(BINARY));
    let finished = finish(order.env("LEASEHOLD_URL", url).args(["top", "--once"]));
    assert_eq!(finished.status, 69, "{finished:?}");
}

#[test]
fn documents_come_one_a_line_until_a_signal_or_until_nobody_reads() {
    let place = Place::new();
    let claims = Claims::on(&place);
    assert!(claims.stand(&holder("worker-1"), Mode::Exclusive, "a"));
    assert!(claims.stand(&holder("worker-1"), Mode::Exclusive, "b"));
    assert!(!claims.stand(&holder("worker-2"), Mode::Exclusive, "b"));
    let mut top = place.start(&["top", "--json", "--interval", "100ms"]);
    let (first, second) = (json(&top.line()), json(&top.line()));
    assert_ne!(first["at"], second["at"]);
    for document in [&first, &second] {
        assert_eq!((&document["engine"], &document["more"]), (&"sqlite".into(), &false.into()));
        assert_eq!((&document["active"], &document["waiting"]), (&2.into(), &1.into()));
        // By contention, and each name as in `list`.
        assert_eq!(document["names"][0]["name"], "b");
        assert_eq!(document["names"][1]["held"][0]["holder"], "worker-1");
    }
    top.signal(Signal::TERM);
    assert_eq!(top.wait().status, 143);
    let once = place.expect(0, &["top", "--json", "--once"]).stdout;
    assert_eq!(once.lines().count(), 1);
    assert_eq!(json(&once)["rates"], serde_json::Value::Null);
    let mut command: Command = place.leasehold(&["top", "--json", "--interval", "1h"]);
    let mut unread = command.stdout(Stdio::piped()).spawn().expect("it starts");
    drop(unread.stdout.take());
    assert_eq!(crate::support::await_end(&mut unread), 0);
}

/// The waits around `a` on one store: `web4` holds `b`, `web1` holds `a` and waits for `b`, `web2`
/// waits for `a`. `top` asks for the waits of a holder, which each engine answers in its own way.
fn tells_who_waits_for_whom(url: &str) {
    let leasehold = |arguments: &[&str]| {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", url).args(arguments);
        command
    };
    let shown = |name: &str| json(&finish(&mut leasehold(&["show", "--json", name])).stdout);
    let script = "echo up; read line";
    let hold = ["--holder", "web4", "run", "b", "--", "sh", "-c", script];
    let mut holder = Running::start(&mut leasehold(&hold));
    assert_eq!(holder.line(), "up");
    let nested = ["--holder", "web1", "run", "--pass-url", "a", "--", BINARY, "run", "b", "--"];
    let _nested = Running::start(&mut leasehold(&[&nested[..], &["true"]].concat()));
    eventually("the nested run waits", || {
        shown("b")["waiting"].as_array().map(Vec::len) == Some(1)
    });
    let _waiter = Running::start(&mut leasehold(&["--holder", "web2", "run", "a", "--", "true"]));
    eventually("another waits", || shown("a")["waiting"].as_array().map(Vec::len) == Some(1));
    let told = finish(&mut leasehold(&["show", "a"])).stdout;
    let sentence = told.lines().last().unwrap_or_default();
    assert!(sentence.starts_with("`web2` waits for `a`, held by `web1` (fence "), "{told}");
    assert!(sentence.contains("), who waits for `b`, held by `web4` (fence "), "{told}");
    // Both have one waiter, and the older wait is the one for `b`.
    let contended = finish(&mut leasehold(&["top", "--once"])).stdout;
    assert!(contended.contains("\nwho waits for whom: b\n├─ held by web4  "), "{contended}");
    let picture = finish(&mut leasehold(&["top", "--once", "--prefix", "a"])).stdout;
    assert!(picture.contains("\n├─ held by web1  "), "{picture}");
    assert!(picture.contains("\n│  └─ waits for b  "), "{picture}");
    assert!(picture.contains("\n│     └─ held by web4  "), "{picture}");
    assert!(picture.contains("\n└─ waits 1  web2  "), "{picture}");
    holder.write("\n");
}

#[test]
fn redis_tells_who_waits_for_whom() {
    tells_who_waits_for_whom(Redis::new().start_blocking().expect("a server starts").url());
}

#[test]
fn postgres_tells_who_waits_for_whom() {
    tells_who_waits_for_whom(Postgres::new().start_blocking().expect("a server starts").url());
}

#[test]
fn etcd_tells_who_waits_for_whom() {
    tells_who_waits_for_whom(Etcd::new().start_blocking().expect("a server starts").url());
}

#[test]
fn redlock_tells_who_waits_for_whom() {
    let servers = Redis::new().start_many_blocking(3).expect("servers start");
    let hosts = servers.servers().iter().map(|server| server.address().to_string());
    let hosts = hosts.collect::<Vec<_>>().join(",");
    tells_who_waits_for_whom(&format!("redlock://{hosts}"));
}
