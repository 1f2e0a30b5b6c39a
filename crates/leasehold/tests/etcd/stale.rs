//! Claims that lose their place in line while messages about it are in flight.

use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token};
use leasehold::engine::{Engine as _, Query};
use leasehold::etcd::Etcd;
use leasehold_testkit::{Direction, Proxy};

use super::support::*;

/// The server's counter of leases that ran out.
const EXPIRED: &str = "etcd_debugging_server_lease_expired_total";

fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: leasehold::Name::new(name).expect("good"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: LONG,
        patience: LONG,
        join: true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bell_of_a_lost_place_does_not_grant_the_next_one() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let near = client(server.url()).await;
    let far = client(&format!("etcd://{}", proxy.address())).await;
    let first = near.mutex("hole").ttl(LONG).lock().await.expect("free");
    let ttl = Duration::from_secs(2);
    let waiters: Vec<_> = (0..4).map(|_| Waiter::start(far.request("hole").ttl(ttl))).collect();
    until_waiting(&near, "hole", 4).await;
    proxy.block(Direction::Both);
    // First their places are gone, then the holder before them. They hear both at once.
    until_waiting(&near, "hole", 0).await;
    first.release().await.expect("an answer");
    let second = near.mutex("hole").ttl(LONG).lock().await.expect("free");
    proxy.pass().await.expect("it passes");
    until_waiting(&near, "hole", 4).await;
    assert!(waiters.iter().all(Waiter::is_waiting), "two hold at once");
    assert!(second.is_held());
    let fence = second.fence();
    second.release().await.expect("an answer");
    // They joined again in any order, so each gives the lease back as soon as it is granted.
    let served = waiters.into_iter().map(async |mut waiter| {
        let lease = waiter.granted().await;
        assert!(lease.fence() > fence);
        lease.release().await.expect("an answer");
    });
    futures_util::future::join_all(served).await;
    nothing_is_left(&server, &[far, near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_does_not_judge_a_claim_by_a_line_from_before_it_came_back() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let near = Etcd::open(server.url()).await.expect("a connection");
    let far = Etcd::open(format!("etcd://{}", proxy.address())).await.expect("a connection");
    let [first, waiting, second] = [(); 3].map(|()| claim("line"));
    assert!(matches!(near.claim(&first).await, Ok(Standing::Held { .. })));
    assert!(matches!(far.claim(&waiting).await, Ok(Standing::Queued { .. })));
    near.release(&[waiting.key.clone(), first.key.clone()]).await.expect("an answer");
    // The heartbeat reads an empty line, and the proxy holds its answer back.
    proxy.block(Direction::ToClient);
    let heartbeat =
        Renewal { key: waiting.key.clone(), ttl: waiting.ttl, patience: waiting.patience };
    let beating = tokio::spawn(async move { far.renew(&[heartbeat]).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(matches!(near.claim(&second).await, Ok(Standing::Held { .. })));
    assert!(matches!(near.claim(&waiting).await, Ok(Standing::Queued { .. })));
    proxy.pass().await.expect("it passes");
    let standings = soon("an answer", beating).await.expect("no panic").expect("an answer");
    assert!(matches!(standings[..], [Ok(Standing::Queued { ahead: 1, .. })]), "{standings:?}");
}

/// A second try makes no second lease: the client chose the id, and asks for the same one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_of_etcd_whose_answer_was_lost_is_asked_for_again_by_its_id() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = Etcd::open(format!("etcd://{}", proxy.address())).await.expect("a connection");
    proxy.block(Direction::ToClient);
    let asked = claim("lease");
    let asking = tokio::spawn({
        let (far, asked) = (far.clone(), asked.clone());
        async move { far.claim(&asked).await }
    });
    until("a lease", async || lease_ids(&server).len() == 1).await;
    proxy.reset_all();
    proxy.pass().await.expect("it passes");
    let lost = soon("the end of the first try", asking).await.expect("no panic");
    assert!(lost.as_ref().is_err_and(leasehold::Error::is_transient), "{lost:?}");
    let standing = soon("an answer", far.claim(&asked)).await;
    assert!(matches!(standing, Ok(Standing::Held { .. })), "{standing:?}");
    assert_eq!(lease_ids(&server).len(), 1);
    soon("the close", far.close()).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_that_was_not_told_of_its_lease_ends_it() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = Etcd::open(format!("etcd://{}", proxy.address())).await.expect("a connection");
    proxy.block(Direction::ToClient);
    let watching = tokio::spawn({
        let watch = Arc::new(far.clone()).parts().watch.expect("it can watch");
        async move { watch.watch(&Query::all()).await.map(|_| ()) }
    });
    until("a lease", async || lease_ids(&server).len() == 1).await;
    proxy.reset_all();
    proxy.pass().await.expect("it passes");
    let lost = soon("the end of the call", watching).await.expect("no panic");
    assert!(lost.as_ref().is_err_and(leasehold::Error::is_transient), "{lost:?}");
    until_empty(&server).await;
    assert_eq!(metric(&server, EXPIRED), 0, "the lease ran out instead");
}

/// The request to write the claim's shorter life is held back until another client has prolonged
/// the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_renewal_does_not_shorten_what_a_later_one_asked_for() {
    const SHORT: Duration = Duration::from_secs(20);
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let near = Etcd::open(server.url()).await.expect("a connection");
    let far = Etcd::open(format!("etcd://{}", proxy.address())).await.expect("a connection");
    let asked = Claim { ttl: SHORT, ..claim("late") };
    assert!(matches!(far.claim(&asked).await, Ok(Standing::Held { .. })));
    let key = claims(&server).remove(0);
    // It reads the claim's key first.
    proxy.hold_behind(key.clone());
    let renewal = |ttl| Renewal { key: asked.key.clone(), ttl, patience: SHORT };
    let late = tokio::spawn({
        let (far, renewals) = (far.clone(), [renewal(SHORT * 2)]);
        async move {
            loop {
                match far.renew(&renewals).await {
                    Err(error) if error.is_transient() => {}
                    answer => return answer,
                }
            }
        }
    });
    until("a request that is held back", async || {
        proxy.traffic().to_server.held > 2 * key.len() as u64
    })
    .await;
    let renewed = near.renew(&[renewal(LONG)]).await.expect("an answer");
    assert!(matches!(renewed[..], [Ok(Standing::Held { .. })]), "{renewed:?}");
    proxy.pass().await.expect("it passes");
    let late = soon("an answer", late).await.expect("no panic").expect("an answer");
    assert!(matches!(late[..], [Ok(Standing::Held { .. })]), "{late:?}");
    let lines = near.inspect(&Query::all()).await.expect("an answer").lines;
    let left = lines[0].held[0].remaining;
    assert!(left > LONG / 2, "{left:?}");
    for engine in [far, near] {
        soon("the close", engine.close()).await.expect("an answer");
    }
}
