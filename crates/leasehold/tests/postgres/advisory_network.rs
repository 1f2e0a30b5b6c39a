//! F20 to F28, F110, F111 and F117 on advisory locks: faults between a client and the server. F02,
//! F03, F112, F114 and F115 are cases of the conformance suite.

use std::time::Duration;

use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, LeaseState, LockOptions, LostCause, Released, UnlessHeld, connect};
use leasehold_testkit::{AfterLoss, Direction, Postgres, Proxy};

use crate::support::{
    EVENT_MAX, LONG, advisory_on, carried_out, database, granted, number, plain, server, soon,
    until, until_free, until_waiting, waiter,
};

/// A store that clients reach directly and over a proxy.
pub(crate) struct Lab {
    pub(crate) proxy: Proxy,
    pub(crate) direct: String,
    troubled: String,
}

impl Lab {
    pub(crate) async fn new(options: &str) -> Self {
        let direct = advisory_on(server());
        let proxy = Proxy::start(server().address()).await.expect("a proxy");
        let (address, database) = (proxy.address(), database(&direct).to_owned());
        let troubled = format!("postgres+advisory://postgres@{address}/{database}{options}");
        Self { proxy, direct, troubled }
    }

    /// A client behind the proxy, and one without a proxy.
    pub(crate) async fn clients(&self) -> (Client, Client) {
        let other = connect(&self.direct).await.expect("connected");
        (connect(&self.troubled).await.expect("connected"), other)
    }
}

#[tokio::test]
async fn f20_a_short_partition_makes_the_lease_uncertain_and_no_more() {
    let lab = Lab::new("").await;
    let builder = Client::builder().renew_at_percent(20);
    let client = builder.connect(&lab.troubled).await.expect("connected");
    let lease = client.mutex("n").ttl(Duration::from_secs(6)).lock().await.expect("a lease");
    lab.proxy.block(Direction::Both);
    until("an overdue renewal", async || lease.state() == LeaseState::Uncertain).await;
    lab.proxy.pass().await.expect("passing");
    until("a renewal", async || lease.state() == LeaseState::Held).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn f21_a_long_partition_loses_the_lease_before_the_next_grant() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let lease = client.mutex("n").ttl(Duration::from_secs(1)).lock().await.expect("a lease");
    let next = waiter(other.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    lab.proxy.block(Direction::Both);
    let next = granted(next).await;
    assert_eq!(lease.state(), LeaseState::Lost, "its own clock told it first");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
}

#[tokio::test]
async fn f22_a_holder_that_vanishes_without_a_word_is_followed_after_its_ttl() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let lease = client.mutex("n").ttl(Duration::from_secs(1)).lock().await.expect("a lease");
    // The server's end of the connection stays open, and hears nothing.
    lab.proxy.block(Direction::Both);
    drop((lease, client));
    drop(soon("a grant", other.mutex("n").lock()).await.expect("a lease"));
}

#[tokio::test]
async fn f23_client_claims_again_once_after_a_lost_answer() {
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let lab = Lab::new("?timeout_ms=400").await;
        let (client, other) = lab.clients().await;
        // Warmed up, so that the lost answer is that of the claim itself.
        client.mutex("m").lock().await.expect("a lease").release().await.expect("an answer");
        lab.proxy.lose_next_reply(after);
        let lease = soon("a grant", client.mutex("n").lock()).await.expect("a lease");
        assert_eq!(lab.proxy.traffic().replies_lost, 1);
        let line = other.line("n").await.expect("an answer").expect("a line");
        assert_eq!((line.held.len(), line.waiting.len()), (1, 0));
        assert_eq!(line.held[0].fence, lease.fence());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        until_free(&other, "n").await;
    }
}

#[tokio::test]
async fn f24_a_release_whose_answer_is_lost_has_taken_effect() {
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let lab = Lab::new("?timeout_ms=400").await;
        let (client, other) = lab.clients().await;
        let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
        lab.proxy.lose_next_reply(after);
        let released = soon("the answer", lease.release()).await.expect("an answer");
        assert_eq!(released, Released::Released);
        assert_eq!(lab.proxy.traffic().replies_lost, 1);
        until_free(&other, "n").await;
    }
}

/// The next claim has the lock as soon as the server has carried out the drop. The client that
/// expired reads the answer later.
#[tokio::test]
async fn release_during_the_report_of_an_expiry_names_the_next_holder() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let ttl = Duration::from_secs(2);
    // Its heartbeats keep alive the session that both are on.
    let _kept = client.mutex("m").ttl(ttl).lock().await.expect("a lease");
    let lease = client
        .mutex("n")
        .ttl(ttl)
        .options(LockOptions::new().renew(false))
        .lock()
        .await
        .expect("a lease");
    let next = waiter(other.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    lab.proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let next = granted(next).await;
    assert_eq!(lease.state(), LeaseState::Lost);
    let released = soon("the answer", lease.release()).await.expect("an answer");
    assert_eq!(released, Released::TakenBy(other.holder().clone()));
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
}

/// The client writes the record for others a moment after the grant. The write may be in flight
/// when the end of the lease changes.
#[tokio::test]
async fn an_end_that_changes_while_it_is_being_written_is_read_as_it_is() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let first = Duration::from_secs(20);
    lab.proxy.delay(Direction::ToClient, Duration::from_millis(150));
    let lease = client.mutex("n").ttl(first).lock().await.expect("a lease");
    lease.extend(LONG).await.expect("an answer");
    let line = other.line("n").await.expect("an answer").expect("a line");
    assert!(line.held[0].remaining > first, "{line:?}");
}

#[tokio::test]
async fn f26_a_grant_that_is_slower_than_its_ttl_is_refused_and_cleaned() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    lab.proxy.delay(Direction::ToClient, Duration::from_millis(700));
    let mutex = client.mutex("n").ttl(Duration::from_millis(400));
    let asked = soon("the answer", mutex.try_lock()).await.unless_held();
    assert!(matches!(asked, Err(Error::TooSlow { .. })), "{asked:?}");
    until_free(&other, "n").await;
}

#[tokio::test]
async fn f28_heartbeats_keep_a_connection_that_would_be_cut_when_idle() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let ttl = Duration::from_secs(4);
    let lease = client.mutex("n").ttl(ttl).lock().await.expect("a lease");
    let begun = lease.deadline();
    // A heartbeat comes after 60 % of the ttl; without one, the connection would be cut.
    lab.proxy.cut_idle(ttl);
    until("several renewals", async || {
        assert!(lease.is_held());
        lease.deadline().since(begun) > ttl * 3 / 2
    })
    .await;
    assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn f28_a_lease_is_lost_when_its_connection_is_cut_and_not_a_ttl_later() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(other.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    lab.proxy.reset_all();
    soon("the loss", lease.lost()).await;
    assert_eq!(lease.state(), LeaseState::Lost);
    assert!(granted(next).await.fence() > lease.fence());
    // The client goes on with other connections.
    assert!(client.mutex("m").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test]
async fn f29_the_driver_repeats_nothing_and_the_engine_asks_once_more_on_another_session() {
    let server = Postgres::new().setting("log_statement", "all").start().await.expect("a server");
    let direct = advisory_on(&server);
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let troubled =
        format!("postgres+advisory://postgres@{}/{}", proxy.address(), database(&direct));
    let builder = Client::builder().retry(RetryPolicy::OFF);
    let client = builder.connect(&troubled).await.expect("connected");
    client.mutex("m").lock().await.expect("a lease").release().await.expect("an answer");
    let before = carried_out(&server, "pg_try_advisory_lock");
    proxy.lose_next_reply(AfterLoss::Reset);
    let lease = soon("a grant", client.mutex("n").lock()).await.expect("a lease");
    assert_eq!(proxy.traffic().replies_lost, 1);
    // The lock without a reader ended with its session, so another session has to ask.
    assert_eq!(carried_out(&server, "pg_try_advisory_lock") - before, 2);
    let observer = plain(&direct).await;
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    until("one lock", async || number(&observer, locks).await == 1).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until("no lock", async || number(&observer, locks).await == 0).await;
}

#[tokio::test]
async fn f111_a_waiter_whose_connection_is_cut_waits_again() {
    let lab = Lab::new("").await;
    let (client, other) = lab.clients().await;
    for round in 0..3 {
        let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
        let next = waiter(client.request("n").ttl(LONG));
        until_waiting(&other, "n", 1).await;
        let before = lab.proxy.traffic().accepted;
        lab.proxy.reset_all();
        let again = lab.proxy.wait_for("another wait", EVENT_MAX, |t| t.accepted > before);
        again.await.expect("it connects again");
        lease.release().await.expect("an answer");
        let next = granted(next).await;
        assert_eq!(next.release().await.expect("an answer"), Released::Released, "{round}");
    }
}

#[tokio::test]
async fn f117_those_who_are_connected_are_granted_in_the_servers_order() {
    let url = advisory_on(server());
    let other = connect(&url).await.expect("connected");
    let client = connect(&url).await.expect("connected");
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let (sender, mut order) = tokio::sync::mpsc::channel(8);
    for place in 0..5 {
        let (request, sender) = (client.request("n").ttl(LONG), sender.clone());
        tokio::spawn(async move {
            let lease = request.acquire().await.expect("a lease");
            sender.send(place).await.expect("the test listens");
            lease.release().await.expect("an answer");
        });
        until_waiting(&other, "n", place + 1).await;
    }
    lease.release().await.expect("an answer");
    for place in 0..5 {
        assert_eq!(soon("the next grant", order.recv()).await, Some(place));
    }
}
