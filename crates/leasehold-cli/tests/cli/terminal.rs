//! A real terminal: the waiting line, the child at the keyboard, ^C and ^Z.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{BINARY, BOUND, Place, await_end, bare, pid};

/// A program at a terminal of its own.
pub(crate) struct Typist {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    child: Child,
    /// The settings of the terminal before the program had it.
    before: Termios,
}

impl Typist {
    pub(crate) fn start(command: &mut Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let path = ptsname(&master, Vec::new()).expect("it has a name");
        let path = path.to_str().expect("plain text").to_owned();
        let side = || -> OwnedFd {
            File::options().read(true).write(true).open(&path).expect("opened").into()
        };
        command.stdin(side()).stdout(side()).stderr(side()).env("TERM", "xterm");
        // SAFETY: two system calls on plain values between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let before = tcgetattr(&master).expect("a terminal has settings");
        let child = command.spawn().expect("it starts");
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().expect("a second hand");
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        // The command keeps the other ends open until it is dropped.
        *command = Command::new("true");
        Self { keyboard, screen: receiver, seen: String::new(), child, before }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Waits until the screen has shown `text` since the last call.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(begun.elapsed() < BOUND, "no `{text}` on the screen: {:?}", self.seen);
            if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    /// Whether the terminal has the settings that it had before.
    pub(crate) fn is_as_before(&self) -> bool {
        let settings = |one: &Termios| (one.local_modes, one.input_modes, one.output_modes);
        let now = tcgetattr(&self.keyboard).expect("a terminal has settings");
        settings(&now) == settings(&self.before)
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("a terminal has a size");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id().into()), signal).expect("it is there to be signalled");
    }

    /// Waits for the end without taking the terminal away.
    #[track_caller]
    pub(crate) fn await_end(&mut self) -> i32 {
        await_end(&mut self.child)
    }

    #[track_caller]
    pub(crate) fn end(mut self) -> i32 {
        await_end(&mut self.child)
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn the_child_can_read_the_terminal() {
    let place = Place::new();
    let script = "read line; echo \"read $line\"";
    let mut typist = Typist::start(&mut place.leasehold(&["run", "x", "--", "sh", "-c", script]));
    typist.press("hello\n");
    typist.expect("read hello");
    assert_eq!(typist.end(), 0);
}

#[test]
fn a_child_in_a_pipe_gets_the_terminal_when_it_asks() {
    let place = Place::new();
    // The output of the command is no terminal. So it must stop before it gets the terminal.
    let script = format!("{BINARY} run x -- sh -c 'read line; echo \"read $line\"' | cat");
    let mut shell = bare(Path::new("sh"));
    shell.env("LEASEHOLD_URL", place.url()).args(["-c", &script]);
    let mut typist = Typist::start(&mut shell);
    typist.press("hello\n");
    typist.expect("read hello");
    assert_eq!(typist.end(), 0);
}

#[test]
fn a_person_sees_whom_they_wait_for() {
    let place = Place::new();
    let holder = place.hold(&["--holder", "the-holder"], "x");
    let mut typist = Typist::start(&mut place.leasehold(&["run", "x", "--", "echo", "done"]));
    typist.expect("waiting for `x` since ");
    typist.expect("next in line; held by `the-holder` for ");
    // The line is updated while it waits.
    typist.expect("since 2s");
    holder.end();
    let after = typist.expect("done");
    assert!(after.contains("\r\u{1b}[K"), "the line is cleared first: {after:?}");
    assert_eq!(typist.end(), 0);
}

#[test]
fn a_quiet_wait_shows_nothing() {
    let place = Place::new();
    let holder = place.hold(&[], "x");
    let mut typist = Typist::start(&mut place.leasehold(&["-q", "run", "x", "--", "echo", "done"]));
    place.await_waiting("x", 1);
    holder.end();
    let all = typist.expect("done");
    assert_eq!(all, "done");
    assert_eq!(typist.end(), 0);
}

#[test]
fn f135_an_interrupt_at_the_keyboard_ends_the_wait() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let mut typist = Typist::start(&mut place.leasehold(&["run", "x", "--", "echo", "started"]));
    typist.expect("waiting for `x`");
    typist.press("\u{3}");
    assert_eq!(typist.end(), 130);
    place.await_waiting("x", 0);
}

#[test]
fn f135_an_interrupt_at_the_keyboard_reaches_the_child() {
    let place = Place::new();
    let script = "trap 'echo heard; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let mut typist = Typist::start(&mut place.leasehold(&["run", "x", "--", "sh", "-c", script]));
    typist.expect("ready");
    typist.press("\u{3}");
    typist.expect("heard");
    assert_eq!(typist.end(), 5);
}

#[test]
fn f135_a_job_can_be_suspended_and_resumed_from_a_shell() {
    let place = Place::new();
    let mut shell = bare(Path::new("bash"));
    shell.env("LEASEHOLD_URL", place.url()).env("PS1", "prompt> ");
    let mut typist = Typist::start(shell.args(["--norc", "--noprofile", "-i"]));
    typist.expect("prompt> ");
    let line = format!("{BINARY} run x -- sh -c 'echo up; read line; echo \"back $line\"'\n");
    typist.press(&line);
    typist.expect("\rup");
    typist.press("\u{1a}");
    typist.expect("Stopped");
    typist.expect("prompt> ");
    typist.press("fg\n");
    typist.expect("run x");
    typist.press("again\n");
    typist.expect("back again");
    typist.expect("prompt> ");
    typist.press("echo status $?\n");
    typist.expect("status 0");
    typist.press("exit\n");
    assert_eq!(typist.end(), 0);
}

#[test]
fn f135_a_key_that_ends_the_command_of_elect_ends_elect() {
    for (key, status) in [("\u{3}", 130), ("\u{1c}", 131)] {
        let place = Place::new();
        let elect = ["elect", "e", "--", "sh", "-c", "echo leads; exec sleep 600"];
        let mut typist = Typist::start(&mut place.leasehold(&elect));
        typist.expect("\nleads");
        typist.press(key);
        assert_eq!(typist.end(), status);
        assert_eq!(place.finish(&["leader", "e"]).status, 75, "nobody leads");
    }
}

#[test]
fn the_terminal_is_as_it_was_after_a_command_that_was_killed() {
    let place = Place::new();
    let mut shell = bare(Path::new("sh"));
    let script = format!(
        "{BINARY} run x -- sh -c 'stty -echo raw; kill -9 $$'; stty -a | grep -c -w -- '-echo'; \
         read line; echo \"shell read $line\""
    );
    shell.env("LEASEHOLD_URL", place.url()).args(["-c", &script]);
    let mut typist = Typist::start(&mut shell);
    typist.expect("0");
    typist.press("hello\n");
    typist.expect("shell read hello");
    assert_eq!(typist.end(), 0);
}

#[test]
fn long_names_do_not_break_the_rows_of_list() {
    let place = Place::new();
    let name = "a-very-long-name/".repeat(10);
    let _holder = place.hold(&["--note", "nightly"], &name);
    let script = format!("stty cols 80; {BINARY} list; echo end");
    let mut shell = bare(Path::new("sh"));
    shell.env("LEASEHOLD_URL", place.url()).args(["-c", &script]);
    let mut typist = Typist::start(&mut shell);
    let shown = typist.expect("end");
    let rows: Vec<&str> = shown.lines().collect();
    assert!(rows[1].starts_with("a-very-long-name/a-very") && rows[1].contains('…'), "{rows:?}");
    assert!(rows.iter().all(|row| row.chars().count() <= 80), "{rows:?}");
    assert_eq!(typist.end(), 0);
}

#[test]
fn force_release_asks_and_takes_no_for_an_answer() {
    let place = Place::new();
    let holder = place.hold(&["--holder", "the-holder", "--note", "nightly"], "x");
    let order = ["force-release", "x", "--reason", "test"];
    for (answer, held, status) in [("n\n", 1, 1), ("\n", 1, 1), ("yes\n", 0, 0)] {
        let mut typist = Typist::start(&mut place.leasehold(&order));
        typist.expect("held by `the-holder` on ");
        typist.expect(&format!(" (fence {}) for ", holder.fence));
        typist.expect(" unless it is renewed: nightly");
        typist.expect("[y/N]");
        typist.press(answer);
        assert_eq!(typist.end(), status, "{answer:?}");
        assert_eq!(place.show("x")["held"].as_array().map(Vec::len), Some(held), "{answer:?}");
    }
}

#[test]
fn steal_asks_and_takes_no_for_an_answer() {
    let place = Place::new();
    let holder = place.hold(&["--holder", "the-holder", "--note", "nightly"], "x");
    let order = ["steal", "x", "--reason", "test"];
    for (answer, status) in [("n\n", 1), ("yes\n", 0)] {
        let mut typist = Typist::start(&mut place.leasehold(&order));
        typist.expect("held by `the-holder` on ");
        typist.expect(" unless it is renewed: nightly");
        typist.expect("[y/N]");
        typist.press(answer);
        assert_eq!(typist.end(), status, "{answer:?}");
        let fence = place.show("x")["held"][0]["fence"].as_str().map(str::to_owned);
        assert_eq!(fence == Some(holder.fence.to_string()), status == 1, "{answer:?}");
    }
}

#[test]
fn force_release_shows_a_record_that_cannot_be_read_and_who_holds_beside_it() {
    let place = Place::new();
    let readers = ["spoilt", "well"];
    let _held = readers.map(|label| place.hold(&["--shared", "--holder", label], "x"));
    let db = rusqlite::Connection::open(place.path("locks.db")).expect("a database");
    db.execute("UPDATE claims SET note = x'ff' WHERE label = 'spoilt'", []).expect("damaged");
    let mut typist = Typist::start(&mut place.leasehold(&["force-release", "x", "--reason", "r"]));
    typist.expect("the record of `x` cannot be read");
    typist.expect("held by `well` on ");
    typist.expect("[y/N]");
    typist.press("n\n");
    assert_eq!(typist.end(), 1);
}
