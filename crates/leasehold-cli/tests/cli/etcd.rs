//! The command on etcd. What the engine does is tested with the library.

use std::path::Path;
use std::time::Duration;

use leasehold_testkit::{Clock, Etcd};

use crate::support::{BINARY, bare, finish, json};

#[test]
fn doctor_warns_of_a_clock_that_is_an_hour_off_either_way() {
    let server = Etcd::new().start_blocking().expect("a server starts");
    let clock = Clock::new().expect("a clock that can be moved");
    let hour = Duration::from_secs(3_600);
    for step in ["none", "ahead", "behind"] {
        match step {
            "none" => Ok(()),
            "ahead" => clock.set_ahead(hour),
            _ => clock.set_behind(hour),
        }
        .expect("moved");
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", server.url()).args(["doctor", "--json"]);
        let finished = finish(command.envs(clock.environment()));
        let findings = json(&finished.stdout);
        let findings = findings["findings"].as_array().expect("findings");
        let told = findings.iter().find(|finding| finding["subject"] == "clock").expect("a clock");
        let found = told["found"].as_str().expect("a text");
        if step == "none" {
            assert_eq!((found, &told["level"]), ("less than 1 s apart", &"good".into()));
            continue;
        }
        assert_eq!(told["level"], "warning", "{step}: {told}");
        let seconds = found.strip_prefix("number 1 of the url is ");
        let seconds = seconds.and_then(|rest| rest.strip_suffix(" s apart"));
        let seconds = seconds.and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| (3_590..3_610).contains(&seconds)), "{told}");
    }
}
