//! A sweep that is late meets an answer that says that the claim is there.

use std::time::Duration;

use super::Etcd;
use super::leave::{delete_expired, expire};
use super::wire::{TxnRequest, put};
use crate::engine::{Engine as _, Query};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token};
use crate::rule::name::Name;

/// Short enough that a lease and a place in line are on the same lease of etcd's: neither an answer
/// nor a renewal writes the key.
const TTL: Duration = Duration::from_secs(5);

fn claim(name: &str) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("good"), token: Token::random() },
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: TTL,
        patience: TTL,
        join: true,
    }
}

fn renewal(claim: &Claim) -> Renewal {
    Renewal { key: claim.key.clone(), ttl: claim.ttl, patience: claim.patience }
}

async fn two_clients(server: &leasehold_testkit::Server) -> (Etcd, Etcd) {
    let one = Etcd::open(server.url()).await.expect("a connection");
    let two = Etcd::open(server.url()).await.expect("a connection");
    (one, two)
}

/// How many hold and how many wait.
async fn line(store: &Etcd, name: &Name) -> (usize, usize) {
    let page = store.inspect(&Query::name(name.clone())).await.expect("an answer");
    let count = |line: &crate::engine::LineView| (line.held.len(), line.waiting.len());
    page.lines.first().map(count).unwrap_or_default()
}

#[tokio::test]
async fn sweep_leaves_a_claim_alone_that_was_answered_since_its_time_was_up() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let (one, two) = two_clients(&server).await;
    let (held, waits) = (claim("late"), claim("late"));
    assert!(matches!(one.claim(&held).await, Ok(Standing::Held { .. })));
    assert!(matches!(two.claim(&waits).await, Ok(Standing::Queued { .. })));
    let old = one.inner.book.get(&held.key).expect("it was made");
    assert!(matches!(one.claim(&held).await, Ok(Standing::Held { .. })));
    expire(&one.inner, &held.key, &old).await.expect("an answer");
    let old = two.inner.book.get(&waits.key).expect("it was made");
    let answers = two.renew(&[renewal(&waits)]).await.expect("an answer");
    assert!(matches!(answers[..], [Ok(Standing::Queued { .. })]), "{answers:?}");
    expire(&two.inner, &waits.key, &old).await.expect("an answer");
    assert_eq!(line(&two, &held.key.name).await, (1, 1));
}

#[tokio::test]
async fn claim_that_is_answered_while_the_sweep_deletes_it_is_written_first() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let (one, two) = two_clients(&server).await;
    let (asked, renewed) = (claim("asked"), claim("renewed"));
    let (first, waits) = (claim("waits"), claim("waits"));
    for held in [&asked, &renewed, &first] {
        assert!(matches!(one.claim(held).await, Ok(Standing::Held { .. })));
    }
    assert!(matches!(two.claim(&waits).await, Ok(Standing::Queued { .. })));
    // The sweeps have begun, and their requests are in flight.
    let old = [(&one, &asked), (&one, &renewed), (&two, &waits)].map(|(store, claim)| {
        let record = store.inner.book.get(&claim.key).expect("it was made");
        assert!(store.inner.book.end(&claim.key, &record));
        (store, claim, record)
    });
    assert!(matches!(one.claim(&asked).await, Ok(Standing::Held { .. })));
    let answers = one.renew(&[renewal(&renewed)]).await.expect("an answer");
    assert!(matches!(answers[..], [Ok(Standing::Held { .. })]), "{answers:?}");
    assert!(matches!(two.claim(&waits).await, Ok(Standing::Queued { .. })));
    for (store, claim, record) in old {
        let late = delete_expired(&store.inner, &claim.key, &record).await;
        late.expect("an answer");
        let standing = line(&two, &claim.key.name).await;
        assert!(standing.0 == 1, "a lease was deleted that was granted before");
    }
    assert_eq!(line(&two, &waits.key.name).await, (1, 1), "it was told that it is in line");
}

#[tokio::test]
async fn claim_that_the_sweep_deleted_gets_another_place() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let (one, two) = two_clients(&server).await;
    let (first, waits) = (claim("deleted"), claim("deleted"));
    assert!(matches!(one.claim(&first).await, Ok(Standing::Held { .. })));
    let Ok(Standing::Queued { place, .. }) = two.claim(&waits).await else { panic!() };
    let record = two.inner.book.get(&waits.key).expect("it was made");
    expire(&two.inner, &waits.key, &record).await.expect("an answer");
    assert_eq!(line(&one, &first.key.name).await, (1, 0));
    let Ok(Standing::Queued { place: next, .. }) = two.claim(&waits).await else { panic!() };
    assert_ne!(place, next);
}

#[tokio::test]
async fn claim_that_a_lost_request_wrote_is_deleted_by_the_next_sweep() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let (one, two) = two_clients(&server).await;
    let (held, kept) = (claim("written"), claim("kept"));
    for claim in [&held, &kept] {
        assert!(matches!(one.claim(claim).await, Ok(Standing::Held { .. })));
    }
    let claim = &held.key;
    let record = || one.inner.book.get(claim);
    let old = record().expect("it was made");
    // As a renewal whose answer is lost.
    let write = put(&old.key, &old.detail.encode(), old.lease);
    let request = TxnRequest { success: vec![write], ..TxnRequest::default() };
    assert!(one.inner.links.txn(&request).await.expect("an answer").succeeded);
    assert!(expire(&one.inner, claim, &old).await.is_err(), "its answer may come later");
    assert_eq!(line(&two, &held.key.name).await, (1, 0));
    let known = record().expect("this client keeps its lease alive");
    expire(&one.inner, claim, &known).await.expect("an answer");
    assert_eq!(line(&two, &held.key.name).await, (0, 0));
    assert!(record().is_none());
}
