//! Stores that several users can reach: the command refuses files that another user prepared, and a
//! group shares a store.
//!
//! Only root can act as several users. A test that does not run as root asks `sudo`, which
//! `cargo xtask setup` needs as well.

use std::path::Path;
use std::process::Command;

use crate::support::{BINARY, Finished, Place, Running, bare, finish};

/// A user whom the store's owner does not know.
const OTHER: &str = "--reuid=65534 --regid=65534 --clear-groups";
/// Two users with a group in common.
const MEMBER: &str = "--reuid=2002 --regid=2002 --groups=3000";
const MATE: &str = "--reuid=2003 --regid=2003 --groups=3000";

/// A command of root's.
fn as_root(words: &[&str]) -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = bare(Path::new(if is_root { "env" } else { "sudo" }));
    if !is_root {
        command.arg("-n");
    }
    command.args(words);
    command
}

fn root(words: &[&str]) -> Finished {
    let finished = finish(&mut as_root(words));
    assert_eq!(finished.status, 0, "{words:?}: {finished:?}");
    finished
}

/// A command of another user's.
fn as_user(user: &str, words: &[&str]) -> Command {
    let mut all = vec!["setpriv"];
    all.extend(user.split(' '));
    all.extend(words);
    as_root(&all)
}

fn user(user: &str, words: &[&str]) -> Finished {
    let finished = finish(&mut as_user(user, words));
    assert_eq!(finished.status, 0, "{words:?}: {finished:?}");
    finished
}

/// A place with the command in it, so that every user can run it.
struct Shared {
    place: Place,
    leasehold: String,
    url: String,
}

impl Shared {
    /// A folder of root's with these rights and this group.
    fn new(mode: &str, group: &str) -> Self {
        let place = Place::new();
        let leasehold = place.path("leasehold").display().to_string();
        std::fs::copy(BINARY, &leasehold).expect("copied");
        root(&["chmod", "755", &place.folder.display().to_string(), &leasehold]);
        let folder = place.path("shared").display().to_string();
        root(&["mkdir", &folder]);
        root(&["chgrp", group, &folder]);
        root(&["chmod", mode, &folder]);
        let url = format!("sqlite:{folder}/l.db");
        Self { place, leasehold, url }
    }

    fn path(&self, name: &str) -> String {
        self.place.path("shared").join(name).display().to_string()
    }

    /// `leasehold` with these words, as one of `as_user`'s.
    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![self.leasehold.as_str(), "--url", &self.url];
        all.extend(words);
        all
    }

    fn hold(&self) -> Running {
        let hold = ["run", "n", "--", "sh", "-c", "echo in; read line"];
        let mut holder = Running::start(&mut as_root(&self.words(&hold)));
        assert_eq!(holder.line(), "in");
        holder
    }

    fn await_waiting(&self) {
        crate::support::eventually("a claim waits", || {
            root(&self.words(&["show", "--json", "n"])).stdout.contains("\"waiting\":[{")
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _left = finish(&mut as_root(&["rm", "-rf", &self.path("")]));
    }
}

#[test]
fn bells_folder_of_another_user_is_refused_where_everybody_may_make_one() {
    // In the second folder new files get the group of the folder.
    for mode in ["1777", "3777"] {
        let shared = Shared::new(mode, "3000");
        let (store, bells) = (shared.path("l.db"), shared.path("l.db.bells"));
        root(&shared.words(&["init"]));
        root(&["chgrp", "3000", &store]);
        root(&["chmod", "660", &store]);
        user(OTHER, &["mkdir", "-m", "777", &bells]);
        let holder = shared.hold();
        let refused = finish(&mut as_root(&shared.words(&["run", "n", "--", "true"])));
        assert_eq!(refused.status, 78, "{refused:?}");
        let said = &refused.stderr;
        assert!(said.contains("l.db.bells") && said.contains("another user"), "{refused:?}");
        assert_eq!(holder.end().status, 1, "`read` finds the end");
    }
}

#[test]
fn database_or_log_of_another_user_is_refused_where_everybody_may_make_one() {
    let shared = Shared::new("1777", "0");
    let store = shared.path("l.db");
    user(OTHER, &shared.words(&["list"]));
    user(OTHER, &["chmod", "666", &store]);
    let refused = |file: &str| {
        let refused = finish(&mut as_root(&shared.words(&["run", "n", "--", "true"])));
        let named = format!("`{}`: it belongs to another user", shared.path(file));
        assert!(refused.status == 78 && refused.stderr.contains(&named), "{refused:?}");
    };
    refused("l.db");
    for file in [store.clone(), format!("{store}-wal"), format!("{store}-shm")] {
        root(&["rm", &file]);
    }
    user(OTHER, &["touch", &format!("{store}-wal")]);
    refused("l.db-wal");
    root(&["rm", &format!("{store}-wal")]);
    root(&shared.words(&["run", "n", "--", "true"]));
}

#[test]
fn group_that_shares_a_store_shares_the_bells_folder_of_any_member() {
    let shared = Shared::new("2770", "3000");
    let store = shared.path("l.db");
    root(&shared.words(&["init"]));
    for file in [store.clone(), format!("{store}-wal"), format!("{store}-shm")] {
        root(&["chmod", "660", &file]);
    }
    // The first waiter makes the folder.
    for waiting in [MEMBER, MATE] {
        let holder = shared.hold();
        let run = ["run", "n", "--", "true"];
        let waiter = Running::start(&mut as_user(waiting, &shared.words(&run)));
        shared.await_waiting();
        let rights = format!("stat -c '%g %a' {}/*", shared.path("l.db.bells"));
        assert_eq!(root(&["sh", "-c", &rights]).stdout, "3000 660\n", "others may ring it");
        assert_eq!(holder.end().status, 1, "`read` finds the end");
        let ended = waiter.end();
        assert_eq!(ended.status, 0, "{waiting}: {ended:?}");
    }
    let owner = root(&["stat", "-c", "%u %a", &shared.path("l.db.bells")]).stdout;
    assert_eq!(owner, "2002 2770\n");
}

/// Runs a script as root on a machine of its own: it has its own `/var/lib` and `/etc/group`. `$0`
/// is the command.
fn on_a_machine(place: &Place, groups: &str, script: &str) -> Finished {
    let leasehold = place.path("leasehold").display().to_string();
    std::fs::copy(BINARY, &leasehold).expect("copied");
    root(&["chmod", "755", &place.folder.display().to_string(), &leasehold]);
    std::fs::write(place.path("group"), groups).expect("written");
    let mounts = format!(
        "mount -t tmpfs -o mode=755 tmpfs /var/lib; mount --bind {} /etc/group",
        place.path("group").display()
    );
    let state = format!("export XDG_STATE_HOME={}/state-$$", place.folder.display());
    let script = format!("{mounts}\n{state}\n{script}");
    finish(&mut as_root(&["unshare", "-m", "sh", "-euc", &script, &leasehold]))
}

#[test]
fn store_of_the_machine_is_the_default_of_the_group_and_of_nobody_else() {
    let place = Place::new();
    let script = format!(
        "umask 077; mkdir -m 777 $XDG_STATE_HOME
         $0 init --system; $0 init --system
         stat -c '%a %g' /var/lib/leasehold /var/lib/leasehold/locks.db
         for user in '{MEMBER}' '{MATE}'; do
           setpriv $user $0 run deploy -- true
           setpriv $user $0 run deploy -- $0 run -n inner -- true
           $0 run deploy -- setpriv $user $0 run -n deploy -- true || echo held $?
         done
         ls -A $XDG_STATE_HOME
         setpriv {OTHER} $0 run deploy -- true
         ls -A $XDG_STATE_HOME
         setpriv {OTHER} $0 -q run deploy -- true 2>&1",
    );
    let finished = on_a_machine(&place, "root:x:0:\nleasehold:x:3000:\n", &script);
    assert_eq!(finished.status, 0, "{finished:?}");
    let made = "2770 3000\n660 3000\n";
    let held = "held 75\n".repeat(2);
    assert_eq!(finished.stdout, format!("{made}{held}leasehold\n"), "{finished:?}");
    let warnings = finished.stderr.matches("is for the group `leasehold`").count();
    assert_eq!(warnings, 1, "{finished:?}");
}

#[test]
fn member_of_the_group_is_told_that_the_file_of_the_machine_is_missing() {
    let place = Place::new();
    let script = format!(
        "umask 077; mkdir -m 777 $XDG_STATE_HOME; $0 init --system; rm /var/lib/leasehold/*
         setpriv {MEMBER} $0 run deploy -- true; ls /var/lib/leasehold; $0 init --system
         setpriv {MEMBER} $0 run deploy -- true"
    );
    let finished = on_a_machine(&place, "root:x:0:\nleasehold:x:3000:\n", &script);
    assert_eq!((finished.status, finished.stdout.as_str()), (0, ""), "{finished:?}");
    let told = "`/var/lib/leasehold/locks.db` is missing, and `sudo leasehold init --system`";
    assert_eq!(finished.stderr.matches(told).count(), 1, "{finished:?}");
}

#[test]
fn store_of_the_machine_is_not_made_without_its_group() {
    let place = Place::new();
    let script = "$0 init --system || echo $?; ls /var/lib";
    let finished = on_a_machine(&place, "root:x:0:\n", script);
    assert_eq!(finished.stdout, "78\n", "{finished:?}");
    assert!(finished.stderr.contains("groupadd --system leasehold"), "{finished:?}");
}

#[test]
fn run_of_root_with_a_store_of_its_own_says_so() {
    let place = Place::new();
    let script =
        "$0 run x -- true; $0 list; $0 -q run x -- true; $0 --url sqlite:l.db run x -- true
                  $0 run x -- $0 run y -- true";
    let script = format!("cd {}\n{script}", place.folder.display());
    let finished = on_a_machine(&place, "root:x:0:\n", &script);
    assert_eq!(finished.status, 0, "{finished:?}");
    let said = finished.stderr.matches("this lock excludes root's commands only").count();
    assert_eq!(said, 2, "once for each `run` that is not inside another: {finished:?}");
}
