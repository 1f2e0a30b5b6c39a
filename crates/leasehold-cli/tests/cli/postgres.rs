//! The command on PostgreSQL: both engines, and servers that cannot be used.
//!
//! What the engines do is tested with the library.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use leasehold_testkit::{Pgbouncer, Postgres, Server};

use crate::support::{BINARY, Finished, bare, finish, json};

const PASSWORD: &str = "hunter2secret";
const SCHEMES: [&str; 2] = ["postgres", "postgres+advisory"];
const VERBS: [&[&str]; 4] = [&["run", "x", "--", "true"], &["list"], &["show", "x"], &["doctor"]];

/// A server that nothing is done to.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::new().start_blocking().expect("a server starts"))
}

fn url(scheme: &str) -> String {
    format!("{scheme}://postgres@{}/postgres", server().address())
}

fn leasehold(url: &str, arguments: &[&str]) -> Finished {
    let mut command: Command = bare(Path::new(BINARY));
    command.env("LEASEHOLD_URL", url).args(arguments);
    finish(&mut command)
}

/// Runs something that must end with this status and keep the password quiet.
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
fn doctor_has_something_to_say_about_each() {
    // Test servers do not wait for the disk, which is a broken promise.
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
