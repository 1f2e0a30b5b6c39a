//! Keys that a client uses again: no client mistakes an earlier claim at a key for a later one.

use std::time::Duration;

use leasehold::Released;
use leasehold::claim::{Claim, Holder, Standing};
use leasehold::engine::{Administer, Bump, Engine, Eviction, RaiseFences, Wake};
use leasehold::etcd::Etcd as Store;
use leasehold_testkit::Server;
use leasehold_testkit::bare::{self, renewal};

use super::support::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn claim(name: &str) -> Claim {
    Claim { patience: PATIENCE, ..bare::claim(name) }
}

async fn engine(server: &Server) -> Store {
    Store::open(server.url()).await.expect("a connection")
}

async fn held(engine: &Store, asked: &Claim) -> u64 {
    match engine.claim(asked).await {
        Ok(Standing::Held { fence, .. }) => fence,
        other => panic!("{other:?}"),
    }
}

/// The answer to a renewal of a claim.
async fn renewed(engine: &Store, of: &Claim) -> Standing {
    let told = engine.renew(&[renewal(of)]).await.expect("an answer");
    told.into_iter().next().expect("one").expect("an answer")
}

async fn release(engine: &Store, of: &Claim) -> Released {
    engine.release(std::slice::from_ref(&of.key)).await.expect("an answer").remove(0)
}

/// Closes the engines of a store, and checks that nothing is left in it.
async fn is_left_empty(server: &Server, engines: &[&Store]) {
    for engine in engines {
        soon("the close", engine.close()).await.expect("an answer");
    }
    until_empty(server).await;
}

/// The key of the only claim.
fn the_key(server: &Server) -> String {
    let keys = claims(server);
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.into_iter().next().expect("one")
}

/// A claim that was given back, and another claim of the same client at the same key.
async fn two_at_one_key(server: &Server, engine: &Store) -> (Claim, Claim) {
    let (first, second) = (claim("n"), claim("n"));
    let before = held(engine, &first).await;
    let key = the_key(server);
    assert_eq!(release(engine, &first).await, Released::Released);
    assert!(held(engine, &second).await > before, "another creation, another fence");
    assert_eq!(the_key(server), key, "the key is used again");
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_of_an_earlier_claim_at_a_key_cannot_touch_the_present_one() {
    let server = server().await;
    let (one, two) = (engine(&server).await, engine(&server).await);
    let (first, second) = two_at_one_key(&server, &one).await;
    // The client that made it asks, and then one that has its handle.
    for engine in [&one, &two] {
        assert!(matches!(renewed(engine, &first).await, Standing::Out { .. }));
        let told = release(engine, &first).await;
        assert_eq!(told, Released::TakenBy(second.holder.clone()));
    }
    assert!(matches!(renewed(&one, &second).await, Standing::Held { .. }));
    assert_eq!(release(&one, &second).await, Released::Released);
    assert!(claims(&server).is_empty());
    is_left_empty(&server, &[&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_ended_without_its_clients_knowledge_ends_no_other() {
    let server = server().await;
    let (one, two) = (engine(&server).await, engine(&server).await);
    let (_, expired) = two_at_one_key(&server, &one).await;
    ctl(&endpoint(&server), &["del", &the_key(&server)]);
    let other = claim("n");
    held(&two, &other).await;
    let waits = claim("n");
    assert!(matches!(one.claim(&waits).await, Ok(Standing::Queued { ahead: 1, .. })));
    assert_eq!(release(&one, &expired).await, Released::TakenBy(other.holder.clone()));
    assert_eq!(claims(&server).len(), 2, "both are where they were");
    assert_eq!(release(&two, &other).await, Released::Released);
    let woken = soon("the bell", one.wait(&waits.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Holds { .. }), "{woken:?}");
    assert_eq!(release(&one, &waits).await, Released::Released);
    assert!(claims(&server).is_empty());
    is_left_empty(&server, &[&one, &two]).await;
}

/// The server answers a renewal before the release. That answer must not make the client believe in
/// the claim again. By then the key belongs to another claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_beside_a_release_does_not_end_the_claim_after_it() {
    let server = server().await;
    let engine = engine(&server).await;
    for _ in 0..100 {
        let (first, second) = (claim("n"), claim("n"));
        held(&engine, &first).await;
        let renewals = [renewal(&first)];
        let keys = [first.key.clone()];
        let (renewed, released) = tokio::join!(engine.renew(&renewals), engine.release(&keys));
        renewed.expect("an answer");
        assert_eq!(released.expect("an answer"), [Released::Released]);
        held(&engine, &second).await;
        assert_eq!(release(&engine, &first).await, Released::TakenBy(second.holder.clone()));
        assert_eq!(release(&engine, &second).await, Released::Released, "it was still there");
    }
    is_left_empty(&server, &[&engine]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_has_anothers_handle_does_not_write_at_the_others_key() {
    let server = server().await;
    let (one, two) = (engine(&server).await, engine(&server).await);
    let shared = claim("n");
    held(&one, &shared).await;
    let key = the_key(&server);
    assert!(matches!(renewed(&two, &shared).await, Standing::Held { .. }), "it took it up");
    assert_eq!(release(&one, &shared).await, Released::Released);
    // Now the key is free for its owner, and the other client claims again.
    held(&two, &shared).await;
    assert_ne!(the_key(&server), key);
    let own = claim("n");
    assert!(matches!(one.claim(&own).await, Ok(Standing::Queued { ahead: 1, .. })));
    assert_eq!(release(&two, &shared).await, Released::Released);
    soon("the bell", one.wait(&own.key)).await.expect("a bell");
    assert!(matches!(renewed(&one, &own).await, Standing::Held { .. }));
    assert_eq!(release(&one, &own).await, Released::Released);
    is_left_empty(&server, &[&one, &two]).await;
}

/// A token has one claim, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_client_renews_and_releases_a_claim_that_another_client_made_again() {
    let server = server().await;
    let (one, two) = (engine(&server).await, engine(&server).await);
    for is_renewed in [true, false] {
        let shared = claim("n");
        held(&one, &shared).await;
        assert_eq!(release(&two, &shared).await, Released::Released);
        let again = held(&two, &shared).await;
        if is_renewed {
            let told = renewed(&one, &shared).await;
            assert!(matches!(told, Standing::Held { fence, .. } if fence == again), "{told:?}");
        }
        assert_eq!(release(&one, &shared).await, Released::Released);
        assert_eq!(release(&two, &shared).await, Released::AlreadyExpired);
        assert!(claims(&server).is_empty());
    }
    is_left_empty(&server, &[&one, &two]).await;
}

/// As after the restore of a snapshot: the same key with a claim that ended long ago.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_at_which_an_old_claim_is_back_is_left_alone() {
    let server = server().await;
    let engine = engine(&server).await;
    let old = claim("n");
    held(&engine, &old).await;
    let key = the_key(&server);
    let value = ctl(&endpoint(&server), &["get", &key, "--print-value-only"]);
    assert_eq!(release(&engine, &old).await, Released::Released);
    ctl(&endpoint(&server), &["put", &key, &format!("{value}\n")]);
    let next = claim("n");
    assert!(matches!(engine.claim(&next).await, Ok(Standing::Queued { ahead: 1, .. })));
    assert_eq!(release(&engine, &old).await, Released::Released, "it is that claim");
    let woken = soon("the bell", engine.wait(&next.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Holds { .. }), "{woken:?}");
    assert_eq!(release(&engine, &next).await, Released::Released);
    assert!(claims(&server).is_empty());
    is_left_empty(&server, &[&engine]).await;
}

/// In another epoch fences are far above the revisions of events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_is_taken_out_of_the_line_after_a_bump_hears_of_it() {
    let server = server().await;
    let (one, two) = (engine(&server).await, engine(&server).await);
    let order = Bump { above: 0, now_us: 1 << 50, by: Holder::fresh() };
    one.bump_epoch(&order).await.expect("bumped");
    let (holds, waits) = (claim("n"), claim("n"));
    assert!(held(&one, &holds).await >= 1 << 50);
    let first = the_key(&server);
    assert!(matches!(two.claim(&waits).await, Ok(Standing::Queued { ahead: 1, .. })));
    let mut keys = claims(&server);
    keys.retain(|key| *key != first);
    ctl(&endpoint(&server), &["del", &keys[0]]);
    let woken = soon("the bell", two.wait(&waits.key)).await.expect("a bell");
    assert!(matches!(woken, Wake::Ask), "{woken:?}");
    assert_eq!(release(&one, &holds).await, Released::Released);
    is_left_empty(&server, &[&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_given_up_half_way_leaves_its_key_to_nobody() {
    let server = server().await;
    let engine = engine(&server).await;
    let (first, second) = two_at_one_key(&server, &engine).await;
    let key = the_key(&server);
    assert_eq!(release(&engine, &second).await, Released::Released);
    let given_up = claim("n");
    {
        // Its request is in flight when the test drops it: a stopped server does not answer.
        server.stop_process().expect("stopped");
        let mut asking = std::pin::pin!(engine.claim(&given_up));
        let polled = futures_util::poll!(asking.as_mut());
        assert!(polled.is_pending());
    }
    server.continue_process().expect("it goes on");
    let next = claim("n");
    assert!(engine.claim(&next).await.is_ok());
    assert!(claims(&server).iter().filter(|other| **other != key).count() == 1, "a new key");
    release(&engine, &given_up).await;
    until("the one that was given up is gone", async || claims(&server).len() == 1).await;
    assert!(matches!(renewed(&engine, &next).await, Standing::Held { .. }));
    assert!(matches!(renewed(&engine, &first).await, Standing::Out { .. }));
    assert_eq!(release(&engine, &next).await, Released::Released);
    is_left_empty(&server, &[&engine]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_of_one_claim_leaves_the_next_at_its_key() {
    let server = server().await;
    let engine = engine(&server).await;
    let (_, second) = two_at_one_key(&server, &engine).await;
    let Standing::Held { fence, .. } = renewed(&engine, &second).await else {
        panic!("it does not hold");
    };
    let (name, by) = (second.key.name.clone(), Holder::fresh());
    let order =
        Eviction { name, fences: vec![fence], unreadable: false, by, reason: "test".into() };
    let evicted = engine.evict(&order).await.expect("an answer");
    assert_eq!(evicted, std::slice::from_ref(&second.holder));
    assert_eq!(release(&engine, &second).await, Released::AlreadyExpired);
    let third = claim("n");
    held(&engine, &third).await;
    assert!(matches!(renewed(&engine, &second).await, Standing::Out { .. }));
    assert!(matches!(renewed(&engine, &third).await, Standing::Held { .. }));
    assert_eq!(release(&engine, &third).await, Released::Released);
    is_left_empty(&server, &[&engine]).await;
}
