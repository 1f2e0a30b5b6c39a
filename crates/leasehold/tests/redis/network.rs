//! The network before the server: slow, one-sided, cut, and losing answers.

use std::time::Duration;

use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::{AfterLoss, Direction};

use crate::support::*;

/// The script calls of this engine, once the server knows the scripts.
const CALL: &str = "EVALSHA";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_lease_is_kept_while_connections_are_reset_again_and_again() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let holder = early_client(url_of(&proxy)).await;
    let other = client(server.url()).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(3)).lock().await.expect("free");
    for _ in 0..3 {
        proxy.reset_all();
        until_renewed(&lease).await;
        until_renewed(&lease).await;
        assert!(lease.is_held());
    }
    assert!(other.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let seen = other.line("report").await.expect("an answer").expect("it is held");
    assert_eq!(seen.held[0].fence, lease.fence());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_release_at_random_points_of_a_renewal_leaves_no_key() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let builder = Client::builder().renew_at_percent(10);
    let holder = builder.connect(url_of(&proxy)).await.expect("the store opens");
    warm_up(&holder).await;
    proxy.delay(Direction::Both, Duration::from_millis(2));
    for round in 0..40 {
        // The first renewal is due after 200 ms: releases fall before, into and after it.
        let lease = holder.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
        tokio::time::sleep(Duration::from_millis(190) + Duration::from_micros(500 * round)).await;
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        assert_eq!(told(&server, &["EXISTS", "lock:report"]), "0");
    }
    // A renewal that was in flight at the last release has arrived by the next answer.
    warm_up(&holder).await;
    // The store's own counters stay.
    let keys = told(&server, &["KEYS", "*"]);
    let is_counter = |key: &&str| {
        ["fence", "totals", "store"]
            .iter()
            .any(|kind| key.starts_with(&format!("leasehold:{kind}:")))
    };
    let left: Vec<&str> = keys.lines().filter(|key| !is_counter(key)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_partition_shorter_than_the_ttl_keeps_the_lease() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let holder = early_client(url_of(&proxy)).await;
    let other = client(server.url()).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(6)).lock().await.expect("free");
    proxy.block(Direction::Both);
    until("an uncertain lease", async || lease.state() != LeaseState::Held).await;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    assert!(other.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let before = lease.deadline();
    proxy.pass().await.expect("the proxy passes");
    until("a certain lease", async || lease.state() != LeaseState::Uncertain).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(lease.deadline() > before);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

/// Cuts a holder off in one way, and checks that another client is granted only after its loss.
async fn cut_off(direction: Direction) {
    let server = server().await;
    let proxy = proxy(&server).await;
    let holder = client(url_of(&proxy)).await;
    let other = client(server.url()).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(1)).lock().await.expect("free");
    let waiter = Waiter::queue(&other, &other, "report", 0).await;
    proxy.block(direction);
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    proxy.pass().await.expect("the proxy passes");
    let released = lease.release().await.expect("an answer");
    assert_ne!(released, Released::Released);
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_partition_longer_than_the_ttl_loses_the_lease_before_the_next_grant() {
    cut_off(Direction::Both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_requests_that_do_not_arrive_lose_the_lease_before_the_next_grant() {
    cut_off(Direction::ToServer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_peer_that_vanished_without_a_word_is_followed_after_its_ttl() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let holder = client(url_of(&proxy)).await;
    let other = client(server.url()).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(1)).lock().await.expect("free");
    let fence = lease.fence();
    // No message of the holder arrives from here on, the end of its connections included.
    proxy.block(Direction::Both);
    drop((lease, holder));
    let next = soon("a grant", other.mutex("report").ttl(LONG).lock()).await.expect("a grant");
    assert!(next.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_renewal_gives_a_connection_up_that_fell_silent() {
    let server = server().await;
    let proxy = proxy(&server).await;
    // The client's time limit for an answer is longer than the lease: only the renewal's own limit
    // can help.
    let url = format!("redis://{}?timeout_ms=60000", proxy.address());
    let holder = early_client(url).await;
    let other = client(server.url()).await;
    warm_up(&other).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(4)).lock().await.expect("free");
    until_renewed(&lease).await;
    proxy.lose_reply_to(CALL, AfterLoss::Silence);
    proxy.wait_for("a lost reply", EVENT_MAX, |seen| seen.replies_lost > 0).await.expect("lost");
    until_renewed(&lease).await;
    assert!(lease.is_held());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

async fn lost_claim_answer(after: AfterLoss) {
    let server = server().await;
    let proxy = proxy(&server).await;
    let (one, other) = (client(url_of(&proxy)).await, client(server.url()).await);
    warm_up(&one).await;
    let before = script_calls(&server);
    proxy.lose_reply_to(CALL, after);
    let lease = soon("a grant", one.mutex("report").ttl(LONG).lock()).await.expect("adopted");
    assert_eq!(proxy.traffic().replies_lost, 1);
    assert_eq!(script_calls(&server) - before, 2, "one claim, and one more with its token");
    let seen = other.line("report").await.expect("an answer").expect("it is held");
    assert_eq!((seen.held.len(), seen.waiting.len()), (1, 0));
    assert_eq!(seen.held[0].fence, lease.fence());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(other.line("report").await.expect("an answer").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_lost_claim_answer_is_adopted() {
    lost_claim_answer(AfterLoss::Reset).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_claim_answer_that_never_comes_is_adopted() {
    lost_claim_answer(AfterLoss::Silence).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_lost_claim_answer_is_cleaned_when_nothing_is_tried_again() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let (one, other) = (plain_client(url_of(&proxy)).await, client(server.url()).await);
    warm_up(&one).await;
    proxy.lose_reply_to(CALL, AfterLoss::Reset);
    let asked = soon("an answer", one.mutex("report").ttl(LONG).lock()).await;
    assert!(matches!(&asked, Err(Error::Unreachable { .. })), "{asked:?}");
    until_free(&other, "report").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_lost_release_answer_is_harmless() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let (one, other) = (client(url_of(&proxy)).await, client(server.url()).await);
    warm_up(&one).await;
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
        proxy.lose_reply_to(CALL, after);
        let released = soon("an answer", lease.release()).await.expect("an answer");
        // The first release took effect, so the second finds no claim.
        assert_eq!(released, Released::Released);
        assert!(other.line("report").await.expect("an answer").is_none());
    }
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&other, &other, "report", 0).await;
    proxy.lose_reply_to(CALL, AfterLoss::Reset);
    let released = soon("an answer", lease.release()).await.expect("an answer");
    assert_eq!(released, Released::Released);
    let next = waiter.granted().await;
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_answer_slower_than_the_ttl_is_refused_and_cleaned() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let url = format!("redis://{}?timeout_ms=20000", proxy.address());
    let (one, other) = (plain_client(url).await, client(server.url()).await);
    warm_up(&one).await;
    proxy.delay(Direction::ToClient, Duration::from_millis(1_200));
    let mutex = one.mutex("report").ttl(Duration::from_millis(500));
    let answer = soon("an answer", mutex.try_lock()).await.unless_held();
    assert!(matches!(answer, Err(Error::TooSlow { .. })), "{answer:?}");
    proxy.pass().await.expect("the proxy passes");
    until_free(&other, "report").await;
    assert_eq!(one.stats().active, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_connections_cut_when_idle_are_opened_again() {
    let server = server().await;
    let proxy = proxy(&server).await;
    proxy.cut_idle(Duration::from_millis(200));
    let holder = client(url_of(&proxy)).await;
    let waiting = client(url_of(&proxy)).await;
    let other = client(server.url()).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let waiter = Waiter::queue(&other, &waiting, "report", 0).await;
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert!(lease.is_held() && waiter.is_waiting());
    assert!(proxy.traffic().accepted > 4, "nothing was cut: {:?}", proxy.traffic());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(waiter.granted().await.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_driver_repeats_nothing_by_itself() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let builder = Client::builder().retry(RetryPolicy::OFF);
    let one = builder.connect(url_of(&proxy)).await.expect("the store opens");
    warm_up(&one).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let before = script_calls(&server);
    proxy.lose_reply_to(CALL, AfterLoss::Reset);
    let asked = soon("an answer", one.mutex("report").ttl(LONG).try_lock()).await.unless_held();
    assert!(matches!(&asked, Err(Error::Unreachable { .. })), "{asked:?}");
    // The claim, and the one release with which the library removes it again.
    until("the release of the unsure claim", async || script_calls(&server) - before >= 2).await;
    assert_eq!(script_calls(&server) - before, 2);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_lease_survives_a_change_of_the_servers_address() {
    let server = server().await;
    let (old_way, new_way) = (proxy(&server).await, proxy(&server).await);
    let front = leasehold_testkit::Proxy::start(old_way.address()).await.expect("a proxy");
    let holder = early_client(url_of(&front)).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(4)).lock().await.expect("free");
    front.set_target(new_way.address());
    drop(old_way);
    front.reset_all();
    until_renewed(&lease).await;
    assert!(lease.is_held() && new_way.traffic().accepted > 0);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_lease_is_lost_when_the_address_leads_to_another_server() {
    let (server, empty) = (server().await, server().await);
    let proxy = proxy(&server).await;
    let holder = early_client(url_of(&proxy)).await;
    let lease = holder.mutex("report").ttl(Duration::from_secs(4)).lock().await.expect("free");
    proxy.set_target(empty.address());
    proxy.reset_all();
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Removed);
    assert_eq!(told(&empty, &["EXISTS", "lock:report"]), "0", "a renewal puts nothing back");
    let next = client(empty.url()).await.mutex("report").lock().await.expect("free there");
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_whose_answer_is_lost_names_the_holder() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let (holder, admin) = (client(server.url()).await, client(url_of(&proxy)).await);
    // The server knows the script from then on.
    assert!(admin.admin().force_release("report", "warm").await.expect("an answer").is_empty());
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    proxy.lose_reply_to("stuck", AfterLoss::Reset);
    let from =
        soon("an answer", admin.admin().force_release("report", "stuck")).await.expect("known");
    assert_eq!(proxy.traffic().replies_lost, 1, "the answer got through");
    assert_eq!(from, [holder.holder().clone()]);
    assert!(admin.line("report").await.expect("an answer").is_none());
    assert_ne!(lease.release().await.expect("an answer"), Released::Released);
}
