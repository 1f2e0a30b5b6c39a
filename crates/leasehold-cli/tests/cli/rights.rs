//! A command with the rights of another user, which `leasehold` may not signal.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::support::{BINARY, Finished, Place, Running, await_gone, bare, eventually, finish};
use crate::support::{pid, state};

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// A user, and a program that lets that user's commands become root.
struct User {
    place: Place,
    /// The first words of a command line that runs as root.
    root: String,
}

impl User {
    fn new() -> Self {
        let place = Place::new();
        let root = match geteuid().is_root() {
            false => "sudo -n".to_owned(),
            true => {
                chown(&place.folder, Some(65_534), Some(65_534)).expect("root may");
                std::fs::copy(BINARY, place.path("leasehold")).expect("copied");
                let setpriv = place.path("p");
                std::fs::copy("/usr/bin/setpriv", &setpriv).expect("copied");
                let set_user_id = std::fs::Permissions::from_mode(0o4755);
                std::fs::set_permissions(&setpriv, set_user_id).expect("root may");
                format!("{} --reuid=0 --regid=0 --clear-groups", setpriv.display())
            }
        };
        Self { place, root }
    }

    /// `leasehold` as that user, with its messages in a file.
    fn leasehold(&self, arguments: &[&str]) -> Command {
        let script = "exec \"$@\" 2>>words";
        let mut command = if geteuid().is_root() {
            let mut command = bare(Path::new("setpriv"));
            command.args(NOBODY).args(["sh", "-c", script, "sh", "./leasehold"]);
            command
        } else {
            let mut command = bare(Path::new("sh"));
            command.args(["-c", script, "sh", BINARY]);
            command
        };
        command.current_dir(&self.place.folder).env("LEASEHOLD_URL", self.place.url());
        command.args(arguments);
        command
    }

    fn finish(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.leasehold(arguments))
    }

    /// Starts a run whose command becomes root and does not end; also returns its process.
    fn start(&self, options: &[&str]) -> (Running, Pid) {
        let script = format!(
            "exec {} sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 600' >/dev/null 2>&1",
            self.root
        );
        let mut arguments = vec!["run"];
        arguments.extend(options);
        arguments.extend(["x", "--", "sh", "-c", &script]);
        let running = Running::start(&mut self.leasehold(&arguments));
        eventually("the command runs", || self.place.file("pid").is_some());
        let number = self.place.file("pid").expect("it was written");
        (running, pid(number.trim().parse().expect("a process id")))
    }

    fn words(&self) -> String {
        self.place.file("words").unwrap_or_default()
    }

    fn kill(&self, process: Pid) {
        if geteuid().is_root() {
            kill_process(process, Signal::KILL).expect("root may");
        } else {
            let number = process.as_raw_nonzero().to_string();
            let killed = Command::new("sudo").args(["-n", "kill", "-9", &number]).status();
            assert!(killed.expect("it starts").success());
        }
    }
}

const CANNOT: &str = "cannot end `sh`: Operation not permitted";

#[test]
fn command_of_another_user_that_cannot_be_ended_is_never_said_to_have_been_ended() {
    let user = User::new();
    let (run, command) = user.start(&["--ttl", "3s", "--grace", "300ms"]);
    // Its messages go to the same file, so the test reads them before.
    let taken = user.finish(&["force-release", "x", "--yes", "--reason", "test"]);
    assert_eq!(taken.status, 0, "{taken:?}");
    assert_eq!(run.wait().status, 76);
    let words = user.words();
    assert!(state(command).is_some(), "nobody could end it: {words}");
    user.kill(command);
    assert!(words.contains(CANNOT), "{words}");
    assert!(words.contains("cannot be ended, and still runs"), "{words}");
    assert!(!words.contains("was ended"), "{words}");
}

#[test]
fn command_of_another_user_keeps_its_lock_after_term_and_hold_at_most() {
    let user = User::new();
    let (run, command) = user.start(&["--hold-at-most", "200ms", "--grace", "100ms"]);
    eventually("it is said that it cannot be ended", || user.words().contains(CANNOT));
    let held = user.finish(&["show", "--json", "x"]);
    assert!(held.stdout.contains("\"held\":[{"), "{held:?}");
    run.signal(Signal::TERM);
    user.kill(command);
    await_gone(command);
    assert_eq!(run.wait().status, 76);
    let words = user.words();
    assert!(words.contains("could not be ended, and has ended by itself"), "{words}");
}

#[test]
fn term_to_leasehold_says_that_the_command_of_another_user_cannot_be_ended() {
    let user = User::new();
    let (run, command) = user.start(&[]);
    run.signal(Signal::TERM);
    eventually("it is said that it cannot be ended", || user.words().contains(CANNOT));
    user.kill(command);
    assert_eq!(run.wait().status, 128 + 9);
}
