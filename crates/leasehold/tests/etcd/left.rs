//! The claims that a closed client leaves: only those it detached, and none of those after their
//! release.

use std::time::Duration;

use leasehold::{Released, UnlessHeld, connect};

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_no_lease_and_a_detached_one_stays_until_its_ttl() {
    let server = server().await;
    let client = connect(server.url()).await.expect("a connection");
    let kept = client.mutex("kept").ttl(Duration::from_secs(2)).lock().await.expect("free");
    let gone = client.mutex("gone").ttl(LONG).lock().await.expect("free");
    assert!(client.mutex("gone").try_lock().await.unless_held().expect("an answer").is_none());
    let handle = kept.detach().await.expect("a handle");
    drop(gone);
    soon("the close", client.close()).await.expect("an answer");
    assert_eq!(claims(&server).len(), 1);
    assert_eq!(lease_ids(&server).len(), 1);
    let other = connect(server.url()).await.expect("a connection");
    assert!(other.check(&handle).await.expect("an answer").is_some());
    nothing_is_left(&server, &[other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_no_lease_of_a_claim_that_others_ended() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let detached = one.mutex("detached").ttl(LONG).lock().await.expect("free");
    let handle = detached.detach().await.expect("a handle");
    assert_eq!(two.release(&handle).await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_ends_the_last_claim_of_a_closed_client_ends_its_lease() {
    let server = server().await;
    let one = client(server.url()).await;
    let mut handles = Vec::new();
    for name in ["released", "taken-up", "evicted"] {
        let lease = one.mutex(name).ttl(LONG).lock().await.expect("free");
        handles.push(lease.detach().await.expect("a handle"));
    }
    soon("the close", one.close()).await.expect("an answer");
    let left = lease_ids(&server);
    assert_eq!(left.len(), 1, "they share it");
    let two = client(server.url()).await;
    assert_eq!(two.release(&handles[0]).await.expect("an answer"), Released::Released);
    let taken_up = two.adopt(&handles[1]).await.expect("it is held");
    assert!(lease_ids(&server).contains(&left[0]), "a claim is on it");
    two.admin().force_release("evicted", "left over").await.expect("an answer");
    assert!(!lease_ids(&server).contains(&left[0]), "nothing is on it any more");
    assert!(taken_up.is_held());
    assert_eq!(taken_up.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_client_that_lives_is_its_own_although_others_took_all_that_was_on_it() {
    let server = server().await;
    let [one, two] = [client(server.url()).await, client(server.url()).await];
    let detached = one.mutex("detached").ttl(LONG).lock().await.expect("free");
    let handle = detached.detach().await.expect("a handle");
    let own = lease_ids(&server);
    assert_eq!(two.release(&handle).await.expect("an answer"), Released::Released);
    assert_eq!(lease_ids(&server), own, "the next claim may be on its way to it");
    let lease = one.mutex("next").ttl(LONG).lock().await.expect("free");
    assert_eq!(lease_ids(&server), own);
    assert!(lease.is_held());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    nothing_is_left(&server, &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_goes_although_its_client_closes_just_when_others_end_its_last_claim() {
    let server = server().await;
    let two = client(server.url()).await;
    for round in 0..50 {
        let one = client(server.url()).await;
        let lease = one.mutex(format!("race:{round}")).ttl(LONG).lock().await.expect("free");
        let handle = lease.detach().await.expect("a handle");
        let (closed, released) = tokio::join!(one.close(), two.release(&handle));
        closed.expect("an answer");
        assert_eq!(released.expect("an answer"), Released::Released);
    }
    nothing_is_left(&server, &[two]).await;
}
