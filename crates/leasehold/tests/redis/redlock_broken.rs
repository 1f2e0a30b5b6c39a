//! Records of a quorum that some of its nodes cannot read.

use leasehold::engine::Query;
use leasehold_testkit::Server;

use crate::redlock::{long_url, memory_only};
use crate::support::*;

/// The key of the name at a node that is not its lock.
fn companion(server: &Server, kind: &str) -> String {
    let keys = told(server, &["KEYS", &format!("leasehold:quorum:{kind}:*report*")]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys.trim().to_owned()
}

/// Writes something into the record that no script writes.
fn damage(server: &Server, how: &str) {
    let line = companion(server, "line");
    match how {
        "another type" => {
            told(server, &["DEL", &line]);
            told(server, &["RPUSH", &line, "x"]);
        }
        _ => {
            let token = told(server, &["HGET", &line, "h"]);
            told(server, &["HSET", &line, token.trim(), how]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_that_nodes_cannot_read_is_named_hides_no_other_and_is_cleared() {
    let group = memory_only(3).await;
    let client = client(long_url(&group)).await;
    let mutex = |name| client.mutex(name).ttl(LONG);
    let _a = mutex("a").lock().await.expect("free");
    let _z = mutex("z").lock().await.expect("free");
    let mut last_fence = 0;
    for damaged in 1..=3 {
        for how in ["another type", "", "nonsense"] {
            let case = format!("{how:?} at {damaged}");
            let lease = mutex("report").lock().await.expect("free");
            assert!(lease.fence() > last_fence, "{case}");
            last_fence = lease.fence().as_u64();
            // The third node may receive the lease after the grant.
            until("a record at each node", async || {
                group.servers().iter().all(|server| told(server, &["EXISTS", "lock:report"]) == "1")
            })
            .await;
            for server in &group.servers()[..damaged] {
                damage(server, how);
            }
            let page = client.admin().inspect(&Query::all()).await.expect("the others are shown");
            let names: Vec<&str> = page.lines.iter().map(|line| line.name.as_str()).collect();
            assert!(names.contains(&"a") && names.contains(&"z"), "{case}: {names:?}");
            assert_eq!(names.contains(&"report"), damaged < 3, "{case}: {names:?}");
            let broken: Vec<&str> = page.broken.iter().map(|line| line.name.as_str()).collect();
            assert_eq!(broken, ["report"], "{case}");
            let active = client.admin().store_stats().await.expect("an answer").active;
            assert_eq!(active, names.len() as u64, "{case}");
            let findings = client.admin().examine().await.expect("an answer");
            assert!(about(&findings, "record").found.contains("`report`"), "{case}");
            let cleared =
                client.admin().force_release("report", "a test").await.expect("an answer");
            assert!(!cleared.is_empty(), "{case}");
            drop(lease);
            let page = client.admin().inspect(&Query::all()).await.expect("an answer");
            assert!(page.broken.is_empty(), "{case}: {page:?}");
        }
    }
    drop(mutex("report").lock().await.expect("free"));
}
