//! F145, the secret hunt: passwords, tokens and handles stay where they belong.

use std::path::Path;

use crate::support::{BINARY, Finished, Place, bare, finish, handle};

const PASSWORD: &str = "hunter2secret";

#[track_caller]
fn assert_silent(finished: &Finished, secret: &str) {
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(!said.contains(secret), "{said}");
}

#[test]
fn f145_a_password_on_the_command_line_is_refused_and_not_repeated() {
    let place = Place::new();
    let urls = [
        format!("redis://:{PASSWORD}@localhost:6379/0"),
        format!("postgres://user:{PASSWORD}@localhost/db"),
        format!("redlock://a:1,:{PASSWORD}@b:1"),
        format!("postgres://localhost/db?password={PASSWORD}"),
    ];
    for url in &urls {
        for arguments in [&["--url", url, "list"][..], &["list", "--url", url]] {
            let finished = place.expect(64, arguments);
            assert!(finished.stderr.contains("LEASEHOLD_URL"), "{finished:?}");
            assert!(finished.stderr.contains("--url-file"), "{finished:?}");
            assert_silent(&finished, PASSWORD);
        }
    }
}

#[test]
fn f145_no_message_repeats_a_url_that_was_put_in_the_wrong_place() {
    let place = Place::new();
    let url = format!("redis://:{PASSWORD}@localhost");
    let option = format!("--ulr={url}");
    let lines: [&[&str]; 4] =
        [&[&url], &["list", &url], &[&option, "list"], &["run", "--ttl", &url, "x", "--", "true"]];
    for arguments in lines {
        assert_silent(&place.expect(64, arguments), PASSWORD);
    }
}

#[test]
fn f145_a_url_from_the_environment_or_a_file_is_not_repeated_either() {
    let place = Place::new();
    let urls = [
        // No server is at the first; the others are not valid addresses.
        (69, format!("redis://:{PASSWORD}@nobody.invalid")),
        (78, format!("x-{PASSWORD}")),
        (78, PASSWORD.to_owned()),
    ];
    for (status, url) in urls {
        let mut command = bare(Path::new(BINARY));
        let finished = finish(command.env("LEASEHOLD_URL", &url).args(["-v", "list"]));
        assert_eq!(finished.status, status, "{finished:?}");
        assert_silent(&finished, PASSWORD);
        let file = place.path("url");
        std::fs::write(&file, &url).expect("written");
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
        let file = file.display().to_string();
        let finished = place.expect(status, &["-v", "--url-file", &file, "list"]);
        assert_silent(&finished, PASSWORD);
    }
}

#[test]
fn f145_a_handle_shows_in_no_view_and_no_log() {
    let place = Place::new();
    let handle = handle(&place.expect(0, &["acquire", "--ttl", "1h", "x"]));
    let _waiter = place.start(&["run", "x", "--", "true"]);
    place.await_waiting("x", 1);
    let secret = &handle[26..48];
    let views: [&[&str]; 8] = [
        &["-v", "list"],
        &["-v", "--json", "list"],
        &["-v", "show", "x"],
        &["-v", "--json", "show", "x"],
        &["-v", "doctor"],
        &["-v", "stats"],
        &["-v", "run", "-w", "300ms", "x", "--", "true"],
        &["-v", "--json", "acquire", "x"],
    ];
    for arguments in views {
        assert_silent(&place.finish(arguments), secret);
    }
    let verbs: [&[&str]; 3] = [&["-v", "check"], &["-v", "renew"], &["-v", "release"]];
    for verb in verbs {
        let finished = place.expect(0, &[verb, &[handle.as_str()]].concat());
        assert_silent(&finished, secret);
    }
}

#[test]
fn f145_the_child_does_not_inherit_the_address_of_the_store() {
    let place = Place::new();
    let finished = place.expect(0, &["run", "x", "--", "env"]);
    assert!(!finished.stdout.contains("LEASEHOLD_URL"), "{finished:?}");
    assert!(!finished.stdout.contains("locks.db"), "{finished:?}");
}

#[test]
fn f145_no_file_of_the_store_is_inherited_by_the_child() {
    let place = Place::new();
    let finished = place.expect(0, &["run", "x", "--", "ls", "-l", "/proc/self/fd"]);
    assert!(!finished.stdout.contains("locks.db"), "{finished:?}");
}
