//! The findings of `doctor`: the cluster's size, bounds and clocks.
//!
//! The tests of the command cover clocks that are apart, because its clock can be moved.

use leasehold::engine::Level;
use leasehold_testkit::doctor::{found, one};
use leasehold_testkit::{Certificates, Etcd};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_members_bounds_and_clock_of_a_cluster() {
    let cluster = cluster().await;
    let url = cluster.url();
    assert_eq!(found(url, "members").await, one(Level::Good, "3 that vote, of which 1 may fail"));
    assert_eq!(found(url, "shortest lease").await, one(Level::Good, "1 s"));
    assert_eq!(found(url, "clock").await, one(Level::Good, "less than 1 s apart"));
    let versions = found(url, "version").await;
    let version = ctl(&endpoint(&cluster.servers()[0]), &["version"]);
    let version = version.lines().next().and_then(|line| line.split(": ").nth(1));
    let version = version.expect("etcdctl has the server's version");
    assert!(versions.iter().all(|(_, found)| found.contains(version)), "{versions:?}");
    let bug = "a leader that was replaced";
    let told = versions.iter().filter(|(_, found)| found.contains(bug)).count();
    assert_eq!(told, if believes_old_leaders(version) { 3 } else { 0 }, "{versions:?}");
}

/// Whether a version believes a leader that was replaced: all before 3.4.31, and 3.5 before 3.5.13.
/// No version since 3.6 does.
fn believes_old_leaders(version: &str) -> bool {
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    match parts[..] {
        [3, 4, patch] => patch < 31,
        [3, 5, patch] => patch < 13,
        [major, minor, _] => (major, minor) < (3, 4),
        _ => panic!("not a version: {version}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_warns_of_one_member_alone_and_of_leases_that_last_long() {
    let slow = Etcd::new().argument("--election-timeout=5000").argument("--heartbeat-interval=500");
    let server = slow.start().await.expect("a server");
    let url = server.url();
    let alone = "1 that vote, of which 0 may fail";
    assert_eq!(found(url, "members").await, one(Level::Warning, alone));
    assert_eq!(found(url, "shortest lease").await, one(Level::Warning, "8 s"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_the_clock_through_tls() {
    let made = Certificates::new().expect("certificates");
    let server = Etcd::new().mutual_tls(&made).start().await.expect("a server");
    let (ca, cert, key) = (made.ca(), made.client_certificate(), made.client_key());
    let (ca, cert, key) = (ca.display(), cert.display(), key.display());
    let url = format!("etcds://{}?ca={ca}&cert={cert}&key={key}", server.address());
    assert_eq!(found(&url, "clock").await, one(Level::Good, "less than 1 s apart"));
}
