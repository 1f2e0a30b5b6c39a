//! Sessions that are over for their client while the ensemble keeps them. The client must treat
//! their nodes as those of a stranger.
//!
//! No ensemble causes this. But a client that gave a session up, or got a wrong answer, must not
//! count on its end.

use std::net::SocketAddr;

use leasehold::claim::{Claim, Renewal, Standing, Ttl};
use leasehold::engine::{Engine, Wake};
use leasehold::zookeeper::ZooKeeper;
use leasehold_testkit::{AfterLoss, Proxy, Server, bare};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::support::*;

/// A server that reports to every session that it is over, and opens none.
struct Gravedigger {
    address: SocketAddr,
    told: mpsc::Receiver<i64>,
}

impl Gravedigger {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tell, told) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Some(session) = say_it_is_over(stream).await
                    && tell.send(session).await.is_err()
                {
                    return;
                }
            }
        });
        Self { address, told }
    }
}

/// Returns the session that got the report.
async fn say_it_is_over(mut stream: TcpStream) -> Option<i64> {
    let length = usize::try_from(stream.read_i32().await.ok()?).ok()?;
    let mut hello = vec![0; length];
    stream.read_exact(&mut hello).await.ok()?;
    // It follows the protocol's version, the latest transaction, and the timeout.
    let session = i64::from_be_bytes(*hello.get(16..)?.first_chunk()?);
    if session == 0 {
        return None;
    }
    // No timeout, no session, and an empty password.
    let mut over = vec![0; 4 + 4 + 8 + 4 + 16 + 1];
    over[4 + 4 + 8 + 3] = 16;
    stream.write_i32(over.len() as i32).await.ok()?;
    stream.write_all(&over).await.ok()?;
    Some(session)
}

/// A claim on the session that opened the store; it outlives every test.
fn claim(name: &str) -> Claim {
    Claim { ttl: Ttl::DEFAULT.get(), ..bare::claim(name) }
}

fn renewal(claim: &Claim) -> [Renewal; 1] {
    [bare::renewal(claim)]
}

/// A claim that holds on a session that is over for its client, because a server said so. Its nodes
/// still exist.
async fn held_on_a_session_that_is_over(server: &Server) -> (Proxy, ZooKeeper, Claim, u64) {
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let engine = ZooKeeper::open(format!("zk://{}", proxy.address())).await.expect("a connection");
    let first = claim("ended");
    let standing = engine.claim(&first).await.expect("an answer");
    let Standing::Held { fence, .. } = standing else { panic!("{standing:?}") };
    let mut gravedigger = Gravedigger::start().await;
    proxy.set_target(gravedigger.address);
    proxy.reset_all();
    soon("a session that is told", gravedigger.told.recv()).await.expect("it runs");
    proxy.set_target(server.address());
    (proxy, engine, first, fence)
}

/// Removes the old nodes, and checks that the other claim is granted after them.
async fn granted_once_the_old_is_gone(
    server: &Server,
    engine: &ZooKeeper,
    (waits, fence): (&Claim, u64),
) {
    let near = client(server.url()).await;
    assert_eq!(near.admin().force_release("ended", "a test").await.expect("an answer").len(), 1);
    let woken = soon("the hand-off", engine.wait(&waits.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Holds { fence: now, .. } if now > fence) || woken == Wake::Ask);
    let standing = engine.claim(waits).await.expect("an answer");
    assert!(matches!(standing, Standing::Held { fence: now, .. } if now > fence), "{standing:?}");
    engine.release(std::slice::from_ref(&waits.key)).await.expect("an answer");
    engine.close().await.expect("an answer");
    leaves_nothing(server, [near]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_new_session_stands_behind_the_nodes_of_an_old_one_that_lives() {
    let server = server().await;
    let (_proxy, engine, first, fence) = held_on_a_session_that_is_over(&server).await;
    let old = claims(&server);
    let second = claim("ended");
    for _ in 0..3 {
        let standing = soon("an answer", engine.claim(&second)).await.expect("one");
        assert!(matches!(standing, Standing::Queued { ahead: 1, .. }), "{standing:?}");
    }
    // The old lease is lost, although a client with its token could take its session over.
    let standing = engine.renew(&renewal(&first)).await.expect("an answer");
    assert!(matches!(standing[..], [Ok(Standing::Out { .. })]), "{standing:?}");
    let standing = engine.renew(&renewal(&second)).await.expect("an answer");
    assert!(matches!(standing[..], [Ok(Standing::Queued { ahead: 1, .. })]), "{standing:?}");
    let now = claims(&server);
    assert!(!old.is_empty() && old.iter().all(|node| now.contains(node)), "{old:?} {now:?}");
    granted_once_the_old_is_gone(&server, &engine, (&second, fence)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_f87_claim_whose_answer_was_lost_is_not_found_on_an_old_session_that_lives() {
    let server = server().await;
    let (proxy, engine, first, fence) = held_on_a_session_that_is_over(&server).await;
    let old = claims(&server);
    // The new session is open before the proxy loses an answer.
    let other = claim("other");
    assert!(matches!(engine.claim(&other).await, Ok(Standing::Held { .. })));
    proxy.lose_reply_to("/ended/", AfterLoss::Reset);
    // The same claim once more, so that both have the same attempt in their nodes' names.
    let standing = soon("an answer", async {
        loop {
            match engine.claim(&first).await {
                Err(error) if error.is_transient() => {}
                standing => return standing.expect("a standing"),
            }
        }
    })
    .await;
    assert_eq!(proxy.traffic().replies_lost, 1, "the answer got through");
    assert!(matches!(standing, Standing::Queued { ahead: 1, .. }), "{standing:?}");
    let now: Vec<_> = claims(&server).into_iter().filter(|node| node.contains("/ended/")).collect();
    assert!(old.iter().all(|node| now.contains(node)), "{old:?} {now:?}");
    assert_eq!(now.len(), 2 * old.len(), "one claim of each session: {now:?}");
    engine.release(&[other.key]).await.expect("an answer");
    granted_once_the_old_is_gone(&server, &engine, (&first, fence)).await;
}
