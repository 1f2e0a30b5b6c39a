//! The findings of `doctor`: the ensemble's size, bounds and clock.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold_testkit::doctor::{found, one};
use leasehold_testkit::{Clock, Zookeeper};

use super::support::*;

/// The level of a version: before 3.9.3 a follower may keep a change without a majority.
fn level_of(version: &str) -> Level {
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().expect("it")).collect();
    if numbers < vec![3, 9, 3] { Level::Warning } else { Level::Good }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_servers_bounds_and_clock_of_an_ensemble() {
    let ensemble = ensemble().await;
    let url = ensemble.url();
    let servers = found(url, "server").await;
    for server in ensemble.servers() {
        let text = says(server.address(), "srvr").expect("it answers");
        let version = text.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
        let version = version.and_then(|version| version.split('-').next()).expect("a version");
        let mode = text.lines().find_map(|line| line.strip_prefix("Mode: ")).expect("a mode");
        let told = (level_of(version), format!("{}: {version}, {mode}", server.address()));
        assert!(servers.contains(&told), "{told:?}: {servers:?}");
    }
    let size = found(url, "ensemble").await;
    assert!(matches!(size.as_slice(), [(Level::Good, found)] if found.starts_with("3 of 3")));
    assert_eq!(found(url, "shortest session").await, one(Level::Good, "1s"));
    assert_eq!(found(url, "longest session").await, one(Level::Good, "60s"));
    let clock = found(url, "clock").await;
    assert!(matches!(clock.as_slice(), [(Level::Good, _)]), "{clock:?}");
    leaves_nothing(&ensemble.servers()[0], []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_warns_of_a_server_of_the_url_that_does_not_answer() {
    let ensemble = ensemble().await;
    let url = ensemble.url();
    let (down, alive) = (&ensemble.servers()[1], &ensemble.servers()[0]);
    down.kill().expect("it runs");
    let size = found(url, "ensemble").await;
    let [(Level::Warning, text)] = size.as_slice() else { panic!("{size:?}") };
    assert!(text.starts_with("2 of 3"), "{text}");
    assert!(text.contains(&down.address().to_string()), "{text}");
    assert!(!text.contains(&alive.address().to_string()), "{text}");
    down.restart().await.expect("it starts again");
    until("nothing to warn of", async || {
        matches!(found(url, "ensemble").await.as_slice(), [(Level::Good, _)])
    })
    .await;
    leaves_nothing(alive, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_warns_of_bounds_that_do_not_suit_locks_and_of_one_server_alone() {
    let odd = Zookeeper::new().setting("minSessionTimeout", "8000");
    let server = odd.setting("maxSessionTimeout", "20000").start().await.expect("a server");
    let url = server.url();
    assert_eq!(found(url, "shortest session").await, one(Level::Warning, "8s"));
    assert_eq!(found(url, "longest session").await, one(Level::Warning, "20s"));
    let size = found(url, "ensemble").await;
    assert!(matches!(size.as_slice(), [(Level::Warning, found)] if found.contains("standalone")));
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_warns_of_a_clock_that_is_an_hour_ahead() {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Zookeeper::new().clock(&clock).start().await.expect("a server");
    clock.set_ahead(Duration::from_secs(3_600)).expect("the clock moves");
    let told = found(server.url(), "clock").await;
    let [(Level::Warning, found)] = told.as_slice() else { panic!("{told:?}") };
    let seconds = found.strip_suffix("s apart").and_then(|seconds| seconds.parse::<f64>().ok());
    assert!(seconds.is_some_and(|seconds| (3_590.0..3_610.0).contains(&seconds)), "{found}");
    leaves_nothing(&server, []).await;
}
