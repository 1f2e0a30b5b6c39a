//! A server whose wall clock is stepped or stands still. The lease table ends claims by it.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{Client, LockOptions, LostCause, connect};
use leasehold_testkit::{Clock, ClockDiary, Postgres, Server};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

async fn clocked() -> (Clock, Server) {
    let clock = Clock::new().expect("a clock that can be moved");
    let server = Postgres::new().clock(&clock).start().await.expect("a server starts");
    (clock, server)
}

/// A client that keeps a diary of clocks and renews early.
async fn diarist(diary: &ClockDiary, url: &str) -> Client {
    let builder = Client::builder().renew_at_percent(20).observer(diary.clone());
    soon("a client", builder.connect(url)).await.expect("the store opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_clients_report_a_server_clock_that_jumps_ahead_and_fences_stay_in_order() {
    let (clock, server) = clocked().await;
    let (holding, waiting) = (ClockDiary::default(), ClockDiary::default());
    let (one, two) = (diarist(&holding, server.url()).await, diarist(&waiting, server.url()).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    let waiter = waiter(two.request("report").ttl(LONG));
    until_waiting(&one, "report", 1).await;
    clock.set_ahead(HOUR).expect("the clock moves");
    // Both may believe to hold now. Fences are for this case.
    let next = granted(waiter).await;
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await;
    assert!(matches!(cause, LostCause::TakenBy(_) | LostCause::Removed), "{cause:?}");
    for diary in [&holding, &waiting] {
        until("word of a step", async || diary.ahead().is_some()).await;
        let (_, by) = diary.ahead().expect("it was told");
        assert!(by > HOUR * 9 / 10 && by < HOUR * 11 / 10, "{by:?}");
        assert_eq!(diary.entries().len(), 1, "{:?}", diary.entries());
    }
    let findings = one.admin().examine().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.found.contains("ahead"));
    assert_eq!(told.expect("a word of it").level, Level::Bad);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f47_waiter_and_doctor_report_a_server_clock_that_stands_still() {
    let (clock, server) = clocked().await;
    let diary = ClockDiary::default();
    let (one, two) = (connect(server.url()).await, diarist(&diary, server.url()).await);
    let one = one.expect("connected");
    let mutex =
        one.mutex("report").ttl(Duration::from_secs(2)).options(LockOptions::new().renew(false));
    let lease = mutex.lock().await.expect("free");
    let waiter = waiter(two.request("report").ttl(LONG));
    until_waiting(&one, "report", 1).await;
    clock.freeze();
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Expired);
    until("word of a clock that stands still", async || diary.frozen().is_some()).await;
    assert!(!waiter.is_finished(), "nothing expires");
    let findings = one.admin().examine().await.expect("an answer");
    let told = findings.iter().find(|finding| finding.found.contains("stands still"));
    assert_eq!(told.expect("a word of it").level, Level::Bad);
    clock.thaw();
    assert!(granted(waiter).await.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_slow_answers_and_a_server_that_is_restarted_are_no_step() {
    let server = Postgres::new().start().await.expect("a server starts");
    let proxy = leasehold_testkit::Proxy::start(server.address()).await.expect("a proxy");
    let diary = ClockDiary::default();
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let client = diarist(&diary, &url).await;
    let lease = client.mutex("report").ttl(Duration::from_secs(10)).lock().await.expect("free");
    let renewed = async || {
        let before = lease.deadline();
        until("a renewal", async || lease.deadline() > before).await;
    };
    for delay in [Duration::from_millis(400), Duration::ZERO] {
        proxy.delay(leasehold_testkit::Direction::ToServer, delay);
        renewed().await;
        proxy.delay(leasehold_testkit::Direction::ToServer, Duration::ZERO);
        proxy.delay(leasehold_testkit::Direction::ToClient, delay);
        renewed().await;
    }
    server.restart().await.expect("it restarts");
    renewed().await;
    assert!(lease.is_held());
    assert_eq!(diary.entries(), []);
}
