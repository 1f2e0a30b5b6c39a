//! Requests that a server carries out long after the client gave them up.

use std::time::Duration;

use leasehold::Released;
use leasehold::claim::{Claim, Mode, Standing};
use leasehold::engine::{Engine as _, Query};
use leasehold::zookeeper::ZooKeeper;
use leasehold_testkit::bare::{claim, renewal};
use leasehold_testkit::{Direction, Proxy, Zookeeper};

use super::ensemble::{lead, ways};
use super::support::*;

/// Short, so that the client soon gives up a server that does not answer.
const TTL: Duration = Duration::from_secs(4);

/// Claims that the leader handles before the late one.
const BEFORE: usize = 100;

fn shared(name: &str) -> Claim {
    Claim { mode: Mode::Shared, ttl: TTL, patience: TTL, ..claim(name) }
}

/// Asks until the client can reach the store.
async fn held(engine: ZooKeeper, asked: Claim) {
    while !matches!(engine.claim(&asked).await, Ok(Standing::Held { .. })) {
        tokio::task::yield_now().await;
    }
}

/// The number of claims in a line.
async fn claims_of(engine: &ZooKeeper, asked: &Claim) -> usize {
    let page = engine.inspect(&Query::name(asked.key.name.clone())).await.expect("an answer");
    page.lines.iter().map(|line| line.held.len() + line.waiting.len()).sum()
}

/// A server passes a request on to the leader late. The client gives up, connects to the same
/// server again, gives up again, and connects to another one. Once the connection to the leader is
/// free, the leader believes that the session came back to the first server. So that server's
/// earlier requests seem to be part of the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn late_server_makes_no_claim_that_its_client_gave_up() {
    let group = Zookeeper::new().setting("syncLimit", "60").start_ensemble().await;
    let group = group.expect("an ensemble");
    // The connection of the first server to the last one, which leads.
    let (late, leads) = (0, group.servers().len() - 1);
    let way_to_leader = 2 * leads;
    let ways = ways(&group, late).await;
    lead(&group, leads).await;
    let [slow, fast] = [late, leads].map(|index| group.servers()[index].address());
    let [to_slow, to_fast] =
        [Proxy::start(slow).await.expect("a proxy"), Proxy::start(fast).await.expect("a proxy")];
    let url = format!("zk://{},{}?connect_timeout_ms=300", to_slow.address(), to_fast.address());
    to_fast.refuse_new().await.expect("it is told");
    let far = ZooKeeper::open(&url).await.expect("a connection");
    let beside = ZooKeeper::open(format!("zk://{slow}")).await.expect("a connection");
    let near = ZooKeeper::open(format!("zk://{fast}")).await.expect("a connection");
    // Its session is open before any request is late.
    let warm = shared("warm");
    soon("a grant", held(far.clone(), warm.clone())).await;
    assert_eq!(far.release(&[warm.key]).await.expect("an answer"), [Released::Released]);
    let warm = claim("warm");
    assert!(matches!(beside.claim(&warm).await, Ok(Standing::Held { .. })));

    ways[way_to_leader].block(Direction::ToServer);
    let before: Vec<_> = (0..BEFORE)
        .map(|index| {
            let (beside, asked) = (beside.clone(), claim(&format!("before:{index}")));
            tokio::spawn(async move { beside.claim(&asked).await })
        })
        .collect();
    let way = &ways[way_to_leader];
    let limit = Duration::from_secs(5);
    way.wait_for("other claims", limit, |seen| seen.to_server.held > 10_000).await.expect("held");
    let asked = shared("rw");
    let asking = tokio::spawn(held(far.clone(), asked.clone()));
    let accepted = to_slow.traffic().accepted;
    to_slow.wait_for("a hello", EVENT_MAX, |seen| seen.accepted > accepted).await.expect("hello");
    to_fast.accept_new().await.expect("it is told");
    soon("a grant", asking).await.expect("no panic");
    let key = std::slice::from_ref(&asked.key);
    assert_eq!(far.release(key).await.expect("an answer"), [Released::Released]);
    assert_eq!(claims_of(&near, &asked).await, 0);

    way.pass().await.expect("it passes");
    for one in before {
        soon("an answer", one).await.expect("no panic").ok();
    }
    // The leader has this server's earlier requests once it answers.
    until("an answer", async || beside.claim(&claim("after")).await.is_ok()).await;
    assert_eq!(claims_of(&near, &asked).await, 0, "a node is left that nobody knows of");
    close([&far, &beside, &near]).await;
}

/// An event about the claim before it may grant it until then: nobody watches its own node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_node_was_deleted_by_hand_finds_that_out_by_its_first_renewal() {
    let server = server().await;
    let near = ZooKeeper::open(server.url()).await.expect("a connection");
    let far = ZooKeeper::open(server.url()).await.expect("a connection");
    let [first, waiting, second] = [(); 3].map(|()| claim("deleted"));
    assert!(matches!(near.claim(&first).await, Ok(Standing::Held { .. })));
    assert!(matches!(far.claim(&waiting).await, Ok(Standing::Queued { .. })));
    for claim in [&waiting, &first] {
        let released = near.release(std::slice::from_ref(&claim.key)).await.expect("an answer");
        assert_eq!(released, [Released::Released]);
    }
    assert!(matches!(near.claim(&second).await, Ok(Standing::Held { .. })));
    soon("an event", far.wait(&waiting.key)).await.expect("a bell");
    let renewed = far.renew(&[renewal(&waiting)]).await.expect("an answer");
    assert!(matches!(renewed[..], [Ok(Standing::Out { .. })]), "{renewed:?}");
    for engine in [far, near] {
        soon("the close", engine.close()).await.expect("an answer");
    }
}
