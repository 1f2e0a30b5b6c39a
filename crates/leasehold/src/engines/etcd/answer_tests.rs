//! Answers about a claim that other requests overtook.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;

use super::Etcd;
use super::book::Doubt;
use crate::clock::{Clock as _, SystemClock};
use crate::engine::{ClaimMany as _, Engine as _, Unattended as _};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token};
use crate::rule::name::Name;

const TTL: Duration = Duration::from_secs(300);

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

async fn store(server: &leasehold_testkit::Server) -> Etcd {
    Etcd::open(server.url()).await.expect("a connection")
}

/// The claims that are looked for later.
fn doubts(store: &Etcd) -> Vec<ClaimKey> {
    let later = SystemClock.now() + Duration::from_secs(3600);
    let doubts = store.inner.book.doubts(later);
    doubts.into_iter().map(|Doubt { key, .. }| key).collect()
}

#[tokio::test]
async fn claim_with_a_request_given_up_is_looked_for_although_a_renewal_was_answered_since() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let asked = claim("given-up");
    assert!(matches!(store.claim(&asked).await, Ok(Standing::Held { .. })));
    let renewals = [Renewal { key: asked.key.clone(), ttl: TTL, patience: TTL }];
    let mut renewal = pin!(store.renew(&renewals));
    assert!(poll!(&mut renewal).is_pending());
    {
        let mut again = pin!(store.claim(&asked));
        assert!(poll!(&mut again).is_pending());
    }
    let standings = renewal.await.expect("an answer");
    assert!(matches!(standings[..], [Ok(Standing::Held { .. })]), "{standings:?}");
    store.release(std::slice::from_ref(&asked.key)).await.expect("an answer");
    assert_eq!(doubts(&store), [asked.key]);
}

#[tokio::test]
async fn claim_whose_first_request_was_given_up_is_looked_for_after_its_release() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let asked = claim("first");
    {
        let mut first = pin!(store.claim(&asked));
        assert!(poll!(&mut first).is_pending());
    }
    assert!(matches!(store.claim(&asked).await, Ok(Standing::Held { .. })));
    store.release(std::slice::from_ref(&asked.key)).await.expect("an answer");
    assert_eq!(doubts(&store), [asked.key]);
}

/// A keeper stops giving a claim back when the ttl is over.
#[tokio::test]
async fn claim_with_a_request_given_up_is_looked_for_although_no_release_is_answered() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let asked = claim("unanswered");
    {
        let mut first = pin!(store.claim(&asked));
        assert!(poll!(&mut first).is_pending());
    }
    let keys = [asked.key.clone()];
    {
        let mut release = pin!(store.release(&keys));
        assert!(poll!(&mut release).is_pending());
    }
    assert_eq!(doubts(&store), keys);
}

#[tokio::test]
async fn claims_on_several_names_with_a_request_given_up_are_looked_for_after_their_release() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let claims = [claim("one"), claim("other")];
    {
        let mut first = pin!(store.claim_all(&claims));
        assert!(poll!(&mut first).is_pending());
    }
    assert!(matches!(store.claim_all(&claims).await, Ok(Some(_))));
    let keys = claims.map(|claim| claim.key);
    store.release(&keys).await.expect("an answer");
    assert_eq!(doubts(&store), keys);
}

#[tokio::test]
async fn lease_that_stays_closed_is_looked_for_if_a_request_for_it_was_given_up() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let asked = claim("closed");
    assert!(matches!(store.claim(&asked).await, Ok(Standing::Held { .. })));
    {
        let mut again = pin!(store.claim(&asked));
        assert!(poll!(&mut again).is_pending());
    }
    store.keep_closed(&asked.key, TTL).await.expect("an answer");
    assert_eq!(doubts(&store), [asked.key]);
}

#[tokio::test]
async fn renewal_of_a_claim_that_was_given_back_meanwhile_says_that_it_is_out() {
    let server = leasehold_testkit::Etcd::new().start().await.expect("a server");
    let store = store(&server).await;
    let asked = claim("back");
    assert!(matches!(store.claim(&asked).await, Ok(Standing::Held { .. })));
    let known = store.inner.book.get(&asked.key).expect("it was made");
    let renewals = [Renewal { key: asked.key.clone(), ttl: TTL, patience: TTL }];
    let mut renewal = pin!(store.renew(&renewals));
    assert!(poll!(&mut renewal).is_pending());
    store.inner.book.remove(&asked.key, known.created);
    store.inner.links.delete_of((&asked.key.name, false), known.key).await.expect("an answer");
    let standings = renewal.await.expect("an answer");
    assert!(matches!(standings[..], [Ok(Standing::Out { .. })]), "{standings:?}");
    assert!(store.inner.book.get(&asked.key).is_none());
}
