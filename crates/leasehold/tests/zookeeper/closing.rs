//! Leases that were given back and keep their name closed, and renewals with a shorter ttl.

use std::time::Duration;

use leasehold::Released;
use leasehold::claim::{Amended, Claim, Mode, Note, Renewal, Standing, Ttl};
use leasehold::engine::{Amend as _, Engine as _, Query, Unattended as _};
use leasehold::zookeeper::ZooKeeper;
use leasehold_testkit::{AfterLoss, Proxy, Server, bare};

use super::support::*;

const STAY: Duration = Duration::from_secs(3);

const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 2, of: 2 }];

async fn open(server: &Server) -> ZooKeeper {
    ZooKeeper::open(server.url()).await.expect("a connection")
}

fn claim(name: &str, mode: Mode) -> Claim {
    Claim { mode, ttl: Ttl::DEFAULT.get(), ..bare::claim(name) }
}

async fn held(store: &ZooKeeper, name: &str, mode: Mode) -> Claim {
    let claim = claim(name, mode);
    let standing = store.claim(&claim).await.expect("an answer");
    assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
    claim
}

/// No other claim is granted.
async fn is_closed(store: &ZooKeeper, closed: &Claim) {
    let mode = match closed.mode {
        Mode::Shared => Mode::Exclusive,
        mode => mode,
    };
    let other = Claim { join: false, ..claim(closed.key.name.as_str(), mode) };
    let standing = store.claim(&other).await.expect("an answer");
    assert!(matches!(standing, Standing::Out { .. }), "{standing:?}");
}

/// No client finds the claim by its token, and no other claim is granted.
async fn belongs_to_nobody(store: &ZooKeeper, closed: &Claim) {
    let released = store.release(std::slice::from_ref(&closed.key)).await.expect("an answer");
    assert!(matches!(released[..], [Released::TakenBy(_)]), "{released:?}");
    let renewed = store.renew(&[bare::renewal(closed)]).await.expect("an answer");
    assert!(matches!(renewed[..], [Ok(Standing::Out { .. })]), "{renewed:?}");
    let note = Note::new("mine").expect("a note");
    let amended = store.set_note(&closed.key, &note).await.expect("an answer");
    assert!(matches!(amended, Amended::Out { .. }), "{amended:?}");
    let again = store.keep_closed(&closed.key, STAY * 2).await.expect("an answer");
    assert!(matches!(again, Released::TakenBy(_)), "{again:?}");
    is_closed(store, closed).await;
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
        until_empty(&server).await;
    }
    close([&owner, &other]).await;
    leaves_nothing(&server, []).await;
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
        until_empty(&server).await;
    }
    close([&owner, &other]).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_and_note_of_a_lease_that_was_closed_by_its_handle_find_nothing() {
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    let note = Note::new("mine").expect("a note");
    for renews in [true, false] {
        let claim = held(&owner, "first", Mode::Exclusive).await;
        let closed = other.keep_closed(&claim.key, STAY).await.expect("an answer");
        assert_eq!(closed, Released::Released);
        if renews {
            let renewed = owner.renew(&[bare::renewal(&claim)]).await.expect("an answer");
            assert!(matches!(renewed[..], [Ok(Standing::Out { .. })]), "{renewed:?}");
        } else {
            let amended = owner.set_note(&claim.key, &note).await.expect("an answer");
            assert!(matches!(amended, Amended::Out { .. }), "{amended:?}");
        }
        is_closed(&owner, &claim).await;
        until_empty(&server).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_claim_of_a_client_that_closes_ends_long_before_its_session() {
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    let closed = held(&owner, "left", Mode::Exclusive).await;
    let begun = std::time::Instant::now();
    let answer = owner.keep_closed(&closed.key, STAY).await.expect("an answer");
    assert_eq!(answer, Released::Released);
    close([&owner]).await;
    belongs_to_nobody(&other, &closed).await;
    let next = claim("left", Mode::Exclusive);
    let standing = other.claim(&next).await.expect("an answer");
    assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
    soon("the end of its time", other.wait(&next.key)).await.expect("a bell");
    assert!(begun.elapsed() >= STAY, "{:?} of {STAY:?}", begun.elapsed());
    assert!(begun.elapsed() < Ttl::DEFAULT.get(), "{:?} of {STAY:?}", begun.elapsed());
    other.release(&[next.key]).await.expect("an answer");
    close([&other]).await;
    leaves_nothing(&server, []).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_closed_once_although_the_answer_is_lost() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = ZooKeeper::open(format!("zk://{}", proxy.address())).await.expect("a connection");
    let claim = held(&far, "unheard", Mode::Exclusive).await;
    proxy.lose_reply_to("-closed", AfterLoss::Reset);
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
    until_empty(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_claim_is_no_lease_and_is_not_closed() {
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    let first = held(&owner, "waits", Mode::Exclusive).await;
    for store in [&owner, &other] {
        let waits = claim("waits", Mode::Exclusive);
        let standing = owner.claim(&waits).await.expect("an answer");
        assert!(matches!(standing, Standing::Queued { .. }), "{standing:?}");
        let closed = store.keep_closed(&waits.key, STAY).await.expect("an answer");
        assert_eq!(closed, Released::TakenBy(first.holder.clone()));
        let query = Query::name(first.key.name.clone());
        let page = owner.inspect(&query).await.expect("an answer");
        assert_eq!(page.lines[0].waiting.len(), 1, "{page:?}");
        let left = owner.release(&[waits.key]).await.expect("an answer");
        assert_eq!(left, [Released::Released]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_with_a_shorter_ttl_does_not_shorten_a_lease() {
    const BRIEF: Duration = Duration::from_secs(1);
    let server = server().await;
    let (owner, other) = (open(&server).await, open(&server).await);
    for store in [&owner, &other] {
        let kept = Claim { ttl: Duration::from_secs(8), ..bare::claim("shorter") };
        let standing = owner.claim(&kept).await.expect("an answer");
        assert!(matches!(standing, Standing::Held { .. }), "{standing:?}");
        let renewal = Renewal { ttl: BRIEF, ..bare::renewal(&kept) };
        let renewed = store.renew(&[renewal]).await.expect("an answer");
        let [Ok(Standing::Held { remaining, .. })] = renewed[..] else { panic!("{renewed:?}") };
        assert!(remaining > Duration::from_secs(6), "{remaining:?}");
        tokio::time::sleep(Duration::from_secs(4)).await;
        is_closed(&other, &kept).await;
        // It ends nevertheless.
        until_empty(&server).await;
    }
}
