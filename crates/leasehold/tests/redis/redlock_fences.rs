//! Fences of a quorum that its nodes' clocks cannot explain: counters ahead of the clocks, above
//! 2^53.

use std::time::Duration;

use leasehold_testkit::Server;

use crate::redlock::{memory_only, until_released, url, votes};
use crate::support::*;

/// The first number that a float would round, far ahead of every clock.
const ODD: u64 = (1 << 53) + 1;

/// The counter of the one name that a node has given a vote for.
fn counter(server: &Server) -> String {
    let keys = told(server, &["KEYS", "leasehold:quorum:fence:*"]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
    keys.trim().to_owned()
}

fn set(server: &Server, counter: &str, to: u64) {
    told(server, &["SET", counter, &to.to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_node_that_restarted_empty_copies_counters_ahead_of_the_clock_exactly() {
    let group = memory_only(3).await;
    let ttl = Duration::from_secs(2);
    let client = client(url(&group, &format!("ttl_max_ms={}", ttl.as_millis()))).await;
    let fence = async || {
        let lease = client.mutex("report").ttl(ttl).lock().await.expect("free");
        let fence = lease.fence().as_u64();
        lease.release().await.expect("an answer");
        until_released(group.servers()).await;
        fence
    };
    fence().await;
    let [first, second, third] = group.servers() else { panic!("three nodes") };
    let key = counter(first);
    for server in group.servers() {
        set(server, &key, ODD);
    }
    let last = fence().await;
    assert_eq!(last, ODD + 1, "the next number, to the last digit");
    // As if the second node had been out of reach for a while. Only the first and the third know
    // the last fence, and the third forgets it.
    let last = last + 1_000;
    set(first, &key, last);
    third.restart().await.expect("it restarts");
    client.mutex("other").ttl(ttl).lock().await.expect("free").release().await.expect("known");
    until("all to vote", async || votes(&client).await == [true; 3]).await;
    first.kill().expect("it is killed");
    let next = client.mutex("report").ttl(ttl).lock().await.expect("a majority").fence();
    assert_eq!(next, last + 1, "it knows from the first what the first gave");
    assert_eq!(told(second, &["GET", &key]), next.to_string());
}
