//! Claims that lose their place in line while messages about it are in flight.

use std::time::Duration;

use leasehold::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token};
use leasehold::engine::Engine as _;
use leasehold::etcd::Etcd;
use leasehold_testkit::{Direction, Proxy};

use super::support::*;

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
