//! The choice of the store, and unusable stores.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::{BINARY, Finished, Place, bare, finish, handle};

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
    let finished = place.expect(64, &["--prefix", "app:", "list"]);
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
    let folder = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&place.folder, mode).expect("it is ours");
    };
    folder(0o755);
    for open in [0o644, 0o444, 0o604, 0o660, 0o622, 0o606] {
        chmod(open);
        let finished = place.expect(78, &["--url-file", &path, "list"]);
        assert!(finished.stderr.contains("chmod 600"), "{open:o}: {finished:?}");
    }
    // The usual modes of mounted secrets.
    for closed in [0o400, 0o600, 0o440, 0o640] {
        chmod(closed);
        place.expect(0, &["--url-file", &path, "list"]);
    }
    folder(0o750);
    for open in [0o444, 0o644] {
        chmod(open);
        place.expect(0, &["--url-file", &path, "list"]);
    }
    chmod(0o664);
    place.expect(78, &["--url-file", &path, "list"]);
    folder(0o755);
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
    // Root may write everything, so root becomes another user first.
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
fn url_file_is_named_by_a_variable_too_and_a_url_comes_first() {
    let place = Place::new();
    let file = place.path("url");
    std::fs::write(&file, format!("{}\n", place.url())).expect("written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&file, private).expect("it is ours");
    let list = |url: Option<&str>| {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL_FILE", &file).args(["doctor"]);
        if let Some(url) = url {
            command.env("LEASEHOLD_URL", url);
        }
        finish(&mut command).stdout
    };
    assert!(list(None).contains("locks.db"));
    assert!(list(Some("memory:")).starts_with("store `memory:"));
}

#[test]
fn f102_a_full_disk_is_69_and_no_worse() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::create_dir(&disk).expect("made");
    // The mount ends with the shell's own mount namespace.
    let script = format!(
        "mount -t tmpfs -o size=512k,mode=700 tmpfs {disk} || exit 99\n\
         {BINARY} run x -- true || exit 98\n\
         cat /dev/zero > {disk}/filler 2>/dev/null\n\
         {BINARY} run x -- touch {disk}/../started; echo full $?\n\
         {BINARY} doctor > {disk}/../said; echo doctor $?\n\
         rm {disk}/filler\n\
         {BINARY} run x -- true; echo free $?\n",
        disk = disk.display()
    );
    let mut command = bare(Path::new("unshare"));
    let user = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    command.args([user, "sh", "-c", &script]);
    command.env("LEASEHOLD_URL", format!("sqlite:{}/locks.db", disk.display()));
    let finished = finish(&mut command);
    assert_eq!(finished.stdout, "full 69\ndoctor 78\nfree 0\n", "{finished:?}");
    assert!(!place.path("started").exists());
    let said = std::fs::read_to_string(place.path("said")).expect("it was written");
    assert!(said.contains("bad   trial"), "{said}");
}

/// Runs a script in a mount namespace of its own, so that its mounts end with it.
fn with_mounts(place: &Place, script: &str) -> Finished {
    let mut command = bare(Path::new("unshare"));
    let user = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    command.args([user, "sh", "-euc", script, BINARY]).current_dir(&place.folder);
    finish(&mut command)
}

#[test]
fn file_that_is_mounted_by_itself_is_78_and_a_mounted_folder_is_not() {
    let place = Place::new();
    let finished = with_mounts(
        &place,
        "mkdir d e f; $0 --url sqlite:d/l.db init; touch e/l.db
         mount --bind d/l.db e/l.db; mount --bind d f
         $0 --url sqlite:e/l.db run x -- true || echo file $?
         $0 --url sqlite:f/l.db run x -- true; echo folder $?
         $0 --url sqlite:d/l.db run x -- true; echo itself $?",
    );
    assert!(finished.stdout.ends_with("file 78\nfolder 0\nitself 0\n"), "{finished:?}");
    assert!(finished.stderr.contains("mount its folder instead"), "{finished:?}");
}

#[test]
fn doctor_warns_of_an_overlay() {
    let place = Place::new();
    // Another disk below, because an overlay may not be above itself.
    let finished = with_mounts(
        &place,
        "mkdir d; mount -t tmpfs tmpfs d; mkdir d/lower d/upper d/work d/both
         mount -t overlay overlay -o lowerdir=d/lower,upperdir=d/upper,workdir=d/work d/both
         $0 --url sqlite:d/lower/l.db doctor | grep 'file system'
         $0 --url sqlite:d/both/l.db doctor | grep 'file system'",
    );
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(lines.len() > 1 && lines[0].starts_with("good"), "{finished:?}");
    assert!(lines[1].starts_with("warning") && lines[1].contains("overlay"), "{finished:?}");
}

#[test]
fn another_boot_clock_of_a_time_namespace_is_78() {
    let place = Place::new();
    let _holder = place.hold(&[], "x");
    let user = if rustix::process::geteuid().is_root() { "-T" } else { "-rT" };
    let run = |offset| {
        let mut command = bare(Path::new("unshare"));
        command.args([user, "--boottime", offset, BINARY, "run", "-n", "x", "--", "true"]);
        finish(command.env("LEASEHOLD_URL", place.url()))
    };
    let refused = run("100000");
    assert_eq!(refused.status, 78, "{refused:?}");
    assert!(refused.stderr.contains("boot clock"), "{refused:?}");
    assert_eq!(run("0").status, 75, "the same clock, so the same locks");
}

#[test]
fn too_many_open_files_are_69_and_the_message_says_so() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let mut statuses = Vec::new();
    // From too few for the program itself to enough for its command.
    for limit in 5..16 {
        let script = format!("ulimit -n {limit} && exec {BINARY} run x -- true");
        let mut command = bare(Path::new("sh"));
        let finished = finish(command.args(["-c", &script]).env("LEASEHOLD_URL", place.url()));
        let said = finished.stderr.to_lowercase();
        let told = finished.status == 0 || said.contains("too many open files");
        assert!(told && finished.status != 78, "{limit}: {finished:?}");
        statuses.push(finished.status);
    }
    assert!(statuses.contains(&69) && statuses.contains(&0), "{statuses:?}");
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
        // Spread over the whole life of the command: it opens, takes, runs, gives back.
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
    let hold = ["run", "--ttl", "60s", "x", "--", "sh", "-c", script];
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
        // An hour is longer than the ttl: if the lease expired by wall time, this run would get it.
        let finished = finish(&mut leasehold(&["run", "-n", "x", "--", "true"]));
        assert_eq!(finished.status, 75, "{step}: {finished:?}");
    }
    holder.write("done");
    assert_eq!(holder.end().status, 7);
}

#[test]
fn full_disk_is_what_ends_a_command_that_filled_it() {
    let place = Place::new();
    let finished = with_mounts(
        &place,
        "mkdir disk; mount -t tmpfs -o size=512k,mode=700 tmpfs disk
         $0 -v --url sqlite:disk/l.db run --ttl 3s x -- sh -c '
            cat /dev/zero > disk/filler 2>/dev/null; sleep 100' || echo run $?",
    );
    assert_eq!(finished.stdout, "run 76\n", "{finished:?}");
    let told = "could not be kept: the store";
    let error = finished.stderr.lines().find(|line| line.contains(told)).expect("an error");
    assert!(error.contains("the disk is full"), "{finished:?}");
    assert!(finished.stderr.contains("a lease could not be renewed in time"), "{finished:?}");
    assert!(finished.stderr.contains("leasehold: warning: "), "{finished:?}");
}

#[test]
fn command_that_waits_asks_a_busy_store_until_the_wait_is_over() {
    let place = Place::new();
    place.expect(0, &["init"]);
    let store = rusqlite::Connection::open(place.path("locks.db")).expect("it opens");
    store.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let url = format!("{}?busy_timeout_ms=100", place.url());
    let mut command = bare(Path::new("sh"));
    command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(place.path("log")).arg(BINARY);
    command.args(["-v", "--url", &url, "run", "-w", "5m", "x", "--", "true"]);
    let waiting = crate::support::Running::start(&mut command);
    crate::support::eventually("it asks again", || {
        place.file("log").is_some_and(|log| log.contains("asking again"))
    });
    drop(store);
    assert_eq!(waiting.wait().status, 0);
}

/// `leasehold` without a store, with this place as the home.
fn at_home(place: &Place, arguments: &[&str]) -> std::process::Command {
    let mut command = bare(Path::new(BINARY));
    command.env("XDG_STATE_HOME", &place.folder).args(arguments);
    command
}

#[test]
fn run_inside_a_run_on_another_store_is_78_and_makes_no_store() {
    let place = Place::new();
    let script = format!("{BINARY} run inner -- true; echo $?; {BINARY} list; echo $?");
    let run = ["run", "outer", "--", "sh", "-c", &script];
    let finished = finish(at_home(&place, &run).env("LEASEHOLD_URL", place.url()));
    assert_eq!(finished.stdout, "78\n78\n", "{finished:?}");
    assert!(finished.stderr.contains("--pass-url"), "{finished:?}");
    assert!(!place.path("leasehold/locks.db").exists(), "nothing was made");
    // Also where there is a default store.
    assert_eq!(finish(&mut at_home(&place, &["init"])).status, 0);
    let finished = finish(at_home(&place, &run).env("LEASEHOLD_URL", place.url()));
    assert_eq!(finished.stdout, "78\n78\n", "{finished:?}");
    let passed = ["run", "--pass-url", "outer", "--", "sh", "-c", &script];
    let finished = finish(at_home(&place, &passed).env("LEASEHOLD_URL", place.url()));
    assert!(finished.stdout.starts_with("0\n"), "{finished:?}");
    let given = format!("{BINARY} --url {} run -n outer -- true; echo $?", place.url());
    let run = ["run", "outer", "--", "sh", "-c", &given];
    let finished = finish(at_home(&place, &run).env("LEASEHOLD_URL", place.url()));
    assert_eq!(finished.stdout, "75\n", "{finished:?}");
}

#[test]
fn run_inside_a_run_on_a_store_that_a_url_file_names_is_refused_unless_it_is_the_same() {
    let (place, other) = (Place::new(), Place::new());
    for each in [&place, &other] {
        std::fs::write(each.path("url"), each.url()).expect("written");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(each.path("url"), private).expect("it is ours");
    }
    let script = format!(
        "echo \"file=$LEASEHOLD_URL_FILE\"
         export LEASEHOLD_URL_FILE={other}/url
         {BINARY} run -n inner -- true; echo $?
         export LEASEHOLD_URL_FILE={place}/url
         {BINARY} run -n inner -- true; echo $?
         {BINARY} run -n outer -- true; echo $?",
        place = place.folder.display(),
        other = other.folder.display(),
    );
    let run = ["run", "outer", "--", "sh", "-c", &script];
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", place.url()).env("LEASEHOLD_URL_FILE", other.path("url"));
    let finished = finish(command.args(run));
    assert_eq!(finished.stdout, "file=\n78\n0\n75\n", "{finished:?}");
    assert!(finished.stderr.contains("--pass-url"), "{finished:?}");
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL_FILE", place.path("url"));
    let nested = format!("{BINARY} run -n inner -- true; echo $?");
    let run = ["run", "--pass-url", "outer", "--", "sh", "-c", &nested];
    let finished = finish(command.args(run));
    assert_eq!(finished.stdout, "0\n", "{finished:?}");
}

#[test]
fn run_inside_a_run_finds_the_default_store_that_both_use() {
    let place = Place::new();
    let script = format!("{BINARY} run inner -- true; echo $?; {BINARY} run -n outer -- true");
    let run = ["run", "outer", "--", "sh", "-c", &script];
    let finished = finish(&mut at_home(&place, &run));
    assert_eq!((finished.stdout.as_str(), finished.status), ("0\n", 75), "{finished:?}");
    let named = format!("sqlite:{}", place.path("leasehold/locks.db").display());
    let finished = finish(at_home(&place, &run).env("LEASEHOLD_URL", named));
    assert_eq!((finished.stdout.as_str(), finished.status), ("0\n", 75), "{finished:?}");
}
