//! The command on PostgreSQL: both engines, and servers that cannot be used.
//!
//! The tests of the library cover the engines.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{OnceLock, mpsc};
use std::thread;

use leasehold_testkit::{Pgbouncer, Postgres, Server};

use crate::support::{
    BINARY, Finished, Place, Running, bare, eventually, finish, json,
    shows_only_what_is_known_of_a_foreign_lock,
};

const PASSWORD: &str = "hunter2secret";
const SCHEMES: [&str; 2] = ["postgres", "postgres+advisory"];
const VERBS: [&[&str]; 4] = [&["run", "x", "--", "true"], &["list"], &["show", "x"], &["doctor"]];

/// A server that no test disturbs.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::new().start_blocking().expect("a server starts").shared())
}

fn url(scheme: &str) -> String {
    format!("{scheme}://postgres@{}/postgres", server().address())
}

fn leasehold(url: &str, arguments: &[&str]) -> Finished {
    let mut command: Command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    finish(&mut command)
}

/// Runs a command that must end with this status and not show the password.
#[track_caller]
fn ends(status: i32, url: &str, arguments: &[&str]) -> Finished {
    let finished = leasehold(url, arguments);
    assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
    assert!(!format!("{finished:?}").contains(PASSWORD), "{finished:?}");
    finished
}

#[test]
fn a_command_runs_under_a_lock_and_a_held_one_is_a_conflict() {
    for scheme in SCHEMES {
        let url = url(scheme);
        let inner = format!("LEASEHOLD_URL='{url}' '{BINARY}' run --no-wait cli:run -- true");
        let script = format!("echo \"fence $LEASEHOLD_FENCE\"; {inner}; echo \"inner $?\"");
        let finished = ends(0, &url, &["run", "cli:run", "--", "sh", "-c", &script]);
        assert!(finished.stdout.contains("fence "), "{finished:?}");
        assert!(finished.stdout.contains("inner 75"), "{finished:?}");
        ends(7, &url, &["run", "cli:run", "--", "sh", "-c", "exit 7"]);
    }
}

#[test]
fn a_lock_in_the_lease_table_outlives_the_command_that_took_it() {
    let url = url("postgres");
    let taken = ends(0, &url, &["acquire", "cli:kept", "--ttl", "60s"]);
    let handle = taken.stdout.trim();
    ends(75, &url, &["run", "--no-wait", "cli:kept", "--", "true"]);
    let list = json(&ends(0, &url, &["list", "--json"]).stdout);
    assert!(list.to_string().contains("cli:kept"), "{list}");
    ends(0, &url, &["release", handle]);
    ends(0, &url, &["run", "--no-wait", "cli:kept", "--", "true"]);
}

#[test]
fn an_advisory_lock_cannot_be_left_behind_and_the_command_says_what_can() {
    let finished = ends(78, &url("postgres+advisory"), &["acquire", "cli:left"]);
    assert!(finished.stderr.contains("leasehold run"), "{finished:?}");
    assert!(finished.stderr.contains("postgres://"), "{finished:?}");
    assert_eq!(finished.stdout, "");
}

#[test]
fn advisory_lock_that_cannot_stay_closed_is_refused_before_the_command_runs() {
    let run = ["run", "--hold-at-least", "5s", "cli:least", "--", "echo", "inside"];
    let refused = ends(78, &url("postgres+advisory"), &run);
    assert!(refused.stderr.contains("closed") && refused.stdout.is_empty(), "{refused:?}");
    assert_eq!(ends(0, &url("postgres"), &run).stdout, "inside\n");
    ends(75, &url("postgres"), &["run", "-n", "cli:least", "--", "true"]);
}

#[test]
fn doctor_has_something_to_say_about_each() {
    // Test servers do not wait for the disk, which breaks a promise.
    let table = leasehold(&url("postgres"), &["doctor"]);
    assert!(table.stdout.contains("fsync"), "{table:?}");
    let advisory = leasehold(&url("postgres+advisory"), &["doctor"]);
    for subject in ["sessions", "timeouts", "proxy", "restart", "collisions"] {
        assert!(advisory.stdout.contains(subject), "{advisory:?}");
    }
}

#[test]
fn init_prints_what_it_would_run_and_runs_it_as_often_as_one_likes() {
    for (scheme, part) in [("postgres", "leasehold.lines"), ("postgres+advisory", "advisory_life")]
    {
        let printed = ends(0, &url(scheme), &["init", "--print"]);
        assert!(printed.stdout.contains(part), "{printed:?}");
        let by_hand = format!("leasehold --url {scheme}://HOST/DATABASE init --print | psql");
        assert!(printed.stdout.contains(&by_hand), "{printed:?}");
        ends(0, &url(scheme), &["init"]);
        ends(0, &url(scheme), &["init"]);
    }
}

#[test]
fn a_wrong_password_is_78_and_not_repeated() {
    let server = Postgres::new().password("right").start_blocking().expect("a server starts");
    for scheme in SCHEMES {
        let url = format!("{scheme}://postgres:{PASSWORD}@{}/postgres", server.address());
        for arguments in VERBS {
            let finished = ends(78, &url, arguments);
            assert!(finished.stderr.contains("PGPASSWORD"), "{finished:?}");
        }
    }
}

#[test]
fn a_missing_database_and_a_missing_right_are_78_and_say_so() {
    let sql = format!("CREATE ROLE poor LOGIN PASSWORD '{PASSWORD}'");
    server().sql(&sql).expect("a role");
    for scheme in SCHEMES {
        let nowhere = format!("{scheme}://postgres@{}/nowhere", server().address());
        for arguments in VERBS {
            let finished = ends(78, &nowhere, arguments);
            assert!(finished.stderr.contains("nowhere"), "{finished:?}");
        }
        let poor = format!("{scheme}://poor:{PASSWORD}@{}/postgres", server().address());
        let poor = format!("{poor}?schema=of_the_rich");
        for arguments in VERBS.into_iter().chain([&["init"][..], &["stats"][..]]) {
            let finished = ends(78, &poor, arguments);
            assert!(finished.stderr.contains("CREATE SCHEMA"), "{finished:?}");
        }
    }
}

#[test]
fn run_uses_one_connection_while_it_holds_and_two_while_it_waits() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    let url = format!("postgres://postgres@{}/postgres", server.address());
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    let connections = || server.sql(count).expect("an answer").trim().to_owned();
    let start = |script: &str| {
        let arguments = ["run", "--ttl", "2s", "x", "--", "sh", "-c", script];
        let mut command = bare(Path::new(BINARY));
        Running::start(command.env("LEASEHOLD_URL", &url).args(arguments))
    };
    let mut holder = start("echo holds; read line");
    assert_eq!(holder.line(), "holds");
    let fence = "SELECT expires FROM leasehold.lines";
    let granted = server.sql(fence).expect("an answer");
    eventually("a renewal", || server.sql(fence).expect("an answer") != granted);
    assert_eq!(connections(), "1", "it holds and was renewed");
    let mut waiter = start("echo holds; read line");
    let waits = "SELECT count(*) FROM leasehold.claims WHERE granted IS NULL";
    eventually("a waiter", || server.sql(waits).expect("an answer").trim() == "1");
    let beats = "SELECT expires FROM leasehold.claims WHERE granted IS NULL";
    let joined = server.sql(beats).expect("an answer");
    eventually("a heartbeat", || server.sql(beats).expect("an answer") != joined);
    assert_eq!(connections(), "3", "one holds, one waits");
    holder.write("\n");
    assert_eq!(waiter.line(), "holds");
    eventually("the end of the first, and of hearing bells", || connections() == "1");
    waiter.write("\n");
    assert_eq!((holder.wait().status, waiter.wait().status), (0, 0));
}

#[test]
fn exhausted_connections_are_named_and_a_command_that_waits_for_one_gets_it() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    server.sql("CREATE ROLE poor LOGIN CONNECTION LIMIT 0").expect("made");
    server.sql("GRANT CREATE ON DATABASE postgres TO poor").expect("granted");
    let url = format!("postgres://poor@{}/postgres", server.address());
    let run = ["run", "-n", "x", "--", "true"];
    let finished = ends(69, &url, &run);
    assert!(finished.stderr.contains("no connection is left"), "{finished:?}");
    let mut command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", &url).args(["--connect-wait", "5m"]).args(run);
    let waiting = Running::start(&mut command);
    server.sql("ALTER ROLE poor CONNECTION LIMIT 5").expect("altered");
    assert_eq!(waiting.wait().status, 0);
}

#[test]
fn command_that_waits_for_a_lock_waits_for_a_connection_as_well_and_says_so() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    server.sql("CREATE ROLE poor LOGIN").expect("made");
    server.sql("GRANT CREATE ON DATABASE postgres TO poor").expect("granted");
    let url = format!("postgres://poor@{}/postgres", server.address());
    for wait in [&["-w", "5m"][..], &[]] {
        server.sql("ALTER ROLE poor CONNECTION LIMIT 0").expect("altered");
        let place = Place::new();
        let log = place.path("log");
        let mut command = bare(Path::new("sh"));
        command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(&log).arg(BINARY);
        command.args(["-v", "--connect-wait", "0s", "run"]).args(wait).args(["x", "--", "true"]);
        let waiting = Running::start(command.env("LEASEHOLD_URL", &url));
        eventually("it connects again, and says what it waits for", || {
            let log = place.file("log").unwrap_or_default();
            let told = log.lines().any(|line| {
                line.contains("waiting for the store since")
                    && line.contains("no connection is left")
            });
            log.contains("connecting again") && told
        });
        server.sql("ALTER ROLE poor CONNECTION LIMIT 5").expect("altered");
        assert_eq!(waiting.wait().status, 0, "{wait:?}");
    }
}

#[test]
fn a_schema_of_another_version_is_78() {
    for (scheme, table) in [("postgres", "store"), ("postgres+advisory", "advisory")] {
        let url = format!("{}?schema=newer_{table}", url(scheme));
        ends(0, &url, &["init"]);
        server().sql(&format!("UPDATE newer_{table}.{table} SET version = 99")).expect("updated");
        for arguments in VERBS {
            let finished = ends(78, &url, arguments);
            assert!(finished.stderr.contains("version 99"), "{finished:?}");
        }
    }
}

#[test]
fn record_that_cannot_be_read_is_named_and_hides_no_other_lock() {
    let url = format!("{}?schema=spoilt", url("postgres"));
    for name in ["a", "spoilt", "z"] {
        ends(0, &url, &["acquire", name, "--ttl", "60s"]);
    }
    server().sql("UPDATE spoilt.lines SET label = '' WHERE name = 'spoilt'").expect("updated");
    let list = ends(0, &url, &["list"]);
    assert!(list.stderr.contains("`spoilt` cannot be read"), "{list:?}");
    let rows: Vec<&str> = list.stdout.lines().skip(1).map(|row| &row[..1]).collect();
    assert_eq!(rows, ["a", "z"], "{list:?}");
    let list = json(&ends(0, &url, &["list", "--json"]).stdout);
    let broken: Vec<_> = list
        .as_array()
        .expect("an array")
        .iter()
        .filter(|line| line.get("broken").is_some())
        .collect();
    assert_eq!((broken.len(), &broken[0]["name"]), (1, &"spoilt".into()), "{list}");
    let stats = ends(0, &url, &["stats"]);
    assert!(stats.stderr.contains("`spoilt` cannot be read"), "{stats:?}");
    let top = ends(0, &url, &["top", "--once"]);
    assert!(top.stdout.contains("cannot read spoilt"), "{top:?}");
    assert!(ends(69, &url, &["show", "spoilt"]).stderr.contains("force-release"));
    assert!(ends(78, &url, &["doctor"]).stdout.contains("`spoilt` cannot be read"));
    ends(0, &url, &["force-release", "spoilt", "--reason", "a test", "--yes"]);
    assert_eq!(ends(0, &url, &["list"]).stderr, "");
}

#[test]
fn a_server_that_is_gone_is_69() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    server.kill().expect("killed");
    for scheme in SCHEMES {
        let url = format!("{scheme}://postgres@{}/postgres", server.address());
        for arguments in VERBS {
            ends(69, &url, arguments);
        }
    }
}

#[test]
fn f73_a_pooling_proxy_is_78_for_advisory_locks_and_nothing_for_the_table() {
    let pooler = Pgbouncer::before(server()).start_blocking().expect("a pooler starts");
    let address = pooler.address();
    let run = ["run", "cli:pooled", "--", "true"];
    ends(0, &format!("postgres://postgres@{address}/postgres"), &run);
    let finished = ends(78, &format!("postgres+advisory://postgres@{address}/postgres"), &run);
    assert!(finished.stderr.contains("PgBouncer"), "{finished:?}");
}

#[test]
fn spans_of_a_handle_count_from_its_grant() {
    crate::support::spans_of_a_handle_count_from_its_grant(&url("postgres"));
}

#[test]
fn release_whose_answer_is_lost_is_no_lost_lock() {
    for scheme in SCHEMES {
        let url_at = |address| format!("{scheme}://postgres@{address}/postgres");
        crate::support::release_whose_answer_is_lost_is_no_lost_lock(server().address(), url_at);
    }
}

#[test]
fn advisory_lock_of_another_program_is_shown_without_an_age_and_a_fence() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    let database = format!("postgres://postgres@{}/postgres", server.address());
    let mut theirs = bare(Path::new("psql"));
    theirs.args([&database, "--no-psqlrc", "-qAt", "-c", "SELECT 'has ' || pg_advisory_lock(42)"]);
    let mut theirs = Running::start(theirs.args(["-c", "SELECT pg_sleep(600)"]));
    assert_eq!(theirs.line().trim(), "has");
    let url = database.replace("postgres:", "postgres+advisory:");
    let list = json(&ends(0, &url, &["list", "--json"]).stdout);
    let name = list[0]["name"].as_str().expect("a name");
    shows_only_what_is_known_of_a_foreign_lock(&url, name, false);
}

#[test]
fn schema_that_init_prints_is_made_by_psql() {
    let server = Postgres::new().start_blocking().expect("a server starts");
    let url = format!("postgres://postgres@{}/postgres", server.address());
    let script = "$0 --url \"$1\" init --print | psql --no-psqlrc -q -v ON_ERROR_STOP=1 \"$1\"
                  $0 --url \"$1?install=no\" run x -- echo ran";
    let finished = finish(bare(Path::new("sh")).args(["-euc", script, BINARY, &url]));
    assert!(finished.status == 0 && finished.stdout.ends_with("ran\n"), "{finished:?}");
}

#[test]
fn message_without_an_end_is_not_read_for_long() {
    // What the system's buffers take is far less.
    const TAKEN_MAX: usize = 64 << 20;
    for scheme in SCHEMES {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, taken) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let mut written = 0;
                let mut part: &[u8] = &[b'R', 0x7f, 0xff, 0xff, 0xff];
                while stream.write_all(part).is_ok() {
                    written += part.len();
                    part = &[0; 65_536];
                }
                if sender.send(written).is_err() {
                    return;
                }
            }
        });
        let url = format!("{scheme}://postgres@{address}/postgres");
        let finished = ends(69, &url, &["run", "x", "--", "true"]);
        assert!(finished.stderr.contains("is more than is read"), "{finished:?}");
        let taken = taken.recv().expect("a connection");
        assert!(taken < TAKEN_MAX, "{taken} bytes");
    }
}
