//! Servers that are killed and come back: empty, or with the data that they wrote to disk.

use std::time::Duration;

use leasehold::engine::Level;
use leasehold::{LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::servers;

use crate::support::*;

const TTL: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_server_that_restarts_empty_forgets_the_lock_and_no_fence_comes_again() {
    let server = server().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    server.restart().await.expect("it restarts");
    let next = two.mutex("report").ttl(LONG).try_lock().await.unless_held().expect("an answer");
    let next = next.expect("nobody holds it by the server's word");
    assert!(next.fence() > lease.fence());
    let cause = soon("the loss", lease.lost()).await;
    assert_eq!(cause, LostCause::TakenBy(two.holder().clone()));
    assert!(next.is_held());
    let findings = two.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "persistence").level, Level::Warning);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_waiter_joins_the_line_again_on_a_server_that_restarted_empty() {
    let server = server().await;
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    server.restart().await.expect("it restarts");
    assert!(waiter.granted().await.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_grant_of_the_last_second_is_kept_or_followed_by_a_greater_fence() {
    let options = servers::Redis::new().append_only();
    let options = options.argument("--appendfsync").argument("everysec");
    let server = options.start().await.expect("a server starts");
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    assert_eq!(told(&server, &["CONFIG", "GET", "appendfsync"]), "appendfsync\neverysec");
    let findings = two.admin().examine().await.expect("an answer");
    let persistence = about(&findings, "persistence");
    assert_eq!(persistence.level, Level::Warning, "{persistence:?}");
    assert!(persistence.found.contains("everysec"), "{persistence:?}");
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    server.restart().await.expect("it restarts");
    match two.mutex("report").ttl(LONG).try_lock().await.unless_held().expect("an answer") {
        Some(next) => assert!(next.fence() > lease.fence()),
        None => {
            until_renewed(&lease).await;
            assert!(lease.is_held());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_server_that_writes_everything_down_keeps_the_lock_over_a_kill() {
    let server = servers::Redis::new().append_only().start().await.expect("a server starts");
    let (one, two) = (early_client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(TTL).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    server.restart().await.expect("it restarts");
    assert!(two.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let seen = two.line("report").await.expect("an answer").expect("it is held");
    assert_eq!(seen.held[0].fence, lease.fence());
    let (fence, expected) = (lease.fence(), seen.waiting[0].fence);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.fence() == expected && next.fence() > fence);
    let findings = two.admin().examine().await.expect("an answer");
    assert_eq!(about(&findings, "persistence").level, Level::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_during_a_short_restart_are_answered_after_it() {
    let server = servers::Redis::new().append_only().start().await.expect("a server starts");
    let one = client(server.url()).await;
    warm_up(&one).await;
    server.kill().expect("it is killed");
    let asked = Waiter::start(one.request("report").ttl(LONG));
    server.launch().expect("it starts");
    assert!(asked.granted().await.is_held());
}
