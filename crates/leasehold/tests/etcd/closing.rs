//! Leases that were given back and keep their name closed, and renewals with a shorter ttl.

use std::time::Duration;

use leasehold::Released;
use leasehold::claim::{Amended, Claim, Mode, Note, Renewal, Standing};
use leasehold::engine::{Amend as _, Engine as _, Query, Unattended as _};
use leasehold::etcd::Etcd;
use leasehold_testkit::{AfterLoss, Proxy, Server, bare};

use super::support::*;

const STAY: Duration = Duration::from_secs(3);

const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 2 }];

async fn open(server: &Server) -> Etcd {
    Etcd::open(server.url()).await.expect("a connection")
}

async fn held(store: &Etcd, name: &str, mode: Mode) -> Claim {
    let claim = Claim { mode, ..bare::claim(name) };
    let standing = store.claim(&claim).await.expect("an answer");
    assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
    claim
}

/// No client finds the claim by its token, and no other claim is granted.
async fn belongs_to_nobody(store: &Etcd, claim: &Claim) {
    let renewed = store.renew(&[bare::renewal(claim)]).await.expect("an answer");
    assert!(matches!(renewed[..], [Ok(Standing::Out { .. })]), "{renewed:?}");
    let note = Note::new("mine").expect("a note");
    let amended = store.set_note(&claim.key, &note).await.expect("an answer");
    assert!(matches!(amended, Amended::Out { .. }), "{amended:?}");
    let closed = store.keep_closed(&claim.key, LONG).await.expect("an answer");
    assert!(matches!(closed, Released::TakenBy(_)), "{closed:?}");
    let released = store.release(std::slice::from_ref(&claim.key)).await.expect("an answer");
    assert!(matches!(released[..], [Released::TakenBy(_)]), "{released:?}");
    let other = Claim { mode: claim.mode, join: false, ..bare::claim(claim.key.name.as_str()) };
    let other = match claim.mode {
        Mode::Shared => Claim { mode: Mode::Exclusive, ..other },
        _ => other,
    };
    let standing = store.claim(&other).await.expect("an answer");
    assert!(matches!(standing, Standing::Out { .. }), "{standing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_claim_belongs_to_nobody_and_ends_by_itself() {
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    for mode in MODES {
        let claim = held(&owner, "closed", mode).await;
        let view = |page: leasehold::engine::Page| page.lines[0].held[0].clone();
        let query = Query::name(claim.key.name.clone());
        let before = view(owner.inspect(&query).await.expect("an answer"));
        let closed = owner.keep_closed(&claim.key, STAY).await.expect("an answer");
        assert_eq!(closed, Released::Released);
        let after = view(other.inspect(&query).await.expect("an answer"));
        assert_eq!((after.fence, &after.holder), (before.fence, &before.holder));
        assert!(after.remaining <= STAY, "{after:?}");
        belongs_to_nobody(&owner, &claim).await;
        belongs_to_nobody(&other, &claim).await;
        until("its end", async || claims(&server).is_empty()).await;
    }
    for store in [owner, other] {
        soon("the close", store.close()).await.expect("an answer");
    }
    assert_eq!(lease_ids(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_is_closed_by_its_handle_is_lost_to_its_owner() {
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    for mode in MODES {
        let claim = held(&owner, "by-handle", mode).await;
        let closed = other.keep_closed(&claim.key, STAY).await.expect("an answer");
        assert_eq!(closed, Released::Released);
        belongs_to_nobody(&owner, &claim).await;
        belongs_to_nobody(&other, &claim).await;
        until("its end", async || claims(&server).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_closed_once_although_the_answer_is_lost() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = Etcd::open(format!("etcd://{}", proxy.address())).await.expect("a connection");
    let claim = held(&far, "unheard", Mode::Exclusive).await;
    proxy.lose_reply_to("leasehold 1", AfterLoss::Reset);
    let closed = soon("an answer", async {
        loop {
            match far.keep_closed(&claim.key, STAY).await {
                Err(error) if error.is_transient() => {}
                closed => return closed,
            }
        }
    })
    .await;
    assert_eq!(proxy.traffic().replies_lost, 1, "the answer got through");
    assert_eq!(closed.expect("an answer"), Released::Released);
    belongs_to_nobody(&far, &claim).await;
    until("its end", async || claims(&server).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_with_a_shorter_ttl_does_not_shorten_a_lease() {
    const BRIEF: Duration = Duration::from_secs(1);
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    for store in [&owner, &other] {
        let claim = Claim { ttl: Duration::from_secs(8), ..bare::claim("shorter") };
        let standing = owner.claim(&claim).await.expect("an answer");
        assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
        let renewal = Renewal { ttl: BRIEF, ..bare::renewal(&claim) };
        let renewed = store.renew(&[renewal]).await.expect("an answer");
        let [Ok(Standing::Held { remaining, .. })] = renewed[..] else { panic!("{renewed:?}") };
        assert!(remaining > Duration::from_secs(6), "{remaining:?}");
        let next = Claim { join: false, ..bare::claim("shorter") };
        tokio::time::sleep(Duration::from_secs(4)).await;
        let standing = other.claim(&next).await.expect("an answer");
        assert!(matches!(standing, Standing::Out { .. }), "{standing:?}");
        // It ends nevertheless.
        until("its end", async || claims(&server).is_empty()).await;
    }
}
