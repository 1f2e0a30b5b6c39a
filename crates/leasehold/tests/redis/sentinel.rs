//! A master behind Sentinels: passwords, and what a failover keeps and loses.

use std::time::Duration;

use leasehold::error::Config;
use leasehold::redis::Redis;
use leasehold::{Error, LeaseState, LostCause};
use leasehold_testkit::{SentinelGroup, servers};

use crate::support::*;

async fn group() -> (SentinelGroup, String) {
    let options = servers::Redis::new().password("of the data").sentinel_password("their own");
    let group = options.start_sentinel().await.expect("servers and sentinels start");
    let url = format!("{}?sentinel_password=their%20own&timeout_ms=1000", group.url());
    (group, url)
}

async fn until_promoted(group: &SentinelGroup) {
    let first = group.first_master().port();
    until("another master", async || {
        let master = group.current_master().map(|server| (server.port(), server));
        master.is_ok_and(|(port, server)| {
            let role = server.redis(&["ROLE"]).unwrap_or_default();
            port != first && role.starts_with("master")
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_grant_that_a_replica_has_outlives_a_fail_over() {
    let (group, url) = group().await;
    let wrong = format!("{}?sentinel_password=wrong", group.url());
    for url in [group.url(), &wrong, &url.replace("of%20the%20data", "wrong")] {
        let error = soon("a refusal", Redis::open(url)).await.expect_err("a wrong password");
        assert!(matches!(error, Error::Config(Config::Denied { .. })), "{error:?}");
        assert!(!format!("{error:?}{error}").contains("wrong"), "{error:?}");
    }
    let (one, two) = (early_client(&url).await, client(&url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(20)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    // This test needs a grant that was replicated.
    let replicated = told(group.first_master(), &["WAIT", "2", "10000"]);
    assert_eq!(replicated, "2");
    group.first_master().kill().expect("it is killed");
    until_promoted(&group).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(waiter.is_waiting());
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_grant_that_no_replica_has_is_lost_and_followed_by_a_greater_fence() {
    let (group, url) = group().await;
    let (one, two) = (early_client(&url).await, client(&url).await);
    warm_up(&one).await;
    let replicas = &group.data()[1..];
    for replica in replicas {
        replica.stop_process().expect("it stops");
    }
    // The data in flight to them is lost with the connections.
    told(group.first_master(), &["CLIENT", "KILL", "TYPE", "replica"]);
    let lease = one.mutex("report").ttl(Duration::from_secs(20)).lock().await.expect("free");
    group.first_master().kill().expect("it is killed");
    for replica in replicas {
        replica.continue_process().expect("it goes on");
    }
    until_promoted(&group).await;
    // Two may believe to hold from here on until the first one learns of its loss.
    let next = soon("a grant", two.mutex("report").ttl(LONG).lock()).await.expect("a grant");
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::TakenBy(_) | LostCause::Removed), "{cause:?}");
    assert!(next.is_held());
}
