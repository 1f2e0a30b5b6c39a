//! Permits in lines that are longer than what one claim watches: the nearest 64.

use leasehold::Mode;
use leasehold::claim::{Claim, Standing};
use leasehold::engine::{Engine as _, Wake};
use leasehold::zookeeper::ZooKeeper;
use leasehold_testkit::{Server, bare};

use super::support::*;

/// More than one claim watches.
const MANY: usize = 70;

fn permits(take: u32, of: u32) -> Claim {
    Claim { mode: Mode::Permits { take, of }, ..bare::claim("permits") }
}

async fn engine(server: &Server) -> ZooKeeper {
    ZooKeeper::open(server.url()).await.expect("a connection")
}

/// Puts claims of one permit each into the line.
async fn joined(engine: &ZooKeeper, count: usize, of: u32) -> Vec<Claim> {
    let mut joined = Vec::with_capacity(count);
    for _ in 0..count {
        let claim = permits(1, of);
        engine.claim(&claim).await.expect("a place");
        joined.push(claim);
    }
    joined
}

async fn leave(engine: &ZooKeeper, claims: impl IntoIterator<Item = Claim>) {
    for claim in claims {
        engine.release(&[claim.key]).await.expect("an answer");
    }
}

async fn is_queued(engine: &ZooKeeper, claim: &Claim) -> bool {
    let standings = engine.renew(&[bare::renewal(claim)]).await.expect("an answer");
    matches!(standings[..], [Ok(Standing::Queued { .. })])
}

/// No client asks or sends a heartbeat here: only a watch reports a change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_behind_more_than_are_watched_are_granted_once_all_of_those_left() {
    let server = server().await;
    let [line, last] = [engine(&server).await, engine(&server).await];
    let mut ahead = joined(&line, 2 + MANY, 2).await;
    let waits = permits(1, 2);
    let standing = last.claim(&waits).await.expect("a place");
    assert!(matches!(standing, Standing::Queued { ahead: 72, .. }), "{standing:?}");
    // The line's session watches each of its claims but the last once, and this one watches the
    // nearest.
    assert_eq!(counted(&server, "zk_watch_count"), (2 + MANY - 1 + 64) as u64);
    let holds = ahead.drain(..2).collect::<Vec<_>>();
    // The nearest claims leave first.
    ahead.reverse();
    leave(&line, ahead).await;
    let [first, second] = <[Claim; 2]>::try_from(holds).expect("two");
    leave(&line, [first]).await;
    let woken = soon("the hand-off", last.wait(&waits.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Holds { .. } | Wake::Ask), "{woken:?}");
    let standing = last.claim(&waits).await.expect("an answer");
    assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
    leave(&line, [second]).await;
    leave(&last, [waits]).await;
    close([&line, &last]).await;
    leaves_nothing(&server, []).await;
}

/// The first in line leave first: no claim watches them from so far behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_given_back_far_ahead_are_granted_in_order_of_arrival() {
    let server = server().await;
    let of = 1 + MANY as u32;
    let (holds, waits) = (engine(&server).await, client(server.url()).await);
    let ahead = joined(&holds, 1 + MANY, of).await;
    let mut waiters = Vec::new();
    // The second needs more than the third, and is not overtaken.
    for (place, take) in [1, 3, 1].into_iter().enumerate() {
        let claim = waits.request("permits").mode(Mode::Permits { take, of }).ttl(LONG);
        waiters.push(Waiter::start(claim));
        until_waiting(&waits, "permits", place + 1).await;
    }
    let mut leases = Vec::new();
    let mut ahead = ahead.into_iter();
    for (place, needed) in [1, 3, 1].into_iter().enumerate() {
        for given in 0..needed {
            assert!(waiters[place].is_waiting(), "{place} was granted after {given}");
            leave(&holds, ahead.next()).await;
        }
        let lease = waiters[place].granted().await;
        assert!(waiters[place + 1..].iter().all(Waiter::is_waiting), "{place} was overtaken");
        leases.push(lease);
    }
    assert!(leases.is_sorted_by_key(|lease| lease.fence()));
    for lease in leases {
        lease.release().await.expect("an answer");
    }
    leave(&holds, ahead).await;
    close([&holds]).await;
    leaves_nothing(&server, [waits]).await;
}

/// The nearest leaves: the waiter hears of it at once, and the other claims behind it keep their
/// places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_given_back_near_by_is_heard_of_without_a_heartbeat() {
    let server = server().await;
    let of = 1 + MANY as u32;
    let [holds, waits] = [engine(&server).await, engine(&server).await];
    let mut ahead = joined(&holds, 1 + MANY, of).await;
    let [first, second] = <[Claim; 2]>::try_from(joined(&waits, 2, of).await).expect("two");
    leave(&holds, ahead.pop()).await;
    let woken = soon("the hand-off", waits.wait(&first.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Holds { .. }), "{woken:?}");
    assert!(is_queued(&waits, &second).await, "it was overtaken");
    leave(&waits, [second, first]).await;
    leave(&holds, ahead).await;
    close([&holds, &waits]).await;
    leaves_nothing(&server, []).await;
}
