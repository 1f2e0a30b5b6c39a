//! Claims that are made, forgotten, renewed by a handle and swept, all at the same time.

use std::time::Duration;

use leasehold_testkit::waiting::until;
use leasehold_testkit::{Direction, Proxy, Server, Zookeeper};

use super::ZooKeeper;
use super::create::create;
use super::leave::expire;
use super::link;
use super::wire::{Part, Request, code};
use crate::clock::{Clock as _, SystemClock};
use crate::engine::Engine as _;
use crate::error::Error;
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token, Ttl};
use crate::rule::name::Name;

async fn server() -> Server {
    Zookeeper::new().start().await.expect("a server")
}

async fn open(server: &Server) -> ZooKeeper {
    ZooKeeper::open(server.url()).await.expect("a connection")
}

fn claim(name: &str, mode: Mode) -> Claim {
    Claim {
        key: ClaimKey { name: Name::new(name).expect("good"), token: Token::random() },
        mode,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl: Ttl::DEFAULT.get(),
        patience: Ttl::DEFAULT.patience(),
        join: true,
    }
}

/// How many claims are in a line.
async fn claims(store: &ZooKeeper, name: &Name) -> usize {
    let session = store.inner.pool.any().await.expect("a session");
    let line = store.inner.read_line_now(&session, name).await.expect("an answer");
    line.entries.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_is_forgotten_while_it_is_made_leaves_no_node() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let near = open(&server).await;
    let far = ZooKeeper::open(format!("zk://{}", proxy.address())).await.expect("a connection");
    let permit = claim("made", Mode::Permits { take: 1, of: 1 });
    assert!(matches!(near.claim(&permit).await, Ok(Standing::Held { .. })));
    // Its session is open, and its link is written.
    let first = claim("first", Mode::Exclusive);
    assert!(matches!(far.claim(&first).await, Ok(Standing::Held { .. })));
    // It is of another kind than its line, so it is refused when it has read that.
    let lock = claim("made", Mode::Exclusive);
    proxy.block(Direction::ToClient);
    let asking = tokio::spawn({
        let (far, lock) = (far.clone(), lock.clone());
        async move { far.claim(&lock).await }
    });
    until("its nodes", async || claims(&near, &lock.key.name).await == 2).await;
    let record = far.inner.book.get(&lock.key).expect("it is being made");
    far.inner.book.remove(&record.stay);
    proxy.pass().await.expect("it passes");
    let asked = asking.await.expect("no panic");
    assert!(matches!(asked, Err(Error::Mismatch { .. })), "{asked:?}");
    assert_eq!(claims(&near, &lock.key.name).await, 1, "only the permit is in line");
}

#[tokio::test]
async fn sweep_deletes_both_places_of_a_claim_that_was_made_twice() {
    let server = server().await;
    let store = open(&server).await;
    let twice = claim("twice", Mode::Exclusive);
    assert!(matches!(store.claim(&twice).await, Ok(Standing::Held { .. })));
    // Its record is gone, and the claim that is made again does not come to the end.
    let first = store.inner.book.get(&twice.key).expect("it was made");
    store.inner.book.remove(&first.stay);
    let made = create(&store.inner, &twice).await.expect("an answer").expect("it is made");
    expire(&store.inner, made.0).await.expect("an answer");
    assert_eq!(claims(&store, &twice.key.name).await, 0);
}

#[tokio::test]
async fn sweep_keeps_a_claim_that_was_renewed_by_its_handle_after_the_sweep_had_begun() {
    let server = server().await;
    let (owner, visitor) = (open(&server).await, open(&server).await);
    let kept = claim("kept", Mode::Exclusive);
    assert!(matches!(owner.claim(&kept).await, Ok(Standing::Held { .. })));
    let record = owner.inner.book.get(&kept.key).expect("it was made");
    // The sweep has begun, and its request is not answered.
    assert!(owner.inner.book.end(&record.stay, record.until));
    let ttl = Ttl::DEFAULT.get() + Duration::from_secs(5);
    let renewal = Renewal { key: kept.key.clone(), ttl, patience: kept.patience };
    let renewed = visitor.renew(&[renewal]).await.expect("an answer");
    assert!(matches!(renewed[..], [Ok(Standing::Held { .. })]), "{renewed:?}");
    until("the sweep", async || {
        let record = owner.inner.book.get(&kept.key).expect("it is there");
        // The visitor cut the owner's connection.
        expire(&owner.inner, record).await.is_ok()
    })
    .await;
    let record = owner.inner.book.get(&kept.key).expect("it is there");
    assert!(!record.ending && record.until > SystemClock.now());
    assert_eq!(claims(&visitor, &kept.key.name).await, 1);
}

#[tokio::test]
async fn sweep_comes_back_to_a_claim_that_was_asked_about() {
    let server = server().await;
    let store = open(&server).await;
    let asked = claim("asked", Mode::Exclusive);
    assert!(matches!(store.claim(&asked).await, Ok(Standing::Held { .. })));
    let book = &store.inner.book;
    let record = book.get(&asked.key).expect("it was made");
    let now = SystemClock.now();
    assert!(book.change(&record.stay, |record| record.until = now));
    let guard = book.ask(&asked.key);
    assert!(book.overdue(now).is_empty());
    let next = book.next_sweep(now).expect("it looks again");
    assert!(next > now && next <= now + Duration::from_secs(1));
    drop(guard);
    assert_eq!(book.overdue(now).len(), 1);
}

/// Several tasks of a client make their first claims at the same time: they share one link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_claim_at_once_on_a_new_connection_write_its_link_once() {
    let server = server().await;
    let store = open(&server).await;
    let session = store.inner.session(Ttl::DEFAULT.get()).await.expect("a session");
    let links = futures_util::future::join_all((0..8).map(|_| link::of(&store.inner, &session)));
    let links: Vec<_> = links.await.into_iter().map(|link| link.expect("a link")).collect();
    assert!(links.iter().all(|link| *link == links[0]), "{links:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_an_older_connection_makes_no_claim_once_the_next_one_looked_for_it() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.expect("a proxy");
    let far = ZooKeeper::open(format!("zk://{}", proxy.address())).await.expect("a connection");
    let asked = claim("older", Mode::Shared);
    assert!(matches!(far.claim(&asked).await, Ok(Standing::Held { .. })));
    let record = far.inner.book.get(&asked.key).expect("it was made");
    let session = &record.session;
    let older = link::of(&far.inner, session).await.expect("a link");
    proxy.reset_all();
    until("another connection", async || {
        session.connection().await.is_ok_and(|times| times > older.times)
    })
    .await;
    // The claim's answer was lost, as far as the client knows.
    let doubtful = super::book::Record { paths: Vec::new(), ..record.clone() };
    assert!(far.inner.book.update(doubtful));
    assert!(matches!(far.claim(&asked).await, Ok(Standing::Held { .. })));
    let path = far.inner.layout.line(&asked.key.name);
    let late = vec![older.check(&far.inner, session), Request::Check { path }];
    let reply = session.ask(Request::Multi(late)).await.expect("an answer");
    let parts = far.inner.parts(&reply).expect("good");
    assert_eq!(parts.first(), Some(&Part::Failed(code::BAD_VERSION)));
    far.release(std::slice::from_ref(&asked.key)).await.expect("an answer");
    assert_eq!(claims(&far, &asked.key.name).await, 0);
}
