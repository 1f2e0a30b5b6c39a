//! Servers whose wall clocks are stepped or stand still. Redis ends keys by them.
//!
//! The tests of the command cover steps of a client's wall clock (F42), because the command can run
//! on a clock of its own.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{LeaseState, LockOptions, LostCause, UnlessHeld};
use leasehold_testkit::{Clock, ClockDiary, Direction, Server, servers};

use crate::redlock::counted_at;
use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

async fn clocked() -> (Clock, Server) {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = servers::Redis::new().clock(&clock).start().await.expect("a server starts");
    (clock, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_server_clock_that_jumps_ahead_frees_locks_early_and_keeps_fences_in_order() {
    let (clock, server) = clocked().await;
    let diary = ClockDiary::default();
    let (one, two) = (diarist(&diary, server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(4)).lock().await.expect("free");
    clock.set_ahead(HOUR).expect("the clock moves");
    // Both believe to hold now. Fences are for this case, and the page says so.
    let next = two
        .mutex("report")
        .ttl(LONG)
        .try_lock()
        .await
        .unless_held()
        .expect("an answer")
        .expect("free");
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await;
    assert_eq!(cause, LostCause::TakenBy(two.holder().clone()), "found by its next renewal");
    let (at, by) = until_ahead(&diary).await;
    assert!(at.contains(&server.address().to_string()), "{at}");
    assert!(by > HOUR * 9 / 10 && by < HOUR * 11 / 10, "{by:?}");
    let findings = one.admin().examine().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.level == Level::Bad).expect("a word of it");
    assert!(told.subject == "clock" && told.found.contains("ahead"), "{told:?}");
    let findings = two.admin().examine().await.expect("an answer");
    let finding = about(&findings, "clock");
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.found.contains("ahead of"), "{finding:?}");
    // Back again: fences rise although the clock fell by an hour.
    clock.set_ahead(Duration::ZERO).expect("the clock moves");
    two.admin().force_release("report", "it would last an hour").await.expect("an answer");
    let last = two.mutex("report").lock().await.expect("free");
    assert!(last.fence() > next.fence(), "{} after {}", last.fence(), next.fence());
    let findings = two.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "clock").level, Level::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_server_clock_that_falls_back_frees_nothing_early() {
    let (clock, server) = clocked().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    clock.set_behind(HOUR).expect("the clock moves");
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert!(lease.is_held() && waiter.is_waiting());
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > fence);
}

/// Checks that a client that waits, and holds nothing, reports a step.
async fn waiter_reports_a_step(clock: &Clock, url: &str, step: Duration) {
    let diary = ClockDiary::default();
    let (one, two) = (early_client(url).await, diarist(&diary, url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(20)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    // In a Cluster the client knows the clock once a heartbeat was answered.
    until("a heartbeat", async || diary.renewals() > 0).await;
    clock.set_ahead(step).expect("the clock moves");
    let (_, by) = until_ahead(&diary).await;
    // The report is a lower bound, which a slow answer lowers.
    assert!(by <= step + step / 10, "{by:?}");
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > fence);
    assert_eq!(diary.entries().len(), 1, "{:?}", diary.entries());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_waiter_reports_a_step() {
    let (clock, server) = clocked().await;
    waiter_reports_a_step(&clock, server.url(), Duration::from_secs(5)).await;
}

/// By less than the time after which Sentinels and Clusters report a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_waiter_reports_a_step_behind_sentinels_and_in_a_cluster() {
    let step = Duration::from_millis(700);
    let clock = Clock::new().expect("a clock that can be moved");
    let group = servers::Redis::new().clock(&clock).start_cluster().await.expect("it starts");
    waiter_reports_a_step(&clock, group.url(), step).await;
    let clock = Clock::new().expect("a clock that can be moved");
    let group = servers::Redis::new().clock(&clock).start_sentinel().await.expect("it starts");
    waiter_reports_a_step(&clock, group.url(), step).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_slow_answers_a_server_that_was_paused_and_load_are_no_step() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let diary = ClockDiary::default();
    let url = format!("redis://{}", proxy.address());
    let (one, two) = (diarist(&diary, &url).await, diarist(&diary, &url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    let _waiter = Waiter::queue(&one, &two, "report", 0).await;
    for delay in [Duration::from_millis(300), Duration::ZERO, Duration::from_millis(200)] {
        proxy.delay(Direction::ToServer, delay);
        until_renewed(&lease).await;
        proxy.delay(Direction::ToServer, Duration::ZERO);
        proxy.delay(Direction::ToClient, delay);
        until_renewed(&lease).await;
    }
    proxy.delay(Direction::ToClient, Duration::ZERO);
    server.stop_process().expect("it stops");
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.continue_process().expect("it goes on");
    until_renewed(&lease).await;
    let load = (0..200).map(|number| {
        let client = one.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                let name = format!("load {number} {round}");
                let lease = client.mutex(name).lock().await.expect("free");
                lease.release().await.expect("an answer");
            }
        })
    });
    for task in load.collect::<Vec<_>>() {
        soon("the load", task).await.expect("no panic");
    }
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert_eq!(diary.entries(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f47_server_clock_that_stands_still_expires_nothing_and_waiter_and_doctor_report_it() {
    let (clock, server) = clocked().await;
    let diary = ClockDiary::default();
    let (one, two) = (client(server.url()).await, diarist(&diary, server.url()).await);
    let mutex = one
        .mutex("report")
        .ttl(Duration::from_millis(500))
        .options(LockOptions::new().renew(false));
    let lease = mutex.lock().await.expect("free");
    clock.freeze();
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Expired);
    assert_eq!(lease.state(), LeaseState::Lost, "the holder counts on its own clock");
    until("a word of the clock", async || {
        let findings = two.admin().examine().await.expect("an answer");
        let finding = about(&findings, "clock");
        finding.level == Level::Bad && finding.found == "stands still"
    })
    .await;
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    let at = until_frozen(&diary).await;
    assert!(at.contains(&server.address().to_string()), "{at}");
    assert!(waiter.is_waiting());
    assert!(
        two.mutex("report").try_lock().await.unless_held().expect("an answer").is_none(),
        "still there"
    );
    clock.thaw();
    assert!(waiter.granted().await.fence() > lease.fence());
}

/// Three nodes, the first on a clock that can be moved, and their address.
async fn nodes() -> (Clock, Vec<Server>, String) {
    let (clock, first) = clocked().await;
    let nodes = vec![first, server().await, server().await];
    let hosts: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
    let url = format!("redlock://{}?ttl_max_ms=600000", hosts.join(","));
    (clock, nodes, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_one_nodes_clock_that_jumps_ahead_is_named_and_frees_nothing() {
    let (clock, nodes, url) = nodes().await;
    let (holding, waiting) = (ClockDiary::default(), ClockDiary::default());
    let (one, two) = (diarist(&holding, &url).await, diarist(&waiting, &url).await);
    let lease = counted_at(&nodes, &one).await;
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    clock.set_ahead(HOUR).expect("the clock moves");
    for diary in [&holding, &waiting] {
        let (at, by) = until_ahead(diary).await;
        assert_eq!(at, nodes[0].address().to_string());
        assert!(by > HOUR * 9 / 10 && by < HOUR * 11 / 10, "{by:?}");
    }
    until_renewed(&lease).await;
    assert!(lease.is_held() && waiter.is_waiting(), "a majority keeps it");
    let findings = one.admin().examine().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.subject == "clock").expect("a word of it");
    assert!(told.found.contains(&nodes[0].address().to_string()), "{told:?}");
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    let next = waiter.granted().await;
    assert!(next.fence() > fence);
    clock.set_ahead(Duration::ZERO).expect("the clock moves");
    let fence = next.fence();
    next.release().await.expect("an answer");
    assert!(one.mutex("report").lock().await.expect("free").fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_majority_of_nodes_that_jumps_ahead_frees_early_and_keeps_fences_in_order() {
    let clock = Clock::new().expect("a clock that can be moved");
    let options = servers::Redis::new().clock(&clock);
    let group = options.start_many(3).await.expect("servers start");
    let hosts: Vec<String> =
        group.servers().iter().map(|node| node.address().to_string()).collect();
    let url = format!("redlock://{}?ttl_max_ms=600000", hosts.join(","));
    let diary = ClockDiary::default();
    let (one, two) = (diarist(&diary, &url).await, client(&url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    clock.set_ahead(HOUR).expect("the clock moves");
    let next = two
        .mutex("report")
        .ttl(LONG)
        .try_lock()
        .await
        .unless_held()
        .expect("an answer")
        .expect("free");
    assert!(next.fence() > lease.fence());
    soon("the loss", lease.lost()).await;
    until("word of every node", async || diary.entries().len() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f47_waiter_and_doctor_report_a_node_whose_clock_stands_still() {
    let (clock, nodes, url) = nodes().await;
    let diary = ClockDiary::default();
    let (one, two) = (early_client(&url).await, diarist(&diary, &url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    clock.freeze();
    assert_eq!(until_frozen(&diary).await, nodes[0].address().to_string());
    let late = client(&url).await;
    let findings = late.admin().examine().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.subject == "clock").expect("a word of it");
    assert!(told.found.contains("stood still"), "{told:?}");
    clock.thaw();
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(waiter.granted().await.fence() > fence);
}
