//! Notes that are replaced while a claim holds: no waiter takes that for its end, and they go with
//! it.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::claim::{Amended, Claim, Mode, Note, Standing};
use leasehold::engine::{Amend, Engine, EventKind, Query, Wake};
use leasehold::zookeeper::ZooKeeper;
use leasehold::{Client, Released};
use leasehold_testkit::{Direction, Peer, PeerKind, Proxy, bare};

use super::support::*;

fn claim(name: &str, mode: Mode, ttl: Duration) -> Claim {
    Claim { mode, ttl, ..bare::claim(name) }
}

fn note(text: &str) -> Note {
    Note::new(text).expect("good")
}

async fn note_of(client: &Client, name: &str) -> String {
    let line = client.line(name).await.expect("an answer").expect("it is held");
    line.held[0].note.as_str().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_behind_a_holder_whose_note_changes_is_not_woken() {
    let server = server().await;
    let permit = Mode::Permits { take: 2, of: 2 };
    for dialect in ["both", "kazoo", "curator"] {
        let url = format!("{}?dialect={dialect}", server.url());
        let holds = ZooKeeper::open(&url).await.expect("a connection");
        let waits = ZooKeeper::open(&url).await.expect("a connection");
        for mode in [Mode::Exclusive, permit] {
            let (first, second) = (claim("quiet", mode, LONG), claim("quiet", mode, LONG));
            assert!(matches!(holds.claim(&first).await, Ok(Standing::Held { .. })));
            assert!(matches!(waits.claim(&second).await, Ok(Standing::Queued { .. })));
            let mut woken = pin!(waits.wait(&second.key));
            // The second note replaces the first.
            for text in ["one", "two"] {
                let amended = holds.set_note(&first.key, &note(text)).await.expect("an answer");
                assert_eq!(amended, Amended::Done);
                // A session receives its watch events before a later read shows their effect.
                let page = waits.inspect(&Query::all()).await.expect("an answer");
                assert_eq!(page.lines[0].held[0].note.as_str(), text);
                tokio::select! {
                    biased;
                    woken = &mut woken => panic!("woken by a note: {woken:?} {dialect} {mode:?}"),
                    () = std::future::ready(()) => {}
                }
            }
            holds.release(&[first.key]).await.expect("an answer");
            let woken = soon("the hand-off", woken).await.expect("a bell");
            assert!(matches!(woken, Wake::Holds { .. }), "without asking");
            waits.release(std::slice::from_ref(&second.key)).await.expect("an answer");
            assert_eq!(claims(&server), [""; 0]);
        }
        close([&holds, &waits]).await;
        leaves_nothing(&server, []).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_do_not_take_a_note_for_a_claim_nor_for_an_end() {
    let server = server().await;
    let client = client(server.url()).await;
    for kind in [PeerKind::Kazoo, PeerKind::Curator] {
        let mut theirs = Peer::spawn(kind, &[server.url()]).await.expect("a peer");
        let path = "locks/noted";
        let lease = client.mutex("noted").ttl(LONG).lock().await.expect("free");
        lease.set_note("before they come").await.expect("an answer");
        assert!(!theirs.try_lock(path, LONG).await.expect("an answer"), "{kind}");
        let taken = tokio::spawn(async move {
            let taken = theirs.lock(path, LONG, EVENT_MAX).await.expect("an answer");
            (theirs, taken)
        });
        until_waiting(&client, "noted", 1).await;
        lease.set_note("while they wait").await.expect("an answer");
        assert_eq!(note_of(&client, "noted").await, "while they wait");
        assert!(!taken.is_finished(), "two hold at once: {kind}");
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let (mut theirs, taken) = soon("their turn", taken).await.expect("no panic");
        assert!(taken, "{kind}");
        assert!(theirs.release(path).await.expect("an answer"));
        assert_eq!(claims(&server), [""; 0], "{kind}");
    }
    leaves_nothing(&server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn note_goes_with_its_claim_however_that_ends() {
    let server = server().await;
    let engine = ZooKeeper::open(server.url()).await.expect("a connection");
    let other = client(server.url()).await;
    let amended = async |name: &str, ttl| {
        let held = claim(name, Mode::Shared, ttl);
        assert!(matches!(engine.claim(&held).await, Ok(Standing::Held { .. })));
        let amended = engine.set_note(&held.key, &note("new")).await.expect("an answer");
        assert_eq!(amended, Amended::Done);
        assert_eq!(note_of(&other, name).await, "new");
        held.key
    };
    let released = amended("released", LONG).await;
    engine.release(&[released]).await.expect("an answer");
    assert_eq!(claims(&server), [""; 0]);
    let evicted = amended("evicted", LONG).await;
    other.admin().force_release("evicted", "a test").await.expect("an answer");
    assert_eq!(claims(&server), [""; 0]);
    let out = engine.set_note(&evicted, &note("late")).await.expect("an answer");
    assert_eq!((out, claims(&server)), (Amended::Out { by: None }, Vec::new()));
    // Its session lives on, so only its client can end it.
    let expired = amended("expired", Duration::from_millis(500)).await;
    until_empty(&server).await;
    let out = engine.set_note(&expired, &note("late")).await.expect("an answer");
    assert_eq!((out, claims(&server)), (Amended::Out { by: None }, Vec::new()));
    close([&engine]).await;
    leaves_nothing(&server, [other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn note_of_a_lease_that_was_taken_up_by_its_handle_is_replaced() {
    let server = server_with_long_sessions().await;
    let (first, second) = (client(server.url()).await, client(server.url()).await);
    let lease = first.request("handed").ttl(LONG).note("first").acquire().await.expect("free");
    lease.set_note("second").await.expect("an answer");
    let handle = lease.detach().await.expect("a handle");
    let lease = second.adopt(&handle).await.expect("it is held");
    for text in ["third", "fourth"] {
        lease.set_note(text).await.expect("an answer");
        assert_eq!(note_of(&first, "handed").await, text);
    }
    assert!(lease.is_held() && lease.fence() == handle.fence());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert_eq!(claims(&server), [""; 0]);
    leaves_nothing(&server, [first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_after_a_note_without_an_answer_is_one_and_leaves_nothing() {
    let server = server().await;
    let near = client(server.url()).await;
    for direction in [Direction::Both, Direction::ToClient] {
        let proxy = Proxy::start(server.address()).await.expect("a proxy");
        let far = client(&format!("zk://{}?timeout_ms=500", proxy.address())).await;
        let lease = far.mutex("unsure").ttl(LONG).lock().await.expect("free");
        let query = Query::name(lease.name().clone());
        let mut events = near.admin().watch(&query).await.expect("a stream");
        proxy.block(direction);
        soon("an error", lease.set_note("lost")).await.expect_err("no answer comes");
        proxy.reset_all();
        proxy.pass().await.expect("it passes");
        until("the way back", async || far.line("unsure").await.is_ok()).await;
        assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        let event = soon("the end", async {
            loop {
                let event = events.next().await.expect("no end").expect("an event");
                if event.kind != EventKind::Amended {
                    return event;
                }
            }
        })
        .await;
        assert_eq!(event.kind, EventKind::Released);
        assert_eq!(claims(&server), [""; 0]);
        // While the network still works.
        soon("the close", far.close()).await.expect("an answer");
    }
    leaves_nothing(&server, [near]).await;
}
