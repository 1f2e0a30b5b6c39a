//! Which store is used, and stores that cannot be.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::{BINARY, Place, bare, finish, handle};

#[test]
fn without_a_url_the_store_is_a_private_file_in_the_state_folder() {
    let place = Place::new();
    for (variable, path) in [("XDG_STATE_HOME", "leasehold"), ("HOME", ".local/state/leasehold")] {
        let home = place.path(variable);
        let mut command = bare(Path::new(BINARY));
        command.env_remove("XDG_STATE_HOME").env_remove("HOME").env(variable, &home);
        let finished = finish(command.args(["run", "x", "--", "true"]));
        assert_eq!(finished.status, 0, "{finished:?}");
        let mode = |path: &Path| path.metadata().expect("made").permissions().mode() & 0o777;
        let folder = home.join(path);
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("locks.db")), 0o600);
    }
    let mut command = bare(Path::new(BINARY));
    command.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let finished = finish(command.args(["list"]));
    assert_eq!(finished.status, 78, "{finished:?}");
    assert!(finished.stderr.contains("LEASEHOLD_URL"), "{finished:?}");
}

#[test]
fn an_option_wins_over_the_environment() {
    let (place, other) = (Place::new(), Place::new());
    let _holder = place.hold(&[], "x");
    place.expect(0, &["--url", &other.url(), "run", "-n", "x", "--", "true"]);
    place.expect(0, &["run", "-n", "x", "--url", &other.url(), "--", "true"]);
}

#[test]
fn stores_that_nobody_knows_are_78_and_the_known_ones_are_named() {
    let place = Place::new();
    for url in ["gopher://x", "no-scheme", "", "sqlite:"] {
        let finished = place.expect(78, &["--url", url, "list"]);
        assert!(finished.stderr.contains("sqlite:"), "{url}: {finished:?}");
    }
    let finished = place.expect(78, &["--prefix", "app:", "list"]);
    assert!(finished.stderr.contains("--prefix"), "{finished:?}");
    let finished = place.expect(78, &["--url", "memory:", "acquire", "x"]);
    assert!(finished.stderr.contains("leasehold run"), "{finished:?}");
    place.expect(0, &["--url", "memory:", "run", "x", "--", "true"]);
}

#[test]
fn a_foreign_holder_in_the_environment_is_78() {
    let place = Place::new();
    let finished = finish(place.leasehold(&["list"]).env("LEASEHOLD_HOLDER", "me"));
    assert_eq!(finished.status, 78, "{finished:?}");
    assert!(finished.stderr.contains("--holder"), "{finished:?}");
}

#[test]
fn a_url_file_must_be_private() {
    let place = Place::new();
    let file = place.path("url");
    let path = file.display().to_string();
    std::fs::write(&file, format!("{}\n", place.url())).expect("written");
    let chmod = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).expect("it is ours");
    };
    for open in [0o644, 0o640, 0o604, 0o660] {
        chmod(open);
        let finished = place.expect(78, &["--url-file", &path, "list"]);
        assert!(finished.stderr.contains("chmod 600"), "{finished:?}");
    }
    chmod(0o600);
    let mut command = bare(Path::new(BINARY));
    let finished = finish(command.args(["--url-file", &path, "run", "x", "--", "true"]));
    assert_eq!(finished.status, 0, "{finished:?}");
    assert!(place.path("locks.db").exists());
    std::fs::write(&file, "sqlite:a\nsqlite:b\n").expect("written");
    place.expect(78, &["--url-file", &path, "list"]);
    place.expect(78, &["--url-file", "/no/such/file", "list"]);
    place.expect(64, &["--url-file", &path, "--url", "memory:", "list"]);
}

#[test]
fn a_file_that_is_no_database_is_78_and_stays_as_it_is() {
    let place = Place::new();
    let text = "my diary\n".repeat(1_000);
    std::fs::write(place.path("locks.db"), &text).expect("written");
    for arguments in [&["run", "x", "--", "true"][..], &["list"], &["doctor"]] {
        let finished = place.expect(78, arguments);
        assert!(finished.stderr.contains("not a database"), "{finished:?}");
    }
    assert_eq!(place.file("locks.db"), Some(text));
}

#[test]
fn places_that_cannot_hold_a_store_are_78() {
    let place = Place::new();
    let folder = place.folder.display().to_string();
    std::os::unix::fs::symlink(place.path("locks.db"), place.path("link")).expect("made");
    let places = [folder.clone(), format!("{folder}/no/such/locks.db"), format!("{folder}/link")];
    for path in places {
        let url = format!("sqlite:{path}");
        let finished = place.expect(78, &["--url", &url, "run", "x", "--", "true"]);
        assert!(finished.stderr.contains(&path) || finished.stderr.contains(&folder));
    }
}

#[test]
fn f106_a_file_that_may_only_be_read_is_78() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let binary = place.path("leasehold");
    std::fs::copy(BINARY, &binary).expect("copied");
    let chmod = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("it is ours");
    };
    for entry in std::fs::read_dir(&place.folder).expect("readable").flatten() {
        chmod(&entry.path(), 0o444);
    }
    chmod(&binary, 0o555);
    chmod(&place.folder, 0o555);
    // Root may write everything, so root becomes somebody else first.
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = bare(Path::new("setpriv"));
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        command.args(nobody).arg(&binary);
        command
    } else {
        bare(&binary)
    };
    command.current_dir("/").env("LEASEHOLD_URL", place.url());
    let finished = finish(command.args(["run", "x", "--", "true"]));
    chmod(&place.folder, 0o755);
    assert_eq!(finished.status, 78, "{finished:?}");
    assert!(finished.stderr.contains("locks.db"), "{finished:?}");
}

#[test]
fn f102_a_full_disk_is_69_and_no_worse() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("made");
    // The mount lives and ends with the shell's own mount namespace.
    let script = format!(
        "mount -t tmpfs -o size=512k,mode=700 tmpfs {disk} || exit 99\n\
         {BINARY} run x -- true || exit 98\n\
         cat /dev/zero > {disk}/filler 2>/dev/null\n\
         {BINARY} run x -- touch {disk}/../started; echo full $?\n\
         rm {disk}/filler\n\
         {BINARY} run x -- true; echo free $?\n",
        disk = disk.display()
    );
    let mut command = bare(Path::new("unshare"));
    let user = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    command.args([user, "sh", "-c", &script]);
    command.env("LEASEHOLD_URL", format!("sqlite:{}/locks.db", disk.display()));
    let finished = finish(&mut command);
    assert_eq!(finished.stdout, "full 69\nfree 0\n", "{finished:?}");
    assert!(!place.path("started").exists());
}

#[test]
fn a_store_that_stays_busy_is_69() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let store = rusqlite::Connection::open(place.path("locks.db")).expect("it opens");
    store.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let url = format!("{}?busy_timeout_ms=100", place.url());
    let finished = place.expect(69, &["--url", &url, "run", "x", "--", "true"]);
    assert!(finished.stderr.contains("busy"), "{finished:?}");
    drop(store);
    place.expect(0, &["run", "x", "--", "true"]);
}

#[test]
fn output_that_cannot_be_written_is_74() {
    let place = Place::new();
    let acquired = place.expect(0, &["acquire", "x"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let status = place.leasehold(&["check", &handle(&acquired)]).stdout(full).status();
    assert_eq!(status.expect("it runs").code(), Some(74));
}

#[test]
fn f100_a_command_killed_at_any_moment_leaves_a_store_that_works() {
    let place = Place::new();
    let fence = || -> u64 {
        let finished = place.expect(0, &["run", "x", "--", "printenv", "LEASEHOLD_FENCE"]);
        finished.stdout.trim().parse().expect("a fence")
    };
    let mut last = fence();
    for round in 0..60 {
        let mut child = place.leasehold(&["run", "--ttl", "100ms", "x", "--", "true"]);
        let mut child = child.spawn().expect("it starts");
        // Spread over the whole life of the command: opening, taking, running, giving back.
        std::thread::sleep(std::time::Duration::from_micros(round * 150));
        child.kill().expect("a child can be killed until it is waited for");
        child.wait().expect("it ends");
        let next = fence();
        assert!(next > last, "round {round}: {next} after {last}");
        last = next;
    }
    let db = rusqlite::Connection::open(place.path("locks.db")).expect("a database");
    let check: String =
        db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it can be checked");
    assert_eq!(check, "ok");
    let left: i64 =
        db.query_row("SELECT count(*) FROM claims", [], |row| row.get(0)).expect("a number");
    assert_eq!(left, 0);
}

#[test]
fn f107_a_step_of_the_wall_clock_frees_nothing_and_loses_nothing() {
    let place = Place::new();
    let clock = leasehold_testkit::Clock::new().expect("a clock that can be moved");
    let leasehold = |arguments: &[&str]| {
        let mut command = place.leasehold(arguments);
        command.envs(clock.environment());
        command
    };
    let script = "echo held; read line; exit 7";
    let hold = ["run", "--ttl", "500ms", "x", "--", "sh", "-c", script];
    let mut holder = crate::support::Running::start(&mut leasehold(&hold));
    assert_eq!(holder.line(), "held");
    let hour = std::time::Duration::from_secs(3_600);
    for step in ["ahead", "behind"] {
        match step {
            "ahead" => clock.set_ahead(hour),
            _ => clock.set_behind(hour),
        }
        .expect("moved");
        let date = finish(bare(Path::new("date")).arg("+%s").envs(clock.environment()));
        let plain = finish(bare(Path::new("date")).arg("+%s"));
        let seconds = |text: &str| text.trim().parse::<i64>().expect("seconds");
        let moved = seconds(&date.stdout) - seconds(&plain.stdout);
        assert!(moved.abs() > 3_500, "the clock really moved: {moved}");
        // Three times the ttl: were the lease to end by wall time, somebody would get it.
        let finished = finish(&mut leasehold(&["run", "-w", "1500ms", "x", "--", "true"]));
        assert_eq!(finished.status, 75, "{step}: {finished:?}");
    }
    holder.write("done");
    assert_eq!(holder.end().status, 7);
}
