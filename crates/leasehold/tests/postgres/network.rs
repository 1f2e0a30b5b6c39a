//! F20 to F31, F110, F111 and F117: faults between a client and the server.

use std::time::Duration;

use leasehold::engine::Query;
use leasehold::layer::retry::RetryPolicy;
use leasehold::{Client, Error, LeaseState, LostCause, Released, UnlessHeld, connect};
use leasehold_testkit::{AfterLoss, Direction, Proxy};

use crate::support::{
    EVENT_MAX, LONG, Troubled, granted, server, soon, terminate, until, until_free, until_waiting,
    waiter, without_heartbeats,
};

#[tokio::test]
async fn f20_a_short_partition_makes_the_lease_uncertain_and_no_more() {
    let lab = Troubled::new("").await;
    let builder = Client::builder().renew_at_percent(20);
    let client = builder.connect(&lab.troubled).await.expect("connected");
    let ttl = Duration::from_secs(6);
    let lease = client.mutex("n").ttl(ttl).lock().await.expect("a lease");
    lab.proxy.block(Direction::Both);
    until("an overdue renewal", async || lease.state() == LeaseState::Uncertain).await;
    lab.proxy.pass().await.expect("passing");
    until("a renewal", async || lease.state() == LeaseState::Held).await;
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn f21_a_long_partition_loses_the_lease_before_the_next_grant() {
    let lab = Troubled::new("").await;
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
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    let lease = client.mutex("n").ttl(Duration::from_secs(1)).lock().await.expect("a lease");
    // The server's end of the connection stays open, and hears nothing.
    lab.proxy.block(Direction::Both);
    drop((lease, client));
    drop(soon("a grant", other.mutex("n").lock()).await.expect("a lease"));
}

/// A name that a proxy finds in a request: the statements themselves are prepared.
const LOST: &str = "the answer is lost";

#[tokio::test]
async fn f23_a_claim_whose_answer_is_lost_is_adopted() {
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let lab = Troubled::new("&timeout_ms=400").await;
        let (client, other) = lab.clients().await;
        lab.proxy.lose_reply_to(LOST, after);
        let lease = soon("a grant", client.mutex(LOST).ttl(LONG).lock()).await.expect("a lease");
        assert_eq!(lab.proxy.traffic().replies_lost, 1);
        let line = other.line(LOST).await.expect("an answer").expect("a line");
        assert_eq!((line.held.len(), line.waiting.len()), (1, 0));
        assert_eq!(line.held[0].fence, lease.fence());
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        until_free(&other, LOST).await;
    }
}

#[tokio::test]
async fn f23_a_claim_that_is_given_up_before_its_answer_leaves_nothing() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    // Warmed up, so that the proxy holds up the claim itself.
    client.mutex("m").lock().await.expect("a lease").release().await.expect("an answer");
    lab.proxy.block(Direction::ToServer);
    let mutex = client.mutex("n").ttl(LONG);
    let claim = tokio::spawn(async move { mutex.lock().await });
    lab.proxy
        .wait_for("the claim", EVENT_MAX, |traffic| traffic.to_server.held > 0)
        .await
        .expect("it was sent");
    claim.abort();
    assert!(claim.await.expect_err("nothing arrived").is_cancelled());
    lab.proxy.pass().await.expect("it passes");
    lab.proxy
        .wait_for("the claim on its way", EVENT_MAX, |t| t.to_server.held == 0)
        .await
        .expect("gone");
    client.close().await.expect("closed");
    assert!(other.line("n").await.expect("an answer").is_none());
}

#[tokio::test]
async fn f24_a_release_whose_answer_is_lost_is_repeated() {
    for after in [AfterLoss::Reset, AfterLoss::Silence] {
        let lab = Troubled::new("&timeout_ms=400").await;
        let (client, other) = lab.clients().await;
        let lease = client.mutex(LOST).ttl(LONG).lock().await.expect("a lease");
        lab.proxy.lose_reply_to(LOST, after);
        let released = soon("the answer", lease.release()).await.expect("an answer");
        // The first release took effect; the second finds no claim.
        assert_eq!(released, Released::Released);
        assert!(other.line(LOST).await.expect("an answer").is_none());
    }
}

#[tokio::test]
async fn f29_the_driver_repeats_nothing_by_itself() {
    let lab = Troubled::new("").await;
    let builder = Client::builder().retry(RetryPolicy::OFF);
    let client = builder.connect(&lab.troubled).await.expect("connected");
    let other = connect(&lab.direct).await.expect("connected");
    drop(client.mutex("before").lock().await.expect("free"));
    lab.proxy.lose_reply_to(LOST, AfterLoss::Reset);
    // If the client had asked a second time, the server would have answered.
    let asked = soon("an answer", client.mutex(LOST).ttl(LONG).try_lock()).await.unless_held();
    assert!(matches!(&asked, Err(Error::Unreachable { .. })), "{asked:?}");
    assert_eq!(lab.proxy.traffic().replies_lost, 1);
    until_free(&other, LOST).await;
}

#[tokio::test]
async fn f26_a_grant_that_is_slower_than_its_ttl_is_refused_and_cleaned() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    lab.proxy.delay(Direction::ToClient, Duration::from_millis(700));
    let mutex = client.mutex("n").ttl(Duration::from_millis(400));
    let asked = soon("the answer", mutex.try_lock()).await.unless_held();
    assert!(matches!(asked, Err(Error::TooSlow { .. })), "{asked:?}");
    until_free(&other, "n").await;
}

#[tokio::test]
async fn f27_many_tasks_share_one_connection_and_nobody_waits_for_it() {
    let schema = crate::support::fresh_schema();
    let url = format!("{}?schema={schema}&connections=1", server().url());
    let client = connect(&url).await.expect("connected");
    let tasks: Vec<_> = (0..100)
        .map(|task| {
            let mutex = client.mutex(format!("task:{task}")).ttl(LONG);
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(soon("a grant", task).await.expect("the task ends").expect("a lease"));
    }
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' \
         AND query LIKE '%\"{schema}\"%'"
    );
    let connections: u32 = server().sql(&sql).expect("an answer").parse().expect("a number");
    assert!(connections <= 2, "{connections}: one for callers, one for the keeper");
}

#[tokio::test]
async fn f28_idle_connections_that_are_cut_are_made_again() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(client.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    let before = lab.proxy.traffic().accepted;
    lab.proxy.cut_idle(Duration::from_millis(200));
    let made_again = lab.proxy.wait_for("new connections", EVENT_MAX, |t| t.accepted > before + 2);
    made_again.await.expect("made again");
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
}

#[tokio::test]
async fn f31_a_server_at_another_address_is_found_and_the_lease_survives() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    let lease = client.mutex("n").ttl(Duration::from_secs(10)).lock().await.expect("a lease");
    let detour = Proxy::start(server().address()).await.expect("another address");
    lab.proxy.set_target(detour.address());
    lab.proxy.reset_all();
    soon("a renewal", lease.extend(LONG)).await.expect("it is still held");
    assert!(detour.traffic().accepted > 0);
    assert!(other.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
}

#[tokio::test]
async fn f110_a_waiter_whose_bells_are_all_lost_is_granted_by_its_heartbeat() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
    let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(client.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    let schema = lab.direct.rsplit('=').next().expect("a schema");
    let settle = format!("SELECT pg_get_functiondef('{schema}.settle'::regproc)");
    let settle = server().sql(&settle).expect("the function");
    assert!(settle.contains("PERFORM pg_notify("), "{settle}");
    server().sql(&format!("CREATE SEQUENCE {schema}.lost")).expect("made");
    let lose = format!("PERFORM nextval('{schema}.lost'), concat(");
    server().sql(&settle.replace("PERFORM pg_notify(", &lose)).expect("replaced");
    // While a client watches, releases use the function that calls `settle`.
    let _events = other.admin().watch(&Query::default()).await.expect("events");
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
    let lost = format!("SELECT is_called FROM {schema}.lost");
    assert_eq!(server().sql(&lost).expect("an answer"), "t", "no bell was lost");
}

#[tokio::test]
async fn f111_a_bell_that_rings_while_nobody_listens_is_made_good() {
    let lab = Troubled::new("").await;
    let (client, other) = (without_heartbeats(&lab.direct).await, lab.clients().await.1);
    let schema = lab.direct.rsplit('=').next().expect("a schema").to_owned();
    for round in 0..5 {
        let lease = other.mutex("n").ttl(LONG).lock().await.expect("a lease");
        let next = waiter(client.request("n").ttl(LONG));
        until_waiting(&other, "n", 1).await;
        let listens = format!("query LIKE 'LISTEN%{schema}%'");
        until("the listener", async || terminate(server(), &listens) == 1).await;
        lease.release().await.expect("an answer");
        let next = granted(next).await;
        assert_eq!(next.release().await.expect("an answer"), Released::Released, "{round}");
    }
}

#[tokio::test]
async fn f117_resets_do_not_change_the_order_of_the_line() {
    let lab = Troubled::new("").await;
    let (client, other) = lab.clients().await;
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
        lab.proxy.reset_all();
    }
    lease.release().await.expect("an answer");
    for place in 0..5 {
        assert_eq!(soon("the next grant", order.recv()).await, Some(place));
        lab.proxy.reset_all();
    }
}
