//! Notices of long waits: where they are, and that none is left behind.

use leasehold::claim::{Claim, Holder, Standing, Ttl};
use leasehold::engine::{Engine, Notice, Query, Wait, WaitNotices};
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Name, connect};
use leasehold_testkit::{Server, bare};

use super::support::*;

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn notice(holder: &Holder) -> Notice {
    let waits = vec![Wait { name: name("waited"), fence: 7, keeps: Vec::new() }];
    Notice { holder: holder.id(), client: 1, waits, keep: LONG }
}

fn notices(server: &Server) -> Vec<String> {
    let text = says(server.address(), "dump").expect("it answers");
    let nodes = text.lines().filter_map(|line| line.strip_prefix('\t'));
    nodes.filter(|node| node.contains("/waits-")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notice_is_in_no_line_and_is_gone_once_its_client_is_closed() {
    let server = server().await;
    let engine = ZooKeeper::open(server.url()).await.expect("a connection");
    let other = ZooKeeper::open(server.url()).await.expect("a connection");
    let holder = Holder::fresh();
    // Before the first claim, so that the store does not exist yet.
    engine.announce(&notice(&holder)).await.expect("an answer");
    assert_eq!(notices(&server).len(), 1);
    assert!(claims(&server).is_empty(), "no line has it");
    assert!(other.inspect(&Query::all()).await.expect("an answer").lines.is_empty());
    assert_eq!(other.waits_of(holder.id()).await.expect("an answer").len(), 1);
    engine.close().await.expect("an answer");
    assert_eq!(notices(&server), [""; 0]);
    assert!(other.waits_of(holder.id()).await.expect("an answer").is_empty());
    close([&other]).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notice_does_not_stay_with_a_session_that_is_left_to_a_detached_lease() {
    let server = server().await;
    let engine = ZooKeeper::open(server.url()).await.expect("a connection");
    // On the session that opened the store, which also announces waits.
    let claim = Claim { ttl: Ttl::DEFAULT.get(), join: false, ..bare::claim("kept") };
    assert!(matches!(engine.claim(&claim).await, Ok(Standing::Held { .. })));
    engine.announce(&notice(&claim.holder)).await.expect("an answer");
    assert_eq!(notices(&server).len(), 1);
    engine.close().await.expect("an answer");
    assert_eq!(notices(&server), [""; 0]);
    assert!(!claims(&server).is_empty(), "the lease is held on");
    let other = connect(server.url()).await.expect("a connection");
    other.admin().force_release("kept", "the test is over").await.expect("an answer");
    leaves_nothing(&server, [other]).await;
}
